"""The barrier before the fork: claims go in, and only those the master allowed to begin reach the executor.

The order for each claim: fetch the script if it did not come along, write "about to begin" to disk, ask the master,
fork. Claims that come while one batch is on its way form the next one. A question without an answer is asked again
until there is one, because only the master knows whether the run has begun; a refused claim is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

import gevent

from agent.attempt import AttemptKey, AttemptSpec, ExitRecord
from agent.claims import Claim
from agent.holdings import Holding, Holdings, Stage, pairs
from agent.link import MasterLink
from agent.orders import Orders
from agent.threads import wait_for
from common import faults, log
from common.backoff import Backoff
from common.clock import Clock
from common.errors import MusterError, NotFound, PeerUnreachable, ProtocolError
from common.loop import ThreadBridge, spawn
from common.service import Loop

logger = logging.getLogger(__name__)

_BEGIN_TIMEOUT_S = 15.0
_RELEASE_TIMEOUT_S = 5.0
_BATCH = 200


class Starter(Protocol):
    """The part of the executor that is needed here."""

    def prepare(self, specs: list[AttemptSpec]) -> Future[None]:
        """Write "about to begin" and the script files."""

    def submit(self, spec: AttemptSpec) -> Future[ExitRecord]:
        """Run the attempt."""

    def abandon(self, keys: Iterable[AttemptKey]) -> Future[None]:
        """Prepared, but not allowed to begin; done when nothing is left of it."""


class Scripts(Protocol):
    """Where scripts come from that were too large for their claim."""

    def get(self, sha256: str, size: int) -> bytes:
        """The script, fetched from the master if it is not here; raises `MusterError`."""


class BeginBarrier(Loop):
    """See the module. `on_begun(holding, future)` is called for what was forked, `on_refusal(holding)` for what may
    begin but cannot be run here, `on_dropped()` when a claim took its slot back, `on_trouble(sentence)` when this host
    cannot start anything (a full disk).
    """

    def __init__(
        self,
        *,
        link: MasterLink,
        holdings: Holdings,
        executor: Starter,
        orders: Orders,
        scripts: Scripts,
        bridge: ThreadBridge,
        clock: Clock,
    ) -> None:
        super().__init__("begin", clock=clock)
        self.on_begun: Callable[[Holding, Future[ExitRecord]], None] = lambda holding, future: None
        self.on_refusal: Callable[[Holding], None] = lambda holding: None
        self.on_dropped: Callable[[], None] = lambda: None
        self.on_trouble: Callable[[str], None] = lambda sentence: None
        self._link = link
        self._holdings = holdings
        self._executor = executor
        self._orders = orders
        self._scripts = scripts
        self._bridge = bridge
        self._backoff = Backoff(base_s=0.1, cap_s=2.0)
        self._queue: list[Holding] = []
        self._asking: list[Holding] = []
        self._fetching: dict[AttemptKey, gevent.Greenlet[..., Any]] = {}
        self._draining = False

    @property
    def waiting(self) -> int:
        """Claims that have not been asked for yet."""
        return len(self._queue) + len(self._fetching)

    def add(self, claims: list[Claim]) -> None:
        """Claims of a pull's answer; never waits."""
        unwanted = []
        for claim in claims:
            known = self._holdings.get((claim.run_id, claim.attempt))
            if self._draining or (known is not None and known.stage is not Stage.CLAIMED):
                # Claimed anew while an older answer is still being worked on: that one ends first, the run comes back.
                unwanted.append((claim.run_id, claim.lease))
            elif known is not None:
                known.lease, known.spec, known.refusal = claim.lease, claim.spec, claim.refusal
            else:
                self._take(claim)
        if unwanted:
            spawn(self._release, unwanted)
        self.wake()

    def drop(self, holding: Holding) -> None:
        """A claim that is ours no more, before anything was asked."""
        self._holdings.remove(holding)
        if holding in self._queue:
            self._queue.remove(holding)
        fetching = self._fetching.pop(holding.key, None)
        if fetching is not None and fetching is not gevent.getcurrent():
            fetching.kill(block=False)
        self.on_dropped()

    def drain(self) -> None:
        """Begin nothing new: give back what has not been asked for. What is being asked gets its answer."""
        self._draining = True
        waiting = self._holdings.at(Stage.CLAIMED)
        for holding in waiting:
            self.drop(holding)
        if waiting:
            self._release([(holding.run_id, holding.lease) for holding in waiting])

    def step(self, now: float) -> float | None:
        """Bring one batch from the queue to its forks, or the question under way to its answer."""
        if not self._asking:
            self._asking = self._prepare(self._next_batch())
        if not self._asking:
            self.say(f"{self.waiting} claims wait for their script or an earlier attempt" if self.waiting else "idle")
            return None
        if not self._link.registered:
            self.say(f"{len(self._asking)} claims wait for the master's word whether they may begin")
            return None
        self.say(f"asking whether {len(self._asking)} claims may begin")
        return self._ask()

    def _end(self) -> None:
        for greenlet in list(self._fetching.values()):
            greenlet.kill(block=False)
        super()._end()

    # -- scripts that did not come along -----------------------------------------------------------------------------

    def _take(self, claim: Claim) -> None:
        holding = Holding(
            claim.run_id, claim.attempt, claim.lease, Stage.CLAIMED, spec=claim.spec, refusal=claim.refusal
        )
        self._holdings.add(holding)
        if claim.script_sha256 is None:
            self._queue.append(holding)
        else:
            self._fetching[holding.key] = spawn(self._fetch, holding, claim.script_sha256, claim.script_size)

    def _fetch(self, holding: Holding, sha256: str, size: int) -> None:
        try:
            script = self._scripts.get(sha256, size)
        except NotFound as error:
            logger.warning("script is gone", extra=log.fields(run_id=holding.run_id, reason=error.message))
            self._give_back([holding])
        except MusterError as error:
            logger.warning("script not fetched", extra=log.fields(run_id=holding.run_id, reason=error.message))
            self._give_back([holding])
            self.on_trouble(f"a script could not be fetched: {error.message}")
        else:
            if holding.spec is not None:
                holding.spec = replace(holding.spec, script=script)
            self._queue.append(holding)
            self.wake()
        finally:
            if self._fetching.get(holding.key) is gevent.getcurrent():
                del self._fetching[holding.key]

    # -- before the question -----------------------------------------------------------------------------------------

    def _next_batch(self) -> list[Holding]:
        batch: list[Holding] = []
        later: list[Holding] = []
        for holding in self._queue:
            # One attempt of a run at a time: a newer one waits until the older one's processes are gone.
            others = [one for one in self._holdings.of_run(holding.run_id) if one is not holding]
            busy = len(batch) >= _BATCH or any(one.stage is not Stage.ENDED for one in others)
            (later if busy else batch).append(holding)
            if not busy:
                self._holdings.advance(holding, Stage.BEGINNING)
        self._queue = later
        return batch

    def _prepare(self, batch: list[Holding]) -> list[Holding]:
        specs = [holding.spec for holding in batch if holding.spec is not None]
        if not specs:
            return batch
        self.say(f"writing {len(specs)} claims to disk")
        try:
            wait_for(self._executor.prepare(specs), self._bridge)
        except OSError as error:
            logger.error("claims cannot be written to disk", extra=log.fields(reason=str(error), runs=len(batch)))
            self._abandon(batch)
            self._give_back(batch)
            self.on_trouble(f"nothing can be started here: {error}")
            return []
        if self._draining:
            self._abandon(batch)
            self._give_back(batch)
            return []
        return batch

    def _abandon(self, holdings: list[Holding]) -> None:
        # Waiting matters: the same attempt may come again at once, and must not find its new files taken away.
        keys = [holding.key for holding in holdings if holding.spec is not None]
        if keys:
            wait_for(self._executor.abandon(keys), self._bridge)

    def _give_back(self, holdings: list[Holding]) -> None:
        for holding in holdings:
            self.drop(holding)
        self._release([(holding.run_id, holding.lease) for holding in holdings])

    def _release(self, leases: list[tuple[str, str]]) -> None:
        try:
            self._link.call("release", pairs(leases), timeout_s=_RELEASE_TIMEOUT_S)
        except MusterError as error:
            # They come free all the same: the next pull does not name them, and their lease ends.
            logger.info("claims not released", extra=log.fields(runs=len(leases), reason=error.message))
        else:
            logger.info("claims released", extra=log.fields(runs=len(leases)))

    # -- the question ------------------------------------------------------------------------------------------------

    def _ask(self) -> float | None:
        faults.at("before-begin")
        asked = self._asking
        try:
            answers = self._link.call(
                "begin", pairs((one.run_id, one.lease) for one in asked), timeout_s=_BEGIN_TIMEOUT_S
            )
            told = _by_run(answers)
        except PeerUnreachable:
            return None if not self._link.registered else self._backoff.next_s()
        except MusterError as error:
            delay_s = self._backoff.next_s()
            self.say(f"the master did not say whether {len(asked)} claims may begin: {error.message}")
            logger.warning("begin not answered", extra=log.fields(reason=error.message, runs=len(asked)))
            return delay_s
        faults.at("after-begin")
        refused = []
        for holding in list(asked):
            if holding.run_id in told:
                self._asking.remove(holding)
                if not self._settle(holding, told[holding.run_id]):
                    refused.append(holding)
        self._abandon(refused)
        for holding in refused:
            self.drop(holding)
        if self._asking:
            return self._backoff.next_s()
        self._backoff.reset()
        self.say("idle" if not self.waiting else f"{self.waiting} more claims wait")
        return 0.0 if self._queue else None

    def _settle(self, holding: Holding, answer: dict[str, Any]) -> bool:
        """Do as the master says; whether it may begin."""
        if answer.get("ok"):
            self._start(holding, answer.get("fence"))
            return True
        log.change(
            logger, "run", run_id=holding.run_id, attempt=holding.attempt,
            from_="claimed", to="refused", why=answer.get("why"),
        )  # fmt: skip
        return False

    def _start(self, holding: Holding, fence: Any) -> None:
        spec = holding.spec
        holding.spec = None  # the script is on disk; it need not stay in memory
        if spec is None:
            self._cannot_start(holding)
            return
        faults.at("before-fork")
        try:
            future = self._executor.submit(replace(spec, fence=fence if type(fence) is int else 0))
        except Exception as error:  # edge: the master counts it as begun, so whatever is wrong here is its outcome
            logger.exception("a run cannot be started", extra=log.fields(run_id=holding.run_id))
            holding.refusal = f"The agent could not start it: {error}"
            self._cannot_start(holding)
            return
        self._holdings.advance(holding, Stage.RUNNING)
        log.change(
            logger, "run", run_id=holding.run_id, attempt=holding.attempt, task_id=spec.task_id,
            from_="claimed", to="running",
        )  # fmt: skip
        self.on_begun(holding, future)
        if holding.kill_why is not None:
            self._orders.end(holding, holding.kill_why)

    def _cannot_start(self, holding: Holding) -> None:
        self._holdings.advance(holding, Stage.ENDED)
        self.on_refusal(holding)


def _by_run(answers: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(answers, list) or not all(isinstance(one, dict) for one in answers):
        raise ProtocolError("The master's answer to begin is not a list of maps.")
    return {str(answer.get("run_id")): answer for answer in answers}
