"""What is in hand, what the master's words about it mean, and what a claim says."""

from __future__ import annotations

import pytest

from agent.attempt import AttemptSpec
from agent.claims import read_claim
from agent.holdings import Holding, Holdings, Stage
from agent.orders import Orders
from common.errors import ProtocolError
from tests.support.agent_parts import FakeExecutor, claim

RUN = "0192f0c8-0000-7000-8000-000000000001"
OTHER = "0192f0c8-0000-7000-8000-000000000002"


def holding(attempt: int = 1, stage: Stage = Stage.RUNNING, run_id: str = RUN) -> Holding:
    return Holding(run_id, attempt, f"l{attempt}", stage)


def test_slots_are_taken_until_the_end() -> None:
    holdings = Holdings()
    one, two = holding(), holding(run_id=OTHER, stage=Stage.CLAIMED)
    holdings.add(one)
    holdings.add(two)
    assert holdings.active == 2
    holdings.advance(one, Stage.ENDED)
    holdings.advance(one, Stage.ENDED)
    assert holdings.active == 1
    holdings.remove(two)
    holdings.remove(two)
    assert holdings.active == 0
    assert len(holdings) == 1
    with pytest.raises(ValueError, match="in hand already"):
        holdings.add(holding())


def test_the_first_one_is_told() -> None:
    holdings = Holdings()
    told: list[int] = []
    holdings.on_busy = lambda: told.append(1)
    one = holding()
    holdings.add(one)
    holdings.add(holding(run_id=OTHER))
    assert len(told) == 1


def test_only_the_newest_attempt_of_a_run_is_named() -> None:
    holdings = Holdings()
    holdings.add(holding(2, Stage.ENDED))
    holdings.add(holding(3))
    holdings.add(holding(1, Stage.ENDED))
    assert holdings.leases() == {RUN: "l3"}
    assert holdings.triples(ended=False) == [[RUN, 3, "l3"]]
    assert sorted(holdings.triples(ended=True)) == [[RUN, 1, "l1"], [RUN, 2, "l2"]]
    assert [one.attempt for one in holdings.of_run(RUN)] == [1, 2, 3]


def test_what_is_in_doubt_is_not_named() -> None:
    holdings = Holdings()
    doubtful = holding(stage=Stage.ENDED)
    doubtful.doubtful = True
    holdings.add(doubtful)
    assert holdings.leases() == {}
    assert holdings.triples(ended=True) == []


def orders_over(*held: Holding) -> tuple[Orders, FakeExecutor]:
    holdings, executor = Holdings(), FakeExecutor()
    for one in held:
        holdings.add(one)
    return Orders(holdings, executor), executor


def test_a_cancel_ends_what_runs_once() -> None:
    orders, executor = orders_over(holding())
    assert orders.carry_out({"cancel": [[RUN, "request"]]}, {}) == 1
    assert orders.carry_out({"cancel": [[RUN, "request"]]}, {}) == 0
    assert executor.kills == [(RUN, "cancel")]


def test_a_cancel_between_begin_and_fork_is_kept() -> None:
    one = holding(stage=Stage.BEGINNING)
    orders, executor = orders_over(one)
    orders.carry_out({"cancel": [[RUN, "stop_rule"]]}, {})
    assert executor.kills == []
    assert one.kill_why == "stop_rule"


def test_a_cancel_of_what_has_not_begun_or_has_ended_does_nothing() -> None:
    orders, executor = orders_over(holding(stage=Stage.ENDED), holding(stage=Stage.CLAIMED, run_id=OTHER))
    assert orders.carry_out({"cancel": [[RUN, "request"], [OTHER, "request"]]}, {}) == 0
    assert executor.kills == []


def test_stale_counts_only_for_the_lease_that_was_named() -> None:
    newer = holding(2)
    orders, executor = orders_over(newer)
    assert orders.carry_out({"stale": [RUN]}, {RUN: "l1"}) == 0
    assert orders.carry_out({"stale": [RUN]}, {}) == 0
    assert executor.kills == []
    assert not newer.stale
    assert orders.carry_out({"stale": [RUN]}, {RUN: "l2"}) == 1
    assert executor.kills == [(RUN, "stale")]
    assert newer.stale
    assert orders.carry_out({"stale": [RUN]}, {RUN: "l2"}) == 0


def test_a_stale_claim_is_given_up() -> None:
    one = holding(stage=Stage.CLAIMED)
    orders, executor = orders_over(one)
    gone: list[Holding] = []
    orders.on_gone = gone.append
    orders.carry_out({"stale": [RUN]}, {RUN: "l1"})
    assert gone == [one]
    assert executor.kills == []


def test_a_stale_run_that_ended_is_only_noted() -> None:
    one = holding(stage=Stage.ENDED)
    orders, executor = orders_over(one)
    orders.carry_out({"stale": [RUN]}, {RUN: "l1"})
    assert (one.stale, executor.kills) == (True, [])


def test_a_claim_becomes_what_the_executor_runs() -> None:
    wire = claim(b"echo hello\n", interpreter=["/bin/bash"], args=["x"], env={"A": "1"}, cwd="/", timeout_s=7.0)
    read = read_claim(wire)
    assert read.spec == AttemptSpec(
        run_id=wire["run_id"],
        attempt=1,
        lease="lease-1",
        task_id=wire["task_id"],
        script=b"echo hello\n",
        interpreter=("/bin/bash",),
        args=("x",),
        env={"A": "1"},
        cwd="/",
        timeout_s=7.0,
    )
    assert read.script_sha256 is None


def test_a_claim_without_its_script_names_where_it_is() -> None:
    read = read_claim(claim(None))
    assert (read.script_sha256, read.script_size) == ("a" * 64, 5)
    assert read.spec is not None and read.spec.script == b""


@pytest.mark.parametrize("change", [{"spec": b"\xc1"}, {"spec": None}, {"script": "text"}])
def test_a_claim_that_cannot_be_run_says_why(change: dict[str, object]) -> None:
    read = read_claim({**claim(), **change})
    assert read.spec is None
    assert read.refusal is not None and "cannot run it" in read.refusal


@pytest.mark.parametrize(
    "change", [{"run_id": "../../etc"}, {"run_id": None}, {"attempt": True}, {"attempt": 0}, {"lease": 1}]
)
def test_a_claim_that_names_no_run_is_no_claim(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        read_claim({**claim(), **change})
    with pytest.raises(ProtocolError):
        read_claim([1, 2, 3])
