"""Answers that found their peer's connection full: kept a bounded time and amount, tried again, or given up.

A burst of answers may outrun the I/O thread; an honest peer must not lose one to that. A peer that stopped reading
fills its own share here and then loses its own answers, each reported through its `lost` callback.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq
from gevent.hub import get_hub

_FIRST_S = 0.005
_SLOWEST_S = 0.2
_KEPT_S = 30.0


@dataclass(slots=True)
class _Answer:
    blob: bytes
    expires_at: float
    lost: Callable[[], None]


class Outbox:
    """Waiting answers by peer. `send(identity, blob)` sends now or raises `zmq.ZMQError`, `zmq.Again` when full.

    At most `peer_bytes` wait for one peer and `total_bytes` in all.
    """

    def __init__(self, send: Callable[[bytes, bytes], None], *, peer_bytes: int, total_bytes: int) -> None:
        self._send = send
        self._peer_bytes = peer_bytes
        self._total_bytes = total_bytes
        self._waiting: dict[bytes, deque[_Answer]] = {}
        self._bytes_of: dict[bytes, int] = {}
        self._bytes = 0
        self._delay_s = _FIRST_S
        self._timer: Any = None

    def holds(self, identity: bytes) -> bool:
        """Whether answers for this peer wait; later ones then queue up behind them."""
        return identity in self._waiting

    def put(self, identity: bytes, blob: bytes, *, expires_at: float | None, lost: Callable[[], None]) -> bool:
        """Keep an answer until it can be sent; False when the peer's share is full.

        `lost` is called if it could not be sent by `expires_at` (monotonic; half a minute at most) or the peer left.
        """
        share = self._bytes_of.get(identity, 0) + len(blob)
        if share > self._peer_bytes or self._bytes + len(blob) > self._total_bytes:
            return False
        now_s = time.monotonic()
        answer = _Answer(blob, min(expires_at or now_s + _KEPT_S, now_s + _KEPT_S), lost)
        self._waiting.setdefault(identity, deque()).append(answer)
        self._bytes_of[identity] = share
        self._bytes += len(blob)
        if self._timer is None:
            self._delay_s = _FIRST_S
            self._arm()
        return True

    def close(self) -> None:
        """Give everything up."""
        self._disarm()
        for identity in list(self._waiting):
            self._give_up(identity)

    def _arm(self) -> None:
        self._timer = get_hub().loop.timer(self._delay_s)
        self._timer.start(self._try_all, update=True)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None

    def _try_all(self) -> None:
        self._disarm()
        progress = False
        for identity in list(self._waiting):
            progress |= self._try(identity)
        if self._waiting:
            self._delay_s = _FIRST_S if progress else min(2 * self._delay_s, _SLOWEST_S)
            self._arm()

    def _try(self, identity: bytes) -> bool:
        """Send what goes to one peer; whether anything did."""
        sent = False
        now_s = time.monotonic()
        while identity in self._waiting:
            answer = self._waiting[identity][0]
            if now_s < answer.expires_at:
                try:
                    self._send(identity, answer.blob)
                except zmq.Again:
                    return sent
                except zmq.ZMQError:
                    self._give_up(identity)
                    return sent
                self._take_first(identity)
                sent = True
            else:
                self._take_first(identity)
                answer.lost()
        return sent

    def _take_first(self, identity: bytes) -> None:
        queue = self._waiting[identity]
        size = len(queue.popleft().blob)
        self._bytes -= size
        self._bytes_of[identity] -= size
        if not queue:
            del self._waiting[identity]
            del self._bytes_of[identity]

    def _give_up(self, identity: bytes) -> None:
        answers = self._waiting.pop(identity)
        self._bytes -= self._bytes_of.pop(identity)
        for answer in answers:
            answer.lost()
