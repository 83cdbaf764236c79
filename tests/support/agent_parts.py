"""The edges of the agent's loops for unit tests: a master that answers from a script, and a stand-in for the executor.

Loops are driven by hand, `step(clock.monotonic_s())`; nothing here waits for time to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from agent.attempt import AttemptKey, AttemptSpec, ExitRecord
from agent.holdings import Holdings
from agent.link import MasterLink
from common.clock import ManualClock
from common.config import Settings
from common.errors import MusterError
from common.ids import uuid7
from common.model import TaskSpec
from common.wire import pack

Answer = Any | MusterError | Callable[..., Any]
REGISTERED = {
    "agent_id": "0192f0c8-0000-7000-8000-00000000000a",
    "name": "a",
    "settings": {},
    "running": [],
    "drop": [],
}
BEATEN = {"cancel": [], "stale": [], "register": False, "draining": False}


class ScriptedMaster:
    """Stands for `RpcClient`: `answers[method]` are given in turn, the last one for ever; an error is raised."""

    def __init__(self) -> None:
        self.connected = True
        self.state = "connected"
        self.answers: dict[str, list[Answer]] = {"register": [REGISTERED], "heartbeat": [BEATEN]}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.starts = 0
        self.stops = 0

    def start(self) -> None:
        self.starts += 1

    def stop(self) -> None:
        self.stops += 1

    def call(self, method: str, *args: Any, timeout_s: float, request_id: str | None = None) -> Any:
        self.calls.append((method, args))
        queue = self.answers[method]
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(answer, MusterError):
            raise answer
        return answer(*args) if callable(answer) else answer

    def sent(self, method: str) -> list[Any]:
        """The only argument of each call of `method`."""
        return [args[0] for name, args in self.calls if name == method]


class Parts:
    """A link, its clock and the holdings beside it."""

    def __init__(self, master: ScriptedMaster | None = None, *, registered: bool = True, **settings: float) -> None:
        self.master = master or ScriptedMaster()
        self.clock = ManualClock()
        self.holdings = Holdings()
        self.link = MasterLink(
            self.master,
            session="session",
            settings=Settings(**settings),  # type: ignore[arg-type]
            holdings=self.holdings,
            clock=self.clock,
        )
        if registered:
            self.link.step(self.now)

    @property
    def now(self) -> float:
        """The clock's monotonic second."""
        return self.clock.monotonic_s()


class FakeExecutor:
    """Notes what it is asked; futures are done at once unless told otherwise."""

    def __init__(self) -> None:
        self.prepared: list[AttemptKey] = []
        self.submitted: list[AttemptSpec] = []
        self.abandoned: list[AttemptKey] = []
        self.kills: list[tuple[str, str]] = []
        self.disk_error: OSError | None = None
        self.futures: dict[AttemptKey, Future[ExitRecord]] = {}

    def prepare(self, specs: list[AttemptSpec]) -> Future[None]:
        future: Future[None] = Future()
        if self.disk_error is not None:
            future.set_exception(self.disk_error)
        else:
            self.prepared += [spec.key for spec in specs]
            future.set_result(None)
        return future

    def submit(self, spec: AttemptSpec) -> Future[ExitRecord]:
        self.submitted.append(spec)
        return self.futures.setdefault(spec.key, Future())

    def abandon(self, keys: Iterable[AttemptKey]) -> Future[None]:
        self.abandoned += keys
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def kill(self, run_id: str, *, why: str, grace_s: float | None = None) -> bool:
        self.kills.append((run_id, why))
        return True


def claim(
    script: bytes | None = b"true\n", *, run_id: str | None = None, attempt: int = 1, **spec: Any
) -> dict[str, Any]:
    """A claim as the master sends it."""
    task = TaskSpec(script_sha256="a" * 64, script_size=5, **spec)
    return {
        "run_id": run_id or uuid7(),
        "task_id": uuid7(),
        "attempt": attempt,
        "lease": f"lease-{attempt}",
        "spec": pack(task),
        "script": script,
    }
