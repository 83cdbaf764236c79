"""Messages of the RPC protocol (zerorpc's, version 3) as bytes and as records. Pure: no sockets, no loop, no zerorpc.

A message is msgpack of (header, name, args). `parse` reads header and name and leaves the arguments as a checked but
undecoded slice, so that a peer that may not call costs next to nothing; whatever bytes come in, the only exception
that comes out is `FrameError`. Announced lengths allocate nothing before the bytes are there.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

VERSION: Final = 3
OK: Final = "OK"
ERR: Final = "ERR"
STREAM: Final = "STREAM"
STREAM_DONE: Final = "STREAM_DONE"
HEARTBEAT: Final = "_zpc_hb"
MORE: Final = "_zpc_more"

MAX_ID_BYTES = 64
MAX_NAME_CHARS = 200
MAX_TEXT_CHARS = 4_000
MAX_FIELDS = 200

Buffer = bytes | bytearray | memoryview


class FrameError(ValueError):
    """The bytes are no message of the protocol, or the values cannot be put into one."""


class Message:
    """One parsed message. `message_id` and `response_to` are opaque bytes or None; `header` keeps all entries."""

    __slots__ = ("_raw", "header", "message_id", "name", "response_to")

    def __init__(
        self,
        header: dict[str, Any],
        name: str,
        raw: msgspec.Raw,
        *,
        message_id: bytes | None,
        response_to: bytes | None,
    ) -> None:
        self.header = header
        self.name = name
        self.message_id = message_id
        self.response_to = response_to
        self._raw = raw

    @property
    def version(self) -> object:
        """What the header says of the protocol's version; anything at all when the peer is foreign."""
        return self.header.get("v")

    @property
    def deadline_s(self) -> float | None:
        """Seconds the caller still waits, counted from sending; None when it said nothing usable."""
        value = self.header.get("deadline")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return value

    @property
    def request_id(self) -> str | None:
        """The caller's id of this request, the same when it repeats it."""
        value = self.header.get("request_id")
        return value if type(value) is str and len(value) <= MAX_NAME_CHARS else None

    def args_as(self, decoder: msgspec.msgpack.Decoder[Any]) -> tuple[Any, ...]:
        """The arguments as `decoder_of` made it decode them; raises `FrameError`, or `msgspec.ValidationError` naming
        what does not fit, by then without having decoded what stands behind it."""
        try:
            value: tuple[Any, ...] = decoder.decode(self._raw)
        except msgspec.ValidationError:
            raise
        except _DECODE_ERRORS as error:
            raise FrameError(f"the arguments cannot be decoded: {error}") from error
        return value

    def args(self) -> list[Any]:
        """The arguments; raises `FrameError` when they are not a list or cannot be decoded."""
        value = self.payload()
        if type(value) is not list:
            raise FrameError("the arguments are not a list")
        return value

    def payload(self) -> Any:
        """The third part of the message, whatever it is; raises `FrameError`."""
        try:
            return _ANY.decode(self._raw)
        except _DECODE_ERRORS as error:
            raise FrameError(f"the arguments cannot be decoded: {error}") from error


def _no_extensions(code: int, _: memoryview) -> Any:
    raise ValueError(f"extension type {code} is not part of the protocol")


_ENVELOPE = msgspec.msgpack.Decoder(tuple[dict[str, Any], str, msgspec.Raw], ext_hook=_no_extensions)
_ANY = msgspec.msgpack.Decoder(ext_hook=_no_extensions)
_ENCODER = msgspec.msgpack.Encoder()
_DECODE_ERRORS = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError, MemoryError)
_ENCODE_ERRORS = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError, NotImplementedError)


def decoder_of(takes: Any) -> msgspec.msgpack.Decoder[Any]:
    """A decoder of arguments of this type, for `Message.args_as`."""
    return msgspec.msgpack.Decoder(takes, ext_hook=_no_extensions)


def parse(blob: Buffer) -> Message:
    """The message in `blob`; raises `FrameError` for anything else."""
    try:
        header, name, raw = _ENVELOPE.decode(blob)
    except _DECODE_ERRORS as error:
        raise FrameError(f"not a message: {error}") from error
    if len(name) > MAX_NAME_CHARS:
        raise FrameError("the name is too long")
    return Message(
        header,
        name,
        raw,
        message_id=_id_in(header, "message_id"),
        response_to=_id_in(header, "response_to"),
    )


def _id_in(header: dict[str, Any], entry: str) -> bytes | None:
    value = header.get(entry)
    if value is None:
        return None
    if type(value) is not bytes or not 0 < len(value) <= MAX_ID_BYTES:
        raise FrameError(f"{entry} is not 1 to {MAX_ID_BYTES} bytes")
    return value


def pack(header: dict[str, Any], name: str, args: Any) -> bytes:
    """A message as bytes; raises `FrameError` naming what cannot be sent.

    Text must be Unicode proper: send script output, which may hold anything, as bytes.
    """
    try:
        return _ENCODER.encode((header, name, args))
    except _ENCODE_ERRORS as error:
        raise FrameError(f"cannot be sent: {error}") from error


def request_header(message_id: bytes, *, deadline_s: float | None, request_id: str | None = None) -> dict[str, Any]:
    """The header of a request."""
    header: dict[str, Any] = {"message_id": message_id, "v": VERSION}
    if deadline_s is not None:
        header["deadline"] = deadline_s
    if request_id is not None:
        header["request_id"] = request_id
    return header


def reply_header(message_id: bytes, response_to: bytes) -> dict[str, Any]:
    """The header of an event on a call that is open: an answer, an error, a heartbeat."""
    return {"message_id": message_id, "v": VERSION, "response_to": response_to}


def pack_result(message_id: bytes, response_to: bytes, result: Any) -> bytes:
    """The answer of a call that went well; raises `FrameError`."""
    return pack(reply_header(message_id, response_to), OK, (result,))


def pack_error(
    message_id: bytes, response_to: bytes, *, code: str, message: str, fields: list[list[str]] | None = None
) -> bytes:
    """The answer of a call that failed, always sendable: no traceback, `fields` in the header.

    Long texts are cut, and characters that cannot be sent are escaped.
    """
    header = reply_header(message_id, response_to)
    if fields:
        header["fields"] = [[_sendable(part) for part in pair] for pair in fields[:MAX_FIELDS]]
    return pack(header, ERR, (code, _sendable(message), None))


def pack_heartbeat(message_id: bytes, response_to: bytes) -> bytes:
    """A sign of life on an open call, as stock zerorpc peers exchange them."""
    return pack(reply_header(message_id, response_to), HEARTBEAT, (0,))


def error_of(message: Message) -> tuple[str, str, str | None, list[list[str]]]:
    """(code, text, traceback or None, fields) of an ERR answer; raises `FrameError` when it is none."""
    args = message.args()
    if len(args) != 3 or type(args[0]) is not str or type(args[1]) is not str:
        raise FrameError("an error needs a name, a text and a traceback")
    fields = message.header.get("fields")
    if type(fields) is not list:
        fields = []
    pairs = [[str(part) for part in pair] for pair in fields if type(pair) is list and len(pair) == 2]
    return args[0], args[1], args[2] if type(args[2]) is str else None, pairs


def _sendable(text: str) -> str:
    return text[:MAX_TEXT_CHARS].encode("utf-8", "backslashreplace").decode("utf-8")
