"""A whole muster of real processes for a test: `Cluster` is one `muster up`, `Daemons` the same without a supervisor.

    def test_something(tmp_path):
        with Cluster(tmp_path / "m", agents=2) as cluster:
            task = cluster.run("echo hello", count=2)
            assert task.state == "succeeded"

Ports are free ones, intervals short (`QUICK`), waits are for events. At the end everything is stopped, and whatever
does not stop, shepherds and scripts included, is killed. When the test fails its last log lines are printed.
Roles are `master`, `web` and the names of the agents (`a1`, `a2`, … by `cluster.agents`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from muster.client import Agent, Client, MusterError, Task
from muster.launch import ports
from muster.launch.children import own_command
from tests.support.processes import Spawned, alive, command_of, end_all, freeze, related, until, wait_gone

# Short enough for a test, long enough for a busy machine of two cores.
QUICK: Final[Mapping[str, object]] = {
    "heartbeat": 0.5,
    "heartbeat_idle": 1.0,
    "lease": 10.0,
    "begin_lease": 5.0,
    "pull_wait": 10.0,
    "kill_grace": 1.0,
    "keeper_interval": 0.2,
    "shepherd_idle": 2.0,
    "drain": 5.0,
    "restart_delay": 0.2,
    "restart_delay_most": 1.0,
}
START_S: Final = 60.0


class _Base:
    """What both forms of a cluster share: a directory, a client, and the processes found by their role."""

    def __init__(
        self,
        path: Path,
        *,
        agents: int = 1,
        settings: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        listen: str = "127.0.0.1:0",
        rpc: str = "127.0.0.1:0",
    ) -> None:
        self.path = path
        self.data_dir = path / "data"
        self.wanted_agents = agents
        self.settings = {**QUICK, **(settings or {})}
        self.mark = secrets.token_hex(8)
        self.listen = ports.settle(ports.parse(listen), option="listen")
        self.rpc = ports.settle(ports.parse(rpc), option="rpc")
        self.url = f"http://{self.listen.near}"
        self.environ = {
            **{f"MUSTER_{name.upper()}": str(value) for name, value in self.settings.items()},
            **(environ or {}),
        }
        self.extra_agents: dict[str, Spawned] = {}
        self._client: Client | None = None
        path.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._print_logs()
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._print_logs()
        finally:
            self.close()

    # For subclasses

    def start(self) -> None:
        """Start everything and wait until all agents are online."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop everything in order."""
        raise NotImplementedError

    def pid(self, role: str) -> int:
        """The present process of a role."""
        raise NotImplementedError

    def logs(self, role: str) -> str:
        """What a role has logged so far."""
        raise NotImplementedError

    def _child(self, role: str) -> Spawned | None:
        """The process of a role that is a child of the test's own."""
        return self.extra_agents.get(role)

    # The client's side

    @property
    def token(self) -> str:
        """The administrator's token."""
        return (self.data_dir / "admin.token").read_text("utf-8").strip()

    @property
    def client(self) -> Client:
        """A client that waits up to 30 s for daemons that are restarted."""
        if self._client is None:
            self._client = Client(self.url, self.token, retry_for_s=30.0, timeout_s=60.0)
        return self._client

    @property
    def agents(self) -> list[str]:
        """Names of the agents that this cluster started, local ones first."""
        folder = self.data_dir / "agents"
        numbers = folder / "numbers.json"
        kept = json.loads(numbers.read_text("utf-8")) if numbers.exists() else {}
        return sorted(kept, key=lambda name: kept[name])[: self.wanted_agents] + list(self.extra_agents)

    def state_dir(self, agent: str) -> Path:
        """An agent's state directory."""
        return self.path / agent if agent in self.extra_agents else self.data_dir / "agents" / agent

    def run(self, script: bytes | str, *, timeout_s: float = 60.0, **options: Any) -> Task:
        """Submit a task (to any one agent, unless `targets` or `count` say else) and wait for its end."""
        if "targets" not in options and "count" not in options:
            options["count"] = 1
        return self.client.wait(self.client.submit(script, **options).id, timeout_s=timeout_s)

    def start_script(self, script: str, *, timeout_s: float = 30.0, **options: Any) -> Task:
        """Submit a shell script (to any one agent, unless told) and wait until its first line has really run.

        A run may count as running a moment before that: from its begin on.
        """
        if "targets" not in options and "count" not in options:
            options["count"] = 1
        task = self.client.submit(f"echo begun\n{script}", **options)

        def begun() -> bool:
            return all(self.client.output_at(run.id).data.startswith(b"begun\n") for run in self.client.runs(task.id))

        until(begun, "the script runs", timeout_s=timeout_s)
        return task

    def output(self, task: Task | str, *, agent: str | None = None) -> bytes:
        """All output of a task's only run, or of its run on `agent`."""
        task_id = task if isinstance(task, str) else task.id
        runs = [run for run in self.client.runs(task_id) if agent is None or run.where == agent]
        assert len(runs) == 1, f"{len(runs)} runs, say which agent"
        return b"".join(self.client.output(runs[0].id))

    def wait_agent(self, name: str, state: str = "online", *, timeout_s: float = 30.0) -> Agent:
        """The agent once the master sees it in `state`."""
        seen: list[Agent] = []

        def there() -> bool:
            with contextlib.suppress(MusterError):
                seen[:] = [self.client.agent(name)]
            return bool(seen) and seen[0].state == state

        until(there, f"agent {name} is {state}", timeout_s=timeout_s)
        return seen[0]

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until the webserver answers that tasks can be accepted."""

        def ready() -> bool:
            with contextlib.suppress(MusterError, OSError):
                return self.client.ready()[0]
            return False

        until(ready, "/readyz answers 200", timeout_s=timeout_s)

    def cli(
        self, *words: str, stdin: bytes = b"", timeout_s: float = 60.0, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `muster WORDS…` against this cluster, as a person without a terminal does."""
        return subprocess.run(
            muster(*words), input=stdin, capture_output=True, timeout=timeout_s, env=self.cli_environ(environ)
        )

    def cli_environ(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment in which the command line finds this cluster."""
        return {**os.environ, "MUSTER_DATA": str(self.data_dir), "NO_COLOR": "1", **(environ or {})}

    # Faults

    def signal(self, role: str, number: int) -> int:
        """Send a signal to the process of a role; answers its pid."""
        pid = self.pid(role)
        os.kill(pid, number)
        return pid

    def kill(self, role: str) -> int:
        """kill -9, and wait until the process is gone; answers what its pid was."""
        pid = self.signal(role, signal.SIGKILL)
        wait_gone(pid)
        child = self._child(role)
        if child is not None and child.pid == pid:
            child.wait()
        return pid

    def freeze(self, role: str) -> int:
        """SIGSTOP, in effect when this returns; `thaw` lets it go on."""
        pid = self.pid(role)
        freeze(pid)
        return pid

    def thaw(self, role: str) -> int:
        """SIGCONT."""
        return self.signal(role, signal.SIGCONT)

    def shepherds(self, agent: str) -> list[int]:
        """The shepherds of an agent: one as a rule, none while it has not needed any."""
        home = str(self.state_dir(agent))
        found = []
        for pid in self.processes():
            words = command_of(pid).split()
            if "shepherd" in words and any(word == home or word.startswith(home + "/") for word in words):
                found.append(pid)
        return sorted(found)

    def kill_shepherd(self, agent: str) -> int:
        """kill -9 of an agent's shepherd; answers what its pid was."""
        (pid,) = self.shepherds(agent)
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)
        return pid

    def processes(self) -> set[int]:
        """All processes that belong to this cluster, scripts included."""
        return {pid for pid in related(self.mark, self.path) if alive(pid)}

    # More agents

    def add_agent(self, name: str, *options: str, environ: Mapping[str, str] | None = None) -> Spawned:
        """Enrol another agent with a join token, as on a new host, and wait until it is registered."""
        token = self.client.agent_token().token
        agent = self._spawn_agent(name, "--join", token, "--name", name, *options, environ=environ)
        agent.notified()
        return agent

    def restart_agent(self, name: str, *options: str, environ: Mapping[str, str] | None = None) -> Spawned:
        """Start an agent of `add_agent` again from its state directory; does not wait for it."""
        return self._spawn_agent(name, *options, environ=environ)

    def _spawn_agent(self, name: str, *options: str, environ: Mapping[str, str] | None) -> Spawned:
        words = muster("agent", "--state", str(self.path / name), *options)
        self.extra_agents[name] = Spawned(words, environ={**self.environ, **(environ or {})}, mark=self.mark)
        return self.extra_agents[name]

    def close(self) -> None:
        """Stop everything and kill what is left."""
        try:
            if self._client is not None:
                self._client.close()
            for agent in self.extra_agents.values():
                agent.send(signal.SIGCONT)
                agent.send(signal.SIGTERM)
            self.stop()
        finally:
            end_all(self.mark, self.path)
            for role in ("up", "master", "web", *self.agents):
                child = self._child(role)
                if child is not None:
                    child.wait()

    def _print_logs(self) -> None:
        for role in ("master", "web", *self.agents):
            with contextlib.suppress(OSError, KeyError):
                print(f"--- {role}\n" + "\n".join(self.logs(role).splitlines()[-40:]), file=sys.stderr)


