"""The engine clock: seconds that only go forward, over restarts too. All deadlines of runs are kept in them.

Engine time is a base from the store plus the seconds since boot that passed in this process, so setting the date of
the host moves no deadline. Between two processes the wall clock has to do: what it says has passed is added, never
less than nothing, and a step of more than an hour is logged, since it may be a date set wrong.
"""

from __future__ import annotations

import logging

from common import log
from common.clock import Clock
from master.lifecycle import Moment

logger = logging.getLogger(__name__)

JUMP_S = 3600.0


class EngineClock:
    """Reads `Moment`s. `resume` must be called once, with the store's mark, before the first reading."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._base_s = 0.0
        self._boot_s = clock.boottime_s()

    def resume(self, mark: tuple[float, int]) -> float:
        """Go on from (engine seconds, wall ms) of the last commit; answers the seconds that passed meanwhile."""
        engine_s, wall_ms = mark
        self._boot_s = self._clock.boottime_s()
        passed_s = max(0.0, (self._clock.wall_ms() - wall_ms) / 1000) if wall_ms else 0.0
        self._base_s = engine_s + passed_s
        if passed_s > JUMP_S:
            logger.warning(
                "engine clock jumped: the master was down this long, or the date was set",
                extra=log.fields(passed_s=round(passed_s), engine_s=round(self._base_s)),
            )
        return passed_s

    def now_s(self) -> float:
        """Engine seconds now."""
        return self._base_s + max(0.0, self._clock.boottime_s() - self._boot_s)

    def now(self) -> Moment:
        """Both readings at this instant."""
        return Moment(engine_s=self.now_s(), wall_ms=self._clock.wall_ms())
