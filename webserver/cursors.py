"""Cursors of lists: the master's own, sealed, so that a made-up or damaged one is told from a real one and refused."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any

from msgspec import UNSET

from common.errors import InvalidRequest


def seal(noun: str, cursor: str | None) -> str | None:
    """The cursor as clients see it; `noun` names the list it belongs to."""
    if cursor is None:
        return None
    raw = cursor.encode()
    return base64.urlsafe_b64encode(_sum(noun, raw) + raw).decode().rstrip("=")


def unseal(noun: str, text: Any) -> str | None:
    """The master's cursor; None when `text` is unset. Raises `InvalidRequest` for one that `seal` did not make."""
    if text is UNSET:
        return None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        if raw[:4] == _sum(noun, raw[4:]) and seal(noun, raw[4:].decode()) == text:
            return raw[4:].decode()
    except (binascii.Error, ValueError):
        pass
    raise InvalidRequest.of("cursor", "this is not the `next` of a page of this list")


def _sum(noun: str, raw: bytes) -> bytes:
    return zlib.crc32(noun.encode() + b"\0" + raw).to_bytes(4, "big")
