"""One attempt at one connection: a DEALER socket and its monitor, from `connect` to the first failure.

libzmq's own reconnecting is off (it never retries a refused key and never looks a name up again): whatever ends a
link, its owner builds a new one. The monitor's events become one `Failure` that says in words what happened.
"""

from __future__ import annotations

import errno
import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from gevent.event import AsyncResult, Event

from common.rpc_socket import Carrier, Port, apply_options

CONNECT_S = 5.0
OPEN_S = 26.0
"""Longest time from the start of an attempt to an open link; connecting and the handshake have shorter limits."""

_HIGH_WATER = 1000
_EVENT = struct.Struct("=Hi")
_numbers = itertools.count(1)
_WATCHED = int(
    zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a link ended or never opened: a sentence, whether waiting is pointless, and whether TCP itself failed."""

    reason: str
    refused: bool = False
    no_connection: bool = False


@dataclass(frozen=True, slots=True)
class Keys:
    """The CURVE keys of the calling end (z85): the server's public one and the caller's own pair."""

    server: bytes
    public: bytes
    secret: bytes


class Link:
    """A connection being made, open, or failed. Must be closed by its owner."""

    def __init__(
        self,
        carrier: Carrier,
        address: str,
        receive: Callable[[list[zmq.Frame]], None],
        *,
        keys: Keys | None,
        max_message_bytes: int,
        heartbeat_s: float,
    ) -> None:
        self.opened = False
        self._settled = Event()
        self._failure: AsyncResult[Failure] = AsyncResult()
        dealer = carrier.socket(zmq.DEALER)
        monitor = carrier.socket(zmq.PAIR)
        try:
            apply_options(
                dealer,
                address,
                max_message_bytes=max_message_bytes,
                to_send=_HIGH_WATER,
                to_read=_HIGH_WATER,
                heartbeat_s=heartbeat_s,
            )
            dealer.setsockopt(zmq.RECONNECT_IVL, -1)
            dealer.setsockopt(zmq.CONNECT_TIMEOUT, round(CONNECT_S * 1000))
            if keys is not None:
                dealer.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
                dealer.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
                dealer.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
            # Unique for the process: the name stays taken until the I/O thread has let go of an older socket.
            events = f"inproc://muster.link.{next(_numbers)}"
            dealer.monitor(events, _WATCHED)
            monitor.setsockopt(zmq.LINGER, 0)
            monitor.connect(events)
            dealer.connect(address)
        except zmq.ZMQError:
            dealer.close(0)
            monitor.close(0)
            raise
        self._port = Port(dealer, receive)
        self._monitor = Port(monitor, self._on_event)

    def wait_open(self) -> bool:
        """Wait until the link is open (True) or has failed (False)."""
        if not self._settled.wait(timeout=OPEN_S):
            self._fail(Failure("no answer in time", no_connection=True))
        return self.opened and not self._failure.ready()

    def wait_failed(self) -> Failure:
        """Wait until the link has failed; why."""
        return self._failure.get() or Failure("the connection was lost")

    def send(self, blob: bytes) -> None:
        """Send one message now; raises `zmq.Again` when there is no room."""
        self._port.send(b"", blob)

    def close(self) -> None:
        """Drop the connection and everything unsent."""
        if not self._port.socket.closed:
            self._port.socket.monitor(None, 0)
        self._monitor.close()
        self._port.close()

    def _on_event(self, frames: list[zmq.Frame]) -> None:
        event, value = _EVENT.unpack(frames[0].bytes)
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.opened = True
            self._settled.set()
        else:
            self._port.drain()  # answers that came before the end still count
            self._fail(_failure_of(event, value, opened=self.opened))

    def _fail(self, failure: Failure) -> None:
        if not self._failure.ready():  # the first event tells most
            self._failure.set(failure)
            self._settled.set()


def _failure_of(event: int, value: int, *, opened: bool) -> Failure:
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return Failure(f"it does not approve this key (answer {value})", refused=True)
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return Failure("one end encrypts and the other does not, or it is no server of this kind", refused=True)
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and value == errno.EAGAIN:
        return Failure("something accepts connections there but does not answer the handshake")
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and value == errno.EPIPE:
        return Failure(
            "it ended the handshake; most likely its key is not the one trusted here (was it set up anew?)",
            refused=True,
        )
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        return Failure("the connection was cut during the handshake")
    if opened:
        return Failure("the connection was lost")
    return Failure("no connection", no_connection=event == zmq.EVENT_CLOSED)
