"""Many HTTP clients in one cheap loop, so that what is measured is the server and not its callers.

Each connection sends the same request as soon as its last answer is complete; answers are read by their
Content-Length and judged by their status alone.
"""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass, field

_HEAD_END = b"\r\n\r\n"


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)

    def complete(self) -> bool:
        """Whether a whole answer is here; raises `RuntimeError` if it is an error."""
        end = self.received.find(_HEAD_END)
        if end < 0:
            return False
        head = bytes(self.received[:end]).lower()
        if not head.startswith((b"http/1.1 200", b"http/1.1 201")):
            raise RuntimeError(f"refused: {bytes(self.received[:600])!r}")
        length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        return len(self.received) >= end + len(_HEAD_END) + length


def post(address: tuple[str, int], path: str, body: bytes, *, token: str, total: int, connections: int) -> float:
    """POST `body` `total` times over so many connections; seconds from the first request to the last answer."""
    head = f"POST {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nAuthorization: Bearer {token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    selector = selectors.DefaultSelector()
    for _ in range(connections):
        opened = socket.create_connection(address)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(opened, selectors.EVENT_READ, _Connection(opened))
    begin = time.perf_counter()
    left = total
    answered = 0
    for key in list(selector.get_map().values())[:left]:
        key.data.socket.sendall(request)
        left -= 1
    while answered < total:
        for key, _ in selector.select():
            connection: _Connection = key.data
            connection.received += connection.socket.recv(65536)
            if not connection.complete():
                continue
            answered += 1
            connection.received.clear()
            if left:
                left -= 1
                connection.socket.sendall(request)
    elapsed = time.perf_counter() - begin
    for key in list(selector.get_map().values()):
        key.data.socket.close()
    return elapsed
