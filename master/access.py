"""Who may use it: login links, the sessions that come of them, and the API tokens of programs.

A link makes one session and is used up, also when many try at once. A session ends when it is not used for
`session_age`, when it is logged out, or revoked. Checks look into memory alone; what they note of uses reaches the
store by the loop, at most once a minute for each token. Secrets are told once and stored as their SHA-256 only.
"""

from __future__ import annotations

import logging
from typing import Any

from common import ids, log
from common.auth import token_hash
from common.clock import Clock
from common.config import Settings
from common.errors import Conflict, LoginExpired, LoginRefused, LoginUsed, MusterError, NotFound, Unauthorized
from common.model import ApiToken, LoginLink, Role, TokenKind, evolve
from common.requests import check_token_name
from common.service import Loop
from master.keys import ADMIN, ADMIN_TOKEN_FILE, Keys
from master.ledger import Ledger
from master.lifecycle import Moment
from master.rates import Rates
from master.runs import SLICE, Change

logger = logging.getLogger(__name__)

ABOUT_MOST = 200
PREFIX_LEAST = 6
SAVE_EVERY_S = 60.0
"""How often the last use of one token is stored, at the most."""
_ROUND_S = 10.0
_LINK_REMEMBERED_S = 86400.0
"""How long whoever uses a login link or a join token too late is told so; after that it was never known."""
TOKENS_MOST = 500
"""API tokens at once: they are shown on one page."""
_AGAIN = "make a fresh one with `muster login`"


