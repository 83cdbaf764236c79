"""Why something waits or was stopped, in the person's language.

The server tells a code with parameters beside its own English sentence. That sentence is what is said in English, and
for a code that is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from muster.cli.output import state_word
from muster.records import Reason, Run, Task
from muster.words import ENGLISH, _, language

_SENTENCES: Final[Mapping[str, str]] = {
    "could_begin": _("may be claimed now"),
    "may": _("it may be claimed now; its agent has not asked yet"),
    "task_final": _("the task has ended (%(state)s)"),
    "cancelled": _("the task is being cancelled"),
    "stopped": _("the stop rule has stopped the task"),
    "task_paused": _("the task is paused; `muster resume` lets it go on"),
    "window_full": _("%(held)s of its runs are under way and parallel=%(parallel)s allows no more"),
    "agent_offline": _("%(agent)s is offline"),
    "agent_draining": _("%(agent)s is draining and takes nothing new"),
    "agent_conflict": _("two daemons use the identity of %(agent)s; stop one of them"),
    "agent_busy": _("%(agent)s is busy: %(held)s of %(slots)s slots are held"),
    "queue_not_served": _("%(agent)s does not serve the queue %(queue)s"),
    "agent_gone": _("its agent is no longer enrolled"),
    "no_candidate": _("no agent serves the queue %(queue)s"),
    "no_candidate_online": _("none of the %(candidates)s agents that may take it is online"),
    "delayed": _("it is not due yet"),
    "leased_not_begun": _("an agent has claimed it and not begun yet"),
    "agent_silent": _("it has begun, and its agent has gone silent"),
    "cancelling": _("it has begun and is being ended"),
    "running": _("it has begun"),
    "final": _("it has ended (%(state)s)"),
    "more": _("and %(number)s more"),
    "fail_count": _("%(failed)s of %(total)s runs failed; the limit is fail_count=%(limit)s"),
    "fail_rate": _("%(failed)s of %(total)s runs failed; the limit is fail_rate=%(limit)s"),
    "cancelled_on_request": _("cancelled on request"),
    "retry_failed": _("its runs are being reopened"),
    "retry_all": _("its runs are being reopened"),
}


def verdict(said: Mapping[str, Any]) -> str:
    """A verdict on one run."""
    return _sentence(str(said.get("code")), said.get("args"), text=str(said.get("text", said)))


def waiting(record: Task | Run) -> str | None:
    """What a task or run waits for; None for nothing."""
    text = record.waiting_because
    told: Iterable[Mapping[str, Any]] = record.raw.get("waiting") or ()
    if language() == ENGLISH or not text or not told:
        return text
    sentences = [_sentence(str(each.get("code")), each.get("args"), text="") for each in told]
    return _("; ").join(sentences) if all(sentences) else text


def reason(said: Reason | None) -> str | None:
    """Why a task stopped or was cancelled."""
    if said is None:
        return None
    code = "cancelled_on_request" if said.code == "cancelled" else said.code
    return _sentence(code, said.raw.get("args"), text=said.detail or said.code)


def _sentence(code: str, args: Mapping[str, Any] | None, *, text: str) -> str:
    if language() == ENGLISH or code not in _SENTENCES:
        return text
    known = dict(args or {})
    if isinstance(known.get("state"), str):
        known["state"] = state_word(known["state"])
    try:
        return _SENTENCES[code] % known
    except KeyError:  # an older server told no parameters
        return text
