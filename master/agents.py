"""Agents while they are known: heard, gone silent, back, and what people do with them (label, drain, forget).

The record is in the store, liveness in memory (`master.presence`). Promises: silence removes nothing; whoever calls
from the receive loop (`heard`, `beat`) never waits; a forgotten agent's key is cut at its next message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import gevent

from common import log
from common.config import Settings
from common.errors import Conflict, FieldError, InvalidRequest, MusterError, NotFound
from common.model import FINAL_STATES, Agent, AgentState, Run, RunState, evolve
from common.requests import LABEL_MOST, LABELS_MOST
from master.asks import About, Beat, known_facts
from master.keys import Keys
from master.leases import Leases
from master.ledger import Ledger
from master.lifecycle import Cancel, Heard, LeaseEnd, Silent
from master.presence import Fleet, Presence
from master.runs import SLICE, Change
from master.samples import Samples
from master.waiting import Pulls

logger = logging.getLogger(__name__)


class Agents:
    """The use-cases of known agents."""

    def __init__(
        self, ledger: Ledger, fleet: Fleet, leases: Leases, pulls: Pulls, keys: Keys, settings: Settings,
        *, samples: Samples,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._fleet = fleet
        self._leases = leases
        self._pulls = pulls
        self._keys = keys
        self._settings = settings
        self._samples = samples
        self._untold: set[str] = set()  # changed in memory alone; the feed does not say so yet

    def take_over(self, agents: Sequence[Agent], *, silent: set[str], now_s: float, last_commit_ms: int) -> None:
        """After a start: all known agents. One that was heard about until the last commit counts as online until it
        has had its time to speak; the others, and those with runs marked `silent`, as offline."""
        idle_s = self._settings.offline_after * self._settings.heartbeat_idle
        for agent in agents:
            quiet_s = (last_commit_ms - (agent.last_seen_at_ms or 0)) / 1000
            online = agent.last_seen_at_ms is not None and quiet_s <= self._settings.facts_interval + idle_s
            online = online and agent.id not in silent
            presence = self._fleet.put(agent, now_s=now_s, online=online)
            presence.expect_s = now_s + idle_s

    # -- being heard, and not ------------------------------------------------------------------------------------------

    def heard(self, presence: Presence, *, holding: bool) -> None:
        """Any word of an agent: it is there. Never waits; what follows from a return is stored in the background."""
        now = self._ledger.clock.now()
        interval_s = self._settings.heartbeat if holding else self._settings.heartbeat_idle
        presence.heard_s = now.engine_s
        presence.heard_ms = now.wall_ms
        presence.expect_s = now.engine_s + self._settings.offline_after * interval_s
        if not presence.online:
            presence.online = True
            self._leases.renew_all(presence.agent.id, now_s=now.engine_s)
            self.note_state(presence, AgentState.OFFLINE)
            gevent.spawn(self._returned, presence)

    def beat(self, presence: Presence, beat: Beat) -> list[str]:
        """A heartbeat of the process that registered: the runs it names but does not hold. Never waits."""
        self.heard(presence, holding=bool(beat.held))
        facts = known_facts(beat.facts)
        self._note_facts(presence, facts, beat.wall_ms)
        if facts is not None:
            self._samples.note(presence.agent.id, facts, self._ledger.clock.now())
        return self._leases.renew(presence.agent.id, beat.held, now_s=presence.heard_s)

    def came_in(self, presence: Presence, about: About, *, afresh: bool) -> None:
        """A process registered; `afresh`: it is another one than before, and was told nothing yet."""
        if afresh:
            self._leases.forget_told(presence.agent.id)
        self.heard(presence, holding=bool(about.held))
        self._note_facts(presence, known_facts(about.facts), about.wall_ms)

    def _note_facts(self, presence: Presence, facts: dict[str, Any] | None, wall_ms: int | None) -> None:
        if facts is not None:
            presence.facts = facts
        if wall_ms is not None:
            skew_s = (wall_ms - self._ledger.clock.now().wall_ms) / 1000
            presence.facts = {**presence.facts, "clock_skew": round(skew_s, 3)}

    def _returned(self, presence: Presence) -> None:
        agent_id, heard_ms = presence.agent.id, presence.heard_ms

        def hear(change: Change) -> Agent | None:
            for run in change.tx.runs_held(agent_id):
                if run.silent_since_ms is not None:
                    change.move(run, Heard())
            tell(change, agent_id)
            stored = change.tx.get_agent(agent_id)
            return None if stored is None else saved(change, stored, evolve(stored, last_seen_at_ms=heard_ms))

        try:
            stored = self._ledger.change(hear)
        except MusterError as error:
            presence.return_due = True
            logger.warning("return not stored, tried again", extra=log.fields(agent_id=agent_id, why=error.message))
            return
        if stored is not None:
            self._fleet.follow(stored, now_s=presence.heard_s)

    def _store_returns(self) -> None:
        for presence in self._fleet:
            if presence.return_due:
                presence.return_due = False
                if presence.online:  # else it is silent again, as the store says
                    self._returned(presence)

    def silence_s(self, agent_id: str) -> float | None:
        """For how long an offline agent has been silent; None while it counts as heard."""
        presence = self._fleet.get(agent_id)
        if presence is None:
            return float("inf")
        return None if presence.online else self._ledger.clock.now_s() - presence.heard_s

    def judge(self, now_s: float) -> list[Presence]:
        """Agents that have missed too many heartbeats and count as offline from now on. Memory only, never waits."""
        gone = []
        rival_after_s = self._settings.offline_after * self._settings.heartbeat_idle
        for presence in self._fleet:
            if presence.rival_s is not None and now_s - presence.rival_s > rival_after_s:
                presence.rival_s = None
                self.note_state(presence, AgentState.CONFLICT)
                self._untold.add(presence.agent.id)
            if presence.online and now_s > presence.expect_s:
                former = presence.state
                presence.online = False
                gone.append(presence)
                self.note_state(presence, former, level=logging.WARNING)
        return gone

    def store_silence(self, gone: Sequence[Presence]) -> None:
        """Store that these agents have gone silent, in their records and in their begun runs."""

        def silence(change: Change) -> list[Agent]:
            stored = [change.tx.get_agent(presence.agent.id) for presence in gone]
            for presence in gone:
                for run in change.tx.runs_held(presence.agent.id):
                    if run.state is RunState.RUNNING:
                        change.move(run, Silent(since_ms=presence.heard_ms or change.now.wall_ms))
                tell(change, presence.agent.id)
            return [
                saved(change, agent, evolve(agent, last_seen_at_ms=presence.heard_ms, facts=presence.facts))
                for agent, presence in zip(stored, gone, strict=True)
                if agent is not None
            ]

        for agent in self._ledger.change(silence):
            self._fleet.follow(agent, now_s=self._ledger.clock.now_s())

    def found_rival(self, presence: Presence) -> None:
        """Two daemons speak as this agent: it gets nothing new until one of them is silent. Never waits."""
        former, fresh = presence.state, presence.rival_s is None
        presence.rival_s = self._ledger.clock.now_s()
        if fresh:
            self.note_state(presence, former, level=logging.WARNING)
            self._untold.add(presence.agent.id)

    def tell_changes(self) -> None:
        """Append to the feed which agents have changed in memory alone."""
        untold, self._untold = self._untold, set()
        if not untold:
            return

        def append(change: Change) -> None:
            for agent_id in untold:
                tell(change, agent_id)

        try:
            self._ledger.change(append)
        except BaseException:
            self._untold |= untold
            raise

    def save_facts(self, now_s: float, *, most: int) -> int:
        """Store the newest facts of agents whose stored ones are old; answers how many. And what could not be stored
        when an agent came back."""
        self._store_returns()
        due = [
            presence
            for presence in self._fleet
            if presence.heard_s > presence.saved_s and now_s - presence.saved_s >= self._settings.facts_interval
        ][:most]
        if not due:
            return 0

        def save(change: Change) -> list[Agent]:
            agents = []
            for presence in due:
                stored = change.tx.get_agent(presence.agent.id)
                if stored is not None:
                    fresh = evolve(stored, facts=presence.facts, last_seen_at_ms=presence.heard_ms)
                    agents.append(saved(change, stored, fresh))
            return agents

        for agent in self._ledger.change(save):
            self._fleet.follow(agent, now_s=now_s)
        for presence in due:
            presence.saved_s = now_s
        return len(due)

    # -- what people do ------------------------------------------------------------------------------------------------

    def find(self, text: str) -> Presence:
        """The agent with this id, name or unambiguous id prefix. Raises `NotFound`."""
        found = self._fleet.find(text)
        if len(found) != 1:
            why = "no agent has this id or name" if not found else f"{len(found)} agents' ids begin with it"
            raise NotFound(f"{text[:100]!r}: {why}.")
        return found[0]

    def samples(self, text: str) -> dict[str, Any]:
        """The last hour of the agent's load (`Samples.view`). Raises `NotFound`."""
        return self._samples.view(self.find(text).agent.id, self._ledger.clock.now())

    def patch(self, text: str, changes: dict[str, Any]) -> Presence:
        """Set `labels` (all of them; null: those the agent announces) and `slots` (null: as announced)."""
        fields: dict[str, Any] = {}
        for name, value in changes.items():
            if name == "labels":
                fields["labels_set"] = _checked_labels(value)
            elif name == "slots":
                if value is not None and (type(value) is not int or not 1 <= value <= 100_000):
                    raise InvalidRequest.of("slots", "must be a number from 1 to 100000, or null for what it announces")
                fields["slots_set"] = value
            else:
                raise InvalidRequest.of(name[:100], "this field is not known")
        return self._set(self.find(text), **fields)

    def drain(self, text: str) -> Presence:
        """Let the agent finish what it holds and give it nothing new."""
        return self._set(self.find(text), draining=True)

    def resume(self, text: str) -> Presence:
        """Give a drained agent work again. Raises `Conflict` when its key was revoked."""
        presence = self.find(text)
        if self._keys.revoked(presence.agent.id):
            raise Conflict(
                f"The key of {presence.agent.name} was revoked: join its host again with a fresh token from "
                "`muster agent-token`, and forget this record."
            )
        return self._set(presence, draining=False)

    def _set(self, presence: Presence, *, before: Callable[[Change], None] | None = None, **fields: Any) -> Presence:
        agent_id = presence.agent.id
        former = presence.state

        def change_record(change: Change) -> Agent:
            if before is not None:
                before(change)
            stored = change.tx.get_agent(agent_id)
            if stored is None:
                raise NotFound(f"{agent_id}: no agent has this id.")
            fresh = saved(change, stored, evolve(stored, **fields))
            if fresh is not stored or before is not None:
                tell(change, agent_id)
            return fresh

        self._fleet.follow(self._ledger.change(change_record), now_s=presence.heard_s)
        if presence.state is not former:
            self.note_state(presence, former)
        self._pulls.wake_agent(agent_id)
        return presence

    def revoke(self, text: str) -> Presence:
        """Refuse the agent's key from its next message on, whether it is online or not. Its record and runs stay: what
        it had begun is lost once it has been silent for as long as the task allows. Should the store refuse, the key is
        refused all the same until the master starts anew: say it again."""
        presence = self.find(text)
        agent_id = presence.agent.id

        def refuse(change: Change) -> None:
            for key in change.tx.list_keys():
                if key.agent_id == agent_id and not key.revoked:
                    change.tx.save_key(evolve(key, revoked=True))

        # Memory first, and without waiting: a pull that came before, parked or claiming, takes nothing along.
        self._keys.revoke_agent(agent_id)
        self._pulls.leave(self._pulls.enter(agent_id, session="", number=0, queues=None))
        logger.warning("agent revoked", extra=log.fields(agent_id=agent_id, name=presence.agent.name))
        return self._set(presence, before=refuse, draining=True)

    def forget(self, text: str) -> None:
        """Remove an offline agent, its key and its runs' hope. Raises `Conflict` while it is online."""
        presence = self.find(text)
        if presence.state is not AgentState.OFFLINE:
            raise Conflict(
                f"{presence.agent.name} is {presence.state.value}: stop its daemon and wait until it is offline."
            )
        presence.leaving = True  # no task can name it and no retry reopens its runs from here on
        try:
            self._end_and_remove(presence)
        except BaseException:
            presence.leaving = False
            raise
        self._keys.forget_agent(presence.agent.id)
        self._fleet.remove(presence.agent.id)
        self._samples.forget(presence.agent.id)
        logger.info("agent forgotten", extra=log.fields(agent_id=presence.agent.id, name=presence.agent.name))

    def _end_and_remove(self, presence: Presence) -> None:
        """End its runs slice by slice; the record goes in the transaction that finds none left."""
        agent_id = presence.agent.id
        gone = False
        while not gone:
            if presence.online:
                raise Conflict(f"{presence.agent.name} has come back: stop its daemon first.")
            gone = self._ledger.change(lambda change: _end_slice(change, agent_id))

    def note_state(self, presence: Presence, former: AgentState, *, level: int = logging.INFO) -> None:
        """Log that the agent's state was `former` and is another one now."""
        agent = presence.agent
        log.change(logger, "agent", from_=former, to=presence.state, level=level, agent_id=agent.id, name=agent.name)


