"""Registering and beating: when, with what, and what becomes of answers and of silence."""

from __future__ import annotations

from typing import Any

import pytest

from agent.holdings import Holding, Stage
from agent.link import Terms
from common.config import Settings
from common.errors import Busy, CallTimeout, Conflict, PeerUnreachable, UnknownKey
from tests.support.agent_parts import BEATEN, REGISTERED, Parts, ScriptedMaster

RUN = "0192f0c8-0000-7000-8000-000000000001"


def test_registering_tells_what_is_in_hand_and_takes_the_terms() -> None:
    master = ScriptedMaster()
    master.answers["register"] = [{**REGISTERED, "settings": {"heartbeat_s": 2.0, "output_window": 7, "new": 1}}]
    parts = Parts(master, registered=False)
    parts.link.about = lambda: {"name": "box"}
    parts.link.facts = lambda: {"cpus": 2}
    parts.holdings.add(Holding(RUN, 3, "l3", Stage.RUNNING))
    parts.holdings.add(Holding(RUN, 2, "l2", Stage.ENDED))
    assert parts.link.step(parts.now) == 0.0
    (about,) = master.sent("register")
    assert about["name"] == "box"
    assert about["facts"] == {"cpus": 2}
    assert about["held"] == [[RUN, 3, "l3"]]
    assert about["ended"] == [[RUN, 2, "l2"]]
    assert about["session"] == "session"
    assert parts.link.registered
    assert (parts.link.terms.heartbeat_s, parts.link.terms.output_window) == (2.0, 7)
    assert parts.link.terms.heartbeat_idle_s == Settings().heartbeat_idle


def test_terms_that_make_no_sense_are_not_taken() -> None:
    told = {"heartbeat_s": 0, "pull_wait_s": "long", "output_chunk": 1 << 40, "output_window": True}
    terms = Terms.of(Settings(), told)
    assert terms.heartbeat_s == Settings().heartbeat
    assert terms.pull_wait_s == Settings().pull_wait
    assert terms.output_chunk == Settings().agent_message // 4
    assert terms.output_window == Settings().output_window


def test_a_heartbeat_follows_the_register_at_once_and_then_by_the_clock() -> None:
    parts = Parts(heartbeat=5.0, heartbeat_idle=15.0)
    parts.link.facts = lambda: {"cpus": 2}
    assert parts.link.step(parts.now) == pytest.approx(15.0)
    parts.clock.advance(14.0)
    assert parts.link.step(parts.now) == pytest.approx(1.0)
    assert len(parts.master.sent("heartbeat")) == 1
    parts.clock.advance(1.0)
    assert parts.link.step(parts.now) == pytest.approx(15.0)
    beats = parts.master.sent("heartbeat")
    assert len(beats) == 2
    assert beats[-1] == {"session": "session", "facts": {"cpus": 2}, "wall_ms": parts.clock.wall_ms(), "held": []}


def test_a_first_run_in_hand_shortens_the_interval_at_once() -> None:
    parts = Parts(heartbeat=5.0, heartbeat_idle=15.0)
    parts.link.step(parts.now)
    parts.clock.advance(6.0)
    parts.holdings.add(Holding(RUN, 1, "l1", Stage.CLAIMED))
    assert parts.link.step(parts.now) == pytest.approx(5.0)
    assert parts.master.sent("heartbeat")[-1]["held"] == [[RUN, "l1"]]


def test_a_late_answer_does_not_delay_the_next_heartbeat() -> None:
    parts = Parts(heartbeat_idle=15.0)

    def slow(beat: dict[str, Any]) -> dict[str, Any]:
        parts.clock.advance(4.0)
        return BEATEN

    parts.master.answers["heartbeat"] = [slow]
    assert parts.link.step(parts.now) == pytest.approx(11.0)


def test_orders_come_with_the_leases_that_were_named() -> None:
    parts = Parts()
    parts.holdings.add(Holding(RUN, 1, "l1", Stage.RUNNING))
    heard: list[Any] = []
    parts.link.on_orders = lambda answer, leases: heard.append((answer["stale"], leases)) or 0
    parts.master.answers["heartbeat"] = [{**BEATEN, "stale": [RUN]}]
    parts.link.step(parts.now)
    assert heard == [([RUN], {RUN: "l1"})]


def test_a_master_that_does_not_know_the_session_is_told_again() -> None:
    parts = Parts()
    parts.master.answers["heartbeat"] = [{**BEATEN, "register": True}, BEATEN]
    assert parts.link.step(parts.now) == 0.0
    assert not parts.link.registered
    parts.link.step(parts.now)
    assert parts.link.registered
    assert len(parts.master.sent("register")) == 2


def test_nothing_goes_out_before_the_master_knows_us() -> None:
    parts = Parts(registered=False)
    with pytest.raises(PeerUnreachable, match="Not registered"):
        parts.link.call("pull_task", {}, timeout_s=1.0)
    assert parts.master.calls == []


def test_a_lost_connection_ends_the_registration() -> None:
    parts = Parts()
    parts.master.connected = False
    parts.link.connection_changed("no connection (refused)")
    assert not parts.link.registered
    parts.master.state = "no connection (refused)"
    assert parts.link.step(parts.now) is None
    assert parts.link.status == "waiting for the master: no connection (refused)"


def test_a_connection_lost_while_the_register_is_worked_on_counts() -> None:
    parts = Parts(registered=False)
    parts.link.on_registered = lambda answer, named: parts.link.connection_changed("the connection was lost")
    assert parts.link.step(parts.now) == 0.0
    assert not parts.link.registered


def test_silence_makes_a_new_connection() -> None:
    parts = Parts()
    parts.master.answers["heartbeat"] = [CallTimeout("no answer")]
    parts.link.step(parts.now)
    assert parts.link.registered
    assert "has not answered 1 heartbeats" in parts.link.status
    parts.clock.advance(60.0)
    parts.link.step(parts.now)
    assert not parts.link.registered
    assert (parts.master.stops, parts.master.starts) == (1, 1)


@pytest.mark.parametrize("error", [UnknownKey(), Conflict("Another agent uses this identity.")])
def test_what_a_person_has_to_mend_is_said_once_and_tried_seldom(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    master = ScriptedMaster()
    master.answers["register"] = [error]
    parts = Parts(master, registered=False)
    delays = [parts.link.step(parts.now) for _ in range(3)]
    assert all(delay is not None and delay > 10.0 for delay in delays)
    assert str(error) in parts.link.status
    assert [record.message for record in caplog.records].count("not registered") == 1


def test_a_master_that_is_busy_is_asked_soon_again() -> None:
    master = ScriptedMaster()
    master.answers["register"] = [Busy(), Busy(), REGISTERED]
    parts = Parts(master, registered=False)
    assert 0 < (parts.link.step(parts.now) or 0) < 1.0
    assert 0 < (parts.link.step(parts.now) or 0) < 2.0
    parts.link.step(parts.now)
    assert parts.link.registered


def test_a_refused_heartbeat_registers_again_only_if_we_are_not_known() -> None:
    parts = Parts()
    parts.master.answers["heartbeat"] = [Busy()]
    parts.link.step(parts.now)
    assert parts.link.registered
    parts.clock.advance(60.0)
    parts.master.answers["heartbeat"] = [UnknownKey()]
    parts.link.step(parts.now)
    assert not parts.link.registered


def test_an_answer_that_is_no_map_is_refused() -> None:
    master = ScriptedMaster()
    master.answers["register"] = [[1, 2]]
    parts = Parts(master, registered=False)
    parts.link.step(parts.now)
    assert not parts.link.registered
    assert "not a map" in parts.link.status
