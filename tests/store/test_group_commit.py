"""Writing in groups: answers after the commit, failures alone, snapshots, killed callers, counters over restarts."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import pytest

from common.errors import Conflict, NotAllowed, StoreUnavailable
from common.model import RunState
from master.store.base import Store, TaskFilter, WriteTx
from master.store.sqlite import SqliteStore
from tests.store.conftest import OpenStore
from tests.store.making import add_addressed, make_agent


def total(store: Store) -> int:
    return store.read(lambda tx: sum(tx.count_runs().values()))


def hold(store: Store) -> tuple[threading.Event, gevent.Greenlet]:
    """Keep the writer busy, so that all that follows comes into one batch, until the event is set."""
    begun, go = threading.Event(), threading.Event()

    def closure(tx: WriteTx) -> None:
        begun.set()
        assert go.wait(20)

    holder = gevent.spawn(store.write, closure)
    gevent.idle()
    assert begun.wait(20)
    return go, holder


def test_fifty_callers_with_failing_ones_between_get_each_their_own_answer(store: Store) -> None:
    failures: list[int] = []
    stored: list[str] = []

    def act(tx: WriteTx, failure: str | None) -> str:
        task = add_addressed(tx, ["a", "b"])
        if failure is not None:
            raise NotAllowed(failure)
        return task.id

    def work(number: int) -> None:
        for turn in range(20):
            failure = f"{number}/{turn}" if (number + turn) % 3 == 0 else None
            try:
                stored.append(store.write(partial(act, failure=failure)))
            except NotAllowed as error:
                assert error.message == failure
                failures.append(number)

    gevent.joinall([gevent.spawn(work, number) for number in range(50)], raise_error=True)
    assert len(stored) + len(failures) == 1000 and len(failures) > 300
    assert total(store) == 2 * len(stored)
    page = store.read(lambda tx: tx.list_tasks(TaskFilter(), limit=1000, cursor=None))
    assert {task.id for task in page.items} == set(stored)
    assert store.read(lambda tx: tx.findings()) == []
    assert max(store.stats()["batch_sizes"]) > 10
    assert store.stats()["closures"] < 1001 + len(store.stats()["batch_sizes"])


def test_the_loop_is_woken_once_per_batch(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    bridge: Any = store._file._bridge
    posts: list[object] = []
    real = bridge.post
    monkeypatch.setattr(bridge, "post", lambda *args: posts.append(args) or real(*args))
    go, holder = hold(store)
    writers = [gevent.spawn(store.write, lambda tx: add_addressed(tx, ["a"])) for _ in range(50)]
    gevent.idle()
    go.set()
    gevent.joinall([holder, *writers], raise_error=True)
    assert len(posts) == 2
    assert store.stats()["batch_sizes"] == [50]


def test_a_failing_closure_undoes_itself_alone_in_its_batch(store: Store) -> None:
    def fail(tx: WriteTx) -> None:
        add_addressed(tx, ["a"], name="undone")
        tx.save_agent(make_agent("x", "undone"), expect=None)
        raise LookupError("mine")

    go, holder = hold(store)
    before = gevent.spawn(store.write, lambda tx: add_addressed(tx, ["a"], name="before").id)
    failing = gevent.spawn(store.write, fail)
    after = gevent.spawn(store.write, lambda tx: tx.save_agent(make_agent("x", "after"), expect=None))
    gevent.idle()
    go.set()
    gevent.joinall([holder, before, failing, after])
    assert isinstance(failing.exception, LookupError) and failing.exception.args == ("mine",)
    assert before.successful() and after.successful()
    page = store.read(lambda tx: tx.list_tasks(TaskFilter(), limit=9, cursor=None))
    assert [task.name for task in page.items] == ["before"]
    assert [agent.name for agent in store.read(lambda tx: tx.list_agents())] == ["after"]
    assert store.read(lambda tx: tx.findings()) == []


def test_of_two_closures_with_one_key_in_one_batch_one_is_refused(store: Store) -> None:
    go, holder = hold(store)
    rivals = [
        gevent.spawn(store.write, lambda tx, n=n: tx.save_agent(make_agent(f"id-{n}", "same name"), expect=None))
        for n in range(5)
    ]
    gevent.idle()
    go.set()
    gevent.joinall([holder, *rivals])
    assert [type(rival.exception) for rival in rivals] == [type(None)] + [Conflict] * 4


def test_an_answered_write_is_seen_by_every_reader(store: Store) -> None:
    for number in range(1, 30):
        store.write(lambda tx: add_addressed(tx, ["a"]))
        assert total(store) == number


def test_a_reader_sees_one_moment_however_long_it_reads(store: Store) -> None:
    store.write(lambda tx: add_addressed(tx, ["a"]))
    begun, go = threading.Event(), threading.Event()

    def read_slowly(tx: Any) -> tuple[int, int, int]:
        first = sum(tx.count_runs().values())
        begun.set()
        assert go.wait(20)
        runs = len(tx.runs_in(tx.list_tasks(TaskFilter(), limit=1, cursor=None).items[0].id, set(RunState)))
        return first, sum(tx.count_runs().values()), runs

    reader = gevent.spawn(store.read, read_slowly)
    gevent.idle()
    assert begun.wait(20)
    store.write(lambda tx: add_addressed(tx, ["a", "b"]))
    assert total(store) == 3  # another reader, another moment
    go.set()
    assert reader.get() == (1, 1, 1)


def test_a_reader_cannot_write(store: Store) -> None:
    with pytest.raises(StoreUnavailable):
        store.read(lambda tx: tx.db.execute("DELETE FROM tasks"))
    assert total(store) == 0


def test_a_caller_killed_while_it_waits_breaks_nothing(store: Store) -> None:
    go, holder = hold(store)
    victims = [gevent.spawn(store.write, lambda tx: add_addressed(tx, ["a"])) for _ in range(3)]
    failing_victim = gevent.spawn(store.write, lambda tx: 1 / 0)
    bystander = gevent.spawn(store.write, lambda tx: add_addressed(tx, ["a"]))
    gevent.idle()
    gevent.killall([*victims, failing_victim])
    go.set()
    gevent.joinall([holder, bystander], raise_error=True)
    assert total(store) == 4  # what was asked for is done, though nobody waits for the answer
    store.write(lambda tx: add_addressed(tx, ["a"]))
    assert total(store) == 5


def test_a_reading_caller_killed_while_it_waits_breaks_nothing(store: Store) -> None:
    victims = [gevent.spawn(store.read, lambda tx: tx.count_runs()) for _ in range(20)]
    gevent.idle()
    gevent.killall(victims)
    assert total(store) == 0


def test_a_write_that_changes_nothing_costs_no_commit(store: Store) -> None:
    commits = store.stats()["commits"]
    for _ in range(5):
        assert store.write(lambda tx: tx.heads("a", None, limit=3)) == []
    assert store.stats()["commits"] == commits


def test_numbers_grow_over_transactions_failures_and_restarts(stores: OpenStore, tmp_path: Path) -> None:
    path = tmp_path / "muster.db"
    fences: list[int] = []
    numbers: list[int] = []
    events: list[int] = []

    def act(tx: WriteTx) -> None:
        fences.append(tx.commit_seq)
        numbers.append(tx.next_seq())
        events.append(tx.append_event("task", task_id=None, run_id=None))

    def act_and_fail(tx: WriteTx) -> None:
        act(tx)
        raise LookupError

    for _ in range(3):
        store = stores(path)
        store.write(act)
        with pytest.raises(LookupError):
            store.write(act_and_fail)
        store.write(act)
        store.close()
    assert all(sorted(set(found)) == found for found in (fences, numbers, events))


def test_each_commit_carries_the_clocks_mark(stores: OpenStore, tmp_path: Path) -> None:
    marks = iter([(1.5, 10), (2.5, 20)])
    store = stores(tmp_path / "muster.db", mark=lambda: next(marks))
    assert store.read(lambda tx: tx.engine_mark()) == (0.0, 0)
    store.write(lambda tx: add_addressed(tx, ["a"]))
    assert store.read(lambda tx: tx.engine_mark()) == (1.5, 10)
    store.write(lambda tx: tx.count_runs())
    store.write(lambda tx: add_addressed(tx, ["a"]))
    store.close()
    again = stores(tmp_path / "muster.db")
    assert again.read(lambda tx: tx.engine_mark()) == (2.5, 20)
    again.write(lambda tx: tx.set_engine_mark(3.5, 30))
    again.write(lambda tx: add_addressed(tx, ["a"]))
    assert again.read(lambda tx: tx.engine_mark()) == (3.5, 30)


def test_closing_finishes_what_is_queued_and_refuses_what_comes_later(stores: OpenStore, tmp_path: Path) -> None:
    store = stores(tmp_path / "muster.db")
    go, holder = hold(store)
    writers = [gevent.spawn(store.write, lambda tx: add_addressed(tx, ["a"])) for _ in range(10)]
    gevent.idle()
    closing = gevent.spawn(store.close)
    gevent.idle()
    go.set()
    gevent.joinall([holder, *writers, closing], raise_error=True)
    store.close()
    with pytest.raises(StoreUnavailable):
        store.write(lambda tx: None)
    with pytest.raises(StoreUnavailable):
        store.read(lambda tx: None)
    assert total(stores(tmp_path / "muster.db")) == 10


def test_a_store_that_was_not_opened_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "muster.db")
    with pytest.raises(StoreUnavailable, match="not open"):
        store.write(lambda tx: None)
    with pytest.raises(StoreUnavailable, match="not open"):
        store.read(lambda tx: None)
    assert store.problem() is None and store.stats()["commits"] == 0
    store.close()
