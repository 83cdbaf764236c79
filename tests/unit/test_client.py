"""The Python client against a real HTTP server."""

import base64
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import client as module
from muster.address import NotConfigured, data_directory, find
from muster.client import (
    Client,
    Conflict,
    InvalidRequest,
    MusterError,
    NotFound,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from tests.support.rest_server import (
    AGENT_ID,
    RUN_ID,
    TASK_ID,
    Asked,
    RestServer,
    Said,
    agent_json,
    page,
    problem,
    run_json,
    serving,
    task_json,
)


@pytest.fixture
def server() -> Iterator[RestServer]:
    with serving() as made:
        yield made


@pytest.fixture
def client(server: RestServer) -> Iterator[Client]:
    with Client(server.url, "secret", retry_for_s=2.0) as made:
        yield made


def test_submit_sends_exactly_what_was_given(server: RestServer, client: Client) -> None:
    server.answers["POST /tasks"] = Said(task_json(), status=201)
    task = client.submit(b"\xff\x00 script", targets=["web-1"], args=("a", "b"), timeout=1.5, wait_s=3)
    (asked,) = server.asked
    assert asked.json == {
        "script": base64.b64encode(b"\xff\x00 script").decode(),
        "targets": ["web-1"],
        "args": ["a", "b"],
        "timeout": 1.5,
    }
    assert asked.headers["Authorization"] == "Bearer secret"
    assert asked.headers["Prefer"] == "wait=3"
    assert len(asked.headers["Idempotency-Key"]) == 36
    assert (task.id, task.state, task.final, task.total) == (TASK_ID, "waiting", False, 1)
    assert task.created_at == datetime(2026, 11, 30, 12, tzinfo=UTC)


def test_a_submit_whose_answer_is_lost_is_sent_again_with_the_same_key(server: RestServer, client: Client) -> None:
    server.answers["GET /tasks/" + TASK_ID] = Said(task_json())
    server.answers["POST /tasks"] = [Said(cut=0), Said(task_json(), status=200)]
    client.task(TASK_ID)
    assert client.submit("true", count=1).id == TASK_ID
    keys = [asked.headers["Idempotency-Key"] for asked in server.asked if asked.method == "POST"]
    assert len(keys) == 2 and keys[0] == keys[1]
    bodies = [asked.body for asked in server.asked if asked.method == "POST"]
    assert bodies[0] == bodies[1]


def test_an_answer_cut_short_is_asked_for_again(server: RestServer, client: Client) -> None:
    server.answers[f"GET /tasks/{TASK_ID}"] = [Said(task_json()), Said(task_json(), cut=10), Said(task_json())]
    client.task(TASK_ID)
    assert client.task(TASK_ID).id == TASK_ID
    assert len(server.asked) == 3


def test_a_busy_server_is_asked_again_until_it_answers(server: RestServer, client: Client) -> None:
    server.answers[f"GET /tasks/{TASK_ID}"] = [
        problem(503, "peer_unreachable", "The master is away."),
        Said(task_json()),
    ]
    assert client.task(TASK_ID).id == TASK_ID


def test_a_retry_of_a_task_is_never_repeated_by_itself(server: RestServer, client: Client) -> None:
    server.answers[f"GET /tasks/{TASK_ID}"] = Said(task_json())
    server.answers[f"POST /tasks/{TASK_ID}/retry"] = Said(cut=0)
    client.task(TASK_ID)
    with pytest.raises(Unreachable):
        client.retry(TASK_ID)
    assert server.paths().count(f"POST /tasks/{TASK_ID}/retry") == 1


def test_a_server_that_was_never_there_is_reported_at_once() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    with pytest.raises(Unreachable, match=url):
        Client(url, "t", retry_for_s=60).task(TASK_ID)


def test_a_server_that_stays_away_is_waited_for_so_long() -> None:
    with serving() as server, Client(server.url, "t", retry_for_s=0.3) as client:
        server.answers[f"GET /tasks/{TASK_ID}"] = Said(task_json(), headers={"Connection": "close"})
        client.task(TASK_ID)
    with pytest.raises(Unreachable):
        client.task(TASK_ID)


def test_a_connection_that_the_server_closed_meanwhile_is_no_error(server: RestServer) -> None:
    server.answers[f"GET /tasks/{TASK_ID}"] = [Said(task_json(), cut=len(str(task_json())) * 2), Said(task_json())]
    with Client(server.url, "t", retry_for_s=0) as client:
        client.task(TASK_ID)
        client.task(TASK_ID)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, Unauthorized),
        (403, Unauthorized),
        (404, NotFound),
        (409, Conflict),
        (413, InvalidRequest),
        (422, InvalidRequest),
        (507, Unavailable),
    ],
)
def test_refusals_are_exceptions_of_their_kind(
    status: int, kind: type[module.ApiError], server: RestServer, client: Client
) -> None:
    server.answers["POST /tasks"] = problem(status, "some_code", "It cannot be.", timeout="must be 0 or more")
    with pytest.raises(kind, match="It cannot be") as caught:
        client.submit("true", count=1)
    assert (caught.value.status, caught.value.code) == (status, "some_code")
    assert [(fault.field, fault.message) for fault in caught.value.errors] == [("timeout", "must be 0 or more")]


