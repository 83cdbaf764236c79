"""The client's connection: how it comes up, what it says when it doesn't, how it comes back, and that nothing leaks."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest
import zmq
import zmq.green
from gevent.event import Event
from gevent.hub import get_hub

from common import auth, errors, rpc_link, rpc_socket
from common.backoff import Backoff
from common.rpc import Method, Peer, RpcClient
from tests.support.link import Link
from tests.support.rpc import MESSAGE, OTHER_KEYS, PEER_KEYS, SERVER_KEYS, calling, quick_backoff, serving

ROOT = Path(__file__).parents[2]


class States:
    """What a client says of its connection; `wait` waits until it has said something that contains a text."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._changed = Event()

    def __call__(self, sentence: str) -> None:
        self.said.append(sentence)
        self._changed.set()

    def wait(self, text: str, *, timeout_s: float = 10) -> None:
        with gevent.Timeout(timeout_s, AssertionError(f"never said {text!r}, but {self.said}")):
            while not any(text in sentence for sentence in self.said):
                self._changed.clear()
                self._changed.wait()


def echo(_: Peer, *args: Any) -> list[Any]:
    return list(args)


def forever(_: Peer) -> None:
    Event().wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def silent_server(**options: int) -> Iterator[str]:
    """Passes the encryption and then never answers, or not even reads."""
    router = zmq.green.Context.instance().socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    for name, value in options.items():
        router.setsockopt(getattr(zmq, name), value)
    router.curve_server = True
    router.curve_secretkey = SERVER_KEYS.secret
    port = router.bind_to_random_port("tcp://127.0.0.1")
    try:
        yield f"tcp://127.0.0.1:{port}"
    finally:
        router.close()


SERVER_PROGRAM = """
import sys, gevent
from gevent.event import Event
from common.rpc import Method, RpcServer
keys = [word.encode() for word in sys.argv[2:4]]
methods = {"echo": Method(lambda _, *args: list(args)), "forever": Method(lambda _: Event().wait())}
server = RpcServer(sys.argv[1], methods, public_key=keys[0], secret_key=keys[1], authorize=lambda peer, name: None,
                   max_message_bytes=2**21)
server.start()
print("ready", flush=True)
while True:
    gevent.sleep(60)
"""


@contextmanager
def server_process(endpoint: str) -> Iterator[subprocess.Popen[str]]:
    words = [endpoint, SERVER_KEYS.public.decode(), SERVER_KEYS.secret.decode()]
    command = [sys.executable, "-c", SERVER_PROGRAM, *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_call_waits_for_a_server_that_is_just_starting() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    states = States()
    with calling(endpoint, on_state=states) as client:
        call = gevent.spawn(client.call, "echo", 1, timeout_s=10)
        states.wait("no connection (connection refused)")
        with serving({"echo": Method(echo)}, endpoint=endpoint):
            assert call.get(timeout=10) == [1]
    assert states.said[0] == "connecting"
    assert states.said[-2:] == ["connected", "stopped"]


def test_a_call_gives_up_on_a_dead_port_and_says_why() -> None:
    with calling(f"tcp://127.0.0.1:{free_port()}", connect_wait_s=0.3) as client:
        began = time.monotonic()
        with pytest.raises(errors.PeerUnreachable, match=r"cannot be reached for echo: no connection \(connection ref"):
            client.call("echo", timeout_s=30)
        assert 0.2 < time.monotonic() - began < 5


def test_the_deadline_covers_waiting_for_a_connection() -> None:
    with calling(f"tcp://127.0.0.1:{free_port()}", connect_wait_s=60) as client:
        began = time.monotonic()
        with pytest.raises(errors.PeerUnreachable):
            client.call("echo", timeout_s=0.2)
        assert 0.15 < time.monotonic() - began < 5


def test_an_unknown_host_is_named() -> None:
    states = States()
    with calling("tcp://no-such-host.invalid:4600", on_state=states, connect_wait_s=1) as client:
        states.wait("its address cannot be used")
        with pytest.raises(errors.PeerUnreachable, match=r"no-such-host\.invalid:4600"):
            client.call("echo", timeout_s=5)


def test_the_wrong_server_key_is_named_and_calls_do_not_wait() -> None:
    states = States()
    wrong = {"server_key": OTHER_KEYS.public, "on_state": states}
    with serving({"echo": Method(echo)}) as server, calling(server.endpoint, **wrong) as client:
        states.wait("its key is not the one trusted here")
        began = time.monotonic()
        with pytest.raises(errors.PeerUnreachable, match="its key is not the one trusted here"):
            client.call("echo", timeout_s=30)
        assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    ("server_keys", "server_key"), [(SERVER_KEYS, None), (None, SERVER_KEYS.public)], ids=["server", "client"]
)
def test_encryption_on_one_side_only_is_named(server_keys: auth.KeyPair | None, server_key: bytes | None) -> None:
    states = States()
    theirs, ours = {"keys": server_keys}, {"server_key": server_key, "on_state": states}
    with serving({"echo": Method(echo)}, **theirs) as server, calling(server.endpoint, **ours):
        states.wait("one end encrypts and the other does not")


