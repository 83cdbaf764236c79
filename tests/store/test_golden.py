"""Databases as released versions wrote them: each opens, everything in it is found, and work goes on in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from master.output import OutputChunk, OutputStore
from master.store.migrate import REVISIONS
from tests.store.conftest import OpenStore
from tests.store.golden import FOLDER, contents, output_contents
from tests.store.making import begin, claim, finish
from tests.store.test_migrations import migrated, objects

STORES = sorted(path.name for path in FOLDER.glob("muster-*.db"))
OUTPUTS = sorted(path.name for path in FOLDER.glob("output-*.db"))


def is_in(expected: Any, found: Any) -> bool:
    """Whether all of `expected` is found; records may have got more fields since."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(key in found and is_in(expected[key], found[key]) for key in expected)
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(is_in, expected, found))
    return bool(expected == found)


def test_every_schema_has_its_golden_database() -> None:
    assert STORES[-1] == f"muster-{REVISIONS['versions']}.db"
    assert OUTPUTS[-1] == f"output-{REVISIONS['output_versions']}.db"


@pytest.mark.parametrize(("branch", "name"), [("versions", STORES[-1]), ("output_versions", OUTPUTS[-1])])
def test_the_newest_golden_database_has_the_schema_that_migrations_make(tmp_path: Path, branch: str, name: str) -> None:
    assert objects(FOLDER / name) == objects(migrated(tmp_path / "migrated.db", branch))


@pytest.mark.parametrize("name", STORES)
def test_a_golden_store_opens_with_everything_in_it(stores: OpenStore, tmp_path: Path, name: str) -> None:
    expected = json.loads((FOLDER / name).with_suffix(".json").read_text("utf-8"))
    shutil.copyfile(FOLDER / name, tmp_path / "muster.db")
    store = stores(tmp_path / "muster.db")
    found = store.read(contents)
    for part, wanted in expected.items():
        assert is_in(wanted, found[part]), f"{part}: {wanted} is not in {found[part]}"
    assert store.read(lambda tx: tx.findings()) == []
    assert store.read(lambda tx: tx.engine_mark()) == (1234.5, 1_700_000_000_000)
    ended = store.write(lambda tx: finish(tx, begin(tx, claim(tx, "agent-b", ["slow"]))))
    assert ended.task_id == "task-among"
    assert store.read(lambda tx: tx.findings()) == []


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_golden_output_database_opens_with_everything_in_it(tmp_path: Path, name: str) -> None:
    expected = json.loads((FOLDER / name).with_suffix(".json").read_text("utf-8"))
    shutil.copyfile(FOLDER / name, tmp_path / "output.db")
    store = OutputStore(tmp_path / "output.db")
    store.open()
    assert is_in(expected, output_contents(store))
    assert store.append([OutputChunk("run", 1, 15, b"more", [(1, 4)])]) == {"run": 19}
    store.close()
