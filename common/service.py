"""The base of everything that runs: start and stop, one live sentence, test signals, loops made of rounds.

Promises that `start` and `stop` may each be called twice, that a failing round never ends a loop, and that a loop can
be driven by hand: tests call `step(now)` with a clock of their own and wait for signals, never for time to pass.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Sequence

import gevent
from gevent.event import Event
from gevent.queue import Empty, Queue

from common import log
from common.clock import Clock

logger = logging.getLogger(__name__)

_RETRY_FIRST_S = 0.2
_RETRY_MAX_S = 5.0


class Signals:
    """What a test listens with: each `emit` of a service it is attached to can be waited for once, in order."""

    def __init__(self) -> None:
        self._queues: dict[str, Queue[object]] = {}

    def emit(self, name: str, value: object = None) -> None:
        """Note that `name` happened."""
        self._queue(name).put_nowait(value)

    def wait(self, name: str, *, timeout_s: float = 10.0) -> object:
        """The value of the next `name`, those already emitted first. Raises TimeoutError."""
        try:
            return self._queue(name).get(timeout=timeout_s)
        except Empty:
            raise TimeoutError(f"the signal {name!r} did not come within {timeout_s:g} s") from None

    def count(self, name: str) -> int:
        """How many `name` were emitted and not yet waited for."""
        return self._queue(name).qsize()

    def _queue(self, name: str) -> Queue[object]:
        return self._queues.setdefault(name, Queue())


class Service:
    """Something with a beginning and an end. Subclasses fill `_begin` and `_end`, and `say` what they are doing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.signals: Signals | None = None  # set by tests only
        self._status = "not started"
        self._started = False

    @property
    def status(self) -> str:
        """What this service is doing now, in one sentence for the operator."""
        return self._status

    @property
    def started(self) -> bool:
        """True between `start` and `stop`."""
        return self._started

    def say(self, sentence: str) -> None:
        """Publish the sentence that `status` answers."""
        self._status = sentence

    def signal(self, name: str, value: object = None) -> None:
        """Tell a listening test that `name` happened; costs one comparison when nobody listens."""
        if self.signals is not None:
            self.signals.emit(name, value)

    def start(self) -> None:
        """Begin; a second call does nothing. If beginning fails, the service counts as not started."""
        if self._started:
            return
        self._started = True
        try:
            self.say("starting")
            self._begin()
        except BaseException:
            self._started = False
            self.say("could not start")
            raise

    def stop(self) -> None:
        """End and wait for the end; a second call, or one before `start`, does nothing."""
        if not self._started:
            return
        self._started = False
        try:
            self._end()
        finally:
            self.say("stopped")

    def _begin(self) -> None:
        """What `start` does in a subclass."""

    def _end(self) -> None:
        """What `stop` does in a subclass."""


class Loop(Service):
    """A greenlet that calls `step(now)` again and again. To be used from the hub's thread.

    After each round it waits for the seconds that `step` returned or for `wake`, whichever is first, and emits the
    signal "round". A round that raises is logged and tried again after a delay that grows from 0.2 to 5 s.
    """

    def __init__(self, name: str, *, clock: Clock, stop_timeout_s: float = 5.0) -> None:
        super().__init__(name)
        self._clock = clock
        self._stop_timeout_s = stop_timeout_s
        self._wake = Event()
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self._failures = 0

    def step(self, now: float) -> float | None:
        """One round at monotonic second `now`; returns how long to wait for the next (s), None = until woken."""
        raise NotImplementedError

    def wake(self) -> None:
        """Let the next round begin at once."""
        self._wake.set()

    def _begin(self) -> None:
        self._greenlet = gevent.spawn(self._run)

    def _end(self) -> None:
        greenlet, self._greenlet = self._greenlet, None
        self.wake()
        if greenlet is None or greenlet is gevent.getcurrent():
            return
        greenlet.join(timeout=self._stop_timeout_s)
        if not greenlet.ready():
            logger.warning("loop did not end by itself", extra=log.fields(loop=self.name, status=self._status))
            greenlet.kill()

    def _run(self) -> None:
        me = gevent.getcurrent()
        # A loop stopped and started anew has another greenlet; the old one must not go on beside it.
        while self._started and self._greenlet is me:
            self._wake.clear()
            delay_s = self._round()
            self.signal("round")
            if self._started:
                self._wake.wait(timeout=delay_s)

    def _round(self) -> float | None:
        try:
            delay_s = self.step(self._clock.monotonic_s())
        except Exception as error:  # the edge of the loop: one bad round must not end all later ones
            retry_s: float = min(_RETRY_FIRST_S * 2**self._failures, _RETRY_MAX_S)
            self._failures = min(self._failures + 1, 10)
            self.say(f"failed ({type(error).__name__}: {error}), next try in {retry_s:g} s")
            logger.exception("round failed", extra=log.fields(loop=self.name, next_try_s=retry_s))
            return retry_s
        self._failures = 0
        return delay_s


class ServiceGroup(Service):
    """Services started in the given order and stopped in the reverse one."""

    def __init__(self, name: str, services: Sequence[Service]) -> None:
        super().__init__(name)
        self.services = tuple(services)

    def _begin(self) -> None:
        for service in self.services:
            try:
                service.start()
            except BaseException:
                self._end()
                raise
        self.say("running")

    def _end(self) -> None:
        for service in reversed(self.services):
            try:
                service.stop()
            except Exception:  # the edge of one service: the others must be stopped all the same
                logger.exception("service did not stop cleanly", extra=log.fields(service=service.name))


class StopSignals:
    """SIGTERM and SIGINT as a daemon understands them: the first asks it to drain, the second to stop at once."""

    def __init__(self, *, on_second: Callable[[], None] | None = None) -> None:
        self.drain = Event()
        self.stop_now = Event()
        self._on_second = on_second
        self._watchers: list[gevent.signal_handler[str]] = []

    def listen(self) -> None:
        """Take over SIGTERM and SIGINT of this process; call it in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._watchers.append(gevent.signal_handler(number, self.ask, number.name))

    def ignore(self) -> None:
        """Hear no further signals; the process's former answers to them do not come back by themselves."""
        while self._watchers:
            self._watchers.pop().cancel()

    def ask(self, reason: str) -> None:
        """Ask to drain, or to stop at once when asked before."""
        if not self.drain.is_set():
            logger.info("asked to drain", extra=log.fields(reason=reason))
            self.drain.set()
        elif not self.stop_now.is_set():
            logger.info("asked to stop at once", extra=log.fields(reason=reason))
            self.stop_now.set()
            if self._on_second is not None:
                self._on_second()