def test_an_error_page_of_something_else_is_told_by_its_status(server: RestServer, client: Client) -> None:
    server.answers[f"GET /tasks/{TASK_ID}"] = Said(raw=b"<html>no</html>", status=404)
    with pytest.raises(NotFound, match="404 Not Found"):
        client.task(TASK_ID)
    server.answers[f"GET /tasks/{TASK_ID}"] = Said(raw=b"<html>hello</html>")
    with pytest.raises(MusterError, match="no JSON"):
        client.task(TASK_ID)


def test_lists_are_fetched_page_by_page(server: RestServer, client: Client) -> None:
    def answer(asked: Asked) -> Said:
        if "cursor" in asked.query:
            return page(run_json(id="c"))
        return page(run_json(id="a"), run_json(id="b"), next="next/page")

    server.answers[f"GET /tasks/{TASK_ID}/runs"] = answer
    runs = client.runs(TASK_ID, state="running", page=2)
    assert server.asked == []  # nothing before it is wanted
    assert [run.id for run in runs] == ["a", "b", "c"]
    assert [dict(asked.query) for asked in server.asked] == [
        {"state": "running", "limit": "2"},
        {"state": "running", "limit": "2", "cursor": "next/page"},
    ]


def test_lists_take_several_states(server: RestServer, client: Client) -> None:
    for path in ("/tasks", "/agents", f"/tasks/{TASK_ID}/runs"):
        server.answers[f"GET {path}"] = page()
    assert list(client.tasks(state=["failed", "cancelled"], until="2026-01-01T00:00:00Z")) == []
    assert list(client.agents(state=("offline",), match="web")) == []
    assert list(client.runs(TASK_ID, state=["failed", "skipped"], agent="web")) == []
    assert [dict(asked.query) for asked in server.asked] == [
        {"state": "failed,cancelled", "until": "2026-01-01T00:00:00Z", "limit": "100"},
        {"state": "offline", "q": "web", "limit": "500"},
        {"state": "failed,skipped", "agent": "web", "limit": "500"},
    ]


def test_wait_asks_until_the_task_is_final(server: RestServer, client: Client) -> None:
    ended = task_json(state="failed", reason={"code": "fail_count", "detail": "1 failed", "run_id": RUN_ID})
    server.answers[f"GET /tasks/{TASK_ID}"] = [Said(task_json()), Said(ended)]
    task = client.wait(TASK_ID)
    assert task.final and task.reason is not None and task.reason.code == "fail_count"
    assert {asked.query["wait"] for asked in server.asked} == {"60"}


def test_wait_gives_up_when_its_time_is_over(server: RestServer, client: Client) -> None:
    server.answers[f"GET /tasks/{TASK_ID}"] = Said(task_json())
    with pytest.raises(TimeoutError):
        client.wait(TASK_ID, timeout_s=0.05)


def test_output_is_read_to_its_end_with_gaps_left_out(server: RestServer, client: Client) -> None:
    parts = {0: (b"abc", 13), 13: (b"xyz", 16)}

    def answer(asked: Asked) -> Said:
        content, next_offset = parts[int(asked.query["offset"])]
        headers = {"X-Output-Size": "16", "X-Output-Gaps": "3+10", "X-Output-Next": str(next_offset)}
        return Said(raw=content, headers=headers)

    server.answers[f"GET /runs/{RUN_ID}/output"] = answer
    assert list(client.output(RUN_ID, stream="stdout")) == [b"abc", b"xyz"]
    assert client.output_at(RUN_ID).gaps == ((3, 10),)
    assert server.asked[0].query["stream"] == "stdout"
    assert "attempt" not in server.asked[0].query


@given(
    pieces=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), max_size=6),
    tail=st.integers(0, 5),
    start=st.integers(0, 40),
)
def test_the_next_offset_follows_from_the_gaps(pieces: list[tuple[int, int]], tail: int, start: int) -> None:
    """`_after` against a walk over every single byte."""
    kept: list[bool] = []
    gaps: list[tuple[int, int]] = []
    for before, length in pieces:
        kept += [True] * before
        gaps.append((len(kept), length))
        kept += [False] * length
    kept += [True] * tail
    start = min(start, len(kept))
    assert module._after(start, sum(kept[start:]), gaps) == len(kept)


