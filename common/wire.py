"""Records as they cross the RPC: maps of plain values in msgpack, bytes stay bytes.

A field added with a default keeps old and new peers talking; unknown fields from a newer peer are ignored.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from common.errors import FieldError, InvalidRequest
from common.model import Record

T = TypeVar("T")
_ARGUMENT = re.compile(r"^\[(\d+|\.\.\.)\]")


def to_wire(record: Record | list[Any]) -> Any:
    """Plain values (dict, list, str, int, float, bool, None, bytes) of a record or a list of records."""
    return msgspec.to_builtins(record, builtin_types=(bytes,))


def from_wire(kind: type[T], value: Any) -> T:
    """A record of `kind` from plain values; raises `InvalidRequest` that names the field."""
    try:
        return msgspec.convert(value, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise invalid(error) from error


def invalid(error: msgspec.ValidationError, *, method: str | None = None) -> InvalidRequest:
    """msgspec's complaint as ours, with the path of the field. `method`: whose list of arguments it was; the number of
    the argument is left out then, records come as the only one."""
    text, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`")
    field = (path if method is None else _ARGUMENT.sub("", path)).lstrip(".")
    if not field and "field `" in text:  # "Object contains unknown field `x`", "Object missing required field `x`"
        field = text.split("`")[1]
        text = "this field is not known" if "unknown field" in text else "this field is required"
    field = field or method or "request"
    return InvalidRequest(f"{field}: {text}", fields=[FieldError(field, text)])


def pack(record: Record) -> bytes:
    """A record as msgpack bytes, for a blob column or a nested payload."""
    return msgspec.msgpack.encode(record)


def unpack(kind: type[T], raw: bytes) -> T:
    """A record of `kind` from `pack`'s bytes; raises `msgspec.ValidationError` if they are not one."""
    return msgspec.msgpack.decode(raw, type=kind)
