"""Scripts as they come: started as documented, ended as they did, whatever is in them."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from agent.attempt import AttemptSpec, ExitRecord, spec_message
from agent.executor import ExecutorSettings
from agent.shepherd_link import StartRefused
from tests.support.host import PATIENCE_S, Host, host_at, spec_of
from tests.support.processes import all_pids, wait_gone


def ended(record: ExitRecord) -> tuple[str, int | None, str | None]:
    return record.outcome, record.exit_code, record.signal


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (b"true", ("exit", 0, None)),
        (b"exit 7", ("exit", 7, None)),
        (b"kill -9 $$", ("signal", None, "SIGKILL")),
        (b"kill -SEGV $$", ("signal", None, "SIGSEGV")),
        (b"kill -35 $$", ("signal", None, "SIGRTMIN+1")),
        (b"sh -c 'kill -9 $$'", ("exit", 137, None)),
        (b"", ("exit", 0, None)),
        (b"#!/usr/bin/env -S sh -e\nfalse\nexit 0", ("exit", 1, None)),
        (b"#!  /bin/sh\t-e \nfalse\nexit 0", ("exit", 1, None)),
    ],
)
def test_an_end_is_told_as_it_was(host: Host, script: bytes, expected: tuple[str, int | None, str | None]) -> None:
    record = host.run(script)
    assert ended(record) == expected
    assert record.killed_by_us is None
    assert record.leftovers == ()


@pytest.mark.parametrize(
    ("script", "output"),
    [
        (b"cat; echo end", b"end\n"),
        (b"read x; echo $?", b"1\n"),
        (b"#!/usr/bin/env python3\ntry: input()\nexcept EOFError: print('end of file')", b"end of file\n"),
    ],
)
def test_commands_that_read_stdin_meet_its_end(host: Host, script: bytes, output: bytes) -> None:
    assert host.output(host.run(script)) == output


@pytest.mark.parametrize(
    "script",
    [
        b"echo no newline at the end",
        b"echo nul \0 inside\n",
        b"\xef\xbb\xbf#!/bin/sh\necho after a byte-order mark\n",
        b"if true; then\r\necho windows\r\nfi\r\n",
        b"\xff\xfe\x00\x01",
        b"#!/bin/sh\n" + b"# filling\n" * 419_000 + b"echo four mebibytes\n",
    ],
    ids=["no-newline", "nul", "bom", "crlf", "no-text", "4-mib"],
)
def test_a_script_arrives_byte_for_byte(host: Host, script: bytes, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    record = host.run(script, interpreter=("sh", "-c", 'cp "$1" "$2"', "sh"), args=(str(copy),))
    assert ended(record) == ("exit", 0, None)
    assert copy.read_bytes() == script
    host.run(script)  # whatever its shell makes of it, the shepherd lives on
    assert ended(host.run(b"true")) == ("exit", 0, None)


def test_a_python_script_with_a_byte_order_mark_runs_in_python(host: Host) -> None:
    assert host.output(host.run(b"\xef\xbb\xbf#!/usr/bin/env python3\nprint('snake')\n")) == b"snake\n"


@pytest.mark.parametrize(
    ("script", "changes", "words"),
    [
        (b"#!/bin/sh\r\necho hello\r\n", {}, "CRLF"),
        (b"#!/bin/no-such-shell\n", {}, "/bin/no-such-shell does not exist on this host"),
        (b"#!\n", {}, "without an interpreter"),
        (b"#!/bin/sh\0\n", {}, "NUL byte"),
        (b"x", {"interpreter": ("no-such-program",)}, "no-such-program was not found on this host"),
        (b"x", {"interpreter": ("/bin",)}, "may not be executed"),
        (b"x", {"interpreter": ("/dev/null/x",)}, "does not exist"),
        (b"x", {"cwd": "/no/such/directory"}, "'/no/such/directory' cannot be entered: No such file"),
        (b"x", {"cwd": "/etc/passwd"}, "cannot be entered: Not a directory"),
        (b"x", {"args": ("a" * 200_000,)}, "too large"),
        (b"x", {"env": {"BIG": "a" * 131_072}}, "too large"),
        (b"x", {"env": {"A=B": "c"}}, "not allowed"),
        (b"x", {"args": ("nul \0",)}, "not allowed"),
    ],
)
def test_what_cannot_be_started_says_why(host: Host, script: bytes, changes: dict[str, object], words: str) -> None:
    record = host.run(script, **changes)
    assert ended(record) == ("spawn_error", None, None)
    assert record.pid is None
    assert record.detail is not None
    assert words in record.detail


def test_a_program_that_is_none_cannot_be_started(host: Host, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF but not really")
    record = host.run(b"x", interpreter=(str(program),))
    assert record.detail == f"The interpreter {program} may not be executed by this user: permission denied."
    program.chmod(0o755)
    record = host.run(b"x", interpreter=(str(program),))
    assert record.detail == f"The interpreter {program} is not a program this host can execute."
    program.write_bytes(b"#!/no/such/loader\n")
    record = host.run(b"x", interpreter=(str(program),))
    assert record.detail == f"The interpreter {program} exists, but the program that would load it does not."


def test_the_environment_is_the_documented_one_and_nothing_else(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_TOKEN", "secret of the agent")
    host.leave()
    host.come()
    task = {"GREETING": "grüße", "LANG": "de_DE.UTF-8", "MUSTER_RUN_ID": "mine"}
    running = host.submit(b"#!/usr/bin/env -S env -0\n", interpreter=("sh", "-c", "env -0"), env=task, fence=42)
    entries = dict(entry.split("=", 1) for entry in host.output(running.record()).decode().split("\0") if entry)
    entries.pop("_", None), entries.pop("PWD", None)  # the shell's own
    home = os.path.expanduser("~")
    user = entries["USER"]
    assert entries == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/sh",
        "LANG": "de_DE.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "GREETING": "grüße",
        "MUSTER_TASK_ID": running.spec.task_id,
        "MUSTER_RUN_ID": running.spec.run_id,
        "MUSTER_ATTEMPT": "1",
        "MUSTER_FENCE": "42",
    }


def test_python_scripts_speak_utf8(host: Host) -> None:
    record = host.run("#!/usr/bin/env python3\nprint('é')\n".encode())
    assert host.output(record) == "é\n".encode()


def test_a_process_starts_with_nothing_of_the_agents(host: Host, tmp_path: Path) -> None:
    script = b"""#!/usr/bin/env python3
