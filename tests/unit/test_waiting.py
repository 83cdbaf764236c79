from __future__ import annotations

from typing import Any

import gevent
import pytest

from master.waiting import BURST, PATIENCE_S, SPARE, Audience, Pull, Pulls, Waits


class Parked:
    """Pulls of agents that are parked, each in a greenlet of its own; `woken` in order."""

    def __init__(self, pulls: Pulls) -> None:
        self.pulls = pulls
        self.woken: list[str] = []
        self._greenlets: list[gevent.Greenlet] = []

    def add(self, *agents: str, queues: frozenset[str] | None = None, **more: Any) -> None:
        for agent_id in agents:
            pull = self.pulls.enter(agent_id, session="s", number=1, queues=queues, **more)
            self._greenlets.append(gevent.spawn(self._wait, pull))
        gevent.idle()
        assert all(greenlet.started for greenlet in self._greenlets)

    def _wait(self, pull: Pull) -> None:
        pull.ready()
        if pull.wait(30.0):
            self.woken.append(pull.agent_id)
        self.pulls.leave(pull)

    def take_woken(self) -> list[str]:
        gevent.idle()
        woken, self.woken = sorted(self.woken), []
        return woken

    def end(self) -> None:
        gevent.killall(self._greenlets)


@pytest.fixture
def pulls() -> Pulls:
    return Pulls()


@pytest.fixture
def parked(pulls: Pulls):  # type: ignore[no-untyped-def]
    parked = Parked(pulls)
    yield parked
    parked.end()


def test_a_wake_before_the_wait_is_not_lost(pulls: Pulls) -> None:
    pull = pulls.enter("a", session="s", number=1, queues=None)
    pull.ready()
    pulls.wake_agent("a")
    assert pull.wait(30.0)


def test_a_wake_from_before_the_look_is_gone_after_it(pulls: Pulls) -> None:
    pull = pulls.enter("a", session="s", number=1, queues=None)
    pulls.wake_agent("a")
    pull.ready()
    assert not pull.wait(0.0)


def test_a_newer_pull_ends_an_older_one(pulls: Pulls, parked: Parked) -> None:
    parked.add("a")
    newer = pulls.enter("a", session="s", number=2, queues=None)
    assert parked.take_woken() == ["a"]
    assert not newer.superseded
    pulls.wake_agent("a")
    assert newer.wait(30.0)


def test_an_older_pull_that_comes_late_ends_itself_and_not_the_newer_one(pulls: Pulls) -> None:
    newer = pulls.enter("a", session="s", number=2, queues=None)
    older = pulls.enter("a", session="s", number=1, queues=None)
    assert older.superseded
    assert not newer.superseded
    other_session = pulls.enter("a", session="s2", number=1, queues=None)
    assert newer.superseded
    assert not other_session.superseded


def test_without_a_window_all_who_may_take_it_are_woken_and_nobody_else(pulls: Pulls, parked: Parked) -> None:
    parked.add("a", "b", "c")
    pulls.offer("t", Audience(["a", "c"], queue="default"), room=None, now_s=0.0)
    assert parked.take_woken() == ["a", "c"]


def test_a_queue_wakes_those_that_serve_it(pulls: Pulls, parked: Parked) -> None:
    parked.add("all")
    parked.add("builds", queues=frozenset({"builds"}))
    parked.add("default", queues=frozenset({"default"}))
    pulls.offer("t", Audience(None, queue="builds"), room=None, now_s=0.0)
    assert parked.take_woken() == ["all", "builds"]


def test_a_window_wakes_about_as_many_as_it_has_room_and_others_the_next_time(pulls: Pulls, parked: Parked) -> None:
    agents = [f"a{number:02}" for number in range(20)]
    parked.add(*agents)
    pulls.offer("t", Audience(agents, queue="default"), room=3, now_s=0.0)
    assert parked.take_woken() == agents[: 3 + SPARE]
    pulls.fill("t", room=1, now_s=0.0)
    assert parked.take_woken() == agents[3 + SPARE : 4 + 2 * SPARE]


def test_an_absent_host_does_not_count_as_woken(pulls: Pulls, parked: Parked) -> None:
    parked.add("here")
    pulls.offer("t", Audience(["away", "away-too", "here"], queue="default"), room=1, now_s=0.0)
    assert parked.take_woken() == ["here"]


