"""A master as a process of its own, to be killed: fake agents and a web door of this process speak to it."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import gevent

from common import auth
from common.backoff import Backoff
from common.errors import Busy, CallTimeout, PeerUnreachable
from common.rpc import RpcClient
from master.app import OUTPUT_FILE, STORE_FILE
from tests.support.fake_agent import FakeAgent, empty_databases
from tests.support.processes import Spawned, end_all

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
_AWAY = (PeerUnreachable, CallTimeout, Busy)


def free_port() -> int:
    """A port that is free, below those that the kernel gives to outgoing connections: it stays free over a restart."""
    while True:
        port = random.randint(12_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class MasterProcess:
    """`muster master` on one directory and one pair of ports, over all its restarts."""

    def __init__(self, data_dir: Path, *, agents: list[str], environ: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self._environ = environ or {}
        self._mark = f"master-{data_dir}"
        self._faults_once = data_dir / "faults-once"
        self._faults_once.mkdir(parents=True)
        for file in (STORE_FILE, OUTPUT_FILE):
            shutil.copyfile(empty_databases() / file, data_dir / file)
        (data_dir / "keys").mkdir(mode=0o700)
        self._server = auth.load_or_create_key_pair(data_dir / "keys" / "master.key")
        self._web_keys = auth.load_or_create_key_pair(data_dir / "keys" / "web.key")
        self._ports = (free_port(), free_port())
        pairs = {name: auth.new_key_pair() for name in agents}
        entries = [{"public_key": pair.public_text, "role": "agent", "name": name} for name, pair in pairs.items()]
        auth.write_private(data_dir / "keys" / "trusted.json", json.dumps(entries).encode())
        self.process: Spawned | None = None
        self.agents = [
            FakeAgent(f"tcp://127.0.0.1:{self._ports[0]}", self._server.public, name=name, keys=pair)
            for name, pair in pairs.items()
        ]
        self._web = RpcClient(
            f"tcp://127.0.0.1:{self._ports[1]}", server_key=self._server.public, public_key=self._web_keys.public,
            secret_key=self._web_keys.secret, max_message_bytes=8 * 1024 * 1024,
            backoff=Backoff(base_s=0.02, cap_s=0.1, floor_s=0.01),
        )  # fmt: skip
        self._web.start()

    def start(self, *, faults: str = "") -> None:
        """Start and wait until it serves. `faults`: armed fault points, each acting once over all starts."""
        environ = {**self._environ, "MUSTER_FAULTS": faults, "MUSTER_FAULTS_ONCE": str(self._faults_once)}
        argv = [
            sys.executable, "-m", "muster", "master", "--data", str(self.data_dir),
            "--rpc", f"127.0.0.1:{self._ports[0]}", "--web-rpc", f"127.0.0.1:{self._ports[1]}",
        ]  # fmt: skip
        self.process = Spawned(argv, environ=environ, mark=self._mark, cwd=ROOT)
        self.process.notified()

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.send(signal.SIGKILL)
        self.died()

    def died(self) -> None:
        """Wait until it has died of a SIGKILL."""
        assert self.process is not None
        assert self.process.wait() == -signal.SIGKILL, self.process.tail()

    def stop(self) -> int:
        """TERM; the exit code."""
        assert self.process is not None
        self.process.send(signal.SIGTERM)
        return self.process.wait()

    def close(self) -> None:
        """End everything."""
        for agent in self.agents:
            agent.close()
        self._web.stop()
        if self.process is not None:
            self.process.send(signal.SIGKILL)
            self.process.wait()
        end_all(self._mark)

    def web(self, method: str, *args: Any, timeout_s: float = 30.0) -> Any:
        """A call as the webserver makes it."""
        return self._web.call(method, *args, timeout_s=timeout_s)

    def submit(self, *, key: str | None = None, **request: Any) -> dict[str, Any]:
        """Submit a task; the answer of add_task."""
        meta = {"body_sha256": "b", "submitted_by": "test", "idempotency_key": key}
        answer: dict[str, Any] = self.web("add_task", {"script": b"true\n", **request}, meta)
        return answer


@contextmanager
def master_process(data_dir: Path, *, agents: list[str], **options: Any) -> Iterator[MasterProcess]:
    """A master process, not started yet, with fake agents that have not registered yet."""
    master = MasterProcess(data_dir, agents=agents, **options)
    try:
        yield master
    finally:
        master.close()


def cut_off(fn: Callable[[], object]) -> None:
    """Call `fn`, whose answer must not come because the master dies under it."""
    try:
        answer = fn()
    except _AWAY:
        return
    raise AssertionError(f"the master answered: {answer!r}")


def insist(fn: Callable[[], T], *, timeout_s: float = 20.0) -> T:
    """The answer of `fn`, asked again while the master is away."""
    with gevent.Timeout(timeout_s):
        while True:
            try:
                return fn()
            except _AWAY:
                gevent.sleep(0.02)
