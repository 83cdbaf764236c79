"""Runs as agents drive them: claims, the begin barrier, windows, the stop rule, results. Time stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from common.config import Settings
from common.model import Agent, Ending, Leftover, Outcome, RunState
from master.lifecycle import Begin, Claim, Finish
from master.runs import SLICE
from tests.support.fake_agent import EXITED_0, FakeAgent, MasterHere, exited, master_here, spec_of

KILLED = Ending(outcome=Outcome.SIGNAL, signal="SIGTERM", killed_by_us=True)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[MasterHere]:
    with master_here(tmp_path / "m", manual=True) as here:
        yield here


def agents(here: MasterHere, number: int) -> list[FakeAgent]:
    return [here.agent(f"a{n}") for n in range(number)]


def names(number: int) -> list[str]:
    return [f"a{n}" for n in range(number)]


# -- claim, begin, end -------------------------------------------------------------------------------------------------


def test_a_claim_carries_the_spec_and_the_script_byte_for_byte(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    script = b"#!/bin/sh\r\n\xff\xfe\0 no final newline"
    here.submit(script, targets=["a0"], args=["x y"], env={"K": "v"}, timeout=7.0)
    (claim,) = a.claim()
    spec = spec_of(claim)
    assert claim["script"] == script
    assert (spec.args, spec.env, spec.timeout_s, spec.script_size) == (["x y"], {"K": "v"}, 7.0, len(script))


def test_a_large_script_is_fetched_in_pieces_by_its_holder_only(here: MasterHere) -> None:
    a, other = agents(here, 2)
    script = bytes(range(256)) * 2_000
    here.submit(script, targets=["a0"])
    (claim,) = a.claim()
    assert claim["script"] is None
    sha256 = spec_of(claim).script_sha256
    fetched = b""
    while len(fetched) < len(script):
        piece = a.call("blob", sha256, len(fetched))
        assert piece["size"] == len(script)
        fetched += piece["data"]
    assert fetched == script
    with pytest.raises(Exception, match="holds no run of that script"):
        other.call("blob", sha256, 0)


def test_more_scripts_than_a_message_holds_are_claimed_in_several(here: MasterHere) -> None:
    a = here.agent("a0", slots=64)
    for number in range(40):
        here.submit(b"x" * 60_000 + str(number).encode(), targets=["a0"])
    first = a.claim(64)
    second = a.claim(64)
    assert 0 < len(first) < 40
    assert len(first) + len(second) == 40
    assert len({claim["run_id"] for claim in first + second}) == 40


def test_what_no_message_to_an_agent_can_hold_is_refused_and_holds_up_nobody(tmp_path: Path) -> None:
    with master_here(tmp_path / "m", manual=True, settings=Settings(agent_message=40_000)) as here:
        a = here.agent("a0")
        large = here.submit(targets=["a0"], args=["x" * 50_000])
        small = here.submit(targets=["a0"])
        (claim,) = a.claim(4)
        assert claim["task_id"] == small["id"]
        (run,) = here.runs(large)
        assert (run["state"], run["outcome"]) == ("failed", "refused")
        assert "agent_message" in run["detail"]


def test_a_run_whose_time_is_over_is_not_claimed_however_late_the_keeper_is(here: MasterHere) -> None:
    a, *_ = agents(here, 3)
    late = here.submit(targets=["a0"], expires=10.0)
    shared = here.submit(count=3, expires=10.0)
    other = here.submit(targets=["a0"])
    assert here.clock is not None
    here.clock.advance(10.5)
    claims = a.claim(4)
    assert [claim["task_id"] for claim in claims] == [other["id"]]
    assert (here.states(late), here.states(shared)) == (["expired"], ["expired"] * 3)


def test_the_smallest_priority_then_the_oldest_goes_first(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    for name, priority in (("late", 9), ("first", 5), ("second", 5), ("urgent", 0)):
        here.submit(targets=["a0"], name=name, priority=priority)
    claims = a.claim(4)
    order = [here.web("get_task", claim["task_id"])["name"] for claim in claims]
    assert order == ["urgent", "first", "second", "late"]


def test_begin_asked_again_gives_the_same_fence_and_fences_grow(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    here.submit(targets=["a0"])
    here.submit(targets=["a0"])
    one, two = a.claim(2)
    (first,) = a.begin(one)
    assert a.begin(one) == [first]
    (second,) = a.begin(two)
    assert second["fence"] > first["fence"]


def test_nobody_begins_with_a_foreign_or_a_wrong_lease(here: MasterHere) -> None:
    a, b = agents(here, 2)
    here.submit(targets=["a0"])
    (claim,) = a.claim()
    for agent, lease in ((b, claim["lease"]), (a, "0" * 16)):
        (answer,) = agent.begin({**claim, "lease": lease})
        assert not answer["ok"]
        assert answer["why"]
    (answer,) = a.begin(claim)
    assert answer["ok"]


def test_a_begin_whose_answer_was_lost_ends_a_cancelled_run_when_it_is_asked_again(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    task = here.submit(targets=["a0"])
    (claim,) = a.claim()
    a.begin(claim)  # the answer never comes to the agent
    here.web("cancel_task", task["id"])
    (answer,) = a.begin(claim)
    assert not answer["ok"]
    (run,) = here.runs(task)
    assert (run["state"], run["outcome"]) == ("cancelled", "refused")
    assert here.task(task)["state"] == "cancelled"
    assert not a.begin(claim)[0]["ok"]


@pytest.mark.parametrize("change", ["cancel_task", "pause_task"])
def test_what_was_cancelled_or_paused_after_the_claim_does_not_begin(here: MasterHere, change: str) -> None:
    (a,) = agents(here, 1)
    task = here.submit(targets=["a0"])
    (claim,) = a.claim()
    here.web(change, task["id"])
    (answer,) = a.begin(claim)
    assert not answer["ok"]
    assert here.states(task) == ["cancelled" if change == "cancel_task" else "ready"]
    assert a.claim() == []


def test_a_released_run_goes_to_the_next_pull_under_another_lease_and_the_same_attempt(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    here.submit(targets=["a0"])
    (first,) = a.claim()
    a.release(first)
    (second,) = a.claim()
    assert second["lease"] != first["lease"]
    assert second["attempt"] == first["attempt"] == 1
    (answer,) = a.begin(first)
    assert not answer["ok"]


def test_a_claim_that_the_next_pull_does_not_name_goes_back_at_once(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    here.submit(targets=["a0"])
    (lost,) = a.claim()
    (again,) = a.pull(held={})["runs"]
    assert again["run_id"] == lost["run_id"]
    assert again["lease"] != lost["lease"]


def test_a_begun_run_that_the_next_pull_does_not_name_is_not_given_away(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    task = here.submit(targets=["a0"])
    (claim,) = a.claim()
    a.begin(claim)
    assert a.pull(held={})["runs"] == []
    assert here.states(task) == ["running"]


def test_an_answer_that_nobody_waits_for_gives_its_claims_back(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    task = here.submit(targets=["a0"])
    (claim,) = a.claim()
    here.master.dispatch.unroutable(a.agent_id, {"runs": [claim]})
    assert here.states(task) == ["ready"]


def test_work_claimed_for_a_peer_that_is_gone_goes_to_another_at_once(here: MasterHere) -> None:
    a, b = agents(here, 2)
    gone = gevent.spawn(a.pull, 1, wait_s=30.0)
    while not here.master.pulls.parked:
        here.web("list_agents", 1, None)
    a.client.stop()
    gone.join(10)
    while b.client.call("heartbeat", {"session": b.session, "held": []}, timeout_s=5.0)["register"]:
        pass  # by now the end of the other connection has come in, too
    here.submit(count=1)
    assert len(b.pull(1, wait_s=10.0)["runs"]) == 1


def test_a_parked_pull_is_answered_when_work_comes(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    waiting = gevent.spawn(a.pull, 1, wait_s=30.0)
    while not here.master.pulls.parked:
        here.web("list_agents", 1, None)
    here.submit(targets=["a0"])
    assert len(waiting.get(timeout=10)["runs"]) == 1


def test_a_superseded_pull_that_claims_gives_back(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    parked = gevent.spawn(a.pull, 1, wait_s=30.0)
    while not here.master.pulls.parked:
        here.web("list_agents", 1, None)
    newer = a.pull(1)
    assert newer["runs"] == []
    assert parked.get(timeout=10) == {"runs": [], "cancel": [], "stale": [], "register": False}
    task = here.submit(targets=["a0"])
    assert len(a.claim()) == 1
    assert here.states(task) == ["leased"]


def test_an_unknown_session_is_told_to_register(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    here.submit(targets=["a0"])
    session, a.session = a.session, "somebody else"
    assert a.pull() == {"runs": [], "cancel": [], "stale": [], "register": True}
    assert a.beat()["register"]
    a.session = session
    assert len(a.claim()) == 1


# -- windows -----------------------------------------------------------------------------------------------------------


def held(here: MasterHere, task: dict[str, object]) -> int:
    return sum(state in ("leased", "running") for state in here.states(task))


def test_a_window_is_exact_whatever_order_agents_come_in(here: MasterHere) -> None:
    fleet = agents(here, 6)
    task = here.submit(targets=names(6), parallel=2)
    claims = [(agent, claim) for agent in fleet for claim in agent.claim()]
    assert len(claims) == 2
    done = 0
    while claims:
        agent, claim = claims.pop(0)
        agent.begin(claim)
        assert held(here, task) <= 2
        agent.end(claim)
        done += 1
        for other in fleet:
            claims += [(other, fresh) for fresh in other.claim()]
            assert held(here, task) <= 2
    assert done == 6
    assert here.task(task)["state"] == "succeeded"


def test_a_window_does_not_wait_for_an_absent_host(here: MasterHere) -> None:
    away, b, c = agents(here, 3)
    task = here.submit(targets=names(3), parallel=1)
    b.run_one()
    c.run_one()
    assert here.states(task) == ["ready", "succeeded", "succeeded"]
    assert len(away.claim()) == 1


def test_a_release_and_a_refused_begin_make_room(here: MasterHere) -> None:
    a, b = agents(here, 2)
    here.submit(targets=names(2), parallel=1)
    (claim,) = a.claim()
    assert b.claim() == []
    a.release(claim)
    (claim,) = b.claim()
    assert a.claim() == []


def test_what_a_pause_held_back_is_offered_again(here: MasterHere) -> None:
    a, b = agents(here, 2)
    task = here.submit(targets=names(2))
    here.web("pause_task", task["id"])
    assert a.claim() == b.claim() == []
    assert "paused" in here.task(task)["waiting_because"]
    here.web("resume_task", task["id"])
    assert len(a.claim()) == len(b.claim()) == 1


def test_any_n_of_the_candidates_never_two_on_one(here: MasterHere) -> None:
    a, b, c = agents(here, 3)
    task = here.submit(count=2)
    assert len(a.claim(4)) == 1
    assert a.claim(4) == []
    assert len(b.claim(4)) == 1
    assert c.claim(4) == []
    assert here.states(task) == ["leased", "leased"]


def test_count_among_targets_goes_to_them_only(here: MasterHere) -> None:
    a, b, c = agents(here, 3)
    here.submit(targets=["a1", "a2"], count=1)
    assert a.claim() == []
    assert len(c.claim()) == 1
    assert b.claim() == []


def test_a_queue_goes_to_those_that_serve_it(here: MasterHere) -> None:
    builder = here.agent("builder", queues=["builds"])
    other = here.agent("other", queues=["default"])
    here.submit(count=1, queue="builds")
    assert other.claim() == []
    assert len(builder.claim()) == 1


def test_closed_tasks_at_the_head_hold_nobody_up_for_long(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    calls = [gevent.spawn(lambda: here.web("pause_task", here.submit(targets=["a0"])["id"])) for _ in range(320)]
    gevent.joinall(calls, raise_error=True)
    behind = here.submit(targets=["a0"])
    (claim,) = a.claim()
    assert claim["task_id"] == behind["id"]


# -- the stop rule -----------------------------------------------------------------------------------------------------


def test_stop_at_the_first_failure(here: MasterHere) -> None:
    fleet = agents(here, 5)
    task = here.submit(targets=names(5), parallel=1, fail_count=1)
    fleet[0].run_one(exited(1))
    assert [agent.claim() for agent in fleet[1:]] == [[], [], [], []]
    view = here.task(task)
    assert view["counts"] == {"failed": 1, "skipped": 4}
    assert view["state"] == "failed"
    assert view["reason"]["code"] == "fail_count"
    assert view["reason"]["run_id"] == here.runs(task)[0]["id"]


def test_fail_count_stops_at_its_number_not_before(here: MasterHere) -> None:
    fleet = agents(here, 4)
    task = here.submit(targets=names(4), parallel=1, fail_count=2)
    fleet[0].run_one(exited(1))
    assert here.task(task)["reason"] is None
    fleet[1].run_one(EXITED_0)
    fleet[2].run_one(exited(1))
    assert here.task(task)["counts"] == {"failed": 2, "succeeded": 1, "skipped": 1}


@pytest.mark.parametrize(("rate", "stops_after"), [(0.5, 3), (0.49, 2), (0.0, 1)])
def test_fail_rate_stops_only_when_exceeded(here: MasterHere, rate: float, stops_after: int) -> None:
    fleet = agents(here, 4)
    task = here.submit(targets=names(4), fail_rate=rate)
    for number, agent in enumerate(fleet, 1):
        agent.run_one(exited(1))
        if number == stops_after:
            break
        assert here.task(task)["reason"] is None
    view = here.task(task)
    assert view["reason"]["code"] == "fail_rate"
    assert view["counts"] == {"failed": stops_after, "skipped": 4 - stops_after}


def test_runs_under_way_go_on_and_leased_ones_do_not_begin(here: MasterHere) -> None:
    a, b, c = agents(here, 3)
    task = here.submit(targets=names(3), fail_count=1)
    (claim_a,), (claim_b,), (claim_c,) = a.claim(), b.claim(), c.claim()
    a.begin(claim_a)
    b.begin(claim_b)
    a.end(claim_a, exited(1))
    (refused,) = c.begin(claim_c)
    assert not refused["ok"]
    assert b.beat()["cancel"] == []
    assert b.end(claim_b) == "stored"
    assert here.states(task) == ["failed", "succeeded", "skipped"]


def test_kill_on_stop_is_told_at_once_through_a_parked_pull(here: MasterHere) -> None:
    a, b = agents(here, 2)
    task = here.submit(targets=names(2), fail_count=1, on_stop="kill")
    (claim_a,), (claim_b,) = a.claim(), b.claim()
    a.begin(claim_a)
    b.begin(claim_b)
    parked = gevent.spawn(b.pull, 1, wait_s=30.0)
    while not here.master.pulls.parked:
        here.web("list_agents", 1, None)
    a.end(claim_a, exited(1))
    told = parked.get(timeout=10)
    assert told["cancel"] == [[claim_b["run_id"], "stop_rule"]]
    assert b.pull()["cancel"] == []
    assert b.beat()["cancel"] == [[claim_b["run_id"], "stop_rule"]]
    b.end(claim_b, KILLED)
    assert here.states(task) == ["failed", "cancelled"]


def test_it_fires_once(here: MasterHere) -> None:
    a, b, _c = agents(here, 3)
    task = here.submit(targets=names(3), fail_count=1)
    (claim_a,), (claim_b,) = a.claim(), b.claim()
    a.begin(claim_a)
    b.begin(claim_b)
    a.end(claim_a, exited(1))
    reason = here.task(task)["reason"]
    b.end(claim_b, exited(1))
    assert here.task(task)["reason"] == reason
    assert here.states(task) == ["failed", "failed", "skipped"]


def test_results_of_one_call_are_judged_one_by_one(here: MasterHere) -> None:
    a = here.agent("a0", slots=8)
    tasks = [here.submit(targets=["a0"]) for _ in range(3)]
    claims = a.claim(3)
    a.begin(*claims)
    stale = {**claims[1], "lease": "0" * 16}
    taken = a.ends([(claims[0], EXITED_0), (stale, EXITED_0), (claims[2], exited(4))])
    assert [answer["taken"] for answer in taken] == ["stored", "late", "stored"]
    assert [here.states(task) for task in tasks] == [["succeeded"], ["running"], ["failed"]]


# -- results -----------------------------------------------------------------------------------------------------------


def test_a_result_told_twice_counts_once(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    task = here.submit(targets=["a0"])
    claim = a.run_one(exited(3))
    assert a.end(claim, exited(3)) == "repeat"
    assert here.runs(task)[0]["exit_code"] == 3
    assert len(here.web("list_attempts", claim["run_id"])["items"]) == 1


def test_another_content_for_a_finished_attempt_is_kept_beside_it(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    task = here.submit(targets=["a0"])
    claim = a.run_one(exited(3))
    assert a.end(claim, EXITED_0) == "late"
    assert a.end(claim, EXITED_0) == "late"
    (run,) = here.runs(task)
    assert (run["state"], run["exit_code"]) == ("failed", 3)
    assert here.web("get_run", run["id"])["late"]
    attempts = here.web("list_attempts", run["id"])["items"]
    assert [(attempt["late"], attempt["exit_code"]) for attempt in attempts] == [(False, 3), (True, 0)]


def test_an_old_attempts_result_changes_nothing(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    task = here.submit(targets=["a0"])
    old = a.run_one(exited(1))
    here.web("retry_task", task["id"], "failed")
    (fresh,) = a.claim()
    assert fresh["attempt"] == 2
    a.begin(fresh)
    assert a.end(old, exited(1)) == "repeat"
    assert a.end(old, EXITED_0) == "late"
    assert here.states(task) == ["running"]
    assert a.end(fresh) == "stored"
    assert here.states(task) == ["succeeded"]


def test_another_agents_result_is_refused(here: MasterHere) -> None:
    a, b = agents(here, 2)
    task = here.submit(targets=["a0"])
    (claim,) = a.claim()
    a.begin(claim)
    assert b.end(claim, exited(9)) == "late"
    assert here.states(task) == ["running"]
    assert here.web("list_attempts", claim["run_id"])["items"][0]["exit_code"] is None


def test_a_result_of_a_run_nobody_knows_is_forgotten_by_its_agent(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    claim = {"run_id": "01890000-0000-7000-8000-000000000000", "attempt": 1, "lease": "x"}
    assert a.end(claim) == "late"


def test_a_cancelled_run_that_ends_by_our_signal_is_cancelled_and_by_itself_is_what_it_is(here: MasterHere) -> None:
    a, b = agents(here, 2)
    task = here.submit(targets=names(2))
    (claim_a,), (claim_b,) = a.claim(), b.claim()
    a.begin(claim_a)
    b.begin(claim_b)
    here.web("cancel_task", task["id"])
    assert a.end(claim_a, exited(0, killed_by_us=True)) == "stored"
    assert b.end(claim_b, EXITED_0) == "stored"
    assert here.states(task) == ["cancelled", "succeeded"]
    assert here.task(task)["state"] == "cancelled"


def test_what_an_agent_says_for_people_is_cut_to_what_a_view_can_carry(here: MasterHere) -> None:
    (a,) = agents(here, 1)
    here.submit(targets=["a0"])
    (claim,) = a.claim()
    a.begin(claim)
    ending = exited(
        1, detail="d" * 50_000, leftovers=[Leftover(pid=1, command="c" * 3_000)] * 200, steps=[(1, "s" * 900)] * 90
    )
    assert a.end(claim, ending) == "stored"
    assert a.end(claim, ending) == "repeat"
    run = here.web("get_run", claim["run_id"])
    assert (len(run["detail"]), len(run["leftovers"]), len(run["leftovers"][0]["command"])) == (2_000, 100, 300)


# -- many at once ------------------------------------------------------------------------------------------------------


def many(here: MasterHere, number: int, **request: object) -> dict[str, object]:
    """A task of so many runs, most of them to agents that never come."""
    stored = [Agent(id=f"id-{n:05}", name=f"a{n}", hostname="h", enrolled_at_ms=0) for n in range(number)]

    def add(tx: object) -> None:
        for agent in stored:
            tx.save_agent(agent, expect=None)  # type: ignore[attr-defined]

    here.master.store.write(add)
    for agent in stored:
        here.master.fleet.put(agent, now_s=0.0)
    return here.submit(targets=names(number), **request)  # type: ignore[no-any-return]


def test_a_large_task_is_cancelled_in_slices(here: MasterHere) -> None:
    task = many(here, 2 * SLICE + 7)
    assert here.web("cancel_task", task["id"])["counts"] == {"cancelled": 2 * SLICE + 7}
    assert here.task(task)["state"] == "cancelled"


def test_a_large_task_is_stopped_in_slices_and_none_of_them_starts_meanwhile(here: MasterHere) -> None:
    task = many(here, 3 * SLICE, fail_count=1)
    first = here.runs(task)[0]
    store = here.master.store
    run = store.read(lambda tx: tx.get_run(first["id"]))
    assert run is not None
    a = here.agent("real")
    agent_id = run.agent_id or ""
    # Let the first run be held and fail, as its agent would do it.
    here.master.ledger.change(lambda change: change.move(change.tx.get_run(run.id), Claim(agent_id, "lease")))
    here.master.ledger.change(lambda change: change.move(change.tx.get_run(run.id), Begin("lease", 1)))
    here.master.ledger.change(lambda change: change.move(change.tx.get_run(run.id), Finish("lease", exited(1))))
    counts = here.task(task, wait_s=10.0)["counts"]
    assert counts == {"failed": 1, "skipped": 3 * SLICE - 1}
    a.close()


def test_a_retry_in_slices_starts_nothing_before_its_last_one(here: MasterHere) -> None:
    task = many(here, SLICE + 5, fail_count=3)
    here.web("cancel_task", task["id"])
    steps: list[tuple[bool, int]] = []
    sweep_once = here.master.ledger._sweep_once

    def watched(task_id: str, cursor: str | None) -> object:
        stored = here.master.store.read(lambda tx: tx.get_task(task_id))
        assert stored is not None
        steps.append((stored.stopped, stored.counts.get(RunState.READY, 0)))
        return sweep_once(task_id, cursor)

    here.master.ledger._sweep_once = watched  # type: ignore[method-assign, assignment]
    view = here.web("retry_task", task["id"], "failed")
    assert steps == [(True, SLICE), (True, SLICE)] or steps[0] == (True, SLICE)
    assert view["counts"] == {"ready": SLICE + 5}
    assert view["reason"] is None
    assert view["state"] == "waiting"
