"""Calls that go well or fail, over real sockets in one process."""

import gc
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent.event import AsyncResult, Event

from common import auth, errors
from common.rpc import Method, Peer, RpcMetrics, current_call
from tests.support.rpc import PEER_KEYS, RawPeer, calling, packed, serving, unpacked


def echo(_: Peer, *args: Any) -> list[Any]:
    return list(args)


@pytest.mark.parametrize("inline", [True, False])
def test_arguments_and_answers_cross_as_they_are(inline: bool) -> None:
    values = [1, -(2**63), 2**64 - 1, 1.5, "é", b"\xff\xfe", None, True, [1, [2]], {"a": {"b": [b"c"]}}]
    with serving({"echo": Method(echo, inline=inline)}) as server, calling(server.endpoint) as client:
        assert client.call("echo", *values, timeout_s=5) == values
        assert client.call("echo", timeout_s=5) == []
        assert client.pending == 0


def test_a_peer_is_known_by_its_key() -> None:
    peers: list[Peer] = []
    other = auth.new_key_pair()

    def note(peer: Peer) -> None:
        peers.append(peer)

    with serving({"note": Method(note)}) as server:
        for keys in (PEER_KEYS, other, PEER_KEYS):
            with calling(server.endpoint, keys=keys) as client:
                client.call("note", timeout_s=5)
    assert [peer.key for peer in peers] == [PEER_KEYS.public_text, other.public_text, PEER_KEYS.public_text]
    assert {peer.address for peer in peers} == {"127.0.0.1"}
    assert len({peer.identity for peer in peers}) == 3


def test_an_error_arrives_as_its_own_class_with_its_fields() -> None:
    def refuse(_: Peer) -> None:
        raise errors.InvalidRequest("two faults", fields=[errors.FieldError("a[0]", "no"), errors.FieldError("b", "ö")])

    def stale(_: Peer) -> None:
        raise errors.StaleLease()

    methods = {"refuse": Method(refuse), "stale": Method(stale, inline=True)}
    with serving(methods) as server, calling(server.endpoint) as client:
        with pytest.raises(errors.InvalidRequest, match="two faults") as caught:
            client.call("refuse", timeout_s=5)
        assert caught.value.fields == [errors.FieldError("a[0]", "no"), errors.FieldError("b", "ö")]
        with pytest.raises(errors.StaleLease, match="no longer held"):
            client.call("stale", timeout_s=5)
        assert server.metrics.errors == {"invalid_request": 1, "stale_lease": 1}


@pytest.mark.parametrize("inline", [True, False])
def test_a_failing_method_tells_the_log_everything_and_the_caller_nothing(
    inline: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Peer) -> None:
        raise KeyError("the secret detail")

    with serving({"fail": Method(fail, inline=inline), "echo": Method(echo)}) as server:
        with RawPeer(server.endpoint) as peer:
            kind, args = peer.call("fail")
        assert kind == "ERR"
        assert args[0] == "internal"
        assert args[2] is None
        assert "secret" not in args[1]
    assert "the secret detail" in caplog.text
    assert "in fail" in caplog.text


def test_wrong_arguments_are_the_callers_fault_but_a_type_error_inside_is_ours() -> None:
    def add(_: Peer, a: int, b: int) -> int:
        return a + b

    with serving({"add": Method(add)}) as server, calling(server.endpoint) as client:
        with pytest.raises(errors.InvalidRequest, match="does not take these arguments"):
            client.call("add", 1, timeout_s=5)
        with pytest.raises(errors.MusterError, match="its log says why"):
            client.call("add", 1, "2", timeout_s=5)


def test_an_inline_method_that_waits_fails_instead_of_stalling_everybody() -> None:
    methods = {"wait": Method(lambda _: Event().wait(), inline=True), "echo": Method(echo)}
    with serving(methods) as server, calling(server.endpoint) as client:
        with pytest.raises(errors.MusterError, match="its log says why"):
            client.call("wait", timeout_s=5)
        assert client.call("echo", 1, timeout_s=5) == [1]