import os, resource, signal
print(os.getcwd())
print(os.getsid(0) == os.getpid())
print(oct(os.umask(0)))
print(sorted(os.listdir("/proc/self/fd")))
print(os.readlink("/proc/self/fd/0"))
print([line.split()[1] for line in open("/proc/self/status") if line.startswith(("SigBlk", "ShdPnd"))])
print([number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN])
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    lines = host.output(host.run(script, cwd=str(tmp_path))).decode().splitlines()
    assert lines[0] == str(tmp_path)
    assert lines[1] == "True"
    assert lines[2] == "0o22"
    assert lines[3] == "['0', '1', '2', '3']"  # the last one is the listing's own
    assert lines[4] == "/dev/null"
    assert lines[5] == "['0000000000000000', '0000000000000000']"
    assert lines[6] == "[<Signals.SIGPIPE: 13>, <Signals.SIGXFSZ: 25>]"  # ignored by Python itself
    assert lines[7] == str(resource.getrlimit(resource.RLIMIT_NOFILE))
    status = host.output(host.run(b"grep -E '^(SigIgn|SigBlk):' /proc/self/status")).split()
    the_c_librarys_own = 0b11 << 31  # signals 32 and 33, which no program can set through it
    assert [int(mask, 16) & ~the_c_librarys_own for mask in status[1::2]] == [0, 0]


def test_the_script_file_is_the_users_alone(host: Host) -> None:
    running = host.submit(b'#!/bin/sh\nprintf \'%s\\n\' "$0" "$@"; sleep 300', args=("a b", "", "é"))
    path, *args = running.lines(4)
    assert args == ["a b", "", "é"]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o400
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    running.kill(grace_s=0.0)
    running.record()


def test_the_default_directory_is_home_and_a_relative_one_begins_there(host: Host) -> None:
    home = os.path.expanduser("~")
    assert host.output(host.run(b"pwd")).decode().strip() == os.path.realpath(home)
    assert host.output(host.run(b"pwd", cwd="..")).decode().strip() == os.path.realpath(f"{home}/..")


