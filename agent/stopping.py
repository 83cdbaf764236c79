"""How an agent ends: first it drains, asked again it stops at once; either way no result is lost.

Draining asks for no more runs, gives back what has not begun, and waits for scripts under way up to `drain_s`; what
then still runs goes on under the shepherd and is adopted by the next start. Stopping at once ends the scripts, as
`interrupted`, and delivers that if the master is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import gevent
from gevent.event import Event

from agent.begin import BeginBarrier
from agent.holdings import Holdings, Stage
from agent.link import MasterLink
from agent.orders import Orders
from agent.puller import Puller
from common import log
from common.clock import Clock

logger = logging.getLogger(__name__)

_STOP_GRACE_S = 3.0  # between TERM and KILL when the agent stops at once
_LOOK_S = 0.5
_DELIVER_S = 5.0  # for the last output and results, once the scripts are over


class Ending:
    """Carries out the end of one agent; `drained` and `stopped` each return when their part is done."""

    def __init__(
        self,
        *,
        link: MasterLink,
        puller: Puller,
        barrier: BeginBarrier,
        holdings: Holdings,
        orders: Orders,
        changed: Event,
        clock: Clock,
    ) -> None:
        self._link = link
        self._puller = puller
        self._barrier = barrier
        self._holdings = holdings
        self._orders = orders
        self._changed = changed
        self._clock = clock

    def drain(self, *, drain_s: float, stop_now: Event) -> None:
        """Take nothing new, and wait for what runs and what is to be delivered."""
        began = self._clock.monotonic_s()
        self._puller.drain()
        self._barrier.drain()
        self._wait(lambda: self._scripts() == 0, began + drain_s, stop_now)
        if not stop_now.is_set():
            self._wait(self._delivered, self._clock.monotonic_s() + _DELIVER_S, stop_now)

    def stop(self, *, kill_grace_s: float) -> None:
        """End every script, and wait for their outcomes to be delivered."""
        # What is being asked for may be forked yet: it is ended right after.
        running = [*self._holdings.at(Stage.RUNNING), *self._holdings.at(Stage.BEGINNING)]
        logger.info("ending scripts", extra=log.fields(runs=len(running)))
        grace_s = min(kill_grace_s, _STOP_GRACE_S)
        for holding in running:
            self._orders.end(holding, "stop", grace_s=grace_s)
        never = Event()
        self._wait(lambda: self._scripts() == 0, self._clock.monotonic_s() + grace_s + _DELIVER_S, never)
        self._wait(self._delivered, self._clock.monotonic_s() + _DELIVER_S, never)

    def summary(self) -> str:
        """What is left, in a sentence for the log."""
        running, undelivered = self._scripts(), len(self._holdings.at(Stage.ENDED))
        parts = []
        if running:
            parts.append(f"{running} scripts go on under the shepherd")
        if undelivered:
            parts.append(f"{undelivered} results wait on disk")
        return " and ".join(parts) + "; the next start takes them up" if parts else "nothing is left over"

    def _scripts(self) -> int:
        return len(self._holdings.at(Stage.RUNNING)) + len(self._holdings.at(Stage.BEGINNING))

    def _delivered(self) -> bool:
        # Without the master there is nothing to wait for: results are on disk.
        return not self._link.registered or not self._holdings.at(Stage.ENDED)

    def _wait(self, over: Callable[[], bool], until: float, stop_now: Event) -> None:
        while not over() and not stop_now.is_set():
            left_s = until - self._clock.monotonic_s()
            if left_s <= 0:
                return
            self._changed.clear()
            gevent.wait([self._changed, stop_now], timeout=min(left_s, _LOOK_S), count=1)
