"""The form that submits, over HTTP as a browser without scripts sends it, before a real master."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import flask
import pytest
from flask_babel import Babel
from werkzeug.datastructures import MultiDict

from common.errors import InvalidRequest, MusterError, PeerUnreachable, StoreFull, Unavailable
from common.requests import TaskRequest
from tests.support.fake_web_master import FakeWebMaster, agent_view
from tests.support.web import Answer, Http, webserver_for
from tests.web.conftest import Stack, request
from webserver.form_fields import Wrong, seconds, size, size_shown, span
from webserver.forms import SubmitForm
from webserver.pages import plan
from webserver.pages.door import csrf_token

BOUNDARY = "----between"


class Visitor:
    """A browser that is logged in, and sends forms as HTML says: in parts, with CRLF for every line end."""

    def __init__(self, stack: Stack) -> None:
        url = stack.http.post("login-links").json["url"]
        made = stack.web.services.master.act("log_in", url.rsplit("/", 1)[1], "192.0.2.1", "Firefox")
        self.secret: str = made["session"]
        self.stack = stack
        host, port = stack.web.address
        self.headers: dict[str, str | None] = {
            "authorization": None,
            "host": f"{host}:{port}",
            "accept": "text/html",
            "cookie": f"muster_session_{port}={self.secret}",
        }

    def get(self, path: str) -> str:
        answer = self.stack.http.get(path, **self.headers)
        assert answer.status == 200, answer.body
        return answer.body.decode()

    def post(
        self, path: str, fields: Any = (), *, partial: bool = False, file: tuple[str, bytes] | None = None, **more: str
    ) -> Answer:
        pairs = [("csrf", csrf_token(self.secret)), *fields, *more.items()]
        parts = [
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{_crlf(text)}\r\n'.encode()
            for name, text in pairs
        ]
        if file is not None:
            head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{file[0]}"\r\n\r\n'
            parts.append(head.encode() + file[1] + b"\r\n")
        parts.append(f"--{BOUNDARY}--\r\n".encode())
        extra = {"content_type": f"multipart/form-data; boundary={BOUNDARY}"}
        extra |= {"hx_request": "true"} if partial else {}
        return self.stack.http.call("POST", path, raw=b"".join(parts), **self.headers, **extra)

    def submitted(self, fields: Any = (), **more: Any) -> dict[str, Any]:
        answer = self.post("/submit", fields, **more)
        assert answer.status == 303, re.findall("data-fault.*?</span>", answer.body.decode())
        task: dict[str, Any] = self.stack.http.get(f"tasks/{answer.headers['Location'].rsplit('/', 1)[1]}").json
        return task


@pytest.fixture
def visitor(stack: Stack) -> Visitor:
    return Visitor(stack)


@pytest.fixture
def words() -> Any:
    """What says things in English, outside a request."""
    app = flask.Flask("words")
    Babel(app)  # type: ignore[no-untyped-call]
    with app.test_request_context():
        yield


def _crlf(text: str) -> str:
    return re.sub(r"\r\n|\r|\n", "\r\n", text)


def _is_on(told: dict[str, str]) -> bool:
    return told.get("type") not in ("radio", "checkbox") or "checked" in told


class _Form(HTMLParser):
    """What a browser would send of the form as it came, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, str]] = []
        self._inside = ""
        self._text: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        if tag in ("select", "textarea"):
            self._inside = told["name"]
            self._text = [] if tag == "textarea" else None
        elif tag == "option" and "selected" in told:
            self.sent.append((self._inside, told["value"]))
        elif tag == "input" and told.get("name") not in (None, "csrf", "file") and _is_on(told):
            self.sent.append((told["name"], re.sub(r"[\r\n]", "", told.get("value", ""))))

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._text is not None:
            self.sent.append((self._inside, "".join(self._text).removeprefix("\n")))
            self._text = None


def fields_of(page: str) -> list[tuple[str, str]]:
    """The fields of the form on a page."""
    form = _Form()
    form.feed(page[page.index('<form id="submit"') :].partition("</form>")[0])
    return form.sent


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_is_whole_without_scripts(stack: Stack, visitor: Visitor) -> None:
    page = visitor.get("/submit?on=two")
    assert 'value="one"' in page and 'value="two" checked' in page
    assert '<textarea id="script" name="script"' in page
    assert "selector" not in page


