"""What the master says, in the visitor's language: sentences for the codes of verdicts and reasons.

The master tells a code with parameters and the English sentence; a code that is not known here (a newer master's) is
said as that English sentence. `static/js/said.js` is the same for scripts; a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flask_babel import format_percent, ngettext
from flask_babel import gettext as _

from webserver.pages.filters import state_word

Said = Mapping[str, Any]


def verdict(code: str, args: Said, *, text: str = "") -> str:
    """Why a run does not begin now; `text` is what to say for an unknown code."""
    known = _WAITING.get(code)
    return known(args) if known is not None else text or code


def waiting(verdicts: Iterable[Said], *, text: str | None = None) -> str:
    """Why a task or run waits, in one sentence; `text` is the master's own, for codes that are not known here."""
    told = list(verdicts)
    if not told or any(each["code"] not in _WAITING for each in told):
        return text or ""
    return _("; ").join(verdict(each["code"], each["args"]) for each in told)


def reason(said: Said | None) -> str:
    """Why a task stopped or was cancelled."""
    if said is None:
        return ""
    args = said.get("args") or {}
    code = said["code"]
    if code == "fail_count" and "failed" in args:
        return _("Stopped: %(failed)s of %(total)s runs failed; its rule stops it at %(limit)s.", **args)
    if code == "fail_rate" and "failed" in args:
        share = format_percent(args["limit"], "#,##0.#%")
        return _("Stopped: %(failed)s of %(total)s runs failed, more than %(share)s.", share=share, **args)
    if code == "cancelled":
        by = args.get("by")
        return _("Cancelled by %(by)s.", by=by) if by else _("Cancelled.")
    if code in ("retry_failed", "retry_all"):
        return _("Its runs are being reopened.")
    return str(said.get("detail") or code)


_WAITING = {
    "could_begin": lambda a: _("may begin now"),
    "may": lambda a: _("may begin now; its agent has not asked yet"),
    "task_final": lambda a: _("the task has ended (%(state)s)", state=state_word(a["state"])),
    "cancelled": lambda a: _("the task is being cancelled"),
    "stopped": lambda a: _("the stop rule has stopped the task"),
    "task_paused": lambda a: _("the task is paused"),
    "window_full": lambda a: ngettext(
        "%(num)s run is under way and no more are allowed at once",
        "%(num)s runs are under way and no more are allowed at once",
        a["held"],
    ),
    "agent_offline": lambda a: _("%(agent)s is offline", agent=a["agent"]),
    "agent_draining": lambda a: _("%(agent)s is draining and takes nothing new", agent=a["agent"]),
    "agent_conflict": lambda a: _("two daemons use the identity of %(agent)s: stop one of them", agent=a["agent"]),
    "agent_busy": lambda a: _("%(agent)s is busy: %(held)s of %(slots)s slots are held", **a),
    "queue_not_served": lambda a: _("%(agent)s does not serve the queue %(queue)s", **a),
    "agent_gone": lambda a: _("its agent is no longer enrolled"),
    "no_candidate": lambda a: _("no agent serves the queue %(queue)s", queue=a["queue"]),
    "no_candidate_online": lambda a: _(
        "none of the %(candidates)s agents that may take it is online", candidates=a["candidates"]
    ),
    "delayed": lambda a: _("it is not due yet"),
    "leased_not_begun": lambda a: _("an agent has claimed it and not begun yet"),
    "agent_silent": lambda a: _("it has begun, and its agent has gone silent"),
    "cancelling": lambda a: _("it has begun and is being ended"),
    "running": lambda a: _("it has begun"),
    "final": lambda a: _("it has ended (%(state)s)", state=state_word(a["state"])),
    "more": lambda a: ngettext("and %(num)s more", "and %(num)s more", a["number"]),
}
