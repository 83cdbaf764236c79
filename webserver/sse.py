"""Server-sent events as bytes, and the log of those a stream published last. Pure: no network, no greenlets.

An event's id grows from event to event: `seq * ID_STEP` after everything up to `seq` of the master's change feed, and
numbers between for the parts of one feed row, so a client that breaks off anywhere goes on exactly there. Id 0 stands
for the middle of a snapshot, which cannot be resumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

ID_STEP = 1_000_000
KEEPALIVE = b": \n\n"
STREAM_NAMES = {1: "stdout", 2: "stderr"}
_encode = msgspec.json.Encoder().encode


class Mark(NamedTuple):
    """How far a run's output went: the attempt and the offset behind its last byte. Later marks are greater."""

    attempt: int
    offset: int


class Entry(NamedTuple):
    """A published event. `run_id` and `mark` are set for output: behind it, the run's output stands at `mark`."""

    id: int
    event: bytes
    run_id: str | None = None
    mark: Mark | None = None


class Piece(NamedTuple):
    """A stretch of one pipe's output, and the mark behind it."""

    stream: str
    offset: int
    content: bytes
    mark: Mark


def event(kind: str, raw: bytes) -> bytes:
    """An event without its id and its end; `raw` is JSON in one line."""
    return b"event: %s\ndata: %s\n" % (kind.encode(), raw)


def with_id(unfinished: bytes, event_id: int) -> bytes:
    """The whole event."""
    return b"%sid: %d\n\n" % (unfinished, event_id)


def output_event(run_id: str, piece: Piece) -> bytes:
    """An `output` event without its id and its end."""
    members = {
        "run_id": run_id,
        "attempt": piece.mark.attempt,
        "stream": piece.stream,
        "offset": piece.offset,
        "data": piece.content,
    }
    return event("output", _encode(members))


def pieces(answer: Mapping[str, Any]) -> Iterator[Piece]:
    """The stretches in an answer of `read_output`, neighbours of one pipe joined."""
    attempt, content = answer["attempt"], answer["data"]
    taken = 0
    joined: list[tuple[str, int, int]] = []  # (stream, offset, length)
    for offset, number, length in answer["segments"]:
        stream = STREAM_NAMES.get(number, str(number))
        if joined and joined[-1][0] == stream and joined[-1][1] + joined[-1][2] == offset:
            joined[-1] = (stream, joined[-1][1], joined[-1][2] + length)
        else:
            joined.append((stream, offset, length))
    for stream, offset, length in joined:
        yield Piece(stream, offset, content[taken : taken + length], Mark(attempt, offset + length))
        taken += length


class EventLog:
    """The last events of a stream, numbered by position; the oldest go when there are more than `limit` bytes."""

    def __init__(self, *, base_id: int) -> None:
        self.start = 0  # position of the oldest kept entry
        self.last_id = base_id
        self._base_id = base_id  # id of the state before the oldest kept entry
        self._base_marks: dict[str, Mark] = {}
        self._entries: deque[Entry] = deque()
        self._bytes = 0

    @property
    def end(self) -> int:
        """The position that the next entry will have."""
        return self.start + len(self._entries)

    def __getitem__(self, position: int) -> Entry:
        return self._entries[position - self.start]

    def next_id(self, seq: int, *, whole: bool) -> int:
        """The id of the next event: with `whole`, everything of feed row `seq` is told by it."""
        return max(self.last_id + 1, seq * ID_STEP if whole else (seq - 1) * ID_STEP + 1)

    def append(self, entry: Entry, *, limit: int) -> None:
        """Add an event; at least this one stays."""
        self._entries.append(entry)
        self._bytes += len(entry.event)
        self.last_id = entry.id
        while self._bytes > limit and len(self._entries) > 1:
            oldest = self._entries.popleft()
            self.start += 1
            self._bytes -= len(oldest.event)
            self._base_id = oldest.id
            if oldest.run_id is not None and oldest.mark is not None:
                self._base_marks[oldest.run_id] = oldest.mark

    def set_base(self, run_id: str, mark: Mark) -> None:
        """Whoever begins before the oldest entry has a run's output up to `mark`."""
        self._base_marks.setdefault(run_id, mark)

    def place(self, event_id: int) -> tuple[int, dict[str, Mark]] | None:
        """Where a client goes on that has seen everything up to `event_id`, and the output marks it has reached.

        None when the log does not reach back so far, or not up to there.
        """
        if event_id == 0 or not self._base_id <= event_id <= self.last_id:
            return None
        marks = dict(self._base_marks)
        for number, entry in enumerate(self._entries):
            if entry.id > event_id:
                return self.start + number, marks
            if entry.run_id is not None and entry.mark is not None:
                marks[entry.run_id] = entry.mark
        return self.end, marks


class Progress:
    """How far each run was told: the mark of its output, and the attempt that was told to be under way.

    `ended_most`: of how many runs that have ended this is remembered, for what still comes in late; None: of all.
    """

    def __init__(self, *, ended_most: int | None) -> None:
        self._ended_most = ended_most
        self._marks: dict[str, Mark] = {}
        self._under_way: dict[str, int] = {}
        self._ended: dict[str, Mark] = {}

    def __len__(self) -> int:
        """Of how many runs a mark is remembered."""
        return len(self._marks) + len(self._ended)

    def mark(self, run_id: str) -> Mark | None:
        """Where the run's output stands; None when none of it was told."""
        return self._marks.get(run_id) or self._ended.get(run_id)

    def reach(self, run_id: str, mark: Mark) -> None:
        """The run's output was told up to `mark`."""
        kept = self._ended if run_id in self._ended else self._marks
        kept.pop(run_id, None)
        kept[run_id] = mark
        self._bound(self._marks)

    def under_way(self, run_id: str) -> int | None:
        """The newest attempt that was told to be under way, or to have ended."""
        ended = self._ended.get(run_id)
        return self._under_way.get(run_id) if ended is None else ended.attempt

    def begin(self, run_id: str, attempt: int) -> None:
        """The attempt was told to be under way."""
        ended = self._ended.pop(run_id, None)
        if ended is not None:
            self._marks[run_id] = ended
        self._under_way.pop(run_id, None)
        self._under_way[run_id] = attempt
        self._bound(self._under_way)

    def end(self, run_id: str, attempt: int) -> None:
        """The run's end was told, its output before it."""
        if self._ended_most is None:
            return
        self._under_way.pop(run_id, None)
        mark = self._marks.pop(run_id, None) or self._ended.pop(run_id, None)
        self._ended[run_id] = max(mark or Mark(attempt, 0), Mark(attempt, 0))
        trim(self._ended, most=self._ended_most)

    def _bound(self, kept: dict[str, Any]) -> None:
        if self._ended_most is not None:
            trim(kept)


def trim(kept: dict[str, Any], *, most: int = 20_000) -> None:
    """Forget the oldest quarter of `kept` when there are more than `most`."""
    if len(kept) > most:
        for key in list(islice(kept, most // 4)):
            del kept[key]
