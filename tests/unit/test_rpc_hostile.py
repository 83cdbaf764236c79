"""Peers that send nonsense, too much, or read nothing. Each time everybody else is served as before.

The tests named `defect_N` are faults of stock zerorpc 0.6.3: 1 and 2 end or freeze its server, 3 raises inside it,
4 and 5 strike its client.
"""

from collections import Counter
from typing import Any

import gevent
import pytest
import zmq
from gevent.event import AsyncResult, Event

from common import auth, errors
from common.rpc import Method, Peer, RpcClient, RpcServer
from tests.support.rpc import OTHER_KEYS, PEER_KEYS, RawPeer, calling, packed, serving


def echo(_: Peer, *args: Any) -> list[Any]:
    return list(args)


class Gate:
    """A method that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.open = Event()
        self.entered = 0

    def __call__(self, _: Peer, *args: Any) -> list[Any]:
        self.entered += 1
        self.open.wait()
        return list(args)


def assert_served(server: RpcServer, bystander: RpcClient) -> None:
    """An old and a new connection both work."""
    assert bystander.call("echo", "old", timeout_s=5) == ["old"]
    with calling(server.endpoint, keys=auth.new_key_pair()) as fresh:
        assert fresh.call("echo", "new", timeout_s=5) == ["new"]


def test_defect_1_an_unhashable_response_to_kills_nobody() -> None:
    with serving({"echo": Method(echo)}) as server, calling(server.endpoint) as bystander:
        with RawPeer(server.endpoint) as peer:
            for response_to in ([], [1], {}, {"a": []}, 5, "text", b"", b"x" * 100):
                peer.request(b"id", "echo", [], response_to=response_to)
                peer.request(response_to, "echo", [])
            assert peer.call("echo", 1) == ("OK", [[1]])
        assert_served(server, bystander)
        assert server.metrics.malformed == 16


@pytest.mark.parametrize("name", ["_zpc_hb", "_zpc_more", "OK", "ERR", "STREAM", "echo"])
def test_defect_2_a_flood_of_events_on_an_open_call_freezes_nobody(name: str) -> None:
    gate = Gate()
    with serving({"echo": Method(echo), "wait": Method(gate)}) as server, calling(server.endpoint) as bystander:
        with RawPeer(server.endpoint) as peer:
            peer.request(b"open", "wait", ["x"])
            for number in range(200):
                peer.request(b"%d" % number, name, [1], response_to=b"open")
            assert peer.call("echo", 1) == ("OK", [[1]])
            assert_served(server, bystander)
            gate.open.set()
            assert peer.answer()[1:] == ("OK", [["x"]])
        assert gate.entered == 1


def test_heartbeats_are_echoed_for_open_calls_only() -> None:
    gate = Gate()
    methods = {"wait": Method(gate), "echo": Method(echo)}
    with serving(methods) as server, RawPeer(server.endpoint) as peer, RawPeer(server.endpoint) as other:
        peer.request(b"open", "wait", [])
        peer.request(b"hb", "_zpc_hb", [0], response_to=b"open")
        header, name, _ = peer.answer()
        assert (name, header["response_to"], header["v"]) == ("_zpc_hb", b"open", 3)
        peer.request(b"hb", "_zpc_hb", [0], response_to=b"never")
        other.request(b"hb", "_zpc_hb", [0], response_to=b"open")  # somebody else's call
        for who in (peer, other):
            who.request(b"last", "echo", [])
            assert who.answer()[0]["response_to"] == b"last"
        gate.open.set()
        assert peer.answer()[0]["response_to"] == b"open"
        peer.request(b"hb", "_zpc_hb", [0], response_to=b"open")  # over by now
        peer.request(b"end", "echo", [])
        assert peer.answer()[0]["response_to"] == b"end"


def test_defect_3_ids_that_are_duplicate_missing_or_shared() -> None:
    gate = Gate()
    with serving({"echo": Method(echo), "wait": Method(gate)}) as server, calling(server.endpoint) as bystander:
        with RawPeer(server.endpoint) as peer, RawPeer(server.endpoint, keys=OTHER_KEYS) as other:
            for _ in range(3):
                peer.request(b"same", "wait", ["peer"])
            other.request(b"same", "wait", ["other"])  # another peer's ids are its own affair
            peer.send(b"", packed({"v": 3}, "echo", []))
            peer.send(b"", packed({}, "echo", []))
            for who in (peer, other):
                who.request(b"after", "echo", [])
                assert who.answer()[0]["response_to"] == b"after"
            assert (gate.entered, server.metrics.duplicates, server.metrics.malformed) == (2, 2, 2)
            gate.open.set()
            assert peer.answer()[1:] == ("OK", [["peer"]])
            assert other.answer()[1:] == ("OK", [["other"]])
            assert peer.call("echo") == ("OK", [[]])
        assert_served(server, bystander)


@pytest.mark.parametrize("version", [None, 0, 1, 2, 4, "3", [3], 2**60])
def test_defect_3_another_version_of_the_protocol_is_told_so(version: object) -> None:
    with serving({"echo": Method(echo)}) as server, RawPeer(server.endpoint) as peer:
        peer.request(b"id", "echo", [], v=version)
        header, name, args = peer.answer()
        assert (header["response_to"], name, args[0], args[2]) == (b"id", "ERR", "protocol_error", None)
        assert server.metrics.calls == {}


def test_defect_4_calls_that_end_early_leave_nothing_behind() -> None:
    gate = Gate()
    with serving({"echo": Method(echo), "wait": Method(gate)}) as server, calling(server.endpoint) as client:
        with pytest.raises(errors.InvalidRequest, match="cannot be sent"):
            client.call("echo", "\udcff", timeout_s=5)
        cut = gevent.Timeout(0)
        with pytest.raises(gevent.Timeout), cut:
            client.call("wait", timeout_s=60)
        killed = gevent.spawn(client.call, "wait", timeout_s=60)
        gevent.idle()
        killed.kill()
        with pytest.raises(errors.CallTimeout, match=r"wait within 0\.001 s"):
            client.call("wait", timeout_s=0.001)
        assert client.pending == 0
        gate.open.set()  # the answers now come for nobody, and disturb nobody
        for number in range(20):
            assert client.call("echo", number, timeout_s=5) == [number]
        assert client.pending == 0


def test_defect_4_an_answer_beside_the_timer_is_not_lost() -> None:
    """The timer and the answer in one turn of the loop: the answer counts."""
    with serving({"echo": Method(echo)}) as server, calling(server.endpoint) as client:
        asked: AsyncResult[None] = AsyncResult()
        server._methods["wait"] = Method(lambda _: asked.set(None) or Event().wait())
        caller = gevent.spawn(client.call, "wait", timeout_s=60)
        asked.get(timeout=5)
        ((message_id, waiting),) = client._waiting.items()
        client._receive([zmq.Frame(packed({"message_id": b"m", "v": 3, "response_to": message_id}, "OK", ["here"]))])
        client._hub.loop.run_callback(waiting.waiter.switch, None)  # what the timer does
        assert caller.get(timeout=5) == "here"
        assert client.call("echo", timeout_s=5) == []


def test_defect_5_callers_killed_while_sending_never_tear_a_message() -> None:
    with serving({"echo": Method(echo, inline=True)}) as server, calling(server.endpoint) as client:
        body = b"x" * 50_000
        callers = [gevent.spawn(client.call, "echo", body, n, timeout_s=20) for n in range(300)]
        for number, caller in enumerate(callers):
            if number % 3:
                caller.kill(block=False)
            if number % 50 == 0:
                gevent.idle()
        gevent.joinall(callers, timeout=20)
        assert all(caller.value == [body, number] for number, caller in enumerate(callers) if number % 3 == 0)
        assert (server.metrics.malformed, client.pending) == (0, 0)
        assert client.call("echo", 1, timeout_s=5) == [1]


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"", b""),
        (b"", b"", b""),
        (b"x", packed({"message_id": b"m", "v": 3}, "echo", [])),
        (b"", packed({"message_id": b"m", "v": 3}, "echo", []), b"more"),
        tuple(b"%d" % n for n in range(50)),
    ],
)
def test_frames_of_a_foreign_shape_are_dropped(frames: tuple[bytes, ...]) -> None:
    with serving({"echo": Method(echo)}) as server, calling(server.endpoint) as bystander:
        with RawPeer(server.endpoint) as peer:
            peer.send(*frames)
            assert peer.call("echo", 1) == ("OK", [[1]])
        assert server.metrics.malformed == 1
        assert_served(server, bystander)


def test_a_peer_may_not_choose_its_own_identity() -> None:
    """It could choose the one another peer has just given up, and get that one's answers."""
    with serving({"echo": Method(echo)}) as server, calling(server.endpoint) as bystander:
        peer = RawPeer(server.endpoint, options={zmq.IDENTITY: b"chosen"})
        peer.request(b"id", "echo", [])
        while server.metrics.malformed == 0:
            bystander.call("echo", timeout_s=5)
        assert set(server.metrics.calls) == {"echo"}
        assert len(server._peers) == 1
        peer.close()


