"""A system to measure: `muster up` with its defaults in its own directory, and the CPU time of all its processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TICK = os.sysconf("SC_CLK_TCK")
START_S = 60.0


class System:
    """A running `muster up`; use as a context manager."""

    def __init__(
        self,
        *,
        agents: int = 1,
        slots: int | None = None,
        settings: dict[str, str] | None = None,
        fill: Callable[[Path], None] | None = None,
    ) -> None:
        """`fill` may put something into the empty data directory before the start."""
        self.directory = Path(tempfile.mkdtemp(prefix="muster-bench-"))
        if fill is not None:
            fill(self.directory)
        environ = {**os.environ, **(settings or {})}
        if slots is not None:
            environ["MUSTER_SLOTS"] = str(slots)
        command = [sys.executable, "-m", "muster", "up", "--data", str(self.directory)]
        command += ["--listen", "127.0.0.1:0", "--rpc", "127.0.0.1:0", "--agents", str(agents)]
        self.log = (self.directory / "up.log").open("wb")
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, env=environ
        )
        try:
            self._wait_ready(agents)
        except BaseException:
            self.close()
            raise

    def _wait_ready(self, agents: int) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError, KeyError, ValueError, http.client.HTTPException):
                self.url = (self.directory / "url").read_text().strip()
                self.token = (self.directory / "admin.token").read_text().strip()
                online = [a for a in self.call("GET", "/api/v1/agents")["items"] if a["state"] == "online"]
                if len(online) >= agents:
                    return
            time.sleep(0.1)
        raise RuntimeError("muster up did not become ready:\n" + (self.directory / "up.log").read_text()[-3000:])

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the webserver."""
        host, _, port = self.url.removeprefix("http://").rstrip("/").partition(":")
        return host, int(port)

    def connect(self) -> http.client.HTTPConnection:
        """A keep-alive connection of its own."""
        return http.client.HTTPConnection(self.url.removeprefix("http://").rstrip("/"), timeout=90)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        connection: http.client.HTTPConnection | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """One REST call; the decoded answer. Raises `RuntimeError` on any status from 400 on."""
        opened = connection or self.connect()
        raw = None if body is None else json.dumps(body)
        given = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **(headers or {})}
        opened.request(method, path, raw, given)
        answer = opened.getresponse()
        content = answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
        return json.loads(content) if content else None

    def agent_names(self) -> list[str]:
        """Names of all agents."""
        return [agent["name"] for agent in self.call("GET", "/api/v1/agents?limit=500")["items"]]

    def cpu_s(self) -> float:
        """User and system seconds of all our processes so far, scripts that were waited for included."""
        return sum(cpu_s_of(pid) for pid in self.pids())

    def pids(self) -> dict[int, str]:
        """Process id → role of everything that works for this system."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                if str(self.directory) in " ".join(words) or int(entry.name) == self.process.pid:
                    roles = [w for w in words if w in ("up", "master", "web", "agent", "shepherd")]
                    found[int(entry.name)] = roles[0] if roles else "other"
        return found

    def pid_of(self, role: str) -> int:
        """The process id of the first process in this role."""
        return next(pid for pid, found in self.pids().items() if found == role)

    def close(self) -> None:
        """End everything and remove the directory."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for pid in self.pids():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> System:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cpu_s_of(pid: int) -> float:
    """User and system seconds of a process and of its children that were waited for; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(fields[n]) for n in (11, 12, 13, 14)) / TICK


def rss_mb(pid: int) -> float:
    """Resident memory of a process in MB (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` (0…1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextlib.contextmanager
def script_file(text: str) -> Iterator[str]:
    """A script in a file, for the baselines."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(text)
        file.flush()
        yield file.name
