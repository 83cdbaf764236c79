from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidRequest
from tests.support.fake_web_master import run_view, task_view
from webserver import cursors, shapes, wording

ID = "0192f0c8-0000-7000-8000-000000000000"


def test_times_are_utc_with_milliseconds_whatever_the_zone_of_the_machine() -> None:
    assert wording.moment(1_700_000_000_007) == "2023-11-14T22:13:20.007Z"
    assert wording.moment(0) == "1970-01-01T00:00:00.000Z"
    assert wording.moment(None) is None


@given(st.integers(0, 4_000_000_000_000))
def test_a_time_is_read_as_it_was_written(wall_ms: int) -> None:
    assert wording.wall_ms(wording.moment(wall_ms) or "", field="since") == wall_ms


@pytest.mark.parametrize(
    "text",
    ["2023-11-14T22:13:20Z", "2023-11-14T22:13:20+00:00", "2023-11-14T22:13:20 00:00", "2023-11-15T00:13:20+02:00"],
)
def test_a_zone_may_be_given_in_any_form_also_with_a_plus_nobody_escaped(text: str) -> None:
    assert wording.wall_ms(text, field="since") == 1_700_000_000_000


@pytest.mark.parametrize("text", ["", "yesterday", "2023-11-14", "2023-11-14T22:13:20", "1700000000", "\0", "9" * 400])
def test_what_is_no_time_with_a_zone_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wording.wall_ms(text, field="since")
    assert [fault.field for fault in caught.value.fields] == ["since"]


def test_a_task_has_exactly_the_promised_fields() -> None:
    answer = wording.task({**task_view(ID), "seq": 7, "version": 3, "stopped": True})
    assert msgspec.convert(answer, shapes.Task)
    assert list(answer) == [field.name for field in msgspec.structs.fields(shapes.Task)]
    assert "script" not in answer and "seq" not in answer
    assert answer["created_at"] == "2023-11-14T22:13:20.000Z"


def test_a_run_has_exactly_the_promised_fields() -> None:
    view = {**run_view(ID, 1), "silent_since_ms": 1_700_000_000_000, "output_gaps": [[1, 2]]}
    answer = wording.run(view)
    assert msgspec.convert(answer, shapes.Run)
    assert list(answer) == [field.name for field in msgspec.structs.fields(shapes.Run)]
    assert answer["silent_since"] == "2023-11-14T22:13:20.000Z"


def test_what_has_ended_can_be_told_as_it_was_before() -> None:
    over = {**run_view(ID, 1), "state": "failed", "outcome": "exit", "exit_code": 3, "ended_at_ms": 5, "duration": 1.0}
    told = wording.run_under_way(over)
    assert (told["state"], told["outcome"], told["exit_code"], told["ended_at"]) == ("running", None, None, None)
    task = wording.task_under_way({**task_view(ID), "state": "failed", "ended_at_ms": 5})
    assert (task["state"], task["ended_at"]) == ("running", None)


def test_the_steps_of_an_attempt_carry_times() -> None:
    answer = wording.attempt(
        {"run_id": ID, "attempt": 1, "state": "failed", "steps": [[1_700_000_000_000, "sent TERM"]]}
    )
    assert answer["steps"] == [{"at": "2023-11-14T22:13:20.000Z", "text": "sent TERM"}]
    assert answer["silences"] == [] and answer["cancel_requested_at"] is None
    assert list(answer) == [field.name for field in msgspec.structs.fields(shapes.Attempt)]


def test_the_silences_of_an_attempt_carry_times_and_one_may_last() -> None:
    over, lasting = {"since_ms": 0, "until_ms": 1_000}, {"since_ms": 2_000, "until_ms": None}
    view = {"run_id": ID, "attempt": 1, "state": "running", "silences": [over, lasting], "cancel_requested_at_ms": 5}
    answer = wording.attempt({**view, "cancel_reason": "request"})
    assert answer["silences"] == [
        {"since": "1970-01-01T00:00:00.000Z", "until": "1970-01-01T00:00:01.000Z"},
        {"since": "1970-01-01T00:00:02.000Z", "until": None},
    ]
    assert (answer["cancel_requested_at"], answer["cancel_reason"]) == ("1970-01-01T00:00:00.005Z", "request")
    assert msgspec.convert(answer, shapes.Attempt)


