"""Records as they cross the RPC: maps of plain values in msgpack, bytes stay bytes.

A field added with a default keeps old and new peers talking; unknown fields from a newer peer are ignored.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from common.errors import FieldError, InvalidRequest
from common.model import Record

T = TypeVar("T")


def to_wire(record: Record | list[Any]) -> Any:
    """Plain values (dict, list, str, int, float, bool, None, bytes) of a record or a list of records."""
    return msgspec.to_builtins(record, builtin_types=(bytes,))


def from_wire(kind: type[T], value: Any) -> T:
    """A record of `kind` from plain values; raises `InvalidRequest` that names the field."""
    try:
        return msgspec.convert(value, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".") or "request"
        raise InvalidRequest(f"{field}: {text}", fields=[FieldError(field, text)]) from error


def pack(record: Record) -> bytes:
    """A record as msgpack bytes, for a blob column or a nested payload."""
    return msgspec.msgpack.encode(record)


def unpack(kind: type[T], raw: bytes) -> T:
    """A record of `kind` from `pack`'s bytes; raises `msgspec.ValidationError` if they are not one."""
    return msgspec.msgpack.decode(raw, type=kind)
