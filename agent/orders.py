"""What the master wants of runs in hand, from whichever answer brought it: end this one, that one is yours no more.

An answer may be old when it arrives. So "stale" counts only for the lease that was named in the question, and an
attempt that is between its begin and its fork keeps the wish until the executor has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from agent.holdings import Holding, Holdings, Stage
from common import log

logger = logging.getLogger(__name__)

_WHY = {"request": "cancel", "stop_rule": "stop_rule"}


class Killer(Protocol):
    """The part of the executor that is needed here."""

    def kill(self, run_id: str, *, why: str, grace_s: float | None = None) -> bool:
        """End the run's attempt."""


class Orders:
    """Carries out what answers say under `cancel`, `stale` and `drop`. None of its methods waits.

    `on_gone` is called for a claim that is ours no more before anything was asked.
    """

    def __init__(self, holdings: Holdings, executor: Killer) -> None:
        self.on_gone: Callable[[Holding], None] = lambda holding: None
        self._holdings = holdings
        self._executor = executor

    def carry_out(self, answer: dict[str, Any], leases: dict[str, str]) -> int:
        """Do what `answer` says; `leases` are those that the question named. How much of it was new."""
        new = 0
        for entry in answer.get("cancel") or ():
            new += self.cancel(str(entry[0]), str(entry[1]))
        for run_id in answer.get("stale") or ():
            new += self.stale(str(run_id), leases.get(str(run_id)))
        return new

    def cancel(self, run_id: str, why: str) -> bool:
        """The run is to end; False if that was known, or it is not running here."""
        new = False
        for holding in self._holdings.of_run(run_id):
            if holding.stage in (Stage.BEGINNING, Stage.RUNNING) and holding.kill_why is None:
                log.change(logger, "run", run_id=run_id, from_="running", to="ending", why=why)
                self.end(holding, _WHY.get(why, "cancel"))
                new = True
        return new

    def stale(self, run_id: str, lease: str | None) -> bool:
        """The lease is no longer held; False if it is not the one in hand, or that was known."""
        for holding in self._holdings.of_run(run_id):
            if holding.lease != lease or holding.stale:
                continue
            if holding.stage is Stage.CLAIMED:
                logger.info("claim is gone", extra=log.fields(run_id=run_id))
                self.on_gone(holding)
                return True
            if holding.stage is Stage.BEGINNING:
                return False  # the answer to begin says it, too, and says it last
            holding.stale = True
            if holding.stage is Stage.RUNNING:
                log.change(logger, "run", level=logging.WARNING, run_id=run_id, from_="running", to="stale")
                self.end(holding, "stale")
            return True
        return False

    def end(self, holding: Holding, why: str, *, grace_s: float | None = None) -> None:
        """Have the attempt ended; one that is not forked yet, right after its fork."""
        holding.kill_why = holding.kill_why or why
        if holding.stage is Stage.RUNNING:
            self._executor.kill(holding.run_id, why=why, grace_s=grace_s)
