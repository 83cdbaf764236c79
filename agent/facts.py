"""What the master is told of this host: a flat map of plain values, as the REST contract names them.

The only module that uses psutil. What cannot change while the host is up is read once; what cannot be read is left
out, because a missing fact must never keep an agent from its work.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from common.clock import Clock
from common.version import VERSION

_ADDRESSES_EVERY_S = 60.0
_MAX_ADDRESSES = 16


class HostFacts:
    """The facts of this host; `path` is the folder whose disk has to have room (the agent's state directory)."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._path = str(path)
        self._clock = clock
        self._fixed: dict[str, Any] = {}
        self._addresses: list[str] = []
        self._addresses_due_s = 0.0
        psutil.cpu_percent(None)  # the first answer has no interval behind it

    def read(self) -> dict[str, Any]:
        """All facts as they are now. Takes about a millisecond."""
        if not self._fixed:
            self._fixed = _collect(
                os=_os_name,
                kernel=platform.release,
                arch=platform.machine,
                cpus=lambda: psutil.cpu_count() or 1,
                memory_total=lambda: psutil.virtual_memory().total,
                boot_at=_boot_at,
                version=lambda: VERSION,
            )
        changing = _collect(
            cpu_percent=lambda: psutil.cpu_percent(None),
            load=lambda: [round(value, 2) for value in os.getloadavg()],
            memory_used=_memory_used,
            disk_free=lambda: psutil.disk_usage(self._path).free,
            addresses=self._current_addresses,
        )
        return {**self._fixed, **changing}

    def _current_addresses(self) -> list[str]:
        now_s = self._clock.monotonic_s()
        if now_s >= self._addresses_due_s:
            self._addresses_due_s = now_s + _ADDRESSES_EVERY_S
            self._addresses = _addresses()
        return self._addresses


def _collect(**readings: Callable[[], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, read in readings.items():
        try:
            found[name] = read()
        except (OSError, ValueError, KeyError, RuntimeError, psutil.Error):
            continue
    return found


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def _boot_at() -> str:
    booted = datetime.fromtimestamp(psutil.boot_time(), UTC)
    return booted.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _memory_used() -> int:
    memory = psutil.virtual_memory()
    return int(memory.total - memory.available)


def _addresses() -> list[str]:
    """Addresses another host could reach this one by: neither loopback nor link-local."""
    found: list[str] = []
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            address = entry.address.partition("%")[0]
            if not address.startswith(("127.", "169.254.", "fe80:")) and address != "::1":
                found.append(address)
    return found[:_MAX_ADDRESSES]