def test_an_answer_that_cannot_be_packed_is_an_error_and_is_taken_back() -> None:
    taken_back: list[Any] = []

    def give(_: Peer, what: str) -> Any:
        return {"text": "\udcff", "big": b"x" * 3_000_000, "number": 2**70}[what]

    method = Method(give, on_unroutable=lambda peer, name, result: taken_back.append((name, result)))
    methods = {"give": method, "give_inline": Method(give, inline=True)}
    with serving(methods) as server, calling(server.endpoint) as client:
        for what in ("text", "number"):
            with pytest.raises(errors.MusterError, match="its log says why"):
                client.call("give", what, timeout_s=5)
        for name in ("give", "give_inline"):
            with pytest.raises(errors.AnswerTooLarge, match="ask for fewer"):
                client.call(name, "big", timeout_s=5)
    assert taken_back == [("give", "\udcff"), ("give", 2**70), ("give", b"x" * 3_000_000)]


def test_nothing_is_said_about_a_method_before_the_peer_is_authorised() -> None:
    asked: list[tuple[str | None, str]] = []

    def authorize(peer: Peer, method: str) -> None:
        asked.append((peer.key, method))
        if method != "enrol":
            raise errors.UnknownKey()

    methods = {"enrol": Method(echo), "secret": Method(echo)}
    with serving(methods, authorize=authorize) as server, calling(server.endpoint) as client:
        assert client.call("enrol", "token", timeout_s=5) == ["token"]
        for name in ("secret", "no_such_thing", "_zerorpc_inspect", "_zerorpc_list", "__class__"):
            with pytest.raises(errors.UnknownKey, match="enrol again"):
                client.call(name, timeout_s=5)
        assert server.metrics.calls == {"enrol": 1}
    assert {key for key, _ in asked} == {PEER_KEYS.public_text}
    assert len(asked) == 6


def test_introspection_is_not_exposed() -> None:
    with serving({"echo": Method(echo)}) as server, calling(server.endpoint) as client:
        for name in ("_zerorpc_inspect", "_zerorpc_list", "_zerorpc_ping", "call", ""):
            with pytest.raises(errors.UnknownMethod):
                client.call(name, timeout_s=5)


def test_a_revoked_key_is_cut_at_its_next_message() -> None:
    known = {PEER_KEYS.public_text}

    def authorize(peer: Peer, method: str) -> None:
        if peer.key not in known:
            raise errors.UnknownKey()

    with serving({"echo": Method(echo)}, authorize=authorize) as server, calling(server.endpoint) as client:
        assert client.call("echo", 1, timeout_s=5) == [1]
        known.clear()
        with pytest.raises(errors.UnknownKey):
            client.call("echo", 1, timeout_s=5)


def test_a_fault_of_the_authoriser_refuses(caplog: pytest.LogCaptureFixture) -> None:
    def authorize(peer: Peer, method: str) -> None:
        raise LookupError("no table")

    with serving({"echo": Method(echo)}, authorize=authorize) as server, calling(server.endpoint) as client:
        failing = pytest.raises(errors.MusterError, match="its log says why")
        with failing:
            client.call("echo", 1, timeout_s=5)
        with failing:
            client.call("nope", 1, timeout_s=5)
    assert "no table" in caplog.text


def test_a_message_too_large_is_not_sent_at_all() -> None:
    with serving({"echo": Method(echo)}) as server, calling(server.endpoint, max_message_bytes=1000) as client:
        with pytest.raises(errors.TooLarge, match="1000"):
            client.call("echo", b"x" * 1000, timeout_s=5)
        assert client.call("echo", b"x" * 800, timeout_s=5) == [b"x" * 800]
        assert server.metrics.calls == {"echo": 1}


@pytest.mark.parametrize("direction", ["there", "back"])
def test_a_message_of_exactly_the_limit_passes(direction: str) -> None:
    methods = {"size": Method(lambda _, body: len(body)), "make": Method(lambda _, size: b"x" * size)}
    limit = {"max_message_bytes": 5_000}
    with serving(methods, **limit) as server, calling(server.endpoint, **limit) as client:

        def cross(size: int) -> int:
            if direction == "there":
                return client.call("size", b"x" * size, timeout_s=5)
            return len(client.call("make", size, timeout_s=5))

        passed = [size for size in range(4_800, 5_001) if not refused(cross, size)]
        assert passed == list(range(4_800, passed[-1] + 1))
        assert 4_850 < passed[-1] < 4_990
        assert client.connected


