"""Each invariant, broken by hand in the file: the check names it. What the store itself writes has no findings."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from master.store.base import WriteTx
from master.store.findings import SHOWN_MOST, findings
from master.store.sqlite import SqliteStore
from tests.store.conftest import OpenStore
from tests.store.making import add_addressed, add_free, alter, begin, claim, finish, make_agent


@pytest.fixture(scope="module")
def sound(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with a bit of everything, in which nothing is wrong."""
    path = tmp_path_factory.mktemp("sound") / "muster.db"
    shutil.copyfile(empty_database, path)
    store = SqliteStore(path, readers=1)
    store.open()

    def act(tx: WriteTx) -> None:
        tx.save_agent(make_agent("h", "h"), expect=None)
        add_addressed(tx, ["a", "b", "c"], parallel=1, id="windowed")
        assert claim(tx, "a") is not None
        assert claim(tx, "b") is None
        add_addressed(tx, ["d", "e", "f"], id="plain")
        finish(tx, begin(tx, claim(tx, "d")))
        begin(tx, claim(tx, "e"))
        add_free(tx, 2, candidates=["g", "h"], id="among")
        assert claim(tx, "g") is not None
        add_addressed(tx, ["z"], id="resting")
        alter(tx, "resting", paused=True)
        tx.append_event("task", task_id="plain", run_id=None)

    store.write(act)
    assert store.read(lambda tx: tx.findings()) == []
    store.close()
    return path


BROKEN = [
    ("UPDATE tasks SET n_ready = n_ready + 1 WHERE id = 'plain'", "task plain: its counts do not agree"),
    ("DELETE FROM runs WHERE agent_id = 'f'", "task plain: its counts do not agree"),
    ("DELETE FROM runs WHERE agent_id = 'f'", "but the store counts"),
    ("UPDATE tasks SET state = 'succeeded' WHERE id = 'plain'", "task plain is succeeded, but its counts add up to"),
    ("UPDATE tasks SET ended_at_ms = 5 WHERE id = 'plain'", "task plain is running, but its end says otherwise"),
    ("UPDATE runs SET task_id = 'other' WHERE agent_id = 'f'", "does not fit its task other"),
    ("UPDATE runs SET priority = 1 WHERE agent_id = 'f'", "does not fit its task plain"),
    ("UPDATE runs SET seq = 99 WHERE agent_id = 'f'", "does not fit its task plain"),
    ("UPDATE runs SET lease = NULL WHERE state = 'leased'", "is leased and has no lease"),
    ("UPDATE runs SET lease = 'x' WHERE state = 'succeeded'", "is succeeded and still has a lease"),
    ("UPDATE runs SET lease = 'x' WHERE state = 'leased'", "are held under one lease"),
    ("UPDATE runs SET agent_id = NULL WHERE state = 'running'", "is running, but nobody holds it"),
    ("UPDATE runs SET ended_at_ms = NULL WHERE state = 'succeeded'", "is succeeded, but its end says otherwise"),
    ("UPDATE runs SET ended_at_ms = 5 WHERE state = 'ready'", "is ready, but its end says otherwise"),
    ("UPDATE runs SET fence = NULL WHERE state = 'running'", "is running without what belongs to that state"),
    ("UPDATE runs SET due_engine_s = 5 WHERE state = 'ready'", "is ready without what belongs to that state"),
    ("UPDATE runs SET agent_id = 'e' WHERE agent_id = 'f'", "of one task are both on agent e"),
    ("UPDATE tasks SET parallel = 1, n_leased = 2 WHERE id = 'windowed'", "2 runs are held, its window allows 1"),
    ("UPDATE tasks SET parallel = 0 WHERE id = 'windowed'", "task windowed has room, but its ready runs are not"),
    ("DELETE FROM offers WHERE scope = 'a:f'", "task plain has a ready run that nobody is offered (scope a:f)"),
    ("DELETE FROM withdrawn WHERE scope = 'a:b'", "task windowed has a ready run that nobody is offered"),
    ("UPDATE tasks SET offered = 1 WHERE id = 'windowed'", "is open, but one of its offers is withdrawn"),
    ("INSERT INTO offers VALUES ('a:nobody', 1024, 2, 'plain')", "task plain is offered without a ready run"),
    ("INSERT INTO withdrawn VALUES (77, 'a:nobody')", "task number 77 is offered without a ready run"),
    ("INSERT INTO withdrawn VALUES (2, 'a:f')", "task plain is offered and withdrawn at once"),
    ("UPDATE offers SET priority = 7 WHERE scope = 'a:f'", "task plain does not fit its offer"),
    ("UPDATE sets SET waiting = 5", "miscounts its offers"),
    ("DELETE FROM offers WHERE scope LIKE 's:%'", "miscounts its offers"),
    ("UPDATE sets SET waiting = 0", "has members listed, but no offers"),
    ("DELETE FROM set_members WHERE agent_id = 'h'", "is not offered to its member h"),
    ("UPDATE set_members SET priority = 1 << 62 WHERE agent_id = 'h'", "hides an offer from its member h"),
    ("UPDATE meta SET submit_seq = 1", "a task's number is larger than the counter"),
    ("UPDATE meta SET event_seq = 0", "a change's number is larger than the counter"),
    ("UPDATE meta SET commit_seq = 0", "a fence is larger than the counter"),
    ("DELETE FROM specs WHERE seq = 2", "task plain has no spec"),
    ("DELETE FROM blobs", "task plain: its script is not stored"),
]


@pytest.mark.parametrize(("sql", "finding"), BROKEN, ids=[sql for sql, _ in BROKEN])
def test_what_is_broken_is_named(sound: Path, tmp_path: Path, sql: str, finding: str) -> None:
    shutil.copyfile(sound, tmp_path / "muster.db")
    db = sqlite3.connect(tmp_path / "muster.db", isolation_level=None)
    assert findings(db) == []
    assert db.execute(sql).rowcount > 0
    found = findings(db)
    db.close()
    assert any(finding in sentence for sentence in found), found


def test_a_damaged_file_is_named(sound: Path, tmp_path: Path) -> None:
    shutil.copyfile(sound, tmp_path / "muster.db")
    db = sqlite3.connect(tmp_path / "muster.db", isolation_level=None)
    page = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'runs_agent'").fetchone()[0]
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    with (tmp_path / "muster.db").open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    db = sqlite3.connect(tmp_path / "muster.db", isolation_level=None)
    found = findings(db)
    db.close()
    assert any("the database file is damaged" in sentence for sentence in found)


def test_one_broken_rule_does_not_flood_the_answer(stores: OpenStore, tmp_path: Path) -> None:
    store = stores(tmp_path / "muster.db")
    store.write(lambda tx: add_addressed(tx, [f"agent-{number}" for number in range(500)]))
    store.write(lambda tx: tx.db.execute("DELETE FROM offers"))
    assert len(store.read(lambda tx: tx.findings())) == SHOWN_MOST
