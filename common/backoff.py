"""Delays with jitter: how long to wait before the next try, and how to spread waits of many peers. Pure.

Full jitter (a uniform draw below a growing bound) lets thousands of agents come back after an outage of the master
without arriving in waves. The source of chance is a parameter, so tests need neither time nor luck.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_MAX_DOUBLINGS = 60
"""Beyond this every cap is reached; keeps 2**n away from float overflow."""


def full_jitter_s(attempt: int, *, base_s: float, cap_s: float, draw: Callable[[], float] = random.random) -> float:
    """Seconds to wait before try number `attempt` (0 is the first repeat): uniform in 0 … min(cap, base · 2^attempt).

    `draw` gives a number in [0, 1).
    """
    return draw() * min(cap_s, base_s * 2.0 ** min(max(attempt, 0), _MAX_DOUBLINGS))


def spread_s(mean_s: float, *, by: float = 0.25, draw: Callable[[], float] = random.random) -> float:
    """`mean_s` seconds, moved at random by up to the fraction `by` either way (60 s by 0.25: 45 to 75 s)."""
    return mean_s * (1.0 + by * (2.0 * draw() - 1.0))


class Backoff:
    """The delays of one thing that is tried again and again: they grow with every try until `reset`.

    `floor_s` is added below the jitter: a lucky draw of zero must not turn a dead port into a busy loop.
    """

    def __init__(
        self,
        *,
        base_s: float = 0.2,
        cap_s: float = 8.0,
        floor_s: float = 0.05,
        draw: Callable[[], float] = random.random,
    ) -> None:
        if base_s <= 0 or cap_s < base_s or floor_s < 0:
            raise ValueError("a back-off needs 0 < base_s <= cap_s and floor_s >= 0")
        self._base_s = base_s
        self._cap_s = cap_s
        self._floor_s = floor_s
        self._draw = draw
        self._attempts = 0

    @property
    def attempts(self) -> int:
        """How many delays were given since the last `reset`."""
        return self._attempts

    def next_s(self) -> float:
        """Seconds to wait now; the next answer is drawn from a range twice as wide, up to the cap."""
        delay_s = full_jitter_s(self._attempts, base_s=self._base_s, cap_s=self._cap_s, draw=self._draw)
        self._attempts += 1
        return min(self._floor_s + delay_s, max(self._cap_s, self._floor_s))

    def reset(self) -> None:
        """It worked: the next failure starts with short delays again."""
        self._attempts = 0
