"""Finding out that a daemon is ready: it says so on a socket, and where an address is given, that answers 200 too.

Everything is an event of the supervisor's selector; nothing here waits. Standard library only.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from muster.launch.children import Child
from muster.launch.probe import Probe

_PAUSE_S: Final = 0.05  # after the first answer that was no 200; doubled after each further one
_PAUSE_MOST_S: Final = 1.0
_PATIENCE_S: Final = 5.0
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid


class Readiness:
    """Hears the children of one supervisor and calls `on_ready(child)`, once for each process.

    `find` answers the child with a process id, or None.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        *,
        find: Callable[[int], Child | None],
        on_ready: Callable[[Child], None],
    ) -> None:
        self._selector = selector
        self._find = find
        self._on_ready = on_ready
        self._probes: dict[Child, Probe] = {}
        self._due: dict[Child, float] = {}  # when to probe next, or to give up the present probe
        self._pause_s: dict[Child, float] = {}
        # An abstract name needs no file and no short path. Anybody may write to it, so the kernel's word on who did
        # (SCM_CREDENTIALS) decides whether it counts.
        name = f"muster-{secrets.token_hex(8)}"
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._sock.setblocking(False)
        self._sock.bind("\0" + name)
        self.environ = {"NOTIFY_SOCKET": "@" + name}
        selector.register(self._sock, selectors.EVENT_READ, self._hear)

    def close(self) -> None:
        """Hear nothing more."""
        for child in list(self._probes):
            self.forget(child)
        self._selector.unregister(self._sock)
        self._sock.close()

    def forget(self, child: Child) -> None:
        """The child's process has ended, or is to end: whatever is under way about it no longer matters."""
        self._pause_s.pop(child, None)
        self._drop(child)

    def _drop(self, child: Child) -> None:
        self._due.pop(child, None)
        probe = self._probes.pop(child, None)
        if probe is not None:
            self._selector.unregister(probe.sock)
            probe.close(ready=False)

    @property
    def next_at(self) -> float | None:
        """When `due` has something to do next."""
        return min(self._due.values(), default=None)

    def due(self, now: float) -> None:
        """Probe again those whose pause is over; a probe that got no answer for too long begins anew."""
        for child, at in list(self._due.items()):
            if at <= now:
                self._drop(child)
                self._probe(child, now)

    def _hear(self) -> None:
        while True:
            try:
                message, ancillary, _, _ = self._sock.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                    child = self._find(_CREDENTIALS.unpack_from(content)[0])
                    if child is not None and b"READY=1" in message.split(b"\n"):
                        self._notified(child)

    def _notified(self, child: Child) -> None:
        if child.program.probe_url is None:
            self._on_ready(child)
        elif child not in self._due:
            self._probe(child, time.monotonic())

    def _probe(self, child: Child, now: float) -> None:
        probe = Probe(child.program.probe_url or "")
        if probe.answer is None:
            self._probes[child] = probe
            self._due[child] = now + _PATIENCE_S
            self._selector.register(probe.sock, probe.wants, lambda: self._step(child, probe))
        else:
            self._wait(child, now)

    def _wait(self, child: Child, now: float) -> None:
        pause_s = self._pause_s.get(child, _PAUSE_S)
        self._pause_s[child] = min(2 * pause_s, _PAUSE_MOST_S)
        self._due[child] = now + pause_s

    def _step(self, child: Child, probe: Probe) -> None:
        probe.step()
        if probe.answer is None:
            self._selector.modify(probe.sock, probe.wants, lambda: self._step(child, probe))
            return
        ready = probe.answer
        self._drop(child)
        if ready:
            self._on_ready(child)
        else:
            self._wait(child, time.monotonic())
