"""Agents, keys, tokens, blobs and the change feed: rare or small things, in plain SQL."""

from __future__ import annotations

import sqlite3
from typing import Any

from common import wire
from common.errors import Conflict, VersionConflict
from common.model import Agent, ApiToken, FeedEvent, JoinToken, LoginLink, Role, TokenKind, TrustedKey
from master.store.base import AGENT_PREFIX_LEAST
from master.store.reads import AFTER_PREFIX, Tx

_TOKEN_COLUMNS = "id, name, role, sha256, created_at_ms, revoked, kind, last_used_at_ms, expires_engine_s, about"


class FleetReads(Tx):
    """What is known of agents, of who may speak, and of what changed."""

    __slots__ = ()

    def _agents(self, where: str, *values: Any) -> list[Agent]:
        return [wire.unpack(Agent, row[0]) for row in self.all(f"SELECT record FROM agents {where}", *values)]

    def get_agent(self, agent_id: str) -> Agent | None:
        """See `ReadTx.get_agent`."""
        found = self._agents("WHERE id = ?", agent_id)
        return found[0] if found else None

    def find_agents(self, text: str) -> list[Agent]:
        """See `ReadTx.find_agents`; the id wins over the name."""
        found = self._agents("WHERE id = ?", text) or self._agents("WHERE name = ?", text)
        if not found and len(text) >= AGENT_PREFIX_LEAST:
            found = self._agents("WHERE id >= ? AND id < ? ORDER BY id", text, text + AFTER_PREFIX)
        return found

    def agents_by_former_name(self, name: str) -> list[Agent]:
        """See `ReadTx.agents_by_former_name`."""
        return [agent for agent in self.list_agents() if name in agent.former_names]

    def list_agents(self) -> list[Agent]:
        """See `ReadTx.list_agents`; by name."""
        return self._agents("ORDER BY name")

    def events_after(self, seq: int, *, limit: int) -> list[FeedEvent]:
        """See `ReadTx.events_after`."""
        sql = "SELECT seq, kind, task_id, run_id, end_offset FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
        return [
            FeedEvent(seq=row[0], kind=row[1], task_id=row[2], run_id=row[3], end_offset=row[4])
            for row in self.all(sql, seq, limit)
        ]

    def event_bounds(self) -> tuple[int, int]:
        """See `ReadTx.event_bounds`."""
        # Two lookups: with both in one SELECT the whole table would be read.
        oldest, newest = self.one("SELECT (SELECT min(seq) FROM events), (SELECT max(seq) FROM events)") or (0, 0)
        return (oldest or 0, newest or 0)

    def blob_size(self, sha256: str) -> int | None:
        """See `ReadTx.blob_size`."""
        row = self.one("SELECT size FROM blobs WHERE sha256 = ?", sha256)
        return None if row is None else row[0]

    def blob_piece(self, sha256: str, *, offset: int, length: int) -> bytes:
        """See `ReadTx.blob_piece`; empty behind the end, or when there is no such blob."""
        row = self.one("SELECT num FROM blobs WHERE sha256 = ?", sha256)
        if row is None:
            return b""
        with self.db.blobopen("blobs", "content", row[0], readonly=True) as blob:
            if offset >= len(blob):
                return b""
            blob.seek(offset)
            return blob.read(length)

    def list_keys(self) -> list[TrustedKey]:
        """See `ReadTx.list_keys`."""
        found = self.all("SELECT public_key, role, agent_id, name, revoked FROM trusted_keys ORDER BY public_key")
        return [
            TrustedKey(public_key=row[0], role=Role(row[1]), agent_id=row[2], name=row[3], revoked=bool(row[4]))
            for row in found
        ]

    def list_tokens(self) -> list[ApiToken]:
        """See `ReadTx.list_tokens`."""
        return [
            ApiToken(
                id=row[0], name=row[1], role=Role(row[2]), sha256=row[3], created_at_ms=row[4], revoked=bool(row[5]),
                kind=TokenKind(row[6]), last_used_at_ms=row[7], expires_engine_s=row[8], about=row[9],
            )
            for row in self.all(f"SELECT {_TOKEN_COLUMNS} FROM api_tokens ORDER BY id")
        ]  # fmt: skip

    def get_login_link(self, sha256: str) -> LoginLink | None:
        """See `ReadTx.get_login_link`."""
        sql = "SELECT sha256, name, created_at_ms, expires_engine_s, used FROM login_links WHERE sha256 = ?"
        row = self.one(sql, sha256)
        if row is None:
            return None
        return LoginLink(sha256=row[0], name=row[1], created_at_ms=row[2], expires_engine_s=row[3], used=bool(row[4]))

    def get_join_token(self, sha256: str) -> JoinToken | None:
        """See `ReadTx.get_join_token`."""
        sql = "SELECT sha256, created_at_ms, expires_engine_s, used_by, agent_id FROM join_tokens WHERE sha256 = ?"
        row = self.one(sql, sha256)
        if row is None:
            return None
        return JoinToken(sha256=row[0], created_at_ms=row[1], expires_engine_s=row[2], used_by=row[3], agent_id=row[4])

    def join_tokens_before(self, before_engine_s: float) -> bool:
        """See `ReadTx.join_tokens_before`."""
        sql = "SELECT 1 FROM join_tokens WHERE expires_engine_s < ? AND used_by IS NULL LIMIT 1"
        return self.one(sql, before_engine_s) is not None

    def login_links_before(self, before_engine_s: float) -> bool:
        """See `ReadTx.login_links_before`."""
        return self.one("SELECT 1 FROM login_links WHERE expires_engine_s < ? LIMIT 1", before_engine_s) is not None

    def engine_mark(self) -> tuple[float, int]:
        """See `ReadTx.engine_mark`."""
        return self.one("SELECT engine_s, wall_ms FROM meta") or (0.0, 0)


