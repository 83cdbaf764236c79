"""The leases of all held runs, in memory: who holds what, until when, and what its holder must still be told.

A lease is a token that is checked on every act; the store keeps the token, this table the deadline. A master that
starts gives every stored lease its full length anew, and time in which the master stood still is added to all.
Whoever acts on an entry must have the store confirm it: the table may lag behind a commit, never the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from common.model import HELD_STATES, Run, RunState

Held = Sequence[Sequence[str]]
"""Pairs [run_id, lease] as an agent names them."""


class Lease:
    """One held run. `renewed_s`: engine second at which its holder was last heard to name it."""

    __slots__ = (
        "agent_id", "attempt", "begun", "cancel_reason", "lost_after_s", "renewed_s", "run_id", "task_id", "token",
        "told",
    )  # fmt: skip

    def __init__(self, run: Run, *, lost_after_s: float, now_s: float) -> None:
        self.run_id = run.id
        self.task_id = run.task_id
        self.agent_id = run.agent_id or ""
        self.attempt = run.attempt
        self.token = run.lease or ""
        self.begun = run.state is RunState.RUNNING
        self.cancel_reason = run.cancel_reason
        self.lost_after_s = lost_after_s
        self.renewed_s = now_s
        self.told = False  # a pull has carried the cancel to the agent; heartbeats repeat it anyway


class Leases:
    """All leases, by run and by agent. `begin_s`: how long a claimed run may wait for its begin; `lease_s`: how long
    a running one may go unnamed by an agent that speaks."""

    def __init__(self, *, begin_s: float, lease_s: float) -> None:
        self._begin_s = begin_s
        self._lease_s = lease_s
        self._by_run: dict[str, Lease] = {}
        self._by_agent: dict[str, dict[str, Lease]] = {}

    def __len__(self) -> int:
        return len(self._by_run)

    def get(self, run_id: str) -> Lease | None:
        """The lease of a held run."""
        return self._by_run.get(run_id)

    def of_agent(self, agent_id: str) -> list[Lease]:
        """The leases an agent holds."""
        return list(self._by_agent.get(agent_id, {}).values())

    def held_by(self, agent_id: str) -> int:
        """How many runs the agent holds."""
        return len(self._by_agent.get(agent_id, ()))

    def follow(self, run: Run, *, lost_after_s: float, now_s: float) -> None:
        """Take over what a commit made of a run: granted, begun, asked to end, or no longer held."""
        known = self._by_run.get(run.id)
        if run.state not in HELD_STATES:
            if known is not None:
                self._drop(known)
        elif known is None or known.token != run.lease:
            if known is not None:
                self._drop(known)
            self._add(Lease(run, lost_after_s=lost_after_s, now_s=now_s))
        else:
            if run.state is RunState.RUNNING and not known.begun:
                known.begun = True
                known.renewed_s = now_s
            known.cancel_reason = run.cancel_reason

    def renew(self, agent_id: str, held: Held, *, now_s: float) -> list[str]:
        """Renew what the agent names; answers the runs among them that it does not hold."""
        stale = []
        for run_id, token in held:
            lease = self._by_run.get(run_id)
            if lease is None or lease.token != token or lease.agent_id != agent_id:
                stale.append(run_id)
            else:
                lease.renewed_s = now_s
        return stale

    def renew_all(self, agent_id: str, *, now_s: float) -> None:
        """Give all leases of an agent their full length: it is back from a silence."""
        for lease in self._by_agent.get(agent_id, {}).values():
            lease.renewed_s = now_s

    def forget_told(self, agent_id: str) -> None:
        """The agent has started anew: nothing was told to this process yet."""
        for lease in self.of_agent(agent_id):
            lease.told = False

    def unnamed(self, agent_id: str, held: Held) -> list[Lease]:
        """Claimed runs the agent has not begun and does not name: the answer of their claim never reached it."""
        mine = self._by_agent.get(agent_id)
        if not mine:
            return []
        named = {run_id for run_id, _ in held}
        return [lease for lease in mine.values() if not lease.begun and lease.run_id not in named]

    def cancels(self, agent_id: str, *, untold: bool) -> list[tuple[str, str]]:
        """(run, why) of running runs that the agent must end; with `untold` each is answered once only."""
        found = []
        for lease in self._by_agent.get(agent_id, {}).values():
            if lease.cancel_reason is not None and lease.begun and not (untold and lease.told):
                lease.told = True
                found.append((lease.run_id, lease.cancel_reason))
        return found

    def overdue(self, now_s: float, silence_s: Callable[[str], float | None]) -> list[Lease]:
        """Leases that have run out. `silence_s(agent_id)`: None while the agent counts as heard, else for how long it
        has been silent; a begun run of a silent agent ends only by its task's `lost_after` (0: never)."""
        found = []
        for agent_id, leases in self._by_agent.items():
            silent_s = silence_s(agent_id)
            found += [lease for lease in leases.values() if self._over(lease, now_s, silent_s)]
        return found

    def still_overdue(
        self, leases: Iterable[Lease], now_s: float, silence_s: Callable[[str], float | None]
    ) -> list[Lease]:
        """Those of the leases found overdue earlier that nobody has renewed since."""
        return [lease for lease in leases if self._over(lease, now_s, silence_s(lease.agent_id))]

    def _over(self, lease: Lease, now_s: float, silent_s: float | None) -> bool:
        if not lease.begun:
            return now_s - lease.renewed_s >= self._begin_s
        if silent_s is None:
            return now_s - lease.renewed_s >= self._lease_s
        return 0 < lease.lost_after_s <= silent_s

    def drop(self, lease: Lease) -> None:
        """The store does not know this lease (any more)."""
        if self._by_run.get(lease.run_id) is lease:
            self._drop(lease)

    def shift(self, seconds: float, *, now_s: float) -> None:
        """The master stood still for so long: that is nobody's silence."""
        for lease in self._by_run.values():
            lease.renewed_s = min(lease.renewed_s + seconds, now_s)

    def load(self, runs: Iterable[tuple[Run, float]], *, now_s: float) -> None:
        """Take over the stored held runs, each with its task's `lost_after_s`, all at their full length."""
        for run, lost_after_s in runs:
            self.follow(run, lost_after_s=lost_after_s, now_s=now_s)

    def _add(self, lease: Lease) -> None:
        self._by_run[lease.run_id] = lease
        self._by_agent.setdefault(lease.agent_id, {})[lease.run_id] = lease

    def _drop(self, lease: Lease) -> None:
        del self._by_run[lease.run_id]
        mine = self._by_agent[lease.agent_id]
        del mine[lease.run_id]
        if not mine:
            del self._by_agent[lease.agent_id]
