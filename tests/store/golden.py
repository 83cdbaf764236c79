"""Writes the golden databases: `python -m tests.store.golden` after a new schema, before its release, never again.

Each holds one of everything. What must be found in it stands beside it as JSON, in the records' own field names.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from common.model import (
    ApiToken,
    Attempt,
    Course,
    Ending,
    JoinToken,
    Leftover,
    LoginLink,
    Outcome,
    Reason,
    Role,
    Run,
    RunState,
    TaskState,
    TokenKind,
    TrustedKey,
)
from master.lifecycle import Cancel
from master.output import OutputChunk, OutputStore
from master.store.base import ReadTx, TaskFilter, WriteTx
from master.store.migrate import REVISIONS
from master.store.sqlite import SqliteStore
from tests.store.making import (
    SCRIPT_SHA256,
    add_addressed,
    add_free,
    alter,
    begin,
    claim,
    finish,
    make_agent,
    make_run,
    make_spec,
    make_task,
    settle,
)

FOLDER = Path(__file__).parents[1] / "data" / "golden"
ENDING = Ending(
    outcome=Outcome.SIGNAL, signal="SIGKILL", killed_by_us=True, started_at_ms=1, ended_at_ms=2, duration_s=1.5,
    output_bytes=10, output_gaps=[(3, 4)], output_sha256="ab", leftovers=[Leftover(pid=7, command="sleep 9")],
    detail="because", steps=[(5, "TERM sent")],
)  # fmt: skip
COURSE = Course(silences=[(7, 8), (9, 10)], cancel_at_ms=11, cancel_reason="request")
CANCELLED = Reason(code="cancelled", detail="by hand", args={"by": "admin", "of": 2, "share": 0.5})


def fill(tx: WriteTx) -> None:
    """One of everything, with ids that stay the same."""
    tx.put_blob(SCRIPT_SHA256, b"#!/bin/sh\necho gr\xc3\xbc\xc3\x9fe\n")
    tx.save_agent(make_agent("agent-a", "web-1", labels={"env": "prod"}, facts={"cpus": 4}, slots=4), expect=None)
    tx.save_agent(make_agent("agent-b", "web-2", former_names=["old"], draining=True, queues=["slow"]), expect=None)
    tx.save_key(TrustedKey(public_key="key", role=Role.AGENT, agent_id="agent-a", name="web-1"))
    tx.save_token(ApiToken(id="token", name="ci", role=Role.ADMIN, sha256="ab", created_at_ms=3))
    tx.save_token(
        ApiToken(
            id="session", name="ann", role=Role.ADMIN, sha256="ac", created_at_ms=4, kind=TokenKind.SESSION,
            last_used_at_ms=5, expires_engine_s=6.5, about="Firefox, 192.0.2.1",
        )
    )  # fmt: skip
    tx.save_login_link(LoginLink(sha256="ad", name="ann", created_at_ms=4, expires_engine_s=6.5, used=True))
    tx.save_join_token(JoinToken(sha256="cd", created_at_ms=4, expires_engine_s=5.5, used_by="key"))
    add_addressed(tx, ["agent-a", "agent-b", "agent-c"], id="task-windowed", name="Grüße", parallel=1, priority=7)
    begin(tx, claim(tx, "agent-a"))
    claim(tx, "agent-b", [])
    done = add_addressed(tx, ["agent-d"], id="task-done")
    failed = finish(tx, begin(tx, claim(tx, "agent-d")), exit_code=3)
    tx.add_attempt(
        Attempt(
            run_id=failed.id, attempt=1, agent_id="agent-d", state=RunState.FAILED, late=True, claimed_at_ms=1,
            started_at_ms=2, ended_at_ms=3, ending=ENDING,
            course=COURSE,
        )
    )  # fmt: skip
    add_free(tx, 2, id="task-among", candidates=["agent-a", "agent-b"], queue="slow")
    add_free(tx, 1, id="task-anybody")
    add_addressed(tx, ["agent-e"], id="task-paused")
    alter(tx, "task-paused", paused=True)
    cancelled = add_addressed(tx, ["agent-f"], id="task-cancelled", reason=CANCELLED)
    alter(tx, cancelled.id, cancel_requested=True)
    settle(tx, tx.runs_in(cancelled.id, {RunState.READY})[0], Cancel())
    _add_with_every_field(tx)
    tx.append_event("task", task_id=done.id, run_id=None)
    tx.append_event("output", task_id=done.id, run_id=failed.id, end_offset=7)
    tx.set_engine_mark(1234.5, 1_700_000_000_000)


def _add_with_every_field(tx: WriteTx) -> None:
    task = make_task(
        tx.next_seq(), 2, id="task-every-field", counts={"delayed": 1, "running": 1}, fail_count=3, fail_rate=0.5,
        state=TaskState.RUNNING, started_at_ms=5,
    )  # fmt: skip
    running: Run = make_run(
        task, "agent-g", id="run-every-field", state=RunState.RUNNING, attempt=2, lease="lease", fence=1,
        cancel_reason="request", expires_engine_s=9.5, claimed_at_ms=1, started_at_ms=2, silent_since_ms=3,
        course=COURSE,
    )  # fmt: skip
    delayed = make_run(task, "agent-h", id="run-delayed", state=RunState.DELAYED, due_engine_s=99.5, ending=ENDING)
    tx.add_task(task, make_spec(), [running, delayed], idempotency_key="key-1", body_sha256="ef")


def contents(tx: ReadTx) -> dict[str, Any]:
    """All that a store answers, as plain values."""
    tasks = tx.list_tasks(TaskFilter(), limit=1_000, cursor=None).items
    runs = [run for task in tasks for run in tx.list_runs(task.id, states=None, limit=1_000, cursor=None).items]
    agents = sorted({run.agent_id for run in runs if run.agent_id} | {agent.id for agent in tx.list_agents()})
    found = {
        "tasks": tasks,
        "runs": runs,
        "attempts": [attempt for run in runs for attempt in tx.list_attempts(run.id)],
        "specs": {task.id: tx.get_spec(task.id) for task in tasks},
        "candidates": {task.id: tx.task_candidates(task.id) for task in tasks},
        "heads": {agent: tx.heads(agent, None, limit=100) for agent in agents},
        "idempotency": tx.task_by_idempotency_key("key-1"),
        "agents": tx.list_agents(),
        "keys": tx.list_keys(),
        "tokens": tx.list_tokens(),
        "join_token": tx.get_join_token("cd"),
        "login_link": tx.get_login_link("ad"),
        "events": tx.events_after(0, limit=100),
        "script": tx.blob_piece(SCRIPT_SHA256, offset=0, length=1_000),
        "run_counts": tx.count_runs(),
        "task_counts": tx.count_tasks(),
        "ended": [task.id for task in tx.ended_tasks(limit=10)],
        "failed": [task.id for task in tx.failed_tasks(since_ms=0, limit=10)],
        "halted": [task.id for task in tx.halted_tasks(limit=10)],
        "running": [task.id for task in tx.running_tasks(limit=10)],
        "waiting": [task.id for task in tx.waiting_tasks(limit=10)],
        "oldest_ready_ms": tx.oldest_ready_ms(),
        "deadline": tx.next_deadline(),
    }
    plain: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return plain


def fill_output(store: OutputStore) -> None:
    """Both streams, a declared gap, and a middle that was dropped."""
    store.append([OutputChunk("run", 1, 0, b"out\xff", [(1, 4)]), OutputChunk("run", 1, 4, b"err", [(2, 3)])])
    store.append([OutputChunk("run", 1, 7, gap=5), OutputChunk("run", 1, 12, b"end", [(1, 3)])])
    for start in range(0, 4_000, 1_000):
        store.append([OutputChunk("long", 2, start, b"x" * 1_000, [(1, 1_000)], limit=2_000)])


def output_contents(store: OutputStore) -> dict[str, Any]:
    """All that an output store answers, as plain values."""
    found = {key: store.read(*key) for key in (("run", 1), ("long", 2))}
    return {
        f"{run}/{attempt}": {
            "data": piece.data.hex(),
            "size": piece.size,
            "gaps": [list(gap) for gap in piece.gaps],
            "segments": [list(segment) for segment in piece.segments],
            "sha256": store.kept(run, attempt).sha256,
        }
        for (run, attempt), piece in found.items()
    }


def _keep(path: Path, name: str, found: dict[str, Any]) -> None:
    """Write a golden database and what is in it, unless it is there."""
    if (FOLDER / f"{name}.db").exists():
        return
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    shutil.copyfile(path, FOLDER / f"{name}.db")
    text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True)
    (FOLDER / f"{name}.json").write_text(text + "\n", "utf-8")


def main() -> int:
    """Write the golden files of the present schemas, unless they are there."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    revision, output_revision = REVISIONS["versions"], REVISIONS["output_versions"]
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "muster.db")
        store.open()
        store.write(fill)
        expected = store.read(contents)
        assert store.read(lambda tx: tx.findings()) == []
        store.close()
        output = OutputStore(Path(folder) / "output.db")
        output.open()
        fill_output(output)
        expected_output = output_contents(output)
        output.close()
        _keep(Path(folder) / "muster.db", f"muster-{revision}", expected)
        _keep(Path(folder) / "output.db", f"output-{output_revision}", expected_output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
