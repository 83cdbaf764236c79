"""The state machine of a run, for any events in any order: what the table promises holds, and nothing else happens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import NotAllowed, StaleLease
from common.model import (
    FINAL_STATES,
    HELD_STATES,
    Ending,
    OnStop,
    Outcome,
    Run,
    RunKind,
    RunState,
    Task,
    TaskState,
    evolve,
)
from master.lifecycle import (
    TABLE,
    Begin,
    Bury,
    Cancel,
    Claim,
    Due,
    Event,
    Expire,
    Finish,
    Heard,
    Kick,
    LeaseEnd,
    Moment,
    Release,
    Reopen,
    Silent,
    Skip,
    move_counts,
    room,
    step,
    stop_rule,
    task_state,
)

NOW = Moment(engine_s=50.0, wall_ms=1_000)
LEASES = st.sampled_from(["l1", "l2"])
ENDINGS = st.builds(
    Ending,
    outcome=st.sampled_from(Outcome),
    exit_code=st.sampled_from([0, 1, None]),
    killed_by_us=st.booleans(),
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Claim, agent_id=st.sampled_from(["a", "b"]), lease=LEASES),
    st.builds(Begin, lease=LEASES, fence=st.integers(1, 9)),
    st.builds(Release, lease=LEASES),
    st.builds(Finish, lease=LEASES, ending=ENDINGS, retry_engine_s=st.sampled_from([None, 60.0])),
    st.builds(Silent, since_ms=st.integers(1, 9)),
    st.builds(Cancel, reason=st.sampled_from(["request", "stop_rule"])),
    st.builds(Bury, lease=LEASES),
    *[st.just(kind()) for kind in (Due, Kick, LeaseEnd, Heard, Skip, Expire, Reopen)],
)


def new_run(*, addressed: bool = True, kind: RunKind = RunKind.SCRIPT) -> Run:
    return Run(
        id="r", task_id="t", kind=kind, state=RunState.READY, seq=1, priority=1,
        agent_id="a" if addressed else None, addressed=addressed, expires_engine_s=99.0,
    )  # fmt: skip


@given(addressed=st.booleans(), kind=st.sampled_from(RunKind), events=st.lists(EVENTS, max_size=40))
def test_any_sequence_of_events_keeps_the_invariants(addressed: bool, kind: RunKind, events: list[Event]) -> None:
    run = new_run(addressed=addressed, kind=kind)
    for event in events:
        before = run
        try:
            run = step(run, event, now=NOW)
        except (NotAllowed, StaleLease):
            assert run is before
            continue
        if run is before:
            continue
        assert run.version == before.version + 1
        allowed = TABLE[before.state, type(event)][1]
        assert run.state in allowed
        assert (run.lease is not None) == (run.state in HELD_STATES)
        assert (run.due_engine_s is not None) == (run.state is RunState.DELAYED)
        assert (run.ended_at_ms is not None) == (run.state in FINAL_STATES)
        assert run.silent_since_ms is None or run.state is RunState.RUNNING
        assert run.attempt in (before.attempt, before.attempt + 1)
        if addressed:
            assert run.agent_id == "a"
        elif run.state in (RunState.READY, RunState.DELAYED):
            assert run.agent_id is None
        if kind is RunKind.SCRIPT:
            assert run.state is not RunState.BURIED


@given(events=st.lists(EVENTS, max_size=40))
def test_a_script_begins_at_most_once_under_each_number(events: list[Event]) -> None:
    run = new_run()
    begun: set[int] = set()
    for event in events:
        before = run
        try:
            run = step(run, event, now=NOW)
        except (NotAllowed, StaleLease):
            continue
        if run.state is RunState.RUNNING and before.state is RunState.LEASED:
            assert run.attempt not in begun
            begun.add(run.attempt)


@given(events=st.lists(EVENTS, max_size=20), lease=st.sampled_from(["wrong"]))
def test_a_wrong_lease_never_moves_anything(events: list[Event], lease: str) -> None:
    run = new_run()
    for event in events:
        for forged in (Begin(lease, 1), Release(lease), Finish(lease, Ending(outcome=Outcome.EXIT, exit_code=0))):
            with pytest.raises((NotAllowed, StaleLease)):
                step(run, forged, now=NOW)
        try:
            run = step(run, event, now=NOW)
        except (NotAllowed, StaleLease):
            continue


def running(**changes: Any) -> Run:
    run = step(new_run(), Claim("a", "l"), now=NOW)
    return evolve(step(run, Begin("l", 1), now=NOW), **changes)


@pytest.mark.parametrize(
    ("ending", "cancelled", "state"),
    [
        (Ending(outcome=Outcome.EXIT, exit_code=0), False, RunState.SUCCEEDED),
        (Ending(outcome=Outcome.EXIT, exit_code=1), False, RunState.FAILED),
        (Ending(outcome=Outcome.SIGNAL, signal="SIGKILL"), False, RunState.FAILED),
        (Ending(outcome=Outcome.TIMEOUT, exit_code=0, killed_by_us=True), False, RunState.FAILED),
        (Ending(outcome=Outcome.EXIT, exit_code=0, killed_by_us=True), False, RunState.FAILED),
        (Ending(outcome=Outcome.EXIT, exit_code=0, killed_by_us=True), True, RunState.CANCELLED),
        (Ending(outcome=Outcome.SIGNAL, signal="SIGTERM", killed_by_us=True), True, RunState.CANCELLED),
        (Ending(outcome=Outcome.EXIT, exit_code=0), True, RunState.SUCCEEDED),
        (Ending(outcome=Outcome.EXIT, exit_code=3), True, RunState.FAILED),
        (Ending(outcome=Outcome.INTERRUPTED), True, RunState.CANCELLED),
        (Ending(outcome=Outcome.SPAWN_ERROR), False, RunState.FAILED),
    ],
)
def test_how_an_attempt_ended_decides_the_state(ending: Ending, cancelled: bool, state: RunState) -> None:
    run = running(cancel_reason="request" if cancelled else None)
    assert step(run, Finish("l", ending), now=NOW).state is state


def test_a_retry_by_policy_waits_and_counts_and_keeps_its_agent() -> None:
    run = step(running(), Finish("l", Ending(outcome=Outcome.EXIT, exit_code=1), retry_engine_s=70.0), now=NOW)
    assert (run.state, run.attempt, run.due_engine_s, run.agent_id) == (RunState.DELAYED, 2, 70.0, "a")
    assert step(run, Skip(), now=NOW).state is RunState.FAILED


def test_a_claim_of_another_agents_run_is_refused() -> None:
    with pytest.raises(NotAllowed):
        step(new_run(), Claim("b", "l"), now=NOW)


TASK = Task(
    id="t", name="t", seq=1, state=TaskState.WAITING, counts={}, total=4, priority=1, parallel=0, fail_count=-1,
    fail_rate=None, on_stop=OnStop.FINISH, queue="default", count=None, lost_after_s=120.0,
)  # fmt: skip
COUNTS = st.dictionaries(st.sampled_from([state.value for state in RunState]), st.integers(1, 5), max_size=6)


@given(counts=COUNTS, started=st.booleans(), cancel=st.booleans())
def test_a_task_is_final_exactly_when_all_its_runs_are(counts: dict[str, int], started: bool, cancel: bool) -> None:
    total = sum(counts.values())
    task = evolve(TASK, counts=counts, total=total, started_at_ms=1 if started else None, cancel_requested=cancel)
    final = sum(number for state, number in counts.items() if RunState(state) in FINAL_STATES)
    state = task_state(task)
    assert (state in (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED)) == (final == total)
    if counts.get("running") or counts.get("leased"):
        assert state is TaskState.RUNNING
    if total and counts.get("succeeded") == total:
        assert state is TaskState.SUCCEEDED


@given(counts=COUNTS, before=st.sampled_from(RunState), after=st.sampled_from(RunState))
def test_counts_are_moved_and_zeros_left_out(counts: dict[str, int], before: RunState, after: RunState) -> None:
    counts = {**counts, before.value: counts.get(before.value, 0) + 1}
    moved = move_counts(counts, before, after)
    assert sum(moved.values()) == sum(counts.values())
    assert all(moved.values())


@given(held=st.integers(0, 9), parallel=st.integers(0, 9))
def test_room_is_what_the_window_leaves(held: int, parallel: int) -> None:
    task = evolve(TASK, parallel=parallel, counts={"running": held} if held else {})
    assert room(task) == (None if parallel == 0 else max(0, parallel - held))
    for flag in ("paused", "stopped", "cancel_requested"):
        assert room(evolve(task, **{flag: True})) == 0


@pytest.mark.parametrize(
    ("fail_count", "fail_rate", "failed", "code"),
    [
        (-1, None, 4, None), (2, None, 1, None), (2, None, 2, "fail_count"), (2, None, 3, "fail_count"),
        (-1, 0.5, 2, None), (-1, 0.5, 3, "fail_rate"), (-1, 0.0, 0, None), (-1, 0.0, 1, "fail_rate"),
        (-1, 1.0, 4, None), (1, 0.0, 1, "fail_count"),
    ],
)  # fmt: skip
def test_the_stop_rules_boundaries(fail_count: int, fail_rate: float | None, failed: int, code: str | None) -> None:
    counts = {"failed": failed, "ready": 4 - failed}
    task = evolve(TASK, fail_count=fail_count, fail_rate=fail_rate, counts=counts)
    reason = stop_rule(task, failed_run_id="r")
    assert (reason.code if reason else None) == code


@given(expired=st.integers(0, 4), skipped=st.integers(0, 4))
def test_what_expired_or_was_skipped_does_not_count_as_failed(expired: int, skipped: int) -> None:
    task = evolve(TASK, fail_count=1, fail_rate=0.0, counts={"expired": expired, "skipped": skipped})
    assert stop_rule(task) is None
