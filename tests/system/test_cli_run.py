"""`muster run` and the commands around it, as a person and a program use them, against real daemons."""

import contextlib
import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, muster
from tests.support.processes import MARK, until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("run"), agents=3) as made:
        yield made


@pytest.fixture(scope="module")
def names(cluster: Cluster) -> list[str]:
    return cluster.agents


class Person:
    """`muster WORDS…` at a terminal of its own."""

    def __init__(self, cluster: Cluster, *words: str) -> None:
        self.seen = b""
        pid, self.fd = pty.fork()
        if pid == 0:
            os.execvpe(muster()[0], muster(*words), {**cluster.cli_environ({"TERM": "xterm"}), MARK: cluster.mark})
        self.pid = pid

    def expect(self, pattern: bytes, timeout_s: float = 20.0) -> re.Match[bytes]:
        deadline = time.monotonic() + timeout_s
        while True:
            found = re.search(pattern, self.seen)
            if found:
                return found
            assert self._more(deadline - time.monotonic()), f"{pattern!r} is not in {self.seen!r}"

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def wait(self, timeout_s: float = 20.0) -> int:
        deadline = time.monotonic() + timeout_s
        while self._more(deadline - time.monotonic()):
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _more(self, wait_s: float) -> bool:
        if not select.select([self.fd], [], [], max(0.0, wait_s))[0]:
            return False
        with contextlib.suppress(OSError):  # the other side has ended
            got = os.read(self.fd, 65536)
            self.seen += got
            return bool(got)
        return False


def test_output_is_marked_by_agent_and_stream_and_the_code_is_0(cluster: Cluster, names: list[str]) -> None:
    script = b"echo out; echo err >&2; echo arg:$1"
    done = cluster.cli("run", "--on", ",".join(names[:2]), "--on", names[2], "-", "a b", stdin=script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.decode().splitlines()) == sorted(
        line for name in names for line in (f"{name} | out", f"{name} | arg:a b")
    )
    errors = done.stderr.decode().splitlines()
    assert sorted(errors[:3]) == sorted(f"{name} ! err" for name in names)
    assert re.fullmatch(r"task [0-9a-f-]{36}: 3 succeeded in .*", errors[3])


def test_options_after_the_script_belong_to_the_script(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text('printf "%s\\n" "$@"')
    done = cluster.cli("run", "--count", "1", "--no-prefix", str(script), "--count", "2", "--", "-x", "")
    assert (done.returncode, done.stdout) == (0, b"--count\n2\n--\n-x\n\n")


@pytest.mark.parametrize(
    ("script", "ending"),
    [("exit 3", "exit 3"), ("kill -9 $$", "signal SIGKILL"), ("sleep 60", "timeout")],
)
def test_a_failure_ends_with_1_and_says_how(script: str, ending: str, cluster: Cluster, names: list[str]) -> None:
    done = cluster.cli("run", "--on", names[0], "--timeout", "500ms", "-", stdin=script.encode())
    assert done.returncode == 1
    assert f"  {ending}: {names[0]}" in done.stderr.decode()


def test_the_stop_rule_ends_with_3(cluster: Cluster, names: list[str]) -> None:
    done = cluster.cli(
        *("run", "--on", ",".join(names), "--parallel", "1", "--fail-count", "1", "-"), stdin=b"echo ran; exit 1"
    )
    assert done.returncode == 3
    assert done.stdout.count(b"ran") == 1
    assert b"1 failed, 2 skipped" in done.stderr


def test_what_expires_ends_with_4(cluster: Cluster, names: list[str]) -> None:
    cluster.client.drain_agent(names[0])
    try:
        done = cluster.cli("run", "--on", names[0], "--expires", "0.3", "-", stdin=b"true", timeout_s=30)
    finally:
        cluster.client.resume_agent(names[0])
    assert done.returncode == 4, done.stderr
    assert b"1 expired" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"), [(["--on", "nobody"], b"nobody"), (["--count", "99"], b"99"), (["--on", ""], b"targets")]
)
def test_nowhere_to_run_ends_with_4(words: list[str], told: bytes, cluster: Cluster) -> None:
    done = cluster.cli("run", *words, "-", stdin=b"true")
    assert (done.returncode, done.stdout) == (4, b"")
    assert told in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--timeout", "soon", "-"], b"soon"),
        (["--count", "1", "--fail-rate", "2", "-"], b"share"),
        (["--count", "1", "--env", "novalue", "-"], b"KEY=VALUE"),
        (["--count", "1", "--nope", "-"], b"--nope"),
        (["--count", "1", "/no/such/file"], b"/no/such/file"),
        (["--count", "1"], b"SCRIPT"),
        (["--count", "1", "--priority", "-5", "-"], b"priority"),
    ],
)
def test_wrong_usage_ends_with_2_and_submits_nothing(words: list[str], told: bytes, cluster: Cluster) -> None:
    before = len(list(cluster.client.tasks()))
    done = cluster.cli("run", *words, stdin=b"true")
    assert done.returncode == 2
    assert told in done.stderr and done.stderr.count(b"\n") == 1
    assert len(list(cluster.client.tasks())) == before


