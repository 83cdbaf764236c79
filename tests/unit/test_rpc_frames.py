import datetime
import struct
from typing import Any

import msgpack
import pytest
import zerorpc
from hypothesis import given
from hypothesis import strategies as st

from common import rpc_frames as frames
from tests.support.rpc import packed

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(args=st.lists(plain, max_size=4), request_id=st.none() | st.text(max_size=200), deadline_s=st.floats(0, 1e6))
def test_a_request_comes_back_as_it_was(args: list[Any], request_id: str | None, deadline_s: float) -> None:
    header = frames.request_header(b"id", deadline_s=deadline_s, request_id=request_id)
    message = frames.parse(frames.pack(header, "pull_task", args))
    assert (message.name, message.message_id, message.response_to, message.version) == ("pull_task", b"id", None, 3)
    assert (message.args(), message.request_id, message.deadline_s) == (args, request_id, deadline_s)


@given(args=st.lists(plain, max_size=4))
def test_stock_zerorpc_reads_ours_and_we_read_its(args: list[Any]) -> None:
    ours = zerorpc.Event.unpack(frames.pack(frames.request_header(b"id", deadline_s=1.5), "add", args))
    assert (ours.name, ours.args, ours.header["message_id"], ours.header["v"]) == ("add", args, b"id", 3)
    stock = zerorpc.Event("add", args, None, header={"message_id": b"id", "v": 3, "response_to": b"other"})
    theirs = frames.parse(stock.pack())
    assert (theirs.name, theirs.args(), theirs.response_to) == ("add", args, b"other")


def test_an_error_carries_code_text_and_fields_but_no_traceback() -> None:
    blob = frames.pack_error(b"m", b"r", code="invalid_request", message="bad \udc80 byte", fields=[["a", "no \udcff"]])
    assert frames.error_of(frames.parse(blob)) == ("invalid_request", "bad \\udc80 byte", None, [["a", "no \\udcff"]])


@pytest.mark.parametrize("args", [[], ["only"], [1, 2, 3], ["a", "b", "c", "d"], {"a": 1}, "abc", None])
def test_what_is_no_error_is_told_apart(args: object) -> None:
    with pytest.raises(frames.FrameError):
        frames.error_of(frames.parse(packed({"message_id": b"m", "v": 3}, "ERR", args)))


@pytest.mark.parametrize("fields", [1, "x", [1, [2]], [["a", "b", "c"]], {"a": "b"}])
def test_fields_of_a_foreign_shape_are_left_out(fields: object) -> None:
    blob = packed({"message_id": b"m", "v": 3, "fields": fields}, "ERR", ["code", "text", None])
    assert frames.error_of(frames.parse(blob)) == ("code", "text", None, [])


BAD = {
    "nothing": b"",
    "not msgpack": b"\xc1\xc1\xc1",
    "cut short": packed({"message_id": b"m", "v": 3}, "add", [1, 2])[:-1],
    "more behind": packed({"message_id": b"m", "v": 3}, "add", [1, 2]) + b"\0",
    "two parts": msgpack.packb([{}, "add"]),
    "four parts": msgpack.packb([{}, "add", [], []]),
    "no array": msgpack.packb({"header": {}}),
    "header is a list": packed([], "add", []),
    "header with numbers for keys": msgpack.packb([{1: 2}, "add", []]),
    "name is bytes": packed({}, b"add", []),
    "name is no text": b"\x93\x80\xa2\xff\xfe\x90",
    "name too long": packed({}, "x" * 201, []),
    "id is a list": packed({"message_id": [1]}, "add", []),
    "id is text": packed({"message_id": "abc"}, "add", []),
    "id is empty": packed({"message_id": b""}, "add", []),
    "id too long": packed({"message_id": b"x" * 65}, "add", []),
    "response_to is a list": packed({"message_id": b"m", "response_to": [b"r"]}, "OK", [1]),
    "response_to is a map": packed({"message_id": b"m", "response_to": {"a": 1}}, "OK", [1]),
    "deep header": b"\x93\x81\xa1a" + b"\x91" * 1_000_000 + b"\x90\xa1a\x90",
    "deep arguments": b"\x93\x80\xa1a" + b"\x91" * 1_000_000 + b"\x90",
    "announces a list of 4 G": b"\x93\x80\xa1a\xdd\xff\xff\xff\xff",
    "announces a map of 4 G": b"\x93\x80\xa1a\xdf\xff\xff\xff\xff",
    "announces bytes of 4 G": b"\x93\x80\xa1a\xc6\xff\xff\xff\xff",
    "header announces 4 G, nested": b"\x93\x81\xa1a" + b"\xdd\xff\xff\xff\xff" * 200,
    "header holds an extension": b"\x93\x81\xa1a\xd4\x05\x00\xa1a\x90",
}


@pytest.mark.parametrize("blob", BAD.values(), ids=BAD.keys())
def test_what_is_no_message_is_refused(blob: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.parse(blob)


BAD_ARGS = {
    "a map": packed({}, "add", {"a": 1}),
    "text": packed({}, "add", "abc"),
    "nothing": packed({}, "add", None),
    "invalid text": b"\x93\x80\xa1a\x91\xa2\xff\xfe",
    "an extension": b"\x93\x80\xa1a\x91\xd4\x05\x00",
    "a list as key": b"\x93\x80\xa1a\x91\x81\x91\x80\x01",
}


@pytest.mark.parametrize("blob", BAD_ARGS.values(), ids=BAD_ARGS.keys())
def test_bad_arguments_show_only_when_they_are_asked_for(blob: bytes) -> None:
    message = frames.parse(blob)
    with pytest.raises(frames.FrameError):
        message.args()


@pytest.mark.parametrize("value", ["soon", [1], True, None, {}, float("nan"), float("inf"), b"1"])
def test_a_senseless_deadline_counts_as_none(value: object) -> None:
    assert frames.parse(packed({"message_id": b"m", "deadline": value}, "add", [])).deadline_s is None


@pytest.mark.parametrize("value", [5, b"x", ["x"], "x" * 201])
def test_a_senseless_request_id_counts_as_none(value: object) -> None:
    assert frames.parse(packed({"message_id": b"m", "request_id": value}, "add", [])).request_id is None


def endless() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize("value", [2**64, "caf\udce9", object(), endless(), {object(): 1}, lambda: 1])
def test_what_cannot_be_sent_is_refused(value: object) -> None:
    with pytest.raises(frames.FrameError, match="cannot be sent"):
        frames.pack({}, "add", [value])


def test_bytes_and_text_stay_apart() -> None:
    args = frames.parse(frames.pack({}, "add", [b"caf\xe9", "café"])).args()
    assert args == [b"caf\xe9", "café"]


def test_a_time_of_msgpack_is_the_one_extension_that_is_understood() -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert frames.parse(frames.pack({}, "add", [at])).args() == [at]
    with pytest.raises(frames.FrameError):
        frames.parse(b"\x93\x80\xa1a\x91\xc7\x0c\xff" + struct.pack(">Iq", 2**31, 0)).args()
