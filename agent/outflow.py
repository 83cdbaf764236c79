"""One attempt's output on its way to the master: what was read, what was sent, what the master has.

Without a loop and without RPC: the sender asks for the next piece and tells what became of it. Promises that every
byte of the spool goes out once in order, that what the spool no longer has goes out as a gap, and that whatever was
sent and not acknowledged is read and sent again from there.
"""

from __future__ import annotations

import hashlib
import logging
import math
from typing import Any, Protocol

from agent.attempt import AttemptKey
from agent.spool_reader import Chunk, Gap
from common import log

logger = logging.getLogger(__name__)

COALESCE_S = 0.03
"""How long first bytes wait for more: a script that prints and ends is one message."""
TRICKLE_S = 0.2
"""Least time between two messages of an attempt that writes little."""
_UNREADABLE_AFTER = 5  # reads that failed in a row, once nothing more is written


class Reader(Protocol):
    """The part of `SpoolReader` that is needed here."""

    def read_from(self, offset: int, max_bytes: int) -> Chunk | Gap | None:
        """What stands at `offset`."""

    def ended(self, total: int) -> None:
        """The attempt wrote `total` bytes."""

    def close(self) -> None:
        """Close the open file."""


class Outflow:
    """The output of one attempt. All offsets count both streams of the whole attempt."""

    def __init__(self, key: AttemptKey, lease: str, reader: Reader, *, adopted: bool = False) -> None:
        self.run_id, self.attempt = key
        self.key = key
        self.lease = lease
        self.acked = 0  # the master has everything below
        self.total: int | None = None  # bytes written in all; known once the attempt has ended
        self.gaps: list[tuple[int, int]] = []  # declared and acknowledged
        self._reader = reader
        self._sent = 0
        self._in_doubt: list[Chunk | Gap] = []  # sent, and the answer was lost: they may have arrived
        self._known_end = 0  # the spool reaches at least this far
        self._unexplored = adopted  # it may hold more than anybody told
        self._waiting_since: float | None = None
        self._sent_at = -math.inf
        self._unread = False  # nothing is to be read for its own sake any more
        self._failures = 0
        self._retry_at = -math.inf
        self._hash = hashlib.sha256()
        self._hashed: int | None = 0  # the hash covers everything below; None: a part was never seen here

    @property
    def complete(self) -> bool:
        """The attempt has ended and the master has, or does not want, all of its output."""
        return self.total is not None and (self._unread or self.acked >= self.total)

    @property
    def sha256(self) -> str | None:
        """Of all kept bytes in order; None while incomplete, or if a part went out before this process began."""
        if self.total is None or self._hashed is None or self._hashed < self.total:
            return None
        return self._hash.hexdigest()

    def grow(self, end: int, now: float) -> None:
        """The spool reaches to `end`."""
        if end > self._known_end:
            self._known_end = end
            if self._waiting_since is None:
                self._waiting_since = now

    def finish(self, total: int) -> None:
        """The attempt has ended and wrote `total` bytes."""
        self.total = total
        self._reader.ended(total)
        self._unexplored = self._unexplored and self._sent < total

    def discard(self) -> None:
        """Nobody wants the rest."""
        self._unread = True
        self.close()

    def due_at(self, chunk: int) -> float:
        """When the next piece should go out, in monotonic seconds; infinite when there is nothing."""
        if self._unread:
            return math.inf
        if self._retry_at > -math.inf:
            return self._retry_at
        if self.total is not None:
            return -math.inf if self._sent < self.total else math.inf
        pending = self._known_end - self._sent
        if self._unexplored or pending >= chunk:
            return -math.inf
        if pending <= 0 or self._waiting_since is None:
            return math.inf
        return max(self._waiting_since + COALESCE_S, self._sent_at + TRICKLE_S)

    def take(self, max_bytes: int, now: float) -> Chunk | Gap | None:
        """The next piece to send, counted as sent; None when there is nothing now."""
        self._retry_at = -math.inf
        self._in_doubt = []
        try:
            piece = self._reader.read_from(self._sent, max_bytes)
        except OSError as error:
            piece = self._unreadable(error, now)
        else:
            self._failures = 0
        if piece is None and self.total is not None and self._sent < self.total and not self._failures:
            piece = Gap(self._sent, self.total - self._sent)  # written, the record says, and not there
        if piece is None:
            self._unexplored = False
            self._waiting_since = None
            # Told of, but not readable yet: the next news, or the end, makes it due again.
            self._known_end = self._sent
            return None
        self._sent = piece.end
        self._sent_at = now
        if self._sent >= self._known_end:
            self._waiting_since = None
        return piece

    def settle(self, pieces: list[Chunk | Gap], acked: int | None) -> None:
        """`pieces`, in order, were answered: the master has everything below `acked`; None: it does not want it."""
        if acked is None:
            self.discard()
            return
        self._in_doubt = pieces
        self.go_on_from(acked)

    def rewind(self, pieces: list[Chunk | Gap]) -> None:
        """`pieces` were sent and may be lost: send them again, unless the master turns out to have them."""
        self._in_doubt = pieces
        self._sent = self.acked
        self._unexplored = self._unexplored or self.total is None
        self._sent_at = -math.inf

    def go_on_from(self, acked: int) -> None:
        """The master has everything below `acked` and wants what follows."""
        self._unread = False
        for piece in self._in_doubt:
            if piece.end <= acked and piece.offset >= self.acked:
                self._count(piece)
        self._in_doubt = []
        self.acked = acked
        if self._sent != acked:
            self._sent = acked
            self._unexplored = self.total is None
        if self._hashed is not None and self._hashed < acked:
            self._hashed = None

    def close(self) -> None:
        """Close the file; a later `take` opens it again."""
        self._reader.close()

    def _count(self, piece: Chunk | Gap) -> None:
        if isinstance(piece, Gap):
            self.gaps.append((piece.offset, piece.length))
        if self._hashed != piece.offset:
            return
        if isinstance(piece, Chunk):
            self._hash.update(piece.data)
        self._hashed = piece.end

    def _unreadable(self, error: OSError, now: float) -> Gap | None:
        """A disk that cannot be read is tried again; once the attempt is over, its rest is given up as a gap."""
        self._failures += 1
        logger.error(
            "output cannot be read", extra=log.fields(run_id=self.run_id, offset=self._sent, reason=str(error))
        )
        if self.total is not None and self._failures >= _UNREADABLE_AFTER:
            return Gap(self._sent, self.total - self._sent)
        self._retry_at = now + 1.0
        return None


def as_wire(flow: Outflow, piece: Chunk | Gap) -> dict[str, Any]:
    """A piece as `output` takes it."""
    head: dict[str, Any] = {
        "run_id": flow.run_id,
        "attempt": flow.attempt,
        "lease": flow.lease,
        "offset": piece.offset,
    }
    if isinstance(piece, Gap):
        head["gap"] = piece.length
    else:
        head["segments"] = piece.segments
        head["data"] = piece.data
    return head
