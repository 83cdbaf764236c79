"""From the executor's native threads into the loop: a future as something a greenlet can wait for, news in one post.

Everything goes through the one `ThreadBridge` of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from gevent.event import Event

from agent.attempt import AttemptKey
from common.loop import ThreadBridge

T = TypeVar("T")


def wait_for(future: Future[T], bridge: ThreadBridge) -> T:
    """The future's result, waiting in this greenlet alone. Raises what the future holds."""
    if not future.done():
        done = Event()
        future.add_done_callback(lambda _: bridge.post(done.set))
        done.wait()
    return future.result()


class OutputNews:
    """Brings "this attempt's spool has grown" into the loop, many threads' news in one call.

    A flood of output tells of itself thousands of times a second; the loop is woken once for all that came meanwhile.
    """

    def __init__(self, bridge: ThreadBridge, on_news: Callable[[dict[AttemptKey, int]], None]) -> None:
        self._bridge = bridge
        self._on_news = on_news
        self._lock = threading.Lock()
        self._ends: dict[AttemptKey, int] = {}

    def grown(self, run_id: str, attempt: int, end: int) -> None:
        """The attempt has written up to offset `end`; from any thread."""
        with self._lock:
            first = not self._ends
            self._ends[run_id, attempt] = end
        if first:
            self._bridge.post(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            ends, self._ends = self._ends, {}
        self._on_news(ends)
