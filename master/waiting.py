"""Everything that waits in the master: parked pulls of agents, callers waiting for a task's end, the change feed.

A wake carries nothing. Whoever is woken looks into the store itself, so a wake that comes too early, twice or for
nobody does no harm. A task with a window wakes about as many agents as it has room; those it passed over follow when
the room stays unused, so a host that is away or slow holds nobody up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import gevent
from gevent.event import Event

SPARE = 2
"""Agents woken beyond the room of a window: most wakes are answered, not all."""
PATIENCE_S = 1.0
"""How long room may stay unused before the agents that were passed over are woken, too."""
BURST = 200
"""Waiters woken in one turn of the loop."""


class Pull:
    """One `pull_task` of an agent, from its arrival to its answer."""

    __slots__ = (
        "_able", "_event", "agent_id", "capped", "free_slots", "number", "parked", "queues", "session", "superseded",
    )  # fmt: skip

    def __init__(
        self,
        agent_id: str,
        *,
        session: str,
        number: int,
        queues: frozenset[str] | None,
        free_slots: int = 1,
        able: Callable[[], bool] = lambda: True,
    ) -> None:
        self.agent_id = agent_id
        self.session = session
        self.number = number
        self.queues = queues
        self.free_slots = free_slots
        self.superseded = False
        self.parked = False
        self.capped = False  # holds fewer free slots than it says: look again when a run of its agent ends
        self._able = able
        self._event = Event()

    @property
    def takes(self) -> bool:
        """Whether it could take a run if one were there: a busy agent pulls only to be told of cancels, and one that
        is draining gets nothing new."""
        return self.free_slots > 0 and self._able()

    def wake(self) -> None:
        """Let the pull look again."""
        self._event.set()

    def ready(self) -> None:
        """The pull is about to look: wakes from now on count for its next wait."""
        self._event.clear()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a wake; False when none came in time."""
        self.parked = True
        try:
            return bool(self._event.wait(timeout_s))
        finally:
            self.parked = False


class Audience:
    """Who may take runs of one task: the agents given, or all that serve its queue. Woken in turn, not anew each.

    One that has taken its run comes behind all others from then on: it is asked again only for what came back.
    """

    __slots__ = ("_agents", "_queue", "_served")

    def __init__(self, agents: Iterable[str] | None, *, queue: str) -> None:
        self._agents = None if agents is None else deque(dict.fromkeys(agents))
        self._served: dict[str, None] = {}
        self._queue = queue

    def present(self, pulls: dict[str, Pull]) -> Iterator[Pull]:
        """The pulls of this audience; those answered here come last the next time."""
        if self._agents is None:
            for pull in list(pulls.values()):
                if pull.queues is None or self._queue in pull.queues:
                    yield pull
            return
        for _ in range(len(self._agents)):
            if not self._agents:
                break
            agent_id = self._agents.popleft()
            if agent_id in self._served:
                continue
            self._agents.append(agent_id)
            found = pulls.get(agent_id)
            if found is not None:
                yield found
        for agent_id in list(self._served):
            found = pulls.get(agent_id)
            if found is not None:
                yield found

    def served(self, agent_id: str) -> None:
        """The agent has taken its run."""
        if self._agents is not None:
            self._served[agent_id] = None


