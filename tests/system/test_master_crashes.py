"""kill -9 of the master at each named point, a restart, and agents that go on: nothing lost, nothing run twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from common.model import Agent, Ending, Outcome
from master.store.sqlite import SqliteStore
from tests.support.fake_agent import EXITED_0, FakeAgent, exited
from tests.support.master_process import MasterProcess, cut_off, insist, master_process
from tests.support.processes import Spawned


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterProcess]:
    with master_process(tmp_path / "m", agents=["a"]) as master:
        yield master
        assert insist(lambda: master.web("verify"))["findings"] == []


def started(master: MasterProcess, *, faults: str = "") -> FakeAgent:
    """Start, with armed faults; the agent, registered."""
    master.start(faults=faults)
    (agent,) = master.agents
    insist(agent.register)
    return agent


def back(master: MasterProcess, agent: FakeAgent, *held: dict[str, Any]) -> dict[str, Any]:
    """The master has died: start it again; what it tells the agent that registers holding these."""
    master.died()
    master.start()
    assert insist(agent.beat)["register"]
    return insist(lambda: agent.register(held=[[c["run_id"], c["attempt"], c["lease"]] for c in held]))


def only_run(master: MasterProcess, task: dict[str, Any]) -> dict[str, Any]:
    (run,) = master.web("list_runs", task["id"], None, 10, None)["items"]
    return run  # type: ignore[no-any-return]


def test_a_submit_that_was_stored_and_not_answered_is_found_by_its_key(master: MasterProcess) -> None:
    agent = started(master, faults="after-task-commit=kill")
    cut_off(lambda: master.submit(targets=["a"], key="k"))
    back(master, agent)
    answer = insist(lambda: master.submit(targets=["a"], key="k"))
    assert not answer["created"]
    assert len(master.web("list_tasks", {}, 10, None)["items"]) == 1
    agent.run_one()


def test_a_submit_that_died_before_its_commit_left_nothing_and_those_answered_are_there(master: MasterProcess) -> None:
    agent = started(master, faults="store-before-commit=kill@9")
    answered: list[str] = []

    def submit_on() -> None:
        while len(answered) < 50:
            answered.append(master.submit(targets=["a"], key=f"k{len(answered)}")["task"]["id"])

    cut_off(submit_on)
    back(master, agent)
    there = {task["id"] for task in master.web("list_tasks", {}, 100, None)["items"]}
    assert there == set(answered)
    assert insist(lambda: master.submit(targets=["a"], key=f"k{len(answered)}"))["created"]


def test_a_claim_that_was_stored_and_not_answered_goes_back(master: MasterProcess) -> None:
    agent = started(master, faults="after-claim-commit=kill")
    task = master.submit(targets=["a"])["task"]
    cut_off(lambda: agent.pull(1, wait_s=1.0))
    assert back(master, agent)["running"] == []
    claim = agent.run_one()
    assert claim["attempt"] == 1
    assert only_run(master, task)["state"] == "succeeded"


def test_a_begin_that_was_stored_and_not_answered_is_allowed_when_asked_again(master: MasterProcess) -> None:
    agent = started(master, faults="after-begin-commit=kill")
    task = master.submit(targets=["a"])["task"]
    (claim,) = agent.claim()
    cut_off(lambda: agent.begin(claim))
    assert [entry[:3] for entry in back(master, agent, claim)["running"]] == [[claim["run_id"], 1, claim["lease"]]]
    (begun,) = agent.begin(claim)
    assert begun["ok"]
    assert agent.begin(claim) == [begun]
    assert agent.claim() == []
    assert agent.end(claim) == "stored"
    assert len(master.web("list_attempts", claim["run_id"])["items"]) == 1
    assert only_run(master, task)["state"] == "succeeded"


def test_a_begun_run_that_its_agent_lost_with_the_master_is_told_to_it(master: MasterProcess) -> None:
    agent = started(master, faults="after-begin-commit=kill")
    task = master.submit(targets=["a"])["task"]
    (claim,) = agent.claim()
    cut_off(lambda: agent.begin(claim))
    agent.held.clear()
    ((run_id, attempt, lease, acked),) = back(master, agent)["running"]
    told = {"run_id": run_id, "attempt": attempt, "lease": lease}
    assert acked == 0
    assert agent.end(told, Ending(outcome=Outcome.INTERRUPTED)) == "stored"
    assert only_run(master, task)["outcome"] == "interrupted"


def test_output_that_was_stored_and_not_acknowledged_is_there_once(master: MasterProcess) -> None:
    agent = started(master, faults="after-output-commit=kill")
    master.submit(targets=["a"])
    (claim,) = agent.claim()
    agent.begin(claim)
    cut_off(lambda: agent.write(claim, b"abc"))
    assert back(master, agent, claim)["running"][0][3] == 3
    assert agent.write(claim, b"abc")["acked"] == {claim["run_id"]: 3}
    agent.write(claim, b"def", offset=3)
    assert agent.end(claim, exited(0, output_bytes=6)) == "stored"
    assert master.web("read_output", claim["run_id"], None, "all", 0, 100)["data"] == b"abcdef"


@pytest.mark.parametrize(("point", "taken"), [("before-result-commit", "stored"), ("after-result-commit", "repeat")])
def test_a_result_told_again_counts_once(master: MasterProcess, point: str, taken: str) -> None:
    agent = started(master, faults=f"{point}=kill")
    task = master.submit(targets=["a"])["task"]
    (claim,) = agent.claim()
    agent.begin(claim)
    cut_off(lambda: agent.end(claim, exited(7)))
    back(master, agent, *([claim] if taken == "stored" else []))
    assert agent.end(claim, exited(7)) == taken
    run = only_run(master, task)
    assert (run["state"], run["exit_code"], run["attempt"]) == ("failed", 7, 1)
    assert insist(lambda: master.web("get_task", task["id"], 0))["counts"] == {"failed": 1}


def test_a_large_decision_goes_on_after_a_crash_between_its_slices(master: MasterProcess) -> None:
    # 450 agents that never come: records only, put into the store while the master is down.
    store = SqliteStore(master.data_dir / "muster.db")
    store.open()
    absent = [
        Agent(id=f"{n:08}-0000-7000-8000-000000000000", name=f"x{n}", hostname="h", enrolled_at_ms=0)
        for n in range(450)
    ]
    store.write(lambda tx: [tx.save_agent(agent, expect=None) for agent in absent])
    store.close()
    master.start(faults="after-slice-commit=kill")
    task = insist(lambda: master.submit(targets=[agent.name for agent in absent]))["task"]
    cut_off(lambda: master.web("cancel_task", task["id"]))
    master.died()
    master.start()
    view = insist(lambda: master.web("get_task", task["id"], 20.0))
    assert view["state"] == "cancelled"
    assert view["counts"] == {"cancelled": 450}


def test_an_unfinished_wait_ends_with_the_master_and_goes_on_with_the_next(master: MasterProcess) -> None:
    agent = started(master)
    task = master.submit(targets=["a"])["task"]
    waiting = gevent.spawn(lambda: insist(lambda: master.web("get_task", task["id"], 20.0)))
    (claim,) = agent.claim()
    agent.begin(claim)
    master.kill()
    master.start()
    insist(lambda: agent.register(held=[[claim["run_id"], 1, claim["lease"]]]))
    assert agent.end(claim) == "stored"
    assert waiting.get(timeout=20)["state"] == "succeeded"


def test_term_ends_parked_pulls_and_waits_with_an_answer(master: MasterProcess) -> None:
    agent = started(master)
    task = master.submit(targets=["a"])["task"]
    (claim,) = agent.claim()
    agent.begin(claim)
    pull = gevent.spawn(agent.pull, 1, wait_s=30.0)
    wait = gevent.spawn(master.web, "get_task", task["id"], 30.0)
    feed = gevent.spawn(master.web, "feed", master.web("feed", -1, 0, 1)["last"], 30.0, 10)
    assert master.process is not None
    process = master.process
    process.send()
    ended = threading.Thread(target=process.wait)
    ended.start()
    gevent.joinall([pull, wait, feed], timeout=20)
    assert pull.value["runs"] == []
    assert wait.value["state"] == "running"
    assert feed.value["events"] == []
    ended.join(20)
    assert process.process.returncode == 0
    master.start()
    insist(lambda: agent.register(held=[[claim["run_id"], 1, claim["lease"]]]))
    assert agent.end(claim, EXITED_0) == "stored"


def test_a_second_master_on_the_same_directory_is_refused_with_the_first_ones_pid(master: MasterProcess) -> None:
    master.start()
    assert master.process is not None
    second = Spawned(
        [*master.process.argv[:-3], "127.0.0.1:0", "--web-rpc", "127.0.0.1:0"], mark=f"master-{master.data_dir}"
    )
    assert second.wait() != 0
    assert f"pid {master.process.pid}" in second.tail()
