"""Enrolling: a join token once, then the directory is enough; what is wrong with a token is said in a sentence."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.identity import AgentHome
from common import auth
from common.errors import Busy
from tests.support.agent_process import AgentHost
from tests.support.fake_master import FakeMaster


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    with FakeMaster() as running:
        yield running


@pytest.fixture
def host(short_path: Path, master: FakeMaster) -> Iterator[AgentHost]:
    host = AgentHost(short_path)
    try:
        yield host
    except BaseException:
        print(host.log)
        raise
    finally:
        host.close()


def hello(master: FakeMaster) -> None:
    run = master.offer("echo hello")
    master.wait_ended(run)
    assert bytes(run.stdout) == b"hello\n"


def test_a_token_once_and_then_the_directory_is_enough(master: FakeMaster, host: AgentHost) -> None:
    first = host.start(join_token=master.token(), name="web-1", labels={"env": "prod"}, slots=3)
    hello(master)
    identity = AgentHome(host.state).load()
    assert identity is not None
    (agent,) = master.agents.values()
    assert (identity.agent_id, identity.name) == (agent.agent_id, "web-1")
    for name in ("agent.json", "agent.key"):
        assert stat.S_IMODE((host.state / name).stat().st_mode) == 0o600
    first.kill()
    registers = master.count("register")
    host.start()
    master.wait_for(lambda: master.count("register") > registers)
    hello(master)
    assert agent.about["agent_id"] == agent.agent_id
    assert (agent.about["labels"], agent.about["slots"]) == ({"env": "prod"}, 3)
    assert master.count("enrol") == 1


def test_a_lost_answer_to_enrol_costs_nothing(master: FakeMaster, host: AgentHost) -> None:
    master.lose_answers("enrol", 2)
    master.fail("enrol", Busy())
    host.start(join_token=master.token())
    hello(master)
    assert len(master.agents) == 1


def test_a_token_given_again_keeps_the_identity(master: FakeMaster, host: AgentHost) -> None:
    first = host.start(join_token=master.token())
    hello(master)
    first.kill()
    host.start(join_token=master.token())
    hello(master)
    assert len(master.agents) == 1
    assert master.count("enrol") == 1
    assert "enrolled already" in host.log


def test_a_forgotten_agent_enrols_anew_with_a_fresh_token(master: FakeMaster, host: AgentHost) -> None:
    first = host.start(join_token=master.token())
    hello(master)
    first.kill()
    (old,) = master.agents
    del master.agents[old]
    host.start(join_token=master.token())
    hello(master)
    (new,) = master.agents
    assert new != old


def test_a_token_of_another_master_is_refused(master: FakeMaster, host: AgentHost) -> None:
    first = host.start(join_token=master.token(), name="web-1")
    hello(master)
    first.kill()
    with FakeMaster() as other:
        second = host.start(join_token=other.token())
        assert second.wait() == 2
        assert "belongs to agent web-1" in second.told()
        assert "--state" in second.told()


@pytest.mark.parametrize("kind", ["used", "unknown", "damaged", "nonsense"])
def test_a_token_that_is_no_good_is_named(master: FakeMaster, host: AgentHost, kind: str) -> None:
    token = master.token()
    if kind == "used":
        other = AgentHost(host.state.parent / "other")
        (host.state.parent / "other").mkdir()
        other.start(join_token=token)
        master.wait_for(lambda: master.agents)
        other.close()
    elif kind == "unknown":
        ticket = auth.decode_join_token(token)
        token = auth.encode_join_token(
            auth.JoinToken(endpoint=ticket.endpoint, server_key=ticket.server_key, secret="x" * 43)
        )
    elif kind == "damaged":
        token = token[:-3]
    else:
        token = "hello"
    process = host.start(join_token=token)
    assert process.wait() == 2
    wanted = {"used": "used", "unknown": "not known", "damaged": "damaged", "nonsense": "no join token"}[kind]
    assert wanted in process.told()
    assert len(process.told().splitlines()) == 1


def test_without_a_token_and_without_an_identity_the_way_is_shown(master: FakeMaster, host: AgentHost) -> None:
    process = host.start()
    assert process.wait() == 2
    assert "muster agent-token" in process.told()
    assert "--join" in process.told()


def test_a_directory_that_cannot_be_used_is_named(master: FakeMaster, host: AgentHost) -> None:
    host.state.parent.mkdir(exist_ok=True)
    host.state.write_text("a file in its place")
    process = host.start(join_token=master.token())
    assert process.wait() == 2
    assert f"{host.state} cannot be used" in process.told()


def test_a_local_agent_learns_its_id_by_registering(master: FakeMaster, host: AgentHost) -> None:
    host.point_at(master, name="box-1")
    host.start()
    hello(master)
    identity = AgentHome(host.state).load()
    (agent,) = master.agents.values()
    assert identity is not None and identity.agent_id == agent.agent_id


def test_a_key_that_is_not_known_is_told_and_tried_again(master: FakeMaster, host: AgentHost) -> None:
    host.point_at(master)
    (key,) = master.agents
    agent = master.agents.pop(key)
    process = host.start()
    host.wait_log("not registered.*not enrolled with the master")
    assert process.running
    master.agents[key] = agent
    master.link.cut()  # a new connection is a new try
    master.link.restore()
    hello(master)
