"""A second host on this machine: a network namespace of its own, joined by a veth pair that can be cut and restored.

Needs root and iproute2 (`scripts/test` installs it). The addresses exist only between the two ends of the pair.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

COUNT_MOST = 60


class Host:
    """One namespace: `here` is this end's address, `there` the address inside."""

    def __init__(self, number: int) -> None:
        subnet = f"10.213.{number % 250}"
        self.name = f"muster-{os.getpid()}-{number}"
        self.here, self.there = f"{subnet}.1", f"{subnet}.2"
        self.outer, self.inner = f"mu{os.getpid() % 100000}{number}a", f"mu{os.getpid() % 100000}{number}b"

    def make(self) -> None:
        """Create the namespace and the pair and bring both ends up."""
        _ip("netns", "add", self.name)
        _ip("link", "add", self.outer, "type", "veth", "peer", "name", self.inner, "netns", self.name)
        _ip("addr", "add", f"{self.here}/30", "dev", self.outer)
        _ip("link", "set", self.outer, "up")
        _ip("-n", self.name, "addr", "add", f"{self.there}/30", "dev", self.inner)
        _ip("-n", self.name, "link", "set", self.inner, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")

    def command(self, *words: str) -> list[str]:
        """`words` as a command that runs inside the namespace."""
        return ["ip", "netns", "exec", self.name, *words]

    def listening(self) -> list[str]:
        """The TCP sockets that listen inside, as `ss` would name them; read from the kernel's own table."""
        script = "cat /proc/net/tcp /proc/net/tcp6"
        table = subprocess.run(self.command("sh", "-c", script), capture_output=True, text=True, check=True).stdout
        return [line.split()[1] for line in table.splitlines() if len(line.split()) > 3 and line.split()[3] == "0A"]

    def cut(self) -> None:
        """Take the link down: packets vanish, nobody is told."""
        _ip("link", "set", self.outer, "down")

    def restore(self) -> None:
        """Bring the link up again."""
        _ip("link", "set", self.outer, "up")

    def remove(self) -> None:
        """Take everything away again; may be called twice."""
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self.outer)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self.name)


@contextlib.contextmanager
def second_host() -> Iterator[Host]:
    """A fresh host; tries further subnets when one is taken by another test process."""
    for attempt in range(COUNT_MOST):
        host = Host((os.getpid() + attempt) % 250)
        try:
            host.make()
        except subprocess.CalledProcessError:
            host.remove()
            continue
        try:
            yield host
        finally:
            host.remove()
        return
    raise RuntimeError("no free subnet for a second host")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
