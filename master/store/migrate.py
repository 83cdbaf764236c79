"""Brings a database file to the newest schema, whole or not at all: a crash in the middle leaves the old schema.

Alembic is imported only when there is something to do.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Final

from common.errors import StoreUnavailable
from common.log import fields

logger = logging.getLogger(__name__)

REVISIONS: Final = {"versions": "0004", "output_versions": "0001"}
"""The newest migration of each folder; a database that carries it is opened without Alembic."""
_MIGRATIONS: Final = Path(__file__).parent / "migrations"


def stored_revision(db: sqlite3.Connection) -> str | None:
    """The schema revision of a database; None while it has none."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone() is None:
        return None
    row = db.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else row[0]


def migrate(path: Path, *, busy_s: float, branch: str, target: str, folder: Path = _MIGRATIONS) -> None:
    """Bring the database at `path` to the schema `target` of the migrations in `folder`/`branch`.

    Raises `StoreUnavailable` when it was written by a newer version of muster, or cannot be migrated.
    """
    db = sqlite3.connect(path, isolation_level=None, timeout=busy_s)
    try:
        found = stored_revision(db)
    finally:
        db.close()
    if found != target:
        _upgrade(path, busy_s=busy_s, versions=folder / branch, target=target, found=found)
        logger.info("schema migrated", extra=fields(path=str(path), found=found, now=target))


def _upgrade(path: Path, *, busy_s: float, versions: Path, target: str, found: str | None) -> None:
    import sqlalchemy
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("version_locations", str(versions).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise StoreUnavailable(
            f"the database {path} was written by a newer version of muster (schema {found}, this one knows {target}): "
            "start that version, or restore a backup made before the upgrade"
        )
    engine = sqlalchemy.create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(path, isolation_level=None, timeout=busy_s),
        poolclass=sqlalchemy.pool.NullPool,
    )
    # The driver's own transactions would commit before each change of the schema. Ours begins here and holds for all.
    sqlalchemy.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, target)
    except CommandError as error:
        raise StoreUnavailable(f"the database {path} cannot be migrated: {error}") from error
    finally:
        engine.dispose()