def test_without_a_target_nothing_runs_and_the_agents_are_named(cluster: Cluster, names: list[str]) -> None:
    done = cluster.cli("run", "-", stdin=b"true")
    assert done.returncode == 2
    assert f"--on A,B or --count N; agents: {', '.join(names)}" in done.stderr.decode()


def test_nobody_there_ends_with_5(tmp_path: Path, cluster: Cluster) -> None:
    done = cluster.cli(
        "run", "--count", "1", "-", "--url", "x", stdin=b"", environ={"MUSTER_URL": "http://127.0.0.1:9"}
    )
    assert done.returncode == 5
    assert b"http://127.0.0.1:9 cannot be reached" in done.stderr
    done = cluster.cli("tasks", environ={"MUSTER_DATA": str(tmp_path)})
    assert done.returncode == 5
    assert b"muster up" in done.stderr


def test_bytes_pass_unchanged(cluster: Cluster) -> None:
    script = rb"printf '\377\376\000x\r\n\033[2J'; printf 'no end'"
    done = cluster.cli("run", "--count", "1", "--no-prefix", "--name", "odd bytes", "-", stdin=script)
    assert done.stdout == b"\xff\xfe\0x\r\n\x1b[2Jno end\n"
    (task,) = cluster.client.tasks(name="odd bytes")
    assert cluster.cli("logs", task.id).stdout == b"\xff\xfe\0x\r\n\x1b[2Jno end"
    assert cluster.cli("logs", task.id, "--stream", "stderr").stdout == b""


def test_alternating_lines_of_both_pipes_are_never_glued(cluster: Cluster, names: list[str]) -> None:
    script = b"i=0; while [ $i -lt 300 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
    words = muster("run", "--on", names[1], "-")
    done = subprocess.run(
        words, input=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=cluster.cli_environ(), timeout=60
    )
    lines = done.stdout.decode().splitlines()[:600]
    # Two pipes have no common order; each keeps its own.
    for mark, word in (("|", "out"), ("!", "err")):
        assert [line for line in lines if word in line] == [f"{names[1]} {mark} {word} {i}" for i in range(300)]


def test_json_gives_the_final_task_with_its_runs(cluster: Cluster, names: list[str]) -> None:
    done = cluster.cli("run", "--json", "--on", names[0], "--env", "A=b", "-", stdin=b"exit 4")
    assert (done.returncode, done.stderr) == (1, b"")
    task = json.loads(done.stdout)
    assert (task["state"], task["env"], task["runs"][0]["exit_code"]) == ("failed", {"A": "b"}, 4)


