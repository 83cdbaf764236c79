"""Both ends of the RPC transport for tests: a server and clients with fresh keys, and a peer without manners.

`serving` and `calling` close what they opened. `RawPeer` is a bare encrypted socket that sends any bytes at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gevent
import msgspec
import zmq.green

from common import auth
from common.backoff import Backoff
from common.rpc import Method, Peer, RpcClient, RpcServer

MESSAGE = 2 * 1024 * 1024
SERVER_KEYS = auth.new_key_pair()
PEER_KEYS = auth.new_key_pair()
OTHER_KEYS = auth.new_key_pair()


def anyone(_peer: Peer, _method: str) -> None:
    """An authoriser that lets every request through."""


def quick_backoff() -> Backoff:
    """Delays short enough for a test."""
    return Backoff(base_s=0.01, cap_s=0.05, floor_s=0.005)


@contextmanager
def serving(
    methods: Mapping[str, Method],
    *,
    keys: auth.KeyPair | None = SERVER_KEYS,
    endpoint: str = "tcp://127.0.0.1:0",
    authorize: Callable[[Peer, str], None] = anyone,
    max_message_bytes: int = MESSAGE,
    **options: Any,
) -> Iterator[RpcServer]:
    """A started server; `keys=None` serves in the clear."""
    server = RpcServer(
        endpoint,
        methods,
        secret_key=keys and keys.secret,
        public_key=keys and keys.public,
        authorize=authorize,
        max_message_bytes=max_message_bytes,
        **options,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def calling(
    endpoint: str,
    *,
    server_key: bytes | None = SERVER_KEYS.public,
    keys: auth.KeyPair = PEER_KEYS,
    max_message_bytes: int = MESSAGE,
    **options: Any,
) -> Iterator[RpcClient]:
    """A started client; `server_key=None` speaks in the clear."""
    client = RpcClient(
        endpoint,
        server_key=server_key,
        public_key=keys.public,
        secret_key=keys.secret,
        max_message_bytes=max_message_bytes,
        **{"backoff": quick_backoff(), **options},
    )
    client.start()
    try:
        yield client
    finally:
        client.stop()


class RawPeer:
    """A DEALER socket that passes the encryption and then sends what it likes."""

    def __init__(
        self,
        endpoint: str,
        *,
        keys: auth.KeyPair = PEER_KEYS,
        server_key: bytes = SERVER_KEYS.public,
        options: Mapping[int, int | bytes] | None = None,
    ) -> None:
        self.socket = zmq.green.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        for option, value in (options or {}).items():
            self.socket.setsockopt(option, value)
        self.socket.curve_serverkey = server_key
        self.socket.curve_publickey = keys.public
        self.socket.curve_secretkey = keys.secret
        self.socket.connect(endpoint)

    def send(self, *frames: bytes) -> None:
        """Send the frames as they are."""
        self.socket.send_multipart(frames)

    def request(self, message_id: object, name: object, args: object, **header: object) -> None:
        """Send something that looks like a request; entries of `header` are added to, or replace, the usual ones."""
        self.send(b"", packed({"message_id": message_id, "v": 3, **header}, name, args))

    def answer(self, timeout_s: float = 5.0) -> tuple[dict[str, Any], str, Any]:
        """The next message from the server."""
        with gevent.Timeout(timeout_s):
            return unpacked(self.socket.recv_multipart()[-1])

    def call(self, name: str, *args: object) -> Any:
        """A well-formed call; gives (name of the answer, its arguments), skipping answers to anything else."""
        message_id = os.urandom(8)
        self.request(message_id, name, args)
        while True:
            header, kind, value = self.answer()
            if header["response_to"] == message_id:
                return kind, value

    def close(self) -> None:
        """Drop the connection."""
        self.socket.close()

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def packed(header: object, name: object, args: object) -> bytes:
    """Any three values as a message."""
    return msgspec.msgpack.encode((header, name, args))


def unpacked(blob: bytes) -> tuple[dict[str, Any], str, Any]:
    """(header, name, args) of a message."""
    header, name, args = msgspec.msgpack.decode(blob)
    return header, name, args