class Access:
    """The use-cases. `by` is the name of who asks, for the log."""

    def __init__(self, ledger: Ledger, keys: Keys, settings: Settings) -> None:
        self._ledger = ledger
        self._keys = keys
        self._settings = settings
        self._tries = Rates(settings.login_rate, what="log in")
        self._unsaved: dict[str, str] = {}  # id → sha256 of tokens whose last use is not stored
        self._saved_s: dict[str, float] = {}  # id → when its last use was stored

    # -- login links and sessions --------------------------------------------------------------------------------------

    def add_login_link(self, name: str, by: str = "") -> dict[str, Any]:
        """A fresh permission to log in once under `name`: {secret, expires_at_ms}."""
        name = check_token_name(name)
        secret = ids.secret_token()
        now = self._ledger.clock.now()
        age_s = self._settings.login_link_age
        link = LoginLink(
            sha256=token_hash(secret), name=name, created_at_ms=now.wall_ms, expires_engine_s=now.engine_s + age_s
        )
        self._ledger.change(lambda change: change.tx.save_login_link(link))
        logger.info("login link made", extra=log.fields(name=name, by=by))
        return {"secret": secret, "expires_at_ms": now.wall_ms + round(age_s * 1000)}

    def log_in(self, secret: str, address: str, about: str = "") -> dict[str, Any]:
        """Use up a login link: {session, name, id, expires_at_ms}, where `session` is the secret of a new session.

        `about` says which browser it is. Raises `LoginRefused` for a link that is no good, `RateLimited` when too many
        from this address, or from all, were no good.
        """
        session = ids.secret_token()
        sha256 = token_hash(secret)
        self._charge_unless_good(sha256, address)

        def use(change: Change) -> ApiToken:
            link = _good_link(change, sha256)
            token = ApiToken(
                id=ids.uuid7(), name=link.name, role=Role.ADMIN, sha256=token_hash(session),
                created_at_ms=change.now.wall_ms, kind=TokenKind.SESSION, last_used_at_ms=change.now.wall_ms,
                expires_engine_s=change.now.engine_s + self._settings.session_age, about=_about(about, address),
            )  # fmt: skip
            change.tx.save_login_link(evolve(link, used=True))
            change.tx.save_token(token)
            return token

        try:
            token = self._ledger.change(use)
        except LoginRefused as error:
            logger.warning("login refused", extra=log.fields(address=address, why=error.message))
            raise
        self._keys.put_token(token)
        self._saved_s[token.id] = self._ledger.clock.now_s()
        logger.info("logged in", extra=log.fields(name=token.name, session=token.id, address=address))
        return {
            "session": session,
            "name": token.name,
            "id": token.id,
            "expires_at_ms": _expires_at_ms(token, self._ledger.clock.now()),
        }

    def _charge_unless_good(self, sha256: str, address: str) -> None:
        """Count a try that will fail; one with a good link is let in whatever others have tried."""
        now_s = self._ledger.clock.now_s()
        link = self._ledger.read(lambda tx: tx.get_login_link(sha256))
        if link is None or link.used or link.expires_engine_s <= now_s:
            self._tries.charge(address, now_s=now_s)

    def log_out(self, sha256: str) -> bool:
        """End the session with this hash; whether there was one."""
        token = self._keys.token(sha256)
        if token is None or token.kind is not TokenKind.SESSION:
            return False
        self._end_sessions([token])
        logger.info("logged out", extra=log.fields(name=token.name, session=token.id))
        return True

    # -- checks, in memory ---------------------------------------------------------------------------------------------

    def check_session(self, sha256: str) -> dict[str, str]:
        """Whose session has this hash: {name, role, id}. Raises `Unauthorized`."""
        return self._checked(sha256, TokenKind.SESSION)

    def check_token(self, sha256: str) -> dict[str, str]:
        """Whose API token has this hash: {name, role, id}. Raises `Unauthorized`."""
        return self._checked(sha256, TokenKind.API)

    def _checked(self, sha256: str, kind: TokenKind) -> dict[str, str]:
        token = self._keys.token(sha256)
        now = self._ledger.clock.now()
        if token is None or token.kind is not kind or _is_over(token, now.engine_s):
            raise Unauthorized()
        expires_s = now.engine_s + self._settings.session_age if kind is TokenKind.SESSION else None
        self._keys.put_token(evolve(token, last_used_at_ms=now.wall_ms, expires_engine_s=expires_s))
        self._unsaved[token.id] = sha256
        return {"name": token.name, "role": token.role.value, "id": token.id}

    # -- API tokens ----------------------------------------------------------------------------------------------------

    def list_tokens(self) -> dict[str, Any]:
        """All tokens and sessions that are good, the newest first: {items: [view]}."""
        now = self._ledger.clock.now()
        good = [token for token in self._keys.tokens() if not _is_over(token, now.engine_s)]
        good.sort(key=lambda token: (token.created_at_ms, token.id), reverse=True)
        return {"items": [_view(token, now) for token in good]}

    def add_token(self, name: str, by: str = "") -> dict[str, Any]:
        """A new API token: its view and `token`, the secret. Raises `Conflict` when the name is in use."""
        name = check_token_name(name)
        secret = ids.secret_token()

        def add(change: Change) -> ApiToken:
            if name == ADMIN:
                raise Conflict(f"The name {ADMIN} is that of the token in {ADMIN_TOKEN_FILE}: choose another name.")
            good = [known for known in change.tx.list_tokens() if known.kind is TokenKind.API and not known.revoked]
            if any(known.name == name for known in good):
                raise Conflict(f"A token named {name!r} exists already: choose another name, or revoke that one.")
            if len(good) >= TOKENS_MOST:
                raise Conflict(f"There are {len(good)} tokens already: revoke those that nobody uses.")
            token = ApiToken(
                id=ids.uuid7(), name=name, role=Role.ADMIN, sha256=token_hash(secret),
                created_at_ms=change.now.wall_ms,
            )  # fmt: skip
            change.tx.save_token(token)
            return token

        token = self._ledger.change(add)
        self._keys.put_token(token)
        logger.info("token added", extra=log.fields(name=name, token_id=token.id, by=by))
        return {**_view(token, self._ledger.clock.now()), "token": secret}

    def revoke_token(self, token_id: str, by: str = "") -> bool:
        """Refuse a token from now on, or end a session; its id may be shortened. Raises `NotFound` or `Conflict`."""
        token = self._find(token_id)
        if token.kind is TokenKind.SESSION:
            self._end_sessions([token])
            logger.info("session revoked", extra=log.fields(name=token.name, session=token.id, by=by))
            return True
        if token.name == ADMIN:
            raise Conflict(
                f"The token {ADMIN} is that of the file {ADMIN_TOKEN_FILE} in the data directory: to be rid of it, "
                "remove the file and restart the master, which writes a fresh one."
            )
        self._ledger.change(lambda change: change.tx.save_token(evolve(token, revoked=True)))
        self._drop(token)
        logger.info("token revoked", extra=log.fields(name=token.name, token_id=token.id, by=by))
        return True

    def _find(self, text: str) -> ApiToken:
        now_s = self._ledger.clock.now_s()
        good = [token for token in self._keys.tokens() if not _is_over(token, now_s)]
        found = [token for token in good if token.id == text]
        if not found and len(text) >= PREFIX_LEAST:
            found = [token for token in good if token.id.startswith(text)]
        if not found:
            raise NotFound(f"There is no token or session {text[:100]!r}: `muster tokens` lists them.")
        if len(found) > 1:
            raise Conflict(f"{text!r} is the beginning of {len(found)} ids: give more of the one you mean.")
        return found[0]

    # -- what time brings ----------------------------------------------------------------------------------------------

    def save_uses(self, now_s: float, *, most: int = SLICE) -> int:
        """Store last uses that are due, at most so many; answers how many."""
        due = [
            (token_id, sha256)
            for token_id, sha256 in self._unsaved.items()
            if now_s - self._saved_s.get(token_id, -SAVE_EVERY_S) >= SAVE_EVERY_S
        ][:most]
        tokens = [token for token in (self._keys.token(sha256) for _, sha256 in due) if token is not None]
        for token_id, _ in due:
            del self._unsaved[token_id]
        if not tokens:
            return 0

        def note(change: Change) -> None:
            for token in tokens:
                used_ms = token.last_used_at_ms or token.created_at_ms
                change.tx.note_use(token.id, at_ms=used_ms, expires_engine_s=token.expires_engine_s)

        try:
            self._ledger.change(note)
        except MusterError:
            self._unsaved = {token.id: token.sha256 for token in tokens} | self._unsaved
            raise
        for token in tokens:
            if self._keys.token(token.sha256) is not None:
                self._saved_s[token.id] = now_s
        return len(tokens)

    def remove_expired(self, now_s: float, *, most: int = SLICE) -> int:
        """Remove sessions, login links and unused join tokens whose time is over, at most so many of each; answers how
        many."""
        over = [token for token in self._keys.tokens() if _is_over(token, now_s)][:most]
        if over:
            self._end_sessions(over)
            logger.info("sessions expired", extra=log.fields(number=len(over)))
        before_s = now_s - _LINK_REMEMBERED_S
        if not self._ledger.read(lambda tx: tx.login_links_before(before_s) or tx.join_tokens_before(before_s)):
            return len(over)

        def trim(change: Change) -> int:
            links = change.tx.trim_login_links(before_s, limit=most)
            return max(links, change.tx.trim_join_tokens(before_s, limit=most))

        return len(over) + self._ledger.change(trim)

    def _end_sessions(self, sessions: list[ApiToken]) -> None:
        self._ledger.change(lambda change: [change.tx.delete_token(token.id) for token in sessions])
        for token in sessions:
            self._drop(token)

    def _drop(self, token: ApiToken) -> None:
        self._keys.drop_token(token.sha256)
        self._unsaved.pop(token.id, None)
        self._saved_s.pop(token.id, None)


