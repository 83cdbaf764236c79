"""The overview: what goes on, what waits, what has ended, how the fleet stands, and what needs a person, at a glance.

Everything stored comes from one snapshot, by reads that cost the same among 200,000 tasks as among ten; the fleet and
the leases are memory. What needs a person is sorted by urgency, and each kind is bounded, so that a network that is
down does not hide a full disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from common.model import TASK_FINAL_STATES, AgentState, Run, Task, TaskState
from master.answers import Answers, Look
from master.leases import Leases
from master.ledger import Ledger
from master.metrics import Readiness
from master.presence import Fleet, Presence
from master.store.base import ReadTx

TASKS_MOST: Final = 20
"""Tasks of each kind at most."""
ATTENTION_MOST: Final = 50
OF_ONE_KIND: Final = 20
"""Of what needs a person: all of it at most, and that of one code."""
RECENT_MS: Final = 24 * 3600 * 1000
"""For how long a failed task is news."""
WAITING_MOST: Final = 1_000
"""Up to so many tasks that wait for an offline agent are counted."""
_ASKED_ABOUT: Final = 100
URGENCY: Final = (
    "disk", "agent_conflict", "task_stopped", "run_silent", "task_failed", "agent_offline", "task_paused",
)  # fmt: skip
"""The codes of what needs a person, the most urgent first."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What the store holds of it. `silent`: the silent runs of each offline agent; `offered`: tasks waiting for it."""

    counts: dict[TaskState, int]
    running: Sequence[str]
    waiting: Sequence[str]
    ended: Sequence[str]
    looks: dict[str, Look]
    failed: Sequence[Task]
    halted: Sequence[Task]
    silent: dict[str, list[Run]]
    offered: dict[str, int]


class Overview:
    """`look()` is what the web door answers."""

    def __init__(self, ledger: Ledger, fleet: Fleet, leases: Leases, *, answers: Answers, readiness: Readiness) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._leases = leases
        self._answers = answers
        self._readiness = readiness

    def look(self) -> dict[str, Any]:
        """{counts, running, waiting, ended, fleet, attention, attention_more}; tasks as in a list of tasks."""
        agents = [presence for presence in self._fleet if not presence.leaving]
        missing = [presence for presence in agents if presence.state is AgentState.OFFLINE]
        expected = sorted((p for p in missing if not p.agent.draining), key=lambda p: -(p.heard_ms or 0))
        silent = [p.agent.id for p in missing if self._leases.held_by(p.agent.id)][:OF_ONE_KIND]
        since_ms = self._ledger.clock.now().wall_ms - RECENT_MS
        asked = [presence.agent.id for presence in expected[:_ASKED_ABOUT]]
        found = self._ledger.read(lambda tx: self._read(tx, since_ms, silent=silent, offline=asked))
        items = [*self._of_master(), *_of_tasks(found), *self._of_agents(agents, expected, found)]
        shown = _most_urgent(items)
        views = dict(zip(found.looks, self._answers.listed(found.looks.values()), strict=True))
        return {
            "counts": {state.value: found.counts.get(state, 0) for state in TaskState},
            "running": [views[task_id] for task_id in found.running if task_id in views],
            "waiting": [views[task_id] for task_id in found.waiting if task_id in views],
            "ended": [views[task_id] for task_id in found.ended if task_id in views],
            "fleet": self._fleet_counts(agents),
            "attention": shown,
            "attention_more": len(shown) < len(items),
        }

    def fleet(self) -> dict[str, int]:
        """How many agents there are, by state, and the slots of those online: all, and in use."""
        return self._fleet_counts([presence for presence in self._fleet if not presence.leaving])

    def _read(self, tx: ReadTx, since_ms: int, *, silent: list[str], offline: list[str]) -> _Snapshot:
        # Runs on a reader thread, so it must not touch what the loop changes.
        running = tx.running_tasks(limit=TASKS_MOST)
        waiting = tx.waiting_tasks(limit=TASKS_MOST)
        ended = tx.ended_tasks(limit=TASKS_MOST)
        tasks = {task.id: task for task in (*running, *waiting, *ended)}
        return _Snapshot(
            counts=tx.count_tasks(),
            running=[task.id for task in running],
            waiting=[task.id for task in waiting],
            ended=[task.id for task in ended],
            looks={look.task.id: look for look in self._answers.looks(tx, tasks.values())},
            failed=tx.failed_tasks(since_ms=since_ms, limit=2 * OF_ONE_KIND + 1),
            halted=tx.halted_tasks(limit=2 * OF_ONE_KIND + 1),
            silent={
                agent_id: [run for run in tx.runs_held(agent_id) if run.silent_since_ms is not None]
                for agent_id in silent
            },
            offered={agent_id: tx.count_offered(agent_id, most=WAITING_MOST) for agent_id in offline},
        )

    def _fleet_counts(self, agents: Sequence[Presence]) -> dict[str, int]:
        counts = {"total": len(agents), **dict.fromkeys((state.value for state in AgentState), 0)}
        slots = held = 0
        for presence in agents:
            state = presence.state
            counts[state.value] += 1
            if state is AgentState.ONLINE:
                slots += presence.slots
                held += self._leases.held_by(presence.agent.id)
        return {**counts, "slots": slots, "held": held}

    def _of_master(self) -> Iterable[dict[str, Any]]:
        for what, sentence in self._readiness.known():
            yield _item("disk", args={"what": what, "detail": sentence})

    def _of_agents(
        self, agents: Sequence[Presence], expected: Sequence[Presence], found: _Snapshot
    ) -> Iterable[dict[str, Any]]:
        for presence in agents:
            runs = found.silent.get(presence.agent.id)
            if runs:
                first = min(runs, key=lambda run: run.silent_since_ms or 0)
                args = {"runs": len(runs), "run_id": first.id}
                yield _of_agent("run_silent", presence, first.silent_since_ms, task_id=first.task_id, args=args)
            elif presence.state is AgentState.CONFLICT:
                held = self._leases.held_by(presence.agent.id)
                yield _of_agent("agent_conflict", presence, presence.heard_ms, args={"held": held})
        for presence in expected:
            if not found.silent.get(presence.agent.id):
                waiting = found.offered.get(presence.agent.id, 0)
                yield _of_agent("agent_offline", presence, presence.heard_ms, args={"waiting": waiting})


