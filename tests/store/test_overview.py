"""What an overview reads: tasks counted by state whatever befalls them, and the few of each kind in their order."""

from __future__ import annotations

import pytest

from common.model import RunState, Task, TaskState, evolve
from master.store.base import Store, WriteTx
from tests.store.conftest import OpenStore
from tests.store.making import NOW, add_addressed, add_free, alter, begin, claim, finish


def _one_of_each(tx: WriteTx) -> None:
    add_addressed(tx, ["a"], name="failed")
    finish(tx, begin(tx, claim(tx, "a")), exit_code=1)
    add_addressed(tx, ["a"], name="succeeded")
    finish(tx, begin(tx, claim(tx, "a")))
    add_addressed(tx, ["a", "b"], name="running, with a ready run")
    begin(tx, claim(tx, "a"))
    add_addressed(tx, ["c"], name="running")
    begin(tx, claim(tx, "c"))
    add_addressed(tx, ["d"], name="waiting")


def _names(tasks: list[Task]) -> list[str]:
    return [task.name for task in tasks]


def test_tasks_are_counted_by_state_through_all_their_moves(store: Store) -> None:
    assert store.read(lambda tx: tx.count_tasks()) == {}
    store.write(_one_of_each)
    expected = {TaskState.FAILED: 1, TaskState.SUCCEEDED: 1, TaskState.RUNNING: 2, TaskState.WAITING: 1}
    assert store.read(lambda tx: tx.count_tasks()) == expected
    store.write(lambda tx: begin(tx, claim(tx, "d")))
    assert store.read(lambda tx: tx.count_tasks())[TaskState.RUNNING] == 3
    assert TaskState.WAITING not in store.read(lambda tx: tx.count_tasks())
    assert store.read(lambda tx: tx.findings()) == []


def test_a_transaction_that_failed_counts_nothing(store: Store) -> None:
    def fail(tx: WriteTx) -> None:
        add_addressed(tx, ["a"])
        raise KeyError("no")

    with pytest.raises(KeyError):
        store.write(fail)
    store.write(lambda tx: add_addressed(tx, ["b"]))
    assert store.read(lambda tx: tx.count_tasks()) == {TaskState.WAITING: 1}


def test_counts_outlive_the_store_and_a_difference_is_found(stores: OpenStore, tmp_path: object) -> None:
    path = tmp_path / "muster.db"  # type: ignore[operator]
    store = stores(path)
    store.write(_one_of_each)
    before = store.read(lambda tx: tx.count_tasks())
    store.close()
    store = stores(path)
    assert store.read(lambda tx: tx.count_tasks()) == before
    store.write(lambda tx: tx.db.execute("UPDATE task_counts SET number = 7 WHERE state = 'failed'"))  # type: ignore[attr-defined]
    [finding] = store.read(lambda tx: tx.findings())
    assert finding.startswith("the tasks per state are 1 failed") and "the store counts 7 failed" in finding


def test_what_runs_comes_by_its_begin_and_what_waits_by_its_age(store: Store) -> None:
    store.write(_one_of_each)
    assert _names(store.read(lambda tx: tx.running_tasks(limit=9))) == ["running", "running, with a ready run"]
    early = next(task for task in store.read(lambda tx: tx.running_tasks(limit=9)) if task.name == "running")
    moved = evolve(early, started_at_ms=NOW.wall_ms - 5, version=early.version + 1)
    store.write(lambda tx: tx.save_task(moved, expect=early.version))
    assert _names(store.read(lambda tx: tx.running_tasks(limit=9))) == ["running, with a ready run", "running"]
    assert _names(store.read(lambda tx: tx.running_tasks(limit=1))) == ["running, with a ready run"]
    assert _names(store.read(lambda tx: tx.waiting_tasks(limit=9))) == ["waiting", "running, with a ready run"]
    assert _names(store.read(lambda tx: tx.waiting_tasks(limit=1))) == ["waiting"]


def test_what_only_its_own_window_holds_back_does_not_wait(store: Store) -> None:
    rolled = store.write(lambda tx: add_addressed(tx, ["a", "b"], name="rolled out", parallel=1))
    assert _names(store.read(lambda tx: tx.waiting_tasks(limit=9))) == ["rolled out"]
    run = store.write(lambda tx: begin(tx, claim(tx, "a")))
    assert _names(store.read(lambda tx: tx.waiting_tasks(limit=9))) == []
    store.write(lambda tx: alter(tx, rolled.id, paused=True))
    assert _names(store.read(lambda tx: tx.waiting_tasks(limit=9))) == ["rolled out"]
    store.write(lambda tx: alter(tx, rolled.id, paused=False))
    store.write(lambda tx: finish(tx, run))
    assert _names(store.read(lambda tx: tx.waiting_tasks(limit=9))) == ["rolled out"]


def test_what_has_ended_comes_by_its_end(store: Store) -> None:
    times = {"first": 50, "second": 90, "third": 70}
    for name, at in times.items():
        state = TaskState.SUCCEEDED if name == "second" else TaskState.FAILED
        store.write(lambda tx, n=name, a=at, s=state: add_addressed(tx, ["a"], name=n, state=s, ended_at_ms=a))
    assert _names(store.read(lambda tx: tx.ended_tasks(limit=9))) == ["second", "third", "first"]
    assert _names(store.read(lambda tx: tx.ended_tasks(limit=2))) == ["second", "third"]
    assert _names(store.read(lambda tx: tx.failed_tasks(since_ms=0, limit=9))) == ["third", "first"]
    assert _names(store.read(lambda tx: tx.failed_tasks(since_ms=51, limit=9))) == ["third"]


def test_what_waits_for_a_person_is_paused_with_something_to_run_or_stopped(store: Store) -> None:
    paused = store.write(lambda tx: add_addressed(tx, ["a"], name="paused"))
    store.write(lambda tx: alter(tx, paused.id, paused=True))
    busy = store.write(lambda tx: add_addressed(tx, ["b"], name="paused, all running"))
    store.write(lambda tx: begin(tx, claim(tx, "b")))
    store.write(lambda tx: alter(tx, busy.id, paused=True))
    stopped = store.write(lambda tx: add_addressed(tx, ["c"], name="stopped"))
    store.write(lambda tx: begin(tx, claim(tx, "c")))
    store.write(lambda tx: alter(tx, stopped.id, stopped=True))
    assert _names(store.read(lambda tx: tx.halted_tasks(limit=9))) == ["stopped", "paused"]
    [run] = store.read(lambda tx: tx.runs_in(stopped.id, {RunState.RUNNING}))
    store.write(lambda tx: finish(tx, run, exit_code=1))
    assert _names(store.read(lambda tx: tx.halted_tasks(limit=9))) == ["paused"]


def test_only_what_is_offered_to_an_agent_alone_is_counted_as_its(store: Store) -> None:
    for _ in range(3):
        store.write(lambda tx: add_addressed(tx, ["a", "b"]))
    store.write(lambda tx: add_free(tx, 2))
    store.write(lambda tx: claim(tx, "b"))
    assert [store.read(lambda tx, a=agent: tx.count_offered(a, most=9)) for agent in "abc"] == [3, 2, 0]
    assert store.read(lambda tx: tx.count_offered("a", most=2)) == 2
