"""Forms that nobody would send by hand: too many fields, too much in one, nested without end. Others are served on."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.fake_web_master import FakeWebMaster
from tests.support.web import Answer, Http, webserver_for
from tests.web.conftest import Stack
from webserver.form_fields import Wrong, words
from webserver.pages.door import csrf_token

FORM = "application/x-www-form-urlencoded"
BOUNDARY = "between"


class Sender:
    """A browser that is logged in and sends what it is told."""

    def __init__(self, stack: Stack) -> None:
        url = stack.http.post("login-links").json["url"]
        made = stack.web.services.master.act("log_in", url.rsplit("/", 1)[1], "192.0.2.1", "Firefox")
        secret = made["session"]
        host, port = stack.web.address
        self.stack = stack
        self.headers: dict[str, str | None] = {
            "authorization": None,
            "host": f"{host}:{port}",
            "cookie": f"muster_session_{port}={secret}",
            "x_csrf_token": csrf_token(secret),
        }

    def post(self, path: str, raw: bytes, **headers: str) -> Answer:
        return self.stack.http.call("POST", path, raw=raw, **{**self.headers, "content_type": FORM, **headers})

    def parts(self, path: str, fields: dict[str, str]) -> Answer:
        pieces = [
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in fields.items()
        ]
        raw = ("".join(pieces) + f"--{BOUNDARY}--\r\n").encode()
        return self.post(path, raw, content_type=f"multipart/form-data; boundary={BOUNDARY}")


@pytest.fixture
def sender(stack: Stack) -> Sender:
    return Sender(stack)


@pytest.mark.parametrize("raw", [b"a&" * 2_900_000, b"a=" + b"%41" * 1_900_000, b"env_name=a&" * 500_000])
def test_a_form_in_one_line_is_small(sender: Sender, raw: bytes) -> None:
    began_s = time.monotonic()
    assert sender.post("/submit", raw).status == 413
    assert time.monotonic() - began_s < 2


def test_a_form_in_one_line_has_few_fields(sender: Sender) -> None:
    assert sender.post("/submit/plan", b"a&" * 100_000).status == 413


def test_hosts_beyond_all_bounds_are_not_read(sender: Sender) -> None:
    names = ",".join(f"{number:x}" for number in range(700_000))
    began_s = time.monotonic()
    for path in ("/submit", "/submit/plan", "/submit/commands"):
        assert sender.parts(path, {"script": "true", "where": "selected", "more_targets": names}).status == 413
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize(
    "fields", [{"args": "a " * 2_500_000}, {"interpreter": "other", "interpreter_other": "a+" * 900_000}]
)
def test_words_are_bounded_before_they_are_split(sender: Sender, fields: dict[str, Any]) -> None:
    began_s = time.monotonic()
    answer = sender.parts("/submit/plan", {"where": "any", **fields})
    assert (answer.status, b"This is longer than" in answer.body) == (200, True)
    assert time.monotonic() - began_s < 3


def test_words_as_long_as_one_argument_are_split() -> None:
    assert words("a" * 100_000 + " b") == ["a" * 100_000, "b"]
    with pytest.raises(Wrong):
        words("a " * 200_000)


@pytest.mark.parametrize("start", ['{"x":' + "[" * 200_000, '{"args":' + "[" * 200_000])
def test_a_start_nested_without_end_is_none(sender: Sender, start: str) -> None:
    answer = sender.parts("/submit/plan", {"where": "any", "start": start})
    assert answer.status == 200


def test_a_script_is_sent_on_to_an_address_in_ascii(sender: Sender) -> None:
    answer = sender.post(
        "/preferences", urlencode({"theme": "dark", "next": "/agents/世界"}).encode(), hx_request="true"
    )
    assert (answer.status, answer.headers["HX-Redirect"]) == (204, "/agents/%E4%B8%96%E7%95%8C")


class _Master(FakeWebMaster):
    """Knows every session."""

    def do_check_session(self, sha256: str) -> dict[str, str]:
        return {"name": "eve", "role": "admin", "id": sha256}


def test_an_error_page_does_not_wait_for_the_master_twice() -> None:
    with _Master() as master, webserver_for(master, answer_s=0.5) as web:
        headers = {
            "host": f"127.0.0.1:{web.address[1]}",
            "cookie": f"muster_session_{web.address[1]}=x",
            "accept": "text/html",
        }
        http = Http(web.address, token=None)
        began_s = time.monotonic()
        with master.holding("check_session"):
            answer = http.get("/tasks?state=failed", **headers)
        assert (answer.status, b"cannot be reached" in answer.body) == (503, True)
        assert time.monotonic() - began_s < 0.95
        assert answer.headers["Refresh"] == "5"
        assert b'href="/tasks?state=failed"' in answer.body
