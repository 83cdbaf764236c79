"""Each daemon alone, as a service manager runs it: `muster master`, `muster web`, `muster agent`."""

import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Daemons, muster, timed
from tests.support.processes import Spawned, until, wait_gone


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    with Daemons(tmp_path_factory.mktemp("daemons")) as made:
        yield made


def test_they_find_each_other_again_whoever_was_killed(daemons: Daemons) -> None:
    (agent,) = daemons.agents
    for role in ("web", "master", agent):
        task = daemons.start_script("sleep 1; echo done")
        daemons.kill(role)
        daemons.begin(role)
        daemons.client.wait(task.id, timeout_s=60)
        (run,) = daemons.client.runs(task.id)
        assert (run.state, run.outcome, run.detail) == ("succeeded", "exit", None), role
        assert daemons.output(task) == b"begun\ndone\n"
    assert daemons.client.verify().findings == []


def test_a_join_token_makes_an_agent_that_keeps_its_identity(daemons: Daemons) -> None:
    agent = daemons.add_agent("far", "--label", "place=far", "--slots", "3")
    known = daemons.client.agent("far")
    assert (known.labels, known.slots, known.state) == ({"place": "far"}, 3, "online")
    assert daemons.run("echo $MUSTER_ATTEMPT", targets=["far"]).state == "succeeded"
    state = daemons.state_dir("far")
    assert stat.S_IMODE((state / "agent.key").stat().st_mode) == 0o600
    agent.send(signal.SIGTERM)
    assert agent.wait(15) == 0
    daemons.restart_agent("far").notified()
    again = daemons.client.agent("far")
    assert (again.id, again.labels, again.slots) == (known.id, known.labels, 3)


def test_a_second_agent_on_the_same_directory_is_refused_with_the_first_ones_pid(daemons: Daemons) -> None:
    agent = daemons.agents[0]
    done = subprocess.run(
        muster("agent", "--state", str(daemons.state_dir(agent))), capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 1
    assert f"in use by process {daemons.pid(agent)}" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["agent", "--state", "{}/none"], "muster agent-token"),
        (["agent", "--state", "{}/none", "--join", "nonsense"], "no join token"),
        (["agent", "--state", "{}/none", "--label", "x"], "KEY=VALUE"),
        (["web", "--data", "{}/none"], "web.key"),
        (["web", "--listen", "nonsense:x"], "no address"),
        (["master", "--data", "{}/file/none"], "file"),
    ],
)
def test_what_they_cannot_start_with_ends_with_2_and_a_sentence(words: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        muster(*(word.format(tmp_path) for word in words)), capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_is_good_for_one_host(daemons: Daemons, tmp_path: Path) -> None:
    token = daemons.client.agent_token().token
    first = Spawned(
        muster("agent", "--state", str(daemons.path / "one"), "--join", token, "--name", "one"),
        environ=daemons.environ,
        mark=daemons.mark,
    )
    first.notified()
    second = Spawned(
        muster("agent", "--state", str(daemons.path / "two"), "--join", token, "--name", "two"),
        environ=daemons.environ,
        mark=daemons.mark,
    )
    assert second.wait(20) in (1, 2)
    assert "token" in second.tail()
    first.send(signal.SIGTERM)
    assert first.wait(15) == 0
    wait_gone(first.pid)


def test_term_ends_each_of_them_when_idle(tmp_path: Path) -> None:
    with Daemons(tmp_path / "m") as daemons:
        (agent,) = daemons.agents
        daemons.run("true")
        for role in (agent, "web", "master"):
            with timed(10):
                daemons.signal(role, signal.SIGTERM)
                assert daemons.running[role].wait(10) == 0, daemons.logs(role)
        until(lambda: not daemons.processes(), "nothing is left", timeout_s=15)
