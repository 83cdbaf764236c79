"""Addresses as people write them (`HOST:PORT`), and finding out whether one can be listened on.

Standard library only.
"""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass, replace

from muster.words import _


class BadAddress(ValueError):
    """The text is no HOST:PORT, or the address cannot be used; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host name or address, without brackets, and a port; port 0 stands for any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def everywhere(self) -> bool:
        """Whether this means all addresses of the machine."""
        return self.host in ("0.0.0.0", "::", "*")

    @property
    def near(self) -> HostPort:
        """The address under which programs on this machine reach a listener here."""
        if not self.everywhere:
            return self
        return replace(self, host="::1" if self.host == "::" else "127.0.0.1")


def parse(text: str, *, default_port: int = 0) -> HostPort:
    """`HOST:PORT`, `HOST`, `:PORT` or `[V6]:PORT`; a missing host means the loopback. Raises `BadAddress`."""
    wrong = BadAddress(_("%(text)r is no address: write HOST:PORT, such as 127.0.0.1:7440", text=text))
    cleaned = text.strip()
    if cleaned.startswith("["):
        host, bracket, rest = cleaned[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise wrong
        port_text = rest[1:]
    else:
        host, _colon, port_text = cleaned.rpartition(":") if ":" in cleaned else (cleaned, "", "")
    if ":" in host and not cleaned.startswith("["):
        said = _("%(text)r is no address: write an IPv6 host in brackets, such as [::1]:7440", text=text)
        raise BadAddress(said)
    try:
        port = int(port_text) if port_text else default_port
    except ValueError:
        raise wrong from None
    if not 0 <= port <= 65535 or any(c.isspace() or c == "/" for c in host):
        raise wrong
    return HostPort(host or "127.0.0.1", port)


def settle(address: HostPort, *, option: str, patience_s: float = 2.0) -> HostPort:
    """The same address with a port that can be listened on now: port 0 becomes a free one.

    Raises `BadAddress` naming `option` when somebody else listens there for longer than `patience_s` (a program that
    was just stopped may hold its port for a moment) or the host is not one of this machine.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return replace(address, port=_try(address))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise BadAddress(_unusable(address, error, option)) from error
            if time.monotonic() >= deadline:
                raise BadAddress(_taken(address, option)) from error
        time.sleep(0.05)


def _unusable(address: HostPort, error: OSError, option: str) -> str:
    why = error.strerror or error
    return _("cannot listen on %(address)s: %(why)s (see %(option)s)", address=address, why=why, option=option)


def _taken(address: HostPort, option: str) -> str:
    return _(
        "%(address)s is in use by another program: stop that one, or choose another address with %(option)s",
        address=address,
        option=option,
    )


class Reserved:
    """Ports that daemons of ours will listen on in a moment, so that two starts at once do not choose the same.

    Another start sees an abstract socket named after the port; it is gone with this process, at the latest.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def free_or_other(self, address: HostPort) -> HostPort:
        """`address` if it can be listened on, else the same host with a free port; reserved."""
        try:
            wanted = settle(address, option="", patience_s=0.0)
            if self._take(wanted.port):
                return wanted
        except BadAddress:
            pass
        while True:
            other = settle(replace(address, port=0), option="")
            if self._take(other.port):
                return other

    def close(self) -> None:
        """Let go of all of them."""
        for held in self._held:
            held.close()
        self._held.clear()

    def _take(self, port: int) -> bool:
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            held.bind(f"\0muster-port-{port}")
        except OSError:
            held.close()
            return False
        self._held.append(held)
        return True


def _try(address: HostPort) -> int:
    host = None if address.host == "*" else address.host
    found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, where = found[0]
    with socket.socket(family, kind, protocol) as sock:
        # As the daemons do: connections that linger from an earlier start do not count as somebody listening.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(1)
        return int(sock.getsockname()[1])