class Cluster(_Base):
    """One `muster up` and its daemons. A role that was killed is restarted by it; see `wait_restarted`."""

    up: Spawned

    def _child(self, role: str) -> Spawned | None:
        return getattr(self, "up", None) if role == "up" else super()._child(role)

    def start(self) -> None:
        """Start `muster up` and wait until all agents are online."""
        self.up = Spawned(
            muster(
                *("up", "--data", str(self.data_dir), "--agents", str(self.wanted_agents)),
                *("--listen", str(self.listen), "--rpc", str(self.rpc)),
            ),
            environ=self.environ,
            mark=self.mark,
        )
        self.up.expect(r"^muster is ready", timeout_s=START_S)

    def stop(self) -> None:
        """Stop `muster up`, at once if draining takes long."""
        if not hasattr(self, "up") or self.up.process.poll() is not None:
            return
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for patience_s in (0.5, 15.0, 5.0):
            self.up.send(signal.SIGTERM)
            with contextlib.suppress(AssertionError):
                self.up.wait(patience_s)
                return

    def pid(self, role: str) -> int:
        """The present process of a role, or of `up` itself."""
        if role == "up":
            return self.up.pid
        if role in self.extra_agents:
            return self.extra_agents[role].pid
        found = [self._started(line, role) for line in list(self.up.lines)]
        pids = [int(match[1]) for match in found if match]
        assert pids, f"{role} was never started\n{self.up.tail()}"
        return pids[-1]

    def wait_restarted(self, role: str, *, after: int, timeout_s: float = 30.0) -> int:
        """The pid of the process that replaced process `after` of a role, once it is ready."""
        started = rf"\| {re.escape(role)} is starting \(process (?!{after}\))(\d+)\)"
        since = next(n for n, line in enumerate(self.up.lines) if f"(process {after})" in line)
        pid = int(self.up.expect(started, after=since + 1, timeout_s=timeout_s)[1])
        begun = next(n for n, line in enumerate(self.up.lines) if f"(process {pid})" in line)
        self.up.expect(rf"\| {re.escape(role)} is ready", after=begun, timeout_s=timeout_s)
        return pid

    def restart(self, role: str) -> int:
        """kill -9 a role and wait until its successor is ready; answers the new pid."""
        return self.wait_restarted(role, after=self.kill(role))

    def logs(self, role: str) -> str:
        """What a role has logged so far."""
        if role in self.extra_agents:
            return self.extra_agents[role].tail(100_000)
        return (self.data_dir / "logs" / f"{role}.log").read_text("utf-8", "replace")

    def _started(self, line: str, role: str) -> re.Match[str] | None:
        return re.search(rf"\| {re.escape(role)} is starting \(process (\d+)\)", line)