def _of_tasks(found: _Snapshot) -> Iterable[dict[str, Any]]:
    for task in (*found.halted, *found.failed):
        if task.stopped:
            reason = task.reason
            args = {
                "reason": None if reason is None else reason.code,
                "detail": None if reason is None else reason.detail,
                "ended": task.state in TASK_FINAL_STATES,
                **_failures(task),
            }
            yield _of_task("task_stopped", task, task.ended_at_ms, args=args)
        elif task.state is TaskState.FAILED:
            yield _of_task("task_failed", task, task.ended_at_ms, args=_failures(task))
        else:
            yield _of_task("task_paused", task, None, args={"ready": task.counts.get("ready", 0)})


def _failures(task: Task) -> dict[str, int]:
    return {"failed": task.counts.get("failed", 0), "total": task.total}


def _item(code: str, *, args: dict[str, Any], at_ms: int | None = None, **of: str | None) -> dict[str, Any]:
    return {"code": code, "task_id": None, "agent_id": None, "name": None, **of, "at_ms": at_ms, "args": args}


def _of_task(code: str, task: Task, at_ms: int | None, *, args: dict[str, Any]) -> dict[str, Any]:
    return _item(code, args=args, at_ms=at_ms, task_id=task.id, name=task.name)


def _of_agent(
    code: str, presence: Presence, at_ms: int | None, *, args: dict[str, Any], task_id: str | None = None
) -> dict[str, Any]:
    agent = presence.agent
    return _item(code, args=args, at_ms=at_ms, agent_id=agent.id, name=agent.name, task_id=task_id)


def _most_urgent(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The most urgent first: by code; then what still goes on, what makes most wait, and the latest."""
    by_code: dict[str, list[dict[str, Any]]] = {code: [] for code in URGENCY}
    for item in items:
        by_code[item["code"]].append(item)
    found: list[dict[str, Any]] = []
    for some in by_code.values():
        some.sort(key=_within_its_code)
        found += some[:OF_ONE_KIND]
    return found[:ATTENTION_MOST]


def _within_its_code(item: dict[str, Any]) -> tuple[bool, int, int]:
    args = item["args"]
    return bool(args.get("ended")), -args.get("waiting", 0), -(item["at_ms"] or 0)
