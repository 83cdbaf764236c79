"""The ZAP door: answers libzmq's question whether a CURVE peer may connect, once per connection.

Every key is admitted, under its own name: the peer's z85 public key becomes the User-Id of all its messages. Whether
a key may call is decided per request, so that a revoked one is cut at its next message and an unknown one may enrol.
"""

from __future__ import annotations

from typing import Protocol

import zmq
from zmq.utils import z85

from common.rpc_socket import Carrier, Port

DOMAIN = b"muster"
_ENDPOINT = "inproc://zeromq.zap.01"  # fixed by the protocol, hence one door for all servers of a process
_KEY_BYTES = 32


class ZapDoor:
    """Admits CURVE peers for all servers on one zmq context; open while at least one server uses it."""

    def __init__(self) -> None:
        self._users = 0
        self._port: Port | None = None

    def open(self, carrier: Carrier) -> None:
        """One more server needs the door. Call it before that server binds."""
        if self._port is None:
            socket = carrier.socket(zmq.REP)
            try:
                socket.setsockopt(zmq.LINGER, 0)
                socket.bind(_ENDPOINT)
            except zmq.ZMQError:
                socket.close(0)
                raise
            self._port = Port(socket, self._answer)
        self._users += 1

    def close(self) -> None:
        """One server less needs the door."""
        self._users -= 1
        if self._users == 0 and self._port is not None:
            self._port.socket.unbind(_ENDPOINT)  # at once; closing alone frees the name only some time later
            self._port.close()
            self._port = None

    def _answer(self, frames: list[zmq.Frame]) -> None:
        if self._port is None:
            return
        parts = [frame.bytes for frame in frames]
        request_id = parts[1] if len(parts) > 1 else b""
        user_id = b""
        if len(parts) == 7 and parts[0] == b"1.0" and parts[5] == b"CURVE" and len(parts[6]) == _KEY_BYTES:
            user_id = z85.encode(parts[6])
        status, text = (b"200", b"OK") if user_id else (b"400", b"CURVE only")
        self._port.send(b"1.0", request_id, status, text, user_id, b"")


class ServerCarrier(Carrier, Protocol):
    """What a server takes from zerorpc beyond `Carrier`: the one door of the context."""

    def zap_door(self) -> ZapDoor:
        """The door all servers of this context share."""
