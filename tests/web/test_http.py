"""HTTP at its edges: bodies that lie, heads that make no sense, names that are not ours, peers that say nothing."""

from __future__ import annotations

import re
import socket

import gevent
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.config import Settings
from common.errors import NotFound
from tests.support.fake_web_master import ADMIN, FakeWebMaster
from tests.support.web import Answer, Http, webserver_for
from tests.web.conftest import request, script
from webserver import server
from webserver.app import Webserver

MIB = 1024 * 1024
KNOWN = f"Host: localhost\r\nAuthorization: Bearer {ADMIN}\r\n"
HEAD = f"POST /api/v1/tasks HTTP/1.1\r\n{KNOWN}Content-Type: application/json\r\n"
BODY = b'{"script": "%s", "targets": ["one"]}' % script().encode()


def nothing_stored(fake: FakeWebMaster) -> bool:
    return fake.count("add_task") == 0


# -- who may ask -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("authorization", [None, "", "Bearer wrong", "Basic YTpi", "Bearer", "bearer\tx", "Bearer a b"])
def test_without_a_token_nothing_is_told_or_done(http: Http, fake: FakeWebMaster, authorization: str | None) -> None:
    for method, path in (("GET", "tasks"), ("POST", "tasks"), ("GET", "tasks/x/events"), ("DELETE", "agents/one")):
        answer = http.call(method, path, request() if method == "POST" else None, authorization=authorization)
        answer.refused(401, "unauthorized")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert nothing_stored(fake)


def test_another_role_is_not_enough(http: Http, fake: FakeWebMaster) -> None:
    for told in fake.tokens.values():
        told["role"] = "agent"
    http.get("tasks").refused(403, "forbidden")


def test_two_tokens_are_no_token(http: Http) -> None:
    raw = f"GET /api/v1/tasks HTTP/1.1\r\n{KNOWN}Authorization: Bearer {ADMIN}\r\n\r\n"
    http.raw(raw.encode()).refused(401, "unauthorized")


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "", "a b", "10.1.2.3"])
def test_a_foreign_host_name_is_refused_before_anything_else(http: Http, host: str) -> None:
    for path in ("/api/v1/tasks", "/api/v1/openapi.json", "/metrics", "/nothing"):
        http.get(path, host=host).refused(400, "unknown_host")
    assert http.get("/healthz", host=host).status == 200


def test_more_host_names_can_be_allowed(fake: FakeWebMaster) -> None:
    with webserver_for(fake, Settings(hosts="muster.lan, other.lan")) as web:
        assert Http(web.address).get("tasks", host="other.lan:7440").status == 200


