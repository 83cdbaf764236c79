"""Becoming an agent of a master: once, with a join token, from the host's own side.

The key is made and kept before the master hears of it, so a lost answer or a crash costs nothing: the same key asking
again gets the same answer. What a person has to mend (a wrong, used or expired token) is told at once in the master's
words; everything else is tried again until it works.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gevent

from agent.identity import AgentHome, Host, Identity
from agent.link import Caller
from common import auth, log
from common.backoff import Backoff
from common.errors import Busy, Conflict, Forbidden, MusterError, ProtocolError, RateLimited, Unavailable, UnknownKey
from common.model import evolve
from common.version import VERSION

logger = logging.getLogger(__name__)

_CALL_TIMEOUT_S = 15.0
_PASSING = (Unavailable, Busy, RateLimited)
Connect = Callable[[Identity, auth.KeyPair], Caller]


def join(home: AgentHome, token: str, *, host: Host, name: str | None, connect: Connect) -> Identity:
    """The identity that `token` gives this state directory, kept there; one that is there already stays.

    Raises `InvalidRequest` for what is no token, `Conflict` when the directory belongs to another master, and what
    the master answers to a token it does not take. Waits for the master as long as it takes.
    """
    ticket = auth.decode_join_token(token)
    fresh = Identity(endpoint=with_transport(ticket.endpoint), master_key=ticket.server_key, name=name)
    present = home.load()
    if present is not None and present.agent_id is not None:
        if present.master_key != fresh.master_key:
            raise Conflict(
                f"{home.path} belongs to agent {present.name or present.agent_id} of the master at "
                f"{present.endpoint.removeprefix('tcp://')}: give this agent another directory with --state, "
                "or remove that one if the agent there is not needed any more."
            )
        moved = evolve(present, endpoint=fresh.endpoint)
        if _known(moved, home.key_pair(), connect):
            logger.info("enrolled already", extra=log.fields(name=present.name, agent_id=present.agent_id))
            home.save(moved)
            return moved
        # Forgotten or revoked: the old key will never be taken again.
        auth.save_key_pair(home.key_file, auth.new_key_pair())
    return _enrol(home, fresh, ticket.secret, host=host, connect=connect)


def with_transport(endpoint: str) -> str:
    """`HOST:PORT` as the transport wants it."""
    return endpoint if "://" in endpoint else f"tcp://{endpoint}"


def _enrol(home: AgentHome, fresh: Identity, secret: str, *, host: Host, connect: Connect) -> Identity:
    keys = auth.load_or_create_key_pair(home.key_file)
    request = {
        "secret": secret,
        "name": fresh.name,
        "hostname": host.hostname,
        "machine_id": host.machine_id,
        "version": VERSION,
    }
    answer = _ask(connect(fresh, keys), "enrol", request)
    agent_id, name = answer.get("agent_id"), answer.get("name")
    if not (isinstance(agent_id, str) and isinstance(name, str)):
        raise ProtocolError("The master's answer to enrol names no agent.")
    enrolled = evolve(fresh, agent_id=agent_id, name=name)
    home.save(enrolled)
    logger.info("enrolled", extra=log.fields(name=name, agent_id=agent_id, master=fresh.endpoint))
    return enrolled


def _known(identity: Identity, keys: auth.KeyPair, connect: Connect) -> bool:
    """Whether the master still takes this key: a heartbeat of no session changes nothing there."""
    try:
        _ask(connect(identity, keys), "heartbeat", {"session": "", "held": [], "wall_ms": 0})
    except UnknownKey:
        return False
    except Forbidden:
        return False
    except MusterError:
        return True  # it may not like the question, but it knows who asks
    return True


def _ask(client: Caller, method: str, request: dict[str, Any]) -> dict[str, Any]:
    backoff = Backoff(base_s=0.5, cap_s=15.0)
    told: str | None = None
    client.start()
    try:
        while True:
            try:
                answer = client.call(method, request, timeout_s=_CALL_TIMEOUT_S)
                break
            except _PASSING as error:
                if told != error.message:
                    told = error.message
                    logger.warning("not enrolled yet", extra=log.fields(reason=error.message))
                gevent.sleep(backoff.next_s())
    finally:
        client.stop()
    if not isinstance(answer, dict):
        raise ProtocolError(f"The master's answer to {method} is not a map.")
    return answer
