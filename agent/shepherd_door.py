"""The shepherd's private socket: DIR/shepherd.sock, one JSON object a line, for this user and root only.

One agent at a time: a new connection takes the place of the former one, after everything the former one sent has been
done. What an agent does not fetch is not kept for it: it asks for `list` when it comes back.
Standard library only, and small: the shepherd imports it.
"""

from __future__ import annotations

import json
import os
import socket
import struct

TYPE_CHECKING = False  # the module typing is left out of the shepherd
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agent.collector import Watcher

SOCKET = "shepherd.sock"
_RECEIVE = 262144
_LINE_MOST = 16 * 1024 * 1024
_UNSENT_MOST = 16 * 1024 * 1024
_CREDENTIALS = struct.Struct("3i")


def address(dir_fd: int) -> str:
    """The socket's path by way of an open directory, so that a long path does not matter (107 bytes are allowed)."""
    return f"/proc/self/fd/{dir_fd}/{SOCKET}"


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


class Door:
    """Listens, and speaks with one agent."""

    def __init__(
        self,
        dir_fd: int,
        watcher: Watcher,
        *,
        on_message: Callable[[dict[str, Any], float], None],
        on_gone: Callable[[float], None],
        complain: Callable[[str], None],
    ) -> None:
        """The caller holds the lock of the directory: a socket file found there is a dead one's."""
        self._watcher = watcher
        self._on_message = on_message
        self._on_gone = on_gone
        self._complain = complain
        self._agent: socket.socket | None = None
        self._received = bytearray()
        self._unsent = bytearray()
        self._blocked = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        path = address(dir_fd)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        before = os.umask(0o177)
        try:
            self._listener.bind(path)
        finally:
            os.umask(before)
        self._listener.listen(8)
        watcher.watch(self._listener.fileno(), self._accept)

    @property
    def connected(self) -> bool:
        """Whether an agent is there."""
        return self._agent is not None

    @property
    def backed_up(self) -> bool:
        """Whether the agent is slow to fetch what it was sent; then spare it what can be told later."""
        return len(self._unsent) > 65536

    def send(self, line: bytes) -> None:
        """Queue one message (JSON without its line end) for the agent, if there is one."""
        if self._agent is not None:
            self._unsent += line
            self._unsent += b"\n"

    def flush(self, now: float) -> None:
        """Send what is queued, as far as it goes without waiting."""
        if self._agent is None or not self._unsent or self._blocked:
            return
        try:
            sent = self._agent.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._part(now)
            return
        del self._unsent[:sent]
        if not self._unsent:
            return
        if len(self._unsent) > _UNSENT_MOST:
            self._complain("the agent does not read its messages; its connection is closed")
            self._part(now)
            return
        self._blocked = True
        self._watcher.watch_writing(self._agent.fileno(), self._writable)

    def close(self) -> None:
        """Take nobody in any more and let go of the agent; the socket file stays, the next shepherd replaces it."""
        self._watcher.unwatch(self._listener.fileno())
        self._listener.close()
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    def _writable(self, now: float) -> None:
        assert self._agent is not None
        self._blocked = False
        self._watcher.watch(self._agent.fileno(), self._readable)
        self.flush(now)

    def _accept(self, now: float) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it has gone again, or there are no descriptors left: then it tries again
        if peer_uid(connection) not in (os.geteuid(), 0):
            self._complain("a process of another user wanted to connect; refused")
            connection.close()
            return
        while self._agent is not None and self._receive(now):
            pass
        if self._agent is not None:
            self._part(now)
        connection.setblocking(False)
        self._agent = connection
        self._watcher.watch(connection.fileno(), self._readable)

    def _readable(self, now: float) -> None:
        self._receive(now)

    def _receive(self, now: float) -> bool:
        """Take and do what has arrived. False: there was nothing, or the agent has gone."""
        assert self._agent is not None
        try:
            raw = self._agent.recv(_RECEIVE)
        except BlockingIOError:
            return False
        except OSError:
            raw = b""
        if not raw:
            self._part(now)
            return False
        self._received += raw
        if b"\n" in raw:
            *lines, rest = bytes(self._received).split(b"\n")
            self._received = bytearray(rest)
            for line in lines:
                self._line(line, now)
        elif len(self._received) > _LINE_MOST:
            self._complain("the agent sent a line without end; its connection is closed")
            self._part(now)
            return False
        return True

    def _line(self, line: bytes, now: float) -> None:
        try:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("not an object")
        except ValueError as error:
            self._complain(f"the agent sent a line that is no message: {error}")
            return
        self._on_message(message, now)

    def _part(self, now: float) -> None:
        assert self._agent is not None
        self._watcher.unwatch(self._agent.fileno())
        self._agent.close()
        self._agent = None
        self._blocked = False
        self._received.clear()
        self._unsent.clear()
        self._on_gone(now)
