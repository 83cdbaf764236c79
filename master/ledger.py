"""Runs changes in the store and, after the commit, tells all who wait: leases, pulls, callers, the feed, the log.

The loop's side of `master.runs`. `change(fn)` returns after the commit and after everybody was told; telling never
waits, so what was told is in the order of the commits. Slices of a large decision are carried on in the background,
and taken up again by `resume` after a restart.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import TypeVar

import gevent
from gevent.event import Event

from common import faults, log
from common.errors import Unavailable
from common.model import HELD_STATES, TASK_FINAL_STATES, RunState, Task, TaskState
from master.clock import EngineClock
from master.leases import Leases
from master.runs import Change, Notes, Swept, sweep
from master.store.base import ReadTx, RunNotice, Store, TaskFilter, WriteTx
from master.waiting import Audience, Pulls, Waits

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LINES = 20
"""Runs of one change that get a log line each; beyond it they are counted in one line."""
_RESUME_PAGE = 500
_RETRY_S = 1.0


class Ledger:
    """See the module. `waits` is keyed by task id, `feed_waits` by nothing: the key is ""."""

    def __init__(
        self, store: Store, clock: EngineClock, *, leases: Leases, pulls: Pulls, waits: Waits, feed_waits: Waits
    ) -> None:
        self.store = store
        self.clock = clock
        self._leases = leases
        self._pulls = pulls
        self._waits = waits
        self._feed_waits = feed_waits
        self._sweeping: dict[str, bool] = {}  # task → asked for again meanwhile
        self._known: Callable[[], Collection[str]] = frozenset
        self._closed = Event()

    def know_agents(self, known: Callable[[], Collection[str]]) -> None:
        """Where to ask which agents are enrolled (they come into being after the ledger)."""
        self._known = known

    def change(self, fn: Callable[[Change], T]) -> T:
        """Run `fn` in a transaction; everybody concerned has been told when this returns.

        Raises what `fn` raised (nothing is stored then), `StoreFull` or `StoreUnavailable`.
        """
        now = self.clock.now()

        def closure(tx: WriteTx) -> tuple[T, Notes]:
            change = Change(tx, now)
            return fn(change), change.notes

        result, notes = self.store.write(closure)
        self._tell(notes)
        return result

    def read(self, fn: Callable[[ReadTx], T]) -> T:
        """Run `fn` on a snapshot."""
        return self.store.read(fn)

    def finish_sweep(self, task_id: str) -> None:
        """Carry on what a task's flags have decided, slice by slice, to its end."""
        if task_id in self._sweeping:
            self._sweeping[task_id] = True  # whoever is at it may have looked at the flags before they were set
            return
        again = True
        try:
            while again and not self._closed.is_set():
                self._sweeping[task_id] = False
                swept = self._sweep_once(task_id, None)
                while not swept.done and not self._closed.is_set():
                    swept = self._sweep_once(task_id, swept.cursor)
                again = self._sweeping[task_id]
        finally:
            del self._sweeping[task_id]

    def carry_out(self, task_id: str) -> None:
        """`finish_sweep` for a caller that waits for it. Whatever befalls it, the decision is carried on."""
        try:
            self.finish_sweep(task_id)
        except BaseException:  # also a caller that is ended where it waits
            self._sweep_later(task_id)
            raise

    def resume(self) -> None:
        """After a start: take up the decisions whose slices were not all done."""
        cursor: str | None = None
        open_tasks = TaskFilter(states=frozenset({TaskState.WAITING, TaskState.RUNNING}))
        while not self._closed.is_set():
            try:
                page = self.read(lambda tx, at=cursor: tx.list_tasks(open_tasks, limit=_RESUME_PAGE, cursor=at))  # type: ignore[misc]
            except Unavailable as error:
                logger.warning("unfinished decisions not looked for", extra=log.fields(why=error.message))
                return
            for task in page.items:
                if task.stopped or task.cancel_requested:
                    self._sweep_later(task.id)
            cursor = page.next_cursor
            if cursor is None:
                return

    def close(self) -> None:
        """Begin no further slice; a later start takes them up."""
        self._closed.set()

    # -- after the commit --------------------------------------------------------------------------------------------

    def _tell(self, notes: Notes) -> None:
        now_s = self.clock.now_s()
        for notice in notes.runs:
            self._tell_holder(notice, notes, now_s)
        if notes.runs or notes.tasks:
            _log_changes(notes)
        for task_id, (before, task) in notes.tasks.items():
            if task.state in TASK_FINAL_STATES and (before is None or before.state is not task.state):
                self._waits.wake(task_id)
                self._pulls.forget(task_id)
        for agent_id in notes.agents:
            self._pulls.wake_agent(agent_id)
        for task_id, room in notes.fills.items():
            self._fill(task_id, room, now_s)
        for task_id in notes.sweeps:
            self._sweep_later(task_id)
        if notes.events:
            self._feed_waits.wake("")

    def _tell_holder(self, notice: RunNotice, notes: Notes, now_s: float) -> None:
        run = notice.after
        before = notice.before
        if run.state not in HELD_STATES and (before is None or before.state not in HELD_STATES):
            return
        task = notes.tasks.get(run.task_id or "")
        self._leases.follow(run, lost_after_s=task[1].lost_after_s if task is not None else 0.0, now_s=now_s)
        if run.state not in HELD_STATES and before is not None and before.agent_id is not None:
            self._pulls.freed(before.agent_id)
        elif run.cancel_reason is not None and run.agent_id is not None:
            self._pulls.wake_agent(run.agent_id)

    def _fill(self, task_id: str, room: int, now_s: float) -> None:
        if self._pulls.knows(task_id):
            self._pulls.fill(task_id, room=room, now_s=now_s)
        else:  # after a restart: the audience has to be found again
            gevent.spawn(self._find_audience, task_id, room)

    def _find_audience(self, task_id: str, room: int) -> None:
        def find(tx: ReadTx) -> Audience | None:
            task = tx.get_task(task_id)
            if task is None:
                return None
            if task.count is not None:
                return Audience(tx.task_candidates(task_id), queue=task.queue)
            ready = tx.runs_in(task_id, {RunState.READY})
            return Audience((run.agent_id for run in ready if run.agent_id is not None), queue=task.queue)

        try:
            audience = self.read(find)
        except Unavailable:
            return  # nobody is woken by it; agents ask by themselves before long
        if audience is not None and not self._pulls.knows(task_id):
            self._pulls.offer(task_id, audience, room=room, now_s=self.clock.now_s())

    def _sweep_later(self, task_id: str) -> None:
        gevent.spawn(self._sweep_in_background, task_id)

    def _sweep_in_background(self, task_id: str) -> None:
        while not self._closed.is_set():
            try:
                return self.finish_sweep(task_id)
            except Exception:  # the edge of a background loop: a full disk must not leave runs behind for ever
                logger.exception("slice failed, tried again", extra=log.fields(task_id=task_id))
                self._closed.wait(_RETRY_S)

    def _sweep_once(self, task_id: str, cursor: str | None) -> Swept:
        known = self._known()
        swept = self.change(lambda change: sweep(change, task_id, cursor=cursor, known=known))
        faults.at("after-slice-commit")
        return swept


