"""Every run that can come to be, under every event: found by walking the table from a new run until nothing is new."""

from __future__ import annotations

from collections import deque
from functools import cache
from itertools import product

import pytest

from common.errors import NotAllowed, StaleLease
from common.model import FINAL_STATES, HELD_STATES, Ending, Outcome, Run, RunKind, RunState, evolve
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
    step,
)

NOW = Moment(engine_s=50.0, wall_ms=1_000)
ENDINGS = [
    Ending(outcome=outcome, exit_code=code, killed_by_us=killed)
    for outcome, code, killed in (
        (Outcome.EXIT, 0, False),
        (Outcome.EXIT, 0, True),
        (Outcome.EXIT, 1, False),
        (Outcome.TIMEOUT, None, True),
    )
]
EVENTS: list[Event] = [
    *[Claim(agent, "mine") for agent in "ab"],
    *[Begin(lease, 7) for lease in ("mine", "other")],
    *[Release(lease) for lease in ("mine", "other")],
    *[Bury(lease) for lease in ("mine", "other")],
    *[Finish(lease, end, retry) for lease, end, retry in product(("mine", "other"), ENDINGS, (None, 60.0))],
    *[Cancel(reason) for reason in ("request", "stop_rule")],
    Silent(5), Due(), Kick(), LeaseEnd(), Heard(), Skip(), Expire(), Reopen(),
]  # fmt: skip
Steps = list[tuple[Run, Event, Run | None]]


@cache
def all_steps() -> Steps:
    """(before, event, after or None when it was refused) for everything reachable; attempts are told apart up to 2."""
    starts = [
        Run(
            id="r", task_id="t", kind=kind, state=state, seq=1, priority=1, agent_id="a" if addressed else None,
            addressed=addressed, expires_engine_s=99.0, due_engine_s=9.0 if state is RunState.DELAYED else None,
        )
        for kind, addressed, state in product(RunKind, (True, False), (RunState.READY, RunState.DELAYED))
    ]  # fmt: skip
    waiting = deque(starts)
    known = set(map(repr, starts))
    found: Steps = []
    while waiting:
        run = waiting.popleft()
        for event in EVENTS:
            try:
                after = step(run, event, now=NOW)
            except (NotAllowed, StaleLease):
                found.append((run, event, None))
                continue
            found.append((run, event, after))
            like = evolve(after, version=1, attempt=min(after.attempt, 2))
            if repr(like) not in known:
                known.add(repr(like))
                waiting.append(like)
    return found


def moves() -> Steps:
    return [(run, event, after) for run, event, after in all_steps() if after is not None and after is not run]


def test_every_line_of_the_table_is_taken_and_leads_only_where_it_says() -> None:
    taken: dict[tuple[RunState, type], set[RunState]] = {}
    for run, event, after in all_steps():
        if after is not None:
            taken.setdefault((run.state, type(event)), set()).add(after.state)
    assert taken == {line: set(targets) for line, (_, targets) in TABLE.items()}


def test_what_is_not_in_the_table_is_refused_and_changes_nothing() -> None:
    refused = {(run.state, type(event)) for run, event, after in all_steps() if after is None}
    assert {(state, kind) for state, kind in product(RunState, set(map(type, EVENTS)))} - set(TABLE) <= refused
    for run, event, _ in all_steps():
        if (run.state, type(event)) not in TABLE:
            before = repr(run)
            with pytest.raises((NotAllowed, StaleLease)):
                step(run, event, now=NOW)
            assert repr(run) == before


def test_each_change_counts_the_version_once() -> None:
    assert all(after is not None and after.version == run.version + 1 for run, _, after in moves())


def test_final_states_are_left_by_a_person_alone() -> None:
    assert {type(event) for run, event, _ in moves() if run.state in FINAL_STATES} == {Reopen}


def test_a_lease_is_there_exactly_while_the_run_is_held_and_only_its_holder_acts() -> None:
    for run, event, after in all_steps():
        lease = getattr(event, "lease", None)
        if after is not None and lease is not None and not isinstance(event, Claim):
            assert run.lease == lease
        if after is not None:
            assert (after.lease is not None) == (after.state in HELD_STATES)
            assert after.agent_id is not None or after.state not in HELD_STATES


def test_fields_belong_to_their_states() -> None:
    for _, _, after in moves():
        assert after is not None
        assert (after.due_engine_s is not None) == (after.state is RunState.DELAYED), after
        assert (after.ended_at_ms is not None) == (after.state in FINAL_STATES), after
        assert after.silent_since_ms is None or after.state is RunState.RUNNING, after
        assert after.state is not RunState.RUNNING or (after.fence is not None and after.started_at_ms is not None)
        assert after.state is not RunState.BURIED or after.kind is RunKind.ITEM
        if after.addressed:
            assert after.agent_id == "a"
        elif after.state in (RunState.READY, RunState.DELAYED):
            assert after.agent_id is None


def test_who_was_asked_to_end_never_starts_again_by_itself() -> None:
    for run, event, after in moves():
        assert after is not None
        if run.cancel_reason is not None and not isinstance(event, Reopen):
            assert after.state in FINAL_STATES or after.state is RunState.RUNNING, (run, event)


def test_attempts_count_up_by_one_when_a_begun_one_is_over() -> None:
    for run, event, after in moves():
        assert after is not None
        if after.attempt != run.attempt:
            assert after.attempt == run.attempt + 1
            assert isinstance(event, Finish | Reopen) and run.started_at_ms is not None
