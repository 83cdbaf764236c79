"""Records for the store's tests, and the moves of runs as the use-cases make them: task, run and offers in step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.ids import lease_token, uuid7
from common.model import (
    TASK_FINAL_STATES,
    Agent,
    Ending,
    OnStop,
    Outcome,
    Run,
    RunKind,
    RunState,
    Task,
    TaskSpec,
    TaskState,
    evolve,
)
from master import lifecycle
from master.lifecycle import Begin, Claim, Event, Finish, Moment, Release
from master.store.base import WriteTx

NOW = Moment(engine_s=100.0, wall_ms=1_700_000_000_000)
SCRIPT_SHA256 = "5" * 64


def make_task(seq: int, total: int, **changes: Any) -> Task:
    task = Task(
        id=uuid7(),
        name=f"task {seq}",
        seq=seq,
        state=TaskState.WAITING,
        counts={"ready": total},
        total=total,
        priority=1024,
        parallel=0,
        fail_count=-1,
        fail_rate=None,
        on_stop=OnStop.FINISH,
        queue="default",
        count=None,
        lost_after_s=120.0,
        created_at_ms=NOW.wall_ms + seq,
        submitted_by="tests",
    )
    return evolve(task, **changes)


def make_run(task: Task, agent_id: str | None, **changes: Any) -> Run:
    run = Run(
        id=uuid7(),
        task_id=task.id,
        kind=RunKind.SCRIPT,
        state=RunState.READY,
        seq=task.seq,
        priority=task.priority,
        agent_id=agent_id,
        addressed=agent_id is not None,
        created_at_ms=task.created_at_ms,
    )
    return evolve(run, **changes)


def make_spec() -> TaskSpec:
    return TaskSpec(script_sha256=SCRIPT_SHA256, script_size=3, args=["ä", "b"], env={"K": "V"})


def make_agent(agent_id: str, name: str, **changes: Any) -> Agent:
    agent = Agent(id=agent_id, name=name, hostname=f"{name}.example", enrolled_at_ms=NOW.wall_ms)
    return evolve(agent, **changes)


def add_addressed(tx: WriteTx, agents: Sequence[str], **changes: Any) -> Task:
    """A task with one run for each of `agents`."""
    tx.put_blob(SCRIPT_SHA256, b"id\n")
    task = make_task(tx.next_seq(), len(agents), **changes)
    tx.add_task(task, make_spec(), [make_run(task, agent_id) for agent_id in agents])
    return task


def add_free(tx: WriteTx, count: int, *, candidates: list[str] | None = None, **changes: Any) -> Task:
    """A task with `count` runs for any agent, or any of `candidates`."""
    tx.put_blob(SCRIPT_SHA256, b"id\n")
    task = make_task(tx.next_seq(), count, count=count, **changes)
    tx.add_task(task, make_spec(), [make_run(task, None) for _ in range(count)], candidates=candidates)
    return task


def settle(tx: WriteTx, run: Run, event: Event) -> Run:
    """One move: the task's counts and window first, then the run."""
    moved = lifecycle.step(run, event, now=NOW)
    if moved is run:
        return run
    if run.task_id is not None:
        task = tx.get_task(run.task_id)
        assert task is not None
        began = task.started_at_ms is None and moved.state is RunState.RUNNING
        after = evolve(
            task,
            counts=lifecycle.move_counts(task.counts, run.state, moved.state),
            started_at_ms=NOW.wall_ms if began else task.started_at_ms,
        )
        change(tx, task, after)
    tx.save_run(moved, expect=run.version)
    if run.task_id is not None:
        reoffer_if_open(tx, run.task_id)
    return moved


def change(tx: WriteTx, task: Task, after: Task) -> Task:
    """Store a task with new flags or counts; its state and end follow from them, and room makes it open."""
    state = lifecycle.task_state(after)
    ended = (after.ended_at_ms or NOW.wall_ms) if state in TASK_FINAL_STATES else None
    after = evolve(after, state=state, ended_at_ms=ended, version=task.version + 1)
    if lifecycle.room(after) != 0:
        after = evolve(after, offered=True)
    tx.save_task(after, expect=task.version)
    return after


def alter(tx: WriteTx, task_id: str, **changes: Any) -> None:
    """Set flags of a task."""
    task = tx.get_task(task_id)
    assert task is not None
    change(tx, task, evolve(task, **changes))
    reoffer_if_open(tx, task_id)


def reoffer_if_open(tx: WriteTx, task_id: str) -> None:
    task = tx.get_task(task_id)
    if task is not None and task.offered and lifecycle.room(task) != 0:
        tx.reoffer(task_id)


def claim(tx: WriteTx, agent_id: str, queues: Sequence[str] | None = None, *, limit: int = 4) -> Run | None:
    """The first run the agent may take, leased; offers of closed tasks that it meets are withdrawn."""
    while True:
        offers = tx.heads(agent_id, queues, limit=limit)
        if not offers:
            return None
        for offer in offers:
            task = tx.get_task(offer.task_id)
            assert task is not None
            if lifecycle.room(task) == 0:
                if task.offered:
                    tx.save_task(evolve(task, offered=False, version=task.version + 1), expect=task.version)
                tx.withdraw(offer)
                continue
            run = tx.claimable(task.id, agent_id)
            assert run is not None, f"{offer} has nothing for {agent_id}"
            return settle(tx, run, Claim(agent_id, lease_token()))


def begin(tx: WriteTx, run: Run) -> Run:
    assert run.lease is not None
    return settle(tx, run, Begin(run.lease, tx.commit_seq))


def release(tx: WriteTx, run: Run) -> Run:
    assert run.lease is not None
    return settle(tx, run, Release(run.lease))


def finish(tx: WriteTx, run: Run, *, exit_code: int = 0, retry_engine_s: float | None = None) -> Run:
    assert run.lease is not None
    ending = Ending(outcome=Outcome.EXIT, exit_code=exit_code, output_bytes=7, output_gaps=[(2, 3)])
    return settle(tx, run, Finish(run.lease, ending, retry_engine_s))
