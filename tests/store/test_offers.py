"""What an agent is offered: its own runs, its queues', its sets', in order; closed tasks leave no trace at the head."""

from __future__ import annotations

import pytest

from common import faults
from common.errors import StoreUnavailable
from common.model import Offer, Run, RunState, Task, evolve
from master.lifecycle import Cancel, Due, LeaseEnd, Reopen
from master.store.base import Store
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


def heads(store: Store, agent_id: str, queues: list[str] | None = None, *, limit: int = 20) -> list[str]:
    """Task ids of what the agent is offered; the writer's and a snapshot's answer must agree."""
    offers = store.read(lambda tx: tx.heads(agent_id, queues, limit=limit))
    assert store.write(lambda tx: tx.heads(agent_id, queues, limit=limit)) == offers
    return [offer.task_id for offer in offers]


def claimed(store: Store, agent_id: str, queues: list[str] | None = None) -> Run | None:
    return store.write(lambda tx: claim(tx, agent_id, queues))


def must_claim(store: Store, agent_id: str) -> Run:
    run = claimed(store, agent_id)
    assert run is not None
    return run


@pytest.fixture(autouse=True)
def nothing_is_broken_at_the_end(store: Store) -> object:
    yield
    assert store.read(lambda tx: tx.findings()) == []


def test_an_agent_is_offered_its_own_its_queues_and_its_sets(store: Store) -> None:
    own = store.write(lambda tx: add_addressed(tx, ["a", "b"]))
    queue = store.write(lambda tx: add_free(tx, 1, queue="q1"))
    among = store.write(lambda tx: add_free(tx, 1, candidates=["a", "c"], queue="q2"))
    assert heads(store, "a") == [own.id, queue.id, among.id]
    assert heads(store, "a", ["q1", "q2"]) == [own.id, queue.id, among.id]
    assert heads(store, "a", ["q1"]) == [own.id, queue.id]
    assert heads(store, "a", ["q2"]) == [own.id, among.id]
    assert heads(store, "a", []) == [own.id]
    assert heads(store, "b") == [own.id, queue.id]
    assert heads(store, "c") == [queue.id, among.id]
    assert heads(store, "d") == [queue.id]
    assert heads(store, "d", ["q2"]) == []


def test_offers_are_merged_by_priority_then_by_submission(store: Store) -> None:
    late = store.write(lambda tx: add_addressed(tx, ["a"], priority=2))
    first = store.write(lambda tx: add_free(tx, 1, priority=1))
    second = store.write(lambda tx: add_free(tx, 1, priority=1, candidates=["a"], queue="x"))
    third = store.write(lambda tx: add_addressed(tx, ["a"], priority=1))
    top = store.write(lambda tx: add_free(tx, 1, priority=0, queue="zz"))
    assert heads(store, "a") == [top.id, first.id, second.id, third.id, late.id]
    assert heads(store, "a", limit=2) == [top.id, first.id]


def test_names_that_look_like_scopes_stay_apart(store: Store) -> None:
    store.write(lambda tx: add_addressed(tx, ["x"], queue="q:x"))
    weird = store.write(lambda tx: add_free(tx, 1, queue="a:x"))
    other = store.write(lambda tx: add_free(tx, 1, queue="ÿ\U0010ffff"))
    assert heads(store, "y") == [weird.id, other.id]
    assert heads(store, "y", ["ÿ\U0010ffff"]) == [other.id]


def test_a_claimed_run_takes_its_offer_along_and_a_release_brings_it_back(store: Store) -> None:
    task = store.write(lambda tx: add_addressed(tx, ["a", "b"]))
    run = must_claim(store, "a")
    assert heads(store, "a") == [] and heads(store, "b") == [task.id]
    store.write(lambda tx: release(tx, run))
    assert heads(store, "a") == [task.id]


def test_runs_for_anybody_are_offered_until_the_last_is_taken(store: Store) -> None:
    task = store.write(lambda tx: add_free(tx, 2))
    first, second = must_claim(store, "a"), must_claim(store, "b")
    assert {first.task_id, second.task_id} == {task.id} and first.id != second.id
    assert heads(store, "c") == []
    store.write(lambda tx: release(tx, second))
    assert heads(store, "c") == [task.id]
    assert heads(store, "a") == []  # it has the other one


def test_never_two_runs_of_a_task_on_one_agent(store: Store) -> None:
    store.write(lambda tx: add_free(tx, 3))
    behind = store.write(lambda tx: add_free(tx, 1))
    run = must_claim(store, "a")
    assert must_claim(store, "a").task_id == behind.id
    assert claimed(store, "a") is None
    store.write(lambda tx: finish(tx, begin(tx, run)))
    assert claimed(store, "a") is None  # not even after it has ended


def test_an_agent_that_gave_its_run_back_may_take_one_again(store: Store) -> None:
    task = store.write(lambda tx: add_free(tx, 3))
    run = must_claim(store, "a")
    assert heads(store, "a") == []
    store.write(lambda tx: release(tx, run))
    assert heads(store, "a") == [task.id]
    run = must_claim(store, "a")
    assert heads(store, "a") == []
    store.write(lambda tx: settle(tx, run, LeaseEnd()))
    assert heads(store, "a") == [task.id]


