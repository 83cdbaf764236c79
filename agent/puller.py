"""Asks the master for runs: one long poll that is always there, with as many runs as there are free slots.

It is there also when no slot is free, because a cancel comes as its answer; but not for less than a moment, so that
short scripts do not cost two polls each. A poll is superseded by a newer one when slots became free; whatever an old
answer brings is still worked on, and the begin barrier sorts out what is void.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gevent

from agent.claims import Claim, read_claim
from agent.holdings import Holdings, pairs
from agent.link import MasterLink
from common import faults, log
from common.backoff import Backoff, spread_s
from common.clock import Clock
from common.errors import MusterError, PeerUnreachable, ProtocolError
from common.loop import spawn
from common.service import Loop

logger = logging.getLogger(__name__)

_ANSWER_S = 15.0  # beyond the wait that was asked for
_ALL_BUSY_S = 0.25  # how long all slots are taken before a poll that only listens is worth its cost
_GOODBYE_S = 2.0
GATHER_S = 0.005
"""Short scripts end one by one: so soon after an answer that brought runs, a question for less than half of the slots
waits this long for more of them. One question for three runs costs the master little more than one for one."""
_UNDELIVERED_MOST = 100  # ended runs whose output or result the master has not taken


class Puller(Loop):
    """See the module. `on_claims` gets what was claimed; `on_orders` (answer, leases named) tells how much was new."""

    def __init__(self, *, link: MasterLink, holdings: Holdings, slots: int, clock: Clock) -> None:
        super().__init__("puller", clock=clock)
        self.on_claims: Callable[[list[Claim]], None] = lambda claims: None
        self.on_orders: Callable[[dict[str, Any], dict[str, str]], int] = lambda answer, leases: 0
        self.slots = slots
        self._link = link
        self._holdings = holdings
        self._backoff = Backoff(base_s=0.2, cap_s=5.0)
        self._pauses = Backoff(base_s=1.0, cap_s=60.0, floor_s=1.0)
        self._number = 0  # of the newest poll
        self._asked: int | None = None  # slots of the newest poll while it waits
        self._polls: set[gevent.Greenlet[..., Any]] = set()
        self._full_since: float | None = None
        self._not_before = 0.0
        self._gather_until = 0.0
        self._trouble: str | None = None
        self._draining = False

    def free(self) -> int:
        """Slots that nothing has taken; none while too much waits for delivery, which takes room on the disk."""
        return 0 if self._choked() else max(0, self.slots - self._holdings.active)

    def _choked(self) -> bool:
        return len(self._holdings) - self._holdings.active >= max(_UNDELIVERED_MOST, 4 * self.slots)

    def pause(self, sentence: str) -> None:
        """This host can start nothing now (`sentence` says why): ask for no runs for a while, longer each time."""
        delay_s = self._pauses.next_s()
        self._not_before = self._clock.monotonic_s() + delay_s
        self._trouble = sentence
        logger.warning("pulling paused", extra=log.fields(reason=sentence, seconds=round(delay_s, 1)))
        self.wake()

    def went_well(self) -> None:
        """A run was started: pauses begin short again."""
        if self._trouble is not None:
            self._trouble = None
            self._pauses.reset()

    def delivered(self) -> None:
        """Fewer ended runs wait for the master."""
        if self._asked == 0:
            self.wake()

    def renew(self) -> None:
        """The master has registered us anew: whatever it still has of our polls is void."""
        self._asked = None
        self._full_since = None
        self.wake()

    def drain(self) -> None:
        """Ask for nothing more, and have the master end the poll that waits, so that no run is sent to nobody."""
        if self._draining:
            return
        self._draining = True
        self._number += 1
        try:
            ask = self._ask(self._number, 0, wait_s=0.0, leases=self._holdings.leases())
            answer = self._link.call("pull_task", ask, timeout_s=_GOODBYE_S)
            logger.info("pulling ended", extra=log.fields(pull=self._number))
            self._take(answer, {})
        except MusterError as error:
            logger.info("the master was not told that pulling ended", extra=log.fields(reason=error.message))
        self._end_polls()
        self.wake()

    def step(self, now: float) -> float | None:
        """Send a poll if one is wanted now."""
        if self._draining:
            self.say("draining: no more runs are asked for")
            return None
        if not self._link.registered:
            self.say("waiting for the master")
            return None
        wait_s = max(0.0, self._not_before - now)
        troubled = self._trouble is not None and wait_s > 0
        free = 0 if troubled else self.free()
        if free:
            self._full_since = None
            gather_s = self._gather_until - now
            if gather_s > 0 and 2 * free <= self.slots:
                return gather_s
            if self._asked is None or self._asked == 0:
                self._poll(free)
            self.say(f"waiting for runs: {free} of {self.slots} slots free")
            return None
        self.say(self._why_none(wait_s))
        if troubled and self._asked:
            self._poll(0)  # ends the one that asked for runs
        if self._asked is not None:
            return wait_s or None
        return self._listen_only(now, wait_s)

    def _end(self) -> None:
        self._end_polls()
        super()._end()

    def _end_polls(self) -> None:
        for poll in list(self._polls):
            poll.kill(block=False)

    def _why_none(self, wait_s: float) -> str:
        if wait_s and self._trouble is not None:
            return f"asking for no runs for {wait_s:.0f} s: {self._trouble}"
        if self._choked():
            return "asking for no runs: too many that have ended wait for the master to take their output and results"
        return f"all {self.slots} slots are taken"

    def _listen_only(self, now: float, wait_s: float) -> float | None:
        if self._full_since is None:
            self._full_since = now
        left_s = self._full_since + _ALL_BUSY_S - now
        if left_s > 0:
            return min(left_s, wait_s) if wait_s else left_s
        self._poll(0)
        return wait_s or None

    # -- one poll ----------------------------------------------------------------------------------------------------

    def _poll(self, free: int) -> None:
        self._number += 1
        self._asked = free
        poll = spawn(self._run_poll, self._number, free)
        self._polls.add(poll)
        poll.rawlink(self._polls.discard)

    def _ask(self, number: int, free: int, *, wait_s: float, leases: dict[str, str]) -> dict[str, Any]:
        return {
            "session": self._link.session,
            "pull": number,
            "free_slots": free,
            "held": pairs(leases.items()),
            "wait_s": round(wait_s, 3),
        }

    def _run_poll(self, number: int, free: int) -> None:
        wait_s = self._link.terms.pull_wait_s * spread_s(0.8, by=0.25)
        leases = self._holdings.leases()
        ask = self._ask(number, free, wait_s=wait_s, leases=leases)
        sent_at = self._clock.monotonic_s()
        delay_s = 0.0
        try:
            answer = self._link.call("pull_task", ask, timeout_s=wait_s + _ANSWER_S)
            faults.at("after-pull")
            news = self._take(answer, leases)
            if news:
                self._gather_until = self._clock.monotonic_s() + GATHER_S
            if not news and self._clock.monotonic_s() - sent_at < min(wait_s, 1.0) / 2 and number == self._number:
                delay_s = self._backoff.next_s()  # an answer at once, without a word in it, is not worth a next at once
            else:
                self._backoff.reset()
        except PeerUnreachable:
            # The link tells when it is back; if it does not even know yet, a moment is due.
            delay_s = self._backoff.next_s() if self._link.registered else 0.0
        except MusterError as error:
            delay_s = self._backoff.next_s()
            logger.warning("pull not answered", extra=log.fields(reason=error.message, next_try_s=round(delay_s, 2)))
        if number != self._number or self._draining:
            return
        if delay_s:
            gevent.sleep(delay_s)
        if number == self._number:
            self._asked = None
            self.wake()

    def _take(self, answer: Any, leases: dict[str, str]) -> int:
        """What an answer brought is handed on; how much of it was new."""
        if not isinstance(answer, dict):
            raise ProtocolError("The master's answer to pull_task is not a map.")
        if answer.get("register"):
            self._link.register_again()
        claims = []
        for wire in answer.get("runs") or ():
            try:
                claims.append(read_claim(wire))
            except ProtocolError as error:
                logger.error("a claim cannot be read", extra=log.fields(reason=error.message))
        if claims:
            self.on_claims(claims)
        return len(claims) + self.on_orders(answer, leases)
