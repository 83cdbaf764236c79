"""Fixtures of the system tests: real parts, gone at the end of each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.host import Host, host_at


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host whose agent side is there."""
    with host_at(tmp_path / "state") as one:
        yield one