def test_every_answer_has_the_security_headers(http: Http) -> None:
    for answer in (http.get("tasks"), http.get("nothing"), http.get("/healthz"), http.call("PUT", "tasks")):
        for name, value in (
            ("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY"), ("Referrer-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):  # fmt: skip
            assert answer.headers[name] == value
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["Server"] is None


# -- methods and heads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_another_method_is_refused_and_told_which_are_possible(http: Http, method: str) -> None:
    answer = http.call(method, "tasks")
    answer.refused(405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET, HEAD, POST"


def test_a_word_beside_ids_is_no_id(http: Http) -> None:
    answer = http.get("tasks/preview")
    answer.refused(405, "method_not_allowed")
    assert answer.headers["Allow"] == "POST"
    http.get("tasks/previews").refused(404, "not_found")


def test_head_has_the_length_and_no_body(http: Http) -> None:
    get, head = http.get("tasks"), http.call("HEAD", "tasks")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(get.body)))
    assert http.call("HEAD", "nothing").status == 404


def test_a_connection_goes_on_behind_every_kind_of_answer(http: Http, fake: FakeWebMaster) -> None:
    run = fake.runs_of(fake.task())[0]
    fake.write(run, b"x" * 3 * MIB)
    sock = http.connect()
    output = f"runs/{run['id']}/output"
    for method, path in (("HEAD", output), ("GET", "nothing"), ("HEAD", "tasks"), ("PUT", "tasks")):
        sock.sendall(f"{method} /api/v1/{path} HTTP/1.1\r\n{KNOWN}\r\n".encode())
    sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    received = b""
    while piece := sock.recv(65536):
        received += piece
    sock.close()
    statuses = re.findall(rb"HTTP/1\.1 (\d+) ", received)
    assert statuses == [b"200", b"404", b"200", b"405", b"200"]
    assert received.endswith(b"}") and b'"ok"' in received


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET / HTTP/1\r\n\r\n", 400),
        (b"GET / HTTP/x.y\r\n\r\n", 400),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 70_000 + b"\r\n\r\n", 400),
        (HEAD.encode() + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD.encode() + b"Content-Length: 1e3\r\n\r\n", 400),
        (HEAD.encode() + b"Content-Length: +10\r\n\r\n", 400),
        (HEAD.encode() + b"Content-Length: 1_0\r\n\r\n", 400),
        (HEAD.encode() + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (HEAD.encode() + b"Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(BODY), len(BODY) + 1) + BODY, 400),
        (HEAD.encode() + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n", 400),
        (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", 400),
    ],
)
def test_what_is_no_proper_request_gets_a_problem_and_the_connection_closed(
    http: Http, fake: FakeWebMaster, message: bytes, status: int
) -> None:
    answer = http.raw(message)
    assert (answer.status, answer.headers["Content-Type"]) == (status, "application/problem+json"), answer.body
    assert answer.json["status"] == status and answer.headers["Connection"] == "close"
    assert nothing_stored(fake) and http.get("/healthz").status == 200


LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
WHOLE = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b"Content-Length : %d\r\n\r\n" % len(BODY) + BODY, id="white space behind a name"),
        pytest.param(b"X\t: 1\r\n" + LENGTH + b"\r\n" + BODY, id="a tab behind a name"),
        pytest.param(LENGTH + b"no colon here\r\n\r\n" + BODY, id="a line that is no header"),
        pytest.param(LENGTH + b": nameless\r\n\r\n" + BODY, id="no name"),
        pytest.param(b"X[]: 1\r\n" + LENGTH + b"\r\n" + BODY, id="a name that is none"),
        pytest.param(b"X: 1\rContent-Length: 0\r\n" + LENGTH + b"\r\n" + BODY, id="a bare carriage return"),
        pytest.param(b"X: 1\rY: 2\r\n" + LENGTH + b"\r\n" + BODY, id="a header behind a bare carriage return"),
        pytest.param(b"X: 1\0\r\n" + LENGTH + b"\r\n" + BODY, id="a zero byte in a value"),
        pytest.param(b"X\0: 1\r\n" + LENGTH + b"\r\n" + BODY, id="a zero byte in a name"),
        pytest.param(b"X: 1\x0b\r\n" + LENGTH + b"\r\n" + BODY, id="another control character"),
        pytest.param(b"X: 1\r\n 2\r\n" + LENGTH + b"\r\n" + BODY, id="a folded header"),
        pytest.param(b"X: 1\r\n\t2\r\n" + LENGTH + b"\r\n" + BODY, id="a header folded with a tab"),
        pytest.param(CHUNKED + CHUNKED + b"\r\n" + WHOLE, id="two codings"),
        pytest.param(b"Transfer-Encoding: identity\r\n" + CHUNKED + b"\r\n" + WHOLE, id="two different codings"),
        pytest.param(CHUNKED + b"Transfer-Encoding: identity\r\n\r\n" + WHOLE, id="the other way round"),
        pytest.param(CHUNKED + LENGTH + b"\r\n" + WHOLE, id="a coding and a length"),
        pytest.param(LENGTH + CHUNKED + b"\r\n" + WHOLE, id="a length and a coding"),
        pytest.param(b"Transfer-Encoding:\r\n" + LENGTH + b"\r\n" + BODY, id="an empty coding and a length"),
        pytest.param(b"Transfer-Encoding: \x0bchunked\r\n\r\n" + WHOLE, id="a coding behind a control character"),
    ],
)
def test_what_two_readers_would_frame_differently_is_refused(http: Http, fake: FakeWebMaster, rest: bytes) -> None:
    answer = http.raw(HEAD.encode() + rest)
    answer.refused(400, "malformed")
    assert answer.headers["Connection"] == "close"
    assert nothing_stored(fake)


@pytest.mark.parametrize(
    "line",
    [
        b"GET\x0b/api/v1/tasks HTTP/1.1",
        b"GET /api/v1/tasks\tHTTP/1.1",
        b"GET  /api/v1/tasks HTTP/1.1",
        b"GET /api/v1/tasks HTTP/1.1 ",
        b"GET /api/v1/tasks HTTP/1.1\r",
        b"GET /api/v1/ta\0sks HTTP/1.1",
        b"GET /api/v1/tasks",
    ],
)
def test_a_first_line_that_readers_split_differently_is_refused(http: Http, fake: FakeWebMaster, line: bytes) -> None:
    http.raw(line + b"\r\n" + KNOWN.encode() + b"\r\n").refused(400, "malformed")
    assert fake.count("list_tasks") == 0


