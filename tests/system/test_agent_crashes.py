"""Agents, shepherds and links that go away at the worst moments: nothing runs twice, nothing that was told is lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.model import Outcome
from tests.support.agent_process import AgentHost, agent_host, wait_until
from tests.support.fake_master import FakeMaster
from tests.support.processes import related, wait_gone

Pair = tuple[FakeMaster, AgentHost]


@pytest.fixture
def pair(short_path: Path) -> Iterator[Pair]:
    with agent_host(short_path) as both:
        yield both


def gated(folder: Path, *, before: str = "", after: str = "") -> str:
    """A script that notes that it runs, says `before`, waits for `folder/gate`, and says `after`."""
    return f"echo ran >> {folder}/ran; {before}\nwhile [ ! -e {folder}/gate ]; do sleep 0.05; done\n{after}"


def times_ran(folder: Path) -> int:
    file = folder / "ran"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_results_of_an_outage_are_kept_on_disk_and_delivered_once(pair: Pair, short_path: Path) -> None:
    master, host = pair
    run = master.offer(gated(short_path, before="echo one", after="echo two; exit 5"))
    host.start()
    master.wait_for(lambda: bytes(run.stdout) == b"one\n")
    master.link.cut()
    (short_path / "gate").touch()
    host.wait_log(r"msg=run .*to=ended")
    assert run.endings == []
    master.link.restore()
    master.wait_ended(run)
    assert bytes(run.stdout) == b"one\ntwo\n"
    assert run.ending.exit_code == 5
    assert (run.repeats, run.late, times_ran(short_path)) == (0, [], 1)


def test_results_of_an_outage_survive_the_agent(pair: Pair, short_path: Path) -> None:
    master, host = pair
    run = master.offer(gated(short_path, before="echo one", after="echo two; exit 5"))
    agent = host.start()
    master.wait_for(lambda: bytes(run.stdout) == b"one\n")
    master.link.cut()
    (short_path / "gate").touch()
    host.wait_log(r"msg=run .*to=ended")
    agent.kill()
    host.start()
    master.link.restore()
    master.wait_ended(run)
    assert bytes(run.stdout) == b"one\ntwo\n"
    assert run.ending.exit_code == 5
    assert (run.late, times_ran(short_path)) == ([], 1)
    wait_until(lambda: not list((host.state / "attempts").iterdir()), "nothing is left of a delivered attempt")


def test_a_killed_agent_finds_its_scripts_again(pair: Pair, short_path: Path) -> None:
    master, host = pair
    run = master.offer(gated(short_path, before="seq 1 20000", after="seq 20001 40000"))
    agent = host.start()
    master.wait_for(lambda: run.acked > 1000)
    agent.kill()
    host.start()
    (short_path / "gate").touch()
    master.wait_ended(run)
    assert run.ending.outcome is Outcome.EXIT
    assert run.ending.exit_code == 0
    assert bytes(run.output) == b"".join(b"%d\n" % number for number in range(1, 40001))
    assert (run.gaps, times_ran(short_path), run.begins) == ([], 1, 1)


def test_an_agent_killed_while_it_sends_loses_no_byte(pair: Pair, short_path: Path) -> None:
    master, host = pair
    run = master.offer("seq 1 300000")
    master.lose_answers("output", 1)
    agent = host.start(environ={"MUSTER_FAULTS": "after-output=kill@3"})
    agent.wait()
    host.start()
    master.wait_ended(run)
    assert bytes(run.output) == b"".join(b"%d\n" % number for number in range(1, 300001))
    assert run.gaps == []


def test_scripts_of_a_killed_shepherd_are_interrupted_and_others_run(pair: Pair, short_path: Path) -> None:
    master, host = pair
    run = master.offer(gated(short_path, before="echo one"))
    host.start()
    master.wait_for(lambda: bytes(run.stdout) == b"one\n")
    os.kill(host.shepherd_pid, signal.SIGKILL)
    master.wait_ended(run)
    assert run.ending.outcome is Outcome.INTERRUPTED
    assert run.ending.detail
    after = master.offer("echo after")
    master.wait_ended(after)
    assert bytes(after.stdout) == b"after\n"
    assert times_ran(short_path) == 1


def test_agent_and_shepherd_killed_ends_as_interrupted(pair: Pair, short_path: Path) -> None:
    master, host = pair
    run = master.offer(gated(short_path, before="echo one"))
    agent = host.start()
    master.wait_for(lambda: bytes(run.stdout) == b"one\n")
    agent.kill()
    os.kill(host.shepherd_pid, signal.SIGKILL)
    host.start()
    master.wait_ended(run)
    assert run.ending.outcome is Outcome.INTERRUPTED
    assert (run.begins, times_ran(short_path)) == (1, 1)


def pretend_reboot(host: AgentHost) -> None:
    """Kill all that runs on the host, and make its files those of an earlier boot."""
    for process in host.processes:
        process.kill()
    os.kill(host.shepherd_pid, signal.SIGKILL)  # first, or it would note how its scripts end
    wait_gone(host.shepherd_pid)
    for pid in related("no mark", host.state):
        with contextlib.suppress(ProcessLookupError):  # its end may follow from another's
            os.kill(pid, signal.SIGKILL)
        wait_gone(pid)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    former = "11111111-2222-3333-4444-555555555555"
    files = [host.state / "agent.json", host.state / "journal.log", *host.state.glob("attempts/*/attempt.jsonl")]
    for file in files:
        file.write_text(file.read_text().replace(boot_id, former))
    assert json.loads((host.state / "agent.json").read_text())["boot_id"] == former


def test_a_reboot_under_a_script_is_told_as_such(pair: Pair, short_path: Path) -> None:
    master, host = pair
    run = master.offer(gated(short_path, before="echo one"))
    host.start()
    master.wait_for(lambda: bytes(run.stdout) == b"one\n")
    pretend_reboot(host)
    host.start()
    master.wait_ended(run)
    assert run.ending.outcome is Outcome.REBOOTED
    assert times_ran(short_path) == 1


def test_a_host_that_lost_its_disk_and_was_rebooted_says_so(pair: Pair, short_path: Path) -> None:
    master, host = pair
    run = master.offer(gated(short_path, before="echo one"))
    host.start()
    master.wait_for(lambda: bytes(run.stdout) == b"one\n")
    pretend_reboot(host)
    (host.state / "journal.log").unlink()
    for file in host.state.glob("attempts/*/*"):
        file.unlink()
    host.start()
    master.wait_ended(run)
    assert run.ending.outcome is Outcome.REBOOTED
    again = master.offer("echo hello")
    master.wait_ended(again)
    assert "11111111" in (host.state / "agent.json").read_text(), "a crash now must not make it a mere interruption"
    master.link.cut()
    master.link.restore()
    wait_until(lambda: "11111111" not in (host.state / "agent.json").read_text(), "the new boot is noted")


@pytest.mark.parametrize("point", ["before-begin", "after-pull"])
def test_an_agent_killed_before_its_begin_runs_the_script_later(pair: Pair, short_path: Path, point: str) -> None:
    master, host = pair
    run = master.offer(f"echo ran >> {short_path}/ran")
    host.start(environ={"MUSTER_FAULTS": f"{point}=kill"}).wait()
    assert run.state == "leased"
    host.start()
    master.wait_ended(run)
    assert run.ending.exit_code == 0
    assert (run.late, run.begins, times_ran(short_path)) == ([], 1, 1)


@pytest.mark.parametrize("point", ["after-begin", "before-fork"])
def test_an_agent_killed_between_begin_and_fork_never_runs_the_script(pair: Pair, short_path: Path, point: str) -> None:
    master, host = pair
    run = master.offer(f"echo ran >> {short_path}/ran")
    host.start(environ={"MUSTER_FAULTS": f"{point}=kill"}).wait()
    assert run.state == "running"
    host.start()
    master.wait_ended(run)
    assert run.ending.outcome is Outcome.INTERRUPTED
    assert run.ending.detail
    assert (run.begins, times_ran(short_path)) == (1, 0)


@pytest.mark.parametrize("point", ["after-end", "before-result", "after-result-send"])
def test_an_agent_killed_around_the_result_delivers_it_once(pair: Pair, short_path: Path, point: str) -> None:
    master, host = pair
    run = master.offer(f"echo ran >> {short_path}/ran; echo hello; exit 3")
    host.start(environ={"MUSTER_FAULTS": f"{point}=kill"}).wait()
    host.start()
    master.wait_ended(run)
    assert run.ending.exit_code == 3
    assert bytes(run.stdout) == b"hello\n"
    assert (run.late, run.begins, times_ran(short_path)) == ([], 1, 1)
    wait_until(lambda: not list((host.state / "attempts").iterdir()), "nothing is left of a delivered attempt")


def test_a_restarted_master_gets_everything_again(pair: Pair, short_path: Path) -> None:
    master, host = pair
    run = master.offer(gated(short_path, before="echo one", after="echo two"))
    host.start()
    master.wait_for(lambda: bytes(run.stdout) == b"one\n")
    registers = master.count("register")
    master.restart()
    master.wait_for(lambda: master.count("register") > registers)
    (short_path / "gate").touch()
    master.wait_ended(run)
    assert bytes(run.stdout) == b"one\ntwo\n"
    after = master.offer("echo after")
    master.wait_ended(after)


def test_a_master_that_forgot_the_session_is_told_again(pair: Pair) -> None:
    master, host = pair
    host.start()
    (agent,) = master.agents.values()
    master.wait_for(lambda: agent.beats)
    agent.session = None
    run = master.offer("echo hello")
    master.wait_ended(run)  # perhaps by a call that was under way; the next one finds out
    master.wait_for(lambda: master.count("register") == 2)


def test_a_master_that_answers_nothing_is_left_for_a_new_connection(short_path: Path) -> None:
    with agent_host(short_path) as (master, host):
        host.start()
        (agent,) = master.agents.values()
        master.wait_for(lambda: agent.beats)
        master.link.hold()
        host.wait_log("msg=link from=registered to=down")
        master.link.restore()
        run = master.offer("echo hello")
        master.wait_ended(run)


@pytest.mark.timeout(7200)
def test_descriptors_stay_few_over_reconnects(pair: Pair, full: bool) -> None:
    master, host = pair
    process = host.start()
    run = master.offer("echo hello")
    master.wait_ended(run)
    rounds = 500 if full else 10
    seen = []
    for _ in range(rounds):
        registers = master.count("register")
        master.link.cut()
        master.link.restore()
        master.wait_for(lambda before=registers: master.count("register") > before)
        seen.append(process.descriptors())
    assert max(seen[5:]) <= max(seen[:5]) + 2, seen


def test_nothing_secret_and_nothing_of_a_script_is_logged(pair: Pair) -> None:
    master, host = pair
    run = master.offer("echo verysecret", env={"PASSWORD": "hunter2"}, args=["privateword"])
    host.start(environ={"MUSTER_LOG_LEVEL": "debug"})
    master.wait_ended(run)
    assert run.lease is not None
    for word in ("verysecret", "hunter2", "privateword"):
        assert word not in host.log
    secret = re.findall(r"secret (\S+)", (host.state / "agent.key").read_text())[0]
    assert secret not in host.log
