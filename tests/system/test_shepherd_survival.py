"""Who may die when: agent, shepherd, both, or the host; nothing runs twice and every attempt has one true end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent.executor import AdoptedAttempt, ExecutorClosed
from agent.forked import INTERRUPTED, REBOOTED
from agent.shepherd_launch import connect, launch
from agent.shepherd_link import ShepherdUnavailable
from tests.support.host import COMMAND, PATIENCE_S, Host, host_at, spec_of
from tests.support.processes import alive, command_of, until, wait_gone


def the_only(adopted: list[AdoptedAttempt]) -> AdoptedAttempt:
    (one,) = adopted
    return one


def test_what_runs_goes_on_without_an_agent_and_is_adopted(host: Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    running = host.submit(b"echo before; read x < " + os.fsencode(gate) + b"; echo after; exit 5", lease="the lease")
    running.lines(1)
    shepherd = host.shepherd
    host.leave()
    with pytest.raises(ExecutorClosed):
        running.record()

    adopted = the_only(host.come())
    assert host.shepherd == shepherd
    assert (adopted.run_id, adopted.attempt, adopted.lease) == (*running.key, "the lease")
    assert host.executor.running() == [running.key]
    assert host.executor.free_slots() == 7
    gate.write_text("go\n")
    record = adopted.future.result(PATIENCE_S)
    assert (record.outcome, record.exit_code) == ("exit", 5)
    assert host.output(record) == b"before\nafter\n"
    assert host.executor.free_slots() == 8


def test_an_adopted_attempt_can_be_ended(host: Host) -> None:
    running = host.submit(b"echo ready; sleep 600")
    running.lines(1)
    host.leave()
    adopted = the_only(host.come())
    running.kill("cancel")
    record = adopted.future.result(PATIENCE_S)
    assert (record.signal, record.killed_by_us) == ("SIGTERM", "cancel")


def test_what_ended_without_an_agent_is_told_to_the_next_until_it_is_forgotten(host: Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = b"#!/bin/sh\necho 0123456; read x < " + os.fsencode(gate) + b"\nyes 0123456 | head -c 3999992\nexit 6\n"
    running = host.submit(script)
    running.lines(1)
    host.leave()
    gate.write_text("go\n")
    exit_record = host.path / "attempts" / f"{running.spec.run_id}.1" / "exit.json"
    until(exit_record.exists, "the exit record")
    for _ in range(2):
        adopted = the_only(host.come())
        record = adopted.future.result(0)
        assert (record.outcome, record.exit_code, record.output_bytes) == ("exit", 6, 4_000_000)
        assert host.output(record) == b"0123456\n" * 500_000
        host.leave()
    host.come()
    host.executor.forget([running.key])
    until(lambda: not exit_record.parent.exists(), "the directory's removal")
    host.leave()
    assert host.come() == []


def test_a_killed_shepherd_leaves_interrupted_attempts_and_no_processes(host: Host) -> None:
    script = b"echo $$; (setsid sleep 600 & echo $!); env -i sleep 601 & echo $!; trap '' TERM; sleep 602"
    running = [host.submit(script), host.submit(script)]
    pids = [int(line) for one in running for line in one.lines(3)]
    done = host.run(b"exit 3")
    old = host.shepherd
    os.kill(old, signal.SIGKILL)
    for one in running:
        record = one.record()
        assert (record.outcome, record.exit_code, record.signal) == ("interrupted", None, None)
        assert record.detail == INTERRUPTED
        assert record.duration_s is None
        assert record.started_at_ms is not None
        assert record.lease == "lease"
        assert len(host.output(record).splitlines()) == 3
    for pid in pids:
        assert not alive(pid)
    assert host.shepherd != old
    until(lambda: not Path(f"/proc/{old}").exists(), "the old shepherd to be waited for")
    assert host.run(b"exit 4").exit_code == 4
    assert host.journal.open_entries()[0].record is not None
    assert {entry.record for entry in host.journal.open_entries()} >= {done}


@pytest.mark.parametrize(
    ("point", "runs", "outcomes"),
    [
        ("shepherd-before-fork", 0, {"interrupted"}),
        ("shepherd-after-fork", 1, {"interrupted"}),
        ("shepherd-before-exit-record", 1, {"interrupted"}),
        ("shepherd-after-exit-record", 1, {"exit"}),
    ],
)
def test_wherever_the_shepherd_dies_nothing_runs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, runs: int, outcomes: set[str]
) -> None:
    once = tmp_path / "once"
    once.mkdir()
    monkeypatch.setenv("MUSTER_FAULTS", f"{point}=kill")
    monkeypatch.setenv("MUSTER_FAULTS_ONCE", str(once))
    witness = tmp_path / "witness"
    with host_at(tmp_path / "state") as host:
        record = host.run(b"echo run >> " + os.fsencode(witness) + b"; exit 3", lease="the lease")
        assert record.outcome in outcomes
        assert record.lease == "the lease"
        assert host.run(b"exit 3").exit_code == 3
    assert os.listdir(once) == [point]
    assert len(witness.read_text().splitlines() if witness.exists() else []) <= runs


def test_agent_and_shepherd_both_killed_and_the_next_agent_tells(host: Host) -> None:
    running = host.submit(b"echo $$; sleep 600")
    (pid,) = running.lines(1)
    shepherd = host.shepherd
    host.leave()
    os.kill(shepherd, signal.SIGKILL)
    wait_gone(shepherd)
    record = the_only(host.come()).future.result(PATIENCE_S)
    assert record.outcome == "interrupted"
    wait_gone(int(pid))


def test_a_restarted_host_is_told_as_such(tmp_path: Path) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("11111111-1111-1111-1111-111111111111\n")
    with host_at(tmp_path / "state", shepherd_options=("--boot-id", str(boot_id))) as host:
        running = host.submit(b"echo $$; sleep 600")
        (pid,) = running.lines(1)
        shepherd = host.shepherd
        host.leave()
        os.kill(shepherd, signal.SIGKILL)
        wait_gone(shepherd)
        boot_id.write_text("22222222-2222-2222-2222-222222222222\n")
        record = the_only(host.come()).future.result(PATIENCE_S)
        assert (record.outcome, record.detail) == ("rebooted", REBOOTED)
        assert host.output(record) == f"{pid}\n".encode()
        # After a real restart the number would be another process's: none is touched.
        assert alive(int(pid))
        os.kill(int(pid), signal.SIGKILL)


def test_prepared_but_never_started_is_told_as_interrupted(host: Host) -> None:
    spec = spec_of(b"true", lease="the lease")
    host.executor.prepare([spec]).result(PATIENCE_S)
    host.leave()
    adopted = the_only(host.come())
    record = adopted.future.result(0)
    assert (record.outcome, record.lease, record.pid) == ("interrupted", "the lease", None)
    assert record.detail is not None
    assert "nothing ran" in record.detail
    host.executor.forget([spec.key])
    host.leave()
    assert host.come() == []
    assert os.listdir(host.path / "attempts") == []


def test_prepared_before_a_restart_of_the_host_is_told_as_rebooted(host: Host) -> None:
    spec = spec_of(b"true")
    host.executor.prepare([spec]).result(PATIENCE_S)
    host.leave()
    journal = host.path / "journal.log"
    begun = json.loads(journal.read_text().splitlines()[-1])
    journal.write_text(json.dumps({**begun, "boot_id": "another"}) + "\n")
    assert the_only(host.come()).future.result(0).outcome == "rebooted"


def test_abandoned_leaves_nothing(host: Host) -> None:
    specs = [spec_of(b"true") for _ in range(3)]
    host.executor.prepare(specs).result(PATIENCE_S)
    host.executor.abandon([spec.key for spec in specs])
    host.leave()
    assert host.come() == []
    assert os.listdir(host.path / "attempts") == []


def test_a_lost_journal_does_not_lose_the_results(host: Host) -> None:
    record = host.run(b"exit 9")
    host.leave()
    (host.path / "journal.log").unlink()
    assert the_only(host.come()).future.result(0) == record


def test_an_exit_record_cut_short_on_disk_does_not_change_what_the_journal_says(host: Host) -> None:
    record = host.run(b"exit 9")
    shepherd = host.shepherd
    host.leave()
    wait_gone(shepherd)
    (host.path / f"attempts/{record.run_id}.1/exit.json").write_text("")
    assert the_only(host.come()).future.result(0) == record


def test_told_to_stop_the_shepherd_ends_what_runs_as_interrupted(host: Host) -> None:
    running = host.submit(b"echo ready; sleep 600")
    running.lines(1)
    old = host.shepherd
    os.kill(old, signal.SIGTERM)
    record = running.record()
    assert (record.outcome, record.signal, record.killed_by_us) == ("interrupted", "SIGTERM", "stop")
    wait_gone(old)
    assert host.run(b"exit 3").exit_code == 3
    assert host.shepherd != old


def test_a_second_shepherd_does_not_start(host: Host) -> None:
    command = [*COMMAND, "--state", str(host.path)]
    second = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S)
    assert second.returncode == 3
    assert f'pid="{host.shepherd}"'.encode() in second.stderr
    assert launch(host.path, idle_exit_s=1.0, command=COMMAND) is None
    assert host.run(b"exit 3").exit_code == 3


def test_a_shepherd_that_cannot_start_is_told_with_the_place_of_its_log(tmp_path: Path) -> None:
    host = Host(tmp_path / "state")
    (host.path / "shepherd.lock").mkdir()
    with pytest.raises(ShepherdUnavailable, match=r"shepherd\.log says why"):
        host.come()
    host.end()
    assert "IsADirectoryError" in (host.path / "shepherd.log").read_text()


def test_an_idle_shepherd_ends_by_itself_and_at_once_when_its_agent_stops(tmp_path: Path) -> None:
    with host_at(tmp_path / "state", idle_exit_s=3600.0) as host:
        shepherd = host.shepherd
        host.leave()
        wait_gone(shepherd, 5.0)
    with host_at(tmp_path / "state", idle_exit_s=0.2) as host:
        shepherd = host.shepherd
        running = host.submit(b"echo ready; sleep 600")
        running.lines(1)
        host.leave()
        assert alive(shepherd)
        host.come()
        running.kill(grace_s=0.0)
        # The agent's end of the socket goes without a word, as when it is killed.
        host.link._connection.socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        until(lambda: host.link.pid is not None and not host.executor.running(), "the link's return")
        assert host.shepherd == shepherd
        host.leave()
        wait_gone(shepherd)


def test_a_broken_connection_is_mended_and_what_was_asked_meanwhile_happens(host: Host) -> None:
    running = host.submit(b"echo ready; sleep 600")
    running.lines(1)
    shepherd = host.shepherd
    host.link._connection.socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
    more = [host.submit(b"exit 7") for _ in range(5)]
    running.kill("cancel")
    assert [one.record().exit_code for one in more] == [7] * 5
    assert running.record().killed_by_us == "cancel"
    assert host.shepherd == shepherd


def test_a_frozen_shepherd_holds_up_nobody(host: Host) -> None:
    # Calls return at once although it reads nothing, and all of it happens when it goes on.
    os.kill(host.shepherd, signal.SIGSTOP)
    padding = {"PADDING": "x" * 100_000}
    running = [host.submit(b"exit 8", env=padding) for _ in range(20)]
    running[0].kill("cancel")
    os.kill(host.shepherd, signal.SIGCONT)
    assert [one.record().exit_code for one in running[1:]] == [8] * 19


def test_a_long_path_of_the_state_directory_does_not_matter(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with host_at(deep / "state") as host:
        assert host.run(b"exit 3").exit_code == 3


def test_another_users_connection_is_refused(host: Host) -> None:
    assert (host.path / "shepherd.sock").stat().st_mode & 0o777 == 0o600
    assert host.path.stat().st_mode & 0o777 == 0o700
    if os.geteuid() != 0:
        return  # who it really is decides, beside the file's mode; only root can be somebody else for a moment
    shepherd = host.shepherd
    script = """
