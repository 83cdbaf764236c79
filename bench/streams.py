"""Figure (g): what 1,000 open event streams cost the webserver at one event a second, beside bare `send` calls.

The event is a changed label of the one agent. The streams are raw sockets in this process, read in one cheap loop; only
the webserver's CPU time is counted, the request that brings the change about included.
"""

from __future__ import annotations

import selectors
import socket
import time
from typing import Any

from bench.system import System, cpu_s_of
from common.descriptors import raise_limit

STREAMS = 1_000
SECONDS = 20
_SETTLE_S = 3.0
_IDLE_S = 2 * 15.0  # with two rounds of what keeps connections alive
_EVENT = b"event: agent\n"


class Followers:
    """Open streams, and what came on them."""

    def __init__(self, address: tuple[str, int], path: str, *, token: str, number: int) -> None:
        self._selector = selectors.DefaultSelector()
        self.sockets: list[socket.socket] = []
        self.received: dict[socket.socket, bytearray] = {}
        request = f"GET {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nAuthorization: Bearer {token}\r\n\r\n"
        for _ in range(number):
            opened = socket.create_connection(address)
            opened.sendall(request.encode())
            self._selector.register(opened, selectors.EVENT_READ)
            self.sockets.append(opened)
            self.received[opened] = bytearray()

    def read(self, seconds: float) -> None:
        """Take what comes for so long."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(left_s):
                opened: Any = key.fileobj
                content = opened.recv(65536)
                if not content:
                    raise RuntimeError("a stream ended")
                self.received[opened] += content

    def open(self) -> int:
        """How many streams were answered."""
        return sum(b" 200 " in content[:20] and b"id: " in content for content in self.received.values())

    def least(self) -> int:
        """How many events came on the stream that has had the fewest."""
        return min(content.count(_EVENT) for content in self.received.values())

    def close(self) -> None:
        """Hang up."""
        for opened in self.sockets:
            opened.close()


def run() -> list[dict[str, Any]]:
    """Shares of a core, in percent: with events, without, and of bare sends of the same bytes."""
    raise_limit()
    with System() as system:
        web = system.pid_of("web")
        [name] = system.agent_names()
        followers = Followers(system.address, "/api/v1/events?runs=false", token=system.token, number=STREAMS)
        begin_s = time.monotonic()
        while followers.open() < STREAMS:
            followers.read(0.2)
            if time.monotonic() - begin_s > 60:
                raise RuntimeError(f"only {followers.open()} streams opened")
        followers.read(_SETTLE_S)
        idle = _share(web, lambda: followers.read(_IDLE_S))
        before = followers.least()
        connection = system.connect()

        def follow() -> None:
            begin_s = time.monotonic()
            for number in range(SECONDS):
                system.call("PATCH", f"/api/v1/agents/{name}", {"labels": {"n": str(number)}}, connection=connection)
                followers.read(begin_s + number + 1 - time.monotonic())

        busy = _share(web, follow)
        followers.read(1.0)
        if followers.least() - before < SECONDS:
            raise RuntimeError(f"a stream had {followers.least() - before} of {SECONDS} events")
        size = max(len(content) for content in followers.received.values()) // max(1, followers.least())
        followers.close()
    return [
        {
            "figure": "g", "what": f"{STREAMS:,} open streams of everything, one event a second", "unit": "% of a core",
            "cpu": round(busy, 1), "idle": round(idle, 1), "us_per_event": round(busy * 1e4 / STREAMS, 1),
            "baseline_cpu": round(_bare(b"x" * size), 1), "baseline": "send() of the same bytes to as many sockets",
            "aim": "below 20 %",
        }
    ]  # fmt: skip


def _share(pid: int, work: Any) -> float:
    """Percent of a core that the process used while `work()` went on."""
    cpu_s, begin_s = cpu_s_of(pid), time.monotonic()
    work()
    return 100 * (cpu_s_of(pid) - cpu_s) / (time.monotonic() - begin_s)


def _bare(content: bytes) -> float:
    """Percent of a core that sending this to so many connections once a second needs at the least."""
    with socket.create_server(("127.0.0.1", 0), backlog=STREAMS) as listener:
        pairs = [(socket.create_connection(listener.getsockname()), listener.accept()[0]) for _ in range(STREAMS)]
    spent_s = 0.0
    for _ in range(SECONDS):
        begin_s = time.thread_time()
        for _, near in pairs:
            near.send(content)
        spent_s += time.thread_time() - begin_s
        for far, _ in pairs:
            far.recv(65536)
    for pair in pairs:
        for each in pair:
            each.close()
    return 100 * spent_s / SECONDS
