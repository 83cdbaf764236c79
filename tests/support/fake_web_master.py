"""A master's web door in memory, speaking the real protocol: for what the real master does too rarely to be tested.

A test says what happens (`task`, `write`, `end`), makes calls fail, hang or lose their answers, and forgets its feed.
Views and answers have the form of docs/internals.md; nothing is decided here that the webserver could rely on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent.event import Event

from common import auth
from common.auth import token_hash
from common.errors import MusterError, NotFound, Unauthorized, Unavailable
from common.ids import uuid7
from common.rpc import Method, Peer, RpcServer

ADMIN = "admin-token-of-the-tests"
FINAL = ("succeeded", "failed", "cancelled", "skipped", "expired")
NAMES = {1: "stdout", 2: "stderr"}


@dataclass
class FakeOutput:
    """What one attempt wrote: pieces (stream number, bytes), or (0, length) for a gap."""

    pieces: list[tuple[int, bytes | int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes written, gaps included."""
        return sum(piece if isinstance(piece, int) else len(piece) for _, piece in self.pieces)

    def read(self, stream: str, offset: int, limit: int) -> dict[str, Any]:
        """As `read_output` answers it: `limit` bounds the bytes looked at, of whichever stream."""
        content, segments, gaps, at, behind, looked = bytearray(), [], [], 0, offset, 0
        for number, piece in self.pieces:
            length = piece if isinstance(piece, int) else len(piece)
            start, end = max(at, offset), at + length
            if isinstance(piece, int):
                gaps.append([at, length])
                if behind >= at and end > behind:
                    behind = end
            elif start < end and looked < limit:
                part = piece[start - at : start - at + limit - looked]
                looked += len(part)
                behind = start + len(part)
                if stream in ("all", NAMES[number]):
                    segments.append([start, number, len(part)])
                    content += part
            at = end
        return {"data": bytes(content), "segments": segments, "gaps": gaps, "next_offset": behind, "size": at}


