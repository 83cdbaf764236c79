"""Runs: what is stored comes back, deadlines are found, sums are kept."""

from __future__ import annotations

import pytest

from common.errors import InvalidRequest, VersionConflict
from common.model import FINAL_STATES, Attempt, Course, Ending, Leftover, Outcome, Run, RunKind, RunState, evolve
from master.lifecycle import Cancel, Due, Reopen
from master.store import statements
from master.store.base import Store, WriteTx
from tests.store.making import (
    add_addressed,
    add_free,
    alter,
    begin,
    claim,
    finish,
    make_run,
    make_spec,
    make_task,
    release,
    settle,
)

ENDING = Ending(
    outcome=Outcome.SIGNAL,
    exit_code=None,
    signal="SIGKILL",
    killed_by_us=True,
    started_at_ms=1,
    ended_at_ms=2,
    duration_s=1.5,
    output_bytes=10,
    output_gaps=[(3, 4), (8, 1)],
    output_sha256="ab",
    leftovers=[Leftover(pid=7, command="sleep 9")],
    detail="because",
    steps=[(5, "TERM sent")],
)
EVERY_FIELD = Run(
    id="0190-run",
    task_id="0190-task",
    kind=RunKind.SCRIPT,
    state=RunState.RUNNING,
    seq=3,
    priority=4294967295,
    agent_id="a",
    addressed=True,
    attempt=4,
    lease="l",
    fence=99,
    cancel_reason="stop_rule",
    due_engine_s=1.25,
    expires_engine_s=2.5,
    created_at_ms=1,
    claimed_at_ms=2,
    started_at_ms=3,
    ended_at_ms=4,
    silent_since_ms=5,
    ending=ENDING,
    version=7,
    course=Course(silences=[(1, 2), (3, 4)], cancel_at_ms=6, cancel_reason="stop_rule"),
)


def test_every_field_of_a_run_comes_back(store: Store) -> None:
    task = make_task(3, 2, id="0190-task")
    plain = make_run(task, None)
    store.write(lambda tx: tx.add_task(task, make_spec(), [EVERY_FIELD, plain]))
    assert store.read(lambda tx: tx.get_run(EVERY_FIELD.id)) == EVERY_FIELD
    assert store.read(lambda tx: tx.get_run(plain.id)) == plain


def test_every_field_of_a_run_has_its_column() -> None:
    assert set(statements.RUN_COLUMNS) == set(Run.__struct_fields__)
    assert set(statements.ATTEMPT_COLUMNS) == set(Attempt.__struct_fields__)


@pytest.mark.parametrize("addressed", [True, False])
def test_a_saved_run_comes_back(store: Store, addressed: bool) -> None:
    first = evolve(EVERY_FIELD, addressed=addressed, ending=None)
    store.write(lambda tx: tx.add_task(make_task(3, 1, id="0190-task"), make_spec(), [first]))
    after = evolve(
        first, state=RunState.DELAYED, attempt=5, lease=None, fence=None, cancel_reason=None, due_engine_s=3.0,
        expires_engine_s=None, claimed_at_ms=None, started_at_ms=None, ended_at_ms=None, silent_since_ms=None,
        ending=ENDING, version=8, agent_id="a" if addressed else None, course=None,
    )  # fmt: skip
    store.write(lambda tx: tx.save_run(after, expect=7))
    assert store.read(lambda tx: tx.get_run(first.id)) == after


def test_a_stale_save_raises_and_stores_nothing(store: Store) -> None:
    store.write(lambda tx: add_addressed(tx, ["a"]))
    run = store.write(lambda tx: claim(tx, "a"))
    assert run is not None
    with pytest.raises(VersionConflict):
        store.write(lambda tx: tx.save_run(evolve(run, attempt=9, version=9), expect=1))
    with pytest.raises(VersionConflict):
        store.write(lambda tx: tx.save_run(evolve(run, id="unknown"), expect=2))
    assert store.read(lambda tx: tx.get_run(run.id)) == run
    assert store.read(lambda tx: tx.findings()) == []