def test_bad_arguments_are_answered() -> None:
    with serving({"echo": Method(echo)}) as server, RawPeer(server.endpoint) as peer:
        for args in ({"a": 1}, "abc", None, 5):
            peer.request(b"id", "echo", args)
            _, name, answer = peer.answer()
            assert (name, answer[0]) == ("ERR", "malformed")
        peer.send(b"", b"\x93\x82\xaamessage_id\xc4\x01i\xa1v\x03\xa4echo\x91\xa2\xff\xfe")
        assert peer.answer()[2][0] == "malformed"


def test_more_calls_than_one_peer_may_have_are_answered_busy() -> None:
    gate = Gate()
    methods = {"echo": Method(echo), "quick": Method(echo, inline=True), "wait": Method(gate)}
    with (
        serving(methods, max_pending_per_peer=10) as server,
        calling(server.endpoint, keys=OTHER_KEYS) as bystander,
        RawPeer(server.endpoint) as peer,
    ):
        for number in range(100):
            peer.request(b"%d" % number, "wait", [])
        answers = [peer.answer() for _ in range(90)]
        assert {(name, args[0]) for _, name, args in answers} == {("ERR", "busy")}
        assert (gate.entered, server.metrics.pending) == (10, 10)
        with RawPeer(server.endpoint) as again:  # a second connection with the same key changes nothing
            assert again.call("wait")[1][0] == "busy"
            assert again.call("quick", 1) == ("OK", [[1]])  # inline calls are never pending
        assert_served(server, bystander)
        gate.open.set()
        assert [peer.answer()[1] for _ in range(10)] == ["OK"] * 10
        assert peer.call("echo", 1) == ("OK", [[1]])
        assert (server.metrics.pending, dict(server._pending_of)) == (0, {})


