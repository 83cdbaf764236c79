"""The barrier before the fork: what is written, asked, started, given back, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import gevent
import pytest

from agent.attempt import ExitRecord
from agent.begin import BeginBarrier
from agent.claims import read_claim
from agent.holdings import Holding, Stage
from agent.orders import Orders
from common.errors import CallTimeout, NotFound, PeerUnreachable, ProtocolError, StoreUnavailable
from common.loop import ThreadBridge
from tests.support.agent_parts import FakeExecutor, Parts, ScriptedMaster, claim


class Scripts:
    """Large scripts: given, or an error."""

    def __init__(self) -> None:
        self.script: bytes | Exception = b"large\n"

    def get(self, sha256: str, size: int) -> bytes:
        if isinstance(self.script, Exception):
            raise self.script
        return self.script


def allowed(runs: list[list[str]]) -> list[dict[str, Any]]:
    return [{"run_id": run_id, "ok": True, "fence": 7} for run_id, _ in runs]


def refused(runs: list[list[str]]) -> list[dict[str, Any]]:
    return [{"run_id": run_id, "ok": False, "why": "cancelled"} for run_id, _ in runs]


class Barrier(Parts):
    """A barrier on scripted ground."""

    def __init__(self, bridge: ThreadBridge) -> None:
        super().__init__(ScriptedMaster())
        self.master.answers |= {"begin": [allowed], "release": [True]}
        self.executor = FakeExecutor()
        self.scripts = Scripts()
        self.barrier = BeginBarrier(
            link=self.link,
            holdings=self.holdings,
            executor=self.executor,
            orders=Orders(self.holdings, self.executor),
            scripts=self.scripts,
            bridge=bridge,
            clock=self.clock,
        )
        self.begun: list[tuple[str, int]] = []
        self.refusals: list[Holding] = []
        self.troubles: list[str] = []
        self.barrier.on_begun = self._begun
        self.barrier.on_refusal = self.refusals.append
        self.barrier.on_trouble = self.troubles.append

    def _begun(self, holding: Holding, future: Future[ExitRecord]) -> None:
        self.begun.append(holding.key)

    def claim(self, *claims: dict[str, Any]) -> None:
        self.barrier.add([read_claim(one) for one in claims])
        gevent.idle()  # greenlets that fetch or release run until they wait

    def step(self) -> float | None:
        return self.barrier.step(self.now)

    def asked(self) -> list[str]:
        return [run_id for runs in self.master.sent("begin") for run_id, _ in runs]


@pytest.fixture
def here() -> Iterator[Barrier]:
    bridge = ThreadBridge()
    yield Barrier(bridge)
    bridge.close()


def test_written_then_asked_then_started(here: Barrier) -> None:
    wire = claim(args=["x"])
    order: list[str] = []
    here.master.answers["begin"] = [lambda runs: order.append(f"asked {len(here.executor.prepared)}") or allowed(runs)]
    here.claim(wire)
    assert here.step() is None
    assert order == ["asked 1"]
    (spec,) = here.executor.submitted
    assert (spec.run_id, spec.fence, spec.script, spec.args) == (wire["run_id"], 7, b"true\n", ("x",))
    assert here.begun == [(wire["run_id"], 1)]
    (holding,) = here.holdings.at(Stage.RUNNING)
    assert holding.spec is None, "the script does not stay in memory"


def test_claims_that_came_together_are_one_question(here: Barrier) -> None:
    here.claim(claim(), claim())
    here.claim(claim())
    here.step()
    assert here.master.sent("begin") == [[[one.run_id, "lease-1"] for one in here.executor.submitted]]
    assert len(here.executor.submitted) == 3


def test_a_refused_claim_is_forgotten_and_its_slot_free(here: Barrier) -> None:
    here.master.answers["begin"] = [refused]
    wire = claim()
    here.claim(wire)
    here.step()
    assert here.executor.submitted == []
    assert here.executor.abandoned == [(wire["run_id"], 1)]
    assert len(here.holdings) == 0
    assert here.master.sent("release") == []


@pytest.mark.parametrize("error", [CallTimeout(), StoreUnavailable(), ProtocolError()])
def test_a_question_without_an_answer_is_asked_again(here: Barrier, error: Exception) -> None:
    here.master.answers["begin"] = [error, "nonsense", allowed]
    here.claim(claim())
    assert (here.step() or 0) > 0
    assert (here.step() or 0) > 0
    assert here.executor.submitted == []
    here.step()
    assert len(here.executor.submitted) == 1
    assert len(here.executor.prepared) == 1


def test_an_answer_that_leaves_a_run_out_is_asked_for_the_rest(here: Barrier) -> None:
    first, second = claim(), claim()
    here.master.answers["begin"] = [lambda runs: allowed(runs[:1]), allowed]
    here.claim(first, second)
    assert (here.step() or 0) > 0
    assert here.begun == [(first["run_id"], 1)]
    here.step()
    assert here.master.sent("begin")[1] == [[second["run_id"], "lease-1"]]
    assert here.begun[1:] == [(second["run_id"], 1)]


def test_without_the_master_a_claim_waits_on_disk(here: Barrier) -> None:
    here.claim(claim())
    here.master.connected = False
    here.link.connection_changed("no connection")
    assert here.step() is None
    assert here.asked() == []
    assert "wait for the master's word" in here.barrier.status


def test_a_link_that_ends_under_the_question_leaves_it_open(here: Barrier) -> None:
    def lost(runs: list[list[str]]) -> Any:
        here.master.connected = False
        here.link.connection_changed("the connection was lost")
        raise PeerUnreachable("lost")

    here.master.answers["begin"] = [lost, allowed]
    here.claim(claim())
    assert here.step() is None
    here.master.connected = True
    here.link.step(here.now)
    here.step()
    assert len(here.executor.submitted) == 1


def test_a_full_disk_gives_claims_back_and_says_so(here: Barrier) -> None:
    here.executor.disk_error = OSError(28, "No space left on device")
    first, second = claim(), claim()
    here.claim(first, second)
    here.step()
    assert here.asked() == []
    assert here.master.sent("release") == [[[first["run_id"], "lease-1"], [second["run_id"], "lease-1"]]]
    assert len(here.holdings) == 0
    assert "No space left" in here.troubles[0]


def test_what_cannot_be_run_begins_and_is_refused_here(here: Barrier) -> None:
    here.claim({**claim(), "spec": b"\xc1"})
    here.step()
    assert here.executor.prepared == []
    assert here.executor.submitted == []
    (holding,) = here.refusals
    assert holding.stage is Stage.ENDED
    assert holding.refusal is not None


def test_an_executor_that_fails_costs_no_run(here: Barrier) -> None:
    def fail(spec: Any) -> Any:
        raise ValueError("no")

    here.executor.submit = fail  # type: ignore[method-assign]
    here.claim(claim())
    here.step()
    (holding,) = here.refusals
    assert holding.refusal is not None and "could not start it: no" in holding.refusal


def test_a_cancel_before_the_fork_ends_it_right_after(here: Barrier) -> None:
    wire = claim()

    def cancelled_meanwhile(runs: list[list[str]]) -> Any:
        (holding,) = here.holdings.at(Stage.BEGINNING)
        holding.kill_why = "cancel"
        return allowed(runs)

    here.master.answers["begin"] = [cancelled_meanwhile]
    here.claim(wire)
    here.step()
    assert here.executor.kills == [(wire["run_id"], "cancel")]


def test_an_attempt_waits_for_the_former_one_of_its_run(here: Barrier) -> None:
    wire = claim(attempt=2)
    former = Holding(wire["run_id"], 1, "lease-0", Stage.RUNNING)
    here.holdings.add(former)
    here.claim(wire)
    assert here.step() is None
    assert here.executor.prepared == []
    assert here.holdings.leases() == {wire["run_id"]: "lease-2"}
    here.holdings.advance(former, Stage.ENDED)
    here.step()
    assert here.begun == [(wire["run_id"], 2)]


def test_a_claim_that_was_renewed_before_it_was_asked_uses_the_newer_lease(here: Barrier) -> None:
    wire = claim()
    here.claim(wire)
    here.claim({**wire, "lease": "newer"})
    here.step()
    assert here.master.sent("begin") == [[[wire["run_id"], "newer"]]]
    assert [spec.lease for spec in here.executor.submitted] == ["newer"]


def test_a_claim_of_what_is_in_hand_is_given_back(here: Barrier) -> None:
    wire = claim()
    here.holdings.add(Holding(wire["run_id"], 1, "older", Stage.BEGINNING))
    here.claim(wire)
    assert here.master.sent("release") == [[[wire["run_id"], "lease-1"]]]
    assert here.holdings.leases() == {wire["run_id"]: "older"}


def test_a_large_script_is_fetched_first(here: Barrier) -> None:
    here.claim(claim(None))
    here.step()
    (spec,) = here.executor.submitted
    assert spec.script == b"large\n"


def test_a_large_script_that_is_gone_gives_the_claim_back(here: Barrier) -> None:
    here.scripts.script = NotFound()
    wire = claim(None)
    here.claim(wire)
    assert here.step() is None
    assert here.master.sent("release") == [[[wire["run_id"], "lease-1"]]]
    assert len(here.holdings) == 0
    assert here.barrier.waiting == 0


def test_draining_gives_back_what_was_not_asked_and_takes_nothing_new(here: Barrier) -> None:
    first, second = claim(), claim()
    here.claim(first)
    here.barrier.drain()
    here.claim(second)
    assert here.step() is None
    assert here.asked() == []
    assert here.master.sent("release") == [[[first["run_id"], "lease-1"]], [[second["run_id"], "lease-1"]]]
    assert len(here.holdings) == 0