def test_a_coding_is_no_part_of_http_1_0(http: Http, fake: FakeWebMaster) -> None:
    head = HEAD.replace("HTTP/1.1", "HTTP/1.0").encode()
    http.raw(head + CHUNKED + b"\r\n" + WHOLE).refused(400, "malformed")
    assert nothing_stored(fake)


def test_a_head_that_breaks_off_is_no_request(http: Http, fake: FakeWebMaster) -> None:
    sock = http.connect()
    sock.sendall(f"GET /api/v1/tasks HTTP/1.1\r\n{KNOWN}".encode())
    sock.shutdown(socket.SHUT_WR)
    assert sock.recv(1000).startswith(b"HTTP/1.1 400 ")
    sock.close()
    assert fake.count("list_tasks") == 0


@pytest.mark.parametrize("coding", [b"chunked \t", b"\t Chunked", b"CHUNKED"])
def test_white_space_around_a_value_and_case_mean_nothing(http: Http, coding: bytes) -> None:
    assert http.raw(HEAD.encode() + b"transfer-encoding:" + coding + b"\r\n\r\n" + WHOLE).status == 201
    assert http.raw(HEAD.encode() + b"content-length:\t%d  \r\n\r\n" % len(BODY) + BODY).status == 201


def test_a_body_ends_where_its_length_says_also_with_a_wish_for_another_protocol(http: Http) -> None:
    sock = http.connect()
    wish = b"Upgrade: websocket\r\n"
    sock.sendall(HEAD.encode() + wish + LENGTH + b"\r\n" + BODY + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    sock.shutdown(socket.SHUT_WR)
    received = b""
    while piece := sock.recv(65536):
        received += piece
    sock.close()
    assert re.findall(rb"HTTP/1\.1 (\d+) ", received) == [b"201", b"200"]


def test_repeated_headers_do_no_harm(http: Http) -> None:
    head = HEAD + "Prefer: wait=0\r\nPrefer: respond-async\r\nX-A: 1\r\nX-A: 2\r\nContent-Type: application/json\r\n"
    answer = http.raw(head.encode() + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    assert answer.status == 201 and answer.headers["Preference-Applied"] == "wait=0"


# -- bodies ------------------------------------------------------------------------------------------------------------


def chunked(content: bytes, size: int = 65536) -> bytes:
    parts = [content[start : start + size] for start in range(0, len(content), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def test_a_chunked_body_is_as_good_as_any(http: Http) -> None:
    assert http.raw(HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(BODY, 7)).status == 201


@pytest.mark.parametrize("size", [6 * MIB + 1, 40 * MIB])
def test_a_body_over_6_mib_is_413(http: Http, fake: FakeWebMaster, size: int) -> None:
    answer = http.call("POST", "tasks", raw=b" " * size) if size < 32 * MIB else announced(http, size)
    answer.refused(413, "too_large")
    assert answer.headers["Connection"] == "close"
    assert nothing_stored(fake)


def announced(http: Http, size: int) -> Answer:
    """The answer to a request that only announces so large a body."""
    return http.raw(HEAD.encode() + b"Content-Length: %d\r\n\r\n{" % size)


def test_a_chunked_body_over_6_mib_is_413_too(http: Http, fake: FakeWebMaster) -> None:
    body = chunked(BODY[:-1] + b" " * 7 * MIB + b"}")
    http.raw(HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + body).refused(413, "too_large")
    assert nothing_stored(fake)


def test_a_body_of_exactly_6_mib_is_read(http: Http) -> None:
    assert http.call("POST", "tasks", raw=BODY + b" " * (6 * MIB - len(BODY))).status == 201


def test_who_waits_for_leave_to_send_a_body_that_is_too_large_does_not_get_it(http: Http) -> None:
    answer = http.raw(HEAD.encode() + b"Expect: 100-continue\r\nContent-Length: 9000000\r\n\r\n")
    answer.refused(413, "too_large")


def test_who_waits_for_leave_to_send_a_good_body_gets_it(http: Http) -> None:
    sock = http.connect()
    sock.sendall(HEAD.encode() + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY))
    assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    sock.sendall(BODY)
    assert sock.recv(1000).startswith(b"HTTP/1.1 201 ")
    sock.close()


def test_a_body_that_breaks_off_is_refused_and_stores_nothing(http: Http, fake: FakeWebMaster) -> None:
    sock = http.connect()
    sock.sendall(HEAD.encode() + b"Content-Length: 1000\r\n\r\n" + BODY)
    sock.shutdown(socket.SHUT_WR)
    received = sock.recv(65536)
    sock.close()
    assert b" 400 " in received and b"broken_body" in received
    assert nothing_stored(fake)


def test_a_peer_that_says_nothing_is_let_go(fake: FakeWebMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENCE_S", 0.2)
    with webserver_for(fake) as web:
        http = Http(web.address)
        for beginning in (b"", b"GET /api", HEAD.encode(), HEAD.encode() + b"Content-Length: 50\r\n\r\n{"):
            sock = http.connect()
            sock.sendall(beginning)
            received = b""
            while piece := sock.recv(65536):
                received += piece
            assert b" 200 " not in received and b" 500 " not in received
            sock.close()
    assert nothing_stored(fake)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.sampled_from([b"", b"GET ", b"GET / HTTP/1.1\r\n", HEAD.encode()]))
def test_no_bytes_at_all_bring_it_down(web: Webserver, fake: FakeWebMaster, tail: bytes, start: bytes) -> None:
    http = Http(web.address)
    sock = http.connect()
    sock.sendall(start + tail + b"\r\n\r\n")
    sock.shutdown(1)
    received = b""
    try:
        while piece := sock.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    finally:
        sock.close()
    assert b" 500 " not in received[:20]
    assert http.get("/healthz").status == 200


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["Prefer", "Idempotency-Key", "Content-Type", "Last-Event-ID", "Expect", "Accept"]),
        st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=40),
        max_size=3,
    )
)
def test_no_header_brings_it_down(web: Webserver, headers: dict[str, str]) -> None:
    told = {name.replace("-", "_"): text.encode("latin-1").decode("latin-1") for name, text in headers.items()}
    answer = Http(web.address).call("POST", "tasks", request(), **told)  # type: ignore[arg-type]
    assert answer.status in (200, 201, 400, 409, 415, 417, 422)