def refused(call: Callable[[int], int], size: int) -> bool:
    try:
        assert call(size) == size
    except (errors.TooLarge, errors.AnswerTooLarge):
        return True
    return False


def test_a_peer_that_sends_more_than_allowed_is_cut_and_others_are_served() -> None:
    with serving({"echo": Method(echo)}, max_message_bytes=10_000) as server, calling(server.endpoint) as bystander:
        assert bystander.call("echo", 1, timeout_s=5) == [1]
        with calling(server.endpoint) as client:
            with pytest.raises(errors.PeerUnreachable, match="connection was lost while echo was under way"):
                client.call("echo", b"x" * 20_000, timeout_s=5)
            assert client.call("echo", 2, timeout_s=5) == [2]
        assert bystander.call("echo", 3, timeout_s=5) == [3]


def test_what_a_handler_may_know_of_its_call() -> None:
    seen: list[Any] = []

    def look(peer: Peer) -> None:
        call = current_call()
        assert call is not None
        seen.append(
            (call.name, call.request_id, call.remaining_s is not None and 4 < call.remaining_s <= 5, call.peer == peer)
        )

    methods = {"look": Method(look), "look_inline": Method(look, inline=True)}
    with serving(methods) as server, calling(server.endpoint) as client:
        client.call("look", timeout_s=5, request_id="r1")
        client.call("look_inline", timeout_s=5, request_id="r2")
        client.call("look", timeout_s=5)
    assert seen == [("look", "r1", True, True), ("look_inline", "r2", True, True), ("look", None, True, True)]
    assert current_call() is None


def test_a_request_that_expired_is_not_carried_out() -> None:
    ran: list[int] = []
    with serving({"run": Method(lambda _, n: ran.append(n))}) as server, RawPeer(server.endpoint) as peer:
        peer.request(b"a", "run", [1], deadline=0)
        peer.request(b"b", "run", [2], deadline=-5.0)
        peer.request(b"c", "run", [3], deadline=60)
        assert peer.answer()[0]["response_to"] == b"c"
        assert ran == [3]
        assert server.metrics.expired == 2


def test_many_calls_at_a_time_on_one_client() -> None:
    gate = Event()

    def wait(_: Peer, number: int) -> int:
        gate.wait()
        return number

    methods = {"wait": Method(wait), "echo": Method(echo, inline=True)}
    with serving(methods, max_pending_per_peer=500) as server, calling(server.endpoint) as client:
        callers = [gevent.spawn(client.call, "wait", number, timeout_s=10) for number in range(500)]
        gevent.idle()
        while server.metrics.pending < 500:
            client.call("echo", timeout_s=5)
        assert client.pending == 500
        gate.set()
        assert [caller.get(timeout=10) for caller in callers] == list(range(500))
        assert (client.pending, server.metrics.pending) == (0, 0)


def test_greenlets_that_serve_one_call_after_the_other_share_nothing_between_them() -> None:
    import contextvars

    left: contextvars.ContextVar[str] = contextvars.ContextVar("left", default="clean")

    def leave(_: Peer, word: str) -> list[Any]:
        before = left.get()
        left.set(word)
        return [before, id(gevent.getcurrent())]

    with serving({"leave": Method(leave)}) as server, calling(server.endpoint) as client:
        answers = [client.call("leave", f"word {n}", timeout_s=5) for n in range(20)]
    assert {before for before, _ in answers} == {"clean"}
    assert len({greenlet for _, greenlet in answers}) == 1