def saved(change: Change, stored: Agent, fresh: Agent) -> Agent:
    """The changed record, stored; the very same object when nothing differs."""
    if fresh == stored:
        return stored
    agent = evolve(fresh, version=stored.version + 1)
    change.tx.save_agent(agent, expect=stored.version)
    return agent


def tell(change: Change, agent_id: str) -> None:
    """Append to the feed that people see this agent otherwise than before: its row names it where others name a run."""
    change.event("agent", task_id=None, run_id=agent_id)


def _end_slice(change: Change, agent_id: str) -> bool:
    """End some runs of an agent that goes, or remove it when none is left; whether it is gone. A submit or a retry that
    found the agent while it stayed may store runs between the slices, but none behind the last look."""
    runs = change.tx.open_runs_of_agent(agent_id, limit=SLICE)
    _end_some(change, runs)
    if runs:
        return False
    change.tx.forget_agent(agent_id)
    tell(change, agent_id)
    return True


def _end_some(change: Change, runs: Sequence[Run]) -> None:
    """Begun runs are lost, addressed ones cancelled, the others may go to another agent."""
    for run_id in [run.id for run in runs]:
        run = change.tx.get_run(run_id)  # what one of them brought about may have ended the next
        if run is None or run.state in FINAL_STATES:
            continue
        if run.state in (RunState.LEASED, RunState.RUNNING):
            run = change.move(run, LeaseEnd())
        if run.addressed and run.state not in FINAL_STATES:
            change.move(run, Cancel("agent_forgotten"))


def _checked_labels(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > LABELS_MOST:
        raise InvalidRequest.of("labels", f"must be an object of at most {LABELS_MOST} texts")
    faults = [
        FieldError(
            f"labels.{str(key)[:60]}", f"name and value must be printable texts of at most {LABEL_MOST} characters"
        )
        for key, text in value.items()
        if not (isinstance(key, str) and isinstance(text, str) and 0 < len(key) <= LABEL_MOST >= len(text))
        or not (key.isprintable() and text.isprintable())
    ]
    if faults:
        raise InvalidRequest("; ".join(f"{f.field}: {f.message}" for f in faults), fields=faults)
    return dict(value)