def test_a_task_is_submitted_by_the_form(stack: Stack, visitor: Visitor) -> None:
    task = visitor.submitted(
        [("target", "one"), ("target", "two"), ("env_name", "A"), ("env_value", "x\ny"), ("env_name", ""),
         ("env_value", "")],
        script="#!/bin/sh\necho 1\n", args="-a 'b c'", name="by hand", timeout="5m", parallel="1", fail_count="2",
        fail_rate="12.5 %", on_stop="kill", priority="0", expires="2h", lost_after="90s", interpreter="other",
        interpreter_other="/usr/bin/env perl -w", cwd="/tmp", output_limit="4 KiB",
    )  # fmt: skip
    wanted = {
        "args": ["-a", "b c"], "env": {"A": "x\ny"}, "name": "by hand", "timeout": 300, "parallel": 1, "fail_count": 2,
        "fail_rate": 0.125, "on_stop": "kill", "priority": 0, "expires": 7200, "lost_after": 90, "cwd": "/tmp",
        "interpreter": ["/usr/bin/env", "perl", "-w"], "targets": ["one", "two"], "output_limit": 4096, "count": None,
        "script_sha256": hashlib.sha256(b"#!/bin/sh\necho 1\n").hexdigest(), "submitted_by": "admin",
    }  # fmt: skip
    assert {name: task[name] for name in wanted} == wanted


def test_an_empty_field_stands_for_what_is_usual(stack: Stack, visitor: Visitor) -> None:
    task = visitor.submitted(
        [("target", "one")], script="true", timeout="", priority=" ", queue="", expires="", name=" "
    )
    usual = TaskRequest(script=b"true")
    for name in ("timeout", "priority", "queue", "expires", "lost_after", "parallel", "fail_count", "interpreter"):
        assert task[name] == getattr(usual, name)
    assert task["name"] == "true"


def test_any_of_all_and_any_of_the_selected(stack: Stack, visitor: Visitor) -> None:
    anywhere = visitor.submitted([("target", "one")], script="true", where="any", count="2", among="all")
    assert (anywhere["count"], anywhere["targets"]) == (2, None)
    among = visitor.submitted([("target", "one")], script="true", where="any", count="1", among="selected")
    assert (among["count"], among["targets"]) == (1, ["one"])


def test_a_file_beats_the_text_and_is_kept_byte_for_byte(stack: Stack, visitor: Visitor) -> None:
    content = bytes(range(256)) + b"\r\n--\r\n"
    task = visitor.submitted([("target", "one")], script="echo no", file=("x.bin", content))
    assert task["script_sha256"] == hashlib.sha256(content).hexdigest()


def test_a_task_taken_as_the_start_is_submitted_as_it_was(stack: Stack, visitor: Visitor) -> None:
    first = stack.http.post(
        "tasks",
        request(
            "\n#!/bin/sh\r\n<b>&amp;\u202e\x1b\r\n", args=["\r\n", "", "a\nb", "'"], env={"B": "\r", "A": "\n x \n"},
            name="a\r\nb", fail_rate=1 / 3, timeout=0.123456789012, expires=1e-7, interpreter=["/bin/sh", "\n"],
            targets=["two"], cwd="/a\nb",
        ),
    ).json  # fmt: skip
    page = visitor.get(f"/submit?from={first['id']}")
    again = visitor.submitted(fields_of(page))
    for name in TaskRequest.__struct_fields__[1:]:
        assert again[name] == first[name], name
    assert again["script_sha256"] == first["script_sha256"]


def test_what_is_changed_in_a_start_is_changed(stack: Stack, visitor: Visitor) -> None:
    first = stack.http.post("tasks", request("a\r\nb\r\n", args=["a\nb"], env={"A": "1"}, timeout=0.5)).json
    fields = fields_of(visitor.get(f"/submit?from={first['id']}"))
    changes = {"script": "a\nc\n", "args": "'ab'", "timeout": "1m"}
    values = {"1": "2"}
    again = visitor.submitted([(name, changes.get(name, values.get(text, text))) for name, text in fields])
    assert again["env"] == {"A": "2"}
    assert (again["args"], again["timeout"]) == (["ab"], 60)
    assert again["script_sha256"] == hashlib.sha256(b"a\nc\n").hexdigest()