def test_more_calls_than_the_server_may_have_are_answered_busy() -> None:
    gate = Gate()
    methods = {"wait": Method(gate), "quick": Method(echo, inline=True)}
    with serving(methods, max_pending=3) as server, calling(server.endpoint) as client:
        peers = [RawPeer(server.endpoint, keys=auth.new_key_pair()) for _ in range(4)]
        try:
            for peer in peers:
                peer.request(b"id", "wait", [])
                client.call("quick", timeout_s=5)
            while gate.entered + server.metrics.errors["busy"] < 4:
                client.call("quick", timeout_s=5)
            assert (gate.entered, server.metrics.errors["busy"]) == (3, 1)
            with pytest.raises(errors.Busy, match="Too many calls"):
                client.call("wait", timeout_s=5)
            gate.open.set()
            kinds = Counter(peer.answer()[1] for peer in peers)
            assert kinds == {"OK": 3, "ERR": 1}
            assert client.call("wait", 1, timeout_s=5) == [1]
        finally:
            for peer in peers:
                peer.close()


def test_a_peer_that_never_reads_loses_its_own_answers_only() -> None:
    taken_back: list[str] = []
    big = Method(lambda _: b"x" * 65_536, inline=True, on_unroutable=lambda peer, name, result: taken_back.append(name))
    slow = {zmq.RCVHWM: 1, zmq.RCVBUF: 4096}
    with (
        serving({"big": big, "echo": Method(echo)}, max_pending_per_peer=8) as server,
        calling(server.endpoint, keys=OTHER_KEYS) as bystander,
        RawPeer(server.endpoint, options=slow) as peer,
    ):
        for number in range(600):
            peer.request(b"%d" % number, "big", [])
            if number % 50 == 0:
                assert bystander.call("echo", number, timeout_s=5) == [number]
        while server.metrics.calls["big"] < 600:
            assert bystander.call("echo", 1, timeout_s=5) == [1]
        gevent.idle()
        assert server.metrics.unroutable > 0
        assert len(taken_back) == server.metrics.unroutable
        assert_served(server, bystander)