def test_a_key_refused_at_the_door_is_named_and_let_in_once_it_is_allowed() -> None:
    """libzmq alone would never try again after such a refusal."""
    context = zmq.green.Context()
    door = context.socket(zmq.REP)
    door.bind("inproc://zeromq.zap.01")
    router = context.socket(zmq.ROUTER)
    router.curve_server = True
    router.curve_secretkey = SERVER_KEYS.secret
    router.zap_domain = b"test"
    port = router.bind_to_random_port("tcp://127.0.0.1")
    answer = [b"400"]

    def keep_door() -> None:
        while True:
            request = door.recv_multipart()
            door.send_multipart([b"1.0", request[1], answer[0], b"", b"somebody", b""])

    keeper = gevent.spawn(keep_door)
    states = States()
    try:
        with calling(f"tcp://127.0.0.1:{port}", on_state=states):
            states.wait("does not approve this key (answer 400)")
            answer[0] = b"200"
            states.wait("connected")
    finally:
        keeper.kill()
        router.close(0)
        door.close(0)
        context.term()


def test_something_that_listens_but_does_not_speak_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_socket, "HANDSHAKE_MS", 100)
    states = States()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with calling(f"tcp://127.0.0.1:{listener.getsockname()[1]}", on_state=states):
            states.wait("does not answer the handshake")


def test_an_attempt_that_never_settles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_link, "OPEN_S", 0.05)
    states = States()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with calling(f"tcp://127.0.0.1:{listener.getsockname()[1]}", on_state=states):
            states.wait("no answer in time")


def test_a_restarted_server_fails_the_calls_under_way_and_serves_the_next() -> None:
    states = States()
    methods = {"echo": Method(echo), "forever": Method(forever)}
    with serving(methods) as server, calling(server.endpoint, on_state=states) as client:
        calls = [gevent.spawn(client.call, "forever", timeout_s=60) for _ in range(20)]
        assert client.call("echo", 1, timeout_s=5) == [1]
        server.stop()
        for call in calls:
            with pytest.raises(errors.PeerUnreachable, match="was lost while forever was under way"):
                call.get(timeout=5)
        with serving(methods, endpoint=server.endpoint):
            assert client.call("echo", 2, timeout_s=5) == [2]
    assert states.said.count("connected") == 2


def test_a_killed_server_process_is_noticed_at_once() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with calling(endpoint, connect_wait_s=20) as client:
        with server_process(endpoint) as process:
            assert client.call("echo", 1, timeout_s=20) == [1]
            call = gevent.spawn(client.call, "forever", timeout_s=60)
            assert client.call("echo", 2, timeout_s=20) == [2]
            process.send_signal(signal.SIGKILL)
            with pytest.raises(errors.PeerUnreachable, match="was lost while forever was under way"):
                call.get(timeout=5)
        with server_process(endpoint):
            assert client.call("echo", 3, timeout_s=20) == [3]


