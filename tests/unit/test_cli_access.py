"""`muster login`, `muster tokens` and their calls of the client, against a real HTTP server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from muster.cli.main import main
from muster.client import Client, Conflict
from tests.support.rest_server import RestServer, Said, page, problem, serving

TOKEN_ID = "0193aaaa-0000-7000-8000-000000000004"
LINK = {"url": "http://h/login/secret", "expires_at": "2026-11-30T12:10:00.000Z"}


def token_json(**more: Any) -> dict[str, Any]:
    return {
        "id": TOKEN_ID, "name": "ci", "kind": "api", "role": "admin", "created_at": "2026-11-30T12:00:00.000Z",
        "last_used_at": None, "expires_at": None, "about": "", **more,
    }  # fmt: skip


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RestServer]:
    with serving() as made:
        monkeypatch.setenv("MUSTER_URL", made.url)
        monkeypatch.setenv("MUSTER_TOKEN", "secret")
        yield made


def end(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_login_prints_the_link_alone_and_its_time_beside_it(
    server: RestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers["POST /login-links"] = Said(LINK, status=201)
    assert end("login") == 0
    told = capsys.readouterr()
    assert told.out == "http://h/login/secret\n"
    assert told.err.startswith("good once, until 2026-1")
    assert server.asked[-1].json == {}
    assert end("login", "--name", "ann", "--json") == 0
    assert server.asked[-1].json == {"name": "ann"}
    assert json.loads(capsys.readouterr().out) == LINK


def test_join_commands_for_many_hosts(server: RestServer, capsys: pytest.CaptureFixture[str]) -> None:
    made = {"token": "T", "line": "muster agent --join T", "expires_at": "2026-11-30T12:10:00.000Z"}
    server.answers["POST /agent-tokens"] = Said(made, status=201)
    assert end("agent-token", "--count", "3") == 0
    told = capsys.readouterr()
    assert told.out == 3 * "muster agent --join T\n" and told.err.count("good once") == 1
    assert end("agent-token", "--count", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [made, made]
    assert end("agent-token", "--json") == 0
    assert json.loads(capsys.readouterr().out) == made
    assert end("agent-token", "--count", "0") == 2


def test_tokens_are_listed(server: RestServer, capsys: pytest.CaptureFixture[str]) -> None:
    used = token_json(kind="session", name="ann\x1b", last_used_at="2026-11-30T12:00:00.000Z", about="Firefox")
    server.answers["GET /tokens"] = page(used, token_json())
    for words in (["tokens"], ["tokens", "list"]):
        assert end(*words) == 0
        session, token = capsys.readouterr().out.splitlines()[1:]
        assert session.split()[:3] == [TOKEN_ID, "ann^[", "session"] and session.endswith("Firefox")
        assert token.split()[-2:] == ["never", "never"]
    assert end("tokens", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [used, token_json()]


def test_a_new_token_is_all_that_goes_to_stdout(server: RestServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["POST /tokens"] = Said(token_json(token="s3cret"), status=201)
    assert end("tokens", "add", "ci") == 0
    told = capsys.readouterr()
    assert told.out == "s3cret\n"
    assert "shown this once" in told.err and TOKEN_ID in told.err
    assert server.asked[-1].json == {"name": "ci"}


def test_each_id_is_revoked_and_a_refusal_told(server: RestServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["DELETE /tokens/a"] = problem(409, "conflict", "Remove the file.")
    server.answers["DELETE /tokens/b"] = Said(None, status=204)
    assert end("tokens", "revoke", "a", "b") == 1
    told = capsys.readouterr()
    assert told.out == "b is revoked\n"
    assert told.err == "muster: a: Remove the file.\nmuster: 1 of 2 could not be revoked\n"


def test_the_client_never_shows_a_secret_by_accident(server: RestServer) -> None:
    server.answers["POST /tokens"] = Said(token_json(token="s3cret"), status=201)
    server.answers["DELETE /tokens/a%2Fb"] = problem(409, "conflict", "No.")
    with Client() as client:
        made = client.add_token("ci")
        assert made.token == "s3cret" and "s3cret" not in repr(made)
        with pytest.raises(Conflict):
            client.revoke_token("a/b")
