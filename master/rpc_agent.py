"""The agents' door: the table of methods that agents may call, and the shape of what they say. No logic.

Arguments come decoded and checked (`master.asks`). Each method finds out which agent the key speaks for, and hands
over to a use-case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.config import Settings
from common.errors import Conflict
from common.model import evolve
from common.rpc import Method, Peer, current_call
from master.agents import Agents
from master.asks import (
    HELD_MOST,
    PULL_MOST,
    About,
    Beat,
    Chunks,
    EnrolAsk,
    HeldPairs,
    Offset,
    PullAsk,
    ResultsTold,
    Token,
)
from master.blobs import Submissions
from master.dispatch import Dispatch
from master.enrolment import Enrolment
from master.keys import Keys
from master.leases import Leases
from master.outputs import Outputs
from master.presence import Fleet, Presence
from master.results import Results

_REGISTER = {"cancel": [], "stale": [], "register": True}


class AgentDoor:
    """The methods; `table()` is what the server gets."""

    def __init__(
        self,
        *,
        keys: Keys,
        fleet: Fleet,
        leases: Leases,
        agents: Agents,
        enrolment: Enrolment,
        dispatch: Dispatch,
        outputs: Outputs,
        results: Results,
        submissions: Submissions,
        settings: Settings,
    ) -> None:
        self._keys = keys
        self._fleet = fleet
        self._leases = leases
        self._agents = agents
        self._enrolment = enrolment
        self._dispatch = dispatch
        self._outputs = outputs
        self._results = results
        self._submissions = submissions
        self._settings = settings

    def table(self) -> Mapping[str, Method]:
        """Name → method. The heartbeat touches memory only and is served in the receive loop."""
        return {
            "enrol": Method(self.enrol, takes=tuple[EnrolAsk]),
            "register": Method(self.register, takes=tuple[About]),
            "heartbeat": Method(self.heartbeat, inline=True, takes=tuple[Beat]),
            "pull_task": Method(self.pull_task, on_unroutable=self.pull_lost, takes=tuple[PullAsk]),
            "begin": Method(self.begin, takes=tuple[HeldPairs]),
            "release": Method(self.release, takes=tuple[HeldPairs]),
            "output": Method(self.output, takes=tuple[Chunks]),
            "result": Method(self.result, takes=tuple[ResultsTold]),
            "blob": Method(self.blob, takes=tuple[Token, Offset]),
        }

    def enrol(self, peer: Peer, ask: EnrolAsk) -> dict[str, Any]:
        """Become an agent by a join token."""
        return self._enrolment.enrol(peer, ask)

    def register(self, peer: Peer, told: About) -> dict[str, Any]:
        """A process of an agent announces itself."""
        presence = self._enrolment.register(peer, told)
        agent = presence.agent
        named = [(run_id, lease) for run_id, _, lease in [*told.held, *told.ended]]
        drop = self._leases.renew(agent.id, named, now_s=presence.heard_s)
        unnamed = self._leases.unnamed(agent.id, named)
        self._dispatch.give_back(agent.id, [(lease.run_id, lease.token) for lease in unnamed])
        begun = [lease for lease in self._leases.of_agent(agent.id) if lease.begun]
        return {
            "agent_id": agent.id,
            "name": agent.name,
            "settings": self._terms(),
            "running": [
                [lease.run_id, lease.attempt, lease.token, self._outputs.size(lease.run_id, lease.attempt)]
                for lease in begun
            ],
            "drop": drop,
            "slots": presence.slots,
        }

    def _terms(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "heartbeat_s": settings.heartbeat,
            "heartbeat_idle_s": settings.heartbeat_idle,
            "lease_s": settings.lease,
            "begin_lease_s": settings.begin_lease,
            "pull_wait_s": settings.pull_wait,
            "output_chunk": settings.output_chunk,
            "output_window": settings.output_window,
        }

    def heartbeat(self, peer: Peer, told: Beat) -> dict[str, Any]:
        """A sign of life: what the agent should know about the runs it names."""
        presence = self._known(peer)
        if presence is None or presence.session != told.session:
            return {**_REGISTER, "draining": False}
        stale = self._agents.beat(presence, told)
        return {
            "cancel": self._leases.cancels(presence.agent.id, untold=False),
            "stale": stale,
            "register": False,
            "draining": presence.agent.draining,
            "slots": presence.slots,
        }

    def pull_task(self, peer: Peer, told: PullAsk) -> dict[str, Any]:
        """Wait for work."""
        presence = self._known(peer)
        if presence is None:
            return {"runs": [], **_REGISTER}
        # As many as it may still name in one call, and no more than it announced, whatever it says now.
        spare = HELD_MOST // 2 - self._leases.held_by(presence.agent.id)
        told = evolve(told, free_slots=max(0, min(told.free_slots, PULL_MOST, presence.slots, spare)))
        call = current_call()
        return self._dispatch.pull(presence, told, remaining_s=None if call is None else call.remaining_s)

    def pull_lost(self, peer: Peer, method: str, answer: Any) -> None:
        """A pull's answer reached nobody."""
        presence = self._known(peer)
        if presence is not None:
            self._dispatch.unroutable(presence.agent.id, answer)

    def begin(self, peer: Peer, runs: HeldPairs) -> list[dict[str, Any]]:
        """Ask for leave to fork."""
        return self._dispatch.begin(self._heard(peer), runs)

    def release(self, peer: Peer, runs: HeldPairs) -> bool:
        """Give back what was not begun."""
        self._dispatch.give_back(self._speaker(peer), runs)
        self._heard(peer)
        return True

    def output(self, peer: Peer, chunks: Chunks) -> dict[str, Any]:
        """Hand in output."""
        return self._outputs.append(self._heard(peer), chunks)

    def result(self, peer: Peer, results: ResultsTold) -> list[dict[str, Any]]:
        """Tell how attempts ended."""
        answers = self._results.take(self._speaker(peer), results)
        self._heard(peer)  # after it: one that holds nothing any more is expected less often
        return answers

    def blob(self, peer: Peer, sha256: Token, offset: Offset) -> dict[str, Any]:
        """Fetch a piece of a large script."""
        return self._submissions.piece(self._heard(peer), sha256, offset)

    def _known(self, peer: Peer) -> Presence | None:
        agent_id = self._keys.agent_of(peer)
        return None if agent_id is None else self._fleet.get(agent_id)

    def _speaker(self, peer: Peer) -> str:
        presence = self._known(peer)
        if presence is None:
            raise Conflict("Register first.")
        return presence.agent.id

    def _heard(self, peer: Peer) -> str:
        """The agent that speaks; its word is a sign of life."""
        agent_id = self._speaker(peer)
        presence = self._fleet.get(agent_id)
        if presence is not None:
            self._agents.heard(presence, holding=self._leases.held_by(agent_id) > 0)
        return agent_id
