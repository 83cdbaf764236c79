"""Plain zmq sockets driven by the event loop, and the options all RPC sockets share.

`Port` reads one socket through a single watcher on its descriptor and hands whole messages to a callback, in batches
that leave the loop its turn; sending never waits. This costs a fraction of what green sockets do (no greenlet and no
option lookup per frame). Everything runs in the loop's own thread; callbacks must not wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import zmq
from gevent.hub import get_hub

logger = logging.getLogger(__name__)

MESSAGES_PER_TURN = 200
"""Messages read from one socket in one turn of the loop before others get theirs."""

HANDSHAKE_MS = 20_000
"""Longest time for the encrypted greeting after TCP is connected."""

MAX_FRAMES = 8
"""Frames kept of one message; no message of the protocol has more than three."""

_CURVE_BYTES = 64
"""Room for what encryption adds to a frame (33 bytes), so that a message of exactly the limit passes."""

_NOW = int(zmq.DONTWAIT)
_MORE_NOW = int(zmq.DONTWAIT | zmq.SNDMORE)
_READ = 1

PlainSocket = zmq.Socket[bytes]


class Carrier(Protocol):
    """What server and client take from zerorpc (see `common.rpc`): sockets of the shared context, ids and hooks."""

    def socket(self, kind: int) -> PlainSocket:
        """A new plain socket of the one context of this process."""

    def message_id(self) -> bytes:
        """A new message id."""

    def resolve(self, endpoint: str) -> str:
        """The endpoint as the hooks for addresses want it."""

    def before_request(self, header: dict[str, Any], name: str, args: tuple[Any, ...]) -> None:
        """Let the hooks see, and add to the header of, a request that is about to be sent."""

    def before_exec(self, header: dict[str, Any], name: str, args: Sequence[Any]) -> None:
        """Let the hooks see, or refuse by raising, a request that is about to be carried out."""

    def remote_error(self, name: str, message: str, traceback: str | None) -> Exception:
        """The peer's error in zerorpc's terms, as the cause of ours."""


class Port:
    """One socket in the loop: `receive(frames)` is called for every message, `send` sends or raises at once."""

    def __init__(self, socket: PlainSocket, receive: Callable[[list[zmq.Frame]], None]) -> None:
        self._socket = socket
        self._receive = receive
        # The binding's own methods: the wrappers around them cost as much as the calls.
        base: Any = super(zmq.Socket, socket)
        self._recv_frame: Callable[..., Any] = base.recv
        self._send_frame: Callable[..., Any] = base.send
        self._closed = False
        self._pumping = False
        self._look_scheduled = False
        self._loop = get_hub().loop
        self._watcher = self._loop.io(int(socket.getsockopt(zmq.FD)), _READ)
        self._watcher.start(self._pump)
        self._look_again()  # what came before the watcher was there raises no event any more

    @property
    def socket(self) -> PlainSocket:
        """The socket itself, for options and endpoints."""
        return self._socket

    def send(self, *frames: bytes) -> None:
        """Send one message now; raises `zmq.Again` when there is no room, `zmq.ZMQError` when it cannot be routed."""
        send_frame = self._send_frame
        try:
            for frame in frames[:-1]:
                send_frame(frame, _MORE_NOW)
            send_frame(frames[-1], _NOW)
        finally:
            # Sending may swallow the descriptor's signal that something came in.
            self._look_again()

    def drain(self) -> None:
        """Hand over what has already come in, without waiting for the loop's turn."""
        if not self._pumping:
            self._pump()

    def close(self) -> None:
        """Take the socket out of the loop and close it; unsent messages are dropped."""
        if self._closed:
            return
        self._closed = True
        self._watcher.stop()
        self._watcher.close()
        self._socket.close(0)

    def _look_again(self) -> None:
        if not (self._pumping or self._look_scheduled or self._closed):
            self._look_scheduled = True
            self._loop.run_callback(self._pump)

    def _pump(self) -> None:
        self._look_scheduled = False
        if self._closed or self._pumping:
            return
        self._pumping = True
        emptied = False
        try:
            emptied = self._read_batch()
        finally:
            self._pumping = False
            if not emptied:
                self._look_again()

    def _read_batch(self) -> bool:
        """Read until nothing is left (then True) or the turn is over (False)."""
        recv_frame = self._recv_frame
        for _ in range(MESSAGES_PER_TURN):
            try:
                frame = recv_frame(_NOW, False)
            except zmq.Again:
                return True
            frames = [frame]
            while frame.more:
                frame = recv_frame(_NOW, False)
                if len(frames) < MAX_FRAMES:
                    frames.append(frame)
            try:
                self._receive(frames)
            except Exception:  # edge of the loop: one message must not stop those behind it
                logger.exception("a message could not be handled")
            if self._closed:
                return True
        return False


def wants_ipv6(endpoint: str) -> bool:
    """Whether the socket for `endpoint` must speak IPv6; an IPv4 one must not, lest its peers' addresses look so."""
    host = endpoint.partition("://")[2].rpartition(":")[0]
    return ":" in host or host == "*"


def apply_options(
    socket: PlainSocket, endpoint: str, *, max_message_bytes: int, to_send: int, to_read: int, heartbeat_s: float
) -> None:
    """The options common to both ends.

    At most `to_send` and `to_read` messages of one connection wait in libzmq. `heartbeat_s` is the interval of ZMTP's
    pings; three missed ones end a connection.
    """
    beat_ms = max(1, round(heartbeat_s * 1000))
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.MAXMSGSIZE, max_message_bytes + _CURVE_BYTES),
        (zmq.SNDHWM, to_send),
        (zmq.RCVHWM, to_read),
        (zmq.HEARTBEAT_IVL, beat_ms),
        (zmq.HEARTBEAT_TIMEOUT, 3 * beat_ms),
        (zmq.HEARTBEAT_TTL, 3 * beat_ms),
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, 60),
        (zmq.TCP_KEEPALIVE_INTVL, 20),
        (zmq.TCP_KEEPALIVE_CNT, 3),
        (zmq.IPV6, int(wants_ipv6(endpoint))),
    ):
        socket.setsockopt(option, value)
