"""Stock zerorpc on either side of our transport, in the clear and encrypted, with its heartbeats on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest
import zerorpc
import zmq

from common import auth, errors
from common.rpc import Method, Peer, RpcServer
from tests.support.rpc import OTHER_KEYS, SERVER_KEYS, calling, serving

BEAT_S = 0.3
LONG_S = 5 * BEAT_S

encrypted_or_not = pytest.mark.parametrize("keys", [SERVER_KEYS, None], ids=["curve", "clear"])


def wait(_: Peer, seconds: float, answer: Any) -> Any:
    gevent.sleep(seconds)
    return answer


def refuse(_: Peer) -> None:
    raise errors.Conflict("Not in this state.")


METHODS = {
    "add": Method(lambda _, a, b: a + b),
    "add_inline": Method(lambda _, a, b: a + b, inline=True),
    "echo": Method(lambda _, *args: list(args)),
    "wait": Method(wait),
    "refuse": Method(refuse),
    "who": Method(lambda peer: peer.key),
}


@contextmanager
def stock_client(server: RpcServer, keys: auth.KeyPair | None, **options: Any) -> Iterator[zerorpc.Client]:
    client = zerorpc.Client(**{"heartbeat": BEAT_S, "timeout": 10, **options})
    if keys is not None:
        socket = client._events._socket
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.public)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, OTHER_KEYS.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, OTHER_KEYS.secret)
    client.connect(server.endpoint)
    try:
        yield client
    finally:
        client.close()


class StockMethods:
    def add(self, a: int, b: int) -> int:
        return a + b

    def echo(self, *args: Any) -> list[Any]:
        return list(args)

    def wait(self, seconds: float, answer: Any) -> Any:
        gevent.sleep(seconds)
        return answer

    def fail(self) -> None:
        raise LookupError("no such thing")

    @zerorpc.stream
    def count(self, n: int) -> Iterator[int]:
        yield from range(n)


@contextmanager
def stock_server(keys: auth.KeyPair | None) -> Iterator[str]:
    server = zerorpc.Server(StockMethods(), heartbeat=BEAT_S)
    socket = server._events._socket
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    server.bind("tcp://127.0.0.1:0")
    running = gevent.spawn(server.run)
    try:
        yield socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
    finally:
        server.close()
        running.kill(block=False)


@encrypted_or_not
def test_a_stock_client_calls_our_server(keys: auth.KeyPair | None) -> None:
    with serving(METHODS, keys=keys) as server, stock_client(server, keys) as client:
        assert client.add(1, 2) == 3
        assert client.add_inline(1, 2) == 3
        values = [None, True, 1.5, -(2**63), "é", b"\xff", [1, [2]], {"a": {"b": 1}}]
        assert client.echo(*values) == values
        assert client.who() == (keys and OTHER_KEYS.public_text)


@encrypted_or_not
def test_a_stock_client_gets_our_errors_by_name_and_without_traceback(keys: auth.KeyPair | None) -> None:
    with serving(METHODS, keys=keys) as server, stock_client(server, keys) as client:
        for call, name in ((client.refuse, "conflict"), (client.nothing_here, "unknown_method")):
            with pytest.raises(zerorpc.RemoteError) as caught:
                call()
            assert (caught.value.name, caught.value.traceback) == (name, None)
        for name in ("_zerorpc_inspect", "_zerorpc_list", "_zerorpc_ping", "_zerorpc_name"):
            with pytest.raises(zerorpc.RemoteError, match="unknown_method"):
                client(name)


@encrypted_or_not
def test_a_stock_client_waits_longer_than_its_heartbeats_allow(keys: auth.KeyPair | None) -> None:
    with serving(METHODS, keys=keys) as server, stock_client(server, keys) as client:
        calls = [gevent.spawn(client, "wait", LONG_S, number) for number in range(5)]
        assert [call.get(timeout=10) for call in calls] == list(range(5))
        assert client.add(1, 2) == 3


def test_a_stock_client_without_heartbeats_works_too() -> None:
    with serving(METHODS) as server, stock_client(server, SERVER_KEYS, heartbeat=None) as client:
        assert client.wait(0.05, "x") == "x"


def test_many_stock_calls_at_a_time() -> None:
    with serving(METHODS) as server, stock_client(server, SERVER_KEYS) as client:
        calls = [gevent.spawn(client, "add", number, 1) for number in range(60)]
        assert [call.get(timeout=10) for call in calls] == [number + 1 for number in range(60)]
        assert (server.metrics.pending, server.metrics.malformed, server.metrics.unroutable) == (0, 0, 0)


def test_a_stock_client_that_loses_patience_disturbs_nobody() -> None:
    with serving(METHODS) as server, stock_client(server, SERVER_KEYS) as client:
        with pytest.raises(zerorpc.TimeoutExpired):
            client.wait(LONG_S, "late", timeout=0.1)
        assert client.add(1, 2) == 3
        with calling(server.endpoint) as ours:
            assert ours.call("add", 1, 2, timeout_s=5) == 3


@encrypted_or_not
def test_our_client_calls_a_stock_server(keys: auth.KeyPair | None) -> None:
    with stock_server(keys) as endpoint, calling(endpoint, server_key=keys and keys.public) as client:
        assert client.call("add", 1, 2, timeout_s=5) == 3
        values = [None, True, 1.5, -(2**63), "é", b"\xff", [1, [2]], {"a": {"b": 1}}]
        assert client.call("echo", *values, timeout_s=5) == values
        calls = [gevent.spawn(client.call, "add", number, 1, timeout_s=10) for number in range(60)]
        assert [call.get(timeout=10) for call in calls] == [number + 1 for number in range(60)]


@encrypted_or_not
def test_our_client_waits_longer_than_a_stock_servers_heartbeats_allow(keys: auth.KeyPair | None) -> None:
    with stock_server(keys) as endpoint, calling(endpoint, server_key=keys and keys.public) as client:
        calls = [gevent.spawn(client.call, "wait", LONG_S, number, timeout_s=10) for number in range(5)]
        assert [call.get(timeout=10) for call in calls] == list(range(5))
        assert client.pending == 0


def test_a_stock_servers_error_keeps_its_name_and_its_traceback() -> None:
    with stock_server(SERVER_KEYS) as endpoint, calling(endpoint) as client:
        with pytest.raises(errors.MusterError, match="LookupError: no such thing") as caught:
            client.call("fail", timeout_s=5)
        cause = caught.value.__cause__
        assert isinstance(cause, zerorpc.RemoteError)
        assert "in fail" in cause.traceback
        with pytest.raises(errors.MusterError, match="NameError: nothing_here"):
            client.call("nothing_here", timeout_s=5)


def test_a_stock_servers_stream_is_refused_by_name() -> None:
    with stock_server(SERVER_KEYS) as endpoint, calling(endpoint) as client:
        with pytest.raises(errors.ProtocolError, match="'STREAM', which is not used here"):
            client.call("count", 3, timeout_s=5)
        assert client.call("add", 1, 2, timeout_s=5) == 3


class Middleware:
    """Hooks as zerorpc's documentation describes them."""

    def __init__(self, moved: dict[str, str]) -> None:
        self.moved = moved
        self.seen: list[tuple[str, Any]] = []

    def resolve_endpoint(self, endpoint: str) -> str:
        return self.moved.get(endpoint, endpoint)

    def get_task_context(self) -> dict[str, Any]:
        return {"trace": "t-1"}

    def load_task_context(self, header: dict[str, Any]) -> None:
        self.seen.append(("load", header.get("trace")))

    def client_before_request(self, event: zerorpc.Event) -> None:
        event.header["token"] = "let me in"

    def server_before_exec(self, event: zerorpc.Event) -> None:
        self.seen.append((event.name, event.header.get("token")))
        if event.args == [13]:
            raise errors.Forbidden("Not thirteen.")


@pytest.fixture
def middleware() -> Iterator[Callable[[dict[str, str]], Middleware]]:
    context = zerorpc.Context.get_instance()
    before = {name: list(hooks) for name, hooks in context._hooks.items()}

    def register(moved: dict[str, str]) -> Middleware:
        added = Middleware(moved)
        context.register_middleware(added)
        return added

    yield register
    context._hooks.update(before)
    context._middlewares.clear()


def test_zerorpcs_middleware_is_honoured(middleware: Callable[[dict[str, str]], Middleware]) -> None:
    moved = {"tcp://master.example:1": ""}
    hooks = middleware(moved)
    with serving(METHODS) as server:
        moved["tcp://master.example:1"] = server.endpoint
        with calling("tcp://master.example:1") as client:
            assert client.call("echo", 12, timeout_s=5) == [12]
            with pytest.raises(errors.Forbidden, match="Not thirteen"):
                client.call("echo", 13, timeout_s=5)
    assert hooks.seen == [("load", "t-1"), ("echo", "let me in")] * 2