def test_a_link_that_is_cut_comes_back_and_one_that_hangs_is_found_out() -> None:
    states = States()
    ours = {"on_state": states, "heartbeat_s": 0.2, "connect_wait_s": 10}
    with serving({"echo": Method(echo), "forever": Method(forever)}) as server:
        host, port = server.endpoint.removeprefix("tcp://").split(":")
        with Link((host, int(port))) as link, calling(f"tcp://{link.address}", **ours) as client:
            assert client.call("echo", 1, timeout_s=5) == [1]
            link.cut()
            states.wait("the connection was lost")
            states.wait("cut during the handshake")
            link.restore()
            assert client.call("echo", 2, timeout_s=10) == [2]
            call = gevent.spawn(client.call, "forever", timeout_s=60)
            assert client.call("echo", 3, timeout_s=5) == [3]
            link.hold()  # half-open: nothing arrives and nobody says so
            with pytest.raises(errors.PeerUnreachable, match="was lost while forever was under way"):
                call.get(timeout=10)
            link.restore()
            assert client.call("echo", 4, timeout_s=10) == [4]


class NamesThatMove:
    """The loop's own resolver, but for one name, whose address the test changes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        self.asked = 0
        self._real = get_hub().resolver

    def getaddrinfo(self, host: str, port: int, *rest: Any) -> Any:
        if host != self.name:
            return self._real.getaddrinfo(host, port, *rest)
        self.asked += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.address, port))]

    def close(self) -> None:
        self._real.close()


@pytest.fixture
def names() -> Iterator[NamesThatMove]:
    hub = get_hub()
    before = hub.resolver
    hub.resolver = moving = NamesThatMove("master.test")
    yield moving
    hub.resolver = before


def test_a_master_that_moved_behind_its_name_is_found(names: NamesThatMove) -> None:
    port = free_port()
    with calling(f"tcp://master.test:{port}", connect_wait_s=10) as client:
        for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            names.address = address
            with serving({"echo": Method(echo)}, endpoint=f"tcp://{address}:{port}"):
                assert client.call("echo", address, timeout_s=10) == [address]
            while client.connected:
                gevent.sleep(0.01)
    assert names.asked >= 3


def test_every_address_of_a_name_is_tried(names: NamesThatMove, monkeypatch: pytest.MonkeyPatch) -> None:
    def two(host: str, port: int, *rest: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.9", "127.0.0.1")]

    monkeypatch.setattr(names, "getaddrinfo", two)
    with serving({"echo": Method(echo)}) as server:
        port = server.endpoint.rpartition(":")[2]
        with calling(f"tcp://master.test:{port}") as client:
            assert client.call("echo", 1, timeout_s=10) == [1]


def test_ipv6_works() -> None:
    methods = {"who": Method(lambda peer: peer.address)}
    with serving(methods, endpoint="tcp://[::1]:0") as server, calling(server.endpoint) as client:
        assert client.call("who", timeout_s=10) == "::1"
    with serving(methods, endpoint="tcp://*:0") as server:
        port = server.endpoint.rpartition(":")[2]
        for host in ("127.0.0.1", "[::1]"):
            with calling(f"tcp://{host}:{port}") as client:
                assert client.call("who", timeout_s=10) == host.strip("[]")


def test_calls_that_timed_out_during_an_outage_are_not_carried_out_later() -> None:
    ran: list[int] = []
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with calling(endpoint, connect_wait_s=0.05) as client:
        for number in range(5):
            with pytest.raises(errors.PeerUnreachable):
                client.call("run", number, timeout_s=0.1)
        with serving({"run": Method(lambda _, n: ran.append(n))}, endpoint=endpoint):
            client._connect_wait_s = 10
            client.call("run", 99, timeout_s=10)
            assert ran == [99]


def test_thousands_of_timed_out_calls_leave_nothing(full: bool) -> None:
    count = 10_000 if full else 3_000
    with silent_server() as endpoint, calling(endpoint) as client:

        def one() -> None:
            with pytest.raises(errors.CallTimeout):
                client.call("echo", b"x" * 100, timeout_s=0.3)

        gevent.joinall([gevent.spawn(one) for _ in range(100)], raise_error=True)
        gc.collect()
        before = len(gc.get_objects()), descriptors(), threading.active_count()
        for _ in range(count // 500):
            gevent.joinall([gevent.spawn(one) for _ in range(500)], raise_error=True)
        gc.collect()
        assert client.pending == 0
        assert len(gc.get_objects()) - before[0] < 500
        assert descriptors() <= before[1]
        assert threading.active_count() <= before[2]


def test_a_server_that_does_not_read_costs_each_call_its_deadline_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_link, "_HIGH_WATER", 4)
    with silent_server(RCVHWM=1, RCVBUF=4096) as endpoint, calling(endpoint) as client:
        said = []
        for _ in range(60):
            began = time.monotonic()
            with pytest.raises(errors.CallTimeout) as caught:
                client.call("echo", b"x" * 500_000, timeout_s=0.03)
            assert time.monotonic() - began < 2
            said.append(caught.value.message)
        assert any("was not sent" in message for message in said)
        assert client.pending == 0


def test_reconnecting_to_a_dead_port_leaks_nothing(full: bool) -> None:
    attempts = 500 if full else 100
    rounds = Event()
    counted = [0]

    def draw() -> float:
        counted[0] += 1
        if counted[0] in (20, attempts):
            rounds.set()
        return 0.0

    backoff = Backoff(base_s=0.001, cap_s=0.001, floor_s=0.001, draw=draw)
    with calling(f"tcp://127.0.0.1:{free_port()}", backoff=backoff) as client:
        assert rounds.wait(timeout=30)
        rounds.clear()
        before = descriptors(), threading.active_count()
        assert rounds.wait(timeout=60)
        assert descriptors() <= before[0] + 3  # one attempt more or less may be under way
        assert threading.active_count() <= before[1]
        assert not client.connected


def test_opening_and_closing_clients_leaks_nothing() -> None:
    with serving({"echo": Method(echo)}) as server:

        def once() -> None:
            with calling(server.endpoint) as client:
                client.call("echo", timeout_s=10)

        for _ in range(3):
            once()
        before = descriptors()
        for _ in range(30):
            once()
        with calling(server.endpoint) as client:  # the closed ones are let go by libzmq's own thread, in order
            client.call("echo", timeout_s=10)
        assert descriptors() <= before + 6


def test_delays_start_anew_once_the_server_has_answered() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    backoff = quick_backoff()
    with calling(endpoint, backoff=backoff) as client:
        with pytest.raises(errors.PeerUnreachable):
            client.call("echo", timeout_s=0.3)
        assert backoff.attempts > 1
        with serving({"echo": Method(echo)}, endpoint=endpoint):
            assert client.call("echo", 1, timeout_s=10) == [1]
            assert backoff.attempts == 0


def test_a_listener_that_fails_does_not_end_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("a bad listener")

    with serving({"echo": Method(echo)}) as server, calling(server.endpoint, on_state=fail) as client:
        assert client.call("echo", 1, timeout_s=10) == [1]
    assert "a bad listener" in caplog.text


def test_an_address_that_makes_no_sense_is_named() -> None:
    for endpoint in ("tcp://nowhere", "tcp://host:port", "bogus://x", "tcp://127.0.0.1:99999", "tcp://:1", "x"):
        states = States()
        client = RpcClient(
            endpoint,
            server_key=SERVER_KEYS.public,
            public_key=PEER_KEYS.public,
            secret_key=PEER_KEYS.secret,
            max_message_bytes=MESSAGE,
            on_state=states,
        )
        client.start()
        states.wait("its address cannot be used")
        client.stop()


def test_many_clients_of_one_server(full: bool) -> None:
    count = 200 if full else 60
    go = Event()
    with serving({"wait": Method(lambda _, n: go.wait() and n)}) as server:
        clients = [
            RpcClient(
                server.endpoint,
                server_key=SERVER_KEYS.public,
                public_key=keys.public,
                secret_key=keys.secret,
                max_message_bytes=MESSAGE,
            )
            for keys in (auth.new_key_pair() for _ in range(count))
        ]
        calls: list[Any] = []
        try:
            for number, client in enumerate(clients):
                client.start()
                calls.append(gevent.spawn(client.call, "wait", number, timeout_s=30))
            while server.metrics.pending < count:
                gevent.sleep(0.01)
            go.set()
            assert [call.get(timeout=20) for call in calls] == list(range(count))
        finally:
            for client in clients:
                client.stop()
