"""Time, injected. Loops and use-cases take a `Clock`; only `SystemClock` reads the machine.

Three readings: `wall_ms` for people, `monotonic_s` for deadlines inside a process, `boottime_s` (counts suspend) for
the engine clock. No setting or test may make a deadline depend on wall time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the rest of the code may ask of time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC; for display only, may jump."""

    def monotonic_s(self) -> float:
        """Seconds of this process's monotonic clock."""

    def boottime_s(self) -> float:
        """Seconds since boot, time asleep included."""


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        """See `Clock.wall_ms`."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return time.monotonic()

    def boottime_s(self) -> float:
        """See `Clock.boottime_s`."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class ManualClock:
    """A clock that moves only when told; for tests."""

    def __init__(self, *, wall_ms: int = 1_700_000_000_000, monotonic_s: float = 1_000.0) -> None:
        self._wall_ms = wall_ms
        self._monotonic_s = monotonic_s

    def wall_ms(self) -> int:
        """See `Clock.wall_ms`."""
        return self._wall_ms

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return self._monotonic_s

    def boottime_s(self) -> float:
        """See `Clock.boottime_s`."""
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Move all readings forward by `seconds`."""
        self._monotonic_s += seconds
        self._wall_ms += round(seconds * 1000)

    def jump_wall(self, seconds: float) -> None:
        """Move the wall reading alone, as an operator setting the date does."""
        self._wall_ms += round(seconds * 1000)
