"""The records of the serving end: who calls, what may be called, the call being served, and the counters.

Plain values; nothing here touches a socket or the loop.
"""

from __future__ import annotations

import contextvars
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common import rpc_frames as frames


@dataclass(frozen=True, slots=True)
class Peer:
    """Who sent a request.

    `key` is its z85 CURVE public key (None without CURVE), `address` its IP address, `identity` an opaque name of
    this very connection, never used for another one.
    """

    key: str | None
    address: str
    identity: bytes


@dataclass(frozen=True, slots=True)
class Method:
    """One entry of a method table; `fn(peer, *args)` gives the result.

    `inline` methods run inside the receive loop: cheapest, and they must never wait (trying to raises at once).
    `on_unroutable(peer, method, result)` is called when the result cannot reach its caller any more (gone, no longer
    waiting, not reading, or the result is too large to send), so that what it granted can be taken back at once.
    `takes` is the type of the list of arguments, such as `tuple[Beat]`: they are decoded straight into it, so that what
    is too long or of another shape is refused by its first bytes. None: any plain values, which `fn` checks itself.
    """

    fn: Callable[..., Any]
    inline: bool = False
    on_unroutable: Callable[[Peer, str, Any], None] | None = None
    takes: Any = None


class RpcMetrics:
    """Plain counters of one server; read them at any time. `seconds` and `calls` are by method, `errors` by code."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.errors: Counter[str] = Counter()
        self.pending = 0
        self.malformed = 0
        self.duplicates = 0
        self.expired = 0
        self.unroutable = 0


class Call:
    """One request being served: what a handler may know beyond its arguments (see `current_call`)."""

    __slots__ = ("expires_at", "message_id", "method", "name", "peer", "request_id", "started_at")

    def __init__(self, peer: Peer, method: Method, message: frames.Message, message_id: bytes, now_s: float) -> None:
        self.peer = peer
        self.method = method
        self.name = message.name
        self.message_id = message_id
        self.request_id = message.request_id
        self.started_at = now_s
        deadline_s = message.deadline_s
        self.expires_at = None if deadline_s is None else now_s + deadline_s

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the caller stops waiting; None when it did not say."""
        return None if self.expires_at is None else self.expires_at - time.monotonic()

    @property
    def expired(self) -> bool:
        """Whether the caller has certainly stopped waiting."""
        return self.expires_at is not None and time.monotonic() >= self.expires_at


current: contextvars.ContextVar[Call | None] = contextvars.ContextVar("current_call", default=None)


def current_call() -> Call | None:
    """The request that the running handler serves; None outside handlers."""
    return current.get()
