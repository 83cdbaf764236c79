"""How agents start and stop: one per directory, prompt ends, scripts that go on or are interrupted, as asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.model import Outcome
from tests.support.agent_process import ROOT, AgentHost, agent_host, wait_until
from tests.support.fake_master import FakeMaster
from tests.support.processes import alive

Pair = tuple[FakeMaster, AgentHost]


@pytest.fixture
def pair(short_path: Path) -> Iterator[Pair]:
    with agent_host(short_path) as both:
        yield both


def gated(folder: Path, after: str = "echo two") -> str:
    return f"echo $$ > {folder}/pid; echo one; while [ ! -e {folder}/gate ]; do sleep 0.05; done; {after}"


def test_a_second_agent_on_a_directory_is_refused_with_the_first_ones_pid(pair: Pair) -> None:
    master, host = pair
    first = host.start()
    (agent,) = master.agents.values()
    master.wait_for(lambda: agent.beats)
    second = host.start()
    assert second.wait() == 2
    assert f"in use by process {first.pid}" in second.told()
    assert first.running
    first.kill()
    third = host.start()
    beats = len(agent.beats)
    master.wait_for(lambda: len(agent.beats) > beats)
    assert third.running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_agent_ends_at_once_though_its_poll_waits(pair: Pair, number: signal.Signals) -> None:
    master, host = pair
    process = host.start()
    run = master.offer("echo hello")
    master.wait_ended(run)
    shepherd = host.shepherd_pid
    polls = master.count("pull_task")
    asked_at = time.monotonic()
    process.send(number)
    assert process.wait() == 0
    assert time.monotonic() - asked_at < 5.0
    assert not host.log.count("did not end by itself")
    assert "nothing is left over" in host.log
    wait_until(lambda: not alive(shepherd), "an idle shepherd ends with its agent")
    # The last poll told the master not to send anything here any more.
    assert master.calls[-1][0] == "pull_task" and master.calls[-1][1][0]["free_slots"] == 0
    late = master.offer("echo late")
    assert late.state == "ready"
    assert master.count("pull_task") == polls + 1


def test_an_agent_without_a_master_ends_at_once(pair: Pair) -> None:
    master, host = pair
    master.link.cut()
    process = host.start()
    host.wait_log("rpc connection")
    process.send(signal.SIGTERM)
    assert process.wait(timeout_s=10) == 0


def test_a_draining_agent_lets_its_script_finish_and_delivers_it(pair: Pair, short_path: Path) -> None:
    master, host = pair
    run = master.offer(gated(short_path, "exit 4"))
    process = host.start(slots=1)
    master.wait_for(lambda: run.acked)
    process.send(signal.SIGTERM)
    host.wait_log("pulling ended")
    waiting = master.offer("echo hello")
    (short_path / "gate").touch()
    assert process.wait() == 0
    assert run.ending.exit_code == 4
    assert waiting.state == "ready"


def test_a_drained_agent_leaves_a_long_script_to_its_shepherd(short_path: Path) -> None:
    with agent_host(short_path, settings={"drain": 0.5}) as (master, host):
        run = master.offer(gated(short_path))
        process = host.start()
        master.wait_for(lambda: run.acked)
        process.send(signal.SIGTERM)
        assert process.wait(timeout_s=15) == 0
        assert "1 scripts go on under the shepherd" in host.log
        assert run.endings == []
        assert alive(int((short_path / "pid").read_text()))
        host.start()
        (short_path / "gate").touch()
        master.wait_ended(run)
        assert bytes(run.stdout) == b"one\ntwo\n"
        assert run.ending.outcome is Outcome.EXIT


def test_a_second_term_ends_the_scripts_as_interrupted(pair: Pair, short_path: Path) -> None:
    master, host = pair
    run = master.offer(gated(short_path))
    process = host.start()
    master.wait_for(lambda: run.acked)
    process.send(signal.SIGTERM)
    host.wait_log("pulling ended")
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert run.ending.outcome is Outcome.INTERRUPTED
    assert run.ending.killed_by_us
    assert run.ending.detail is not None and "agent was stopped" in run.ending.detail
    assert bytes(run.stdout) == b"one\n"
    wait_until(lambda: not alive(int((short_path / "pid").read_text())), "the script is gone")


def test_interruptions_without_a_master_are_told_at_the_next_start(pair: Pair, short_path: Path) -> None:
    master, host = pair
    run = master.offer(gated(short_path))
    process = host.start()
    master.wait_for(lambda: run.acked)
    master.link.cut()
    process.send(signal.SIGTERM)
    host.wait_log("not told that pulling ended")
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert run.endings == []
    master.link.restore()
    host.start()
    master.wait_ended(run)
    assert run.ending.outcome is Outcome.INTERRUPTED


def test_claims_not_begun_are_given_back(pair: Pair, short_path: Path) -> None:
    master, host = pair
    first = master.offer(gated(short_path))
    process = host.start(slots=2)
    master.wait_for(lambda: first.acked)
    with master.holding("blob"):
        large = master.offer(b"#" * 100_000 + b"\necho large")
        master.wait_for(lambda: large.state == "leased")
        process.send(signal.SIGTERM)
        master.wait_for(lambda: large.state == "ready")
    (short_path / "gate").touch()
    assert process.wait() == 0
    assert large.begins == 0
    assert first.ending.exit_code == 0


def test_what_the_agent_does_is_in_its_status_file_and_in_the_log_when_asked(pair: Pair) -> None:
    master, host = pair
    process = host.start(slots=3)
    (agent,) = master.agents.values()
    master.wait_for(lambda: agent.beats)
    status = host.state / "status"
    wait_until(lambda: status.exists() and "waiting for runs: 3 of 3" in status.read_text(), "the status file")
    assert f"agent agent-1, process {process.pid}" in status.read_text()
    assert "link: registered; last heartbeat answered at" in status.read_text()
    process.send(signal.SIGUSR1)
    host.wait_log(r"msg=status loop=puller doing=\"waiting for runs")
    process.send(signal.SIGTERM)
    process.wait()
    assert not status.exists()


def test_files_of_the_agent_are_its_owners_alone(pair: Pair) -> None:
    master, host = pair
    host.start()
    run = master.offer(b"#" * 100_000 + b"\necho large")
    master.wait_ended(run)
    for path in [host.state, *host.state.rglob("*")]:
        assert path.lstat().st_mode & 0o077 == 0 or path.is_socket(), path


def test_the_agent_loads_no_library_that_is_not_its_own() -> None:
    foreign = {"sqlalchemy", "alembic", "flask", "click", "rich", "master", "webserver", "muster"}
    code = f"import sys, agent.app; print(*{foreign} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ}, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
