"""How agents come in: a join token makes a key an agent's (enrol), and each process of it announces itself (register).

A token is good for one key and one day, a repeat gets the same answer. A key trusted by file gets its record when it
first registers. Two daemons with one identity are told apart by session and machine (`master.presence`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from common import ids, log
from common.auth import JoinToken as JoinWord
from common.auth import encode_join_token, token_hash
from common.config import Settings
from common.errors import Conflict, Forbidden, UnknownKey
from common.model import Agent, JoinToken, Role, TrustedKey, evolve
from common.rpc import Peer
from master.agents import Agents, saved, tell
from master.asks import About, EnrolAsk
from master.keys import Keys
from master.ledger import Ledger
from master.presence import Fleet, Presence
from master.rates import Rates
from master.runs import Change
from master.store.base import AGENT_PREFIX_LEAST, WriteTx

logger = logging.getLogger(__name__)

_NAME_MOST = 200
_ID_SHAPE = re.compile(r"[0-9a-f]{1,8}|[0-9a-f]{8}-[0-9a-f]{0,4}(-[0-9a-f]{0,4}){0,2}(-[0-9a-f]{0,12})?", re.IGNORECASE)
_FORMER_NAMES = 20


class Enrolment:
    """The use-cases. `endpoint` (known once the door is open) and `server_key` are what join tokens tell new hosts."""

    def __init__(
        self, ledger: Ledger, agents: Agents, fleet: Fleet, keys: Keys, settings: Settings,
        *, server_key: str,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._agents = agents
        self._fleet = fleet
        self._keys = keys
        self._settings = settings
        self.endpoint = ""
        self._server_key = server_key
        self._tries = Rates(settings.enrol_rate)

    def add_join_token(self) -> dict[str, Any]:
        """A fresh permission to enrol one host: {token, line, created_at_ms, expires_at_ms}."""
        secret = ids.secret_token()
        now = self._ledger.clock.now()
        age_s = self._settings.join_token_age
        stored = JoinToken(sha256=token_hash(secret), created_at_ms=now.wall_ms, expires_engine_s=now.engine_s + age_s)
        self._ledger.change(lambda change: change.tx.save_join_token(stored))
        word = encode_join_token(JoinWord(endpoint=self.endpoint, server_key=self._server_key, secret=secret))
        return {
            "token": word,
            "line": f"muster agent --join {word}",
            "created_at_ms": now.wall_ms,
            "expires_at_ms": now.wall_ms + round(age_s * 1000),
        }

    def enrol(self, peer: Peer, ask: EnrolAsk) -> dict[str, Any]:
        """Make the peer's key an agent's, by a join token: {agent_id, name}. Asking again gives the same answer."""
        self._tries.charge(peer.address, now_s=self._ledger.clock.now_s())
        public_key = peer.key or ""
        sha256 = token_hash(ask.secret)
        name = ask.name or ask.hostname

        def enrolled(change: Change) -> tuple[Agent, TrustedKey | None]:
            token = change.tx.get_join_token(sha256)
            if token is None:
                raise Forbidden("This join token is not known here: make a fresh one with `muster agent-token`.")
            if token.used_by == public_key and token.agent_id is not None:
                agent = change.tx.get_agent(token.agent_id)
                if agent is not None:
                    return agent, None
            if token.used_by is not None:
                raise Forbidden("This join token was used already: make a fresh one with `muster agent-token`.")
            if token.expires_engine_s <= change.now.engine_s:
                raise Forbidden("This join token has expired: make a fresh one with `muster agent-token`.")
            known = next((key for key in change.tx.list_keys() if key.public_key == public_key), None)
            if known is not None and known.revoked:
                raise UnknownKey("This key was revoked: remove the agent's state directory and join again.")
            agent = _new_agent(change, ids.uuid7(), name, hostname=ask.hostname, machine_id=ask.machine_id)
            key = TrustedKey(public_key=public_key, role=Role.AGENT, agent_id=agent.id, name=agent.name)
            change.tx.save_key(key)
            change.tx.save_join_token(evolve(token, used_by=public_key, agent_id=agent.id))
            return agent, key

        agent, key = self._ledger.change(enrolled)
        self._tries.refund(peer.address)
        if key is not None:
            self._keys.put(key)
            self._fleet.put(agent, now_s=self._ledger.clock.now_s())
            logger.info("agent enrolled", extra=log.fields(agent_id=agent.id, name=agent.name, address=peer.address))
        return {"agent_id": agent.id, "name": agent.name}

    def register(self, peer: Peer, about: About) -> Presence:
        """The process behind this key is its agent from now on. Raises `Conflict` when another one is."""
        key = self._keys.of(peer)
        if key is None:
            raise UnknownKey()
        presence = self._fleet.get(key.agent_id) if key.agent_id is not None else None
        if presence is None:
            presence = self._first_register(key, about)
        if not presence.admits(about.session, about.machine_id):
            self._refuse_rival(presence, about)
        first = about.session != presence.session
        presence.take_over(about.session, about.machine_id)
        self._agents.came_in(presence, about, afresh=first)
        self._update(presence, about, afresh=first)
        logger.info(
            "agent registered",
            extra=log.fields(agent_id=presence.agent.id, name=presence.agent.name, version=about.version),
        )
        return presence

    def _first_register(self, key: TrustedKey, about: About) -> Presence:
        """A key trusted by file speaks for the first time: it gets its record."""
        agent_id = key.agent_id or ids.uuid7()

        def add(change: Change) -> tuple[Agent, TrustedKey]:
            stored = next((k for k in change.tx.list_keys() if k.public_key == key.public_key), key)
            known = change.tx.get_agent(stored.agent_id) if stored.agent_id is not None else None
            if known is not None:
                return known, stored
            name = key.name or about.name or about.hostname
            agent = _new_agent(change, agent_id, name, hostname=about.hostname, machine_id=about.machine_id)
            bound = evolve(stored, agent_id=agent.id)
            change.tx.save_key(bound)
            return agent, bound

        agent, bound = self._ledger.change(add)
        self._keys.put(bound)
        return self._fleet.put(agent, now_s=self._ledger.clock.now_s())

    def _refuse_rival(self, presence: Presence, about: About) -> None:
        self._agents.found_rival(presence)
        raise Conflict(
            f"Another daemon speaks as the agent {presence.agent.name} (on {presence.agent.hostname}): stop one of the "
            "two, or give this host an identity of its own with a fresh join token and an empty state directory."
        )

    def _update(self, presence: Presence, about: About, *, afresh: bool) -> None:
        """Store what the agent announces about itself, if that is new."""
        agent_id, former_name = presence.agent.id, presence.agent.name

        def update(change: Change) -> Agent:
            stored = change.tx.get_agent(agent_id)
            if stored is None:
                raise UnknownKey()
            renamed = _free_name(change.tx, about.name, stored) if about.name else stored.name
            former = [n for n in (stored.name, stored.hostname) if n not in (renamed, about.hostname)]
            fresh = evolve(
                stored, name=renamed, hostname=about.hostname, machine_id=about.machine_id, boot_id=about.boot_id,
                slots=about.slots, queues=about.queues, facts=presence.facts, last_seen_at_ms=presence.heard_ms,
                labels=stored.labels if about.labels is None else _printable(about.labels),
                former_names=list(dict.fromkeys([*stored.former_names, *former]))[-_FORMER_NAMES:],
            )  # fmt: skip
            plain: dict[str, Any] = {"facts": {}, "last_seen_at_ms": None}
            if afresh or evolve(fresh, **plain) != evolve(stored, **plain):
                tell(change, agent_id)
            return saved(change, stored, fresh)

        agent = self._ledger.change(update)
        self._fleet.follow(agent, now_s=presence.heard_s)
        presence.saved_s = presence.heard_s
        if agent.name != former_name:  # from now on tasks that name it so come here
            logger.warning(
                "agent renamed itself",
                extra=log.fields(agent_id=agent_id, from_=former_name, to=agent.name, hostname=agent.hostname),
            )


def _new_agent(change: Change, agent_id: str, name: str, *, hostname: str, machine_id: str) -> Agent:
    """A record stored under the name, or under the name with the first free number behind it."""
    name = _clean(name) or _clean(hostname) or "agent"
    if _like_an_id(name):
        name = f"host-{name}"[:_NAME_MOST]
    unique, number = name, 1
    while _taken(change.tx, unique, by_other_than=agent_id):
        number += 1
        unique = f"{name}-{number}"
    agent = Agent(id=agent_id, name=unique, hostname=hostname, machine_id=machine_id, enrolled_at_ms=change.now.wall_ms)
    change.tx.save_agent(agent, expect=None)
    tell(change, agent.id)
    return agent


def _free_name(tx: WriteTx, wanted: str, agent: Agent) -> str:
    """The name an agent asks for, or the one it has when that is no name, could be meant as an id, or is or was
    another's: tasks that name the other must not come here."""
    name = _clean(wanted)
    if name == agent.name or not name or _like_an_id(name) or _taken(tx, name, by_other_than=agent.id):
        return agent.name
    return agent.name if any(was.id != agent.id for was in tx.agents_by_former_name(name)) else name


def _like_an_id(name: str) -> bool:
    """Whether a target of this name could be meant as an id or the beginning of one."""
    return len(name) >= AGENT_PREFIX_LEAST and _ID_SHAPE.fullmatch(name) is not None


def _taken(tx: WriteTx, name: str, *, by_other_than: str) -> bool:
    return any(found.name == name and found.id != by_other_than for found in tx.find_agents(name))


def _printable(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels as a person can send them back: what cannot be printed becomes U+FFFD."""
    return {_shown(name): _shown(value) for name, value in labels.items()}


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _clean(name: str) -> str:
    """What of it may be a name: printable, no space at its ends, no `*` or `,`, which targets could not spell."""
    return "".join(c for c in name if c.isprintable() and c not in "*,").strip()[:_NAME_MOST]