import os, socket, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
s = socket.socket(socket.AF_UNIX)
os.seteuid(65534)
os.setresuid(65534, 65534, 65534)
s.connect(f"/proc/self/fd/{fd}/shepherd.sock")
s.sendall(b'{"op":"list"}\\n')
print(s.recv(100))
"""
    os.chmod(host.path, 0o755)
    os.chmod(host.path / "shepherd.sock", 0o666)
    done = subprocess.run([sys.executable, "-c", script, str(host.path)], capture_output=True, timeout=PATIENCE_S)
    assert done.stdout in (b"b''\n", b"")  # the end, or the connection broke while it spoke
    assert "another user wanted to connect" in (host.path / "shepherd.log").read_text()
    assert host.shepherd == shepherd
    assert host.run(b"exit 3").exit_code == 3


def test_nonsense_on_the_socket_is_answered_and_harms_nothing(host: Host) -> None:
    host.leave()
    launch(host.path, idle_exit_s=30.0, command=COMMAND)
    connection = connect(host.path)
    connection.socket.settimeout(PATIENCE_S)
    lines = [b"no json", b"[]", b'{"op":"dance"}', b'{"op":"start"}', b'{"op":"kill","run_id":[],"attempt":{}}']
    lines += [b'{"op":"start","spec":{"run_id":"../x","attempt":1}}', b'{"op":"forget","attempts":[["/etc",1]]}']
    connection.socket.sendall(b"\n".join([*lines, b'{"op":"list"}', b""]))
    events: list[dict[str, object]] = []
    while not events or events[-1]["event"] != "listed":
        received = connection.receive()
        assert received is not None
        events += received
    assert [event["event"] for event in events] == ["error"] * 3 + ["refused", "error", "listed"]
    connection.close()
    host.come()
    assert host.run(b"exit 3").exit_code == 3


OLD_PROGRAM = (
    "import sys, common.version; common.version.VERSION = '0.0.1'; "
    "from agent.shepherd import main; sys.exit(main(sys.argv[3:]))"
)
OLD_COMMAND = (sys.executable, "-c", OLD_PROGRAM, "muster", "shepherd")


def test_an_idle_shepherd_of_another_version_is_replaced(tmp_path: Path) -> None:
    host = Host(tmp_path / "state")
    old = launch(host.path, idle_exit_s=30.0, command=OLD_COMMAND)
    assert old is not None
    try:
        host.come()
        assert host.shepherd != old
        os.waitpid(old, 0)
        assert host.run(b"exit 3").exit_code == 3
    finally:
        host.end()


def test_a_busy_shepherd_of_another_version_is_replaced_when_it_has_nothing_left_to_do(tmp_path: Path) -> None:
    with host_at(tmp_path / "state") as host:
        shepherd = host.shepherd
        running = host.submit(b"echo ready; sleep 600")
        running.lines(1)
        host.leave()
        newer = subprocess.Popen(
            [sys.executable, "-c", NEWER_AGENT, str(host.path), running.spec.run_id],
            stdout=subprocess.PIPE,
        )
        output, _ = newer.communicate(timeout=PATIENCE_S)
        same, outcome, exit_code = output.decode().split()
        assert (same, outcome, exit_code) == (str(shepherd), "signal", "3")
        wait_gone(shepherd)
        host.come()


NEWER_AGENT = """
import sys
from pathlib import Path
sys.path.insert(0, ".")
import common.version
common.version.VERSION = "9.9.9"
from tests.support.host import Host
from tests.support.processes import until
host = Host(Path(sys.argv[1]))
(adopted,) = host.come()
same = host.shepherd
host.executor.kill(sys.argv[2], why="cancel", grace_s=0.0)
record = adopted.future.result(30)
until(lambda: host.link.pid not in (None, same), "the replacement")
print(same, record.outcome, host.run(b"exit 3").exit_code)
host.leave()
"""


def test_the_agents_own_end_does_not_take_the_shepherd_along(tmp_path: Path) -> None:
    program = f"""
import sys, time
sys.path.insert(0, {os.getcwd()!r})
from pathlib import Path
from tests.support.host import Host
host = Host(Path({str(tmp_path / "state")!r}), idle_exit_s=30.0)
host.come()
running = host.submit(b"echo ready; sleep 600")
running.lines(1)
print(host.shepherd, running.spec.run_id, flush=True)
time.sleep(600)
"""
    agent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    assert agent.stdout is not None
    shepherd = int(agent.stdout.readline().split()[0])
    os.killpg(agent.pid, signal.SIGKILL)
    agent.wait(PATIENCE_S)
    agent.stdout.close()
    assert alive(shepherd)
    assert "muster shepherd" in command_of(shepherd)
    with host_at(tmp_path / "state") as host:
        (key,) = host.executor.running()
        host.executor.kill(key[0], why="cancel")
        until(lambda: not host.executor.running(), "the end")