def _log_changes(notes: Notes) -> None:
    if len(notes.runs) <= _LINES:
        for notice in notes.runs:
            _log_run(notice)
    else:
        kinds = Counter((n.after.task_id, n.before.state if n.before else None, n.after.state) for n in notes.runs)
        for (task_id, before, after), number in kinds.items():
            if before is not after:
                log.change(logger, "runs", task_id=task_id, from_=before, to=after, number=number)
    for task_id, (former, task) in notes.tasks.items():
        if former is None or former.state is not task.state or former.reason != task.reason:
            _log_task(task_id, former, task)


def _log_run(notice: RunNotice) -> None:
    run = notice.after
    before = notice.before.state if notice.before is not None else None
    if before is run.state:
        return
    log.change(
        logger,
        "run",
        run_id=run.id,
        task_id=run.task_id,
        from_=before,
        to=run.state,
        agent_id=run.agent_id,
        attempt=run.attempt,
        outcome=run.ending.outcome if run.ending is not None else None,
    )


def _log_task(task_id: str, former: Task | None, task: Task) -> None:
    log.change(
        logger,
        "task",
        task_id=task_id,
        from_=former.state if former is not None else None,
        to=task.state,
        total=task.total if former is None else None,
        reason=task.reason.code if task.reason is not None else None,
    )
