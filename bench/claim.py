"""Figure (e): what a claim costs however much is ready, and whatever stands at the head that this agent cannot run.

Claims are made by `dispatch.take` inside the writer's transactions, without the commit: a commit costs the same in all
cases and would hide the difference. Each case's cost stands beside that of the same run's 1,000 ready runs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.ids import lease_token, uuid7
from common.model import OnStop, Run, RunKind, RunState, Task, TaskSpec, TaskState, evolve
from master.dispatch import take
from master.lifecycle import Moment
from master.runs import Change
from master.store.base import WriteTx
from master.store.sqlite import SqliteStore

NOW = Moment(engine_s=1.0, wall_ms=1_700_000_000_000)
ME = "agent-me"
ROUNDS = 15
CLAIMS = 40
SPEC = TaskSpec(script_sha256="0" * 64, script_size=1)


def _add(tx: WriteTx, agents: list[str | None], candidates: list[str] | None = None, **changes: Any) -> None:
    task = Task(
        id=uuid7(), name="bench", seq=tx.next_seq(), state=TaskState.WAITING, counts={"ready": len(agents)},
        total=len(agents), priority=1024, parallel=0, fail_count=-1, fail_rate=None, on_stop=OnStop.FINISH,
        queue="default", count=None if agents[0] else len(agents), lost_after_s=120.0,
    )  # fmt: skip
    task = evolve(task, **changes)
    runs = [
        Run(
            id=uuid7(), task_id=task.id, kind=RunKind.SCRIPT, state=RunState.READY, seq=task.seq,
            priority=task.priority, agent_id=agent_id, addressed=agent_id is not None,
        )
        for agent_id in agents
    ]  # fmt: skip
    tx.add_task(task, SPEC, runs, candidates=candidates)


def _claim(tx: WriteTx) -> None:
    taken: list[Run] = []
    more = True
    while more and not taken:
        taken, more = take(Change(tx, NOW), ME, None, [lease_token()])
    assert taken, "nothing is left to claim"


def _mine(tx: WriteTx, number: int, *, others: int = 0) -> None:
    """Tasks with a run for this agent, and one for each of `others` more."""
    for _ in range(number):
        _add(tx, [ME, *(f"agent-{other}" for other in range(others))])


def _foreign(tx: WriteTx) -> None:
    """100,000 more urgent runs, addressed to others."""
    for _ in range(100):
        _add(tx, [f"agent-{number}" for number in range(1_000)], priority=1)
    _mine(tx, 1_000)


def _passed_over(tx: WriteTx) -> None:
    """100,000 more urgent tasks for any two agents, of which this one has taken its run."""
    for _ in range(100_000):
        _add(tx, [None, None], priority=1)
    # In one statement: to claim them one by one would only take long.
    tx.db.execute(  # type: ignore[attr-defined]
        "UPDATE runs SET agent_id = ?, state = 'succeeded' WHERE num IN (SELECT max(num) FROM runs GROUP BY seq)", (ME,)
    )
    _mine(tx, 1_000)


def _blocked(tx: WriteTx) -> None:
    """100,000 more urgent runs in 1,000 tasks whose windows are full, each with one run for this agent."""
    for number in range(1_000):
        others = [f"agent-{other}" for other in range(99)]
        _add(tx, [ME, *others], priority=1, parallel=1, name=f"blocked {number}")
    for number in range(1_000):
        taken, _ = take(Change(tx, NOW), "agent-0", None, [lease_token()])
        assert len(taken) == 1, number
    _mine(tx, 1_000)


def _in_sets(tx: WriteTx) -> None:
    """5,000 tasks for any one of a set of two agents, each set another one, all of them with this agent."""
    for number in range(5_000):
        _add(tx, [None], [ME, f"agent-{number}"])


CASES: dict[str, Callable[[WriteTx], None]] = {
    "1,000 ready": lambda tx: _mine(tx, 1_000),
    "300,000 ready": lambda tx: _mine(tx, 3_000, others=99),
    "100,000 foreign at the head": _foreign,
    "100,000 blocked at the head": _blocked,
    "100,000 passed over at the head": _passed_over,
    "5,000 candidate sets": _in_sets,
}


def _measured(store: SqliteStore) -> float:
    """Microseconds of the writer thread's CPU per claim; others on the machine do not count."""

    def work(tx: WriteTx) -> float:
        began = time.thread_time()
        for _ in range(CLAIMS):
            _claim(tx)
        return time.thread_time() - began

    return store.write(work) / CLAIMS * 1e6


def _first_contact(store: SqliteStore) -> float:
    """Microseconds of CPU until the first claim: it meets what is closed or passed over at the head, in transactions of
    a bounded size each, and withdraws or remembers it, so that later claims need not meet it again."""

    def work(tx: WriteTx) -> tuple[float, bool]:
        began = time.thread_time()
        taken, more = take(Change(tx, NOW), ME, None, [lease_token()])
        assert taken or more, "nothing is left to claim"
        return time.thread_time() - began, bool(taken)

    spent_s, claimed = 0.0, False
    while not claimed:
        some_s, claimed = store.write(work)
        spent_s += some_s
    return spent_s * 1e6


def run() -> list[dict[str, Any]]:
    """One row: microseconds of the first claim and of each later one in each case, and its ratio to the first case."""
    first: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        stores = {name: SqliteStore(Path(folder) / f"{number}.db", readers=0) for number, name in enumerate(CASES)}
        for name, store in stores.items():
            store.open()
            store.write(CASES[name])
            first[name] = _first_contact(store)
        # Turn about, so that whatever else the machine does meets all cases alike.
        times: dict[str, list[float]] = {name: [] for name in CASES}
        for _ in range(ROUNDS):
            for name, store in stores.items():
                times[name].append(_measured(store))
        for store in stores.values():
            store.close()
    medians = {name: statistics.median(found) for name, found in times.items()}
    usual = medians["1,000 ready"]
    return [
        {
            "figure": "e",
            "what": "cost of a claim inside its transaction",
            "us_of_first_claim": {name: round(value, 1) for name, value in first.items()},
            "us_per_claim": {name: round(value, 1) for name, value in medians.items()},
            "ratio": {name: round(value / usual, 2) for name, value in medians.items()},
            "aim": "every ratio at most 1.3; among candidate sets at most 2, as a claim also takes its set down",
        }
    ]
