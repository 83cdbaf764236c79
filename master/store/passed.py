"""What the writer remembers about offers an agent passes over, so that each is met once and not by every claim.

A task for any three agents stays offered after one of them has taken its run; that agent must look behind it from then
on. For each shared scope and agent this keeps spans of the scope's order, (after, end], in which nothing is left for
the agent. A span ends being one when something is offered inside it. All of it can be found again by looking, so after
a failed commit it is simply forgotten.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

Place = tuple[int, int]
"""(priority, seq): a place in a scope's order."""

FIRST: Final[Place] = (-1, -1)
"""Before every place."""
NOWHERE: Final[Place] = (1 << 62, 1 << 62)
"""Behind every place."""
_SPANS_MOST: Final = 200_000


class Spans:
    """Disjoint spans (after, end] of a scope's order, sorted."""

    __slots__ = ("_afters", "_ends")

    def __init__(self, other: Spans | None = None) -> None:
        self._afters: list[Place] = [] if other is None else other._afters.copy()
        self._ends: list[Place] = [] if other is None else other._ends.copy()

    def skip(self, place: Place) -> Place:
        """Where to look on from `place`: the end of the span that holds it or begins behind it, else itself."""
        index = bisect_right(self._afters, place) - 1
        if index >= 0 and place < self._ends[index]:
            return self._ends[index]
        return place

    def holds(self, place: Place) -> Place | None:
        """The end of the span that `place` lies in."""
        index = bisect_left(self._afters, place) - 1
        return self._ends[index] if index >= 0 and place <= self._ends[index] else None

    def add(self, after: Place, end: Place) -> None:
        """Nothing is left in (after, end]."""
        first = bisect_left(self._ends, after)
        last = bisect_right(self._afters, end)
        if first < last:
            after = min(after, self._afters[first])
            end = max(end, self._ends[last - 1])
        self._afters[first:last] = [after]
        self._ends[first:last] = [end]

    def split(self, place: Place) -> None:
        """Something is at `place`."""
        index = bisect_left(self._afters, place) - 1
        if index < 0 or place > self._ends[index]:
            return
        before = (place[0], place[1] - 1)
        after, end = self._afters[index], self._ends[index]
        parts = [part for part in ((after, before), (place, end)) if part[0] < part[1]]
        self._afters[index : index + 1] = [part[0] for part in parts]
        self._ends[index : index + 1] = [part[1] for part in parts]


class Passed:
    """The spans of all shared scopes and agents; part of the writer's memory."""

    def __init__(self) -> None:
        self._scopes: dict[str, dict[str, Spans]] = {}
        self._furthest: dict[str, Place] = {}
        self._added = 0

    def of(self, scope: str, agent_id: str) -> Spans | None:
        """The agent's spans in a scope."""
        agents = self._scopes.get(scope)
        return None if agents is None else agents.get(agent_id)

    def add(self, scope: str, agent_id: str, after: Place, end: Place) -> None:
        """Nothing is left for the agent in (after, end] of the scope."""
        if self._added >= _SPANS_MOST:
            self.forget()
        self._added += 1
        self._scopes.setdefault(scope, {}).setdefault(agent_id, Spans()).add(after, end)
        self._furthest[scope] = max(end, self._furthest.get(scope, FIRST))

    def offered(self, scope: str, place: Place) -> None:
        """Something is offered to everybody at `place`."""
        # New tasks come last in their scope, behind all spans: the usual case costs one comparison.
        if place <= self._furthest.get(scope, FIRST):
            for spans in self._scopes[scope].values():
                spans.split(place)

    def offered_again(self, scope: str, agent_id: str, place: Place) -> None:
        """The agent gave back its run of the task at `place`, and may take one again."""
        spans = self.of(scope, agent_id)
        if spans is not None:
            spans.split(place)

    def forget_scope(self, scope: str) -> None:
        """Nothing is offered in this scope any more."""
        self._scopes.pop(scope, None)
        self._furthest.pop(scope, None)

    def forget(self) -> None:
        """Look at everything anew."""
        self._scopes.clear()
        self._furthest.clear()
        self._added = 0
