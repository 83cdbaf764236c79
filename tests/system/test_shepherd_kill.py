"""Ending what runs: the whole tree, however it hides, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.host import Host
from tests.support.processes import alive, wait_gone


def test_a_timeout_ends_all_of_a_pipeline(host: Host) -> None:
    running = host.submit(b"sleep 600 | cat & echo $$ $!; wait; sleep 601 | cat", timeout_s=0.5)
    shell, last = running.lines(1)[0].split()
    record = running.record()
    assert (record.outcome, record.signal, record.killed_by_us) == ("timeout", "SIGTERM", "timeout")
    assert record.detail == "The script ran longer than its timeout of 0.5 s."
    assert record.leftovers == ()
    assert record.duration_s is not None
    assert 0.5 <= record.duration_s < 10
    for pid in (shell, last):
        assert not alive(int(pid))
    assert [step.signal for step in record.steps] == ["SIGTERM"]
    assert record.steps[0].processes == 3


def test_a_script_that_traps_term_and_exits_zero_was_killed_all_the_same(host: Host) -> None:
    running = host.submit(b"trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    running.lines(1)
    running.kill("cancel")
    record = running.record()
    assert (record.outcome, record.exit_code, record.signal, record.killed_by_us) == ("exit", 0, None, "cancel")
    assert host.output(record, stream=1) == b"ready\nbye\n"


def test_whoever_ignores_term_is_killed_after_the_grace(host: Host) -> None:
    running = host.submit(b"trap '' TERM; echo ready; sleep 600; echo not reached")
    running.lines(1)
    asked_at = time.monotonic()
    running.kill("cancel", grace_s=0.4)
    record = running.record()
    assert 0.4 <= time.monotonic() - asked_at < 5
    assert (record.outcome, record.signal) == ("signal", "SIGKILL")
    assert [step.signal for step in record.steps] == ["SIGTERM", "SIGKILL"]
    assert [step.processes for step in record.steps] == [2, 2]
    assert record.steps[1].at_ms - record.steps[0].at_ms >= 390
    assert host.output(record, stream=1) == b"ready\n"


def test_asking_again_with_less_patience_shortens_the_grace(host: Host) -> None:
    running = host.submit(b"trap '' TERM; echo ready; sleep 600")
    running.lines(1)
    running.kill("drain", grace_s=3600.0)
    running.kill("cancel", grace_s=0.0)
    record = running.record()
    assert (record.outcome, record.killed_by_us) == ("interrupted", "drain")
    assert record.signal == "SIGKILL"


@pytest.mark.parametrize(
    "hidden",
    [
        "setsid sleep 600",
        "setsid sh -c 'sleep 600 & echo $! >&3; exec sleep 601'",
        "(setsid sh -c 'sleep 600 & echo $! >&3' &)",
        "(setsid env -i sh -c 'sleep 600 & echo $! >&3' &)",
        "env -i sleep 600",
    ],
)
def test_nothing_escapes_by_a_session_of_its_own(host: Host, tmp_path: Path, hidden: str) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    reader = os.open(pids, os.O_RDWR)
    script = f"exec 3<>{pids}\n{hidden} </dev/null >/dev/null 2>&1 &\necho $! >&3; echo started; sleep 602"
    running = host.submit(script.encode())
    running.lines(1)
    told = {int(os.read(reader, 1) + _rest_of_line(reader)) for _ in range(2 if ">&3" in hidden else 1)}
    os.close(reader)
    running.kill("cancel")
    record = running.record()
    assert record.leftovers == ()
    for pid in told:
        assert not alive(pid)


def _rest_of_line(fd: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(fd, 1)
    return line


def test_a_stopped_script_can_be_ended(host: Host) -> None:
    running = host.submit(b"echo $$; kill -STOP $$; sleep 600")
    (pid,) = running.lines(1)
    running.kill("cancel")
    assert running.record().signal == "SIGTERM"
    assert not alive(int(pid))


def test_a_shell_does_not_go_on_to_its_next_line_while_it_is_ended(host: Host, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    script = b"echo ready; sleep 600\ntouch " + os.fsencode(witness)
    for grace_s in (1.0, 0.0):
        running = [host.submit(script) for _ in range(8)]
        for one in running:
            one.lines(1)
        for one in running:
            one.kill("cancel", grace_s=grace_s)
        for one in running:
            assert one.record().signal in ("SIGTERM", "SIGKILL")
    assert not witness.exists()


def test_others_are_left_alone(host: Host) -> None:
    bystander = host.submit(b"echo ready; sleep 600")
    bystander.lines(1)
    victims = [host.submit(b"echo ready; sleep 600 | cat") for _ in range(20)]
    for victim in victims:
        victim.lines(1)
    for victim in victims:
        victim.kill("stop_rule")
    for victim in victims:
        assert victim.record().killed_by_us == "stop_rule"
    assert host.executor.running() == [bystander.key]
    bystander.kill("stop")
    record = bystander.record()
    assert (record.outcome, record.detail) == ("interrupted", "The agent was stopped while the script ran.")


def test_a_process_that_breeds_while_it_is_killed_is_ended(host: Host) -> None:
    # Each generation ignores TERM and forks its successor in a session of its own, then ends.
    script = b"""#!/usr/bin/env python3
import os, signal, time
if os.fork():
    time.sleep(600)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
end = time.monotonic() + 30  # should it get away, it must not outlive the test by long
while time.monotonic() < end:
    if os.fork():
        time.sleep(0.001)
        os._exit(0)
    os.setsid()
"""
    running = host.submit(script)
    running.lines(1)
    running.kill("cancel", grace_s=0.1)
    record = running.record()
    assert record.leftovers == ()
    assert record.steps[-1].signal == "SIGKILL"


def test_a_kill_after_the_end_changes_nothing(host: Host) -> None:
    running = host.submit(b"exit 3")
    record = running.record()
    assert not host.executor.kill(record.run_id, why="cancel")
    assert (record.exit_code, record.killed_by_us) == (3, None)


def test_a_kill_that_comes_at_once_is_not_lost(host: Host) -> None:
    running = host.submit(b"sleep 600")
    running.kill("cancel")
    assert running.record().killed_by_us == "cancel"


def test_an_unknown_reason_is_refused(host: Host) -> None:
    with pytest.raises(ValueError, match="no reason to end an attempt"):
        host.executor.kill("x", why="boredom")


def test_a_kill_while_only_leftovers_are_there_ends_them(host: Host) -> None:
    # The main process has ended by itself; its exit code stays, and so does the fact that it was not killed.
    running = host.submit(b"#!/bin/bash\n(trap '' TERM; echo $BASHPID; while :; do echo; sleep 0.02; done) & exit 4")
    (pid,) = running.lines(1)
    running.kill("cancel", grace_s=0.1)
    record = running.record()
    assert record.outcome == "exit"
    assert record.exit_code == 4
    wait_gone(int(pid))