class FleetWrites(FleetReads):
    """The same, to be changed."""

    __slots__ = ()

    def put_blob(self, sha256: str, content: bytes) -> None:
        """See `WriteTx.put_blob`."""
        sql = "INSERT OR IGNORE INTO blobs (sha256, size, content) VALUES (?, ?, ?)"
        self.db.execute(sql, (sha256, len(content), content))

    def save_agent(self, agent: Agent, *, expect: int | None) -> None:
        """See `WriteTx.save_agent`; adding an id that is stored already raises `Conflict`, too."""
        values = (agent.name, agent.version, wire.pack(agent), agent.id)
        try:
            if expect is None:
                self.db.execute("INSERT INTO agents (name, version, record, id) VALUES (?, ?, ?, ?)", values)
                return
            sql = "UPDATE agents SET name = ?, version = ?, record = ? WHERE id = ? AND version = ?"
            changed = self.db.execute(sql, (*values, expect)).rowcount
        except sqlite3.IntegrityError as error:
            raise Conflict(f"an agent named {agent.name!r} exists already: choose another name") from error
        if changed != 1:
            raise VersionConflict(f"agent {agent.id} was changed by somebody else or is gone: read it again")

    def trim_events(self, *, keep: int, limit: int, before_ms: int | None = None) -> int:
        """See `WriteTx.trim_events`."""
        oldest, newest = self.event_bounds()
        end = oldest + limit - 1
        last = newest - keep
        if before_ms is not None:
            # Only as far as this call may delete; rows stand in the order of their time.
            fresh = self.one("SELECT min(seq) FROM events WHERE seq <= ? AND at_ms >= ?", end, before_ms)
            last = max(last, end if fresh is None or fresh[0] is None else fresh[0] - 1)
        # The newest row stays: it tells a reader that is up to date from one that comes from the future.
        last = min(last, end, newest - 1)
        return self.db.execute("DELETE FROM events WHERE seq <= ?", (last,)).rowcount

    def save_key(self, key: TrustedKey) -> None:
        """See `WriteTx.save_key`."""
        self.db.execute(
            "INSERT OR REPLACE INTO trusted_keys (public_key, role, agent_id, name, revoked) VALUES (?, ?, ?, ?, ?)",
            (key.public_key, key.role.value, key.agent_id, key.name, key.revoked),
        )

    def save_token(self, token: ApiToken) -> None:
        """See `WriteTx.save_token`."""
        self.db.execute(
            f"INSERT OR REPLACE INTO api_tokens ({_TOKEN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                token.id, token.name, token.role.value, token.sha256, token.created_at_ms, token.revoked,
                token.kind.value, token.last_used_at_ms, token.expires_engine_s, token.about,
            ),
        )  # fmt: skip

    def note_use(self, token_id: str, *, at_ms: int, expires_engine_s: float | None) -> bool:
        """See `WriteTx.note_use`."""
        sql = "UPDATE api_tokens SET last_used_at_ms = ?, expires_engine_s = ? WHERE id = ? AND revoked = 0"
        return self.db.execute(sql, (at_ms, expires_engine_s, token_id)).rowcount == 1

    def delete_token(self, token_id: str) -> bool:
        """See `WriteTx.delete_token`."""
        return self.db.execute("DELETE FROM api_tokens WHERE id = ?", (token_id,)).rowcount == 1

    def save_login_link(self, link: LoginLink) -> None:
        """See `WriteTx.save_login_link`."""
        self.db.execute(
            "INSERT OR REPLACE INTO login_links (sha256, name, created_at_ms, expires_engine_s, used)"
            " VALUES (?, ?, ?, ?, ?)",
            (link.sha256, link.name, link.created_at_ms, link.expires_engine_s, link.used),
        )

    def trim_login_links(self, before_engine_s: float, *, limit: int) -> int:
        """See `WriteTx.trim_login_links`."""
        sql = (
            "DELETE FROM login_links WHERE sha256 IN"
            " (SELECT sha256 FROM login_links WHERE expires_engine_s < ? LIMIT ?)"
        )
        return self.db.execute(sql, (before_engine_s, limit)).rowcount

    def save_join_token(self, token: JoinToken) -> None:
        """See `WriteTx.save_join_token`."""
        self.db.execute(
            "INSERT OR REPLACE INTO join_tokens (sha256, created_at_ms, expires_engine_s, used_by, agent_id)"
            " VALUES (?, ?, ?, ?, ?)",
            (token.sha256, token.created_at_ms, token.expires_engine_s, token.used_by, token.agent_id),
        )

    def trim_join_tokens(self, before_engine_s: float, *, limit: int) -> int:
        """See `WriteTx.trim_join_tokens`."""
        sql = (
            "DELETE FROM join_tokens WHERE sha256 IN"
            " (SELECT sha256 FROM join_tokens WHERE expires_engine_s < ? AND used_by IS NULL LIMIT ?)"
        )
        return self.db.execute(sql, (before_engine_s, limit)).rowcount
