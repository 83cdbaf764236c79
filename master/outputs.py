"""Output on its way in: whose chunk it is, how far each attempt has come, and the hash of what is kept.

A chunk is stored while its run is held, and also for an attempt that was given up as lost, since its output is still
worth reading. Whatever has no place here is acknowledged all the same, so that no agent sends it for ever. Sizes and
hashes of running attempts are remembered; a miss is read from the output store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from common import faults
from common.config import Settings
from common.model import FINAL_STATES, Ending, Outcome
from master.asks import Chunk
from master.blobs import Submissions
from master.events import OutputNews
from master.leases import Leases
from master.ledger import Ledger
from master.output import Kept, OutputChunk, OutputStore
from master.store.base import ReadTx

Key = tuple[str, int]
_KNOWN_MOST = 50_000


class _Known:
    """How far an attempt's output has come; `digest` while all of it is kept and has passed through here in order."""

    __slots__ = ("digest", "size")

    def __init__(self, size: int, *, from_start: bool) -> None:
        self.size = size
        self.digest = hashlib.sha256() if from_start else None

    def follow(self, chunk: OutputChunk, acked: int) -> None:
        """A chunk was stored."""
        end = chunk.offset + len(chunk.content)
        if chunk.gap or chunk.offset != self.size or 2 * end > chunk.limit:
            self.digest = None
        elif self.digest is not None:
            self.digest.update(chunk.content)
        self.size = max(acked, self.size) if self.digest is None else end


class Outputs:
    """The use-cases of output on its way in."""

    def __init__(
        self,
        store: OutputStore,
        ledger: Ledger,
        leases: Leases,
        submissions: Submissions,
        news: OutputNews,
        settings: Settings,
    ) -> None:
        self.store = store
        self._ledger = ledger
        self._leases = leases
        self._submissions = submissions
        self._news = news
        self._settings = settings
        self._known: dict[Key, _Known] = {}

    def append(self, agent_id: str, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Store chunks: {acked: run → offset to go on from, slow}, after the commit."""
        acked: dict[str, int] = {}
        accepted = []
        for chunk in chunks:
            if self._accepts(agent_id, chunk):
                accepted.append(self._of(chunk))
            else:
                acked[chunk.run_id] = chunk.offset + len(chunk.data) + chunk.gap
        if self._too_much(accepted):
            # Not even queued: what the agent keeps costs no memory here.
            acked.update({chunk.run_id: max(0, self.size(chunk.run_id, chunk.attempt)) for chunk in accepted})
            return {"acked": acked, "slow": True}
        if accepted:
            stored = self.store.append(accepted)
            faults.at("after-output-commit")
            acked.update(stored)
            self._follow(accepted, stored)
        return {"acked": acked, "slow": self.store.pending_bytes > self._settings.output_budget}

    def _too_much(self, chunks: Sequence[OutputChunk]) -> bool:
        """Whether these chunks would take the bytes that wait for their commit far above the budget."""
        waiting = self.store.pending_bytes
        return waiting > 0 and waiting + sum(len(c.content) for c in chunks) > 2 * self._settings.output_budget

    def _accepts(self, agent_id: str, chunk: Chunk) -> bool:
        lease = self._leases.get(chunk.run_id)
        if lease is not None and lease.token == chunk.lease:
            return lease.agent_id == agent_id and lease.attempt == chunk.attempt
        return self._ledger.read(lambda tx: _given_up(tx, agent_id, chunk.run_id, chunk.attempt))

    def _of(self, chunk: Chunk) -> OutputChunk:
        lease = self._leases.get(chunk.run_id)
        limit = self._settings.output_limit
        if lease is not None and lease.task_id is not None:
            limit = self._submissions.of(lease.task_id).spec.output_limit
        return OutputChunk(
            run_id=chunk.run_id,
            attempt=chunk.attempt,
            offset=chunk.offset,
            content=chunk.data,
            segments=chunk.segments,
            gap=chunk.gap,
            limit=limit,
        )

    def _follow(self, chunks: Sequence[OutputChunk], stored: dict[str, int]) -> None:
        for chunk in chunks:
            key = (chunk.run_id, chunk.attempt)
            known = self._known.get(key)
            if known is None:
                if len(self._known) >= _KNOWN_MOST:
                    self._known.clear()  # a memory only: the store knows it all
                known = self._known[key] = _Known(0 if chunk.offset == 0 else -1, from_start=chunk.offset == 0)
            known.follow(chunk, stored[chunk.run_id])
            lease = self._leases.get(chunk.run_id)
            if lease is not None:
                self._news.note(chunk.run_id, lease.task_id, stored[chunk.run_id])

    def size(self, run_id: str, attempt: int) -> int:
        """The offset to go on from."""
        known = self._known.get((run_id, attempt))
        return self.store.size(run_id, attempt) if known is None else known.size

    def size_at_hand(self, run_id: str, attempt: int) -> int:
        """Bytes known without looking into the store; 0 when nothing is."""
        known = self._known.get((run_id, attempt))
        return 0 if known is None else max(0, known.size)

    def kept(self, run_id: str, attempt: int, size: int) -> Kept:
        """What is kept of an attempt whose output is complete with `size` bytes."""
        if size == 0:
            return _NOTHING
        known = self._known.get((run_id, attempt))
        if known is not None and known.digest is not None and known.size == size:
            return Kept(sha256=known.digest.hexdigest(), gaps=[])
        return self.store.kept(run_id, attempt)

    def forget(self, run_id: str, attempt: int) -> None:
        """The attempt has ended: nothing more is to come."""
        self._known.pop((run_id, attempt), None)


def _given_up(tx: ReadTx, agent_id: str, run_id: str, attempt: int) -> bool:
    """Whether this was the agent's attempt, begun, and ended without it saying how."""
    run = tx.get_run(run_id)
    if run is None:
        return False
    if run.attempt == attempt:
        mine = run.agent_id == agent_id and run.started_at_ms is not None
        return mine and (run.state not in FINAL_STATES or _untold(run.ending))
    return any(
        former.attempt == attempt and former.agent_id == agent_id and not former.late and _untold(former.ending)
        for former in tx.list_attempts(run_id)
    )


def _untold(ending: Ending | None) -> bool:
    return ending is None or ending.outcome is Outcome.LOST


_NOTHING = Kept(sha256=hashlib.sha256().hexdigest(), gaps=[])
