"""Who may run what, and why not: pure verdicts. Claims decide by them and `why` shows them, so both always agree.

A verdict is never a bare boolean: each carries a stable code with parameters, and by them a sentence for the person.
Nothing here reads a clock, a store or a socket; the caller hands in records and how the agents stand at this moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from common.model import TASK_FINAL_STATES, AgentState, Run, RunState, Task
from master.lifecycle import held, room
from master.sentences import Args, verdict_text


@dataclass(frozen=True, slots=True)
class Verdict:
    """May it, or may it not because. `since_ms`: wall milliseconds at which it became so, where known."""

    may: bool
    code: str
    args: Args = field(default_factory=dict)
    since_ms: int | None = None

    @property
    def text(self) -> str:
        """The English sentence."""
        return verdict_text(self.code, self.args)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that runs of a task wait for; `count`: how many of the runs that were looked at."""

    code: str
    args: Args
    count: int

    @property
    def text(self) -> str:
        """The English sentence."""
        return verdict_text(self.code, self.args)


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


MAY = Verdict(True, "could_begin")


def task_verdict(task: Task) -> Verdict:
    """Whether one more run of this task may be claimed or begun, whoever asks."""
    if room(task) != 0:
        return MAY
    if task.state in TASK_FINAL_STATES:
        return Verdict(False, "task_final", {"state": task.state.value}, task.ended_at_ms)
    if task.cancel_requested:
        return Verdict(False, "cancelled")
    if task.stopped:
        return Verdict(False, "stopped", _stop_args(task))
    if task.paused:
        return Verdict(False, "task_paused")
    return window_verdict(task)


def _stop_args(task: Task) -> Args:
    """What the task's reason tells, its code as `reason`."""
    if task.reason is None:
        return {"reason": "", "detail": "its stop rule fired"}
    return {**task.reason.args, "reason": task.reason.code, "detail": task.reason.detail}


def window_verdict(task: Task) -> Verdict:
    """The verdict on a task whose window has no room."""
    return Verdict(False, "window_full", {"held": held(task), "parallel": task.parallel})


def begin_verdict(task: Task) -> Verdict:
    """Whether a claimed run may begin: a full window does not matter, the run is counted in it already."""
    verdict = task_verdict(task)
    return MAY if verdict.code == "window_full" else verdict


def agent_verdict(agent: Standing, queue: str, *, addressed: bool) -> Verdict:
    """Whether this agent may take one more run now. Addressed runs reach their agent whatever queues it serves."""
    args: dict[str, str | int] = {"agent": agent.name}
    if agent.state is AgentState.OFFLINE:
        return Verdict(False, "agent_offline", args, agent.last_seen_ms)
    if agent.state is AgentState.DRAINING:
        return Verdict(False, "agent_draining", args)
    if agent.state is AgentState.CONFLICT:
        return Verdict(False, "agent_conflict", args)
    if not addressed and not agent.serves(queue):
        return Verdict(False, "queue_not_served", {**args, "queue": queue})
    if agent.free == 0:
        return Verdict(False, "agent_busy", {**args, "held": agent.held, "slots": agent.slots})
    return MAY


def run_verdicts(run: Run, task: Task, candidates: Iterable[Standing]) -> list[Verdict]:
    """Everything that decides about this run now, most telling first; a single verdict with `may` when nothing holds
    it. `candidates`: its agent when it is addressed, else all agents that the task could go to."""
    if run.state is RunState.DELAYED:
        return [Verdict(False, "delayed")]
    if run.state is RunState.LEASED:
        return [Verdict(False, "leased_not_begun", {}, run.claimed_at_ms)]
    if run.state is RunState.RUNNING:
        return [_running_verdict(run)]
    if run.state is not RunState.READY:
        return [Verdict(False, "final", {"state": run.state.value}, run.ended_at_ms)]
    of_task = task_verdict(task)
    found = [] if of_task.may else [of_task]
    found += _candidate_verdicts(run, task, list(candidates))
    return found or [Verdict(True, "may")]


def _running_verdict(run: Run) -> Verdict:
    if run.silent_since_ms is not None:
        return Verdict(False, "agent_silent", {}, run.silent_since_ms)
    if run.cancel_reason is not None:
        return Verdict(False, "cancelling", {}, None if run.course is None else run.course.cancel_at_ms)
    return Verdict(False, "running", {}, run.started_at_ms)


def _candidate_verdicts(run: Run, task: Task, candidates: Sequence[Standing]) -> list[Verdict]:
    if not candidates:
        return [
            Verdict(False, "agent_gone") if run.addressed else Verdict(False, "no_candidate", {"queue": task.queue})
        ]
    verdicts = [agent_verdict(agent, task.queue, addressed=run.addressed) for agent in candidates]
    if any(verdict.may for verdict in verdicts):
        return []
    if run.addressed or len(verdicts) == 1:
        return verdicts
    online = [v for v in verdicts if v.code != "agent_offline"]
    if not online:
        return [Verdict(False, "no_candidate_online", {"candidates": len(verdicts)}), *verdicts[:_SHOWN]]
    return online[:_SHOWN]


_SHOWN = 10
_TOLD = 3


def waiting(task: Task, verdicts: Sequence[Sequence[Verdict]]) -> list[Waiting]:
    """Why a task does not go on now, the most telling first; nothing when it has ended or nothing holds it. At most
    three reasons, and `more` when there are others.

    `verdicts`: those of some of its runs that have not begun; of the runs of a `count` task one stands for all.
    """
    if task.state in TASK_FINAL_STATES:
        return []
    ready = task.counts.get(RunState.READY, 0)
    of_task = task_verdict(task)
    if not of_task.may and (of_task.code != "window_full" or ready):
        return [Waiting(of_task.code, of_task.args, ready)]
    found: dict[str, Waiting] = {}
    for of_run in verdicts:
        for verdict in of_run[:1]:
            if not verdict.may:
                count = found[verdict.text].count if verdict.text in found else 0
                found[verdict.text] = Waiting(verdict.code, verdict.args, count + 1)
    told = list(found.values())[:_TOLD]
    more = len(found) - len(told)
    return [*told, Waiting("more", {"number": more}, more)] if more else told


def waiting_because(reasons: Sequence[Waiting]) -> str | None:
    """The same in one sentence; None when there are no reasons."""
    return "; ".join(reason.text for reason in reasons) or None
