"""What every test may count on: the same environment on every machine, and a short temporary folder.

Settings of the person who runs the tests (MUSTER_*, the user's own folders, language, time zone, umask) reach no test.
`--full` asks for the stated counts; tests read it through the fixture `full`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# A shared machine stalls now and then: a slow example is no failure. Reduced runs find the same examples each time.
_CALM = [HealthCheck.too_slow]
settings.register_profile("reduced", deadline=None, max_examples=60, derandomize=True, suppress_health_check=_CALM)
settings.register_profile("full", deadline=None, max_examples=2_000, suppress_health_check=_CALM)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the stated counts instead of the reduced ones (hours)")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("full" if config.getoption("--full") else "reduced")
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        del os.environ[name]
    os.environ["MUSTER_LANGUAGE"] = "en"
    home = tempfile.mkdtemp(prefix="muster-home-")
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    for kind in ("CONFIG", "STATE", "DATA", "CACHE"):
        os.environ[f"XDG_{kind}_HOME"] = os.path.join(home, kind.lower())
    # A zone that is not UTC and needs no zone files: whoever shows local time where UTC is due is found out.
    os.environ["TZ"] = "TST-5:30"
    time.tzset()
    os.umask(0o022)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return _Schedule(config, log) if config.getoption("dist") == "loadgroup" else None


class _Schedule(LoadScopeScheduling):
    """The browser tests of a file on one worker, since they share a cluster and a browser; any other test anywhere.

    xdist's own groups have no effect with pytest 9.2, which keeps the name of a test elsewhere than xdist 3.8 puts it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0] if nodeid.startswith("tests/browser/") else nodeid


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """True when the stated counts are wanted."""
    return bool(request.config.getoption("--full"))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary folder whose path leaves room for a unix socket's name (108 bytes in all)."""
    with tempfile.TemporaryDirectory(prefix="m-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture(scope="session")
def network_namespaces() -> None:
    """Asks for network namespaces; where the machine has none to give, the test is reported with the reason."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the command `ip` (Debian package iproute2)")
    name = f"muster-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"this machine makes no network namespaces: {made.stderr.strip()}")
    subprocess.run(["ip", "netns", "delete", name], check=True)
