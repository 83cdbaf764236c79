"""kill -9 in the middle of a storm of writes: what was answered is there, whole, and numbers go on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from master.store.base import TaskFilter
from tests.store.conftest import OpenStore
from tests.store.making import add_addressed

STORM = """
import sys
from pathlib import Path
import gevent
from master.store.sqlite import SqliteStore
from tests.store.making import add_addressed, begin, claim, finish

store = SqliteStore(Path(sys.argv[1]))
store.open()

def work(number):
    agent = f"agent-{number}"
    while True:
        task, fence = store.write(lambda tx: (add_addressed(tx, [agent, "other"]), tx.commit_seq))
        print(f"task {task.id} {fence}", flush=True)
        run = store.write(lambda tx: begin(tx, claim(tx, agent)))
        print(f"begun {run.id} {run.fence}", flush=True)
        store.write(lambda tx: finish(tx, run))
        print(f"ended {run.id} {run.fence}", flush=True)

gevent.joinall([gevent.spawn(work, number) for number in range(20)], raise_error=True)
"""


@pytest.mark.parametrize("answers", [1, 97, 700])
def test_no_answered_write_is_lost_by_kill_9(stores: OpenStore, tmp_path: Path, answers: int) -> None:
    path = tmp_path / "muster.db"
    told: list[list[str]] = []
    for _ in range(2):
        storm = subprocess.Popen([sys.executable, "-c", STORM, str(path)], stdout=subprocess.PIPE, text=True)
        assert storm.stdout is not None
        lines = [storm.stdout.readline() for _ in range(answers)]
        storm.send_signal(signal.SIGKILL)
        lines += storm.stdout.readlines()  # what it said before it died
        assert storm.wait() == -signal.SIGKILL
        storm.stdout.close()
        told += [line.split() for line in lines if line.endswith("\n")]
        store = stores(path)
        tasks = store.read(lambda tx: tx.list_tasks(TaskFilter(), limit=100_000, cursor=None)).items
        runs = {run.id: run for task in tasks for run in store.read(lambda tx, t=task: tx.list_runs(
            t.id, states=None, limit=9, cursor=None)).items}  # fmt: skip
        ids = {task.id for task in tasks}
        assert all(name in ids for what, name, _ in told if what == "task")
        assert all(runs[name].fence == int(fence) for what, name, fence in told if what != "task")
        assert all(runs[name].ended_at_ms is not None for what, name, _ in told if what == "ended")
        assert store.read(lambda tx: tx.findings()) == []
        highest = max(int(fence) for _, _, fence in told)
        assert store.write(lambda tx: [add_addressed(tx, ["a"]), tx.commit_seq])[1] > highest
        store.close()
