"""Random and mutated bytes against the parser, a live server and a live client: nothing dies, the next is served.

Seeded, so a failure comes back; `--full` takes twenty times as many.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from common import rpc_frames as frames
from common.errors import MusterError
from common.rpc import Method, Peer
from tests.support.rpc import OTHER_KEYS, RawPeer, calling, packed, serving

INPUTS = 6_000
SEED = 20_261_130
MSGPACK_HEADS = bytes(
    [0x80, 0x81, 0x90, 0x91, 0x93, 0xA0, 0xC0, 0xC1, 0xC4, 0xC7, 0xCB, 0xCF, 0xD3, 0xD4, 0xDB, 0xDD, 0xDF]
)

VALID = [
    packed(
        {"message_id": b"m" * 32, "v": 3, "deadline": 5.0, "request_id": "r"}, "echo", [1, "two", b"3", [4], {"5": 6}]
    ),
    packed({"message_id": b"m", "v": 3}, "wait", []),
    packed({"message_id": b"m", "v": 3}, "fail", [1]),
    packed({"message_id": b"h", "v": 3, "response_to": b"m"}, "_zpc_hb", [0]),
    packed({"message_id": b"h", "v": 3, "response_to": b"m"}, "_zpc_more", [99]),
    packed({"message_id": b"h", "v": 3, "response_to": b"m"}, "OK", [None]),
    packed({"message_id": b"h", "v": 3, "response_to": b"m", "fields": [["a", "b"]]}, "ERR", ["conflict", "no", None]),
    packed({"message_id": b"h", "v": 3, "response_to": b"m"}, "STREAM", {"a": [1, 2]}),
]


def mutated(chance: random.Random) -> bytes:
    """A valid message with a few bytes flipped, dropped, doubled, replaced, or two messages spliced."""
    blob = bytearray(chance.choice(VALID))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(blob) + 1)
        to = min(len(blob), at + chance.randint(1, 8))
        match chance.randrange(7):
            case 0:
                blob[at:to] = bytes(byte ^ 1 << chance.randrange(8) for byte in blob[at:to])
            case 1:
                del blob[at:to]
            case 2:
                blob[at:at] = blob[at:to] * chance.randint(1, 50)
            case 3:
                blob[at:to] = chance.randbytes(to - at)
            case 4:
                blob[at : at + 1] = bytes([chance.choice(MSGPACK_HEADS)])
            case 5:
                blob[at:at] = bytes([chance.choice(MSGPACK_HEADS)]) + chance.randbytes(chance.randint(0, 8))
            case _:
                other = chance.choice(VALID)
                blob[at:] = other[chance.randrange(len(other)) :]
    return bytes(blob)


def inputs(count: int) -> Iterator[bytes]:
    chance = random.Random(SEED)
    for number in range(count):
        yield chance.randbytes(chance.randint(0, 60)) if number % 10 == 0 else mutated(chance)


@pytest.fixture
def count(full: bool) -> int:
    return INPUTS * 20 if full else INPUTS


def judged(blob: bytes) -> bool:
    """Whether the parser took it; anything but FrameError escapes and fails the test."""
    try:
        message = frames.parse(blob)
        message.args()
        message.deadline_s, message.request_id, message.version  # noqa: B018
        frames.error_of(message)
    except frames.FrameError:
        return False
    return True


@given(blob=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_frame_error(blob: bytes) -> None:
    judged(blob)
    judged(b"\x93\x81\xa1v\x03" + blob)
    judged(b"\x93\x80\xa1a\x91" + blob)


def test_mutated_messages_are_a_message_or_a_frame_error(count: int) -> None:
    taken = sum(judged(blob) for blob in inputs(count))
    assert 0 < taken < count  # the mutations reach both sides of the line


def test_a_live_server_survives_mutated_messages(count: int, caplog: pytest.LogCaptureFixture) -> None:
    never = Event()

    def echo(_: Peer, *args: Any) -> list[Any]:
        return list(args)

    def fail(_: Peer, *args: Any) -> None:
        raise MusterError("no")

    methods = {"echo": Method(echo), "wait": Method(lambda _: never.wait()), "fail": Method(fail, inline=True)}
    chance = random.Random(SEED)
    with (
        serving(methods) as server,
        calling(server.endpoint, keys=OTHER_KEYS) as bystander,
        RawPeer(server.endpoint) as peer,
    ):
        for number, blob in enumerate(inputs(count)):
            match chance.randrange(20):
                case 0:
                    peer.send(blob)
                case 1:
                    peer.send(b"", blob, blob[: chance.randrange(5)])
                case _:
                    peer.send(b"", blob)
            if number % 200 == 0:
                assert bystander.call("echo", number, timeout_s=5) == [number]
                assert peer.call("echo", "still") == ("OK", [["still"]])
        with RawPeer(server.endpoint) as fresh:
            assert fresh.call("echo", "new") == ("OK", [["new"]])
        assert server.metrics.malformed > count / 4
        assert server.metrics.pending <= 64
    assert "could not be handled" not in caplog.text
    assert "could not be judged" not in caplog.text


def test_a_live_client_survives_mutated_messages(count: int, caplog: pytest.LogCaptureFixture) -> None:
    with serving({"echo": Method(lambda _, n: n)}) as server, calling(server.endpoint) as client:
        client.call("echo", 0, timeout_s=5)
        ((identity, _),) = server._peers.items()
        for number, blob in enumerate(inputs(count // 2)):
            server._answers._send_now(identity, blob)
            if number % 50 == 0:
                assert client.call("echo", number, timeout_s=5) == number
        assert client.call("echo", 1, timeout_s=5) == 1
        assert client.pending == 0
    assert "could not be handled" not in caplog.text