def test_runs_of_a_task_come_in_order_by_pages_and_states(store: Store) -> None:
    agents = [f"agent-{number}" for number in range(7)]
    task = store.write(lambda tx: add_addressed(tx, agents))
    store.write(lambda tx: add_addressed(tx, agents))
    for agent_id in agents[:3]:
        assert store.write(lambda tx, a=agent_id: claim(tx, a)) is not None
    seen: list[str | None] = []
    cursor: str | None = None
    while True:
        page = store.read(lambda tx, at=cursor: tx.list_runs(task.id, states=None, limit=3, cursor=at))
        seen += [run.agent_id for run in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == agents
    ready = store.read(lambda tx: tx.list_runs(task.id, states={RunState.READY}, limit=9, cursor=None))
    assert [run.agent_id for run in ready.items] == agents[3:]
    assert store.read(lambda tx: tx.list_runs(task.id, states=set(), limit=9, cursor=None)).items == []
    both = store.read(lambda tx: tx.runs_in(task.id, {RunState.READY, RunState.LEASED}))
    assert [run.id for run in both] == sorted(run.id for run in both) and len(both) == 7
    assert store.read(lambda tx: tx.runs_in(task.id, {RunState.FAILED})) == []
    assert store.read(lambda tx: tx.runs_in("unknown", {RunState.READY})) == []


def test_runs_are_found_by_prefix(store: Store) -> None:
    task = make_task(1, 2)
    runs = [make_run(task, "a", id="abc1"), make_run(task, "b", id="abc2")]
    store.write(lambda tx: tx.add_task(task, make_spec(), runs))
    assert store.read(lambda tx: tx.find_run_ids("abc")) == ["abc1", "abc2"]
    assert store.read(lambda tx: tx.find_run_ids("abc2")) == ["abc2"]


def test_held_runs_are_listed_for_one_agent_and_for_all(store: Store) -> None:
    store.write(lambda tx: add_addressed(tx, ["a", "b", "c"]))
    leased = store.write(lambda tx: claim(tx, "a"))
    running = store.write(lambda tx: begin(tx, claim(tx, "b")))
    assert store.read(lambda tx: tx.runs_held("a")) == [leased]
    assert store.read(lambda tx: tx.runs_held("c")) == []
    assert store.read(lambda tx: tx.runs_held()) == [leased, running]
    store.write(lambda tx: finish(tx, running))
    assert store.read(lambda tx: tx.runs_held()) == [leased]


def test_recent_runs_of_an_agent_come_newest_first(store: Store) -> None:
    tasks = [store.write(lambda tx: add_addressed(tx, ["a", "b"])) for _ in range(3)]
    first = store.read(lambda tx: tx.runs_of_agent("a", limit=2))
    assert [run.task_id for run in first.items] == [tasks[2].id, tasks[1].id]
    rest = store.read(lambda tx: tx.runs_of_agent("a", limit=2, cursor=first.next_cursor))
    assert [run.task_id for run in rest.items] == [tasks[0].id] and rest.next_cursor is None
    assert store.read(lambda tx: tx.runs_of_agent("a", states=FINAL_STATES, limit=9)).items == []
    assert store.read(lambda tx: tx.runs_of_agent("nobody", limit=9)).items == []
    with pytest.raises(InvalidRequest):
        store.read(lambda tx: tx.runs_of_agent("a", limit=2, cursor="1"))


def test_due_expired_and_the_next_deadline(store: Store) -> None:
    task = make_task(1, 4, counts={"delayed": 2, "ready": 2})
    late = make_run(task, "a", state=RunState.DELAYED, due_engine_s=30.0)
    soon = make_run(task, "b", state=RunState.DELAYED, due_engine_s=10.0)
    expiring = make_run(task, "c", expires_engine_s=5.0)
    patient = make_run(task, "d")
    assert store.read(lambda tx: tx.next_deadline()) is None
    store.write(lambda tx: tx.add_task(task, make_spec(), [late, soon, expiring, patient]))
    assert store.read(lambda tx: tx.next_deadline()) == 5.0
    assert store.read(lambda tx: tx.expired(4.9, limit=9)) == []
    assert store.read(lambda tx: tx.expired(5.0, limit=9)) == [expiring]
    assert store.read(lambda tx: tx.due(9.9, limit=9)) == []
    assert store.read(lambda tx: tx.due(99.0, limit=9)) == [soon, late]
    assert store.read(lambda tx: tx.due(99.0, limit=1)) == [soon]
    claimed = store.write(lambda tx: claim(tx, "c"))
    assert claimed is not None
    assert store.read(lambda tx: tx.next_deadline()) == 10.0
    store.write(lambda tx: settle(tx, soon, Due()))
    assert store.read(lambda tx: tx.next_deadline()) == 30.0
    store.write(lambda tx: settle(tx, late, Cancel()))
    assert store.read(lambda tx: tx.next_deadline()) is None


def test_runs_per_state_are_counted_over_all_tasks(store: Store) -> None:
    assert store.read(lambda tx: tx.count_runs()) == {}
    store.write(lambda tx: add_addressed(tx, ["a", "b", "c"]))
    store.write(lambda tx: add_free(tx, 2))
    store.write(lambda tx: claim(tx, "a"))
    running = store.write(lambda tx: begin(tx, claim(tx, "b")))
    expected = {RunState.READY: 3, RunState.LEASED: 1, RunState.RUNNING: 1}
    assert store.read(lambda tx: tx.count_runs()) == expected
    with pytest.raises(ZeroDivisionError):
        store.write(lambda tx: [finish(tx, running), 1 / 0])
    assert store.read(lambda tx: tx.count_runs()) == expected
    store.write(lambda tx: finish(tx, running))
    assert store.read(lambda tx: tx.count_runs()) == {RunState.READY: 3, RunState.LEASED: 1, RunState.SUCCEEDED: 1}


def test_attempts_come_oldest_first_and_each_is_kept_once(store: Store) -> None:
    def attempt(number: int, *, late: bool, detail: str) -> Attempt:
        return Attempt(
            run_id="r", attempt=number, agent_id="a", state=RunState.FAILED, late=late, claimed_at_ms=1,
            started_at_ms=None, ended_at_ms=3, ending=evolve(ENDING, detail=detail),
        )  # fmt: skip

    kept = [attempt(1, late=False, detail="x"), attempt(1, late=True, detail="y"), attempt(2, late=False, detail="z")]
    for one in (kept[0], kept[2], kept[1], attempt(1, late=False, detail="a repeat that says something else")):
        store.write(lambda tx, o=one: tx.add_attempt(o))
    assert store.read(lambda tx: tx.list_attempts("r")) == kept
    assert store.read(lambda tx: tx.list_attempts("other")) == []


def test_a_run_lives_through_retry_release_and_reopening(store: Store) -> None:
    store.write(lambda tx: add_addressed(tx, ["a"]))

    def attempt_and_fail(retry_engine_s: float | None) -> Run:
        def act(tx):
            run = claim(tx, "a")
            assert run is not None
            run = release(tx, run)
            run = claim(tx, "a")
            assert run is not None
            return finish(tx, begin(tx, run), exit_code=1, retry_engine_s=retry_engine_s)

        return store.write(act)

    delayed = attempt_and_fail(50.0)
    assert (delayed.state, delayed.attempt) == (RunState.DELAYED, 2)
    assert store.write(lambda tx: claim(tx, "a")) is None
    store.write(lambda tx: settle(tx, delayed, Due()))
    failed = attempt_and_fail(None)
    assert (failed.state, failed.lease) == (RunState.FAILED, None)
    reopened = store.write(lambda tx: settle(tx, failed, Reopen()))
    assert (reopened.state, reopened.attempt) == (RunState.READY, 3)
    assert store.read(lambda tx: tx.findings()) == []
    assert store.read(lambda tx: [offer.scope for offer in tx.heads("a", None, limit=9)]) == ["a:a"]


def test_the_open_runs_of_an_agent_are_those_that_have_not_ended(store: Store) -> None:
    def taken(tx: WriteTx) -> Run:
        run = claim(tx, "a")
        assert run is not None
        return run

    def fill(tx: WriteTx) -> list[str]:
        add_addressed(tx, ["a"])
        finish(tx, begin(tx, taken(tx)))
        add_addressed(tx, ["a"])
        delayed = finish(tx, begin(tx, taken(tx)), exit_code=1, retry_engine_s=9.0)
        add_free(tx, 1)
        running = begin(tx, taken(tx))
        add_addressed(tx, ["a", "b"], parallel=1)
        leased = taken(tx)
        add_addressed(tx, ["b", "a"], parallel=1)
        claim(tx, "b")
        assert claim(tx, "a") is None  # the window is full: what is ready there is withdrawn
        closed = tx.runs_of_agent("a", limit=1).items[0]
        add_addressed(tx, ["a", "b"])
        ready = tx.runs_of_agent("a", limit=1).items[0]
        return [run.id for run in (delayed, running, leased, closed, ready)]

    expected = store.write(fill)
    found = store.read(lambda tx: tx.open_runs_of_agent("a", limit=100))
    assert [run.id for run in found] == expected
    assert len(store.read(lambda tx: tx.open_runs_of_agent("a", limit=2))) == 2
    assert store.read(lambda tx: tx.open_runs_of_agent("nobody", limit=2)) == []


def test_a_run_that_became_ready_while_its_task_was_closed_is_open(store: Store) -> None:
    def fill(tx: WriteTx) -> Run:
        task = add_addressed(tx, ["a", "b"], parallel=1)
        run = claim(tx, "a")
        assert run is not None
        assert claim(tx, "b") is None
        alter(tx, task.id, paused=True)
        return release(tx, run)

    released = store.write(fill)
    assert store.read(lambda tx: tx.heads("a", None, limit=9)) == []
    assert store.read(lambda tx: tx.open_runs_of_agent("a", limit=9)) == [released]
