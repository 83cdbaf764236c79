"""What agents send, as records: decoded straight from the message, bounded in size and number, nothing decided.

Unknown fields are ignored, so that a newer agent may say more; a wrong one raises `InvalidRequest` that names it.
A list that is too long is refused by its head, before anything in it is decoded. Facts are for people only: what is
wrong among them is left out and refuses nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from common.model import Ending, Record

Name = Annotated[str, msgspec.Meta(max_length=300)]
Token = Annotated[str, msgspec.Meta(max_length=100)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
WallMs = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
HELD_MOST = 10_000
"""Runs one agent may name in one call."""
PULL_MOST = 64
"""Runs one pull brings at most; an agent with more room pulls again."""
_BATCH_MOST = 1_000
_SEGMENTS_MOST = 1 << 19  # a script may change its stream with every byte
_SAID_MOST = 16 * 1024
_FACT_MOST = 1 << 62
HeldPairs = Annotated[list[tuple[Token, Token]], msgspec.Meta(max_length=HELD_MOST)]
"""[run_id, lease] pairs."""
HeldTriples = Annotated[list[tuple[Token, Count, Token]], msgspec.Meta(max_length=HELD_MOST)]
"""[run_id, attempt, lease] triples."""

_Text = Annotated[str, msgspec.Meta(max_length=300)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=_FACT_MOST)]
_Number = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Facts(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent may say of its host, by the names of the REST contract."""

    os: _Text | None = None
    kernel: _Text | None = None
    arch: _Text | None = None
    cpus: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    cpu_percent: _Number | None = None
    load: Annotated[list[_Number], msgspec.Meta(max_length=8)] | None = None
    memory_total: _Size | None = None
    memory_used: _Size | None = None
    disk_free: _Size | None = None
    addresses: Annotated[list[Annotated[str, msgspec.Meta(max_length=100)]], msgspec.Meta(max_length=64)] | None = None
    boot_at: Annotated[str, msgspec.Meta(max_length=40)] | None = None
    version: Annotated[str, msgspec.Meta(max_length=100)] | None = None


_NOTHING = msgspec.Raw()
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_FACTS = msgspec.msgpack.Decoder(Facts)
_LOOSE_FACTS = msgspec.msgpack.Decoder(dict[str | int | None, msgspec.Raw])
_FACT_DECODERS = {field.name: msgspec.msgpack.Decoder(field.type) for field in msgspec.structs.fields(Facts)}


def known_facts(said: msgspec.Raw) -> dict[str, Any] | None:
    """The facts among what an agent said that are known and right; None when it said nothing that could be read."""
    if not 0 < memoryview(said).nbytes <= _SAID_MOST:
        return None
    try:
        facts = _FACTS.decode(said)
    except _UNREADABLE:
        return _right_facts(said)
    found: dict[str, Any] = msgspec.to_builtins(facts)
    return found


def _right_facts(said: msgspec.Raw) -> dict[str, Any] | None:
    try:
        each = _LOOSE_FACTS.decode(said)
    except _UNREADABLE:
        return None
    found: dict[str, Any] = {}
    for name, decoder in _FACT_DECODERS.items():
        raw = each.get(name)
        if raw is None:
            continue
        try:
            value = decoder.decode(raw)
        except _UNREADABLE:
            continue
        if value is not None:
            found[name] = value
    return found


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
    facts: msgspec.Raw = _NOTHING
    wall_ms: WallMs | None = None
    held: HeldTriples = msgspec.field(default_factory=list)
    ended: HeldTriples = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        said = [*(self.queues or ()), *(self.labels or ()), *(self.labels or {}).values()]
        if sum(map(len, said)) > _SAID_MOST:  # every view of the agent carries them
            raise ValueError(f"queues and labels have more than {_SAID_MOST} characters")


class Beat(Record, frozen=True, kw_only=True):
    """A heartbeat."""

    session: Token
    held: HeldPairs = msgspec.field(default_factory=list)
    facts: msgspec.Raw = _NOTHING
    wall_ms: WallMs | None = None


class PullAsk(Record, frozen=True, kw_only=True):
    """An agent asks for work. `pull` numbers the pulls of a session."""

    session: Token
    pull: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
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
    segments: Annotated[list[tuple[int, int]], msgspec.Meta(max_length=_SEGMENTS_MOST)] = msgspec.field(
        default_factory=list
    )
    data: bytes = b""
    gap: Offset = 0


Chunks = Annotated[list[Chunk], msgspec.Meta(max_length=_BATCH_MOST)]
ResultsTold = Annotated[list[ResultTold], msgspec.Meta(max_length=_BATCH_MOST)]