def test_acts_on_agents(server: RestServer, client: Client) -> None:
    server.answers["GET /agents"] = page(agent_json())
    server.answers["GET /agents/web%201"] = Said(agent_json(name="web 1"))
    server.answers["PATCH /agents/web-1"] = Said(agent_json(labels={"a": "b"}))
    server.answers["POST /agents/web-1/drain"] = Said(agent_json(state="draining"), status=202)
    server.answers["DELETE /agents/web-1"] = Said(status=204)
    (agent,) = client.agents()
    assert (agent.id, agent.labels, agent.slots) == (AGENT_ID, {"env": "prod"}, 2)
    assert client.agent("web 1").name == "web 1"
    assert client.patch_agent("web-1", labels={"a": "b"}).labels == {"a": "b"}
    assert server.asked[-1].json == {"labels": {"a": "b"}}
    assert client.drain_agent("web-1").state == "draining"
    client.forget_agent("web-1")


def test_a_newer_server_may_say_more(server: RestServer, client: Client) -> None:
    server.answers[f"GET /runs/{RUN_ID}"] = Said(run_json(colour="blue", agent={"id": "x", "name": "n", "more": 1}))
    run = client.run(RUN_ID)
    assert run.raw["colour"] == "blue"
    assert run.where == "n"


def test_an_answer_that_lacks_the_id_is_no_task(server: RestServer, client: Client) -> None:
    server.answers[f"GET /tasks/{TASK_ID}"] = Said({"name": "x", "state": "waiting"})
    with pytest.raises(ValueError, match="no Task"):
        client.task(TASK_ID)


def test_ready_tells_what_is_in_the_way(server: RestServer, client: Client) -> None:
    server.answers["GET /readyz"] = Said({"ready": True})
    assert client.ready() == (True, [])
    server.answers["GET /readyz"] = problem(503, "not_ready", "The disk is full.")
    assert client.ready() == (False, ["The disk is full."])


# Where the server is


def test_the_address_is_found_in_the_documented_order(tmp_path: Path) -> None:
    state, config = tmp_path / "state", tmp_path / "config"
    environ = {"XDG_STATE_HOME": str(state), "XDG_CONFIG_HOME": str(config)}
    with pytest.raises(NotConfigured, match="muster up"):
        find(environ=environ)
    (state / "muster").mkdir(parents=True)
    (state / "muster" / "url").write_text("http://local:1\n")
    (state / "muster" / "admin.token").write_text("local-token\n")
    found = find(environ=environ)
    assert (found.url, found.token) == ("http://local:1", "local-token")
    (config / "muster").mkdir(parents=True)
    (config / "muster" / "client.toml").write_text('url = "http://configured:2/"\ntoken = "configured-token"\n')
    found = find(environ=environ)
    assert (found.url, found.token) == ("http://configured:2", "configured-token")
    environ |= {"MUSTER_URL": "http://environment:3", "MUSTER_TOKEN": "environment-token"}
    assert find(environ=environ).url == "http://environment:3"
    found = find(url="http://said:4", token="said-token", environ=environ)
    assert (found.url, found.token) == ("http://said:4", "said-token")


def test_a_token_is_never_sent_to_another_address(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("http://here:1\n")
    (tmp_path / "admin.token").write_text("local-token\n")
    environ = {"XDG_STATE_HOME": "/nowhere", "XDG_CONFIG_HOME": "/nowhere", "MUSTER_DATA": str(tmp_path)}
    assert find(url="http://elsewhere:1", environ=environ).token is None
    assert find(url="http://here:1/", environ=environ).token == "local-token"
    assert find(environ={**environ, "MUSTER_URL": "http://elsewhere:1"}).token is None
    assert "local-token" not in repr(find(environ=environ))
    environ["MUSTER_TOKEN"] = "environment-token"
    assert find(url="http://elsewhere:1", environ=environ).token == "environment-token"
    environ["MUSTER_URL"] = "http://environment:3/"
    assert find(url="http://elsewhere:1", environ=environ).token is None
    assert find(url="http://here:1", environ=environ).token == "local-token"
    assert find(url="http://environment:3", environ=environ).token == "environment-token"
    assert find(url="http://elsewhere:1", token="said", environ={**environ, "MUSTER_URL": "nonsense"}).token == "said"


@pytest.mark.parametrize("text", ["url = 1", "url = ", 'url = "ftp://x"'])
def test_a_faulty_client_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "muster").mkdir()
    (tmp_path / "muster" / "client.toml").write_text(text)
    with pytest.raises(NotConfigured):
        find(environ={"XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": "/nowhere"})


def test_the_data_directory_is_as_named_else_the_users_state_folder() -> None:
    assert data_directory("/a/b") == Path("/a/b")
    assert data_directory(None, {"MUSTER_DATA": "/c"}) == Path("/c")
    assert data_directory(None, {"XDG_STATE_HOME": "/s"}) == Path("/s/muster")
