"""Runs attempts: a worker thread and a future for each, over the shepherd that does the forking.

Promises: an attempt is begun at most once, whatever crashes; its exit record is in the journal before its future is
done; after a restart `adopt` tells of every attempt that was begun and not yet delivered. All methods may be called
from any thread, gevent's hub included, and none blocks for longer than a lock, except `adopt` and `close`.
Futures are `concurrent.futures` ones: their callbacks run in native threads, so bridge them to the hub by an `async_`
watcher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from agent.attempt import AttemptKey, AttemptSpec, ExitRecord
from agent.journal import Journal
from agent.shepherd_link import ShepherdLink
from agent.spool_reader import SpoolReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """The agent's own limits for every attempt."""

    kill_grace_s: float = 10.0  # between TERM and KILL
    drain_quiet_s: float = 0.2  # without output after the main process ended: the attempt is over
    drain_most_s: float = 1.0  # the longest wait for that


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedAttempt:
    """An attempt of a former agent process that was begun and not delivered."""

    run_id: str
    attempt: int
    lease: str
    future: Future[ExitRecord]  # done at once if the attempt had ended (or was interrupted, or the host rebooted)


class Executor:
    """The attempts of one agent. Begins with `adopt`; end it with `close`."""

    def __init__(
        self,
        state_dir: Path,
        *,
        slots: int,
        link: ShepherdLink,
        journal: Journal,
        settings: ExecutorSettings | None = None,
        on_output: Callable[[str, int, int], None] | None = None,
    ) -> None:
        """`on_output(run_id, attempt, end_offset)` is called in a native thread when more output is in the spool."""
        raise NotImplementedError

    @property
    def slots(self) -> int:
        """How many attempts may be under way at once; may be set, also below what runs now."""
        raise NotImplementedError

    def free_slots(self) -> int:
        """Slots without an attempt, submitted or adopted; never negative."""
        raise NotImplementedError

    def adopt(self) -> list[AdoptedAttempt]:
        """Connect to the shepherd (start one if there is none) and take over what former agents left.

        Call it once, before the first `submit`. Blocks for the shepherd's start. Raises ShepherdUnavailable.
        """
        raise NotImplementedError

    def prepare(self, specs: Sequence[AttemptSpec]) -> Future[None]:
        """Before `begin` is called at the master: journal "about to begin" and write the script files, in one go.

        Done when it is on disk. An error (a full disk) is in the future; then release the runs.
        """
        raise NotImplementedError

    def submit(self, spec: AttemptSpec) -> Future[ExitRecord]:
        """Run the attempt; only after the master allowed its begin. `spec.fence` is the begin's.

        The future never raises for what the script or the host does: that is an outcome of the record.
        """
        raise NotImplementedError

    def abandon(self, keys: Iterable[AttemptKey]) -> None:
        """Prepared, but not allowed to begin: nothing ran and nothing is to be told."""
        raise NotImplementedError

    def kill(self, run_id: str, *, why: str, grace_s: float | None = None) -> bool:
        """End the run's attempt: TERM to its whole tree, grace, KILL. `why` is one of KILL_REASONS.

        False: no such attempt is under way. Its future tells the end.
        """
        raise NotImplementedError

    def acknowledge(self, run_id: str, attempt: int, offset: int) -> None:
        """The master has all output below `offset` (or was told it is a gap): dropping that is no loss any more."""
        raise NotImplementedError

    def output(self, run_id: str, attempt: int) -> SpoolReader:
        """A reader over the attempt's output, while it runs and until it is forgotten. Close it."""
        raise NotImplementedError

    def running(self) -> list[AttemptKey]:
        """Every attempt submitted or adopted whose future is not done."""
        raise NotImplementedError

    def forget(self, keys: Iterable[AttemptKey]) -> None:
        """The master has the results: note it in the journal and remove files and spool."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the shepherd without ending what runs: a later agent adopts it. An idle shepherd is stopped."""
        raise NotImplementedError
