from typing import Any

import msgspec
import pytest
from flask import Request
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import EnvironBuilder

from common.errors import InvalidRequest, Malformed, MusterError, TooLarge, UnsupportedContentType
from common.requests import TaskRequest
from webserver.api.agents import AgentListQuery
from webserver.api.output import OutputQuery
from webserver.api.tasks import RunListQuery, TaskListQuery, TaskQuery
from webserver.rest import Nothing, Query, idempotency_key, read_json, read_query, wait_preference

LIMIT = 6 * 1024 * 1024
TASK = b'{"script": "aGk=", "targets": ["a"]}'


def request(
    *, query: str = "", body: bytes = b"", content_type: str | None = "application/json", **headers: str
) -> Request:
    builder = EnvironBuilder(method="POST", query_string=query, data=body, content_type=content_type, headers=headers)
    return Request(builder.get_environ())


def read(body: bytes, kind: type[msgspec.Struct] = TaskRequest, *, required: bool = True, **more: Any) -> Any:
    return read_json(request(body=body, **more), msgspec.json.Decoder(kind), limit=LIMIT, required=required)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("wait=5", 5.0),
        ("wait=0.5", 0.5),
        ('respond-async, Wait = "7"', 7.0),
        ("wait=5; foo=bar, return=minimal", 5.0),
        ("wait=3600", 60.0),
        ("wait=0", 0.0),
        ("wait=-1", None),
        ("wait=", None),
        ("wait=nan", None),
        ("wait=1e9", None),
        ("await=5", None),
        (",,;=,", None),
        ("wait=x, wait=4", 4.0),
        ("wait=" + "9" * 500, None),
    ],
)
def test_a_preference_is_followed_where_it_is_understood(header: str | None, seconds: float | None) -> None:
    assert wait_preference(header) == seconds


def test_an_idempotency_key_is_visible_text() -> None:
    assert idempotency_key(None) is None
    assert idempotency_key("a" * 200) == "a" * 200
    for bad in ("", "a" * 201, "a b", "ä", "a\tb", "a\n"):
        with pytest.raises(InvalidRequest):
            idempotency_key(bad)


