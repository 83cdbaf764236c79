"""Who may speak: CURVE keys and the check of every request, API tokens in memory, and the files both begin in.

The tables are kept in memory and follow the store, so that a check never waits and a revoked key is cut at its next
message. An unknown key may do one thing: enrol. Secrets are stored as their SHA-256 only.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

import msgspec

from common import auth, ids, log
from common.errors import Forbidden, InvalidRequest, UnknownKey
from common.model import ApiToken, Role, TokenKind, TrustedKey, evolve
from common.rpc import Peer
from master.store.base import ReadTx, Store, WriteTx

logger = logging.getLogger(__name__)

ADMIN_TOKEN_FILE = "admin.token"
TRUSTED_FILE = "trusted.json"
_ALL = 1 << 62
ADMIN = "admin"
"""The name of the token in that file."""


class _Trusted(msgspec.Struct, frozen=True):
    public_key: str
    role: Role
    name: str = ""
    agent_id: str | None = None


class Keys:
    """All keys, and all tokens and sessions that are not revoked, in memory; `master.access` knows which are good."""

    def __init__(self) -> None:
        self._keys: dict[str, TrustedKey] = {}
        self._tokens: dict[str, ApiToken] = {}

    def load(self, tx: ReadTx) -> None:
        """Take over what is stored."""
        self._keys = {key.public_key: key for key in tx.list_keys()}
        self._tokens = {token.sha256: token for token in tx.list_tokens() if not token.revoked}

    def put(self, key: TrustedKey) -> None:
        """A key was stored."""
        self._keys[key.public_key] = key

    def forget_agent(self, agent_id: str) -> None:
        """The keys of this agent are gone."""
        self._keys = {text: key for text, key in self._keys.items() if key.agent_id != agent_id}

    def revoked(self, agent_id: str) -> bool:
        """Whether the agent has keys, and none of them may speak."""
        keys = [key for key in self._keys.values() if key.agent_id == agent_id]
        return bool(keys) and all(key.revoked for key in keys)

    def revoke_agent(self, agent_id: str) -> None:
        """The keys of this agent are refused from now on."""
        for text, key in self._keys.items():
            if key.agent_id == agent_id:
                self._keys[text] = evolve(key, revoked=True)

    def of(self, peer: Peer) -> TrustedKey | None:
        """The key a peer speaks with, unless it is unknown or revoked."""
        key = self._keys.get(peer.key or "")
        return None if key is None or key.revoked else key

    def agent_of(self, peer: Peer) -> str | None:
        """The agent a peer speaks for; None: a trusted key that has not registered yet."""
        key = self.of(peer)
        return None if key is None else key.agent_id

    def admit_agent(self, peer: Peer, method: str) -> None:
        """The check of every request at the agents' door. Raises `UnknownKey` or `Forbidden`."""
        key = self.of(peer)
        if key is None:
            if method == "enrol" and peer.key is not None:
                return
            raise UnknownKey()
        if key.role is not Role.AGENT:
            raise Forbidden("This key is not an agent's; agents only speak here.")

    def admit_web(self, peer: Peer, method: str) -> None:
        """The check of every request at the webservers' door. Raises `UnknownKey` or `Forbidden`."""
        key = self.of(peer)
        if key is None:
            raise UnknownKey()
        if key.role is not Role.WEB:
            raise Forbidden("This key is not a webserver's; webservers only speak here.")

    def token(self, sha256: str) -> ApiToken | None:
        """The token or session with this hash, or None."""
        return self._tokens.get(sha256)

    def tokens(self) -> list[ApiToken]:
        """All of them."""
        return list(self._tokens.values())

    def put_token(self, token: ApiToken) -> None:
        """A token was stored, or used."""
        self._tokens[token.sha256] = token

    def drop_token(self, sha256: str) -> None:
        """A token was revoked or removed."""
        self._tokens.pop(sha256, None)


def import_trusted(store: Store, path: Path) -> int:
    """Store the keys that `muster up` trusts, from its file; answers how many were new. A revoked key stays revoked.

    Raises `BadKeyFile` when others may read the file, `InvalidRequest` when it cannot be read as such.
    """
    try:
        entries = msgspec.json.decode(auth.read_private(path), type=list[_Trusted])
    except FileNotFoundError:
        return 0
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{path}: {error}") from error
    for entry in entries:
        if not auth.is_key(entry.public_key):
            raise InvalidRequest(f"{path}: {entry.public_key[:50]!r} is no CURVE public key")

    def add(tx: WriteTx) -> int:
        known = {key.public_key for key in tx.list_keys()}
        fresh = [entry for entry in entries if entry.public_key not in known]
        for entry in fresh:
            tx.save_key(
                TrustedKey(public_key=entry.public_key, role=entry.role, agent_id=entry.agent_id, name=entry.name)
            )
        return len(fresh)

    added = store.write(add)
    if added:
        logger.info("keys trusted", extra=log.fields(added=added, file=str(path)))
    return added


def ensure_admin_token(store: Store, path: Path, *, now_ms: int) -> None:
    """Make sure that the file holds a token of role admin that the store knows; a fresh one if there is no file.

    Tokens that the file held before are refused from now on, and then every session and login link ends too: whoever
    found the token may have made them. So removing a leaked one and starting again is enough.
    """
    try:
        token = auth.read_private(path).decode("ascii", "replace").strip()
    except FileNotFoundError:
        token = ids.secret_token()
        auth.write_private(path, token.encode() + b"\n")
        logger.info("admin token written", extra=log.fields(file=str(path)))
    if not token:
        raise InvalidRequest(f"{path} is empty: remove it, and the next start writes a fresh token")
    sha256 = auth.token_hash(token)

    def add(tx: WriteTx) -> None:
        known = tx.list_tokens()
        api = [token for token in known if token.kind is TokenKind.API]
        leaked = [token for token in api if token.name == ADMIN and token.sha256 != sha256 and not token.revoked]
        for former in leaked:
            tx.save_token(evolve(former, revoked=True))
        if leaked:
            for token in known:
                if token.kind is TokenKind.SESSION:
                    tx.delete_token(token.id)
            tx.trim_login_links(math.inf, limit=_ALL)
        if not any(token.sha256 == sha256 for token in known):
            tx.save_token(ApiToken(id=ids.uuid7(), name=ADMIN, role=Role.ADMIN, sha256=sha256, created_at_ms=now_ms))

    store.write(add)
