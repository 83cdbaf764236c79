"""An agent process beside a fake master: scripts run, output and results arrive, lost answers change nothing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from common.errors import Busy, StoreFull
from common.model import Outcome
from tests.support.agent_process import AgentHost, agent_host, wait_until
from tests.support.fake_master import FakeMaster

Pair = tuple[FakeMaster, AgentHost]


@pytest.fixture
def pair(short_path: Path) -> Iterator[Pair]:
    with agent_host(short_path) as both:
        yield both


def counted(folder: Path, script: str = "") -> str:
    """A script that leaves one more line in `folder/ran` each time it runs."""
    return f"echo ran >> {folder}/ran; {script}"


def times_ran(folder: Path) -> int:
    file = folder / "ran"
    return len(file.read_text().splitlines()) if file.exists() else 0


def missing(gaps: list[tuple[int, int]]) -> set[int]:
    """Every 1,024th offset inside a gap: neighbouring gaps may be told as one."""
    return {at for offset, length in gaps for at in range(offset, offset + length) if at % 1024 == 0}


def test_a_script_runs_and_its_output_arrives_byte_for_byte(pair: Pair) -> None:
    master, host = pair
    run = master.offer("printf 'out\\377\\376'; sleep 0.3; printf err >&2; exit 7")
    host.start()
    master.wait_ended(run)
    assert run.ending.outcome is Outcome.EXIT
    assert run.ending.exit_code == 7
    assert bytes(run.stdout) == b"out\xff\xfe"
    assert bytes(run.stderr) == b"err"
    assert run.ending.output_bytes == 8
    assert run.ending.output_sha256 == hashlib.sha256(run.output).hexdigest()
    assert run.ending.duration_s is not None and run.ending.duration_s >= 0.3
    assert run.begins == 1
    wait_until(lambda: not list((host.state / "attempts").iterdir()), "nothing is left of a delivered attempt")


def test_arguments_environment_interpreter_and_fence_reach_the_script(pair: Pair) -> None:
    master, host = pair
    body = "import os, sys; print(sys.argv[1:], os.environ['COLOUR'], os.environ['MUSTER_FENCE'], os.environ.keys())"
    run = master.offer(body, interpreter=["/usr/bin/env", "python3"], args=["a b", "ü"], env={"COLOUR": "blue"})
    host.start(environ={"MUSTER_LEASE": "77"})
    master.wait_ended(run)
    assert run.stdout.decode().startswith(f"['a b', 'ü'] blue {run.fence} ")
    assert b"MUSTER_LEASE" not in run.stdout


def test_scripts_fill_the_slots_and_no_more(pair: Pair) -> None:
    master, host = pair
    runs = [master.offer("read x < /dev/null; sleep 0.5") for _ in range(6)]
    host.start(slots=3)
    master.wait_for(lambda: sum(run.state == "running" for run in runs) == 3)
    assert sum(run.state in ("leased", "running") for run in runs) == 3
    master.wait_ended(*runs)
    assert all(run.ending.exit_code == 0 for run in runs)


def test_slots_set_by_a_person_count(pair: Pair) -> None:
    master, host = pair
    master.slots = 1
    host.start(slots=4)
    (agent,) = master.agents.values()
    master.wait_for(lambda: agent.beats)
    assert agent.about["slots"] == 4
    runs = [master.offer("sleep 0.2") for _ in range(3)]
    master.wait_for(lambda: runs[0].state == "running")
    assert sum(run.state in ("leased", "running") for run in runs) == 1
    master.slots = 3
    host.wait_log("msg=slots from=1 to=3")
    master.wait_ended(*runs)


def test_a_large_script_is_fetched_once_in_pieces_and_kept(pair: Pair) -> None:
    master, host = pair
    body = b"#" * 700_000 + b"\necho large\n"
    run = master.offer(body)
    host.start(slots=1)
    master.wait_ended(run)
    assert bytes(run.stdout) == b"large\n"
    assert master.count("blob") == 3
    again = master.offer(body)
    master.wait_ended(again)
    assert bytes(again.stdout) == b"large\n"
    assert master.count("blob") == 3


def test_a_large_script_survives_a_cut_in_the_middle(pair: Pair) -> None:
    master, host = pair
    run = master.offer(b"#" * 700_000 + b"\necho large\n")
    master.lose_answers("blob", 2)
    host.start()
    master.wait_ended(run)
    assert bytes(run.stdout) == b"large\n"
    assert run.begins == 1


@pytest.mark.parametrize("method", ["register", "pull_task", "begin", "output", "result", "heartbeat"])
def test_a_lost_answer_changes_nothing(pair: Pair, short_path: Path, method: str) -> None:
    master, host = pair
    master.lose_answers(method, 2)
    run = master.offer(counted(short_path, "echo hello; exit 3"))
    host.start()
    master.wait_ended(run)
    wait_until(lambda: not list((host.state / "attempts").iterdir()), "the result is taken")
    assert run.ending.exit_code == 3
    assert bytes(run.stdout) == b"hello\n"
    assert (run.begins, times_ran(short_path), run.late) == (1, 1, [])


@pytest.mark.parametrize("method", ["register", "pull_task", "begin", "output", "result"])
def test_a_call_that_is_refused_for_now_is_made_again(pair: Pair, short_path: Path, method: str) -> None:
    master, host = pair
    master.fail(method, Busy(), StoreFull())
    run = master.offer(counted(short_path, "echo hello"))
    host.start()
    master.wait_ended(run)
    assert bytes(run.stdout) == b"hello\n"
    assert (run.begins, times_ran(short_path)) == (1, 1)


def test_the_master_gets_output_it_lacks_before_the_result(pair: Pair) -> None:
    master, host = pair
    master.need_output_once = True
    run = master.offer("echo hello")
    host.start()
    master.wait_ended(run)
    assert bytes(run.stdout) == b"hello\n"
    assert master.count("result") == 2


def test_a_cancel_comes_at_once_through_the_parked_pull(pair: Pair) -> None:
    master, host = pair
    run = master.offer("sleep 600 | cat")
    host.start(slots=1)
    master.wait_for(lambda: run.state == "running" and master.count("pull_task") >= 2)
    asked_at = time.monotonic()
    master.cancel(run)
    master.wait_ended(run)
    assert time.monotonic() - asked_at < 2.0
    assert run.ending.outcome is Outcome.SIGNAL
    assert run.ending.killed_by_us
    assert run.ending.steps, "the kill ladder is told"
    assert master.count("pull_task") < 20, "a cancel that is known is no reason to ask again and again"


def test_a_stale_run_is_ended_and_its_outcome_told_once(pair: Pair) -> None:
    master, host = pair
    run = master.offer("echo before; sleep 600")
    host.start()
    master.wait_for(lambda: run.acked > 0)
    master.take_away(run)
    master.wait_for(lambda: run.late)
    assert [ending.outcome for ending in run.late] == [Outcome.SIGNAL]
    assert run.endings == []
    beats = master.count("heartbeat")
    master.wait_for(lambda: master.count("heartbeat") >= beats + 3)
    assert len(run.late) == 1


def test_a_claim_that_cannot_be_read_is_refused_not_run_and_not_repeated(pair: Pair) -> None:
    master, host = pair
    run = master.offer("echo hello", cwd="/nonexistent")
    broken = master.offer("echo broken")
    broken.spec_bytes = b"\xc1"
    host.start()
    master.wait_ended(run, broken)
    assert broken.ending.outcome is Outcome.REFUSED
    assert broken.ending.detail is not None and "cannot run it" in broken.ending.detail
    assert broken.begins == 1
    assert run.ending.outcome is Outcome.SPAWN_ERROR


def test_a_flood_is_bounded_and_heartbeats_stay_in_time(short_path: Path) -> None:
    size = 20 * 1024 * 1024
    with agent_host(short_path, heartbeat_s=0.5) as (master, host):
        run = master.offer(
            "import sys\nline = b'x' * 99 + b'\\n'\n"
            f"for number in range({size // 100}):\n    sys.stdout.buffer.write(b'%09d' % number + line[9:])\n",
            interpreter=["/usr/bin/env", "python3"],
            output_limit=4 * 1024 * 1024,
        )
        process = host.start()
        master.wait_ended(run, timeout_s=60)
        assert run.ending.output_bytes == size // 100 * 100
        kept = len(run.output) + sum(length for _, length in run.gaps)
        assert kept == run.ending.output_bytes
        assert missing(run.ending.output_gaps) == missing(run.gaps)
        assert run.output.startswith(b"000000000x")
        assert run.output.endswith(b"%09d" % (size // 100 - 1) + b"x" * 90 + b"\n")
        assert process.rss_kib() < 100 * 1024
        (agent,) = master.agents.values()
        gaps = [later - earlier for earlier, later in pairwise(agent.beats)]
        assert max(gaps, default=0.0) < 3 * 1.0, "an idle agent beats every second here, a busy one twice as often"


def test_everything_arrives_when_the_link_is_good_enough(pair: Pair) -> None:
    master, host = pair
    run = master.offer("seq 1 400000")
    host.start()
    master.wait_ended(run, timeout_s=30)
    assert run.gaps == []
    assert hashlib.sha256(run.output).hexdigest() == run.ending.output_sha256
    assert bytes(run.output) == b"".join(b"%d\n" % number for number in range(1, 400001))


def test_a_trickle_is_seen_while_it_flows_in_few_messages(pair: Pair, short_path: Path) -> None:
    master, host = pair
    gate = short_path / "gate"
    run = master.offer(f"i=0; while [ ! -e {gate} ]; do i=$((i+1)); echo $i; sleep 0.01; done")
    host.start()
    master.wait_for(lambda: run.state == "running")
    begun_at = time.monotonic()
    master.wait_for(lambda: run.acked > 0)
    assert time.monotonic() - begun_at < 2.0
    master.wait_for(lambda: len(run.arrivals) >= 8)
    took_s = run.arrivals[-1][0] - run.arrivals[0][0]
    assert took_s >= 7 * 0.15, "small writes are gathered"
    assert took_s < 7 * 0.2 + 2.0
    gate.touch()
    master.wait_ended(run)
    assert run.gaps == []


def test_the_agent_does_as_the_master_says_when_it_is_short_of_room(pair: Pair, short_path: Path) -> None:
    master, host = pair
    master.slow = True
    run = master.offer("yes | head -c 3000000")
    host.start()
    master.wait_for(lambda: master.count("output") >= 3)
    calls = [at for at, _ in run.arrivals]
    master.slow = False
    master.wait_ended(run)
    gaps = sorted({round(later - earlier, 1) for earlier, later in pairwise(calls)})
    assert gaps[-1] >= 0.9, f"a second between messages: {gaps}"
    assert len(run.output) == 3_000_000


def test_facts_and_the_host_are_told(pair: Pair) -> None:
    master, host = pair
    host.start(labels={"env": "prod"}, queues=["build"], slots=5)
    (agent,) = master.agents.values()
    master.wait_for(lambda: agent.beats)
    about = agent.about
    assert about["labels"] == {"env": "prod"}
    assert about["queues"] == ["build"]
    assert about["slots"] == 5
    assert about["hostname"] and about["machine_id"] and about["boot_id"] and about["version"]
    wanted = "os kernel arch cpus cpu_percent load memory_total memory_used disk_free addresses boot_at version"
    assert set(wanted.split()) <= set(about["facts"])
    assert about["facts"]["memory_used"] <= about["facts"]["memory_total"]


def test_an_idle_agent_is_small_and_does_nothing(pair: Pair) -> None:
    master, host = pair
    process = host.start()
    run = master.offer("echo hello")
    master.wait_ended(run)
    used_s = process.cpu_s()
    beats = master.count("heartbeat")
    master.wait_for(lambda: master.count("heartbeat") >= beats + 3)
    assert process.rss_kib() < 45 * 1024
    assert process.cpu_s() - used_s < 0.1
