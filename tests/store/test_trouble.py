"""The disk, another program or another version in the way: a clear answer, nothing half stored, and recovery."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from common import faults
from common.errors import StoreFull, StoreUnavailable
from master.store import file
from master.store.sqlite import SqliteStore
from tests.store.conftest import OpenStore
from tests.store.making import add_addressed, make_agent
from tests.store.test_group_commit import hold, total

BULK = b"x" * 400_000


def fill(store: SqliteStore, name: str) -> None:
    store.write(lambda tx: tx.put_blob(name, BULK))


def test_a_full_disk_refuses_the_batch_and_is_over_when_there_is_room(store: SqliteStore) -> None:
    store.write(lambda tx: add_addressed(tx, ["a"]))
    # The database may not grow by a page: what SQLite then does is what it does on a full disk.
    limit = store.write(lambda tx: tx.db.execute("PRAGMA max_page_count = 1").fetchone()[0])
    go, holder = hold(store)
    big = gevent.spawn(fill, store, "big")
    small = gevent.spawn(store.write, lambda tx: tx.save_agent(make_agent("x", "small"), expect=None))
    gevent.idle()
    go.set()
    gevent.joinall([holder, big, small])
    assert isinstance(big.exception, StoreFull)
    assert isinstance(small.exception, StoreFull)  # SQLite undoes the whole transaction, and so the whole batch
    assert total(store) == 1  # reading goes on
    with pytest.raises(StoreFull):
        fill(store, "big")
    assert "full" in (store.problem() or "")
    store.write(lambda tx: tx.db.execute(f"PRAGMA max_page_count = {limit + 10_000}"))
    fill(store, "big")
    assert store.problem() is None
    assert store.read(lambda tx: tx.findings()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("a small file system of its own needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"this machine mounts no tmpfs: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_really_full_disk_answers_so_until_room_is_made(small_disk: Path, stores: OpenStore) -> None:
    store = stores(small_disk / "muster.db")
    kept = 0
    with pytest.raises((StoreFull, StoreUnavailable)):
        for kept in range(100):
            fill(store, f"blob-{kept}")
    ballast = small_disk / "ballast"
    with ballast.open("wb") as out, pytest.raises(OSError, match="No space"):
        while True:
            out.write(BULK)
            out.flush()
    for _ in range(3):
        with pytest.raises((StoreFull, StoreUnavailable)):
            store.write(lambda tx: add_addressed(tx, [f"agent-{number}" for number in range(500)]))
    assert store.problem() is not None
    assert store.read(lambda tx: [tx.blob_size(f"blob-{n}") for n in range(kept)]) == [len(BULK)] * kept
    ballast.unlink()
    store.write(lambda tx: add_addressed(tx, ["a"]))
    assert store.problem() is None
    store.close()
    again = stores(small_disk / "muster.db")
    assert again.read(lambda tx: tx.findings()) == []
    assert total(again) == 1


def test_a_write_error_fails_the_batch_alone(store: SqliteStore) -> None:
    store.write(lambda tx: add_addressed(tx, ["a"]))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # the kernel refuses to write beyond it
    try:
        with pytest.raises(StoreUnavailable, match="nothing was stored"):
            fill(store, "big")
        assert store.problem() is not None
        assert total(store) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    fill(store, "big")
    assert store.problem() is None
    assert store.read(lambda tx: tx.findings()) == []


def test_a_commit_that_fails_stores_nothing_of_its_batch_and_tells_everybody(store: SqliteStore) -> None:
    store.write(lambda tx: add_addressed(tx, ["a"]))
    faults.arm("store-before-commit=fail")
    try:
        go, holder = hold(store)
        writers = [gevent.spawn(store.write, lambda tx: add_addressed(tx, ["b", "c"])) for _ in range(5)]
        gevent.idle()
        go.set()
        gevent.joinall([holder, *writers])
    finally:
        faults.arm("")
    assert all(isinstance(writer.exception, StoreUnavailable) for writer in writers)
    assert len({id(writer.exception) for writer in writers}) == 5
    assert total(store) == 1
    store.write(lambda tx: add_addressed(tx, ["a"]))
    assert total(store) == 2
    assert store.read(lambda tx: tx.findings()) == []


def test_another_programs_lock_is_waited_for_and_then_told(stores: OpenStore, tmp_path: Path) -> None:
    store = stores(tmp_path / "muster.db", busy_s=0.05)
    other = sqlite3.connect(tmp_path / "muster.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        store.write(lambda tx: add_addressed(tx, ["a"]))
    assert "locked" in (store.problem() or "")
    assert total(store) == 0
    other.execute("ROLLBACK")
    store.write(lambda tx: add_addressed(tx, ["a"]))
    other.close()
    assert store.problem() is None and total(store) == 1


def test_a_damaged_file_is_told_as_unavailable(tmp_path: Path) -> None:
    (tmp_path / "muster.db").write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(StoreUnavailable, match=r"muster\.db"):
        SqliteStore(tmp_path / "muster.db").open()


def test_a_place_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        SqliteStore(tmp_path / "file" / "muster.db").open()


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file.sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StoreUnavailable, match=r"3\.35\.0 or newer"):
        SqliteStore(tmp_path / "muster.db").open()
    assert not (tmp_path / "muster.db").exists()


def test_a_second_master_on_the_file_is_refused_with_the_firsts_pid(stores: OpenStore, tmp_path: Path) -> None:
    store = stores(tmp_path / "muster.db")
    code = (
        "import sys; from pathlib import Path; from common.errors import StoreUnavailable\n"
        "from master.store.sqlite import SqliteStore\n"
        "try: SqliteStore(Path(sys.argv[1])).open()\n"
        "except StoreUnavailable as error: print(error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "muster.db")], capture_output=True, text=True, check=True
    )
    assert f"in use by another process (pid {os.getpid()})" in told.stdout
    store.write(lambda tx: add_addressed(tx, ["a"]))
    store.close()
    assert total(stores(tmp_path / "muster.db")) == 1


def test_what_is_stored_is_nobody_elses_to_read(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "new" / "muster.db")
    store.open()
    store.write(lambda tx: add_addressed(tx, ["a"]))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()}
    store.close()
    assert modes == dict.fromkeys(("muster.db", "muster.db-wal", "muster.db-shm", "muster.db.lock"), 0o600)
