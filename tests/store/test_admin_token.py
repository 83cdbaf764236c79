from pathlib import Path

import pytest

from common import auth
from common.errors import InvalidRequest
from common.model import ApiToken, LoginLink, Role, TokenKind
from master.keys import Keys, ensure_admin_token
from master.store.sqlite import SqliteStore


def keys_of(store: SqliteStore) -> Keys:
    keys = Keys()
    store.read(keys.load)
    return keys


def is_admin(token: ApiToken | None) -> bool:
    return token is not None and (token.name, token.role) == ("admin", Role.ADMIN)


def started(store: SqliteStore, file: Path) -> str:
    """What a start of the master leaves in the file."""
    ensure_admin_token(store, file, now_ms=0)
    return auth.token_hash(file.read_text().strip())


def test_the_same_file_gives_the_same_token_at_every_start(store: SqliteStore, tmp_path: Path) -> None:
    file = tmp_path / "admin.token"
    first = started(store, file)
    assert started(store, file) == first
    assert is_admin(keys_of(store).token(first))
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_leaked_token_is_refused_once_its_file_was_removed(store: SqliteStore, tmp_path: Path) -> None:
    file = tmp_path / "admin.token"
    leaked = started(store, file)
    file.unlink()
    fresh = started(store, file)
    assert is_admin(keys_of(store).token(fresh))
    assert keys_of(store).token(leaked) is None


def test_what_a_leaked_token_may_have_made_goes_with_it(store: SqliteStore, tmp_path: Path) -> None:
    file = tmp_path / "admin.token"
    admin = started(store, file)
    session = ApiToken(
        id="s", name="admin", role=Role.ADMIN, sha256="aa", created_at_ms=1, kind=TokenKind.SESSION,
        expires_engine_s=99.0,
    )  # fmt: skip
    program = ApiToken(id="p", name="ci", role=Role.ADMIN, sha256="bb", created_at_ms=1)
    link = LoginLink(sha256="cc", name="admin", created_at_ms=1, expires_engine_s=99.0)
    store.write(lambda tx: [tx.save_token(session), tx.save_token(program), tx.save_login_link(link)])
    assert started(store, file) == admin
    assert store.read(lambda tx: tx.get_login_link("cc")) == link
    assert {token.id for token in keys_of(store).tokens()} >= {"s", "p"}
    file.unlink()
    started(store, file)
    assert store.read(lambda tx: tx.get_login_link("cc")) is None
    assert keys_of(store).token("aa") is None
    assert keys_of(store).token("bb") == program


def test_an_empty_file_is_not_taken_for_a_token(store: SqliteStore, tmp_path: Path) -> None:
    auth.write_private(tmp_path / "admin.token", b"\n")
    with pytest.raises(InvalidRequest, match="remove it"):
        started(store, tmp_path / "admin.token")
