"""Size: ten thousand targets, two hundred thousand tasks, a hundred thousand offers that an agent cannot use.

Times are taken as CPU seconds of the thread that does the work, so that a busy machine fails no test.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from common.ids import uuid7
from common.model import FINAL_STATES, TaskState
from master.store.base import ReadTx, TaskFilter, WriteTx
from master.store.sqlite import SqliteStore
from tests.store.making import NOW, add_addressed, add_free, claim, release

T = TypeVar("T")
TASKS = 200_000
RUNNING = frozenset({TaskState.RUNNING})
FAILED = frozenset({TaskState.FAILED})


def timed(store_call: Callable[[Callable[[Any], Any]], Any], act: Callable[[Any], T]) -> tuple[T, float]:
    """What `act` answers, and the CPU seconds it took in the store's thread."""

    def closure(tx: Any) -> tuple[T, float]:
        began = time.thread_time()
        result = act(tx)
        return result, time.thread_time() - began

    result: tuple[T, float] = store_call(closure)
    return result


def test_a_task_with_ten_thousand_targets_is_added_in_well_under_a_second(store: SqliteStore) -> None:
    agents = [uuid7() for _ in range(10_000)]
    task, took_s = timed(store.write, lambda tx: add_addressed(tx, agents))
    assert took_s < 0.8
    found, took_s = timed(store.read, lambda tx: tx.list_runs(task.id, states=None, limit=500, cursor="9000"))
    assert len(found.items) == 500 and took_s < 0.1
    assert store.read(lambda tx: tx.findings()) == []


