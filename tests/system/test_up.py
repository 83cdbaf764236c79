"""`muster up` with real daemons: what it makes, prints, restarts, refuses, and how it stops."""

import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, muster
from tests.support.processes import Spawned, alive, command_of, environment_of, until, wait_gone


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that no test of this module changes."""
    with Cluster(tmp_path_factory.mktemp("up"), agents=2) as cluster:
        yield cluster


def test_files_have_the_documented_names_and_rights(shared: Cluster) -> None:
    data = shared.data_dir
    assert (data / "url").read_text() == shared.url + "\n"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    for secret in ["admin.token", *(path.relative_to(data) for path in data.rglob("*.key")), "keys/trusted.json"]:
        assert stat.S_IMODE((data / secret).stat().st_mode) == 0o600, secret
    for name in ("muster.db", "output.db", "logs/master.log", "logs/web.log", "logs/up.log"):
        assert (data / name).is_file()


def test_local_agents_are_called_as_the_host(shared: Cluster) -> None:
    host = socket.gethostname()
    assert shared.agents == [f"{host}-1", f"{host}-2"]
    assert {agent.name for agent in shared.client.agents()} == set(shared.agents)


def test_the_first_script_works_when_pasted(shared: Cluster) -> None:
    line = shared.up.expect(r"a first script (.*)")[1]
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=30, cwd="/")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\S+-[12] \| hello from .+\n", done.stdout)
    token = shlex.split(shared.up.expect(r"another host +(.*?)   prints")[1])
    assert token[token.index("--data") + 1] == str(shared.data_dir)


def test_the_welcome_has_a_link_that_logs_a_browser_in(shared: Cluster) -> None:
    link = shared.up.expect(r"log in +(http://\S+)  \(once, 10 minutes; ")[1]
    assert link.startswith(f"{shared.url}/login/")
    with urllib.request.urlopen(link, timeout=20) as answer:
        assert answer.status == 200
    done = shared.cli("login")
    assert done.stdout.decode().startswith(f"{shared.url}/login/") and done.stdout.count(b"\n") == 1
    assert b"good once, until" in done.stderr


def test_roles_are_in_the_command_lines_and_no_descriptor_is_inherited(shared: Cluster) -> None:
    agent = shared.agents[0]
    for role, words in (("master", " master "), ("web", " web "), (agent, " agent ")):
        pid = shared.pid(role)
        assert "muster" in command_of(pid) and words in command_of(pid)
        assert os.getsid(pid) == pid
        links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        assert not any("up.lock" in link or "/logs/" in link for link in links), links
    assert str(shared.state_dir(agent)) in command_of(shared.pid(agent))


def test_the_supervisor_has_one_thread(shared: Cluster) -> None:
    assert len(os.listdir(f"/proc/{shared.up.pid}/task")) == 1


def test_a_second_start_is_refused_with_the_first_ones_pid(shared: Cluster) -> None:
    words = muster("up", "--data", str(shared.data_dir), "--listen", "127.0.0.1:0", "--rpc", "127.0.0.1:0")
    second = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert second.returncode == 1
    assert second.stderr.count("\n") == 1
    assert f"in use by process {shared.up.pid}" in second.stderr
    assert (shared.data_dir / "url").exists()


@pytest.mark.parametrize("role", ["master", "web", "agent"])
def test_a_daemon_that_was_killed_is_restarted_and_work_goes_on(role: str, tmp_path: Path) -> None:
    with Cluster(tmp_path / "m") as cluster:
        task = cluster.start_script("sleep 2; echo done")
        cluster.restart(role if role != "agent" else cluster.agents[0])
        assert cluster.client.wait(task.id, timeout_s=40).state == "succeeded"
        assert cluster.output(task) == b"begun\ndone\n"
        assert cluster.up.expect(r"died \(SIGKILL\); it is started again in")
        assert cluster.client.verify().findings == []


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        words = muster("up", "--data", str(tmp_path / "d"), "--listen", address, "--rpc", "127.0.0.1:0")
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert done.stderr == (
        f"muster: {address} is in use by another program: stop that one, or choose another address with --listen\n"
    )
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "environ", "told"),
    [
        (["--heartbeat", "soon"], {}, "--heartbeat"),
        ([], {"MUSTER_LEASE": "x"}, "lease"),
        (["--config", "/nowhere/muster.toml"], {}, "does not exist"),
        (["--agents", "-1"], {}, "--agents"),
        (["--listen", "nonsense:port"], {}, "nonsense:port"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(
    words: list[str], environ: dict[str, str], told: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        muster("up", "--data", str(tmp_path / "d"), *words),
        capture_output=True,
        text=True,
        timeout=20,
        env={**os.environ, **environ},
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert told in done.stderr
    assert not (tmp_path / "d").exists()


def test_settings_from_file_environment_and_flag_reach_the_daemons_and_no_script(tmp_path: Path) -> None:
    (tmp_path / "muster.toml").write_text('heartbeat = 2.5\nlease = 33\nlog_format = "json"\n')
    environ = {
        "MUSTER_CONFIG": str(tmp_path / "muster.toml"),
        "MUSTER_LEASE": "44",
        "MUSTER_TOKEN": "not-for-you",
        "MY_SECRET": "also-not",
    }
    with Cluster(tmp_path / "m", settings={"heartbeat": 2.5, "lease": 44}, environ=environ) as cluster:
        for role in ("master", "web", cluster.agents[0]):
            known = environment_of(cluster.pid(role))
            assert (known["MUSTER_HEARTBEAT"], known["MUSTER_LEASE"]) == ("2.5", "44.0")
            assert "MUSTER_TOKEN" not in known and known["MUSTER_CONFIG"] == ""
            assert json.loads(cluster.logs(role).splitlines()[0])["level"] == "info"
        seen = cluster.output(cluster.run("env")).decode()
        names = {line.partition("=")[0] for line in seen.splitlines()}
        assert {name for name in names if name.startswith("MUSTER")} == {
            "MUSTER_TASK_ID",
            "MUSTER_RUN_ID",
            "MUSTER_ATTEMPT",
            "MUSTER_FENCE",
        }
        assert "MY_SECRET" not in names and "NOTIFY_SOCKET" not in names


def test_stopping_waits_for_scripts(tmp_path: Path) -> None:
    with Cluster(tmp_path / "m", settings={"drain": 20}) as cluster:
        task = cluster.start_script("sleep 1.5; echo finished")
        cluster.up.send(signal.SIGINT)
        cluster.up.expect("to finish what runs; Ctrl-C once more ends it at once")
        assert cluster.up.wait(30) == 0
        stopped = [line for line in cluster.up.lines if re.search(r"muster +\| .* has stopped", line)]
        assert [line.split("|")[1].split()[0] for line in stopped] == [cluster.agents[0], "web", "master"]
        cluster.start()
        assert cluster.client.task(task.id).state == "succeeded"
        assert cluster.output(task) == b"begun\nfinished\n"


def test_a_second_ctrl_c_ends_scripts_as_interrupted(tmp_path: Path) -> None:
    with Cluster(tmp_path / "m", settings={"drain": 60}) as cluster:
        task = cluster.start_script("sleep 300 & sleep 300")
        began = time.monotonic()
        cluster.up.send(signal.SIGINT)
        cluster.up.expect("Ctrl-C once more")
        cluster.up.send(signal.SIGINT)
        cluster.up.expect("stopping at once")
        assert cluster.up.wait(30) == 0
        assert time.monotonic() - began < 15
        until(lambda: not cluster.processes(), "every process is gone", timeout_s=10)
        cluster.start()
        (run,) = cluster.client.runs(task.id)
        assert (run.state, run.outcome) == ("failed", "interrupted")


def test_everything_dies_with_a_supervisor_that_is_killed_and_a_new_start_takes_over(tmp_path: Path) -> None:
    with Cluster(tmp_path / "m") as cluster:
        task = cluster.start_script("sleep 3; echo survived")
        daemons = [cluster.pid(role) for role in ("master", "web", cluster.agents[0])]
        shepherds = cluster.shepherds(cluster.agents[0])
        cluster.kill("up")
        for pid in daemons:
            wait_gone(pid, 5)
        assert [alive(pid) for pid in shepherds] == [True]
        cluster.start()
        assert cluster.client.wait(task.id, timeout_s=30).state == "succeeded"
        assert cluster.output(task) == b"begun\nsurvived\n"


def test_shepherds_end_by_themselves_when_nobody_comes_back(tmp_path: Path) -> None:
    with Cluster(tmp_path / "m", settings={"shepherd_idle": 0.5}) as cluster:
        cluster.run("true")
        (shepherd,) = cluster.shepherds(cluster.agents[0])
        cluster.kill("up")
        wait_gone(shepherd, 15)


def test_an_agent_that_cannot_run_is_left_out_and_the_others_work(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "m", agents=2)
    with cluster:
        cluster.up.send(signal.SIGTERM)
        cluster.up.wait(30)
        broken, sound = cluster.agents
        (cluster.state_dir(broken) / "journal.log").unlink(missing_ok=True)
        (cluster.state_dir(broken) / "journal.log").mkdir()
        (cluster.state_dir(broken) / "agent.key").chmod(0o644)
        second = Spawned(cluster.up.argv, environ=cluster.environ, mark=cluster.mark)
        second.expect("agent.key may be read by others")
        assert second.wait(20) == 1
        (cluster.state_dir(broken) / "agent.key").chmod(0o600)
        (cluster.state_dir(broken) / "journal.log").rmdir()
        cluster.start()
        assert cluster.run("echo ok", targets=[sound]).state == "succeeded"


def test_identities_outlive_restarts_and_another_number_of_agents(tmp_path: Path) -> None:
    with Cluster(tmp_path / "m", agents=3) as cluster:
        before = {agent.name: agent.id for agent in cluster.client.agents()}
        cluster.up.send(signal.SIGTERM)
        cluster.up.wait(30)
        cluster.wanted_agents = 1
        cluster.start()
        cluster.up.send(signal.SIGTERM)
        cluster.up.wait(30)
        cluster.wanted_agents = 4
        cluster.start()
        after = {agent.name: agent.id for agent in cluster.client.agents()}
        assert {name: after[name] for name in before} == before
        assert len(after) == 4
        task = cluster.run("echo $MUSTER_RUN_ID", targets=list(after))
        assert task.counts == {"succeeded": 4}