@pytest.mark.parametrize("room", [1, None])
def test_who_takes_nothing_is_left_to_sleep(pulls: Pulls, parked: Parked, room: int | None) -> None:
    parked.add("busy", "busy-too", free_slots=0)
    parked.add("draining", "draining-too", able=lambda: False)
    parked.add("free")
    everybody = ["busy", "busy-too", "draining", "draining-too", "free"]
    pulls.offer("t", Audience(everybody, queue="default"), room=room, now_s=0.0)
    assert parked.take_woken() == ["free"]


def test_who_has_had_its_run_comes_behind_all_others(pulls: Pulls, parked: Parked) -> None:
    agents = [f"a{number}" for number in range(8)]
    pulls.offer("t", Audience(agents, queue="default"), room=1, now_s=0.0)
    parked.add(*agents)
    for agent_id in agents[:4]:
        pulls.served("t", agent_id)
    pulls.fill("t", room=1, now_s=0.0)
    assert parked.take_woken() == agents[4 : 5 + SPARE]
    pulls.fill("t", room=1, now_s=0.0)
    assert parked.take_woken() == [*agents[:SPARE], agents[7]]


def test_room_that_stays_unused_wakes_the_rest(pulls: Pulls, parked: Parked) -> None:
    agents = [f"a{number}" for number in range(8)]
    parked.add(*agents)
    pulls.offer("t", Audience(agents, queue="default"), room=1, now_s=10.0)
    first = parked.take_woken()
    assert pulls.unfilled(10.0 + PATIENCE_S - 0.01) == []
    assert pulls.unfilled(10.0 + PATIENCE_S) == ["t"]
    assert pulls.unfilled(100.0) == []
    pulls.wake_rest("t")
    assert parked.take_woken() == sorted(set(agents) - set(first))


def test_a_pull_that_is_just_looking_looks_again_and_does_not_count(pulls: Pulls, parked: Parked) -> None:
    looking = pulls.enter("looking", session="s", number=1, queues=None)
    looking.ready()
    agents = ["looking", *(f"a{number}" for number in range(5))]
    parked.add(*agents[1:])
    pulls.offer("t", Audience(agents, queue="default"), room=1, now_s=0.0)
    assert parked.take_woken() == agents[1 : 2 + SPARE]
    assert looking.wait(30.0)


def test_a_task_without_offers_is_forgotten(pulls: Pulls, parked: Parked) -> None:
    parked.add("a")
    pulls.offer("t", Audience(["b"], queue="default"), room=1, now_s=0.0)
    assert pulls.knows("t")
    pulls.forget("t")
    assert not pulls.knows("t")
    pulls.wake_rest("t")
    assert pulls.unfilled(100.0) == []
    assert parked.take_woken() == []


def test_many_are_woken_in_bursts_that_leave_the_loop_its_turn(pulls: Pulls, parked: Parked) -> None:
    agents = [f"a{number}" for number in range(3 * BURST)]
    parked.add(*agents)
    seen: list[int] = []

    def look() -> None:
        seen.append(len(parked.woken))
        if len(parked.woken) < len(agents):
            gevent.get_hub().loop.run_callback(look)

    look()
    pulls.offer("t", Audience(agents, queue="default"), room=None, now_s=0.0)
    gevent.idle()
    assert len(parked.woken) == len(agents)
    assert any(0 < number <= 2 * BURST for number in seen), seen


def test_closing_ends_all_pulls_and_those_that_come_after(pulls: Pulls, parked: Parked) -> None:
    parked.add("a", "b")
    pulls.close()
    assert parked.take_woken() == ["a", "b"]
    assert pulls.enter("c", session="s", number=1, queues=None).superseded


def test_only_a_capped_pull_looks_again_when_a_run_of_its_agent_ends(pulls: Pulls) -> None:
    pull = pulls.enter("a", session="s", number=1, queues=None)
    pull.ready()
    pulls.freed("a")
    assert not pull.wait(0.0)
    pull.capped = True
    pulls.freed("a")
    assert pull.wait(30.0)


def test_waits_wake_those_of_their_key_only() -> None:
    waits = Waits()
    one, two = waits.enter("x"), waits.enter("y")
    waits.wake("x")
    assert one.is_set()
    assert not two.is_set()
    waits.leave("x", one)
    waits.leave("x", one)
    assert len(waits) == 1
    waits.wake_all()
    assert two.is_set()