def test_an_answer_for_a_peer_that_has_gone_is_taken_back() -> None:
    gate = Gate()
    taken_back: AsyncResult[tuple[str | None, str, Any]] = AsyncResult()
    method = Method(gate, on_unroutable=lambda peer, name, result: taken_back.set((peer.key, name, result)))
    with serving({"claim": method, "echo": Method(echo)}) as server, calling(server.endpoint) as bystander:
        peer = RawPeer(server.endpoint)
        peer.request(b"id", "claim", ["run 7"])
        assert peer.call("echo") == ("OK", [[]])
        ((identity, _),) = server._pending
        peer.close()
        with pytest.raises(zmq.ZMQError):
            while True:  # until the server's socket knows
                server._answers._send_now(identity, b"")
                bystander.call("echo", timeout_s=5)
        gate.open.set()
        assert taken_back.get(timeout=5) == (PEER_KEYS.public_text, "claim", ["run 7"])


def test_an_answer_after_its_callers_deadline_is_taken_back_and_not_sent() -> None:
    taken_back: list[Any] = []
    gate = Gate()
    method = Method(gate, on_unroutable=lambda peer, name, result: taken_back.append(result))
    with serving({"claim": method, "echo": Method(echo)}) as server, RawPeer(server.endpoint) as peer:
        peer.request(b"late", "claim", ["run 8"], deadline=1e-6)
        assert peer.call("echo") == ("OK", [[]])
        gate.open.set()
        assert peer.call("echo") == ("OK", [[]])
        assert taken_back == [["run 8"]]
        assert server.metrics.unroutable == 0


def test_a_take_back_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(peer: Peer, name: str, result: Any) -> None:
        raise RuntimeError("the store is closed")

    methods = {"claim": Method(echo, on_unroutable=fail), "echo": Method(echo)}
    with serving(methods) as server, RawPeer(server.endpoint) as peer:
        peer.request(b"late", "claim", [], deadline=1e-6)
        assert peer.call("echo", 1) == ("OK", [[1]])
    assert "the store is closed" in caplog.text


def test_nonsense_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    with serving({"echo": Method(echo)}) as server, RawPeer(server.endpoint) as peer:
        for _ in range(100):
            peer.send(b"", b"\xc1")
        assert peer.call("echo") == ("OK", [[]])
        assert server.metrics.malformed == 100
    assert caplog.text.count("a message was dropped") == 1


def test_a_huge_nested_message_is_refused_at_once() -> None:
    with serving({"echo": Method(echo)}) as server, calling(server.endpoint) as bystander:
        with RawPeer(server.endpoint) as peer:
            for inner in (b"\x91" * 1_900_000, b"\xdd\x00\xff\xff\xff" * 380_000, b"\x81\xa1a" * 600_000):
                peer.send(b"", b"\x93\x82\xaamessage_id\xc4\x01i\xa1v\x03\xa4echo" + inner)
            assert peer.call("echo", 1) == ("OK", [[1]])
        assert server.metrics.malformed == 3
        assert_served(server, bystander)
