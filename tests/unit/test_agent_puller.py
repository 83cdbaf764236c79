"""When the agent asks for runs, for how many, and when it had better not."""

from __future__ import annotations

from typing import Any

import gevent
import pytest
from gevent.event import Event

from agent.claims import Claim
from agent.holdings import Holding, Stage
from agent.puller import GATHER_S, Puller
from common.errors import Busy
from tests.support.agent_parts import Parts, ScriptedMaster, claim

NOTHING = {"runs": [], "cancel": [], "stale": [], "register": False}


class Pulling(Parts):
    """A puller whose master answers when told."""

    def __init__(self, slots: int = 2) -> None:
        super().__init__(ScriptedMaster())
        self.gate = Event()
        self.answer: Any = NOTHING
        self.master.answers["pull_task"] = [self._poll]
        self.puller = Puller(link=self.link, holdings=self.holdings, slots=slots, clock=self.clock)
        self.claims: list[Claim] = []
        self.puller.on_claims = self.claims.extend

    def _poll(self, ask: dict[str, Any]) -> Any:
        if ask["wait_s"]:
            self.gate.wait()
        return self.answer

    def step(self) -> float | None:
        delay_s = self.puller.step(self.now)
        gevent.idle()
        return delay_s

    def let_answer(self, answer: Any) -> None:
        self.answer = answer
        self.gate.set()
        gevent.idle()
        self.gate.clear()

    @property
    def asks(self) -> list[dict[str, Any]]:
        return self.master.sent("pull_task")


@pytest.fixture
def here() -> Pulling:
    return Pulling()


def take_slots(here: Pulling, count: int) -> None:
    for number in range(count):
        here.holdings.add(Holding(f"0192f0c8-0000-7000-8000-00000000000{number}", 1, f"l{number}", Stage.RUNNING))


def test_one_poll_waits_and_asks_for_the_free_slots(here: Pulling) -> None:
    take_slots(here, 1)
    assert here.step() is None
    here.step()
    (ask,) = here.asks
    assert (ask["pull"], ask["free_slots"], ask["session"]) == (1, 1, "session")
    assert ask["held"] == [["0192f0c8-0000-7000-8000-000000000000", "l0"]]
    terms = here.link.terms
    assert 0.5 * terms.pull_wait_s < ask["wait_s"] <= terms.pull_wait_s


def test_polls_of_many_agents_are_spread() -> None:
    waits = set()
    for _ in range(10):
        here = Pulling()
        here.step()
        waits.add(here.asks[0]["wait_s"])
    assert len(waits) >= 8  # two may round to the same


def test_claims_are_handed_on_and_the_next_poll_follows(here: Pulling) -> None:
    here.step()
    wire = claim()
    here.let_answer({**NOTHING, "runs": [wire, "nonsense"]})
    assert [one.run_id for one in here.claims] == [wire["run_id"]]
    here.step()
    assert [ask["pull"] for ask in here.asks] == [1, 2]


def test_with_all_slots_taken_it_listens_only_after_a_moment(here: Pulling) -> None:
    take_slots(here, 2)
    delay_s = here.step()
    assert delay_s is not None and 0 < delay_s < 1
    assert here.asks == []
    here.clock.advance(delay_s)
    here.step()
    (ask,) = here.asks
    assert ask["free_slots"] == 0


def test_a_slot_that_comes_free_supersedes_the_poll_that_only_listens(here: Pulling) -> None:
    take_slots(here, 2)
    here.clock.advance(here.step() or 0)
    here.step()
    here.holdings.advance(here.holdings.at(Stage.RUNNING)[0], Stage.ENDED)
    here.step()
    assert [(ask["pull"], ask["free_slots"]) for ask in here.asks] == [(1, 0), (2, 1)]
    here.let_answer(NOTHING)
    here.step()
    assert len(here.asks) <= 3, "the old poll's end is no reason for a new one beside the newer"


def test_more_free_slots_leave_a_poll_alone(here: Pulling) -> None:
    take_slots(here, 1)
    here.step()
    here.holdings.advance(here.holdings.at(Stage.RUNNING)[0], Stage.ENDED)
    here.step()
    assert len(here.asks) == 1


def test_an_empty_answer_at_once_is_not_asked_again_at_once(here: Pulling) -> None:
    here.gate.set()
    here.puller.step(here.now)
    gevent.idle()
    here.puller.step(here.now)
    gevent.idle()
    assert len(here.asks) == 1


def test_a_busy_master_is_not_asked_again_at_once(here: Pulling) -> None:
    here.master.answers["pull_task"] = [Busy()]
    here.step()
    here.step()
    assert len(here.asks) == 1


def test_nothing_is_asked_while_nothing_can_be_started(here: Pulling) -> None:
    here.step()
    here.puller.pause("the disk is full")
    delay_s = here.step()
    assert [ask["free_slots"] for ask in here.asks] == [2, 0], "the poll that waits must bring no runs either"
    assert delay_s is not None and delay_s >= 1.0
    assert "the disk is full" in here.puller.status
    here.clock.advance(delay_s)
    here.step()
    assert here.asks[-1]["free_slots"] == 2


def test_pauses_grow_until_something_starts(here: Pulling) -> None:
    delays = []
    for _ in range(8):
        here.puller.pause("the disk is full")
        delays.append(here.step() or 0)
        here.clock.advance(delays[-1])
    assert max(delays) > 4.0
    here.puller.went_well()
    here.puller.pause("the disk is full")
    assert (here.step() or 0) <= 2.0


def test_without_the_master_nothing_is_asked(here: Pulling) -> None:
    here.master.connected = False
    here.link.connection_changed("no connection")
    assert here.step() is None
    assert here.asks == []


def test_draining_ends_the_waiting_poll_at_the_master(here: Pulling) -> None:
    here.step()
    here.puller.drain()
    here.puller.drain()
    assert [(ask["pull"], ask["free_slots"], ask["wait_s"] > 0) for ask in here.asks] == [(1, 2, True), (2, 0, False)]
    assert here.step() is None
    assert len(here.asks) == 2


def test_an_answer_that_says_register_is_passed_on(here: Pulling) -> None:
    here.step()
    here.let_answer({**NOTHING, "register": True})
    assert not here.link.registered


def test_no_runs_are_asked_for_while_too_many_results_wait(here: Pulling) -> None:
    for number in range(100):
        here.holdings.add(Holding(f"0192f0c8-0000-7000-8000-{number:012d}", 1, "l", Stage.ENDED))
    delay_s = here.step()
    here.clock.advance(delay_s or 0)
    here.step()
    assert [ask["free_slots"] for ask in here.asks] == [0]
    assert "too many that have ended" in here.puller.status
    here.holdings.remove(here.holdings.at(Stage.ENDED)[0])
    here.puller.delivered()
    here.step()
    assert [ask["free_slots"] for ask in here.asks] == [0, 2]


def test_a_question_for_few_slots_waits_a_moment_for_more_of_them(here: Pulling) -> None:
    here.step()
    here.let_answer({**NOTHING, "runs": [claim()]})
    take_slots(here, 1)
    delay_s = here.step()
    assert delay_s is not None and 0 < delay_s <= GATHER_S
    assert len(here.asks) == 1
    here.clock.advance(GATHER_S)
    here.step()
    assert [ask["free_slots"] for ask in here.asks] == [2, 1]
