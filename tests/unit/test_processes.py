"""Finding and signalling processes: by descent, mark and session, and never the wrong one."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent.ladder import KillLadder, signal_name, split_status
from agent.processes import (
    COMMAND_MAX,
    Process,
    ProcessTable,
    children,
    command_of,
    family,
    mark_of,
    own_children,
    parse_stat,
    process,
    send,
)
from common.ids import uuid7

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a shell script and waits for its first line; everything it left is killed by its mark."""
    started = []

    def one(script: str, **environ: str) -> subprocess.Popen[bytes]:
        environ = {"MUSTER_RUN_ID": uuid7(), "MUSTER_ATTEMPT": "1", **environ}
        begun = subprocess.Popen(
            ["sh", "-c", script],
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append((begun, environ["MUSTER_RUN_ID"]))
        assert begun.stdout is not None
        assert begun.stdout.readline() == b"ready\n"
        return begun

    yield one
    for begun, run_id in started:
        while left := table_now().members((run_id, 1), roots=[begun.pid], session=begun.pid):
            for process_left in left:
                send(process_left, signal.SIGKILL)
        begun.communicate()


def table_now() -> ProcessTable:
    table = ProcessTable()
    table.refresh()
    return table


def test_a_stat_line_with_an_odd_name_is_read() -> None:
    raw = b"123 (a) b (c) S 7 123 99 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 5555 1 2 3"
    one = parse_stat(raw)
    assert (one.pid, one.parent, one.session, one.start_ticks, one.alive) == (123, 7, 99, 5555, True)
    assert one.identity == (123, 5555)
    assert not parse_stat(raw.replace(b" S ", b" Z ")).alive
    threads_left = raw.replace(b" S ", b" Z ").replace(b" 20 0 1 0 5555", b" 20 0 3 0 5555")
    assert parse_stat(threads_left).alive


def test_this_process_is_seen_as_it_is() -> None:
    me = process(os.getpid())
    assert me is not None
    assert (me.parent, me.session) == (os.getppid(), os.getsid(0))
    assert 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - me.started_s < 24 * 3600 * 365
    assert process(2**22 + 1) is None


def test_children_and_family(start: Start) -> None:
    script = """
        exec 3<&0; echo ready
        sh -c 'echo child; exec cat' <&3 &
        sh -c 'sh -c "echo grandchild; exec cat" <&3 & echo parent; wait' <&3 &
        wait
    """
    shell = start(script)
    assert shell.stdout is not None
    assert {shell.stdout.readline() for _ in range(3)} == {b"child\n", b"grandchild\n", b"parent\n"}
    assert shell.pid in own_children()
    assert shell.pid in children(os.getpid())
    one = process(shell.pid)
    assert one is not None
    members = family([one])
    assert members[0].pid == shell.pid
    assert len(members) == 4
    assert {member.pid for member in members[1:3]} == set(children(shell.pid))
    assert members[3].parent in children(shell.pid)
    assert children(2**22 + 1) == []


def test_a_command_line_is_cut_and_a_name_stands_in_for_none(start: Start) -> None:
    shell = start(f"echo ready; read x; : {'y' * 500}")
    assert command_of(shell.pid).startswith("sh -c echo ready; read x")
    assert len(command_of(shell.pid)) == COMMAND_MAX
    assert command_of(2) != "" if process(2) else True
    assert command_of(2**22 + 1) == "?"


def test_a_mark_is_found_in_the_environment(start: Start) -> None:
    run_id = uuid7()
    shell = start("echo ready; read x", MUSTER_RUN_ID=run_id, MUSTER_ATTEMPT="3")
    assert mark_of(shell.pid) == (run_id, 3)
    assert mark_of(os.getpid()) is None
    assert mark_of(2**22 + 1) is None
    half = start("echo ready; read x", MUSTER_ATTEMPT="x")
    assert mark_of(half.pid) is None


def test_members_by_mark_by_descent_and_by_session_parents_first(start: Start) -> None:
    mark = (uuid7(), 1)
    script = """
        exec 3<&0
        echo ready
        setsid sh -c 'echo own-session $$; exec cat' <&3 &
        env -i sh -c 'echo no-mark $$; exec cat' <&3 &
        (setsid sh -c 'echo orphan $$; exec cat' <&3 &)
        wait
    """
    shell = start(script, MUSTER_RUN_ID=mark[0], MUSTER_ATTEMPT="1")
    assert shell.stdout is not None
    pids = {name.decode(): int(pid) for name, pid in (shell.stdout.readline().split() for _ in range(3))}
    top = process(shell.pid)
    assert top is not None
    while pids["orphan"] in {one.pid for one in family([top])}:
        pass  # its parent is just ending

    table = table_now()

    def found(mark: tuple[str, int], **how: Any) -> set[str]:
        members = {one.pid for one in table.members(mark, **how)}
        return {name for name, pid in pids.items() if pid in members}

    assert table.members(mark, roots=[shell.pid], session=shell.pid)[0].pid == shell.pid
    assert found(mark) == {"own-session", "no-mark", "orphan"}  # the second by its parent
    assert found(("other", 1), roots=[shell.pid]) == {"own-session", "no-mark"}
    assert found(("other", 1), session=shell.pid) == {"own-session", "no-mark"}
    assert found(("other", 1), roots=[pids["orphan"]]) == {"orphan"}
    assert table.members((mark[0], 2)) == []


def test_a_zombie_and_this_process_are_no_members() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    table = table_now()
    assert table.members(("x", 1), roots=[child.pid, os.getpid(), 1]) == []
    found = table.get(child.pid)
    assert found is not None
    assert not found.alive
    assert not send(found, signal.SIGTERM)
    assert child.wait() == 0


def test_a_signal_goes_to_the_process_that_was_meant_or_to_none(start: Start) -> None:
    shell = start("echo ready; read x")
    one = process(shell.pid)
    assert one is not None
    another = Process(one.pid, one.parent, one.session, one.start_ticks + 1, True)
    assert not send(another, signal.SIGKILL)
    assert process(shell.pid) is not None
    assert send(one, signal.SIGTERM, signal.SIGCONT)
    assert shell.wait(20) == -signal.SIGTERM
    assert not send(one, signal.SIGTERM)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(0, (0, None)), (7 << 8, (7, None)), (9, (None, "SIGKILL")), (11 | 128, (None, "SIGSEGV"))],
)
def test_a_wait_status_is_a_code_or_a_signal(status: int, expected: tuple[int | None, str | None]) -> None:
    assert split_status(status) == expected


