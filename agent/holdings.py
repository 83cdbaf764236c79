"""What this agent has in hand: every attempt from its claim until the master has taken its result.

The one table that answers what `held` and `ended` are to say, how many slots are taken, and whether a word of the
master ("stale", "cancel") still means the attempt it was said of. Pure memory: after a restart it is filled from the
executor's journal. An attempt is known by (run id, number); a run may be here twice, its newest attempt counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from agent.attempt import AttemptKey, AttemptSpec


class Stage(IntEnum):
    """How far an attempt has come."""

    CLAIMED = 1  # leased to us, nothing has happened yet
    BEGINNING = 2  # the master is being asked whether it may begin
    RUNNING = 3  # allowed and handed to the executor
    ENDED = 4  # over; its output or its result is still to be taken


@dataclass(slots=True, eq=False)
class Holding:
    """One attempt in hand."""

    run_id: str
    attempt: int
    lease: str
    stage: Stage
    spec: AttemptSpec | None = None  # None for an adopted one
    refusal: str | None = None  # why it cannot be run here, though it may begin
    kill_why: str | None = None  # it is to be ended, and why
    stale: bool = False  # its lease is gone: it is ended, and its outcome told once
    doubtful: bool = (
        False  # it never ran, and only the master knows whether it was to: not told of before that is clear
    )

    @property
    def key(self) -> AttemptKey:
        """(run id, attempt)."""
        return (self.run_id, self.attempt)


class Holdings:
    """The table. `on_busy` is called when the first attempt comes into an empty one."""

    def __init__(self) -> None:
        self.on_busy: Callable[[], None] | None = None
        self._held: dict[AttemptKey, Holding] = {}
        self._taking_slots = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._held

    @property
    def active(self) -> int:
        """How many have not ended: each takes a slot."""
        return self._taking_slots

    def get(self, key: AttemptKey) -> Holding | None:
        """The attempt, if it is in hand."""
        return self._held.get(key)

    def add(self, holding: Holding) -> None:
        """Take it in hand. Raises ValueError for an attempt that is there already."""
        if holding.key in self._held:
            raise ValueError(f"attempt {holding.key} is in hand already")
        self._held[holding.key] = holding
        if holding.stage is not Stage.ENDED:
            self._taking_slots += 1
        if len(self._held) == 1 and self.on_busy is not None:
            self.on_busy()

    def advance(self, holding: Holding, stage: Stage) -> None:
        """It has come to `stage`."""
        if stage is Stage.ENDED and holding.stage is not Stage.ENDED and self._held.get(holding.key) is holding:
            self._taking_slots -= 1
        holding.stage = stage

    def remove(self, holding: Holding) -> None:
        """It is in hand no more; no error if it was not."""
        if self._held.get(holding.key) is holding:
            del self._held[holding.key]
            if holding.stage is not Stage.ENDED:
                self._taking_slots -= 1

    def of_run(self, run_id: str) -> list[Holding]:
        """The attempts of a run, oldest first."""
        found = [holding for holding in self._held.values() if holding.run_id == run_id]
        return sorted(found, key=lambda holding: holding.attempt)

    def at(self, stage: Stage) -> list[Holding]:
        """All attempts at `stage`, in the order they came."""
        return [holding for holding in self._held.values() if holding.stage is stage]

    def leases(self) -> dict[str, str]:
        """Run id → lease of its newest attempt: what `held` says, and what an answer to it is about."""
        newest: dict[str, Holding] = {}
        for holding in self._held.values():
            if holding.doubtful:
                continue
            other = newest.get(holding.run_id)
            if other is None or other.attempt < holding.attempt:
                newest[holding.run_id] = holding
        return {run_id: holding.lease for run_id, holding in newest.items()}

    def triples(self, *, ended: bool) -> list[list[str | int]]:
        """[run id, attempt, lease] of those that have ended, or of those that have not."""
        return [
            [holding.run_id, holding.attempt, holding.lease]
            for holding in self._held.values()
            if (holding.stage is Stage.ENDED) is ended and not holding.doubtful
        ]


def pairs(leases: Iterable[tuple[str, str]]) -> list[list[str]]:
    """[[run id, lease]] as the wire has it."""
    return [[run_id, lease] for run_id, lease in leases]
