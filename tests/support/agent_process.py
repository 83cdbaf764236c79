"""A real agent process beside a master in this very process: every wait lets the loop go on, so the master can answer.

`AgentHost` is a state directory on a pretended host: agents are started on it, killed, started again, and whatever is
left of them at the end (shepherds and scripts too) is killed. `python -m tests.support.agent_process JSON` is the
agent itself, started as the command line starts it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
from gevent.socket import wait_read

from agent.identity import AgentHome, Identity
from common import auth
from tests.support.fake_master import FakeMaster
from tests.support.processes import end_all

ROOT = Path(__file__).parents[2]


class AgentHost:
    """One state directory and the agent processes started on it. End it with `close`."""

    def __init__(self, path: Path, *, settings: dict[str, Any] | None = None) -> None:
        self.state = path / "state"
        self.settings = {"kill_grace": 1.0, "shepherd_idle": 5.0, "drain": 20.0, **(settings or {})}
        self.processes: list[AgentProcess] = []
        self._log = path / "agent.log"

    def point_at(self, master: FakeMaster, *, name: str = "agent-1") -> None:
        """Make it a local agent of `master`, as `muster up` does."""
        self.state.mkdir(mode=0o700, parents=True)
        pair = auth.load_or_create_key_pair(self.state / "agent.key")
        master.trust(pair.public_text, name=name)
        AgentHome(self.state).save(Identity(endpoint=master.endpoint, master_key=master.keys.public_text, name=name))

    def start(self, *, environ: dict[str, str] | None = None, **options: Any) -> AgentProcess:
        """Start an agent; `options` are those of `agent.app.main`."""
        request = {"state_dir": str(self.state), "settings": self.settings, **options}
        process = AgentProcess(request, log=self._log, environ=environ or {})
        self.processes.append(process)
        return process

    @property
    def log(self) -> str:
        """What all agents here have logged."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def wait_log(self, pattern: str, *, count: int = 1, timeout_s: float = 20.0) -> None:
        """Wait until `count` lines of the log match."""
        wait_until(
            lambda: len(re.findall(pattern, self.log)) >= count, f"{pattern!r} in the log {count} times", timeout_s
        )

    @property
    def shepherd_pid(self) -> int:
        """The shepherd that the newest log line tells of."""
        return int(re.findall(r"msg=shepherd .*to=connected pid=(\d+)", self.log)[-1])

    def close(self) -> None:
        """Kill whatever is left."""
        for process in self.processes:
            process.kill()
        end_all("no mark", self.state)


@contextmanager
def agent_host(
    path: Path, *, settings: dict[str, Any] | None = None, **terms: float
) -> Iterator[tuple[FakeMaster, AgentHost]]:
    """A master with these terms and a host that is one of its local agents' (none is started yet)."""
    with FakeMaster(**terms) as master:
        host = AgentHost(path, settings=settings)
        try:
            host.point_at(master)
            yield master, host
        except BaseException:
            print(host.log)
            raise
        finally:
            host.close()


class AgentProcess:
    """One agent process."""

    def __init__(self, request: dict[str, Any], *, log: Path, environ: dict[str, str]) -> None:
        self._told = log.with_name(f"told-{time.monotonic_ns()}")
        with log.open("ab") as file, self._told.open("wb") as told:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tests.support.agent_process", json.dumps(request)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=file,
                env={**os.environ, **environ},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None

    def send(self, number: int) -> None:
        """Send a signal."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """kill -9 and wait for it."""
        if self.running:
            self._popen.kill()
        self.wait(timeout_s=10)

    def wait(self, *, timeout_s: float = 20.0) -> int:
        """Its exit code, once it has ended."""
        if self._popen.returncode is None:
            fd = os.pidfd_open(self.pid)
            try:
                wait_read(fd, timeout=timeout_s, timeout_exc=TimeoutError(f"agent {self.pid} goes on"))
            finally:
                os.close(fd)
        return self._popen.wait()

    def told(self) -> str:
        """What it wrote for a person, once it has ended."""
        self.wait()
        return self._told.read_text("utf-8")

    def rss_kib(self) -> int:
        """Resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])

    def cpu_s(self) -> float:
        """CPU seconds used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        """How many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def wait_until(true: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
    """Look every 20 ms until `true()` is, for what gives no event; the loop goes on meanwhile."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"within {timeout_s:g} s not reached: {what}")
        gevent.sleep(0.02)


def _main(request: dict[str, Any]) -> int:
    from agent.app import main
    from common.config import Settings
    from common.errors import MusterError

    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings = Settings(**request.pop("settings"))
    try:
        return main(settings, state_dir=Path(request.pop("state_dir")), **request)
    except MusterError as error:
        print(error.message, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1])))
