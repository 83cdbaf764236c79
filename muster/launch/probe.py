"""Asking an address of this machine by HTTP whether it is ready, without ever waiting: the supervisor's loop goes on.

A `Probe` is one request; its owner watches the socket and calls `step` when there is something to do.
Standard library only.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
from typing import Final
from urllib.parse import urlsplit

_MOST: Final = 4096


class Probe:
    """One GET; `answer` is None until it is known, then whether the status was 200."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 80
        self.answer: bool | None = None
        self.sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self._request = f"GET {parts.path or '/'} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode()
        self._got = b""
        try:
            code = self.sock.connect_ex((host, port))
        except OSError:  # the name is not known
            code = errno.EHOSTUNREACH
        if code not in (0, errno.EINPROGRESS):
            self.close(ready=False)

    @property
    def wants(self) -> int:
        """What to watch the socket for: a `selectors` event mask."""
        return selectors.EVENT_WRITE if self._request else selectors.EVENT_READ

    def step(self) -> None:
        """Go on as far as possible without waiting."""
        try:
            if self._request:
                code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, os.strerror(code))
                self._request = self._request[self.sock.send(self._request) :]
                return
            got = self.sock.recv(_MOST)
        except BlockingIOError:
            return
        except OSError:
            self.close(ready=False)
            return
        self._got += got
        line, end, _ = self._got.partition(b"\r\n")
        if end or not got or len(self._got) > _MOST:
            self.close(ready=line.split(b" ")[1:2] == [b"200"])

    def close(self, *, ready: bool) -> None:
        """Hang up with this answer, unless there is one already."""
        if self.answer is None:
            self.answer = ready
        self.sock.close()