class Pulls:
    """The pulls of all agents, one each: a newer one ends an older one that still waits."""

    def __init__(self) -> None:
        self._pulls: dict[str, Pull] = {}
        self._audiences: dict[str, Audience] = {}
        self._unfilled: dict[str, float] = {}
        self._bursts: deque[Pull] = deque()
        self._pacing = False
        self._closed = False

    @property
    def parked(self) -> int:
        """How many pulls wait now."""
        return sum(pull.parked for pull in self._pulls.values())

    def enter(
        self,
        agent_id: str,
        *,
        session: str,
        number: int,
        queues: frozenset[str] | None,
        free_slots: int = 1,
        able: Callable[[], bool] = lambda: True,
    ) -> Pull:
        """A pull has come in. It is superseded at once if a later one of the same session came before it.

        `able` tells whether its agent gets new work at the moment it is asked.
        """
        pull = Pull(agent_id, session=session, number=number, queues=queues, free_slots=free_slots, able=able)
        former = self._pulls.pop(agent_id, None)
        if former is not None and former.session == session and former.number > number:
            self._pulls[agent_id] = former
            pull.superseded = True
            return pull
        if former is not None:
            former.superseded = True
            former.wake()
        pull.superseded = self._closed
        self._pulls[agent_id] = pull  # at the end: whoever asked last is woken last
        return pull

    def leave(self, pull: Pull) -> None:
        """The pull has its answer."""
        if self._pulls.get(pull.agent_id) is pull:
            del self._pulls[pull.agent_id]

    def wake_agent(self, agent_id: str) -> None:
        """Something of one agent's own has changed."""
        pull = self._pulls.get(agent_id)
        if pull is not None:
            pull.wake()

    def freed(self, agent_id: str) -> None:
        """A run of the agent has ended."""
        pull = self._pulls.get(agent_id)
        if pull is not None and pull.capped:
            pull.wake()

    def offer(self, task_id: str, audience: Audience, *, room: int | None, now_s: float) -> None:
        """A task has `room` for so many more runs (None: for all of the audience)."""
        if room is None:
            self._wake(pull for pull in audience.present(self._pulls) if pull.takes)
            return
        self._audiences[task_id] = audience
        self.fill(task_id, room=room, now_s=now_s)

    def knows(self, task_id: str) -> bool:
        """Whether the audience of this task is known, so that `fill` can work."""
        return task_id in self._audiences

    def fill(self, task_id: str, *, room: int, now_s: float) -> None:
        """Room has become free in a known task's window: wake about as many agents, the others later if need be."""
        audience = self._audiences[task_id]
        chosen: list[Pull] = []
        parked = 0
        for pull in audience.present(self._pulls):
            if not pull.takes:
                continue
            chosen.append(pull)  # one that looks right now may have looked too early: it looks again, and counts not
            parked += pull.parked
            if parked >= room + SPARE:
                break
        self._wake(chosen)
        self._unfilled[task_id] = now_s + PATIENCE_S

    def served(self, task_id: str, agent_id: str) -> None:
        """The agent has taken its run of the task."""
        audience = self._audiences.get(task_id)
        if audience is not None:
            audience.served(agent_id)

    def forget(self, task_id: str) -> None:
        """The task has nothing to offer any more."""
        self._audiences.pop(task_id, None)
        self._unfilled.pop(task_id, None)

    def unfilled(self, now_s: float) -> list[str]:
        """Tasks whose freed room nobody may have taken in time; each is answered once."""
        late = [task_id for task_id, due_s in self._unfilled.items() if due_s <= now_s]
        for task_id in late:
            del self._unfilled[task_id]
        return late

    def wake_rest(self, task_id: str) -> None:
        """Wake all of a task's audience."""
        audience = self._audiences.get(task_id)
        if audience is not None:
            self._wake(audience.present(self._pulls))

    def close(self) -> None:
        """The master stops: end all pulls with an empty answer, and every later one at once."""
        self._closed = True
        for pull in list(self._pulls.values()):
            pull.superseded = True
            pull.wake()

    def _wake(self, pulls: Iterable[Pull]) -> None:
        self._bursts.extend(pulls)
        if not self._pacing:
            self._burst()
            if self._bursts:
                self._pacing = True
                gevent.spawn(self._pace)

    def _burst(self) -> None:
        for _ in range(min(BURST, len(self._bursts))):
            self._bursts.popleft().wake()

    def _pace(self) -> None:
        try:
            while self._bursts:
                gevent.sleep(0)
                self._burst()
        finally:
            self._pacing = False


class Waits:
    """Callers waiting for one of many things to happen, by its key."""

    def __init__(self) -> None:
        self._events: dict[str, list[Event]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._events.values()))

    def enter(self, key: str) -> Event:
        """Begin to wait: wakes from now on count. Every `enter` needs its `leave`."""
        event = Event()
        self._events.setdefault(key, []).append(event)
        return event

    def leave(self, key: str, event: Event) -> None:
        """Wait no longer."""
        waiting = self._events.get(key)
        if waiting is not None:
            waiting.remove(event)
            if not waiting:
                del self._events[key]

    def wake(self, key: str) -> None:
        """It happened."""
        for event in self._events.get(key, ()):
            event.set()

    def wake_all(self) -> None:
        """Let everybody look again: the master stops."""
        for events in self._events.values():
            for event in events:
                event.set()