class Daemons(_Base):
    """Master, webserver and agents without a supervisor: who is killed stays dead until `begin(role)`."""

    def start(self) -> None:
        """Prepare the directory, start the daemons in order and wait until all agents are online."""
        from muster.launch.prepare import prepare

        self.running: dict[str, Spawned] = {}
        self.web_rpc = ports.settle(ports.parse("127.0.0.1:0"), option="web")
        self.data_dir.mkdir(mode=0o700, exist_ok=True)
        prepare(self.data_dir, agents=self.wanted_agents, endpoint=f"tcp://{self.rpc.near}")
        for role in ("master", "web", *self.agents):
            self.begin(role).notified(START_S)
        self.wait_ready()

    def _child(self, role: str) -> Spawned | None:
        return getattr(self, "running", {}).get(role) or super()._child(role)

    def begin(self, role: str, *options: str, environ: Mapping[str, str] | None = None) -> Spawned:
        """Start a role (again); `.notified()` of the answer waits until it is ready."""
        known = {
            "master": ("--data", str(self.data_dir), "--rpc", str(self.rpc), "--web-rpc", str(self.web_rpc)),
            "web": ("--data", str(self.data_dir), "--listen", str(self.listen), "--rpc", str(self.web_rpc)),
        }
        words = known.get(role, ("--state", str(self.state_dir(role))))
        argv = muster(role if role in known else "agent", *words, *options)
        self.running[role] = Spawned(argv, environ={**self.environ, **(environ or {})}, mark=self.mark)
        return self.running[role]

    def stop(self) -> None:
        """Stop agents, webserver, master."""
        for role in sorted(getattr(self, "running", {}), key=lambda role: {"web": 1, "master": 2}.get(role, 0)):
            daemon = self.running[role]
            for patience_s in (1.0, 10.0):
                if daemon.process.poll() is None:
                    daemon.send(signal.SIGCONT)
                    daemon.send(signal.SIGTERM)
                    with contextlib.suppress(AssertionError):
                        daemon.wait(patience_s)

    def pid(self, role: str) -> int:
        """The present (or last) process of a role."""
        return (self.extra_agents.get(role) or self.running[role]).pid

    def logs(self, role: str) -> str:
        """What the last process of a role has logged."""
        return (self.extra_agents.get(role) or self.running[role]).tail(100_000)


def muster(*words: str) -> list[str]:
    """The words that start the command line of this source tree."""
    return [*own_command(), *words]


@contextlib.contextmanager
def timed(limit_s: float) -> Iterator[None]:
    """What is inside must take at most `limit_s`."""
    began = time.monotonic()
    yield
    took_s = time.monotonic() - began
    assert took_s <= limit_s, f"took {took_s:.1f} s, at most {limit_s:g} s allowed"