def test_an_attempt_is_started_once_only(host: Host, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    running = host.submit(b"echo ran >> " + os.fsencode(witness))
    record = running.record()
    again = host.link.start({**_message(running.spec), "lease": "another"})
    with pytest.raises(StartRefused, match="The attempt is ended"):
        again.result(PATIENCE_S)
    # Neither a directory that is left, nor a record that is lost, lets it run anew.
    os.unlink(host.path / f"attempts/{record.run_id}.1/exit.json")
    second = host.executor.submit(running.spec).result(PATIENCE_S)
    assert second.outcome == "spawn_error"
    assert witness.read_text() == "ran\n"


def _message(spec: AttemptSpec) -> dict[str, object]:
    limits = {"kill_grace_s": 1.0, "drain_quiet_s": 0.1, "drain_most_s": 1.0}
    return spec_message(spec, interpreter=("/bin/sh",), limits=limits)


def test_a_background_process_that_keeps_the_output_open_does_not_hold_up_the_end(host: Host) -> None:
    record = host.run(b"echo hi; sleep 300 &")
    assert ended(record) == ("exit", 0, None)
    assert host.output(record) == b"hi\n"
    assert [left.command for left in record.leftovers] == ["sleep 300"]
    assert record.duration_s is not None
    assert record.duration_s < 5
    os.kill(record.leftovers[0].pid, 9)


def test_a_background_process_that_let_go_of_everything_is_named_too(host: Host) -> None:
    record = host.run(b"setsid env -i sleep 301 </dev/null >/dev/null 2>&1 &")
    assert [left.command for left in record.leftovers] == ["sleep 301"]
    os.kill(record.leftovers[0].pid, 9)


def test_output_that_comes_just_after_the_end_is_waited_for(host: Host) -> None:
    # The reader at the other end of a process substitution ends a little later than the script.
    record = host.run(b'#!/bin/bash\nexec > >(while read -r line; do echo "got $line"; done)\necho one\necho two\n')
    assert host.output(record) == b"got one\ngot two\n"
    assert record.leftovers == ()


def test_a_leftover_that_goes_on_writing_neither_waits_nor_breaks(host: Host, tmp_path: Path) -> None:
    done = tmp_path / "done"
    os.mkfifo(done)
    script = f"""#!/usr/bin/env python3
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
open({str(done)!r}).read()
for _ in range(50):
    os.write(1, b"x" * 100_000)
    os.write(2, b"x" * 100_000)
open({str(done)!r}, "w").write("wrote it all")
"""
    record = host.run(script.encode())
    assert len(record.leftovers) == 1
    done.write_text("go")
    assert done.read_text() == "wrote it all"
    wait_gone(record.leftovers[0].pid)
    assert record.output_bytes == 0


def test_leftovers_are_ended_when_the_task_wants_it(host: Host) -> None:
    record = host.run(b"sleep 300 & setsid sleep 301 & echo $!", leftovers="kill")
    assert ended(record) == ("exit", 0, None)
    assert record.killed_by_us is None
    assert sorted(left.command for left in record.leftovers) == ["sleep 300", "sleep 301"]
    for left in record.leftovers:
        wait_gone(left.pid)
    assert [step.signal for step in record.steps] == ["SIGTERM"]


def test_orphans_leave_no_zombies(tmp_path: Path) -> None:
    with host_at(tmp_path / "state") as host:
        host.settings = ExecutorSettings(drain_quiet_s=0.0)
        host.leave()
        host.come()
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        opened = os.open(gate, os.O_RDWR)
        script = b"#!/bin/sh\n(read x < " + os.fsencode(gate) + b") </dev/null >/dev/null 2>&1 &\n"
        running = [host.submit(script) for _ in range(200)]
        orphans = [left.pid for one in running for left in one.record().leftovers]
        assert len(orphans) == 200
        os.write(opened, b"\n" * 200)
        for pid in orphans:
            wait_gone(pid)
        os.close(opened)
        assert ended(host.run(b"true")) == ("exit", 0, None)  # by now every SIGCHLD has been answered
        assert [pid for pid in all_pids() if _parent(pid) == host.shepherd] == []


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_a_full_disk_starts_nothing_and_says_so(host: Host, tmp_path: Path) -> None:
    os.rename(host.path / "attempts", host.path / "attempts-away")
    (host.path / "attempts").touch()  # nothing can be made below a file
    record = host.run(b"true")
    assert record.outcome == "spawn_error"
    assert record.detail is not None
    assert "could not be written to the agent's disk" in record.detail
    (host.path / "attempts").unlink()
    os.rename(host.path / "attempts-away", host.path / "attempts")
    assert ended(host.run(b"true")) == ("exit", 0, None)


def test_a_run_id_that_is_none_reaches_no_path(host: Host) -> None:
    with pytest.raises(ValueError, match="not a UUID"):
        host.executor.submit(spec_of(b"true", run_id="../../etc")).result(PATIENCE_S)
    assert host.executor.running() == []


def test_the_shepherd_is_small_and_named_for_what_it_is(host: Host) -> None:
    for _ in range(20):
        host.run(b"echo hello")
    words = Path(f"/proc/{host.shepherd}/cmdline").read_text().split("\0")
    assert words.index("muster") < words.index("shepherd")
    resident = int(Path(f"/proc/{host.shepherd}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert resident < 15 * 1024 * 1024


def test_a_script_that_removes_every_attempt_does_not_end_the_host(host: Host) -> None:
    assert host.run(b'rm -rf "${0%/*/*}"').exit_code == 0
    record = host.run(b"echo still here")
    assert (record.exit_code, host.output(record)) == (0, b"still here\n")