@pytest.fixture(scope="module")
def crowded(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    """A store with 200,000 tasks of one run each: most have succeeded, few are anything else."""
    path = tmp_path_factory.mktemp("crowded") / "muster.db"
    shutil.copyfile(empty_database, path)
    store = SqliteStore(path, readers=1)
    store.open()
    store.write(lambda tx: [add_addressed(tx, ["a"], name="needle Ä"), add_addressed(tx, ["b"], name="hay")])
    # By the database itself: through the door they would take minutes, and what is tested is looking.
    columns = {
        "tasks": [row[1] for row in store.write(lambda tx: tx.db.execute("PRAGMA table_info(tasks)").fetchall())],
        "runs": [row[1] for row in store.write(lambda tx: tx.db.execute("PRAGMA table_info(runs)").fetchall())],
    }
    store.write(lambda tx: _multiply(tx, columns))
    yield store
    store.close()


def _multiply(tx: WriteTx, columns: dict[str, list[str]]) -> None:
    numbers = f"(WITH RECURSIVE n(i) AS (SELECT 3 UNION ALL SELECT i + 1 FROM n WHERE i < {TASKS}) SELECT i FROM n)"
    state = "CASE WHEN i % 1000 = 0 THEN 'failed' WHEN i % 50000 = 1 THEN 'running' ELSE 'succeeded' END"
    values = {
        "tasks": {
            "seq": "i", "id": "'id-' || printf('%08d', i)", "state": state, "name": "'hay ' || i",
            "name_folded": "'hay ' || i", "created_at_ms": f"{NOW.wall_ms} + i", "n_ready": "0",
        },
        "runs": {
            "num": "i", "id": "'run-' || printf('%08d', i)", "task_id": "'id-' || printf('%08d', i)", "seq": "i",
            "state": state, "agent_id": "CASE WHEN i % 2 THEN 'busy' ELSE 'agent-' || (i % 100) END",
        },
    }  # fmt: skip
    for table, changed in values.items():
        chosen = ", ".join(changed.get(name, name) for name in columns[table])
        tx.db.execute(f"INSERT INTO {table} SELECT {chosen} FROM {table} JOIN {numbers} WHERE {table}.seq = 2")


FILTERS = {
    "everything": (TaskFilter(), None, 50),
    "the last page": (TaskFilter(), "20", 19),
    "a common state": (TaskFilter(states=frozenset({TaskState.SUCCEEDED})), None, 50),
    "a rare state": (TaskFilter(states=RUNNING), None, 3),
    "two rare states": (TaskFilter(states=frozenset({TaskState.RUNNING, TaskState.FAILED})), None, 50),
    "a name that is everywhere": (TaskFilter(name="HAY"), None, 50),
    "a name that is once, far back": (TaskFilter(name="needle ä"), None, 1),
    "a name that is nowhere": (TaskFilter(name="nowhere"), None, 0),
    "a rare name in a rare state": (TaskFilter(name="hay 50001", states=RUNNING), None, 1),
    "an agent": (TaskFilter(agent_id="agent-8"), None, 50),
    "an agent with one old task": (TaskFilter(agent_id="a"), None, 1),
    "an agent in a state it never had": (TaskFilter(agent_id="agent-8", states=RUNNING), None, 0),
    "a busy agent": (TaskFilter(agent_id="busy"), None, 50),
    "a busy agent far back": (TaskFilter(agent_id="busy"), "5000", 50),
    "a busy agent in a state it never had": (TaskFilter(agent_id="busy", states=FAILED), None, 0),
    "a busy agent, a name that is nowhere": (TaskFilter(agent_id="busy", name="nowhere"), None, 0),
    "a name far back among the newest": (TaskFilter(name="hay 1"), "199999", 50),
    "the newest by time": (TaskFilter(since_ms=NOW.wall_ms + TASKS - 10), None, 11),
    "all by time": (TaskFilter(since_ms=NOW.wall_ms), None, 50),
    "a prefix": (TaskFilter(id_prefix="id-0012345"), None, 10),
}  # fmt: skip


@pytest.mark.parametrize("name", FILTERS)
def test_lists_of_two_hundred_thousand_tasks_answer_soon(crowded: SqliteStore, name: str) -> None:
    where, cursor, expected = FILTERS[name]

    def read(tx: ReadTx) -> int:
        return len(tx.list_tasks(where, limit=50, cursor=cursor).items)

    found, took_s = timed(crowded.read, read)
    assert found == expected
    assert took_s < 0.15, f"{took_s:.3f} s"


def test_what_metrics_and_the_keeper_ask_costs_nothing_in_a_crowd(crowded: SqliteStore) -> None:
    def ask(tx: ReadTx) -> None:
        tx.count_runs()
        tx.oldest_ready_ms()
        tx.next_deadline()
        tx.due(1e9, limit=100)
        tx.expired(1e9, limit=100)
        tx.runs_held()
        tx.runs_held("agent-8")
        tx.runs_of_agent("agent-8", states=FINAL_STATES, limit=50)
        tx.open_runs_of_agent("agent-8", limit=200)
        tx.find_run_ids("run-0012345", limit=2)
        tx.event_bounds()

    assert timed(crowded.read, ask)[1] < 0.02


def test_the_invariants_of_a_crowd_are_checked_in_seconds(crowded: SqliteStore) -> None:
    found, took_s = timed(crowded.read, lambda tx: tx.findings())

    assert found and took_s < 5


def claim_s(store: SqliteStore, *, turns: int = 20) -> float:
    """CPU seconds of a claim, the median of some."""

    def claim_and_release(tx: WriteTx) -> None:
        run = claim(tx, "me")
        assert run is not None
        release(tx, run)

    return sorted(timed(store.write, claim_and_release)[1] for _ in range(turns))[turns // 2]


def test_thousands_of_sets_with_offers_cost_no_more_than_one(store: SqliteStore) -> None:
    store.write(lambda tx: add_free(tx, 1, candidates=["me", "you"]))
    alone_s = claim_s(store)
    store.write(lambda tx: [add_free(tx, 1, candidates=["me", f"agent-{number}"]) for number in range(3_000)])
    among_s = claim_s(store)
    assert among_s < 4 * alone_s, f"{among_s * 1e6:.0f} µs against {alone_s * 1e6:.0f} µs"
    assert store.read(lambda tx: tx.findings()) == []


def test_sets_in_which_nothing_is_left_for_an_agent_are_not_looked_into_again(store: SqliteStore) -> None:
    store.write(lambda tx: add_free(tx, 1, priority=9, candidates=["me", "you"]))
    alone_s = claim_s(store)
    store.write(lambda tx: [add_free(tx, 2, candidates=["me", f"a{i}"]) for i in range(1_000)])
    store.write(lambda tx: [claim(tx, "me") for _ in range(1_000)])
    behind_s = claim_s(store)
    assert behind_s < 4 * alone_s, f"{behind_s * 1e6:.0f} µs against {alone_s * 1e6:.0f} µs"


def test_what_an_agent_passed_over_is_met_once_not_by_every_claim(store: SqliteStore) -> None:
    def add(tx: WriteTx, number: int) -> None:
        for _ in range(number):
            add_free(tx, 2, priority=1)

    store.write(lambda tx: add_addressed(tx, ["me"], priority=9))
    alone_s = claim_s(store)
    store.write(lambda tx: add(tx, 3_000))
    for _ in range(6):
        store.write(lambda tx: [claim(tx, "me") for _ in range(500)])
    behind_s = claim_s(store)
    assert behind_s < 5 * alone_s, f"{behind_s * 1e6:.0f} µs against {alone_s * 1e6:.0f} µs"
    assert store.read(lambda tx: tx.findings()) == []