def test_detach_prints_the_id_and_the_other_commands_take_its_beginning(cluster: Cluster, names: list[str]) -> None:
    task_id = cluster.cli("run", "--detach", "--on", names[0], "-", stdin=b"echo x; sleep 60").stdout.decode().strip()
    start = task_id[:-6]
    until(lambda: cluster.client.task(start).state == "running", "the script runs")
    assert f"task       {task_id}" in cluster.cli("show", start).stdout.decode()
    assert task_id in cluster.cli("tasks", "--state", "running").stdout.decode()
    done = cluster.cli("cancel", start, "--wait")
    assert done.stdout.decode() == f"task {task_id} is cancelled: 1 cancelled\n"
    assert json.loads(cluster.cli("show", "--json", start).stdout)["runs"][0]["state"] == "cancelled"
    assert cluster.cli("retry", start, "--failed").stdout.decode().startswith(f"task {task_id} runs again")
    assert cluster.cli("retry", start).returncode == 1  # not final: a conflict
    cluster.client.cancel(start)
    cluster.client.wait(start, timeout_s=20)


def test_what_is_not_there_ends_with_1(cluster: Cluster) -> None:
    for words in (["show", "0193ffff"], ["logs", "0193ffff"], ["cancel", "0193ffff"], ["why", "0193ffff"]):
        done = cluster.cli(*words)
        assert (done.returncode, done.stdout) == (1, b""), words
        assert done.stderr.count(b"\n") == 1


def test_why_tells_what_a_run_waits_for(cluster: Cluster, names: list[str]) -> None:
    cluster.client.drain_agent(names[2])
    try:
        task = cluster.client.submit("true", targets=[names[2]])
        done = cluster.cli("why", task.id)
        assert done.returncode == 0
        assert names[2] in done.stdout.decode() and "drain" in done.stdout.decode()
    finally:
        cluster.client.resume_agent(names[2])
    assert cluster.client.wait(task.id, timeout_s=20).state == "succeeded"
    assert cluster.cli("why", task.id).returncode == 0


def test_agents_are_listed_labelled_drained(cluster: Cluster, names: list[str]) -> None:
    listed = cluster.cli("agents").stdout.decode().splitlines()
    assert listed[0].split() == ["AGENT", "STATE", "SLOTS", "SEEN", "SYSTEM", "LABELS"]
    assert [line.split()[:2] for line in listed[1:]] == [[name, "online"] for name in names]
    cluster.cli("agents", "label", names[0], "env=prod", "rack=")
    assert cluster.cli("agents", "label", names[0], "rack-").stdout.decode() == f"{names[0]}  env=prod\n"
    assert b"env=prod" in cluster.cli("agents", "show", names[0]).stdout
    assert cluster.cli("agents", "label", names[0], "nonsense").returncode == 2
    done = cluster.cli("agents", "drain", names[0], "nobody")
    assert (done.returncode, done.stdout.decode()) == (1, f"{names[0]} is draining\n")
    assert b"nobody" in done.stderr
    cluster.cli("agents", "resume", names[0])
    cluster.wait_agent(names[0], "online")
    assert cluster.cli("agents", "forget", names[0]).returncode == 1  # it is online
    assert len(json.loads(cluster.cli("agents", "list", "--json").stdout)) == 3


def test_a_join_token_comes_with_its_line_and_a_warning_about_the_loopback(cluster: Cluster) -> None:
    done = cluster.cli("agent-token")
    assert re.fullmatch(rb"muster agent --join \S+\n", done.stdout)
    assert f"leads to {cluster.rpc}".encode() in done.stderr


def test_verify_asks_the_running_master(cluster: Cluster) -> None:
    done = cluster.cli("verify")
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(b"no findings; checked ")