def test_a_timeout_left_behind_by_one_call_does_not_hit_the_next() -> None:
    fired = Event()

    class Late(gevent.Timeout):
        pass

    def leave_timeout(_: Peer) -> str:
        Late(0.001).start()  # never closed, as a careless handler may do
        gevent.get_hub().loop.timer(0.002).start(fired.set)
        return "left"

    with serving({"leave": Method(leave_timeout), "echo": Method(echo)}) as server, calling(server.endpoint) as client:
        assert client.call("leave", timeout_s=5) == "left"
        assert fired.wait(timeout=5)
        assert client.call("echo", 1, timeout_s=5) == [1]


@pytest.mark.parametrize("inline", [True, False])
def test_a_timeout_that_escapes_a_method_is_a_failure_like_any_other(inline: bool) -> None:
    def run_out(_: Peer) -> None:
        raise gevent.Timeout(7)  # no Exception, only a BaseException

    methods = {"run_out": Method(run_out, inline=inline), "echo": Method(echo)}
    with serving(methods) as server, RawPeer(server.endpoint) as peer:
        peer.request(b"1", "run_out", [])
        peer.request(b"2", "echo", [1])
        assert peer.answer()[2][0] == "internal"
        assert peer.answer()[2] == [[1]]
        assert server.metrics.pending == 0


def test_a_call_that_was_killed_is_answered() -> None:
    began = Event()
    methods = {"wait": Method(lambda _: began.set() or Event().wait()), "echo": Method(echo)}
    with serving(methods) as server, calling(server.endpoint) as client:
        caller = gevent.spawn(client.call, "wait", timeout_s=30)
        assert began.wait(timeout=5)
        (serving_it,) = server._pending.values()
        gevent.kill(serving_it)
        with pytest.raises(errors.Unavailable, match="ended this call"):
            caller.get(timeout=5)
        assert client.call("echo", 1, timeout_s=5) == [1]
        assert server.metrics.pending == 0


def test_two_servers_in_one_process_share_the_door_and_one_may_leave_first() -> None:
    with serving({"a": Method(echo)}) as first:
        with serving({"b": Method(echo)}) as second, calling(second.endpoint) as client:
            assert client.call("b", 2, timeout_s=5) == [2]
        with calling(first.endpoint) as client:
            assert client.call("a", 1, timeout_s=5) == [1]


def test_a_taken_address_is_named() -> None:
    with serving({}) as server:
        second = serving({}, endpoint=server.endpoint)
        with pytest.raises(errors.Unavailable, match="Address already in use"):
            second.__enter__()
    with serving({"echo": Method(echo)}) as server, calling(server.endpoint) as client:
        assert client.call("echo", timeout_s=5) == []  # the failed one left the door in order


def test_a_server_may_be_stopped_by_its_own_method_and_twice() -> None:
    with serving({}) as server:
        server._methods["stop"] = Method(lambda _: server.stop())
        with calling(server.endpoint) as client, pytest.raises(errors.PeerUnreachable):
            client.call("stop", timeout_s=5)
        server.stop()


def test_stopping_the_server_ends_the_calls_it_serves() -> None:
    ended: AsyncResult[str] = AsyncResult()
    began = Event()

    def wait(_: Peer) -> None:
        began.set()
        try:
            Event().wait()
        except gevent.GreenletExit:
            ended.set("killed")
            raise

    with serving({"wait": Method(wait)}) as server, calling(server.endpoint) as client:
        caller = gevent.spawn(client.call, "wait", timeout_s=30)
        assert began.wait(timeout=5)
        server.stop()
        assert ended.get(timeout=5) == "killed"
        with pytest.raises(errors.PeerUnreachable, match="was lost while wait was under way"):
            caller.get(timeout=5)
        assert server.metrics.pending == 0


def test_counters() -> None:
    metrics = RpcMetrics()

    def refuse(_: Peer) -> None:
        raise errors.Conflict()

    methods = {"echo": Method(echo, inline=True), "refuse": Method(refuse)}
    with serving(methods, metrics=metrics) as server, calling(server.endpoint) as client:
        for _ in range(3):
            client.call("echo", timeout_s=5)
        for name in ("refuse", "refuse", "nope"):
            with pytest.raises(errors.MusterError):
                client.call(name, timeout_s=5)
    assert metrics.calls == {"echo": 3, "refuse": 2}
    assert metrics.errors == {"conflict": 2, "unknown_method": 1}
    assert set(metrics.seconds) == {"echo", "refuse"}
    assert all(0 < seconds < 5 for seconds in metrics.seconds.values())