class AccessLoop(Loop):
    """Stores last uses and removes what has expired, in small steps."""

    def __init__(self, access: Access, ledger: Ledger, *, clock: Clock) -> None:
        super().__init__("access", clock=clock)
        self._access = access
        self._ledger = ledger

    def step(self, now: float) -> float | None:
        """One round."""
        now_s = self._ledger.clock.now_s()
        saved = self._access.save_uses(now_s)
        removed = self._access.remove_expired(now_s)
        self.say("noting last uses, removing what has expired")
        return 0.0 if max(saved, removed) >= SLICE else _ROUND_S


def _good_link(change: Change, sha256: str) -> LoginLink:
    """The stored link, if it may be used; else `LoginRefused`."""
    link = change.tx.get_login_link(sha256)
    if link is None:
        raise LoginRefused(f"This login link is not known here: {_AGAIN}.")
    if link.used:
        raise LoginUsed(f"This login link was used already: {_AGAIN}.")
    if link.expires_engine_s <= change.now.engine_s:
        raise LoginExpired(f"This login link has expired: {_AGAIN}.")
    return link


def _is_over(token: ApiToken, now_s: float) -> bool:
    return token.expires_engine_s is not None and token.expires_engine_s <= now_s


def _expires_at_ms(token: ApiToken, now: Moment) -> int | None:
    if token.expires_engine_s is None:
        return None
    return now.wall_ms + round((token.expires_engine_s - now.engine_s) * 1000)


def _view(token: ApiToken, now: Moment) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "kind": token.kind.value,
        "role": token.role.value,
        "created_at_ms": token.created_at_ms,
        "last_used_at_ms": token.last_used_at_ms,
        "expires_at_ms": _expires_at_ms(token, now),
        "about": token.about,
    }


def _about(about: str, address: str) -> str:
    """What a person may recognise a session by: printable, bounded, the address at its end."""
    shown = "".join(char for char in about if char.isprintable()).strip()
    if not address or address in shown:
        return shown[:ABOUT_MOST]
    behind = f", {address}"[-ABOUT_MOST:]
    return shown[: ABOUT_MOST - len(behind)] + behind if shown else address[:ABOUT_MOST]
