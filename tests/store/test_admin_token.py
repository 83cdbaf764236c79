from pathlib import Path

import pytest

from common import auth
from common.errors import InvalidRequest, Unauthorized
from master.keys import Keys, ensure_admin_token
from master.store.sqlite import SqliteStore


def keys_of(store: SqliteStore) -> Keys:
    keys = Keys()
    store.read(keys.load)
    return keys


def started(store: SqliteStore, file: Path) -> str:
    """What a start of the master leaves in the file."""
    ensure_admin_token(store, file, now_ms=0)
    return auth.token_hash(file.read_text().strip())


def test_the_same_file_gives_the_same_token_at_every_start(store: SqliteStore, tmp_path: Path) -> None:
    file = tmp_path / "admin.token"
    first = started(store, file)
    assert started(store, file) == first
    assert keys_of(store).check_token(first) == {"name": "admin", "role": "admin"}
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_leaked_token_is_refused_once_its_file_was_removed(store: SqliteStore, tmp_path: Path) -> None:
    file = tmp_path / "admin.token"
    leaked = started(store, file)
    file.unlink()
    fresh = started(store, file)
    assert keys_of(store).check_token(fresh) == {"name": "admin", "role": "admin"}
    with pytest.raises(Unauthorized):
        keys_of(store).check_token(leaked)


def test_an_empty_file_is_not_taken_for_a_token(store: SqliteStore, tmp_path: Path) -> None:
    auth.write_private(tmp_path / "admin.token", b"\n")
    with pytest.raises(InvalidRequest, match="remove it"):
        started(store, tmp_path / "admin.token")
