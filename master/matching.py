"""Who may run what, and why not: pure verdicts. Claims decide by them and `why` shows them, so both always agree.

A verdict is never a bare boolean: each carries a stable code and a sentence for the person. Nothing here reads a
clock, a store or a socket; the caller hands in records and how the agents stand at this moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.model import TASK_FINAL_STATES, AgentState, Run, RunState, Task
from master.lifecycle import held, room


@dataclass(frozen=True, slots=True)
class Verdict:
    """May it, or may it not because. `since_ms`: wall milliseconds at which it became so, where known."""

    may: bool
    code: str
    text: str
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """How an agent stands now: its record and the master's memory of it, as far as dispatch asks."""

    agent_id: str
    name: str
    state: AgentState
    slots: int
    held: int
    queues: frozenset[str] | None  # None: all
    last_seen_ms: int | None = None

    def serves(self, queue: str) -> bool:
        """Whether the agent takes work of this queue."""
        return self.queues is None or queue in self.queues

    @property
    def free(self) -> int:
        """Slots without a run."""
        return max(0, self.slots - self.held)


MAY = Verdict(True, "may", "may be claimed now")


def task_verdict(task: Task) -> Verdict:
    """Whether one more run of this task may be claimed or begun, whoever asks."""
    if room(task) != 0:
        return MAY
    if task.state in TASK_FINAL_STATES:
        return Verdict(False, "final", f"the task has ended ({task.state.value})", task.ended_at_ms)
    if task.cancel_requested:
        return Verdict(False, "cancelled", "the task is being cancelled")
    if task.stopped:
        detail = task.reason.detail if task.reason is not None else "its stop rule fired"
        return Verdict(False, "stopped", f"the task was stopped: {detail}")
    if task.paused:
        return Verdict(False, "task_paused", "the task is paused; `muster resume` lets it go on")
    return window_verdict(task)


def window_verdict(task: Task) -> Verdict:
    """The verdict on a task whose window has no room."""
    text = f"{held(task)} of its runs are under way and parallel={task.parallel} allows no more"
    return Verdict(False, "window_full", text)


def begin_verdict(task: Task) -> Verdict:
    """Whether a claimed run may begin: a full window does not matter, the run is counted in it already."""
    verdict = task_verdict(task)
    return MAY if verdict.code == "window_full" else verdict


def agent_verdict(agent: Standing, queue: str, *, addressed: bool) -> Verdict:
    """Whether this agent may take one more run now. Addressed runs reach their agent whatever queues it serves."""
    if agent.state is AgentState.OFFLINE:
        return Verdict(False, "agent_offline", f"{agent.name} is offline", agent.last_seen_ms)
    if agent.state is AgentState.DRAINING:
        return Verdict(False, "agent_draining", f"{agent.name} is draining and takes nothing new")
    if agent.state is AgentState.CONFLICT:
        return Verdict(False, "agent_conflict", f"two daemons use the identity of {agent.name}; stop one of them")
    if not addressed and not agent.serves(queue):
        return Verdict(False, "queue_not_served", f"{agent.name} does not serve the queue {queue}")
    if agent.free == 0:
        return Verdict(False, "agent_busy", f"{agent.name} is busy: {agent.held} of {agent.slots} slots are held")
    return MAY


def run_verdicts(run: Run, task: Task, candidates: Iterable[Standing]) -> list[Verdict]:
    """Everything that decides about this run now, most telling first; a single verdict with `may` when nothing holds
    it. `candidates`: its agent when it is addressed, else all agents that the task could go to."""
    if run.state is RunState.DELAYED:
        return [Verdict(False, "delayed", "it is not due yet")]
    if run.state is RunState.LEASED:
        return [Verdict(False, "leased_not_begun", "an agent has claimed it and not begun yet", run.claimed_at_ms)]
    if run.state is RunState.RUNNING:
        return [_running_verdict(run)]
    if run.state is not RunState.READY:
        return [Verdict(False, "final", f"it has ended ({run.state.value})", run.ended_at_ms)]
    of_task = task_verdict(task)
    found = [] if of_task.may else [of_task]
    found += _candidate_verdicts(run, task, list(candidates))
    return found or [Verdict(True, "may", "it may be claimed now; its agent has not asked yet")]


def _running_verdict(run: Run) -> Verdict:
    if run.silent_since_ms is not None:
        return Verdict(False, "agent_silent", "it has begun, and its agent has gone silent", run.silent_since_ms)
    if run.cancel_reason is not None:
        return Verdict(False, "cancelling", "it has begun and is being ended")
    return Verdict(False, "running", "it has begun", run.started_at_ms)


def _candidate_verdicts(run: Run, task: Task, candidates: Sequence[Standing]) -> list[Verdict]:
    if not candidates:
        text = "its agent is no longer enrolled" if run.addressed else f"no agent serves the queue {task.queue}"
        return [Verdict(False, "no_candidate", text)]
    verdicts = [agent_verdict(agent, task.queue, addressed=run.addressed) for agent in candidates]
    if any(verdict.may for verdict in verdicts):
        return []
    if run.addressed or len(verdicts) == 1:
        return verdicts
    online = [v for v in verdicts if v.code != "agent_offline"]
    if not online:
        text = f"none of the {len(verdicts)} agents that may take it is online"
        return [Verdict(False, "no_candidate_online", text), *verdicts[:_SHOWN]]
    return online[:_SHOWN]


_SHOWN = 10


def waiting_because(task: Task, verdicts: Sequence[Sequence[Verdict]]) -> str | None:
    """One sentence on why a task does not go on now; None when it has ended or nothing holds it.

    `verdicts`: those of some of its runs that have not begun.
    """
    if task.state in TASK_FINAL_STATES:
        return None
    of_task = task_verdict(task)
    if not of_task.may and of_task.code != "window_full":
        return of_task.text
    if not of_task.may and task.counts.get(RunState.READY, 0):
        return of_task.text
    texts: dict[str, int] = {}
    for of_run in verdicts:
        for verdict in of_run[:1]:
            if not verdict.may:
                texts[verdict.text] = texts.get(verdict.text, 0) + 1
    if not texts:
        return None
    first = list(texts)[:3]
    more = len(texts) - len(first)
    return "; ".join(first) + (f"; and {more} more" if more > 0 else "")
