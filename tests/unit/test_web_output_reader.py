from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from common.clock import ManualClock
from tests.support.fake_web_master import FakeOutput
from webserver import output_reader
from webserver.master_client import MasterClient
from webserver.output_reader import OutputReader
from webserver.sse import Mark


class Door:
    """Output by attempt; the newest is the one with the greatest number."""

    connected = True

    def __init__(self, outputs: dict[int, FakeOutput]) -> None:
        self.outputs = outputs

    def call(self, method: str, *args: Any, timeout_s: float, request_id: str | None = None) -> Any:
        assert method == "read_output"
        _, attempt, stream, offset, limit = args
        attempt = attempt or max(self.outputs)
        answer = self.outputs.get(attempt, FakeOutput()).read(stream, offset, limit)
        return {**answer, "attempt": attempt, "ended": False}


def reader(outputs: dict[int, FakeOutput]) -> OutputReader:
    return OutputReader(MasterClient(Door(outputs), ManualClock(), patience_s=0.0))


PIECES = st.lists(
    st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=30)) | st.tuples(st.just(0), st.integers(1, 40)),
    max_size=12,
)


def kept(output: FakeOutput) -> list[tuple[int, int]]:
    """(offset, byte) of everything that was kept."""
    found, at = [], 0
    for _, piece in output.pieces:
        if isinstance(piece, bytes):
            found += [(at + number, byte) for number, byte in enumerate(piece)]
        at += piece if isinstance(piece, int) else len(piece)
    return found


@given(PIECES, PIECES, st.data(), st.sampled_from([1, 7, 1000]))
def test_any_two_marks_have_exactly_what_lies_between_them(first: Any, second: Any, data: Any, size: int) -> None:
    outputs = {1: FakeOutput(list(first)), 2: FakeOutput(list(second))}
    marks = [Mark(number, data.draw(st.integers(0, outputs[number].size))) for number in (1, 2)]
    spans = [(marks[0], marks[1]), (marks[0], Mark(1, outputs[1].size)), (Mark(2, 0), marks[1])]
    start, until = data.draw(st.sampled_from(spans))
    before, output_reader.READ_BYTES = output_reader.READ_BYTES, size
    try:
        found = list(reader(outputs).between("r", start, until))
    finally:
        output_reader.READ_BYTES = before
    told = [(piece.mark.attempt, piece.offset + at, byte) for piece in found for at, byte in enumerate(piece.content)]
    expected = [
        (number, offset, byte)
        for number in (1, 2)
        for offset, byte in kept(outputs[number])
        if start <= Mark(number, offset) < until
    ]
    assert told == expected


@given(PIECES, PIECES, st.data())
def test_since_a_mark_everything_of_all_attempts_comes(first: Any, second: Any, data: Any) -> None:
    outputs = {1: FakeOutput(list(first)), 2: FakeOutput(list(second))}
    mark = Mark(1, data.draw(st.integers(0, outputs[1].size)))
    found = list(reader(outputs).since("r", mark))
    told = b"".join(piece.content for piece in found)
    ahead = [byte for offset, byte in kept(outputs[1]) if offset >= mark.offset]
    assert told == bytes(ahead + [byte for _, byte in kept(outputs[2])])
    newest = list(reader(outputs).since("r", None))
    assert b"".join(piece.content for piece in newest) == bytes(byte for _, byte in kept(outputs[2]))
