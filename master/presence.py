"""What the master remembers of each agent beyond its record: when it was last heard, which process speaks, its facts.

Pure memory, in engine seconds. A session is one process of an agent. One that was replaced and speaks on all the
same, or one on another machine while the first still speaks, is a rival: two daemons use one identity. Then neither
gets new work until one of them has been silent for as long as it takes to count as offline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from common.errors import InvalidRequest
from common.model import Agent, AgentState
from master.matching import Standing
from master.store.base import AGENT_PREFIX_LEAST

_FORMER_SESSIONS = 8


class Presence:
    """One agent as the master sees it now. `expect_s`: engine second after which silence makes it offline."""

    def __init__(self, agent: Agent, *, now_s: float, online: bool) -> None:
        self.agent = agent
        self.facts: dict[str, Any] = dict(agent.facts)
        self.heard_s = now_s
        self.heard_ms = agent.last_seen_at_ms
        self.expect_s = now_s
        self.saved_s = now_s
        self.online = online
        self.leaving = False  # being forgotten: no task may address it any more
        self.return_due = False  # it is back, and the store could not be told yet
        self.session: str | None = None
        self.machine_id: str | None = None
        self.former_sessions: deque[str] = deque(maxlen=_FORMER_SESSIONS)
        self.rival_s: float | None = None  # engine second at which a rival was last heard
        self.told_stale: set[str] = set()

    @property
    def state(self) -> AgentState:
        """How people and dispatch see it."""
        if self.rival_s is not None:
            return AgentState.CONFLICT
        if not self.online:
            return AgentState.OFFLINE
        return AgentState.DRAINING if self.agent.draining else AgentState.ONLINE

    @property
    def slots(self) -> int:
        """Runs it may hold: what a person set, else what it announced."""
        return self.agent.slots if self.agent.slots_set is None else self.agent.slots_set

    @property
    def labels(self) -> Mapping[str, str]:
        """What a person set, else what it announced."""
        return self.agent.labels if self.agent.labels_set is None else self.agent.labels_set

    def said(self) -> Iterator[str]:
        """What it may be found by."""
        yield self.agent.name
        yield self.agent.hostname
        yield from (f"{label}={value}" for label, value in self.labels.items())

    def admits(self, session: str, machine_id: str) -> bool:
        """Whether this process may be the agent from now on; False makes it a rival."""
        if self.session is None or session == self.session or not self.online:
            return True
        return session not in self.former_sessions and machine_id == self.machine_id

    def take_over(self, session: str, machine_id: str) -> None:
        """This process is the agent now."""
        if self.session is not None and self.session != session:
            self.former_sessions.append(self.session)
        if session in self.former_sessions:
            self.former_sessions.remove(session)
        if session != self.session:
            self.told_stale.clear()
        self.session = session
        self.machine_id = machine_id

    def untold_stale(self, stale: Iterable[str]) -> list[str]:
        """Those of the stale runs that no pull has named yet."""
        current = set(stale)
        fresh = [run_id for run_id in current if run_id not in self.told_stale]
        self.told_stale = current
        return fresh


class Fleet:
    """All enrolled agents, by id and by name."""

    def __init__(self) -> None:
        self._by_id: dict[str, Presence] = {}
        self._by_name: dict[str, Presence] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Presence]:
        return iter(list(self._by_id.values()))

    def ids(self) -> set[str]:
        """The ids of all agents that stay: not of those that are being forgotten."""
        return {agent_id for agent_id, presence in self._by_id.items() if not presence.leaving}

    def get(self, agent_id: str) -> Presence | None:
        """The agent with this id."""
        return self._by_id.get(agent_id)

    def put(self, agent: Agent, *, now_s: float, online: bool = False) -> Presence:
        """Take over a stored record, new or changed."""
        presence = self._by_id.get(agent.id)
        if presence is None:
            presence = self._by_id[agent.id] = Presence(agent, now_s=now_s, online=online)
        else:
            if self._by_name.get(presence.agent.name) is presence:
                del self._by_name[presence.agent.name]
            if agent.version >= presence.agent.version:
                presence.agent = agent
        self._by_name[presence.agent.name] = presence
        return presence

    def follow(self, agent: Agent, *, now_s: float) -> None:
        """Take over a changed record, unless the agent was forgotten since it was stored."""
        if agent.id in self._by_id:
            self.put(agent, now_s=now_s)

    def remove(self, agent_id: str) -> None:
        """The agent was forgotten."""
        presence = self._by_id.pop(agent_id, None)
        if presence is not None and self._by_name.get(presence.agent.name) is presence:
            del self._by_name[presence.agent.name]

    def find(self, text: str) -> list[Presence]:
        """The agent with this id or name; else all whose id begins with `text` (`AGENT_PREFIX_LEAST` characters)."""
        exact = self._by_id.get(text) or self._by_name.get(text)
        if exact is not None:
            return [exact]
        if len(text) < AGENT_PREFIX_LEAST:
            return []
        prefix = text.lower()
        return [presence for agent_id, presence in self._by_id.items() if agent_id.startswith(prefix)]

    def matching(self, states: Collection[AgentState] | None, text: str, *, after: str | None = None) -> list[Presence]:
        """By name: those in one of `states` (None: any) with `text` in their name, host name or a `label=value`, in any
        case; `after`: only those whose name comes behind it."""
        wanted = text.casefold()
        found = [
            presence
            for presence in self._by_id.values()
            if (after is None or presence.agent.name > after)
            and (states is None or presence.state in states)
            and (not wanted or any(wanted in said.casefold() for said in presence.said()))
        ]
        return sorted(found, key=lambda presence: presence.agent.name)

    def named(self, text: str) -> list[str]:
        """The ids of the agents with `text` in their name, in any case."""
        wanted = text.casefold()
        return [agent_id for agent_id, known in self._by_id.items() if wanted in known.agent.name.casefold()]

    def resolve(self, text: str, *, field: str) -> Presence:
        """The one agent that `text` names; raises `InvalidRequest` naming the field."""
        found = [presence for presence in self.find(text) if not presence.leaving]
        if not found:
            raise InvalidRequest.of(field, f"no agent has the id or name {text[:100]!r}")
        if len(found) > 1:
            names = ", ".join(sorted(presence.agent.name for presence in found)[:5])
            raise InvalidRequest.of(field, f"{text[:100]!r} begins the ids of {len(found)} agents ({names}, …)")
        return found[0]

    def standing(self, presence: Presence, *, held: int) -> Standing:
        """How the agent stands, for a verdict."""
        queues = presence.agent.queues
        return Standing(
            agent_id=presence.agent.id,
            name=presence.agent.name,
            state=presence.state,
            slots=presence.slots,
            held=held,
            queues=None if queues is None else frozenset(queues),
            last_seen_ms=presence.heard_ms,
        )

    def shift(self, seconds: float, *, now_s: float) -> None:
        """The master stood still for so long: that is nobody's silence."""
        for presence in self._by_id.values():
            span_s = presence.expect_s - presence.heard_s
            presence.heard_s = min(presence.heard_s + seconds, now_s)
            presence.expect_s = min(presence.expect_s + seconds, now_s + span_s)
            if presence.rival_s is not None:
                presence.rival_s = min(presence.rival_s + seconds, now_s)
