"""The course of every attempt from its fork until the master has taken its result, with nothing left out.

Fork → output → end → all output with the master → result → taken → forgotten. Puts the executor, the output sender
and the reporter together; each of them does its part without knowing the others. Runs that only the master knows of
(their agent was killed between begin and fork, or their host lost its disk) are reported here, too, and never run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol

from gevent.event import Event

from agent.attempt import AttemptKey, ExitRecord
from agent.executor import AdoptedAttempt, ExecutorClosed
from agent.holdings import Holding, Holdings, Stage
from agent.output import OutputSender
from agent.reporter import Reporter, Result, ending_of
from agent.threads import wait_for
from common import faults, log
from common.loop import ThreadBridge
from common.model import Ending, Outcome

logger = logging.getLogger(__name__)

_NOTHING_SHA256 = hashlib.sha256().hexdigest()
_UNKNOWN = {
    Outcome.REBOOTED: "The host was restarted before this run's end was known.",
    Outcome.INTERRUPTED: "The agent was stopped between the master's leave to begin and the start of the script, "
    "or lost its state: it knows nothing of this run.",
}


class Forgetter(Protocol):
    """The part of the executor that is needed here."""

    def forget(self, keys: Iterable[AttemptKey]) -> None:
        """The master has the results."""

    def abandon(self, keys: Iterable[AttemptKey]) -> Future[None]:
        """Prepared, but not allowed to begin; done when nothing is left of it."""


class Attempts:
    """See the module. `on_slot_free` is called when an attempt has ended, `on_delivered` when results were taken;
    `changed` is set whenever one moves on.
    """

    def __init__(
        self,
        *,
        holdings: Holdings,
        executor: Forgetter,
        output: OutputSender,
        reporter: Reporter,
        bridge: ThreadBridge,
    ) -> None:
        self.on_slot_free: Callable[[], None] = lambda: None
        self.on_delivered: Callable[[], None] = lambda: None
        self.changed = Event()
        self._holdings = holdings
        self._executor = executor
        self._output = output
        self._reporter = reporter
        self._bridge = bridge
        self._records: dict[AttemptKey, ExitRecord] = {}  # ended, not taken
        self._unknown: set[AttemptKey] = set()  # reported for the master's sake; the executor never saw them

    # -- from fork to end --------------------------------------------------------------------------------------------

    def adopt(self, adopted: Sequence[AdoptedAttempt]) -> None:
        """Take over what a former agent process left under way or undelivered.

        What it had only been about to begin is told only if the master says that it has begun: see `reconcile`.
        """
        for one in adopted:
            holding = Holding(one.run_id, one.attempt, one.lease, Stage.RUNNING)
            self._holdings.add(holding)
            if one.future.done() and _never_ran(one.future.result()):
                holding.doubtful = True
                self._holdings.advance(holding, Stage.ENDED)
                self._records[holding.key] = one.future.result()
            else:
                self._output.follow(holding, adopted=True)
                self.begun(holding, one.future)

    def begun(self, holding: Holding, future: Future[ExitRecord]) -> None:
        """The executor has it: its end will be told by `future`, in a native thread."""
        future.add_done_callback(lambda done: self._bridge.post(self._future_done, holding, done))

    def refused(self, holding: Holding) -> None:
        """It was allowed to begin and cannot be run here; nothing was started."""
        self._unknown.add(holding.key)
        ending = Ending(outcome=Outcome.REFUSED, detail=holding.refusal)
        self._reporter.add(Result(holding.run_id, holding.attempt, holding.lease, ending))
        self._slot_free()

    def _future_done(self, holding: Holding, done: Future[ExitRecord]) -> None:
        try:
            record = done.result()
        except (CancelledError, ExecutorClosed):
            return  # it goes on without us and is adopted at the next start
        except Exception:  # edge of the loop: the attempt stays in hand, and its files tell its end at the next start
            logger.exception("an attempt's end cannot be told", extra=log.fields(run_id=holding.run_id))
            return
        self._ended(holding, record)

    def _ended(self, holding: Holding, record: ExitRecord) -> None:
        if holding.stage is Stage.ENDED:
            return
        log.change(
            logger, "run", run_id=holding.run_id, attempt=holding.attempt, from_="running", to="ended",
            outcome=record.outcome, exit_code=record.exit_code, signal=record.signal, killed_by_us=record.killed_by_us,
            output_bytes=record.output_bytes or None, leftovers=len(record.leftovers) or None,
        )  # fmt: skip
        faults.at("after-end")
        self._records[holding.key] = record
        self._holdings.advance(holding, Stage.ENDED)
        self._output.ended(holding, record.output_bytes)
        self._slot_free()

    def _slot_free(self) -> None:
        self.on_slot_free()
        self.changed.set()

    # -- from end to delivery ----------------------------------------------------------------------------------------

    def output_complete(self, key: AttemptKey) -> None:
        """The master has, or does not want, all output of an ended attempt: its result may be told."""
        holding, record = self._holdings.get(key), self._records.get(key)
        if holding is None or record is None:
            return
        flow = self._output.flow(key)
        # What was declared counts: the record's gaps are those of the spool when the script ended, and what was on its
        # way at that moment has arrived since.
        told = flow is not None and flow.acked >= record.output_bytes
        gaps = flow.gaps if flow is not None and told else list(record.gaps)
        sha256 = flow.sha256 if flow is not None else _NOTHING_SHA256
        ending = ending_of(record, gaps=gaps, output_sha256=sha256)
        self._reporter.add(Result(holding.run_id, holding.attempt, holding.lease, ending))

    def output_lacking(self, key: AttemptKey, acked: int) -> None:
        """The master will not take the result before it has the output from `acked` on."""
        holding, record = self._holdings.get(key), self._records.get(key)
        if holding is None:
            return
        if record is None:
            # Reported for a run we know nothing of: what the master has of its output is all there is.
            outcome = self._reporter.outcome(key) or Outcome.INTERRUPTED
            self._report_unknown(holding, outcome, acked)
            return
        if self._output.flow(key) is None:
            self._output.follow(holding, adopted=True).finish(record.output_bytes)
        self._output.go_on_from(key, acked)

    def taken(self, keys: list[AttemptKey]) -> None:
        """The master has these results."""
        ours = [key for key in keys if key not in self._unknown]
        for key in keys:
            self._unknown.discard(key)
            self._records.pop(key, None)
            self._output.forget(key)
            holding = self._holdings.get(key)
            if holding is not None:
                self._holdings.remove(holding)
        if ours:
            self._executor.forget(ours)
        self.on_delivered()
        self.changed.set()

    # -- what only the master knows ----------------------------------------------------------------------------------

    def reconcile(self, answer: dict[str, Any], named: set[AttemptKey], *, rebooted: bool) -> int:
        """Go on where the master says it is, after a register; how many runs were unknown here.

        `named` are the attempts that the register's question told of. Unknown runs are reported as `rebooted` if this
        host was restarted since the master last heard of it, else as `interrupted`.
        """
        unknown = 0
        for run_id, attempt, lease, acked in answer.get("running") or ():
            key = (str(run_id), int(attempt))
            holding = self._holdings.get(key)
            if holding is not None and holding.doubtful:
                holding.doubtful = False
                self.output_complete(key)
            elif holding is not None:
                self._output.go_on_from(key, int(acked))
            elif key not in named:
                unknown += 1
                outcome = Outcome.REBOOTED if rebooted else Outcome.INTERRUPTED
                log.change(
                    logger, "run", level=logging.WARNING, run_id=run_id, attempt=attempt,
                    from_="running for the master", to="ended", outcome=outcome,
                )  # fmt: skip
                holding = Holding(str(run_id), int(attempt), str(lease), Stage.ENDED)
                self._holdings.add(holding)
                self._report_unknown(holding, outcome, int(acked))
        self._forget_doubtful()
        return unknown

    def _forget_doubtful(self) -> None:
        """What the master does not call running had not begun: nothing happened, and it may come here again."""
        doubtful = [holding for holding in self._holdings.at(Stage.ENDED) if holding.doubtful]
        if doubtful:
            logger.info("claims of a former process forgotten", extra=log.fields(runs=len(doubtful)))
            wait_for(self._executor.abandon([holding.key for holding in doubtful]), self._bridge)
        for holding in doubtful:
            self._holdings.remove(holding)
            self._records.pop(holding.key, None)

    def _report_unknown(self, holding: Holding, outcome: Outcome, acked: int) -> None:
        self._unknown.add(holding.key)
        ending = Ending(outcome=outcome, output_bytes=acked, detail=_UNKNOWN[outcome])
        self._reporter.add(Result(holding.run_id, holding.attempt, holding.lease, ending))


def _never_ran(record: ExitRecord) -> bool:
    return record.outcome in ("interrupted", "rebooted") and record.pid is None and not record.output_bytes
