"""One behaviour suite for every store: a test takes `store` (open, empty) or `stores` (opens files by path)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from master.store.sqlite import SqliteStore

OpenStore = Callable[..., SqliteStore]


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database; tests begin with a copy, which is quicker than a migration each."""
    path = tmp_path_factory.mktemp("empty") / "muster.db"
    store = SqliteStore(path, readers=0)
    store.open()
    store.write(lambda tx: tx.set_engine_mark(0.0, 0))
    store.close()
    return path


@pytest.fixture(params=["sqlite"])
def stores(request: pytest.FixtureRequest, empty_database: Path) -> Iterator[OpenStore]:
    """Opens stores; all are closed at the end."""
    opened: list[SqliteStore] = []

    def open_store(path: Path, **settings: Any) -> SqliteStore:
        if not path.exists():
            shutil.copyfile(empty_database, path)
        store = SqliteStore(path, **settings)
        store.open()
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def store(stores: OpenStore, tmp_path: Path) -> SqliteStore:
    """An open store with nothing in it."""
    return stores(tmp_path / "muster.db")
