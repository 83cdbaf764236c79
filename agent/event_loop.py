"""The shepherd's loop over descriptors: who is called back when which of them is ready. One thread, epoll.

Standard library only, and small.
"""

from __future__ import annotations

import select
import time

TYPE_CHECKING = False  # the module typing is left out of the shepherd
if TYPE_CHECKING:
    from collections.abc import Callable

NEVER = float("inf")
_LONGEST_S = 3600.0
_EVENTS_AT_ONCE = 256


class EventLoop:
    """Descriptors and their callbacks; `turn` waits and calls them."""

    def __init__(self) -> None:
        self._poller = select.epoll()
        self._callbacks: dict[int, Callable[[float], None]] = {}

    def watch(self, fd: int, callback: Callable[[float], None]) -> None:
        """Call `callback(now)` whenever `fd` can be read or is at its end."""
        self._register(fd, select.EPOLLIN, callback)

    def watch_writing(self, fd: int, callback: Callable[[float], None]) -> None:
        """Call `callback(now)` once `fd` can be written, instead of when it can be read."""
        self._register(fd, select.EPOLLOUT, callback)

    def unwatch(self, fd: int) -> None:
        """Stop calling back for `fd`; to be done before it is closed."""
        del self._callbacks[fd]
        self._poller.unregister(fd)

    def turn(self, wake_at: float) -> float:
        """Wait until something is ready, or `wake_at`; call back; return the time it then was."""
        timeout_s = min(max(wake_at - time.monotonic(), 0.0), _LONGEST_S)
        events = self._poller.poll(timeout_s, _EVENTS_AT_ONCE)
        now = time.monotonic()
        for fd, _ in events:
            # One callback may have unwatched what another event of this turn was for.
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback(now)
        return now

    def _register(self, fd: int, mask: int, callback: Callable[[float], None]) -> None:
        if fd in self._callbacks:
            self._poller.modify(fd, mask)
        else:
            self._poller.register(fd, mask)
        self._callbacks[fd] = callback
