"""The keeper: what time alone brings about. Rounds of `step`, each short, each safe to be missed or repeated.

It judges silence and leases, sends delayed runs on, expires what waited too long, wakes agents that a window passed
over, stores facts, trims the feed. Time in which the master itself stood still (frozen, suspended, loop stalled) is
nobody's silence: `Stillness` finds it and adds it to every deadline that hangs on somebody else's word.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from common import log
from common.clock import Clock
from common.config import Settings
from common.errors import MusterError
from common.model import RunState
from common.service import Loop
from master.agents import Agents
from master.clock import EngineClock
from master.leases import Lease, Leases
from master.ledger import Ledger
from master.lifecycle import Due, Expire, LeaseEnd, room
from master.presence import Fleet, Presence
from master.runs import SLICE, Change
from master.store.base import ReadTx
from master.waiting import Pulls

logger = logging.getLogger(__name__)

SLACK_S = 1.0
"""Lateness of the loop that still counts as running."""
_PULSE_S = 0.25
_TRIM_EVERY_S = 10.0
_TRIM_MOST = 5_000


class Stillness:
    """Finds the time in which this process did not run, by looking often. `interval_s`: how often it is asked."""

    def __init__(self, clock: EngineClock, fleet: Fleet, leases: Leases, *, interval_s: float = _PULSE_S) -> None:
        self._clock = clock
        self._fleet = fleet
        self._leases = leases
        self._interval_s = interval_s
        self._looked_s: float | None = None

    def look(self) -> float:
        """The engine second now, after all deadlines were moved by the time that the master stood still."""
        now_s = self._clock.now_s()
        looked_s, self._looked_s = self._looked_s, now_s
        if looked_s is not None and now_s - looked_s > self._interval_s + SLACK_S:
            still_s = now_s - looked_s - self._interval_s
            self._fleet.shift(still_s, now_s=now_s)
            self._leases.shift(still_s, now_s=now_s)
            logger.warning("the master stood still", extra=log.fields(seconds=round(still_s, 1)))
        return now_s


class Pulse(Loop):
    """Keeps `Stillness` looking; does nothing else, so nothing holds it up but what holds up everything."""

    def __init__(self, stillness: Stillness, *, clock: Clock) -> None:
        super().__init__("pulse", clock=clock)
        self._stillness = stillness

    def step(self, now: float) -> float | None:
        """Look."""
        self._stillness.look()
        self.say("watching that the master does not stand still")
        return _PULSE_S


class Keeper(Loop):
    """The loop of rounds."""

    def __init__(
        self,
        ledger: Ledger,
        agents: Agents,
        fleet: Fleet,
        leases: Leases,
        pulls: Pulls,
        stillness: Stillness,
        settings: Settings,
        *,
        clock: Clock,
    ) -> None:
        super().__init__("keeper", clock=clock)
        self._ledger = ledger
        self._agents = agents
        self._fleet = fleet
        self._leases = leases
        self._pulls = pulls
        self._stillness = stillness
        self._settings = settings
        self._gone: list[Presence] = []  # gone silent, not stored yet
        self._trim_at = 0.0

    def step(self, now: float) -> float | None:
        """One round."""
        now_s = self._stillness.look()
        self._gone += self._agents.judge(now_s)
        # First what needs no store, then the rest in order of haste; a store that fails is tried again next round.
        failed: MusterError | None = None
        works = (self._wake_unfilled, self._store_silence, self._tell_agents, self._end_leases, self._end_waits)
        for work in (*works, self._save_facts):
            try:
                work(now_s)
            except MusterError as error:
                failed = error
        if failed is not None:
            raise failed
        if now >= self._trim_at:
            self._trim_at = now + (_TRIM_EVERY_S if not self._trim() else 0.0)
        self.say(f"{len(self._leases)} runs held, {len(self._fleet)} agents known")
        return self._settings.keeper_interval

    def _store_silence(self, now_s: float) -> None:
        while self._gone:
            some = [presence for presence in self._gone[:SLICE] if not presence.online]
            if some:
                self._agents.store_silence(some)
            del self._gone[:SLICE]

    def _tell_agents(self, now_s: float) -> None:
        self._agents.tell_changes()

    def _end_leases(self, now_s: float) -> None:
        over = self._leases.overdue(now_s, self._agents.silence_s)
        for start in range(0, len(over), SLICE):
            # Judged again: an agent may have come back while the slices before were stored.
            some = self._leases.still_overdue(over[start : start + SLICE], now_s, self._agents.silence_s)
            if not some:
                continue
            for lease in self._ledger.change(lambda change, some=some: _end(change, some)):  # type: ignore[misc]
                self._leases.drop(lease)

    def _end_waits(self, now_s: float) -> None:
        """Delayed runs that are due, ready ones that waited too long."""
        while True:
            deadline_s = self._ledger.read(lambda tx: tx.next_deadline())
            if deadline_s is None or deadline_s > now_s:
                return
            if not self._ledger.change(_end_waits):
                return

    def _wake_unfilled(self, now_s: float) -> None:
        late = self._pulls.unfilled(now_s)
        if not late:
            return

        def open_ones(tx: ReadTx) -> list[str]:
            tasks = [tx.get_task(task_id) for task_id in late]
            return [task.id for task in tasks if task is not None and room(task) != 0 and _has_ready(task.counts)]

        for task_id in self._ledger.read(open_ones):
            self._pulls.wake_rest(task_id)

    def _save_facts(self, now_s: float) -> None:
        self._agents.save_facts(now_s, most=SLICE)

    def _trim(self) -> bool:
        """Trim the feed by one slice; whether there may be more to trim."""
        keep = self._settings.feed_keep
        before_ms = self._clock.wall_ms() - round(self._settings.feed_age * 1000)
        gone = self._ledger.change(
            lambda change: change.tx.trim_events(keep=keep, limit=_TRIM_MOST, before_ms=before_ms)
        )
        return gone >= _TRIM_MOST


def _has_ready(counts: dict[str, int]) -> bool:
    return counts.get(RunState.READY, 0) > 0


def _end(change: Change, leases: Sequence[Lease]) -> list[Lease]:
    """End leases that have run out; those that the store does not know are answered. One that began a moment ago is
    left alone: its begin has renewed it."""
    unknown = []
    for lease in leases:
        run = change.tx.get_run(lease.run_id)
        if run is None or run.lease != lease.token:
            unknown.append(lease)
        elif (run.state is RunState.RUNNING) is lease.begun:
            change.move(run, LeaseEnd())
    return unknown


def _end_waits(change: Change) -> int:
    """One slice of due and of expired runs; how many there were."""
    engine_s = change.now.engine_s
    due = change.tx.due(engine_s, limit=SLICE)
    for run in due:
        change.move(run, Due())
    expired = change.tx.expired(engine_s, limit=SLICE)
    for run in expired:
        change.move(run, Expire())
    return len(due) + len(expired)
