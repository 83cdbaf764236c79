"""What the agent is doing, for whoever looks after it: one live sentence per loop.

`STATE/status` holds them (rewritten when they change, at most every few seconds), and `kill -USR1 PID` writes them to
the log at once.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import gevent

from common import log
from common.clock import Clock
from common.service import Service

logger = logging.getLogger(__name__)


class StatusPage(Service):
    """The sentences of `services`, in a file and on request. `head` gives the first lines: who this is."""

    def __init__(self, path: Path, services: Sequence[Service], *, head: Callable[[], str], clock: Clock) -> None:
        super().__init__("status")
        self._path = path
        self._services = services
        self._head = head
        self._clock = clock
        self._written = ""
        self._watcher: gevent.signal_handler[()] | None = None

    def text(self) -> str:
        """The whole page: a line each."""
        lines = [f"{service.name}: {service.status}" for service in self._services]
        return "\n".join([self._head(), *lines]) + "\n"

    def refresh(self) -> None:
        """Write the file if a sentence has changed; a disk that takes no file is no reason to stop."""
        text = self.text()
        if text == self._written:
            return
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock.wall_ms() / 1000))
        temporary = self._path.with_name(f".{self._path.name}.new")
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(f"{text}written: {stamp}\n")
            temporary.replace(self._path)
            self._written = text
        except OSError as error:
            logger.debug("status not written", extra=log.fields(reason=str(error)))

    def tell(self) -> None:
        """Write every sentence to the log."""
        for service in self._services:
            logger.info("status", extra=log.fields(loop=service.name, doing=service.status))
        self.refresh()

    def _begin(self) -> None:
        self._watcher = gevent.signal_handler(signal.SIGUSR1, self.tell)
        self.refresh()

    def _end(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        # A signal that comes while the process ends must not end it differently.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self._path.unlink(missing_ok=True)
