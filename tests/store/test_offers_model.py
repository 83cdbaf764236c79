"""The offers index against a naive model: whoever asks, the answer is what a scan over all runs would give.

Hypothesis makes up tasks, claims, releases, ends, retries, windows, pauses and failing transactions.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from common.model import FINAL_STATES, HELD_STATES, Run, RunState, Task
from master import lifecycle
from master.lifecycle import Cancel, Due, Reopen
from master.store.base import ReadTx, TaskFilter, WriteTx
from master.store.sqlite import SqliteStore
from tests.store.making import add_addressed, add_free, alter, begin, claim, finish, release, settle

AGENTS = {"a": None, "b": ["x"], "c": ["x", "y"], "d": []}
"""Agent → the queues it serves."""
agents = st.sampled_from(sorted(AGENTS))
undo = st.sampled_from([False] * 5 + [True])
ways = st.sampled_from(["hold", "release", "succeed", "fail", "retry"])


class Undo(Exception):
    """Fails a transaction on purpose."""


class Offers(RuleBasedStateMachine):
    """The store under test; the model is whatever the runs say."""

    template: Path

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "muster.db"
        shutil.copyfile(self.template, path)
        self.store = SqliteStore(path, readers=1)
        self.store.open()
        self.tasks: list[str] = []
        self.add_for_anybody(2, None, "x", 1, 0)
        self.add_for_anybody(2, ["a", "b", "c"], "x", 1, 1)
        self.add_for_agents(["a", "b"], 1, 1, False)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            assert self.store.read(lambda tx: tx.findings()) == []
            self.store.close()
            self.folder.cleanup()

    def do(self, act: Any, *, undo: bool) -> Any:
        """In one transaction; one that is to be undone fails at its end."""

        def closure(tx: WriteTx) -> Any:
            result = act(tx)
            if undo:
                raise Undo
            return result

        try:
            return self.store.write(closure)
        except Undo:
            return None

    @rule(
        names=st.lists(agents, min_size=1, max_size=3, unique=True),
        priority=st.integers(0, 2),
        parallel=st.integers(0, 2),
        undo=undo,
    )
    def add_for_agents(self, names: list[str], priority: int, parallel: int, undo: bool) -> None:
        task = self.do(lambda tx: add_addressed(tx, names, priority=priority, parallel=parallel), undo=undo)
        self.tasks += [task.id] if task else []

    @rule(
        count=st.integers(1, 3),
        candidates=st.none() | st.just(["a", "b", "c"]) | st.just(["c", "d"]) | st.just(["a", "b", "c", "d"]),
        queue=st.sampled_from(["x", "y"]),
        priority=st.integers(0, 2),
        parallel=st.integers(0, 2),
    )
    def add_for_anybody(
        self, count: int, candidates: list[str] | None, queue: str, priority: int, parallel: int
    ) -> None:
        def add(tx: WriteTx) -> Task:
            return add_free(tx, count, candidates=candidates, queue=queue, priority=priority, parallel=parallel)

        self.tasks.append(self.do(add, undo=False).id)

    @rule(turns=st.lists(st.tuples(agents, ways, undo), min_size=1, max_size=12), limit=st.integers(1, 3))
    def work(self, turns: list[tuple[str, str, bool]], limit: int) -> None:
        """Agents claim in turn; some keep their run, others leave it at once."""
        for agent, way, undone in turns:
            expected = self.store.read(lambda tx, a=agent: self.usable(tx, a, open_only=True))
            run = self.do(lambda tx, a=agent: claim(tx, a, AGENTS[a], limit=limit), undo=undone)
            if not undone:
                assert (run.task_id if run else None) == (expected[0] if expected else None)
            if run is not None and way != "hold":
                self.leave(run, way)

    @rule(data=st.data(), way=ways)
    def leave_later(self, data: Any, way: str) -> None:
        run = self.pick(data, frozenset({RunState.LEASED}))
        if run is not None:
            self.leave(run, way)

    def leave(self, run: Run, way: str) -> None:
        if way in ("release", "hold"):
            self.do(lambda tx: release(tx, run), undo=False)
            return
        exit_code, retry = int(way != "succeed"), 5.0 if way == "retry" else None
        self.do(lambda tx: finish(tx, begin(tx, run), exit_code=exit_code, retry_engine_s=retry), undo=False)

    def pick(self, data: Any, states: frozenset[RunState]) -> Run | None:
        # In the order they were added: ids are random, and Hypothesis must be able to repeat what it did.
        pages = [
            self.store.read(lambda tx, t=task_id: tx.list_runs(t, states=states, limit=9, cursor=None))
            for task_id in self.tasks
        ]
        runs = [run for page in pages for run in page.items]
        return runs[data.draw(st.integers(0, len(runs) - 1))] if runs else None

    @rule(data=st.data())
    def become_due(self, data: Any) -> None:
        run = self.pick(data, frozenset({RunState.DELAYED}))
        if run is not None:
            self.do(lambda tx: settle(tx, run, Due()), undo=False)

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        run = self.pick(data, frozenset({RunState.READY, RunState.LEASED, RunState.DELAYED}))
        if run is not None:
            self.do(lambda tx: settle(tx, run, Cancel()), undo=False)

    @rule(data=st.data())
    def reopen(self, data: Any) -> None:
        run = self.pick(data, FINAL_STATES)
        if run is not None:
            self.do(lambda tx: settle(tx, run, Reopen()), undo=False)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data(), paused=st.booleans())
    def pause_or_resume(self, data: Any, paused: bool) -> None:
        task_id = self.tasks[data.draw(st.integers(0, len(self.tasks) - 1))]
        self.do(lambda tx: alter(tx, task_id, paused=paused), undo=False)

    @precondition(lambda self: hasattr(self, "store"))
    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = SqliteStore(Path(self.folder.name) / "muster.db", readers=1)
        self.store.open()

    def usable(self, tx: ReadTx, agent: str, *, open_only: bool) -> list[str]:
        """Tasks the agent may take a run of, in order, by looking at everything."""
        found: list[tuple[int, int, str]] = []
        for task in tx.list_tasks(TaskFilter(), limit=10_000, cursor=None).items:
            if open_only and lifecycle.room(task) == 0:
                continue
            runs = tx.runs_in(task.id, frozenset(RunState))
            own = [run for run in runs if run.agent_id == agent]
            mine = any(run.addressed and run.state is RunState.READY for run in own)
            candidates = tx.task_candidates(task.id)
            queues = AGENTS[agent]
            free = any(not run.addressed and run.state is RunState.READY for run in runs)
            may = (queues is None or task.queue in queues) and (candidates is None or agent in candidates)
            if mine or (free and may and not own):
                found.append((task.priority, task.seq, task.id))
        return [task_id for _, _, task_id in sorted(found)]

    @invariant()
    def everybody_is_offered_what_a_scan_would_find(self) -> None:
        if not hasattr(self, "store"):
            return

        def check(tx: ReadTx) -> None:
            for agent, queues in AGENTS.items():
                offered = [offer.task_id for offer in tx.heads(agent, queues, limit=10_000)]
                must, may = self.usable(tx, agent, open_only=True), self.usable(tx, agent, open_only=False)
                rooms = {task_id: lifecycle.room(tx.get_task(task_id)) for task_id in offered}
                assert [task_id for task_id in offered if rooms[task_id] != 0] == must
                assert [task_id for task_id in may if task_id in offered] == offered

        self.store.read(check)
        self.store.write(check)
        held = self.store.read(lambda tx: tx.runs_held())
        assert all(run.state in HELD_STATES for run in held)


@pytest.mark.timeout(600)
def test_the_index_agrees_with_a_scan_of_all_runs(empty_database: Path, full: bool) -> None:
    Offers.template = empty_database
    counts = settings(max_examples=2_000 if full else 25, stateful_step_count=50 if full else 25)
    run_state_machine_as_test(Offers, settings=settings(counts, deadline=None))