def test_an_agent_whose_run_waits_for_its_retry_may_take_another_of_the_task(store: Store) -> None:
    task = store.write(lambda tx: add_free(tx, 2))
    run = must_claim(store, "a")
    assert heads(store, "a") == []
    delayed = store.write(lambda tx: finish(tx, begin(tx, run), exit_code=1, retry_engine_s=5.0))
    assert (delayed.state, delayed.agent_id) == (RunState.DELAYED, None)
    assert heads(store, "a") == [task.id]
    other = must_claim(store, "a")
    assert other.id != run.id and heads(store, "b") == []
    store.write(lambda tx: settle(tx, delayed, Due()))
    assert heads(store, "b") == [task.id] and heads(store, "a") == []


def test_a_more_urgent_task_is_seen_before_those_an_agent_passed_over(store: Store) -> None:
    passed = [store.write(lambda tx: add_free(tx, 2, priority=5)) for _ in range(10)]
    for _ in passed:
        must_claim(store, "a")
    assert heads(store, "a") == []
    urgent = store.write(lambda tx: add_free(tx, 1, priority=1))
    assert heads(store, "a") == [urgent.id]
    middle = store.write(lambda tx: add_free(tx, 2, priority=5))
    assert heads(store, "a") == [urgent.id, middle.id]
    assert [must_claim(store, "a").task_id for _ in range(2)] == [urgent.id, middle.id]
    assert heads(store, "a") == []
    last = store.write(lambda tx: add_free(tx, 1, priority=9))
    assert heads(store, "a") == [last.id]


def test_what_was_passed_over_in_a_transaction_that_failed_is_seen_again(store: Store) -> None:
    task = store.write(lambda tx: add_free(tx, 2))

    def claim_look_and_fail(tx: object) -> None:
        assert claim(tx, "a") is not None
        assert tx.heads("a", None, limit=5) == []
        raise LookupError

    with pytest.raises(LookupError):
        store.write(claim_look_and_fail)
    assert heads(store, "a") == [task.id]


def test_what_is_offered_behind_a_look_in_the_same_transaction_is_seen_later(store: Store) -> None:
    task = store.write(lambda tx: add_free(tx, 2))
    run = must_claim(store, "a")

    def look_then_release(tx: object) -> None:
        assert tx.heads("a", None, limit=5) == []
        release(tx, run)

    def look_then_add(tx: object) -> Task:
        assert [offer.task_id for offer in tx.heads("a", None, limit=5)] == []
        return add_free(tx, 1, priority=1)

    store.write(look_then_release)
    assert heads(store, "a") == [task.id]
    must_claim(store, "a")
    urgent = store.write(look_then_add)
    assert heads(store, "a") == [urgent.id]


def test_a_run_given_back_for_a_retry_behind_a_look_is_seen_later(store: Store) -> None:
    task = store.write(lambda tx: add_free(tx, 2))
    run = store.write(lambda tx: begin(tx, claim(tx, "a")))

    def look_then_fail(tx: object) -> None:
        assert tx.heads("a", None, limit=5) == []
        finish(tx, run, exit_code=1, retry_engine_s=5.0)

    store.write(look_then_fail)
    assert heads(store, "a") == [task.id]


def test_what_was_passed_over_in_a_commit_that_failed_is_seen_again(store: Store) -> None:
    task = store.write(lambda tx: add_free(tx, 2))

    def claim_and_look(tx: object) -> None:
        assert claim(tx, "a") is not None
        assert tx.heads("a", None, limit=5) == []

    faults.arm("store-before-commit=fail")
    try:
        with pytest.raises(StoreUnavailable):
            store.write(claim_and_look)
    finally:
        faults.arm("")
    assert heads(store, "a") == [task.id]


@pytest.mark.parametrize("kind", ["addressed", "queue", "set"])
def test_a_closed_task_is_met_once_and_comes_back_when_it_opens(store: Store, kind: str) -> None:
    def add(tx: object) -> Task:
        if kind == "addressed":
            return add_addressed(tx, ["a", "b", "c"], parallel=1)
        return add_free(tx, 3, parallel=1, candidates=["a", "b", "c"] if kind == "set" else None)

    task = store.write(add)
    run = must_claim(store, "a")
    assert heads(store, "b") == [task.id]
    assert claimed(store, "b") is None
    assert heads(store, "b") == []  # withdrawn by the claim that met it
    store.write(lambda tx: finish(tx, begin(tx, run)))
    assert heads(store, "b") == [task.id] and heads(store, "a") == []
    run = must_claim(store, "b")
    assert claimed(store, "c") is None
    store.write(lambda tx: release(tx, run))
    assert heads(store, "b") == [task.id] and heads(store, "c") == [task.id]


