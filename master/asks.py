"""What agents send, as records: read from plain maps, checked for shape and size, nothing decided.

Unknown fields are ignored, so that a newer agent may say more; a wrong one raises `InvalidRequest` that names it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from common.model import Ending, Record

Name = Annotated[str, msgspec.Meta(max_length=300)]
Token = Annotated[str, msgspec.Meta(max_length=100)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
HeldPairs = list[tuple[Token, Token]]
"""[run_id, lease] pairs."""
HeldTriples = list[tuple[Token, Count, Token]]
"""[run_id, attempt, lease] triples."""


class EnrolAsk(Record, frozen=True, kw_only=True):
    """A host that wants to become an agent."""

    secret: Name
    hostname: Name
    machine_id: Name
    version: Name = ""
    name: Name | None = None


class About(Record, frozen=True, kw_only=True):
    """An agent's process announces itself."""

    session: Token
    hostname: Name
    machine_id: Name
    boot_id: Name
    version: Name = ""
    name: Name | None = None
    agent_id: Token | None = None
    slots: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    queues: Annotated[list[Name], msgspec.Meta(max_length=1_000)] | None = None
    labels: Annotated[dict[Name, Name], msgspec.Meta(max_length=1_000)] | None = None
    facts: dict[str, Any] | None = None
    wall_ms: int | None = None
    held: HeldTriples = msgspec.field(default_factory=list)
    ended: HeldTriples = msgspec.field(default_factory=list)


class Beat(Record, frozen=True, kw_only=True):
    """A heartbeat."""

    session: Token
    held: HeldPairs = msgspec.field(default_factory=list)
    facts: dict[str, Any] | None = None
    wall_ms: int | None = None


class PullAsk(Record, frozen=True, kw_only=True):
    """An agent asks for work. `pull` numbers the pulls of a session."""

    session: Token
    pull: int
    free_slots: Count
    held: HeldPairs = msgspec.field(default_factory=list)
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0


class ResultTold(Record, frozen=True, kw_only=True):
    """How an attempt ended."""

    run_id: Token
    attempt: Count
    lease: Token
    ending: Ending


class Chunk(Record, frozen=True, kw_only=True):
    """Output of an attempt from `offset` on: bytes with their segments (stream number, length), or a gap."""

    run_id: Token
    attempt: Count
    lease: Token
    offset: Offset
    segments: list[tuple[int, int]] = msgspec.field(default_factory=list)
    data: bytes = b""
    gap: Offset = 0
