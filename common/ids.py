"""Identifiers: UUIDv7 for tasks, runs and agents (sortable by time), random tokens for leases and secrets."""

from __future__ import annotations

import os
import secrets
import time


def uuid7() -> str:
    """A new UUIDv7 (RFC 9562) as text: 48 bits of Unix milliseconds, then 74 random bits."""
    stamp = (time.time_ns() // 1_000_000) & ((1 << 48) - 1)
    random = int.from_bytes(os.urandom(10), "big")
    value = stamp << 80 | 0x7 << 76 | (random >> 68) << 64 | 0b10 << 62 | random & ((1 << 62) - 1)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def lease_token() -> str:
    """A lease token: 16 hexadecimal digits, unguessable enough to tell two leases of a run apart."""
    return os.urandom(8).hex()


def secret_token() -> str:
    """A secret for a person or a daemon: 256 bits, URL-safe text."""
    return secrets.token_urlsafe(32)