def test_withdrawing_and_offering_again_answer_what_they_touched(store: Store) -> None:
    task = store.write(lambda tx: add_addressed(tx, ["a", "b"]))
    offer = Offer(scope="a:a", priority=task.priority, seq=task.seq, task_id=task.id)
    store.write(lambda tx: [tx.withdraw(offer), tx.withdraw(offer)])
    assert heads(store, "a") == [] and heads(store, "b") == [task.id]
    assert store.write(lambda tx: tx.reoffer(task.id)) == ["a:a"]
    assert store.write(lambda tx: tx.reoffer(task.id)) == []
    assert store.write(lambda tx: tx.reoffer("unknown")) == []
    assert heads(store, "a") == [task.id]


def test_a_task_added_closed_is_offered_when_it_opens(store: Store) -> None:
    task = make_task(1, 2, paused=True, offered=False)
    store.write(lambda tx: tx.put_blob(make_spec().script_sha256, b"x"))
    store.write(lambda tx: tx.add_task(task, make_spec(), [make_run(task, "a"), make_run(task, "b")]))
    assert heads(store, "a") == []
    store.write(lambda tx: alter(tx, task.id, paused=False))
    assert heads(store, "a") == heads(store, "b") == [task.id]


def test_a_run_that_ends_while_withdrawn_does_not_come_back(store: Store) -> None:
    task = store.write(lambda tx: add_addressed(tx, ["a", "b"], parallel=1))
    running = must_claim(store, "a")
    assert claimed(store, "b") is None
    waiting = store.read(lambda tx: tx.claimable(task.id, "b"))
    assert waiting is not None
    store.write(lambda tx: settle(tx, waiting, Cancel()))
    store.write(lambda tx: finish(tx, begin(tx, running)))
    assert heads(store, "b") == []


def test_a_run_that_becomes_ready_in_a_closed_task_waits_with_the_others(store: Store) -> None:
    task = store.write(lambda tx: add_free(tx, 2, parallel=1))
    run = must_claim(store, "a")
    assert claimed(store, "b") is None
    store.write(lambda tx: alter(tx, task.id, paused=True))
    store.write(lambda tx: release(tx, run))
    assert heads(store, "a") == heads(store, "b") == []
    store.write(lambda tx: alter(tx, task.id, paused=False))
    assert heads(store, "a") == heads(store, "b") == [task.id]


def test_members_of_a_set_are_listed_only_while_it_has_offers(store: Store) -> None:
    def members() -> int:
        return store.read(lambda tx: tx.db.execute("SELECT count(*) FROM set_members").fetchone()[0])

    store.write(lambda tx: add_free(tx, 1, candidates=["a", "b"]))
    store.write(lambda tx: add_free(tx, 1, candidates=["b", "a"]))  # the same set
    assert members() == 2
    store.write(lambda tx: add_free(tx, 1, candidates=["a", "b"], queue="other"))  # not the same
    assert members() == 4
    runs = [must_claim(store, "a") for _ in range(3)]
    assert members() == 0
    store.write(lambda tx: release(tx, runs[1]))
    assert members() == 2


def test_reopened_runs_are_offered(store: Store) -> None:
    addressed = store.write(lambda tx: add_addressed(tx, ["a"]))
    free = store.write(lambda tx: add_free(tx, 1))
    for _ in range(2):
        run = must_claim(store, "a")
        ended = store.write(lambda tx, r=run: finish(tx, begin(tx, r), exit_code=1))
        assert ended.state is RunState.FAILED
        store.write(lambda tx, r=ended: settle(tx, r, Reopen()))
        assert heads(store, "a") == [ended.task_id, *([free.id] if ended.task_id == addressed.id else [])]
        store.write(lambda tx: finish(tx, begin(tx, claim(tx, "a"))))


def test_a_ready_run_given_to_another_agent_is_offered_there(store: Store) -> None:
    task = store.write(lambda tx: add_addressed(tx, ["a"]))
    run = store.read(lambda tx: tx.claimable(task.id, "a"))
    assert run is not None
    store.write(lambda tx: tx.save_run(evolve(run, agent_id="b", version=2), expect=1))
    assert heads(store, "a") == [] and heads(store, "b") == [task.id]


def test_claimable_is_for_those_who_may(store: Store) -> None:
    addressed = store.write(lambda tx: add_addressed(tx, ["a"]))
    fixed = store.write(lambda tx: add_free(tx, 2, candidates=["a", "b"]))
    free = store.write(lambda tx: add_free(tx, 1))

    def may(task: Task, agent_id: str) -> bool:
        answer = store.read(lambda tx: tx.claimable(task.id, agent_id))
        assert store.write(lambda tx: tx.claimable(task.id, agent_id)) == answer
        return answer is not None

    assert [may(addressed, agent) for agent in "ab"] == [True, False]
    assert [may(fixed, agent) for agent in "abc"] == [True, True, False]
    assert [may(free, agent) for agent in "abc"] == [True, True, True]
    for _ in range(3):
        must_claim(store, "a")
    assert [may(task, "a") for task in (addressed, fixed, free)] == [False, False, False]
    assert [may(task, "b") for task in (addressed, fixed, free)] == [False, True, False]