def test_signals_without_a_name_of_their_own_have_one_too() -> None:
    assert signal_name(signal.SIGRTMIN) == "SIGRTMIN"
    assert signal_name(signal.SIGRTMIN + 5) == "SIGRTMIN+5"
    assert signal_name(signal.SIGRTMAX) == "SIGRTMAX"
    assert signal_name(127) == "signal 127"


def wait_for_end(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_the_ladder_asks_each_once_then_kills(start: Start) -> None:
    stubborn = start("trap '' TERM; echo ready; while :; do read x || sleep 600; done")
    one = process(stubborn.pid)
    assert one is not None
    ladder = KillLadder(lambda fresh: [one], grace_s=10.0, now=100.0)
    assert not ladder.step(100.0, 5)
    first_wake = ladder.wake_at
    assert 100.0 < first_wake < 100.1
    assert not ladder.step(first_wake, 6)
    assert ladder.wake_at > first_wake + 0.02  # it looks less and less often
    assert ladder.steps == [{"at_ms": 5, "signal": "SIGTERM", "processes": 1}]
    assert not ladder.step(110.0, 7)
    wait_for_end(stubborn.pid)
    assert ladder.steps[1:] == [{"at_ms": 7, "signal": "SIGKILL", "processes": 1}]


def test_the_ladder_is_done_when_nobody_is_left() -> None:
    ladder = KillLadder(lambda fresh: [], grace_s=10.0, now=100.0)
    assert ladder.step(100.0, 5)
    assert ladder.steps == []


def test_the_ladder_gives_up_on_what_no_signal_ends_and_names_it() -> None:
    # A process that is not there stands for one that cannot die: the signal reaches it in neither case.
    ghost = Process(2**22 + 1, 1, 1, 1, True)
    ladder = KillLadder(lambda fresh: [ghost], grace_s=1.0, now=100.0)
    assert not ladder.step(101.0, 5)
    assert not ladder.step(110.9, 5)
    assert ladder.step(111.0, 5)
    assert ladder.survivors == [ghost]


def test_the_ladder_takes_another_users_process_for_out_of_reach() -> None:
    if os.geteuid() != 0:
        first = process(1)  # root's, as a rule; never reached
        assert first is not None
        ladder = KillLadder(lambda fresh: [first], grace_s=0.0, now=100.0)
        assert ladder.step(100.0, 5)
        assert ladder.survivors == [first]
        return
    code = """
import os
from agent.ladder import KillLadder
from agent.processes import process
sleeper = os.fork()
if sleeper == 0:
    os.dup2(os.open("/dev/null", os.O_RDWR), 1)
    os.execvp("sleep", ["sleep", "600"])
os.setresuid(65534, 65534, 65534)
one = process(sleeper)
ladder = KillLadder(lambda fresh: [one], grace_s=0.0, now=100.0)
print(ladder.step(100.0, 5), len(ladder.survivors), sleeper, flush=True)
"""
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=environ, timeout=20
    )
    gave_up, survivors, sleeper = done.stdout.split()
    assert (gave_up, survivors) == ("True", "1")
    fd = os.pidfd_open(int(sleeper))
    os.kill(int(sleeper), signal.SIGKILL)
    assert select.select([fd], [], [], 20)[0]
    os.close(fd)
