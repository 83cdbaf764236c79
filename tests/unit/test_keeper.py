"""What time alone brings about, with a clock moved by hand: leases, silence, expiry, the master's own standstill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from common.config import Settings
from common.errors import StoreUnavailable
from common.model import RunState, evolve
from master import keeper
from master.runs import Change
from tests.support.fake_agent import EXITED_0, FakeAgent, MasterHere, exited, master_here

BEGIN_LEASE_S = 15.0
LEASE_S = 60.0
OFFLINE_S = 15.0  # three heartbeats of an agent that holds runs


@pytest.fixture
def here(tmp_path: Path) -> Iterator[MasterHere]:
    with master_here(tmp_path / "m", manual=True) as here:
        yield here


def running(here: MasterHere, agent: FakeAgent, **request: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A task with one run under way: (task, claim)."""
    task = here.submit(targets=[agent.name], **request)
    (claim,) = agent.claim()
    agent.begin(claim)
    return task, claim


def live(here: MasterHere, agent: FakeAgent, seconds: float) -> None:
    """Let time pass while the agent sends its heartbeats."""
    left = seconds
    while left > 0:
        here.advance(min(5.0, left))
        agent.beat()
        left -= 5.0


def test_a_claimed_run_that_does_not_begin_goes_back(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    (claim,) = a.claim()
    here.advance(BEGIN_LEASE_S - 0.4)
    assert here.states(task) == ["leased"]
    here.advance(0.6)
    assert here.states(task) == ["ready"]
    (refused,) = a.begin(claim)
    assert not refused["ok"]


def test_naming_a_claimed_run_renews_its_lease(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    a.claim()
    live(here, a, 40.0)
    assert here.states(task) == ["leased"]


def test_a_running_run_goes_on_as_long_as_its_agent_names_it(here: MasterHere) -> None:
    a = here.agent("a")
    task, claim = running(here, a)
    live(here, a, 3 * LEASE_S)
    assert here.states(task) == ["running"]
    assert a.end(claim) == "stored"


def test_a_run_that_a_speaking_agent_does_not_name_is_lost_at_the_end_of_its_lease(here: MasterHere) -> None:
    a = here.agent("a")
    task, claim = running(here, a)
    a.held.clear()
    live(here, a, LEASE_S - 5.0)
    assert here.states(task) == ["running"]
    live(here, a, 10.0)
    (run,) = here.runs(task)
    assert (run["state"], run["outcome"]) == ("failed", "lost")
    assert a.beat(held={claim["run_id"]: claim["lease"]})["stale"] == [claim["run_id"]]


def test_a_silent_agents_run_stays_running_and_says_since_when(here: MasterHere) -> None:
    a = here.agent("a")
    task, claim = running(here, a)
    heard = here.web("get_agent", "a")["last_seen_at_ms"]
    here.advance(OFFLINE_S + 1.0)
    (run,) = here.runs(task)
    assert (run["state"], run["silent_since_ms"]) == ("running", heard)
    here.advance(60.0)
    assert here.states(task) == ["running"]
    a.beat()
    gevent.idle()
    here.web("ready")
    (run,) = here.runs(task)
    assert (run["state"], run["silent_since_ms"]) == ("running", None)
    assert a.end(claim) == "stored"


@pytest.mark.parametrize("lost_after", [20.0, 120.0])
def test_it_is_lost_once_the_agent_was_silent_for_so_long(here: MasterHere, lost_after: float) -> None:
    a = here.agent("a")
    task, claim = running(here, a, lost_after=lost_after)
    here.advance(lost_after - 1.0)
    assert here.states(task) == ["running"]
    here.advance(1.4)
    (run,) = here.runs(task)
    assert (run["state"], run["outcome"]) == ("failed", "lost")
    assert "stopped answering" in run["detail"]
    assert a.end(claim, EXITED_0) == "late"
    assert here.states(task) == ["failed"]
    assert here.web("get_run", claim["run_id"])["late"]


def test_an_agent_is_not_lost_before_it_is_offline(here: MasterHere) -> None:
    a = here.agent("a")
    task, _ = running(here, a, lost_after=2.0)
    here.advance(OFFLINE_S - 1.0)
    assert here.states(task) == ["running"]
    here.advance(1.5)
    assert here.states(task) == ["failed"]


def test_lost_after_0_waits_for_the_host(here: MasterHere) -> None:
    a = here.agent("a")
    task, claim = running(here, a, lost_after=0.0)
    here.advance(300.0, step=1.2)
    assert here.states(task) == ["running"]
    a.beat()
    assert a.end(claim) == "stored"


def test_an_agent_that_comes_back_has_the_full_lease_for_what_it_names_late(here: MasterHere) -> None:
    a = here.agent("a")
    task, _ = running(here, a, lost_after=0.0)
    here.advance(200.0, step=1.2)
    held, a.held = a.held, {}
    live(here, a, LEASE_S - 10.0)
    a.held = held
    live(here, a, 20.0)
    assert here.states(task) == ["running"]


def test_a_lost_run_counts_as_failed_for_the_stop_rule(here: MasterHere) -> None:
    a, _ = here.agent("a"), here.agent("b")
    task = here.submit(targets=["a", "b"], parallel=1, fail_count=1, lost_after=20.0)
    (claim,) = a.claim()
    a.begin(claim)
    here.advance(21.0)
    assert here.task(task)["counts"] == {"failed": 1, "skipped": 1}


def test_a_cancelled_run_of_a_silent_agent_ends_as_cancelled(here: MasterHere) -> None:
    a = here.agent("a")
    task, _ = running(here, a, lost_after=20.0)
    here.web("cancel_task", task["id"])
    here.advance(21.0)
    assert here.states(task) == ["cancelled"]


def test_a_restart_gives_every_lease_its_full_length_anew(here: MasterHere) -> None:
    a, b = here.agent("a"), here.agent("b")
    claimed = here.submit(targets=["a"])
    a.claim()
    begun, _ = running(here, b)
    here.advance(10.0)
    here.restart()
    here.advance(10.0)
    assert (here.states(claimed), here.states(begun)) == (["leased"], ["running"])
    here.advance(6.0)
    assert here.states(claimed) == ["ready"]


def test_a_run_that_was_silent_before_a_restart_is_heard_of_again_after_it(here: MasterHere) -> None:
    a = here.agent("a")
    task, claim = running(here, a)
    here.advance(OFFLINE_S + 1.0)
    here.restart(a)
    a.register(held=[[claim["run_id"], claim["attempt"], claim["lease"]]])
    here.web("ready")
    (run,) = here.runs(task)
    assert (run["state"], run["silent_since_ms"]) == ("running", None)


def test_after_a_restart_agents_go_on_with_what_they_hold(here: MasterHere) -> None:
    a = here.agent("a")
    task, claim = running(here, a)
    a.write(claim, b"before ")
    here.restart(a)
    assert a.beat()["register"]
    answer = a.register(held=[[claim["run_id"], claim["attempt"], claim["lease"]]])
    assert answer["running"] == [[claim["run_id"], 1, claim["lease"], 7]]
    a.write(claim, b"after", offset=7)
    assert a.end(claim, exited(0, output_bytes=12)) == "stored"
    assert here.web("read_output", claim["run_id"], None, "all", 0, 100)["data"] == b"before after"
    assert here.states(task) == ["succeeded"]


# -- the master's own standstill ---------------------------------------------------------------------------------------


def test_time_in_which_the_master_stood_still_is_nobodys_silence(here: MasterHere) -> None:
    a, b = here.agent("a"), here.agent("b")
    begun, claim = running(here, a, lost_after=30.0)
    claimed = here.submit(targets=["b"])
    b.claim()
    here.keep()
    assert here.clock is not None
    here.clock.advance(300.0)  # frozen, or the host was suspended
    here.keep()
    assert (here.states(begun), here.states(claimed)) == (["running"], ["leased"])
    assert here.web("get_agent", "a")["state"] == "online"
    here.advance(10.0)
    assert (here.states(begun), here.states(claimed)) == (["running"], ["leased"])
    here.advance(6.0)
    assert here.states(claimed) == ["ready"]
    assert here.web("get_agent", "a")["state"] == "offline"
    here.advance(16.0)
    assert here.states(begun) == ["failed"]
    assert a.end(claim) == "late"


def test_a_word_after_the_standstill_is_not_counted_into_the_future(here: MasterHere) -> None:
    a = here.agent("a")
    running(here, a)
    here.keep()
    assert here.clock is not None
    here.clock.advance(300.0)
    a.beat()  # arrives before the keeper looks
    here.keep()
    presence = here.master.fleet.get(a.agent_id)
    assert presence is not None
    assert presence.heard_s == here.master.engine_clock.now_s()


def test_who_spoke_after_the_standstill_is_not_expected_later_for_it(here: MasterHere) -> None:
    a = here.agent("a")
    running(here, a)
    here.keep()
    assert here.clock is not None
    here.clock.advance(300.0)
    a.beat()  # arrives before the keeper looks
    here.keep()
    here.advance(OFFLINE_S + 0.5)
    assert here.web("get_agent", "a")["state"] == "offline"


def test_an_agent_that_comes_back_while_others_are_given_up_keeps_its_run(
    here: MasterHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SLICE", 1)
    a, b = here.agent("a"), here.agent("b")
    first, _ = running(here, a, lost_after=20.0)
    second, claim = running(here, b, lost_after=20.0)
    change = here.master.ledger.change

    def meanwhile(fn: Any) -> Any:
        result = change(fn)
        if here.states(first) == ["failed"]:
            b.beat()
        return result

    monkeypatch.setattr(here.master.ledger, "change", meanwhile)
    here.advance(21.0, step=1.0)
    assert (here.states(first), here.states(second)) == (["failed"], ["running"])
    assert b.end(claim) == "stored"


def test_small_lateness_of_the_loop_shifts_nothing(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    a.claim()
    here.keep()
    here.advance(BEGIN_LEASE_S + 0.5, step=1.2)
    assert here.states(task) == ["ready"]


# -- waits of runs -----------------------------------------------------------------------------------------------------


def test_what_waits_too_long_expires_and_never_runs(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"], expires=10.0)
    here.advance(9.8)
    assert here.states(task) == ["ready"]
    here.advance(0.6)
    assert here.states(task) == ["expired"]
    assert here.task(task)["state"] == "failed"
    assert a.claim() == []


def test_expires_0_never_expires_and_a_retry_does_not_either(here: MasterHere) -> None:
    here.agent("a")
    never = here.submit(targets=["a"], expires=0.0)
    task = here.submit(targets=["a"], expires=5.0)
    here.advance(6.0)
    here.web("retry_task", task["id"], "failed")
    here.advance(300.0, step=1.2)
    assert (here.states(never), here.states(task)) == (["ready"], ["ready"])


def test_an_expired_run_does_not_count_as_failed(here: MasterHere) -> None:
    a, _ = here.agent("a"), here.agent("b")
    task = here.submit(targets=["a", "b"], expires=5.0, fail_count=1)
    (claim,) = a.claim()
    a.begin(claim)
    here.advance(6.0)
    assert here.task(task)["reason"] is None
    assert here.states(task) == ["running", "expired"]
    a.end(claim)


def test_a_delayed_run_becomes_ready_at_its_time(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    (view,) = here.runs(task)
    due_s = here.master.engine_clock.now_s() + 30.0

    def delay(change: Change) -> None:  # no request can ask for a delay yet; the state is there already
        run = change.tx.get_run(view["id"])
        stored = change.task(task["id"])
        assert run is not None
        assert stored is not None
        delayed = evolve(run, state=RunState.DELAYED, due_engine_s=due_s, version=run.version + 1)
        change._settle(stored, [(run, delayed)], {})

    here.master.ledger.change(delay)
    here.advance(29.6)
    assert (here.states(task), a.claim()) == (["delayed"], [])
    here.advance(0.6)
    assert len(a.claim()) == 1


def test_agents_that_a_window_passed_over_are_woken_when_its_room_stays_unused(here: MasterHere) -> None:
    fleet = [here.agent(f"a{n}") for n in range(6)]
    parked = [gevent.spawn(agent.pull, 1, wait_s=30.0) for agent in fleet]
    while here.master.pulls.parked < len(fleet):
        here.web("list_agents", 1, None)
    here.submit(targets=[agent.name for agent in fleet], parallel=6)
    # Nothing was left out here: the window is as wide as the task.
    gevent.joinall(parked, timeout=10)
    assert all(len(call.value["runs"]) == 1 for call in parked)


def test_a_woken_agent_that_takes_nothing_does_not_keep_the_others_waiting(here: MasterHere) -> None:
    slow = [here.agent(f"slow{n}") for n in range(3)]
    quick = here.agent("quick")
    for agent in slow:  # they look once and go
        assert agent.claim() == []
    parked = gevent.spawn(quick.pull, 1, wait_s=30.0)
    for agent in slow:
        presence = here.master.fleet.get(agent.agent_id)
        assert presence is not None
        presence.agent = evolve(presence.agent, draining=True)
    while not here.master.pulls.parked:
        here.web("list_agents", 1, None)
    calls = [gevent.spawn(agent.pull, 1, wait_s=2.0) for agent in slow]
    while here.master.pulls.parked < 4:
        here.web("list_agents", 1, None)
    here.submit(targets=[*(agent.name for agent in slow), "quick"], parallel=1)
    here.advance(1.5)
    assert len(parked.get(timeout=10)["runs"]) == 1
    gevent.joinall(calls, timeout=10)


# -- trouble -----------------------------------------------------------------------------------------------------------


def test_what_a_failing_store_could_not_take_is_stored_in_a_later_round(
    here: MasterHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = here.agent("a")
    task, _ = running(here, a)

    def refuse(fn: object) -> None:
        raise StoreUnavailable("no space")

    with monkeypatch.context() as broken:
        broken.setattr(here.master.store, "write", refuse)
        assert here.clock is not None
        for _ in range(16):
            here.clock.advance(1.0)
            try:
                here.keep()
            except StoreUnavailable:
                pass
    assert here.runs(task)[0]["silent_since_ms"] is None
    here.keep()
    assert here.runs(task)[0]["silent_since_ms"] is not None
    a.beat()


def test_the_feed_is_trimmed_and_those_who_are_too_far_behind_are_told(tmp_path: Path) -> None:
    settings = Settings(feed_keep=5)
    with master_here(tmp_path / "m", manual=True, settings=settings) as here:
        here.agent("a")
        for _ in range(10):
            here.submit(targets=["a"])
        last = here.web("feed", -1, 0, 100)["last"]
        here.advance(11.0, step=1.0)
        assert here.web("feed", 1, 0, 100) == {"reset": True, "events": [], "last": last}
        assert len(here.web("feed", last - 3, 0, 100)["events"]) == 3
        assert here.web("feed", last + 10, 0, 100)["reset"]
