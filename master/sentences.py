"""What the master tells people, as codes: for each code the one English sentence, filled with the code's parameters.

A verdict or a reason is told as a code with parameters, so a page can say it in its own language; its English text is
made here and nowhere else, so the two never differ. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from common.model import Arg, Reason

Args = Mapping[str, Arg]

VERDICTS: Final[Mapping[str, str]] = {
    "could_begin": "may be claimed now",
    "may": "it may be claimed now; its agent has not asked yet",
    "task_final": "the task has ended ({state})",
    "cancelled": "the task is being cancelled",
    "stopped": "the task was stopped: {detail}",
    "task_paused": "the task is paused; `muster resume` lets it go on",
    "window_full": "{held} of its runs are under way and parallel={parallel} allows no more",
    "agent_offline": "{agent} is offline",
    "agent_draining": "{agent} is draining and takes nothing new",
    "agent_conflict": "two daemons use the identity of {agent}; stop one of them",
    "agent_busy": "{agent} is busy: {held} of {slots} slots are held",
    "queue_not_served": "{agent} does not serve the queue {queue}",
    "agent_gone": "its agent is no longer enrolled",
    "no_candidate": "no agent serves the queue {queue}",
    "no_candidate_online": "none of the {candidates} agents that may take it is online",
    "delayed": "it is not due yet",
    "leased_not_begun": "an agent has claimed it and not begun yet",
    "agent_silent": "it has begun, and its agent has gone silent",
    "cancelling": "it has begun and is being ended",
    "running": "it has begun",
    "final": "it has ended ({state})",
    "more": "and {number} more",
}
"""Codes of verdicts. `more`: there are other reasons beside those that are told."""

REASONS: Final[Mapping[str, str]] = {
    "fail_count": "{failed} of {total} runs failed; the limit is fail_count={limit}",
    "fail_rate": "{failed} of {total} runs failed; the limit is fail_rate={limit:g}",
    "cancelled": "cancelled on request",
    "retry_failed": "its runs are being reopened",
    "retry_all": "its runs are being reopened",
}
"""Codes of a task's reason. The parameters may hold more than the sentence says: `agent`, `by`."""


def verdict_text(code: str, args: Args) -> str:
    """The sentence of a verdict."""
    return VERDICTS[code].format_map(args)


def reason(code: str, args: Args, *, run_id: str | None = None) -> Reason:
    """A task's reason, with its sentence."""
    return Reason(code=code, detail=REASONS[code].format_map(args), run_id=run_id, args=dict(args))
