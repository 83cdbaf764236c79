"""Short lives under random faults, each from a seed; what the history checker finds is a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.soak import soak

SHORT = (1, 7, 13, 19, 25)  # every time; all thirty with --full


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Thirty seeds with `--full`, five without."""
    full = metafunc.config.getoption("--full")
    metafunc.parametrize("seed", range(1, 31) if full else SHORT)


def test_nothing_accepted_is_lost_and_nothing_runs_twice(tmp_path: Path, seed: int) -> None:
    assert soak(tmp_path / "m", seed=seed, seconds=8.0) == []
