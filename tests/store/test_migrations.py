"""Migrations: the schema they make is the one the statements are compiled for, and a crash leaves the old one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from common.errors import StoreUnavailable
from master.output import OutputStore
from master.store import migrate, output_schema, schema
from master.store.sqlite import SqliteStore
from tests.store.conftest import OpenStore
from tests.store.making import add_addressed
from tests.store.test_group_commit import total

BRANCHES = {"versions": schema.metadata, "output_versions": output_schema.metadata}
BROKEN = """
    import os
    import sqlalchemy as sa
    from alembic import op

    revision = "9999"
    down_revision = "{newest}"

    def upgrade():
        op.add_column("runs", sa.Column("half", sa.Integer()))
        op.execute("DELETE FROM tasks")
        op.create_table("also_half", sa.Column("x", sa.Integer()))
        {end}
"""


def migrated(path: Path, branch: str) -> Path:
    migrate.migrate(path, busy_s=1.0, branch=branch, target=migrate.REVISIONS[branch])
    return path


def objects(path: Path) -> list[tuple[str, str]]:
    """Names and definitions of everything in a database, spelled alike."""
    db = sqlite3.connect(path)
    found = db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name != 'alembic_version'")
    listed = sorted((name, "".join(sql.split()).lower()) for name, sql in found)
    db.close()
    return listed


@pytest.mark.parametrize("branch", BRANCHES)
def test_the_migrated_schema_is_that_of_the_tables(tmp_path: Path, branch: str) -> None:
    path = migrated(tmp_path / "migrated.db", branch)
    made = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'made.db'}")
    BRANCHES[branch].create_all(made)
    made.dispose()
    assert objects(path) == objects(tmp_path / "made.db")
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), BRANCHES[branch]) == []
    engine.dispose()


@pytest.mark.parametrize("branch", BRANCHES)
def test_the_newest_migration_is_the_one_the_code_expects(branch: str) -> None:
    folder = Path(migrate.__file__).parent / "migrations" / branch
    assert max(path.name[:4] for path in folder.glob("[0-9]*.py")) == migrate.REVISIONS[branch]


def old_store_and_new_migration(stores: OpenStore, tmp_path: Path, end: str) -> tuple[Path, Path]:
    """A database with a task in it, and a folder of migrations whose newest one goes wrong."""
    path = tmp_path / "muster.db"
    store = stores(path)
    store.write(lambda tx: add_addressed(tx, ["a", "b"]))
    store.close()
    folder = tmp_path / "migrations"
    shutil.copytree(Path(migrate.__file__).parent / "migrations", folder)
    broken = dedent(BROKEN).format(newest=migrate.REVISIONS["versions"], end=end)
    (folder / "versions" / "9999_broken.py").write_text(broken)
    return path, folder


def assert_old_and_usable(stores: OpenStore, path: Path, before: list[tuple[str, str]]) -> None:
    assert objects(path) == before
    store = stores(path)
    assert total(store) == 2
    assert store.read(lambda tx: tx.findings()) == []
    store.write(lambda tx: add_addressed(tx, ["a"]))
    store.close()


def test_a_migration_that_raises_leaves_the_old_schema_and_content(stores: OpenStore, tmp_path: Path) -> None:
    path, folder = old_store_and_new_migration(stores, tmp_path, "raise RuntimeError('in the middle')")
    before = objects(path)
    with pytest.raises(RuntimeError, match="in the middle"):
        migrate.migrate(path, busy_s=1.0, branch="versions", target="9999", folder=folder)
    assert_old_and_usable(stores, path, before)


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_migration_that_dies_leaves_the_old_schema_and_content(stores: OpenStore, tmp_path: Path, end: str) -> None:
    path, folder = old_store_and_new_migration(stores, tmp_path, end)
    before = objects(path)
    code = (
        "import sys; from pathlib import Path; from master.store.migrate import migrate\n"
        "migrate(Path(sys.argv[1]), busy_s=1.0, branch='versions', target='9999', folder=Path(sys.argv[2]))"
    )
    died = subprocess.run([sys.executable, "-c", code, str(path), str(folder)], capture_output=True, text=True)
    assert died.returncode == (3 if "_exit" in end else -9), died.stderr
    assert_old_and_usable(stores, path, before)


def test_a_migration_that_works_changes_schema_and_version_together(stores: OpenStore, tmp_path: Path) -> None:
    path, folder = old_store_and_new_migration(stores, tmp_path, "")
    migrate.migrate(path, busy_s=1.0, branch="versions", target="9999", folder=folder)
    db = sqlite3.connect(path)
    assert migrate.stored_revision(db) == "9999"
    assert db.execute("SELECT count(half) FROM runs").fetchone() == (0,)
    assert db.execute("SELECT count(*) FROM tasks").fetchone() == (0,)
    db.close()


def test_a_store_of_a_newer_version_is_refused_with_what_to_do(stores: OpenStore, tmp_path: Path) -> None:
    path, folder = old_store_and_new_migration(stores, tmp_path, "")
    migrate.migrate(path, busy_s=1.0, branch="versions", target="9999", folder=folder)
    known = rf"\(schema 9999, this one knows {migrate.REVISIONS['versions']}\)"
    with pytest.raises(StoreUnavailable, match=f"newer version of muster {known}: start"):
        SqliteStore(path).open()
    output = OutputStore(tmp_path / "output.db")
    output.open()
    output.close()
    db = sqlite3.connect(tmp_path / "output.db")
    db.execute("UPDATE alembic_version SET version_num = '0009'")
    db.commit()
    db.close()
    with pytest.raises(StoreUnavailable, match="newer version"):
        OutputStore(tmp_path / "output.db").open()


def test_opening_a_store_that_is_up_to_date_needs_no_alembic(empty_database: Path, tmp_path: Path) -> None:
    path = tmp_path / "muster.db"
    shutil.copyfile(empty_database, path)
    code = (
        "import sys; from pathlib import Path; from master.store.sqlite import SqliteStore\n"
        "store = SqliteStore(Path(sys.argv[1])); store.open(); store.close()\n"
        "assert not [name for name in sys.modules if name.startswith('alembic')], 'imported'"
    )
    environ = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
