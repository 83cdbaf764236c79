"""What an address, a form or an agent says comes back in pages as text: escaped, and with nothing that is not seen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, urlencode, urlsplit

import pytest

from tests.support.hostile import CONTROLS, ELEMENT, SHORT, markup, payload
from tests.support.web import Answer
from tests.web.conftest import Stack
from tests.web.test_task_page import Visitor, submit
from webserver.pages.door import csrf_token
from webserver.plain import plain

RAW = re.compile(f"[{CONTROLS}]")
ADDRESSES = [
    "/tasks?name={}", "/tasks?state={}", "/tasks?agent={}", "/tasks?period={}", "/tasks?since={}", "/tasks?until={}",
    "/tasks?cursor={}", "/agents?q={}", "/agents?state={}", "/agents?cursor={}", "/submit?on={}", "/submit?from={}",
    "/tasks/{}", "/agents/{}", "/agents/{}/facts", "/runs/{}", "/login/{}", "/login/{}?next={}", "/{}", "/static/{}",
    "/api/v1/docs/{}", "/tokens/{}", "/?{}={}",
]  # fmt: skip
FORMS = [
    ("/submit", {"name": payload("name"), "args": payload("args") + "'", "where": "selected", "target": payload("on"),
                 "env_name": markup("env"), "env_value": payload("value"), "count": markup("count"),
                 "timeout": markup("timeout"), "interpreter": markup("interpreter"), "queue": payload("queue"),
                 "priority": markup("priority"), "cwd": markup("cwd"), "script_text": payload("script"),
                 "key": markup("key"), "start": markup("start"), "script_base64": markup("base64")}),
    ("/submit/plan", {"where": "selected", "target": payload("on"), "queue": payload("queue")}),
    ("/submit/commands", {"name": payload("name"), "env_name": markup("env"), "target": payload("on")}),
    ("/tokens", {"name": payload("token")}),
    ("/tokens/{}/revoke", {}),
    ("/agents/one/labels", {"label": f"{payload('label')}={payload('value')}"}),
    ("/agents/one/slots", {"slots": markup("slots")}),
    ("/agents/{}/drain", {}),
    ("/tasks/{}/cancel", {}),
    ("/tasks/{}/retry", {"only": markup("only")}),
    ("/runs/{}/cancel", {}),
    ("/preferences", {"language": markup("language"), "next": payload("next")}),
    ("/preferences", {"theme": markup("theme"), "next": payload("next")}),
    ("/login/{}", {"next": payload("next")}),
]  # fmt: skip
ELSEWHERE = [
    "https://hostile.invalid/", "//hostile.invalid/", "/\\hostile.invalid/", "\\\\hostile.invalid", "javascript:hit=1",
    "/\t/hostile.invalid", "///x", "/\r\nSet-Cookie: a=b", "data:text/html,x", " //hostile.invalid", "/\u202e",
]  # fmt: skip


@pytest.fixture(scope="module")
def visitor(stack: Stack) -> Visitor:
    return Visitor(stack)


def pieces(page: str) -> Iterator[str]:
    """The texts of a page, but for what forms hold to be sent again as it is."""
    yield re.sub(r"(?s)<textarea.*?</textarea>|\b(value|href|data-text|hx-get)=\"[^\"]*\"", "", page)


def sound(answer: Answer) -> None:
    """No element and no escape came of a text."""
    page = answer.body.decode()
    assert answer.status < 500, page
    assert f"<{ELEMENT}" not in page and "<img" not in page and "<b onx" not in page
    for text in pieces(page):
        found = RAW.search(text)
        assert not found, text[max(0, found.start() - 100) : found.end() + 100]
    for name, value in answer.headers.items():
        assert value.isascii() and value.isprintable(), name
        assert name == "HX-Trigger" or f"<{ELEMENT}" not in value, name  # notices go in as text


@pytest.mark.parametrize("text", [markup("here"), payload("here"), SHORT], ids=["markup", "escapes", "short"])
@pytest.mark.parametrize("path", ADDRESSES)
def test_addresses(visitor: Visitor, path: str, text: str) -> None:
    sound(visitor.get(path.replace("{}", quote(text, safe=""))))


@pytest.mark.parametrize("script", [False, True], ids=["form", "script"])
@pytest.mark.parametrize(("path", "form"), FORMS, ids=[path for path, _ in FORMS])
def test_forms(visitor: Visitor, path: str, form: dict[str, str], script: bool) -> None:
    written = {"script": form["script_text"]} if "script_text" in form else {}
    body = urlencode({"csrf": csrf_token(visitor.secret), **form, **written}).encode()
    more = {"content_type": "application/x-www-form-urlencoded", **({"hx_request": "true"} if script else {})}
    address = path.replace("{}", quote(markup("here"), safe=""))
    sound(visitor.stack.http.call("POST", address, raw=body, **visitor._headers(), **more))


@pytest.mark.parametrize("wanted", ELSEWHERE)
def test_nobody_is_sent_elsewhere(visitor: Visitor, stack: Stack, wanted: str) -> None:
    for answer in (
        visitor.get(f"/login?next={quote(wanted, safe='')}"),
        visitor.post("/preferences", theme="dark", next=wanted),
        # Somebody else: logging in ends the session that a browser had.
        Visitor(stack).post(urlsplit(stack.http.post("login-links").json["url"]).path, next=wanted),
    ):
        assert (answer.status, answer.headers["Location"]) == (303, "/")
    link = visitor.get(f"/login/nosuchlink?next={quote(wanted, safe='')}").body.decode()
    assert 'name="next" value="/"' in link


def test_what_was_stored(visitor: Visitor, stack: Stack) -> None:
    task_id = submit(stack, f"# {markup('script')}\n", name=payload("name"), args=[payload("arg")])
    for path in ("/", "/tasks", f"/tasks/{task_id}", f"/submit?from={task_id}"):
        answer = visitor.get(path)
        sound(answer)
        assert plain(payload("name")).replace("&", "&amp;").replace("<", "&lt;")[:60] in answer.body.decode(), path


def test_errors_of_the_api(stack: Stack) -> None:
    for path in ("tasks/{}", "agents/{}", "runs/{}", "tasks?state={}", "tasks?since={}", "agents?cursor={}", "{}"):
        answer = stack.http.get(path.replace("{}", quote(payload("here"), safe="")), accept="text/html,*/*")
        assert 400 <= answer.status < 500
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
