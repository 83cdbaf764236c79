from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model import AgentState, OnStop, Reason, Run, RunKind, RunState, Task, TaskState, evolve
from master import matching
from master.matching import (
    Standing,
    Verdict,
    Waiting,
    agent_verdict,
    begin_verdict,
    run_verdicts,
    task_verdict,
    waiting,
    waiting_because,
)
from master.sentences import REASONS, VERDICTS, reason

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
        ({}, "could_begin"),
        ({"parallel": 3, "counts": {"ready": 1, "leased": 1, "running": 1}}, "could_begin"),
        ({"parallel": 2, "counts": {"ready": 1, "leased": 1, "running": 1}}, "window_full"),
        ({"paused": True}, "task_paused"),
        ({"stopped": True, "reason": Reason(code="fail_count", detail="1 of 3 runs failed")}, "stopped"),
        ({"cancel_requested": True, "paused": True}, "cancelled"),
        ({"state": TaskState.SUCCEEDED}, "task_final"),
    ],
)
def test_what_a_task_allows(changes: dict[str, Any], code: str) -> None:
    verdict = task_verdict(evolve(TASK, **changes))
    assert (verdict.code, verdict.may) == (code, code == "could_begin")
    assert verdict.text


def test_a_full_window_does_not_hold_back_a_begin_since_the_run_is_counted_in_it() -> None:
    full = evolve(TASK, parallel=1, counts={"ready": 2, "leased": 1})
    assert not task_verdict(full).may
    assert begin_verdict(full).may
    assert not begin_verdict(evolve(full, paused=True)).may


@pytest.mark.parametrize(
    ("changes", "addressed", "code"),
    [
        ({}, True, "could_begin"),
        ({"state": AgentState.OFFLINE}, True, "agent_offline"),
        ({"state": AgentState.DRAINING}, True, "agent_draining"),
        ({"state": AgentState.CONFLICT}, True, "agent_conflict"),
        ({"held": 2}, True, "agent_busy"),
        ({"held": 5}, True, "agent_busy"),
        ({"queues": frozenset({"builds"})}, False, "queue_not_served"),
        ({"queues": frozenset({"builds"})}, True, "could_begin"),
        ({"queues": frozenset({"default"})}, False, "could_begin"),
    ],
)
def test_what_an_agent_can_take(changes: dict[str, Any], addressed: bool, code: str) -> None:
    verdict = agent_verdict(standing(**changes), "default", addressed=addressed)
    assert (verdict.code, verdict.may) == (code, code == "could_begin")


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
    assert codes(RUN, TASK) == ["agent_gone"]


def because(task: Task, verdicts: list[list[Verdict]]) -> str | None:
    return waiting_because(waiting(task, verdicts))


def test_waiting_because_is_one_sentence_and_nothing_for_a_task_that_goes_on() -> None:
    assert because(TASK, [run_verdicts(RUN, TASK, [FREE])]) is None
    assert because(evolve(TASK, state=TaskState.FAILED), []) is None
    offline = run_verdicts(RUN, TASK, [standing(state=AgentState.OFFLINE)])
    assert because(TASK, [offline, offline]) == "web-1 is offline"
    paused = evolve(TASK, paused=True)
    assert "paused" in (because(paused, []) or "")
    full = evolve(TASK, parallel=1, counts={"ready": 2, "running": 1})
    assert "parallel=1" in (because(full, [offline]) or "")
    assert because(evolve(full, counts={"running": 1}), []) is None


def test_many_different_reasons_are_shortened() -> None:
    away = [run_verdicts(RUN, TASK, [standing(name=f"h{n}", state=AgentState.OFFLINE)]) for n in range(9)]
    text = because(TASK, away) or ""
    assert text.endswith("and 6 more")


def test_what_a_task_waits_for_is_told_as_codes_too() -> None:
    away = [run_verdicts(RUN, TASK, [standing(name=f"h{n}", state=AgentState.OFFLINE)]) for n in (1, 1, 2, 3, 4, 5)]
    assert waiting(TASK, away) == [
        Waiting("agent_offline", {"agent": "h1"}, 2),
        Waiting("agent_offline", {"agent": "h2"}, 1),
        Waiting("agent_offline", {"agent": "h3"}, 1),
        Waiting("more", {"number": 2}, 2),
    ]
    full = evolve(TASK, parallel=1, counts={"ready": 2, "running": 1})
    assert waiting(full, away) == [Waiting("window_full", {"held": 1, "parallel": 1}, 2)]


def test_a_stopped_task_passes_its_reason_on() -> None:
    why = reason("fail_rate", {"failed": 2, "total": 3, "limit": 0.5, "agent": "web-1"}, run_id="r")
    verdict = task_verdict(evolve(TASK, stopped=True, reason=why))
    assert verdict.args == {**why.args, "reason": "fail_rate", "detail": why.detail}
    assert verdict.text == "the task was stopped: 2 of 3 runs failed; the limit is fail_rate=0.5"
    assert task_verdict(evolve(TASK, stopped=True)).text == "the task was stopped: its stop rule fired"


names = st.text(max_size=20)  # also braces, which are no places to fill
standings = st.builds(
    Standing,
    agent_id=st.just("a"),
    name=names,
    state=st.sampled_from(AgentState),
    slots=st.integers(1, 3),
    held=st.integers(0, 3),
    queues=st.none() | st.just(frozenset({"default"})) | st.just(frozenset[str]()),
)
tasks = st.builds(
    lambda **changes: evolve(TASK, **changes),
    state=st.sampled_from(TaskState),
    paused=st.booleans(),
    stopped=st.booleans(),
    cancel_requested=st.booleans(),
    parallel=st.integers(0, 2),
    counts=st.dictionaries(st.sampled_from([state.value for state in RunState]), st.integers(0, 3)),
    queue=names,
    reason=st.none() | st.builds(Reason, code=st.sampled_from(sorted(REASONS)), detail=names),
)
runs = st.builds(
    lambda **changes: evolve(RUN, **changes),
    state=st.sampled_from(RunState),
    addressed=st.booleans(),
    silent_since_ms=st.none() | st.just(5),
    cancel_reason=st.none() | st.just("request"),
)


@given(runs, tasks, st.lists(standings, max_size=4))
def test_every_verdict_has_a_sentence_that_its_parameters_fill(run: Run, task: Task, agents: list[Standing]) -> None:
    verdicts = run_verdicts(run, task, agents)
    every = [*verdicts, task_verdict(task), begin_verdict(task), *waiting(task, [verdicts])]
    every += [agent_verdict(agent, task.queue, addressed=run.addressed) for agent in agents]
    for told in every:
        assert told.code in VERDICTS and told.text
        assert all(type(value) in (str, int, float) for value in told.args.values())
    assert bool(waiting_because(waiting(task, [verdicts]))) is bool(waiting(task, [verdicts]))


def test_the_table_of_sentences_has_the_codes_that_can_be_told_and_no_others() -> None:
    told = {
        call.args[place].value
        for call in ast.walk(ast.parse(Path(matching.__file__).read_text("utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("Verdict", "Waiting")
        for place in [1 if call.func.id == "Verdict" else 0]
        if isinstance(call.args[place], ast.Constant)
    }
    assert told == set(VERDICTS)
