"""A fake agent that speaks the real protocol over a real connection, and a master in this process to speak to.

The agent does nothing by itself: each call is one RPC, so a test decides what is said, repeated, or left unsaid.
`MasterHere` runs a whole master with a clock that the test may move; `web(method, …)` calls it as a webserver does.
"""

from __future__ import annotations

import atexit
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from common import auth
from common.backoff import Backoff
from common.clock import ManualClock, SystemClock
from common.config import Settings
from common.model import Ending, Outcome, Role, TaskSpec, TrustedKey
from common.rpc import RpcClient
from common.wire import to_wire, unpack
from master.app import OUTPUT_FILE, STORE_FILE, Master
from master.output import OutputStore
from master.store.sqlite import SqliteStore

CALL_S = 10.0
EXITED_0 = Ending(outcome=Outcome.EXIT, exit_code=0, duration_s=0.1)


def exited(code: int, **more: Any) -> Ending:
    """The end of a script that exited by itself."""
    return Ending(outcome=Outcome.EXIT, exit_code=code, duration_s=0.1, **more)


class FakeAgent:
    """One agent: its keys, its connection, what it holds. `name` is what it registers under."""

    def __init__(self, endpoint: str, server_key: bytes, *, name: str, keys: auth.KeyPair | None = None) -> None:
        self.name = name
        self.keys = keys or auth.new_key_pair()
        self.session = secrets.token_hex(8)
        self.machine_id = f"machine-of-{name}"
        self.boot_id = "boot-1"
        self.hostname = f"host-of-{name}"
        self.agent_id = ""
        self.slots = 4
        self.queues: list[str] | None = None
        self.labels: dict[str, str] | None = None
        self.held: dict[str, str] = {}
        self.pulls = 0
        self.client = RpcClient(
            endpoint,
            server_key=server_key,
            public_key=self.keys.public,
            secret_key=self.keys.secret,
            max_message_bytes=2 * 1024 * 1024,
            backoff=Backoff(base_s=0.02, cap_s=0.2, floor_s=0.01),
        )
        self.client.start()

    def close(self) -> None:
        """Leave without a word."""
        self.client.stop()

    def call(self, method: str, *args: Any, timeout_s: float = CALL_S) -> Any:
        """One RPC."""
        return self.client.call(method, *args, timeout_s=timeout_s)

    def register(self, **more: Any) -> dict[str, Any]:
        """Announce this process."""
        about = {
            "name": self.name, "hostname": self.hostname, "machine_id": self.machine_id, "boot_id": self.boot_id,
            "version": "0", "slots": self.slots, "queues": self.queues, "labels": self.labels, "facts": {"cpus": 2},
            "session": self.session, "held": [], "ended": [], **more,
        }  # fmt: skip
        answer: dict[str, Any] = self.call("register", about)
        self.agent_id = answer["agent_id"]
        return answer

    def beat(self, held: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
        """A heartbeat; `held` None: everything in hand."""
        pairs = [list(pair) for pair in (self.held if held is None else held).items()]
        answer: dict[str, Any] = self.call("heartbeat", {"session": self.session, "held": pairs, **more})
        return answer

    def pull(self, slots: int = 1, *, wait_s: float = 0.0, held: dict[str, str] | None = None) -> dict[str, Any]:
        """Ask for work; what is claimed is in hand afterwards."""
        self.pulls += 1
        pairs = [list(pair) for pair in (self.held if held is None else held).items()]
        ask = {"session": self.session, "pull": self.pulls, "free_slots": slots, "held": pairs, "wait_s": wait_s}
        answer: dict[str, Any] = self.call("pull_task", ask, timeout_s=wait_s + CALL_S)
        self.held.update((claim["run_id"], claim["lease"]) for claim in answer["runs"])
        return answer

    def claim(self, slots: int = 1, *, wait_s: float = 0.0) -> list[dict[str, Any]]:
        """The claims of one pull."""
        runs: list[dict[str, Any]] = self.pull(slots, wait_s=wait_s)["runs"]
        return runs

    def begin(self, *claims: dict[str, Any]) -> list[dict[str, Any]]:
        """Ask for leave to fork these."""
        answers: list[dict[str, Any]] = self.call("begin", [[c["run_id"], c["lease"]] for c in claims])
        for answer in answers:
            if not answer["ok"]:
                self.held.pop(answer["run_id"], None)
        return answers

    def release(self, *claims: dict[str, Any]) -> None:
        """Give these back."""
        self.call("release", [[c["run_id"], c["lease"]] for c in claims])
        for claim in claims:
            self.held.pop(claim["run_id"], None)

    def write(self, claim: dict[str, Any], data: bytes, *, offset: int = 0, stream: int = 1) -> dict[str, Any]:
        """Send a chunk of output."""
        chunk = {**_attempt(claim), "offset": offset, "segments": [[stream, len(data)]] if data else [], "data": data}
        answer: dict[str, Any] = self.call("output", [chunk])
        return answer

    def end(self, claim: dict[str, Any], ending: Ending = EXITED_0) -> str:
        """Tell how an attempt ended; what became of it."""
        taken: str = self.ends([(claim, ending)])[0]["taken"]
        return taken

    def ends(self, results: Iterable[tuple[dict[str, Any], Ending]]) -> list[dict[str, Any]]:
        """Tell how several attempts ended."""
        told = [{**_attempt(claim), "ending": to_wire(ending)} for claim, ending in results]
        answers: list[dict[str, Any]] = self.call("result", told)
        for answer in answers:
            if answer["taken"] != "need_output":
                self.held.pop(answer["run_id"], None)
        return answers

    def run_one(self, ending: Ending = EXITED_0, *, wait_s: float = 0.0) -> dict[str, Any]:
        """Claim, begin and end one run; the claim."""
        (claim,) = self.claim(wait_s=wait_s)
        (begun,) = self.begin(claim)
        assert begun["ok"], begun
        assert self.end(claim, ending) == "stored"
        return claim


def _attempt(claim: dict[str, Any]) -> dict[str, Any]:
    return {"run_id": claim["run_id"], "attempt": claim["attempt"], "lease": claim["lease"]}


def spec_of(claim: dict[str, Any]) -> TaskSpec:
    """The spec that a claim carries."""
    return unpack(TaskSpec, claim["spec"])


@cache
def empty_databases() -> Path:
    """A folder with migrated, empty databases; masters of tests begin with copies, which is quicker than migrating."""
    folder = Path(tempfile.mkdtemp(prefix="muster-empty-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for store in (SqliteStore(folder / STORE_FILE), OutputStore(folder / OUTPUT_FILE)):
        store.open()
        store.close()
    return folder


class MasterHere:
    """A master in this process, its web door, and fake agents."""

    def __init__(
        self, data_dir: Path, *, manual: bool = False, settings: Settings | None = None, keeper_runs: bool | None = None
    ) -> None:
        self.data_dir = data_dir
        self.clock = ManualClock() if manual else None
        self.settings = settings or Settings(keeper_interval=0.2)
        self._keeper_runs = (not manual) if keeper_runs is None else keeper_runs
        self._agents: list[FakeAgent] = []
        data_dir.mkdir(exist_ok=True)
        for file in (STORE_FILE, OUTPUT_FILE):
            if not (data_dir / file).exists():
                shutil.copyfile(empty_databases() / file, data_dir / file)
        self.start()

    def start(self) -> None:
        """Start, or start again on the same directory."""
        self.master = Master(
            self.settings, data_dir=self.data_dir, agent_listen="127.0.0.1:0", web_listen="127.0.0.1:0",
            clock=self.clock or SystemClock(), keeper_runs=self._keeper_runs,
        )  # fmt: skip
        self.master.start()
        keys = self.master.web_keys
        self._web = RpcClient(
            self.master.web_server.endpoint,
            server_key=self.master.server_keys.public,
            public_key=keys.public,
            secret_key=keys.secret,
            max_message_bytes=8 * 1024 * 1024,
            backoff=Backoff(base_s=0.02, cap_s=0.2, floor_s=0.01),
        )
        self._web.start()

    def stop(self) -> None:
        """Stop the master and everything that speaks to it."""
        for agent in self._agents:
            agent.close()
        self._agents.clear()
        self._web.stop()
        self.master.stop()

    def restart(self, *agents: FakeAgent) -> None:
        """Stop and start anew; these agents connect to the new one and do not register by themselves."""
        self.master.stop()
        self._web.stop()
        self.start()
        for agent in agents:
            self.reconnect(agent)

    def reconnect(self, agent: FakeAgent) -> None:
        """Point an agent at the master of now."""
        agent.client.stop()
        fresh = FakeAgent(
            self.master.agent_server.endpoint, self.master.server_keys.public, name=agent.name, keys=agent.keys
        )
        self._agents.append(fresh)
        agent.client = fresh.client

    def web(self, method: str, *args: Any, timeout_s: float = 70.0) -> Any:
        """A call as the webserver makes it."""
        return self._web.call(method, *args, timeout_s=timeout_s)

    def agent(self, name: str, *, register: bool = True, twin: FakeAgent | None = None, **more: Any) -> FakeAgent:
        """A registered agent whose key the master trusts; `twin`: with the key of that one."""
        agent = FakeAgent(
            self.master.agent_server.endpoint, self.master.server_keys.public, name=name,
            keys=twin.keys if twin is not None else None,
        )  # fmt: skip
        self._agents.append(agent)
        for field, value in more.items():
            assert hasattr(agent, field), field
            setattr(agent, field, value)
        if twin is None:
            key = TrustedKey(public_key=agent.keys.public_text, role=Role.AGENT, name=name)
            self.master.store.write(lambda tx: tx.save_key(key))
            self.master.keys.put(key)
        if register:
            agent.register()
        return agent

    def submit(self, script: bytes = b"true\n", *, wait_s: float = 0.0, key: str | None = None, **request: Any) -> Any:
        """Submit a task; its view."""
        meta: dict[str, Any] = {"body_sha256": "", "submitted_by": "test", "wait_s": wait_s}
        if key is not None:
            body = msgspec.json.encode({"script": script, **request})
            meta.update(idempotency_key=key, body_sha256=auth.token_hash(body.decode()))
        return self.web("add_task", {"script": script, **request}, meta)["task"]

    def task(self, view: dict[str, Any], *, wait_s: float = 0.0) -> dict[str, Any]:
        """The task's view of now."""
        answer: dict[str, Any] = self.web("get_task", view["id"], wait_s)
        return answer

    def runs(self, view: dict[str, Any]) -> list[dict[str, Any]]:
        """The runs of a task, in order."""
        items: list[dict[str, Any]] = self.web("list_runs", view["id"], None, 500, None)["items"]
        return items

    def states(self, view: dict[str, Any]) -> list[str]:
        """The states of a task's runs, in order."""
        return [run["state"] for run in self.runs(view)]

    def advance(self, seconds: float, *, step: float = 0.2) -> None:
        """Move the manual clock as a running master would live through it: in steps, the keeper looking at each."""
        assert self.clock is not None
        left = seconds
        while left > 1e-9:
            some = min(step, left)
            self.clock.advance(some)
            left -= some
            self.keep()

    def keep(self) -> None:
        """One round of the keeper."""
        self.master.keeper.step(self.master.clock.monotonic_s())

    def findings(self) -> list[str]:
        """What `muster verify` finds."""
        answer = self.web("verify")
        findings: list[str] = answer["findings"]
        return findings


@contextmanager
def master_here(data_dir: Path, **options: Any) -> Iterator[MasterHere]:
    """A started master; at the end its store must hold together."""
    here = MasterHere(data_dir, **options)
    try:
        yield here
        assert here.findings() == []
    finally:
        here.stop()
