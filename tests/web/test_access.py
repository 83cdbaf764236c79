"""Login links and API tokens over HTTP, before a real master."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from common.auth import token_hash
from tests.support.web import Http
from tests.web.conftest import Stack
from tests.web.test_rest import convert
from webserver import shapes


def tokens(stack: Stack) -> list[dict[str, Any]]:
    answer = stack.http.get("tokens")
    assert (answer.status, answer.json["next"]) == (200, None)
    for item in answer.json["items"]:
        convert(item, shapes.Token)
    items: list[dict[str, Any]] = answer.json["items"]
    return items


def log_in(stack: Stack, **body: Any) -> tuple[str, dict[str, Any]]:
    """A session's secret, made by way of a link, and its token."""
    url = stack.http.post("login-links", body).json["url"]
    made = stack.web.services.master.act("log_in", url.rsplit("/", 1)[1], "192.0.2.1", "Firefox")
    return made["session"], next(item for item in tokens(stack) if item["id"] == made["id"])


def test_a_login_link_leads_to_the_address_that_was_asked(stack: Stack) -> None:
    host, port = stack.web.address
    for told in (f"{host}:{port}", f"localhost:{port}"):
        answer = stack.http.post("login-links", {"name": "ann"}, host=told)
        assert answer.status == 201
        link = convert(answer.json, shapes.LoginLink)
        assert link.url.startswith(f"http://{told}/login/")
        assert len(link.url.rsplit("/", 1)[1]) == 43


def test_a_link_without_a_name_logs_its_maker_in(stack: Stack) -> None:
    secret, token = log_in(stack)
    assert (token["name"], token["kind"], token["role"]) == ("admin", "session", "admin")
    assert token["about"] == "Firefox, 192.0.2.1"
    assert token["expires_at"] > token["last_used_at"] >= token["created_at"]
    assert stack.web.services.sessions.caller(secret).name == "admin"


def test_a_token_is_made_used_listed_and_revoked(stack: Stack) -> None:
    answer = stack.http.post("tokens", {"name": "ci"})
    assert answer.status == 201
    made = convert(answer.json, shapes.NewToken)
    other = Http(stack.web.address, made.token)
    assert other.get("agents").status == 200
    listed = next(item for item in tokens(stack) if item["id"] == str(made.id))
    assert listed["last_used_at"] is not None and "token" not in listed
    stack.http.post("tokens", {"name": "ci"}).refused(409, "conflict")
    assert stack.http.call("DELETE", f"tokens/{made.id}").status == 204
    other.get("agents").refused(401, "unauthorized")
    stack.http.call("DELETE", f"tokens/{made.id}").refused(404, "not_found")
    assert "ci" not in [item["name"] for item in tokens(stack)]


def test_revoking_a_session_ends_it_at_once(stack: Stack) -> None:
    secret, token = log_in(stack, name="bea")
    assert stack.web.services.sessions.caller(secret).name == "bea"
    Http(stack.web.address, secret).get("agents").refused(401, "unauthorized")  # no token
    assert stack.http.call("DELETE", f"tokens/{token['id']}").status == 204
    assert stack.master.keys.token(token_hash(secret)) is None
    assert "bea" not in [item["name"] for item in tokens(stack)]


def test_the_files_token_stays(stack: Stack) -> None:
    admin = next(item for item in tokens(stack) if (item["name"], item["kind"]) == ("admin", "api"))
    problem = stack.http.call("DELETE", f"tokens/{admin['id']}").refused(409, "conflict")
    assert "admin.token" in problem["detail"]
    stack.http.post("tokens", {"name": "admin"}).refused(409, "conflict")


@pytest.mark.parametrize(
    "body", [{"name": ""}, {"name": " "}, {"name": "x" * 101}, {"name": "a\tb"}, {"name": 1}, {"nam": "x"}, {}]
)
def test_a_name_that_cannot_be_is_refused(stack: Stack, body: dict[str, Any]) -> None:
    stack.http.post("tokens", body).refused(422, "invalid_request")
    if body:
        stack.http.post("login-links", body).refused(422, "invalid_request")


def test_the_secret_of_a_login_link_reaches_no_log(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = stack.http.post("login-links").json["url"].rsplit("/", 1)[1]
    stack.http.get(f"/login/{secret}/more")
    stack.http.call("PUT", f"/login/{secret}")
    everything = "".join(str(record.__dict__) for record in caplog.records)
    assert "/login/…" in everything and secret not in everything
