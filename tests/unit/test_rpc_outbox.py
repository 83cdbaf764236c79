import errno
import time

import zmq
from gevent.event import Event

from common.rpc_outbox import Outbox


class Connections:
    """What a ROUTER socket does with messages: takes them while there is room, refuses the rest or unknown peers."""

    def __init__(self) -> None:
        self.room: dict[bytes, int] = {}
        self.sent: list[tuple[bytes, bytes]] = []
        self.empty = Event()
        self.expected = 0

    def send(self, identity: bytes, blob: bytes) -> None:
        if identity not in self.room:
            raise zmq.ZMQError(errno.EHOSTUNREACH)
        if self.room[identity] == 0:
            raise zmq.Again()
        self.room[identity] -= 1
        self.sent.append((identity, blob))
        if len(self.sent) == self.expected:
            self.empty.set()


def test_answers_go_out_in_order_once_there_is_room_again() -> None:
    there = Connections()
    box = Outbox(there.send, peer_bytes=100, total_bytes=1000)
    there.room = {b"a": 0, b"b": 0}
    there.expected = 20
    lost: list[int] = []
    for number in range(10):
        for who in (b"a", b"b"):
            assert box.put(who, b"%d" % number, expires_at=None, lost=lambda: lost.append(1))
    assert box.holds(b"a")
    there.room = {b"a": 3, b"b": 99}

    def more() -> None:
        there.room[b"a"] += 1

    from gevent.hub import get_hub

    timer = get_hub().loop.timer(0.001, repeat=0.001)
    timer.start(more)
    assert there.empty.wait(timeout=10)
    timer.stop()
    timer.close()
    for who in (b"a", b"b"):
        assert [blob for identity, blob in there.sent if identity == who] == [b"%d" % n for n in range(10)]
    assert lost == []
    assert not box.holds(b"a")
    box.close()


def test_a_peers_share_and_the_whole_are_bounded() -> None:
    there = Connections()
    there.room = {b"a": 0, b"b": 0, b"c": 0}
    box = Outbox(there.send, peer_bytes=10, total_bytes=25)
    taken = [box.put(who, b"x" * 5, expires_at=None, lost=lambda: None) for who in (b"a", b"a", b"a", b"b", b"b")]
    assert taken == [True, True, False, True, True]
    assert [box.put(b"c", b"x" * 5, expires_at=None, lost=lambda: None) for _ in range(2)] == [True, False]
    box.close()


def test_answers_for_a_peer_that_left_are_lost_at_once() -> None:
    there = Connections()
    box = Outbox(there.send, peer_bytes=100, total_bytes=100)
    gone = Event()
    lost: list[bytes] = []
    box.put(b"a", b"1", expires_at=None, lost=lambda: lost.append(b"1"))
    box.put(b"a", b"2", expires_at=None, lost=gone.set)
    assert gone.wait(timeout=10)
    assert lost == [b"1"]
    assert not box.holds(b"a")
    box.close()


def test_an_answer_is_given_up_when_its_caller_has() -> None:
    there = Connections()
    there.room = {b"a": 0}
    box = Outbox(there.send, peer_bytes=100, total_bytes=100)
    late = Event()
    kept: list[str] = []
    box.put(b"a", b"1", expires_at=time.monotonic() - 1, lost=late.set)
    box.put(b"a", b"2", expires_at=time.monotonic() + 60, lost=lambda: kept.append("lost"))
    assert late.wait(timeout=10)
    assert box.holds(b"a")
    assert kept == []
    box.close()
    assert kept == ["lost"]
    assert not box.holds(b"a")