class FakeWebMaster:
    """See the module. Start it with `with`."""

    def __init__(self) -> None:
        self.keys = auth.new_key_pair()
        self.tokens = {token_hash(ADMIN): {"name": "admin", "role": "admin"}}
        self.tasks: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.agents: dict[str, dict[str, Any]] = {}
        self.output: dict[tuple[str, int], FakeOutput] = {}
        self.by_key: dict[str, str] = {}
        self.rows: list[list[Any]] = []
        self.seq = 0
        self.kept_from = 1
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.problems: list[str] = []
        self._changed = Event()
        self._failing: dict[str, list[MusterError | None]] = {}
        self._holding: dict[str, Event] = {}
        self._arrived = Event()
        self._losing: dict[str, int] = {}
        self._server = self._new_server("tcp://127.0.0.1:0")

    # -- what tests do -------------------------------------------------------------------------------------------------

    def __enter__(self) -> FakeWebMaster:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return self._server.endpoint

    def restart(self) -> None:
        """Stop and start again at the same address; nothing is forgotten."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Be away."""
        self._server.stop()

    def start(self) -> None:
        """Be back at the same address."""
        self._server = self._new_server(self._server.endpoint)
        with gevent.Timeout(10):
            while True:
                try:
                    return self._server.start()
                except Unavailable:  # libzmq lets go of the address a moment later
                    gevent.sleep(0.01)

    def fail(self, method: str, *errors: MusterError | None) -> None:
        """Answer the next calls of `method` with these errors, without carrying them out; None: as usual."""
        self._failing.setdefault(method, []).extend(errors)

    def lose_answers(self, method: str, count: int = 1) -> None:
        """Carry out the next calls of `method`, but cut all connections instead of answering."""
        self._losing[method] = count

    @contextmanager
    def holding(self, method: str) -> Iterator[Event]:
        """Calls of `method` wait at the door meanwhile; the event is set when the first one does."""
        gate, waiting = Event(), Event()
        self._holding[method] = gate
        self._arrived = waiting
        try:
            yield waiting
        finally:
            del self._holding[method]
            gate.set()

    def wait_for(self, condition: Callable[[], Any], *, timeout_s: float = 20.0) -> None:
        """Wait until `condition()` is true; it is looked at after every call."""
        until = time.monotonic() + timeout_s
        while not condition():
            assert self._changed.wait(timeout=max(0.0, until - time.monotonic())), f"did not come about: {self.calls}"

    def count(self, method: str) -> int:
        """How many calls of `method` came."""
        return sum(1 for name, _ in self.calls if name == method)

    def task(self, *, runs: int = 1, **fields: Any) -> dict[str, Any]:
        """A new task with its runs, told on the feed."""
        task_id = uuid7()
        view = task_view(task_id, total=runs, **fields)
        self.tasks[task_id] = view
        for number in range(runs):
            run = run_view(task_id, number)
            self.runs[run["id"]] = run
        self.tell("task", task_id)
        return view

    def runs_of(self, task: dict[str, Any]) -> list[dict[str, Any]]:
        """The task's runs, in order."""
        return [run for run in self.runs.values() if run["task_id"] == task["id"]]

    def begin(self, run: dict[str, Any]) -> None:
        """The run begins."""
        run.update(state="running", started_at_ms=1_700_000_001_000)
        self.tasks[run["task_id"]].update(state="running")
        self.tell("run", run["task_id"], run["id"])

    def write(self, run: dict[str, Any], content: bytes | int, *, stream: int = 1, tell: bool = True) -> None:
        """The run's script writes; a number is a gap of that length."""
        output = self.output.setdefault((run["id"], run["attempt"]), FakeOutput())
        output.pieces.append((0 if isinstance(content, int) else stream, content))
        if tell:
            self.tell("output", run["task_id"], run["id"], output.size)

    def end(self, run: dict[str, Any], *, state: str = "succeeded", exit_code: int = 0) -> None:
        """The run ends; the task too, if it was the last."""
        output = self.output.get((run["id"], run["attempt"]), FakeOutput())
        run.update(state=state, outcome="exit", exit_code=exit_code, ended_at_ms=1_700_000_002_000)
        run.update(output_bytes=output.size, duration=1.0)
        self.tell("run", run["task_id"], run["id"])
        if all(each["state"] in FINAL for each in self.runs_of(self.tasks[run["task_id"]])):
            self.tasks[run["task_id"]].update(state=state, ended_at_ms=1_700_000_002_000)
            self.tell("task", run["task_id"])

    def retry(self, run: dict[str, Any]) -> None:
        """The run is to begin once more."""
        run.update(state="ready", outcome=None, exit_code=None, ended_at_ms=None, output_bytes=0, duration=None)
        run.update(attempt=run["attempt"] + 1, started_at_ms=None)
        self.tasks[run["task_id"]].update(state="running", ended_at_ms=None)
        self.tell("run", run["task_id"], run["id"])

    def agent(self, **fields: Any) -> dict[str, Any]:
        """A new agent, told on the feed."""
        view = agent_view(len(self.agents), **fields)
        self.agents[view["id"]] = view
        self.tell("agent", None, view["id"])
        return view

    def change(self, agent: dict[str, Any], **fields: Any) -> None:
        """The agent is another way now."""
        agent.update(fields)
        self.tell("agent", None, agent["id"])

    def forget(self, agent: dict[str, Any]) -> None:
        """The agent is forgotten."""
        del self.agents[agent["id"]]
        self.tell("agent", None, agent["id"])

    def tell(self, kind: str, task_id: str | None, run_id: str | None = None, end: int | None = None) -> None:
        """Append a row to the feed."""
        self.seq += 1
        self.rows.append([self.seq, kind, task_id, run_id, end])
        self._pulse()

    def forget_feed(self) -> None:
        """Keep no row: whoever was not up to date has lost some."""
        self.seq += 10
        self.kept_from = self.seq + 1
        self.rows.clear()
        self._pulse()

    # -- the door ------------------------------------------------------------------------------------------------------

    def _new_server(self, endpoint: str) -> RpcServer:
        names = [name.removeprefix("do_") for name in dir(self) if name.startswith("do_")]
        return RpcServer(
            endpoint,
            {name: Method(self._door(name, getattr(self, f"do_{name}"))) for name in names},
            secret_key=self.keys.secret,
            public_key=self.keys.public,
            authorize=lambda peer, method: None,
            max_message_bytes=8 * 1024 * 1024,
            max_pending_per_peer=2_000,
        )

    def _door(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def call(peer: Peer, *args: Any) -> Any:
            gate = self._holding.get(name)
            if gate is not None:
                self._arrived.set()
                gate.wait()
            failing = self._failing.get(name)
            error = failing.pop(0) if failing else None
            if error is not None:
                raise error
            self.calls.append((name, args))
            self._pulse()
            answer = fn(*args)
            if self._losing.get(name, 0) > 0:
                self._losing[name] -= 1
                self.restart()
            return answer

        return call

    def _pulse(self) -> None:
        changed, self._changed = self._changed, Event()
        changed.set()

    def _task(self, task_id: str) -> dict[str, Any]:
        found = [task for known, task in self.tasks.items() if known.startswith(task_id)]
        if len(found) != 1:
            raise NotFound(f"There is no task {task_id}.")
        return found[0]

    def _run(self, run_id: str) -> dict[str, Any]:
        if run_id not in self.runs:
            raise NotFound(f"There is no run {run_id}.")
        return self.runs[run_id]

    def do_check_token(self, sha256: str) -> dict[str, str]:
        if sha256 not in self.tokens:
            raise Unauthorized("no such token")
        return self.tokens[sha256]

    def do_add_task(self, request: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
        key = meta["idempotency_key"]
        created = key not in self.by_key
        if created:
            self.by_key[key] = self.task(name=request["name"] or "script")["id"]
        view = self.tasks[self.by_key[key]]
        self._wait_final(view, meta["wait_s"])
        return {"task": view, "created": created}

    def do_get_task(self, task_id: str, wait_s: float = 0.0) -> dict[str, Any]:
        view = self._task(task_id)
        self._wait_final(view, wait_s)
        return view

    def _wait_final(self, view: dict[str, Any], wait_s: float) -> None:
        until = time.monotonic() + wait_s
        while view["state"] not in FINAL and (left_s := until - time.monotonic()) > 0:
            self._changed.wait(timeout=left_s)

    def do_retry_task(self, task_id: str, only: str) -> dict[str, Any]:
        return self._task(task_id)

    def do_list_runs(
        self, task_id: str, state: list[str] | None, limit: int, cursor: str | None, agent: str | None = None
    ) -> dict[str, Any]:
        runs = [run for run in self.runs_of(self._task(task_id)) if state in (None, run["state"])]
        first = int(cursor or 0)
        behind = first + limit
        return {"items": runs[first:behind], "next": str(behind) if behind < len(runs) else None}

    def do_list_tasks(self, where: dict[str, Any], limit: int, cursor: str | None) -> dict[str, Any]:
        return {"items": list(self.tasks.values())[:limit], "next": None}

    def do_get_run(self, run_id: str) -> dict[str, Any]:
        return self._run(run_id)

    def do_get_agent(self, agent_id: str) -> dict[str, Any]:
        if agent_id not in self.agents:
            raise NotFound(f"There is no agent {agent_id}.")
        return self.agents[agent_id]

    def do_get_agents(self, agent_ids: list[str]) -> dict[str, Any]:
        return {"items": [self.agents[agent_id] for agent_id in agent_ids if agent_id in self.agents]}

    def do_read_output(self, run_id: str, attempt: int | None, stream: str, offset: int, limit: int) -> dict[str, Any]:
        run = self._run(run_id)
        number = run["attempt"] if attempt is None else attempt
        answer = self.output.get((run_id, number), FakeOutput()).read(stream, offset, limit)
        return {**answer, "attempt": number, "ended": number < run["attempt"] or run["state"] in FINAL}

    def do_feed(self, after: int, wait_s: float, limit: int) -> dict[str, Any]:
        if after < 0:
            return {"reset": False, "events": [], "last": self.seq}
        until = time.monotonic() + wait_s
        while True:
            if after > self.seq or after < self.kept_from - 1:
                return {"reset": True, "events": [], "last": self.seq}
            rows = [row for row in self.rows if row[0] > after][:limit]
            left_s = until - time.monotonic()
            if rows or left_s <= 0:
                return {"reset": False, "events": rows, "last": rows[-1][0] if rows else after}
            self._changed.wait(timeout=left_s)

    def do_ready(self) -> dict[str, Any]:
        return {"ready": not self.problems, "problems": self.problems, "version": "0"}

    def do_metrics(self) -> str:
        return "# HELP muster_fake a number\nmuster_fake 1\n"


def task_view(task_id: str, *, total: int = 1, name: str = "script", **fields: Any) -> dict[str, Any]:
    """A task's view as the master gives it."""
    return {
        "id": task_id, "name": name, "state": "waiting", "paused": False, "counts": {"ready": total}, "total": total,
        "reason": None, "waiting_because": None, "waiting": [], "created_at_ms": 1_700_000_000_000,
        "started_at_ms": None,
        "ended_at_ms": None, "submitted_by": "admin", "script_sha256": "0" * 64, "script_size": 4, "interpreter": None,
        "args": [], "env": {}, "cwd": None, "timeout": 3600.0, "parallel": 0, "fail_count": -1, "fail_rate": None,
        "on_stop": "finish", "targets": ["a"], "count": None, "queue": "default", "priority": 1024, "expires": 86400.0,
        "lost_after": 120.0, "output_limit": 16777216, **fields,
    }  # fmt: skip


def run_view(task_id: str, number: int) -> dict[str, Any]:
    """A run's view as the master gives it, before its begin."""
    return {
        "id": uuid7(), "task_id": task_id, "agent": {"id": uuid7(), "name": f"host-{number}", "hostname": "host"},
        "state": "ready", "attempt": 1, "silent_since_ms": None, "claimed_at_ms": None, "started_at_ms": None,
        "ended_at_ms": None, "waiting_because": None, "waiting": [], "late": False, "output_sha256": None,
        "outcome": None, "exit_code": None,
        "signal": None, "killed_by_us": False, "duration": None, "output_bytes": 0, "output_gaps": [],
        "leftovers": [], "detail": None, "steps": [],
    }  # fmt: skip


def agent_view(number: int, **fields: Any) -> dict[str, Any]:
    """An agent's view as the master gives it."""
    return {
        "id": uuid7(), "name": f"host-{number}", "hostname": f"host-{number}.lan", "state": "online", "labels": {},
        "facts": {"cpus": 2}, "slots": 4, "held": 0, "queues": None, "last_seen_at_ms": 1_700_000_000_000,
        "enrolled_at_ms": 1_700_000_000_000, "former_names": [], **fields,
    }  # fmt: skip