@pytest.mark.parametrize(
    ("shape", "query", "field"),
    [
        (TaskQuery, "wait=61", "wait"),
        (TaskQuery, "wait=-1", "wait"),
        (TaskQuery, "wait=nan", "wait"),
        (TaskQuery, "wait=inf", "wait"),
        (TaskQuery, "wait=", "wait"),
        (TaskQuery, "wait=null", "wait"),
        (TaskQuery, "wait=1&wait=1", "wait"),
        (TaskQuery, "await=1", "await"),
        (TaskListQuery, "limit=0", "limit"),
        (TaskListQuery, "limit=501", "limit"),
        (TaskListQuery, "limit=ten", "limit"),
        (TaskListQuery, "limit=99999999999999999999999999", "limit"),
        (TaskListQuery, "state=gone", "state"),
        (TaskListQuery, "state=", "state"),
        (TaskListQuery, "agent=", "agent"),
        (TaskListQuery, "name=" + "x" * 201, "name"),
        (TaskListQuery, "state=failed,", "state"),
        (TaskListQuery, "state=failed,gone", "state"),
        (TaskListQuery, "state=failed&state=running", "state"),
        (RunListQuery, "state=waiting", "state"),
        (RunListQuery, "state=failed,waiting", "state"),
        (RunListQuery, "agent=", "agent"),
        (AgentListQuery, "state=away", "state"),
        (AgentListQuery, "q=", "q"),
        (RunListQuery, "cursor=", "cursor"),
        (OutputQuery, "offset=-1", "offset"),
        (OutputQuery, "attempt=0", "attempt"),
        (OutputQuery, "limit=0", "limit"),
        (OutputQuery, "stream=stdin", "stream"),
        (OutputQuery, "offset=9007199254740992", "offset"),
        (Query, "x=1", "x"),
    ],
)
def test_a_parameter_that_is_not_understood_is_refused_by_name(shape: type[Query], query: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_query(request(query=query), shape)
    assert [fault.field for fault in caught.value.fields] == [field]


def test_a_query_says_what_the_master_is_asked_for() -> None:
    query = read_query(request(query="state=running,waiting,running&name=x&since=2026-01-01T00:00:00Z"), TaskListQuery)
    assert query.where() == {"state": ["running", "waiting"], "name": "x", "since_ms": 1_767_225_600_000}
    query = read_query(request(query="until=2026-01-01T00:00:00.5Z&agent=a"), TaskListQuery)
    assert query.where() == {"agent": "a", "until_ms": 1_767_225_600_500}
    assert read_query(request(query="state=offline,conflict&q=env%3Dprod"), AgentListQuery).where() == {
        "state": ["offline", "conflict"],
        "q": "env=prod",
    }
    assert read_query(request(query=""), AgentListQuery).where() == {}


@given(
    st.dictionaries(
        st.sampled_from(["wait", "limit", "state", "x"]) | st.text(max_size=5), st.text(max_size=8), max_size=3
    )
)
def test_no_query_breaks_anything(query: dict[str, str]) -> None:
    for shape in (TaskQuery, TaskListQuery, OutputQuery):
        builder = EnvironBuilder(query_string=query)
        try:
            assert isinstance(read_query(Request(builder.get_environ()), shape), shape)
        except InvalidRequest as error:
            assert error.fields


def test_a_body_is_read_as_what_it_should_be() -> None:
    assert read(TASK).script == b"hi"
    assert read(TASK, content_type="application/json; charset=UTF-8").targets == ["a"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        TASK + b"x",
        b"\xef\xbb\xbf" + TASK,
        b'{"script": "aGk=", "name": "\xff"}',
        b'{"script": "aGk=", "name": "\\ud800"}',
        b'{"script": "aGk=", "timeout": NaN}',
        b"\x00" * 10,
    ],
)
def test_what_is_no_json_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        read(body)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"[]", "request"),
        (b"null", "request"),
        (b"{}", "script"),
        (b'{"script": "a"}', "script"),
        (b'{"script": 5}', "script"),
        (b'{"script": "aGk=", "tagets": []}', "tagets"),
        (b'{"script": "aGk=", "targets": [5]}', "targets[0]"),
        (b'{"script": "aGk=", "timeout": 1e999}', "timeout"),
        (b'{"script": "aGk=", "parallel": 1.5}', "parallel"),
        (b'{"script": "aGk=", "args": ' + b"[" * 2_000_000, "args[0]"),
    ],
)
def test_what_has_another_form_is_refused_by_field(body: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    assert caught.value.fields[0].field == field


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"script":[', b'{"script":"aGk=","x":['])
def test_deep_nesting_is_refused_like_anything_else(opening: bytes) -> None:
    with pytest.raises((Malformed, InvalidRequest)):
        read(opening * (LIMIT // len(opening)))


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
def test_another_content_type_is_refused(content_type: str | None) -> None:
    with pytest.raises(UnsupportedContentType):
        read(TASK, content_type=content_type)


def test_another_charset_or_encoding_is_refused() -> None:
    with pytest.raises(UnsupportedContentType):
        read(TASK, content_type="application/json; charset=latin-1")
    with pytest.raises(UnsupportedContentType):
        read(TASK, **{"Content-Encoding": "gzip"})


def test_a_body_over_the_limit_is_not_read() -> None:
    with pytest.raises(TooLarge):
        read(b" " * (LIMIT + 1))
    assert read(TASK + b" " * (LIMIT - len(TASK))).script == b"hi"


def test_a_call_without_a_body_takes_none_or_an_empty_object() -> None:
    assert read(b"", Nothing, required=False, content_type=None) == Nothing()
    assert read(b"{}", Nothing, required=False) == Nothing()
    with pytest.raises(InvalidRequest):
        read(b'{"x": 1}', Nothing, required=False)
    with pytest.raises(UnsupportedContentType):
        read(b"{}", Nothing, required=False, content_type="text/plain")


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_body_breaks_anything(body: bytes) -> None:
    try:
        read(body)
    except MusterError as error:
        assert error.status in (400, 422)
