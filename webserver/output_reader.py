"""Output of runs, read from the master piece by piece and never held whole. Knows attempts, offsets and gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from webserver.master_client import MasterClient
from webserver.sse import Mark, Piece, pieces

READ_BYTES = 256 * 1024
"""Of output in one call: small enough that other calls get their turn."""


class OutputReader:
    """Reads stretches of a run's output over all its attempts."""

    def __init__(self, master: MasterClient) -> None:
        self.master = master

    def since(self, run_id: str, mark: Mark | None) -> Iterator[Piece]:
        """What was written behind `mark`, over all attempts since; None: the newest attempt from its first byte."""
        offset = mark.offset if mark is not None else 0
        answer = self._read(run_id, None, offset, READ_BYTES)
        newest = answer["attempt"]
        if mark is None or newest == mark.attempt:
            return self._on_from(run_id, newest, offset, None, answer)
        return self.between(run_id, mark, Mark(newest, answer["size"]))

    def between(self, run_id: str, start: Mark, until: Mark) -> Iterator[Piece]:
        """The output from `start` up to `until`; earlier attempts to their end."""
        for attempt in range(start.attempt, until.attempt + 1):
            offset = start.offset if attempt == start.attempt else 0
            yield from self._on_from(run_id, attempt, offset, until.offset if attempt == until.attempt else None, None)

    def _on_from(
        self, run_id: str, attempt: int, offset: int, end: int | None, answer: Mapping[str, Any] | None
    ) -> Iterator[Piece]:
        """The pieces of one attempt from `offset` to `end` (None: as far as known); `answer`: what was read already."""
        while end is None or offset < end:
            if answer is None:
                limit = READ_BYTES if end is None else min(READ_BYTES, end - offset)
                answer = self._read(run_id, attempt, offset, limit)
            for piece in pieces(answer):
                if end is None or piece.offset < end:
                    yield piece if end is None else _up_to(piece, end)
            behind = answer["next_offset"]
            if behind <= offset or (end is None and behind >= answer["size"]):
                return
            offset, answer = behind, None

    def _read(self, run_id: str, attempt: int | None, offset: int, limit: int) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self.master.read("read_output", run_id, attempt, "all", offset, limit)
        return answer


def _up_to(piece: Piece, end: int) -> Piece:
    """The piece without what lies behind `end`: a limit counts bytes, and a gap among them carries it further."""
    if piece.mark.offset <= end:
        return piece
    return Piece(piece.stream, piece.offset, piece.content[: end - piece.offset], Mark(piece.mark.attempt, end))
