"""The event loop's edges: the one door for native threads, greenlets that keep their context, and a lag gauge.

Nothing in muster is monkey-patched. A native thread may touch the loop only through `ThreadBridge.post`, which makes a
single gevent call (`send` of an async watcher); everything else happens in the loop's own thread.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import gevent
from gevent.hub import get_hub

from common import log
from common.clock import Clock

logger = logging.getLogger(__name__)

POSTS_PER_TURN = 500
"""Posted calls run in one turn of the loop before timers and sockets get their turn again."""


class ThreadBridge:
    """Carries calls from native threads into the event loop that created it, in order of posting.

    The calls run in the hub, so they must not wait: set an event, append to a queue, spawn a greenlet.
    While a bridge is open the loop counts as busy, so waiting for a thread alone never ends in `LoopExit`.
    """

    def __init__(self) -> None:
        self._posts: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._watcher = get_hub().loop.async_()
        self._watcher.start(self._run)

    def post(self, fn: Callable[..., object], *args: Any) -> bool:
        """Have `fn(*args)` called in the loop soon; safe from any thread. False when the bridge is closed."""
        with self._lock:  # against close(): a watcher that is gone must not be sent to
            if self._closed:
                return False
            self._posts.append((fn, args))
            self._watcher.send()
        return True

    def close(self) -> None:
        """Stop carrying; calls that were not run yet are dropped. Call it in the loop's thread, once or more."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._posts.clear()
        self._watcher.stop()
        self._watcher.close()

    def _run(self) -> None:
        for _ in range(min(len(self._posts), POSTS_PER_TURN)):
            fn, args = self._posts.popleft()
            try:
                fn(*args)
            except Exception:  # edge of the loop: one bad call must not lose those behind it
                logger.exception("a call posted by a thread failed")
            if self._closed:
                return
        if self._posts:
            self._watcher.send()


def spawn(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> gevent.Greenlet[..., Any]:
    """Start `fn` in a new greenlet that begins with a copy of the caller's context variables."""
    greenlet: gevent.Greenlet[..., Any] = gevent.Greenlet(fn, *args, **kwargs)
    greenlet.gr_context = contextvars.copy_context()
    greenlet.start()
    return greenlet


class LoopLag:
    """How late the loop is: a timer measures, every `interval_s`, by how much it was called too late.

    `last_s` is the newest measure; `take_worst_s` the largest since it was last taken.
    """

    def __init__(self, clock: Clock, *, interval_s: float = 0.25, warn_s: float = 1.0) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._warn_s = warn_s
        self._due_s: float | None = None
        self._worst_s = 0.0
        self._timer: Any = None
        self.last_s = 0.0

    def start(self) -> None:
        """Begin to measure in the current loop."""
        if self._timer is None:
            # A repeating one: a timer that fired once and is started again would fire at once.
            self._timer = get_hub().loop.timer(self._interval_s, self._interval_s, ref=False)
            self.expect(self._clock.monotonic_s() + self._interval_s)
            self._timer.start(self._tick, update=True)

    def stop(self) -> None:
        """Stop measuring; the readings stay."""
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None
        self._due_s = None

    def take_worst_s(self) -> float:
        """The largest lateness since the last call of this method, in seconds."""
        worst_s, self._worst_s = self._worst_s, self.last_s
        return worst_s

    def expect(self, due_s: float) -> None:
        """The loop should call back at `due_s` of the monotonic clock."""
        self._due_s = due_s

    def observe(self) -> None:
        """The loop called back: take the measure."""
        if self._due_s is None:
            return
        self.last_s = max(0.0, self._clock.monotonic_s() - self._due_s)
        self._worst_s = max(self._worst_s, self.last_s)
        if self.last_s >= self._warn_s:
            logger.warning("the event loop was late", extra=log.fields(lag_s=self.last_s))

    def _tick(self) -> None:
        self.observe()
        self.expect(self._clock.monotonic_s() + self._interval_s)
