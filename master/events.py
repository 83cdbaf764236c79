"""The change feed: long polls over its rows, and the news of growing output, told in measure.

A row says that something changed, not what: readers fetch what they need. Rows of transitions are appended in the
transition's own transaction. Rows of output are appended apart, per run at most one in `OUTPUT_EVERY_S`, and none for
a run that has ended by then: its end is told anyway.
"""

from __future__ import annotations

import time
from typing import Any

import gevent

from common.clock import Clock
from common.service import Loop
from master.leases import Leases
from master.ledger import Ledger
from master.runs import Change
from master.store.base import ReadTx
from master.waiting import Waits

OUTPUT_EVERY_S = 0.2
"""At most one row for each run's output in this time."""
FIRST_OUTPUT_S = 0.05
"""How long a run's output waits for company, or for the run's end."""
_GATHER_S = 0.02
_LIMIT_MOST = 2_000


class Feed:
    """Answers the `feed` calls of webservers."""

    def __init__(self, ledger: Ledger, waits: Waits) -> None:
        self._ledger = ledger
        self._waits = waits
        self._closed = False

    def read(self, after: int, *, wait_s: float, limit: int) -> dict[str, Any]:
        """Rows behind `after` as soon as there are any; −1: none, but where to begin. `reset`: `after` is older than
        what is kept, or from another history."""
        limit = max(1, min(limit, _LIMIT_MOST))
        until = time.monotonic() + wait_s
        event = self._waits.enter("")
        try:
            while True:
                event.clear()
                answer = self._ledger.read(lambda tx: _rows(tx, after, limit))
                left_s = until - time.monotonic()
                if answer["reset"] or answer["events"] or after < 0 or left_s <= 0 or self._closed:
                    return answer
                if event.wait(left_s) and not self._closed:
                    gevent.sleep(_GATHER_S)  # changes come in groups; one answer carries them all
        finally:
            self._waits.leave("", event)

    def close(self) -> None:
        """The master stops: end all polls with what there is."""
        self._closed = True
        self._waits.wake_all()


def _rows(tx: ReadTx, after: int, limit: int) -> dict[str, Any]:
    oldest, newest = tx.event_bounds()
    if after < 0:
        return {"reset": False, "events": [], "last": newest}
    if after > newest or after < oldest - 1:
        return {"reset": True, "events": [], "last": newest}
    events = tx.events_after(after, limit=limit)
    rows = [[e.seq, e.kind, e.task_id, e.run_id, e.end_offset] for e in events]
    return {"reset": False, "events": rows, "last": rows[-1][0] if rows else after}


class OutputNews(Loop):
    """Appends the feed's rows of output, in its own small transactions."""

    def __init__(self, ledger: Ledger, leases: Leases, *, clock: Clock) -> None:
        super().__init__("output news", clock=clock)
        self._ledger = ledger
        self._leases = leases
        self._pending: dict[str, tuple[float, str | None, int]] = {}  # run → due, task, end offset
        self._told_s: dict[str, float] = {}

    def note(self, run_id: str, task_id: str | None, end_offset: int) -> None:
        """So much of a run's output is stored now. Never waits."""
        waiting = self._pending.get(run_id)
        if waiting is not None:
            self._pending[run_id] = (waiting[0], task_id, end_offset)
            return
        now = self._clock.monotonic_s()
        due_s = max(now + FIRST_OUTPUT_S, self._told_s.get(run_id, 0.0) + OUTPUT_EVERY_S)
        self._pending[run_id] = (due_s, task_id, end_offset)
        if len(self._pending) == 1:
            self.wake()

    def step(self, now: float) -> float | None:
        """Append what is due."""
        due = {run_id: news for run_id, news in self._pending.items() if news[0] <= now}
        rows = [(run_id, task, end) for run_id, (_, task, end) in due.items() if self._leases.get(run_id) is not None]
        if rows:

            def append(change: Change) -> None:
                for run_id, task_id, end_offset in rows:
                    change.event("output", task_id=task_id, run_id=run_id, end_offset=end_offset)

            self._ledger.change(append)
            self._told_s.update({run_id: now for run_id, _, _ in rows})
        for run_id, told in due.items():
            newer = self._pending.pop(run_id)
            if newer != told:  # more came while this was being stored
                self._pending[run_id] = (now + OUTPUT_EVERY_S, *newer[1:])
        self._told_s = {run_id: at for run_id, at in self._told_s.items() if now - at < OUTPUT_EVERY_S}
        self.say(f"{len(self._pending)} runs have news of output")
        if not self._pending:
            return None
        return max(0.0, min(news[0] for news in self._pending.values()) - self._clock.monotonic_s())