def test_what_is_told_as_codes_has_exactly_the_promised_fields() -> None:
    args = {"failed": 2, "total": 4, "limit": 0.25, "agent": "web-1"}
    reason = {"code": "fail_rate", "detail": "2 of 4", "run_id": ID, "args": args}
    more = {"code": "more", "args": {"number": 2}, "count": 2}
    answer = wording.task({**task_view(ID), "reason": reason, "waiting": [more]})
    assert msgspec.convert(answer, shapes.Task).reason == shapes.Reason(**reason)
    busy = {"code": "agent_busy", "args": {"agent": "web-1", "held": 1, "slots": 1}}
    run = wording.run({**run_view(ID, 1), "waiting": [busy]})
    assert msgspec.convert(run, shapes.Run).waiting == [shapes.RunWaiting(**busy)]
    why = wording.explanation({"run": run_view(ID, 1), "verdicts": [{**busy, "text": "web-1 is busy", "since_ms": 0}]})
    assert msgspec.convert(why, shapes.Explanation).verdicts[0].args == busy["args"]


def test_an_agents_facts_keep_their_names_and_word_their_times() -> None:
    answer = wording.agent({"facts": {"cpus": 2, "boot_at_ms": 1_700_000_000_000, "odd": None}})
    assert answer["facts"] == {"cpus": 2, "boot_at": "2023-11-14T22:13:20.000Z", "odd": None}


@pytest.mark.parametrize(
    "odd",
    [
        {"boot_at_ms": "oops"},
        {"boot_at_ms": True},
        {"boot_at_ms": 1.5e12},
        {"boot_at_ms": [1]},
        {"boot_at_ms": 2**63},
        {"boot_at_ms": -(2**63)},
        {7: "seven"},
        {b"os": "Linux"},
        {None: 1},
        {"os": "\ud800"},
        {"\ud800": 1},
        {"disks": {b"sda": 1, None: 2}},
        {"what": object()},
    ],
)
def test_facts_that_make_no_sense_are_left_out_and_the_others_told(odd: dict[Any, Any]) -> None:
    answer = wording.agent({"facts": {**odd, "memory_total": 5, "addresses": ["::1"]}})
    assert answer["facts"] == {"memory_total": 5, "addresses": ["::1"]}
    assert msgspec.json.encode(answer)


@pytest.mark.parametrize("facts", [None, [], ["os"], "Linux", 5])
def test_what_are_no_facts_at_all_are_none(facts: Any) -> None:
    assert wording.agent({"facts": facts})["facts"] == {}


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.binary() | st.none(), inner),
)


@given(json_like | st.dictionaries(st.sampled_from(["os", "boot_at_ms", "x_at_ms", 3]), json_like))
def test_no_facts_whatever_keep_an_agent_from_being_told(facts: Any) -> None:
    assert msgspec.json.decode(msgspec.json.encode(wording.agent({"name": "one", "facts": facts})))["name"] == "one"


def test_a_page_has_items_and_where_to_go_on() -> None:
    page = wording.page("runs", {"items": [run_view(ID, 1)], "next": "c"}, wording.run)
    assert cursors.unseal("runs", page["next"]) == "c" and msgspec.convert(page, shapes.RunPage)


@given(st.text(max_size=60), st.sampled_from(["runs", "tasks"]))
def test_a_cursor_opens_in_its_own_list_only(cursor: str, noun: str) -> None:
    cursor = cursor.encode("utf-8", "replace").decode()
    sealed = cursors.seal(noun, cursor)
    assert sealed is not None and sealed.isascii()
    assert cursors.unseal(noun, sealed) == cursor
    for other, text in (("agents", sealed), (noun, sealed + "A"), (noun, sealed[:-1]), (noun, sealed + "=")):
        with pytest.raises(InvalidRequest):
            cursors.unseal(other, text)


@given(st.text(max_size=20))
def test_a_made_up_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        cursors.unseal("tasks", text)