def test_logs_of_several_runs_are_marked_and_can_be_followed(cluster: Cluster, names: list[str]) -> None:
    task = cluster.client.submit("echo one; sleep 1; echo two", targets=names[:2])
    done = cluster.cli("logs", "--follow", task.id)
    expected = sorted(f"{name} | {word}" for name in names[:2] for word in ("one", "two"))
    assert (done.returncode, sorted(done.stdout.decode().splitlines())) == (0, expected)
    assert cluster.cli("logs", task.id).stdout.decode().splitlines() == [
        line for run in cluster.client.runs(task.id) for line in (f"{run.where} | one", f"{run.where} | two")
    ]
    assert cluster.cli("logs", task.id, "--on", names[1]).stdout == b"one\ntwo\n"
    assert cluster.cli("logs", task.id, "--on", names[2]).returncode == 1


def test_ctrl_c_without_a_terminal_detaches(cluster: Cluster, names: list[str]) -> None:
    with subprocess.Popen(
        muster("run", "--on", names[0], "-"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cluster.cli_environ(),
    ) as follower:
        assert follower.stdin is not None and follower.stdout is not None and follower.stderr is not None
        follower.stdin.write(b"echo begun; sleep 1; echo ended")
        follower.stdin.close()
        assert follower.stdout.readline() == f"{names[0]} | begun\n".encode()
        follower.send_signal(signal.SIGINT)
        told = follower.stderr.read().decode()
        assert follower.wait(20) == 130
    task_id = re.search(r"`muster cancel ([0-9a-f-]{36})`", told)
    assert task_id is not None
    assert cluster.client.wait(task_id[1], timeout_s=20).state == "succeeded"


def test_ctrl_c_at_a_terminal_asks(cluster: Cluster, names: list[str], tmp_path: Path) -> None:
    script = tmp_path / "long.sh"
    script.write_text("echo begun; sleep 60")
    person = Person(cluster, "run", "--on", names[0], str(script))
    person.expect(rb"begun")
    person.type(b"\x03")
    person.expect(rb"\[d\]etach, \[c\]ancel it, or Enter")
    person.type(b"\n")
    person.expect(rb"following: \r\n.*1 running")
    person.type(b"\x03")
    person.expect(rb"(?s)Enter.*Enter")
    person.type(b"c\n")
    assert person.wait() == 3
    assert b"1 cancelled" in person.seen


def test_a_terminal_shows_progress_and_obeys_no_script(cluster: Cluster, names: list[str], tmp_path: Path) -> None:
    script = tmp_path / "bar.sh"
    script.write_text(
        r"""printf '\033]0;title\007\033[31mred\033[0m\n'
        for i in 10 20 30 40 50 60; do printf "\r$i%%"; sleep 0.1; done; echo"""
    )
    person = Person(cluster, "run", "--on", names[0], str(script))
    assert person.wait() == 0
    assert rb"^[]0;title^G" in person.seen and b"\x1b]0" not in person.seen
    assert re.search(rb"0/1 ended .*%", person.seen), person.seen  # live, on the line of progress
    assert re.search(rf"{names[0]} . 60%".encode(), person.seen.replace(b"\x1b[0m", b"")), person.seen


@pytest.mark.parametrize("role", ["web", "master"])
def test_following_survives_a_restart(role: str, cluster: Cluster, names: list[str]) -> None:
    script = b"for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.5; done"
    with subprocess.Popen(
        muster("run", "--on", names[0], "--no-prefix", "-"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cluster.cli_environ(),
    ) as follower:
        assert follower.stdin is not None and follower.stdout is not None
        follower.stdin.write(script)
        follower.stdin.close()
        first = [follower.stdout.readline(), follower.stdout.readline()]
        cluster.restart(role)
        rest = follower.stdout.readlines()
        assert follower.wait(60) == 0
    assert [*first, *rest] == [b"line %d\n" % i for i in range(1, 9)]


def test_help_is_quick() -> None:
    """Under 0.3 s of processor time, which a busy machine does not change; alone it is the time one waits."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(muster("--help"), capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0 and "run a script on agents" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3
