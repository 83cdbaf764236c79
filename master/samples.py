"""What charts of agents are drawn from: of each agent the last hour of its load, a point for each quarter of a minute.

Memory only, and of a fixed size for each agent (about 6 KB), so it begins anew with the master. Points are kept by
engine seconds: a wall clock that was set does not tear a chart apart.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from master.lifecycle import Moment

INTERVAL_S = 15
"""At most one point in this time."""
POINTS_MOST = 240
_SPAN_S = INTERVAL_S * POINTS_MOST
_POINT = struct.Struct("<dfqf")  # engine second, CPU, memory, load; NaN and −1: not said
_UNSAID = -1


class Samples:
    """The rings of all agents that were heard in this life of the master."""

    def __init__(self) -> None:
        self._rings: dict[str, _Ring] = {}

    def note(self, agent_id: str, facts: Mapping[str, Any], now: Moment) -> None:
        """A heartbeat brought these facts. Never waits."""
        ring = self._rings.get(agent_id)
        if ring is None:
            ring = self._rings[agent_id] = _Ring()
        load = facts.get("load")
        memory = facts.get("memory_used")
        ring.put(
            now.engine_s,
            cpu=_number(facts.get("cpu_percent")),
            memory=_UNSAID if memory is None else memory,
            load=_number(load[0] if load else None),
        )

    def forget(self, agent_id: str) -> None:
        """The agent was forgotten."""
        self._rings.pop(agent_id, None)

    def view(self, agent_id: str, now: Moment) -> dict[str, Any]:
        """{interval_s, points: [[wall_ms, cpu_percent, memory_used, load1], …]}, the oldest first; None: not said."""
        ring = self._rings.get(agent_id)
        points = []
        for at_s, cpu, memory, load in ring.points() if ring is not None else ():
            age_s = now.engine_s - at_s
            if age_s <= _SPAN_S:
                wall_ms = now.wall_ms - round(age_s * 1000)
                told_memory = None if memory == _UNSAID else memory
                points.append([wall_ms, _rounded(cpu, 1), told_memory, _rounded(load, 2)])
        return {"interval_s": INTERVAL_S, "points": points}


class _Ring:
    """The points of one agent, packed; the newest takes up what is said until its interval is over."""

    __slots__ = ("_count", "_next", "_packed", "_slot", "_told")

    def __init__(self) -> None:
        self._packed = bytearray(_POINT.size * POINTS_MOST)
        self._next = 0  # where the next point goes
        self._count = 0
        self._slot = -1  # the interval of the newest point
        self._told = 0  # how often it was told of

    def put(self, at_s: float, *, cpu: float, memory: int, load: float) -> None:
        """CPU of one interval is the mean of what was said, memory and load are the last."""
        slot = int(at_s // INTERVAL_S)
        if slot == self._slot:
            newest = (self._next - 1) % POINTS_MOST
            self._told += 1
            _, former, _, _ = _POINT.unpack_from(self._packed, newest * _POINT.size)
            if not math.isnan(former) and not math.isnan(cpu):
                cpu = former + (cpu - former) / self._told
        else:
            newest = self._next
            self._next = (newest + 1) % POINTS_MOST
            self._count = min(self._count + 1, POINTS_MOST)
            self._slot = slot
            self._told = 1
        _POINT.pack_into(self._packed, newest * _POINT.size, at_s, cpu, memory, load)

    def points(self) -> Iterator[tuple[float, float, int, float]]:
        """(engine second, CPU, memory, load), the oldest first."""
        for number in range(self._next - self._count, self._next):
            yield _POINT.unpack_from(self._packed, (number % POINTS_MOST) * _POINT.size)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _rounded(value: float, digits: int) -> float | None:
    return None if math.isnan(value) else round(value, digits)
