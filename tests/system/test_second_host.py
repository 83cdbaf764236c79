"""A second host: enrolled by one pasted line, in a network namespace of its own, cut off and joined again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, muster
from tests.support.netns import Host, second_host
from tests.support.processes import Spawned, until

pytestmark = pytest.mark.usefixtures("network_namespaces")
COUNTING = "for i in $(seq 1 {lines}); do echo line $i; sleep 0.1; done; echo done >&2"


def join(cluster: Cluster, host: Host, name: str) -> Spawned:
    """Paste the line of `muster agent-token` on the other host, with a state directory of its own."""
    printed = cluster.cli("agent-token").stdout.decode()
    line = next(line.strip() for line in printed.splitlines() if "agent --join" in line)
    words = shlex.split(line)
    token = words[words.index("--join") + 1]
    state = str(cluster.path / name)
    argv = host.command(*muster("agent", "--join", token, "--state", state, "--name", name))
    cluster.extra_agents[name] = Spawned(argv, environ=cluster.environ, mark=cluster.mark)
    cluster.wait_agent(name)
    return cluster.extra_agents[name]


def test_second_host_joins_works_and_needs_no_open_port(tmp_path: Path) -> None:
    with second_host() as host, Cluster(tmp_path / "m", agents=1, rpc=f"{host.here}:0") as cluster:
        join(cluster, host, "far")
        task = cluster.run("hostname; cat /proc/net/dev | grep -c mu", targets=["far", cluster.agents[0]])
        assert task.state == "succeeded"
        assert host.listening() == []
        addresses = cluster.client.agent("far").facts["addresses"]
        assert host.there in addresses


def test_script_goes_on_while_its_host_is_cut_off_and_its_result_arrives(tmp_path: Path) -> None:
    with second_host() as host, Cluster(tmp_path / "m", agents=0, rpc=f"{host.here}:0") as cluster:
        join(cluster, host, "far")
        submitted = cluster.client.submit(COUNTING.format(lines=40), targets=["far"], lost_after=0)
        (run,) = cluster.client.runs(submitted.id)
        until(lambda: cluster.client.run(run.id).output_bytes > 0, "the first line arrived")
        host.cut()
        cluster.wait_agent("far", "offline")
        until(lambda: cluster.client.run(run.id).silent_since is not None, "the run is known to be silent")
        assert cluster.client.run(run.id).state == "running"
        host.restore()
        cluster.wait_agent("far", "online")
        task = cluster.client.wait(submitted.id, timeout_s=60)
        assert task.state == "succeeded"
        lines = "".join(f"line {n}\n" for n in range(1, 41))
        assert cluster.output(task).decode() == lines + "done\n"
        assert cluster.client.run(run.id).attempt == 1


def test_host_that_stays_away_loses_its_run_after_the_time_the_task_allows(tmp_path: Path) -> None:
    with second_host() as host, Cluster(tmp_path / "m", agents=0, rpc=f"{host.here}:0") as cluster:
        join(cluster, host, "far")
        submitted = cluster.client.submit("sleep 600", targets=["far"], lost_after=3)
        (run,) = cluster.client.runs(submitted.id)
        until(lambda: cluster.client.run(run.id).state == "running", "the run has begun")
        host.cut()
        task = cluster.client.wait(submitted.id, timeout_s=60)
        lost = cluster.client.run(run.id)
        assert (task.state, lost.state, lost.outcome) == ("failed", "failed", "lost")
        host.restore()
        cluster.wait_agent("far", "online")
        until(lambda: cluster.client.agent("far").held == 0, "the slot is free again: the script was ended")


def test_forgotten_host_is_cut_at_its_next_message_and_its_token_is_used_up(tmp_path: Path) -> None:
    with second_host() as host, Cluster(tmp_path / "m", agents=0, rpc=f"{host.here}:0") as cluster:
        token = cluster.client.agent_token().token
        far = Spawned(
            host.command(*muster("agent", "--join", token, "--state", str(cluster.path / "far"), "--name", "far")),
            environ=cluster.environ,
            mark=cluster.mark,
        )
        cluster.wait_agent("far")
        far.send()
        far.wait()
        cluster.wait_agent("far", "offline")
        cluster.client.forget_agent("far")
        again = Spawned(
            host.command(*muster("agent", "--state", str(cluster.path / "far"))),
            environ=cluster.environ,
            mark=cluster.mark,
        )
        again.expect("enrol again|not enrolled|revoked")
        thief = Spawned(
            host.command(*muster("agent", "--join", token, "--state", str(cluster.path / "thief"))),
            environ=cluster.environ,
            mark=cluster.mark,
        )
        assert thief.wait() == 2
        assert "token" in thief.tail()


def test_revoked_host_is_refused_while_it_is_online(tmp_path: Path) -> None:
    with second_host() as host, Cluster(tmp_path / "m", agents=0, rpc=f"{host.here}:0") as cluster:
        far = join(cluster, host, "far")
        assert cluster.cli("agents", "revoke", "far").returncode == 0
        far.expect("enrol again|not enrolled|revoked")
        waiting = cluster.client.submit("true", targets=["far"])
        cluster.wait_agent("far", "offline")
        assert cluster.client.task(waiting.id).state == "waiting"
