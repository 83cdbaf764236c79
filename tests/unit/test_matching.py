from __future__ import annotations

from typing import Any

import pytest

from common.model import AgentState, OnStop, Reason, Run, RunKind, RunState, Task, TaskState, evolve
from master.matching import (
    Standing,
    agent_verdict,
    begin_verdict,
    run_verdicts,
    task_verdict,
    waiting_because,
)

TASK = Task(
    id="t", name="t", seq=1, state=TaskState.RUNNING, counts={"ready": 3}, total=3, priority=1, parallel=0,
    fail_count=-1, fail_rate=None, on_stop=OnStop.FINISH, queue="default", count=None, lost_after_s=120.0,
)  # fmt: skip
RUN = Run(
    id="r", task_id="t", kind=RunKind.SCRIPT, state=RunState.READY, seq=1, priority=1, agent_id="a", addressed=True
)
FREE = Standing(agent_id="a", name="web-1", state=AgentState.ONLINE, slots=2, held=0, queues=None)


def standing(**changes: Any) -> Standing:
    fields = {name: getattr(FREE, name) for name in Standing.__dataclass_fields__}
    return Standing(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "may"),
        ({"parallel": 3, "counts": {"ready": 1, "leased": 1, "running": 1}}, "may"),
        ({"parallel": 2, "counts": {"ready": 1, "leased": 1, "running": 1}}, "window_full"),
        ({"paused": True}, "task_paused"),
        ({"stopped": True, "reason": Reason(code="fail_count", detail="1 of 3 runs failed")}, "stopped"),
        ({"cancel_requested": True, "paused": True}, "cancelled"),
        ({"state": TaskState.SUCCEEDED}, "final"),
    ],
)
def test_what_a_task_allows(changes: dict[str, Any], code: str) -> None:
    verdict = task_verdict(evolve(TASK, **changes))
    assert (verdict.code, verdict.may) == (code, code == "may")
    assert verdict.text


def test_a_full_window_does_not_hold_back_a_begin_since_the_run_is_counted_in_it() -> None:
    full = evolve(TASK, parallel=1, counts={"ready": 2, "leased": 1})
    assert not task_verdict(full).may
    assert begin_verdict(full).may
    assert not begin_verdict(evolve(full, paused=True)).may


@pytest.mark.parametrize(
    ("changes", "addressed", "code"),
    [
        ({}, True, "may"),
        ({"state": AgentState.OFFLINE}, True, "agent_offline"),
        ({"state": AgentState.DRAINING}, True, "agent_draining"),
        ({"state": AgentState.CONFLICT}, True, "agent_conflict"),
        ({"held": 2}, True, "agent_busy"),
        ({"held": 5}, True, "agent_busy"),
        ({"queues": frozenset({"builds"})}, False, "queue_not_served"),
        ({"queues": frozenset({"builds"})}, True, "may"),
        ({"queues": frozenset({"default"})}, False, "may"),
    ],
)
def test_what_an_agent_can_take(changes: dict[str, Any], addressed: bool, code: str) -> None:
    verdict = agent_verdict(standing(**changes), "default", addressed=addressed)
    assert (verdict.code, verdict.may) == (code, code == "may")


def codes(run: Run, task: Task, *agents: Standing) -> list[str]:
    return [verdict.code for verdict in run_verdicts(run, task, agents)]


def test_a_run_that_nothing_holds_has_one_verdict_that_says_so() -> None:
    (verdict,) = run_verdicts(RUN, TASK, [FREE])
    assert verdict.may


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"state": RunState.DELAYED}, "delayed"),
        ({"state": RunState.LEASED}, "leased_not_begun"),
        ({"state": RunState.RUNNING}, "running"),
        ({"state": RunState.RUNNING, "silent_since_ms": 5}, "agent_silent"),
        ({"state": RunState.RUNNING, "cancel_reason": "request"}, "cancelling"),
        ({"state": RunState.SKIPPED}, "final"),
    ],
)
def test_a_run_that_is_not_ready_says_where_it_is(changes: dict[str, Any], code: str) -> None:
    assert codes(evolve(RUN, **changes), TASK, FREE) == [code]


def test_all_reasons_are_told_the_tasks_first() -> None:
    paused = evolve(TASK, paused=True)
    assert codes(RUN, paused, standing(state=AgentState.OFFLINE)) == ["task_paused", "agent_offline"]


def test_a_run_for_anybody_waits_only_when_nobody_can_take_it() -> None:
    anybody = evolve(RUN, agent_id=None, addressed=False)
    away = standing(state=AgentState.OFFLINE)
    assert codes(anybody, TASK, away, FREE) == ["may"]
    assert codes(anybody, TASK, away, standing(held=2)) == ["agent_busy"]
    assert codes(anybody, TASK, away, away)[0] == "no_candidate_online"
    assert codes(anybody, TASK) == ["no_candidate"]


def test_waiting_because_is_one_sentence_and_nothing_for_a_task_that_goes_on() -> None:
    assert waiting_because(TASK, [run_verdicts(RUN, TASK, [FREE])]) is None
    assert waiting_because(evolve(TASK, state=TaskState.FAILED), []) is None
    offline = run_verdicts(RUN, TASK, [standing(state=AgentState.OFFLINE)])
    assert waiting_because(TASK, [offline, offline]) == "web-1 is offline"
    paused = evolve(TASK, paused=True)
    assert "paused" in (waiting_because(paused, []) or "")
    full = evolve(TASK, parallel=1, counts={"ready": 2, "running": 1})
    assert "parallel=1" in (waiting_because(full, [offline]) or "")
    assert waiting_because(evolve(full, counts={"running": 1}), []) is None


def test_many_different_reasons_are_shortened() -> None:
    away = [run_verdicts(RUN, TASK, [standing(name=f"h{n}", state=AgentState.OFFLINE)]) for n in range(9)]
    text = waiting_because(TASK, away) or ""
    assert text.endswith("and 6 more")