def test_a_start_that_is_not_text_needs_no_scripts(stack: Stack, visitor: Visitor) -> None:
    first = stack.http.post("tasks", request(b"\xff\x00\r\n")).json
    page = visitor.get(f"/submit?from={first['id']}")
    assert '<textarea id="script"' not in page
    assert visitor.submitted(fields_of(page))["script_sha256"] == first["script_sha256"]


def test_the_last_submission_is_offered(stack: Stack, visitor: Visitor) -> None:
    task = visitor.submitted([("target", "one")], script="# newest <one>")
    page = visitor.get("/submit")
    assert f'href="/submit?from={task["id"]}"' in page
    assert "# newest &lt;one&gt;" in page


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_every_fault_is_at_its_field_and_nothing_is_lost(stack: Stack, visitor: Visitor) -> None:
    typed = {
        "args": "'open", "timeout": "soon", "parallel": "-1", "fail_count": "0", "fail_rate": "101", "priority": "x",
        "queue": "-q", "expires": "1y", "lost_after": "-3", "cwd": "tmp", "output_limit": "1", "name": "n" * 201,
        "interpreter": "other", "interpreter_other": " ", "where": "any", "among": "selected", "count": "0",
    }  # fmt: skip
    before = stack.count_tasks()
    answer = visitor.post(
        "/submit", [*typed.items(), ("env_name", "1<X>"), ("env_value", "kept & safe"), ("script", "")]
    )
    page = answer.body.decode()
    assert answer.status == 422 and stack.count_tasks() == before
    told = set(re.findall(r'data-fault="(\w+)"', page))
    assert told == (set(typed) - {"interpreter", "where", "among"}) | {"script", "env", "targets"}
    for name in told - {"script", "env", "targets"}:
        assert f'id="{name}-fault"' in page and (name == "args" or f'value="{typed[name]}"' in page)
    assert "&#39;open" in page and "kept &amp; safe" in page and "1&lt;X&gt;" in page


def test_a_host_that_is_gone_is_named(stack: Stack, visitor: Visitor) -> None:
    answer = visitor.post("/submit", [("target", "one"), ("target", "<gone>")], script="true")
    page = answer.body.decode()
    assert answer.status == 422
    assert "There is no such host (any more): &lt;gone&gt;" in page
    assert 'value="&lt;gone&gt;" checked' in page
    too_many = visitor.post("/submit", script="true", where="any", count="50", among="all")
    assert too_many.status == 422 and b"Fewer hosts than that" in too_many.body


def test_a_script_gets_the_faults_only_and_an_address_to_go_to(stack: Stack, visitor: Visitor) -> None:
    refused = visitor.post("/submit", [("target", "one")], partial=True)
    assert refused.status == 422 and b"data-fault" in refused.body and b"<html" not in refused.body
    encoded = base64.b64encode(b"true").decode()
    done = visitor.post("/submit", [("target", "one"), ("script_base64", encoded)], partial=True)
    assert done.status == 204 and done.headers["HX-Redirect"].startswith("/tasks/")


def test_a_form_sent_twice_makes_one_task(stack: Stack, visitor: Visitor) -> None:
    fields = [("target", "one"), ("script", "true"), ("key", "page-1")]
    first, second = visitor.submitted(fields), visitor.submitted(fields)
    assert first["id"] == second["id"]
    changed = visitor.post("/submit", fields, name="other")
    assert changed.status == 409 and b"was sent before" in changed.body
    key = re.search(r'name="key" value="([^"]+)"', changed.body.decode())
    assert key and key[1] != "page-1"


def test_nothing_is_submitted_without_the_sessions_token(stack: Stack, visitor: Visitor) -> None:
    before = stack.count_tasks()
    answer = stack.http.call(
        "POST", "/submit", raw=b"script=true&target=one", **visitor.headers,
        content_type="application/x-www-form-urlencoded",
    )  # fmt: skip
    assert answer.status == 403 and stack.count_tasks() == before


