"""What the master says as codes with parameters: why something waits, why a task stopped, what befell an attempt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model import Course, Ending, Outcome, Reason, Run, RunKind, RunState, evolve
from common.wire import pack, unpack
from master import sentences
from master.lifecycle import SILENCES_MOST, Cancel, Finish, Heard, LeaseEnd, Moment, Reopen, Silent, step
from master.preview import plan
from master.runs import former_attempt
from master.views import attempt_view, current_attempt
from tests.support.fake_agent import MasterHere, exited, master_here

RUNNING = Run(
    id="r", task_id="t", kind=RunKind.SCRIPT, state=RunState.RUNNING, seq=1, priority=1, agent_id="a", addressed=True,
    lease="l", fence=1, claimed_at_ms=1, started_at_ms=2,
)  # fmt: skip
EXITED = Ending(outcome=Outcome.EXIT, exit_code=0)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[MasterHere]:
    with master_here(tmp_path / "m", manual=True) as started:
        yield started


def at(wall_ms: int) -> Moment:
    return Moment(engine_s=wall_ms / 1000, wall_ms=wall_ms)


# -- silences and the order to end -------------------------------------------------------------------------------------


def silences(run: Run) -> list[tuple[int | None, int | None]]:
    attempt = current_attempt(run)
    assert attempt is not None
    told = attempt_view(attempt, agent_of=lambda _: None)["silences"]
    return [(each["since_ms"], each["until_ms"]) for each in told]


def test_an_attempt_remembers_when_its_agent_was_silent() -> None:
    assert silences(RUNNING) == []
    run = step(RUNNING, Silent(since_ms=5), now=at(9))
    assert silences(run) == [(5, None)]
    run = step(run, Heard(), now=at(12))
    assert silences(run) == [(5, 12)] and run.silent_since_ms is None
    run = step(step(run, Silent(since_ms=20), now=at(25)), LeaseEnd(), now=at(40))
    assert silences(run) == [(5, 12), (20, 40)] and run.state is RunState.FAILED
    again = step(run, Reopen(), now=at(50))
    assert again.course is None
    former = former_attempt(run, again, now=at(50))
    assert former.course is not None and former.course.silences == [(5, 12), (20, 40)]


def test_a_silence_that_lasts_when_an_attempt_is_tried_again_ends_with_it() -> None:
    run = step(RUNNING, Silent(since_ms=5), now=at(9))
    again = step(
        run, Finish(lease="l", ending=evolve(EXITED, exit_code=1), retry_engine_s=60.0), now=at(30)
    )  # fmt: skip
    assert again.state is RunState.DELAYED and again.course is None
    former = former_attempt(run, again, now=at(30))
    assert former.course is not None and former.course.silences == [(5, 30)]


@given(st.integers(0, 60), st.booleans())
def test_of_many_silences_the_newest_are_kept(number: int, lasts: bool) -> None:
    run = RUNNING
    for n in range(number):
        run = step(step(run, Silent(since_ms=10 * n), now=at(10 * n + 1)), Heard(), now=at(10 * n + 5))
    every: list[tuple[int, int | None]] = [(10 * n, 10 * n + 5) for n in range(number)]
    if lasts:
        run = step(run, Silent(since_ms=9_000), now=at(9_001))
        every.append((9_000, None))
    assert silences(run) == every[-SILENCES_MOST:]
    assert run.course is None or unpack(Course, pack(run.course)) == run.course


def test_an_attempt_knows_when_and_why_it_was_asked_to_end() -> None:
    run = step(RUNNING, Cancel("stop_rule"), now=at(7))
    run = step(run, Cancel("request"), now=at(8))
    run = step(run, Finish(lease="l", ending=EXITED), now=at(9))
    attempt = current_attempt(run)
    assert attempt is not None
    view = attempt_view(attempt, agent_of=lambda _: None)
    assert (view["cancel_requested_at_ms"], view["cancel_reason"]) == (7, "stop_rule")


def test_an_agents_silence_is_told_in_the_attempts_also_after_a_retry(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    (claim,) = a.claim()
    a.begin(claim)
    heard_ms = here.web("get_agent", "a")["last_seen_at_ms"]

    def told() -> list[list[tuple[int, int | None]]]:
        found = here.web("list_attempts", claim["run_id"])["items"]
        return [[(each["since_ms"], each["until_ms"]) for each in attempt["silences"]] for attempt in found]

    here.advance(61.0)
    assert told() == [[(heard_ms, None)]]
    a.beat()
    gevent.idle()
    here.web("ready")
    [[(since_ms, until_ms)]] = told()
    assert since_ms == heard_ms and until_ms is not None and until_ms > heard_ms
    a.end(claim, exited(1))
    here.web("retry_task", task["id"], "failed")
    (claim,) = a.claim()
    a.begin(claim)
    assert told() == [[(since_ms, until_ms)], []]


# -- reasons -----------------------------------------------------------------------------------------------------------


def test_the_reason_of_a_stopped_task_names_run_agent_and_threshold(here: MasterHere) -> None:
    agents = [here.agent(name) for name in ("a", "b", "c")]
    task = here.submit(targets=["a", "b", "c"], fail_count=2)
    agents[0].run_one(exited(1))
    agents[1].run_one(exited(1))
    reason = here.task(task)["reason"]
    assert (reason["code"], reason["args"]) == ("fail_count", {"failed": 2, "total": 3, "limit": 2, "agent": "b"})
    assert reason["detail"] == "2 of 3 runs failed; the limit is fail_count=2"
    assert reason["run_id"] == next(run["id"] for run in here.runs(task) if run["agent"]["name"] == "b")


@pytest.mark.parametrize(("by", "args"), [(("ops",), {"by": "ops"}), ((), {})])
def test_the_reason_of_a_cancelled_task_says_who_did_it(
    here: MasterHere, by: tuple[str, ...], args: dict[str, Any]
) -> None:
    here.agent("a")
    task = here.submit(targets=["a"])
    reason = here.web("cancel_task", task["id"], *by)["reason"]
    assert reason == {"code": "cancelled", "args": args, "detail": "cancelled on request", "run_id": None}


def test_a_reason_stored_before_there_were_parameters_still_opens() -> None:
    old = msgspec.msgpack.encode({"code": "cancelled", "detail": "cancelled on request", "run_id": None})
    assert unpack(Reason, old) == sentences.reason("cancelled", {})


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_tasks_and_runs_say_what_they_wait_for_in_codes(here: MasterHere) -> None:
    a = here.agent("a")
    here.agent("b")
    task = here.submit(targets=["a", "b"])
    here.web("drain_agent", "a")
    view = here.task(task)
    assert view["waiting"] == [{"code": "agent_draining", "args": {"agent": "a"}, "count": 1}]
    assert view["waiting_because"] == "a is draining and takes nothing new"
    here.web("pause_task", task["id"])
    assert here.task(task)["waiting"] == [{"code": "task_paused", "args": {}, "count": 2}]
    run = here.runs(task)[0]
    expected = [{"code": "task_paused", "args": {}}, {"code": "agent_draining", "args": {"agent": "a"}}]
    assert run["waiting"] == expected
    told = here.web("explain_run", run["id"])
    assert [{"code": each["code"], "args": each["args"]} for each in told["verdicts"]] == expected
    here.web("resume_task", task["id"])
    here.web("resume_agent", "a")
    a.run_one()
    assert here.runs(task)[0]["waiting"] == [] and here.runs(task)[0]["waiting_because"] is None


def test_a_run_tells_the_hash_of_its_output_once_it_has_ended(here: MasterHere) -> None:
    a = here.agent("a")
    task = here.submit(targets=["a"])
    (claim,) = a.claim()
    a.begin(claim)
    a.write(claim, b"out")
    assert here.runs(task)[0]["output_sha256"] is None
    a.end(claim, exited(0, output_bytes=3))
    (group,) = here.web("list_groups", task["id"])["items"]
    assert here.runs(task)[0]["output_sha256"] == group["output_sha256"] is not None


# -- previews ----------------------------------------------------------------------------------------------------------

SUMMARY = {
    "total": 12, "addressed": True, "candidates": 12, "able": 11, "offline": 0, "draining": 0, "conflict": 0, "busy": 0,
    "parallel": 0, "fail_count": -1, "fail_rate": None, "on_stop": "finish", "expires": 86400.0, "lost_after": 120.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "12 hosts"),
        (
            {"parallel": 3, "fail_count": 2, "offline": 1},
            "12 hosts, 3 at a time, stops after 2 failures; 1 host is offline and will run it when back, for 24 h",
        ),
        ({"total": 1, "parallel": 1, "fail_count": 1}, "1 host, stops after 1 failure"),
        (
            {"fail_count": 1, "fail_rate": 0.25, "on_stop": "kill"},
            "12 hosts, stops after 1 failure or when more than 25% have failed and ends what still runs",
        ),
        ({"offline": 2, "expires": 0.0}, "12 hosts; 2 hosts are offline and will run it when back"),
        (
            {"draining": 1, "expires": 172800.0},
            "12 hosts; 1 host is draining and will run it when resumed, for 2 d",
        ),
        (
            {"draining": 2, "busy": 2, "expires": 0.0, "addressed": False},
            "12 runs on any of 12 hosts; 2 hosts are draining; 2 hosts are busy",
        ),
        (
            {"busy": 2},
            "12 hosts; 2 hosts are busy and will run it as soon as there is room",
        ),
        (
            {"conflict": 1, "expires": 5400.0},
            "12 hosts; 1 host is used by two daemons at once and will run it when one of them is stopped, for 90 min",
        ),
        ({"total": 3, "addressed": False, "offline": 1}, "3 runs on any of 12 hosts; 1 host is offline"),
    ],
)  # fmt: skip
def test_a_plan_is_said_in_words(changes: dict[str, Any], text: str) -> None:
    assert plan({**SUMMARY, **changes}) == text


def test_a_preview_has_numbers_and_each_targets_verdict_as_a_code(here: MasterHere) -> None:
    here.agent("a")
    here.agent("b")
    here.web("drain_agent", "b")
    preview = here.web("preview_task", {"script": b"true", "targets": ["b", "a"], "parallel": 1, "expires": 60.0})
    assert preview["summary"] == {
        **SUMMARY, "total": 2, "candidates": 2, "able": 1, "draining": 1, "parallel": 1, "expires": 60.0
    }  # fmt: skip
    assert [(each["name"], each["code"], each["args"]) for each in preview["targets"]] == [
        ("a", "could_begin", {}), ("b", "agent_draining", {"agent": "b"}),
    ]  # fmt: skip
    assert preview["plan"] == plan(preview["summary"])