def test_an_answer_nobody_waits_for_leaves_the_client_alone() -> None:
    with serving({"echo": Method(echo)}) as server, calling(server.endpoint) as client:
        client.call("echo", timeout_s=5)
        for blob in (
            packed({"message_id": b"m", "v": 3, "response_to": b"nobody"}, "OK", [1]),
            packed({"message_id": b"m", "v": 3}, "OK", [1]),
            packed({"message_id": b"m", "v": 3, "response_to": [1]}, "OK", [1]),
            b"\xc1",
            b"",
        ):
            peer = next(iter(server._peers.values()))
            server._answers._send_now(peer.identity, blob)
        assert client.call("echo", 1, timeout_s=5) == [1]


@pytest.mark.parametrize(
    ("kind", "args"), [("OK", []), ("OK", [1, 2]), ("OK", None), ("STREAM", [1]), ("ERR", ["x"]), ("WHAT", [])]
)
def test_an_answer_of_a_foreign_shape_ends_the_call_with_a_protocol_error(kind: str, args: Any) -> None:
    asked = Event()
    methods = {"wait": Method(lambda _: asked.set() or Event().wait())}
    with serving(methods) as server, calling(server.endpoint) as client:
        caller = gevent.spawn(client.call, "wait", timeout_s=5)
        assert asked.wait(timeout=5)
        ((identity, message_id),) = server._pending
        blob = packed({"message_id": b"m", "v": 3, "response_to": message_id}, kind, args)
        server._answers._send_now(identity, blob)
        with pytest.raises(errors.ProtocolError, match="no proper answer to wait"):
            caller.get(timeout=5)


def test_calls_need_the_clients_own_thread() -> None:
    import threading

    caught: list[BaseException] = []
    with serving({"echo": Method(echo)}) as server, calling(server.endpoint) as client:

        def work() -> None:
            try:
                client.call("echo", timeout_s=1)
            except RuntimeError as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert "ThreadBridge" in str(caught[0])
        assert client.call("echo", 1, timeout_s=5) == [1]


def test_a_client_that_is_not_running_says_so() -> None:
    with serving({"echo": Method(echo)}) as server:
        with calling(server.endpoint) as client:
            pass
        with pytest.raises(errors.PeerUnreachable, match="stopped"):
            client.call("echo", timeout_s=5)
        client.start()
        assert client.call("echo", 1, timeout_s=5) == [1]
        client.stop()
        client.stop()


def test_encryption_needs_the_callers_keys() -> None:
    from common.rpc import RpcClient

    with pytest.raises(ValueError, match="key pair"):
        RpcClient("tcp://127.0.0.1:1", server_key=b"k" * 40, public_key=None, secret_key=None, max_message_bytes=1)


def test_replies_have_zerorpcs_form() -> None:
    with serving({"echo": Method(echo)}) as server, RawPeer(server.endpoint) as peer:
        peer.request(b"id", "echo", ["x"])
        frames = peer.socket.recv_multipart()
        assert frames[0] == b""
        header, name, args = unpacked(frames[1])
        assert (name, args) == ("OK", [["x"]])
        assert header["v"] == 3
        assert header["response_to"] == b"id"
        assert isinstance(header["message_id"], bytes)
        peer.send(packed({"message_id": b"2", "v": 3}, "echo", []))  # without the empty frame before it
        assert peer.answer()[2] == [[]]


def ours_in_memory() -> int:
    return sum(1 for thing in gc.get_objects() if str(type(thing).__module__).startswith("common.rpc"))


def test_nothing_is_left_in_memory_of_closed_ends() -> None:
    def once() -> None:
        with serving({"echo": Method(echo)}) as server, calling(server.endpoint) as client:
            client.call("echo", timeout_s=5)

    once()
    gc.collect()
    before = ours_in_memory()
    for _ in range(5):
        once()
    gevent.idle()
    gc.collect()
    assert ours_in_memory() <= before