def test_broken_base64_and_a_start_without_sense_are_no_crash(stack: Stack, visitor: Visitor) -> None:
    answer = visitor.post("/submit", [("target", "one"), ("script_base64", "%%%")])
    assert answer.status == 422 and b"damaged" in answer.body
    for start in ("{", "[]", '{"args": 5}', '{"timeout": "x"}', "[" * 100_000):
        assert visitor.post("/submit", [("target", "one"), ("start", start)], script="true").status == 303


# -- plan and commands -------------------------------------------------------------------------------------------------


def test_the_plan_is_told_without_a_script(stack: Stack, visitor: Visitor) -> None:
    answer = visitor.post("/submit/plan", [("target", "one"), ("target", "two")], partial=True, parallel="1")
    assert answer.status == 200 and b"2 hosts, 1 at a time" in answer.body
    answer = visitor.post("/submit/plan", [("target", "one")], partial=True, timeout="soon")
    assert answer.status == 200 and b"Time limit: Write a time" in answer.body


def test_commands_are_shown_with_the_form(stack: Stack, visitor: Visitor) -> None:
    answer = visitor.post("/submit/commands", [("target", "one")], script="echo '<x>'\n")
    page = answer.body.decode()
    assert answer.status == 200 and "$MUSTER_TOKEN" in page and "muster run --url" in page
    assert "echo &#39;&lt;x&gt;&#39;\nEOF" in page
    part = visitor.post("/submit/commands", [("target", "one"), ("script", "true"), ("as", "curl")], partial=True)
    assert b"command-curl" in part.body and b"command-run" not in part.body


def test_plans_in_words(words: Any) -> None:
    usual = {
        "total": 12, "addressed": True, "candidates": 12, "able": 11, "offline": 1, "draining": 0, "conflict": 0,
        "busy": 0, "parallel": 3, "fail_count": 2, "fail_rate": None, "on_stop": "finish", "expires": 86400.0,
        "lost_after": 120.0,
    }  # fmt: skip

    def said(**changes: Any) -> list[str]:
        first = 12 - changes.get("offline", 1)
        states = ["offline" if n >= first else "online" for n in range(12)]
        targets = [{"name": f"web-{n}", "state": state, "code": "may"} for n, state in enumerate(states)]
        spoken = plan.spoken({"summary": {**usual, **changes}, "targets": targets})
        return [spoken.first, *(sentence for _, sentence in spoken.notes)]

    assert said() == [
        "12 hosts, 3 at a time, stops after 2 failures",
        "1 host is offline and will run it when back, for 24 h: web-11",
    ]
    assert said(offline=40, expires=0.0, parallel=0, fail_count=-1)[0] == "12 hosts, all at once"
    assert said(offline=40, expires=0.0)[1].endswith("when back: web-0, web-1, web-2 and 37 more")
    assert said(addressed=False, total=2, offline=3, on_stop="kill") == [
        "any 2 of 12 hosts, all at once, stops after 2 failures, and then ends what still runs",
        "3 of them are offline: web-9, web-10, web-11",
    ]


# -- fields ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("30", 30), ("30s", 30), (" 5m ", 300), ("2h", 7200), ("1.5d", 129600), ("200ms", 0.2), (".5", 0.5), ("0", 0)],
)
def test_times_are_read_as_the_command_line_reads_them(words: Any, text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "-1", "1y", "1 2", "1e3", "nan", "9999999999999", "٣"])
def test_what_is_no_time_is_refused(words: Any, text: str) -> None:
    with pytest.raises(Wrong, match="such as 30, 30s, 5m or 2h"):
        seconds(text)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (90.0, "90s"), (60.0, "1m"), (86400.0, "24h"), (172800.0, "2d"), (0.25, "0.25s")]
)
def test_times_are_written_as_they_are_read(words: Any, value: float, text: str) -> None:
    assert span(value) == text
    assert seconds(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024", 1024), ("64k", 65536), ("16M", 16 << 20), ("16 MiB", 16 << 20), ("1.5g", 3 << 29), ("1TB", 1 << 40)],
)
def test_sizes_are_read_as_one_writes_them(words: Any, text: str, value: int) -> None:
    assert size(text) == value
    assert size(size_shown(value)) == value


