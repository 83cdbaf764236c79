"""What was submitted and never changes: specs, scripts, target lists. Stored once by hash, kept at hand while in use.

A claim passes on the spec's bytes as they were packed at submit, so a script that goes to 500 agents is read and
packed once. The cache is bounded in bytes and filled at submit; a miss is read from a snapshot.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Generic, TypeVar

import msgspec

from common import wire
from common.errors import Forbidden, NotFound
from common.model import TaskSpec
from master.leases import Leases
from master.ledger import Ledger
from master.store.base import ReadTx, WriteTx

PIECE_MOST = 256 * 1024
_SUBMISSIONS_MOST = 16 * 1024 * 1024
_SCRIPTS_MOST = 32 * 1024 * 1024

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Submission:
    """A task's fixed part. `targets`: as the person gave them, None for a task by `count` alone."""

    raw: bytes
    spec: TaskSpec
    targets: list[str] | None


class _Cache(Generic[V]):
    """The most recently used values within a bound of bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._entries: OrderedDict[str, tuple[int, V]] = OrderedDict()

    def get(self, key: str) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[1]

    def put(self, key: str, value: V, *, size: int) -> None:
        if key in self._entries or size > self._most // 4:
            return
        self._entries[key] = (size, value)
        self._size += size
        while self._size > self._most:
            _, (gone, _) = self._entries.popitem(last=False)
            self._size -= gone


class Submissions:
    """Reads what was submitted; `inline_most`: the largest script (bytes) that goes inside a claim."""

    def __init__(self, ledger: Ledger, leases: Leases, *, inline_most: int) -> None:
        self._ledger = ledger
        self._leases = leases
        self._inline_most = inline_most
        self._submissions: _Cache[Submission] = _Cache(_SUBMISSIONS_MOST)
        self._scripts: _Cache[bytes] = _Cache(_SCRIPTS_MOST)

    def put(self, task_id: str, submission: Submission, script: bytes) -> None:
        """A task was stored: keep its fixed part at hand, agents are about to ask for it."""
        self._submissions.put(task_id, submission, size=_size(submission))
        if len(script) <= self._inline_most:
            self._scripts.put(submission.spec.script_sha256, script, size=len(script) + 200)

    def cached(self, task_id: str) -> Submission | None:
        """A task's fixed part if it is at hand."""
        return self._submissions.get(task_id)

    def keep(self, task_id: str, submission: Submission) -> None:
        """A task's fixed part was read in a snapshot."""
        self._submissions.put(task_id, submission, size=_size(submission))

    def of(self, task_id: str) -> Submission:
        """A task's fixed part. Raises `NotFound`."""
        submission = self._submissions.get(task_id)
        if submission is None:
            submission = self._ledger.read(lambda tx: read_submission(tx, task_id))
            if submission is None:
                raise NotFound(f"There is no task {task_id}.")
            self.keep(task_id, submission)
        return submission

    def inline_script(self, spec: TaskSpec) -> bytes | None:
        """The script for a claim; None when it is so large that the agent must fetch it."""
        if spec.script_size > self._inline_most:
            return None
        script = self._scripts.get(spec.script_sha256)
        if script is None:
            script = self._ledger.read(lambda tx: tx.blob_piece(spec.script_sha256, offset=0, length=spec.script_size))
            self._scripts.put(spec.script_sha256, script, size=len(script) + 200)
        return script

    def script(self, task_id: str) -> dict[str, object]:
        """The whole script of a task: {data, sha256}. Raises `NotFound`."""
        spec = self.of(task_id).spec
        data = self._ledger.read(lambda tx: tx.blob_piece(spec.script_sha256, offset=0, length=spec.script_size))
        return {"data": data, "sha256": spec.script_sha256}

    def piece(self, agent_id: str, sha256_text: str, offset: int) -> dict[str, object]:
        """A piece of a script that the agent holds a run of: {size, data}. Raises `Forbidden`, `NotFound`."""
        tasks = {lease.task_id for lease in self._leases.of_agent(agent_id) if lease.task_id is not None}
        if not any(self.of(task_id).spec.script_sha256 == sha256_text for task_id in tasks):
            raise Forbidden("This agent holds no run of that script.")

        def piece(tx: ReadTx) -> dict[str, object]:
            size = tx.blob_size(sha256_text)
            if size is None:
                raise NotFound(f"There is no blob {sha256_text[:64]}.")
            return {"size": size, "data": tx.blob_piece(sha256_text, offset=offset, length=PIECE_MOST)}

        return self._ledger.read(piece)


def read_submission(tx: ReadTx, task_id: str) -> Submission | None:
    """A task's fixed part, from a snapshot."""
    raw = tx.get_spec_raw(task_id)
    if raw is None:
        return None
    spec = wire.unpack(TaskSpec, raw)
    targets = None
    if spec.targets_sha256 is not None:
        packed = tx.blob_piece(spec.targets_sha256, offset=0, length=tx.blob_size(spec.targets_sha256) or 0)
        targets = msgspec.msgpack.decode(packed, type=list[str])
    return Submission(raw=raw, spec=spec, targets=targets)


def pack_targets(targets: list[str]) -> tuple[str, bytes]:
    """A target list as a blob: its hash and its bytes."""
    packed = msgspec.msgpack.encode(targets)
    return sha256(packed).hexdigest(), packed


def store_submission(tx: WriteTx, spec: TaskSpec, script: bytes, packed_targets: bytes | None) -> None:
    """Put a new task's blobs into the store."""
    tx.put_blob(spec.script_sha256, script)
    if spec.targets_sha256 is not None and packed_targets is not None:
        tx.put_blob(spec.targets_sha256, packed_targets)


def _size(submission: Submission) -> int:
    return 3 * len(submission.raw) + 60 * len(submission.targets or ()) + 1_000
