"""Figure (h): what lists and the overview cost among 200,000 tasks, asked of a real master, the worst cases, too.

The store is filled through its own verbs, many tasks in one transaction: mixed states, names and agents; some names,
states and agents are rare and lie far back, where a list has to search longest.
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.system import System
from common.config import Settings
from common.ids import uuid7
from common.model import (
    Agent,
    Ending,
    OnStop,
    Outcome,
    Reason,
    Run,
    RunKind,
    RunState,
    Task,
    TaskSpec,
    TaskState,
    evolve,
)
from master.answers import Answers
from master.app import STORE_FILE, Master
from master.store.base import WriteTx
from master.store.sqlite import SqliteStore

TASKS = 200_000
AGENTS = 400
ROUNDS = 9
AIM_LIST_MS = 300.0
AIM_OVERVIEW_MS = 20.0
_PAGES = (
    "/", "/tasks", "/tasks?state=failed", "/tasks?name=deploy", "/tasks?name=no+such+name", "/tasks?agent=host-007",
    "/tasks?state=waiting&name=e", "/agents", "/submit", "/tokens", "/api/v1/docs",
)  # fmt: skip
_BATCH = 5_000
_BEGAN_MS = 1_700_000_000_000
_STEP_MS = 400
_NAMES = (
    "deploy web",
    "back up the database",
    "Rotate logs",
    "update packages",
    "check certificates",
    "größere Prüfung",
)
_SHA256 = "5" * 64
_SPEC = TaskSpec(script_sha256=_SHA256, script_size=5, args=["--all"], env={"STAGE": "production"})
_RUN_OF = {
    TaskState.WAITING: RunState.READY,
    TaskState.RUNNING: RunState.RUNNING,
    TaskState.SUCCEEDED: RunState.SUCCEEDED,
    TaskState.FAILED: RunState.FAILED,
    TaskState.CANCELLED: RunState.CANCELLED,
}


def run() -> list[dict[str, Any]]:
    """One row for each list and one for the overview: milliseconds, the median and the worst of the rounds."""
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / STORE_FILE, tasks=TASKS)
        with master_of(Path(folder)) as master:
            figures = list(_figures(master))
    with System(fill=lambda folder: fill(folder / STORE_FILE, tasks=TASKS)) as system:
        return figures + list(_whole_pages(system))


def _figures(master: Master) -> Iterator[dict[str, Any]]:
    yield from _baselines(master.data_dir / STORE_FILE)
    for name, where in cases(TASKS).items():
        yield _figure(f"tasks: {name}", AIM_LIST_MS, lambda where=where: _list(master.answers, **where))  # type: ignore[misc]
    yield _figure("overview", AIM_OVERVIEW_MS, lambda: _glance(master))


def _baselines(path: Path) -> Iterator[dict[str, Any]]:
    """What the bare driver needs, without an index for the question and without a word about what it finds."""
    db = sqlite3.connect(path)
    asked = {
        "names gone through": "SELECT count(*) FROM tasks WHERE instr(name_folded, 'no such name')",
        "tasks counted by state": "SELECT count(*) FROM (SELECT state, count(*) FROM tasks GROUP BY state)",
    }
    for name, sql in asked.items():
        row = _figure(f"baseline: {name}", 0.0, lambda sql=sql: db.execute(sql).fetchone()[0])  # type: ignore[misc]
        yield {**row, "aim": None}
    db.close()


def _figure(name: str, aim_ms: float, work: Callable[[], Any]) -> dict[str, Any]:
    found = work()
    spent, cpu = [], []
    for _ in range(ROUNDS):
        began, began_cpu = time.perf_counter(), time.process_time()
        work()
        spent.append((time.perf_counter() - began) * 1000)
        cpu.append((time.process_time() - began_cpu) * 1000)
    return {
        "figure": "h",
        "what": name,
        "unit": "ms",
        "median": round(statistics.median(spent), 1),
        "worst": round(max(spent), 1),
        "cpu": round(statistics.median(cpu), 1),
        "found": found,
        "aim": f"below {aim_ms:g}",
    }


def _whole_pages(system: System) -> Iterator[dict[str, Any]]:
    """Pages as a browser gets them, over HTTP: asked of the master, put into HTML, sent."""
    link = system.call("POST", "/api/v1/login-links", {})["url"]
    session = system.connect()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    session.request("POST", link.removeprefix(system.url), "", form)
    answer = session.getresponse()
    answer.read()
    headers = {"Cookie": str(answer.headers["Set-Cookie"]).partition(";")[0], "Accept": "text/html"}

    def page(path: str) -> int:
        session.request("GET", path, headers=headers)
        answer = session.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status}")
        return len(content)

    task = system.call("GET", "/api/v1/tasks?limit=1")["items"][0]
    for path in (*_PAGES, f"/tasks/{task['id']}"):
        yield {**_figure(f"page: {path}", AIM_LIST_MS, lambda path=path: page(path)), "cpu": None}  # type: ignore[misc]


def _list(answers: Answers, *, cursor: str | None = None, limit: int = 50, **where: Any) -> int:
    return len(answers.tasks(where, limit=limit, cursor=cursor)["items"])


def _glance(master: Master) -> int:
    found = master.overview.look()
    return sum(found["counts"].values())


def cases(tasks: int) -> dict[str, dict[str, Any]]:
    """What is asked for; the names say what is odd about it."""
    middle, late = _BEGAN_MS + tasks // 2 * _STEP_MS, _BEGAN_MS + tasks * _STEP_MS * 9 // 10
    open_states = ["waiting", "running"]
    return {
        "newest": {},
        "newest 500": {"limit": 500},
        "deep cursor, back": {"cursor": f"+{tasks // 10}"},
        "deep cursor": {"cursor": str(tasks // 10)},
        "state, common": {"state": "succeeded"},
        "state, rare": {"state": "failed"},
        "states, two": {"state": open_states},
        "states, all": {"state": [state.value for state in TaskState]},
        "state, deep cursor": {"state": "succeeded", "cursor": str(tasks // 10)},
        "name, common": {"name": "deploy"},
        "name, far back": {"name": "ancient"},
        "name, once": {"name": "needle"},
        "name, absent": {"name": "no such name"},
        "name, absent, one letter's case": {"name": "ÜBERALL"},
        "name, half of all far back": {"name": "of old"},
        "name, half of all far back, rare state": {"name": "of old", "state": "failed"},
        "name, half of all far back, agent": {"name": "of old", "agent": "web-7"},
        "name, absent, state": {"name": "no such name", "state": "succeeded"},
        "name, absent, states": {"name": "no such name", "state": ["succeeded", "failed", "cancelled"]},
        "name, absent, agent": {"name": "no such name", "agent": "everywhere"},
        "name, absent, since": {"name": "no such name", "since_ms": middle},
        "name, absent, until": {"name": "no such name", "until_ms": middle},
        "agent, common": {"agent": "web-7"},
        "agent, rare": {"agent": "rare"},
        "agent, in every task": {"agent": "everywhere"},
        "agent, absent": {"agent": "nobody"},
        "agent, without any": {"agent": "idle"},
        "agent, rare; state, rare": {"agent": "rare", "state": "failed"},
        "agent, in every task; state, rare": {"agent": "everywhere", "state": "failed"},
        "agent, in every task; state, never met": {"agent": "everywhere", "state": "cancelled"},
        "agent, common; states, open": {"agent": "web-7", "state": open_states},
        "since, old": {"since_ms": _BEGAN_MS},
        "since, new": {"since_ms": late},
        "until, old": {"until_ms": _BEGAN_MS + 1000 * _STEP_MS},
        "until, new": {"until_ms": late},
        "until, before all": {"until_ms": 1},
        "since and until, between": {"since_ms": middle, "until_ms": middle + 10 * _STEP_MS},
        "since and until, state, rare": {"since_ms": middle, "until_ms": late, "state": "failed"},
        "until, agent in every task": {"until_ms": middle, "agent": "everywhere"},
        "everything": {
            "name": "of old", "agent": "everywhere", "state": ["failed", "cancelled"], "since_ms": _BEGAN_MS,
            "until_ms": late,
        },
    }  # fmt: skip


def fill(path: Path, *, tasks: int) -> None:
    """A store with `tasks` tasks and their agents."""
    store = SqliteStore(path, readers=0)
    store.open()
    store.write(_add_agents)
    for start in range(0, tasks, _BATCH):
        store.write(lambda tx, start=start: _add_tasks(tx, range(start, min(start + _BATCH, tasks)), tasks))  # type: ignore[misc]
    store.close()


def _add_agents(tx: WriteTx) -> None:
    tx.put_blob(_SHA256, b"true\n")
    names = ["everywhere", "rare", "idle", *(f"web-{number}" for number in range(AGENTS))]
    for name in names:
        agent = Agent(
            id=f"agent-{name}", name=name, hostname=f"{name}.example", enrolled_at_ms=_BEGAN_MS, slots=4,
            labels={"role": name.partition("-")[0]},
        )  # fmt: skip
        tx.save_agent(agent, expect=None)


def _add_tasks(tx: WriteTx, numbers: range, tasks: int) -> None:
    for number in numbers:
        state = _state_of(number, tasks)
        agents = ["agent-everywhere"] if state is not TaskState.CANCELLED else []
        agents += [f"agent-web-{number % AGENTS}"] * (number % 3 > 0 or not agents)
        agents += ["agent-rare"] * (number in (tasks // 50, tasks // 50 + 1))
        _add(tx, number, state, agents)


def _state_of(number: int, tasks: int) -> TaskState:
    """Old tasks have ended; among the last some run and wait. Few failed, and those long ago or a moment ago."""
    if number % 1_000 == 17 and (number < tasks // 4 or number > tasks - 3_000):
        return TaskState.FAILED
    if number < tasks // 20:
        return TaskState.CANCELLED
    if number >= tasks - tasks // 100:
        return TaskState.RUNNING if number % 3 == 0 else TaskState.WAITING
    return TaskState.SUCCEEDED


def _name_of(number: int, tasks: int) -> str:
    if number == tasks // 3:
        return "the needle in the haystack"
    if number < 30:
        return f"ancient {number}"
    return f"{_NAMES[number % len(_NAMES)]} {number}" + (" of old" if number < tasks // 2 else "")


def _add(tx: WriteTx, number: int, state: TaskState, agents: list[str]) -> None:
    at_ms = _BEGAN_MS + number * _STEP_MS
    ended = state not in (TaskState.WAITING, TaskState.RUNNING)
    began = state is not TaskState.WAITING
    task = Task(
        id=uuid7(), name=_name_of(number, TASKS), seq=tx.next_seq(), state=state,
        counts={_RUN_OF[state].value: len(agents)}, total=len(agents), priority=1024, parallel=0, fail_count=-1,
        fail_rate=None, on_stop=OnStop.FINISH, queue="default", count=None, lost_after_s=120.0, created_at_ms=at_ms,
        started_at_ms=at_ms + 5 if began else None, ended_at_ms=at_ms + 2_000 if ended else None, submitted_by="bench",
    )  # fmt: skip
    if state is TaskState.FAILED and number % 2_000 == 17:
        task = evolve(task, stopped=True, reason=Reason(code="fail_count", detail="1 run failed"))
    if state is TaskState.WAITING and number % 100 == 1:
        task = evolve(task, paused=True)
    tx.add_task(task, _SPEC, [_run(task, agent, _RUN_OF[state], ended=ended) for agent in agents])


def _run(task: Task, agent_id: str, state: RunState, *, ended: bool) -> Run:
    ending = Ending(outcome=Outcome.EXIT, exit_code=int(state is RunState.FAILED)) if ended else None
    held = state is RunState.RUNNING
    return Run(
        id=uuid7(), task_id=task.id, kind=RunKind.SCRIPT, state=state, seq=task.seq, priority=task.priority,
        agent_id=agent_id, addressed=True, lease=f"lease {task.seq} {agent_id}" if held else None,
        fence=1 if held else None, created_at_ms=task.created_at_ms, started_at_ms=task.started_at_ms,
        ended_at_ms=task.ended_at_ms, ending=ending,
    )  # fmt: skip


@contextmanager
def master_of(folder: Path) -> Iterator[Master]:
    """A master on the store in `folder`; its keeper does nothing, the figures are those of reads alone."""
    master = Master(
        Settings(), data_dir=folder, agent_listen="127.0.0.1:0", web_listen="127.0.0.1:0", keeper_runs=False
    )
    master.start()
    try:
        yield master
    finally:
        master.stop()