@pytest.mark.parametrize("text", ["", "1", "1023", "2T", "16 m i b", "-1k", "1e9", "many", "\u0664k"])
def test_what_is_no_size_is_refused(words: Any, text: str) -> None:
    with pytest.raises(Wrong):
        size(text)


def test_what_the_master_refuses_is_at_a_field_of_the_form() -> None:
    form = SubmitForm.of_post(MultiDict())
    form.refused(InvalidRequest.of("env.X", "no"))
    form.refused(InvalidRequest.of("args[3]", "no"))
    form.refused(InvalidRequest.of("unknown", "no"))
    form.refused(InvalidRequest("all of it"))
    assert form.faults == {"env": "no", "args": "no", "": "no"}
    assert json.loads(SubmitForm(start={"env": {"A": "b"}}).start_json) == {"env": {"A": "b"}}


# -- an empty fleet, a large one, and a master that refuses ------------------------------------------------------------


class _Master(FakeWebMaster):
    """Knows one session and as many agents as it is told."""

    def __init__(self, agents: int) -> None:
        super().__init__()
        self.fleet = [agent_view(number, name=f"web-{number:04}") for number in range(agents)]

    def do_check_session(self, sha256: str) -> dict[str, str]:
        return {"name": "eve", "role": "admin", "id": "session-1"}

    def do_list_agents(self, limit: int, cursor: str | None) -> dict[str, Any]:
        found = [agent for agent in self.fleet if cursor is None or agent["name"] > cursor]
        page = found[:limit]
        return {"items": page, "next": page[-1]["name"] if len(found) > limit else None}


def _call(http: Http, method: str = "GET", **form: str) -> Answer:
    port = http.address[1]
    headers = {"cookie": f"muster_session_{port}=s", "host": f"127.0.0.1:{port}", "accept": "text/html"}
    raw = urlencode({"csrf": csrf_token("s"), **form}).encode() if form else None
    return http.call(method, "/submit", raw=raw, **headers, content_type="application/x-www-form-urlencoded")


def test_an_empty_fleet_says_how_to_add_a_host() -> None:
    with _Master(0) as master, webserver_for(master) as web:
        page = _call(Http(web.address, None)).body.decode()
    assert "There is no host yet" in page and 'href="/agents"' in page


def test_a_large_fleet_is_shown_in_part_and_what_is_chosen_always() -> None:
    with _Master(1234) as master, webserver_for(master) as web:
        http = Http(web.address, None)
        page = http.get(
            "/submit?on=web-0999", cookie=f"muster_session_{http.address[1]}=s", host=f"127.0.0.1:{http.address[1]}"
        ).body.decode()
    assert page.count('<li class="host">') == 200
    assert 'value="web-0999" checked' in page and 'name="more_targets"' in page
    known = re.search(r'id="hosts-known">(.*?)</script>', page)
    assert known and len(json.loads(known[1])) == 1234


def test_a_large_fleet_can_be_chosen(visitor: Visitor) -> None:
    targets = [("target", f"host-{n}") for n in range(1_500)]
    assert visitor.post("/submit/plan", [("where", "selected"), *targets], partial=True).status == 200


@pytest.mark.parametrize("error", [StoreFull(), Unavailable("The master cannot do this now."), PeerUnreachable()])
def test_a_master_that_cannot_store_it_loses_nothing(error: MusterError) -> None:
    with _Master(2) as master, webserver_for(master, patience_s=0.05) as web:
        http = Http(web.address, None)
        _call(http)
        master.fail("add_task", *[error] * 20)
        if isinstance(error, PeerUnreachable):
            master.fail("list_agents", *[error] * 20)
        answer = _call(http, "POST", script="echo kept", target="web-0001", timeout="7m")
    page = answer.body.decode()
    assert answer.status == error.status
    assert "echo kept" in page and 'value="7m"' in page and 'value="web-0001" checked' in page
    assert error.message.split(".")[0] in html.unescape(page)