# -- faults of ours ----------------------------------------------------------------------------------------------------


def test_a_fault_of_ours_tells_a_reference_and_nothing_else(
    http: Http, fake: FakeWebMaster, caplog: pytest.LogCaptureFixture
) -> None:
    task = fake.task()
    fake.tasks[task["id"]].pop("id")
    fake.do_list_tasks = lambda *_: {"no": "items"}  # type: ignore[method-assign]
    fake.restart()
    problem = http.get("tasks").refused(500, "internal")
    reference = problem["detail"].rsplit(" ", 1)[1].rstrip(".")
    assert "Traceback" not in str(problem) and "KeyError" not in str(problem)
    [record] = [record for record in caplog.records if record.getMessage() == "a request failed"]
    assert record.__dict__["muster_fields"]["reference"] == reference


def test_an_answer_that_cannot_be_finished_breaks_off(http: Http, fake: FakeWebMaster) -> None:
    run = fake.runs_of(fake.task())[0]
    fake.write(run, b"x" * 4 * MIB)
    sock = http.connect()
    fake.fail("read_output", None, None, NotFound())
    sock.sendall(f"GET /api/v1/runs/{run['id']}/output HTTP/1.1\r\n{KNOWN}\r\n".encode())
    received = b""
    while piece := sock.recv(MIB):
        received += piece
    sock.close()
    assert received.startswith(b"HTTP/1.1 200 ") and 2 * MIB < len(received) < 3 * MIB
    assert not received.endswith(b"0\r\n\r\n")


def test_term_lets_a_request_finish_and_cuts_waits(fake: FakeWebMaster) -> None:
    with webserver_for(fake) as web:
        http = Http(web.address)
        task = fake.task()
        waiting = gevent.spawn(http.get, f"tasks/{task['id']}?wait=60")
        submitting = gevent.spawn(http.post, "tasks", request(), prefer="wait=60", idempotency_key="mine")
        stream = http.events("events")
        with fake.holding("list_tasks") as arrived:
            slow = gevent.spawn(http.get, "tasks")
            arrived.wait()
            fake.wait_for(lambda: fake.count("get_task") and fake.count("add_task"))
            stopping = gevent.spawn(web.stop, grace_s=5.0)
            with pytest.raises(EOFError):
                stream.until(lambda event: False)
            stream.close()
        assert slow.get().status == 200
        assert (waiting.get().status, waiting.get().json["state"]) == (200, "waiting")
        assert submitting.get().status == 201
        stopping.get()
        with pytest.raises(ConnectionRefusedError):
            http.connect()
    assert len(fake.by_key) == 1
