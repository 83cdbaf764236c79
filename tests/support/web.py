"""A webserver in this process and clients for it that share its loop: plain requests, raw sockets, event streams."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gevent.socket

from common.auth import new_key_pair
from common.config import Settings
from common.rpc import RpcClient
from tests.support.fake_web_master import ADMIN, FakeWebMaster
from tests.support.rpc import quick_backoff
from webserver.app import Webserver

WEB_KEYS = new_key_pair()


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def refused(self, status: int, code: str, *fields: str) -> dict[str, Any]:
        """Assert that this is the problem document of such an error, with faults of these fields."""
        assert (self.status, self.headers["Content-Type"]) == (status, "application/problem+json"), self.body
        problem: dict[str, Any] = self.json
        assert (problem["status"], problem["code"]) == (status, code), problem
        assert problem["title"] and problem["detail"] and problem["type"].endswith(code)
        found = [fault["field"] for fault in problem.get("errors", [])]
        assert all(name in found for name in fields), (fields, problem)
        return problem


class Http:
    """Requests to one webserver, a connection each."""

    def __init__(self, address: tuple[str, int], token: str | None = ADMIN) -> None:
        self.address = address
        self.token = token

    def connect(self) -> Any:
        """A plain connection."""
        sock = gevent.socket.create_connection(self.address)
        sock.settimeout(20)
        return sock

    def call(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str | None
    ) -> Answer:
        """The answer; `body` is sent as JSON, `raw` as it is. Header names with `_` for `-`; None leaves one out."""
        told: dict[str, str | None] = {"Authorization": f"Bearer {self.token}" if self.token else None}
        if body is not None:
            raw = json.dumps(body).encode()
        if raw is not None:
            told["Content-Type"] = "application/json"
        told.update({name.replace("_", "-").title(): value for name, value in headers.items()})
        connection = http.client.HTTPConnection(*self.address)
        connection.sock = self.connect()
        try:
            target = path if path.startswith("/") else f"/api/v1/{path}"
            connection.request(method, target, raw, {name: text for name, text in told.items() if text is not None})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def raw(self, message: bytes) -> Answer:
        """The answer to any bytes at all."""
        sock = self.connect()
        try:
            sock.sendall(message)
            response = http.client.HTTPResponse(sock)
            response.begin()
            return Answer(response.status, response.headers, response.read())
        finally:
            sock.close()

    def get(self, path: str, **headers: str | None) -> Answer:
        """GET."""
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str | None) -> Answer:
        """POST."""
        return self.call("POST", path, body, **headers)

    def events(self, path: str, *, last_id: str | None = None) -> EventReader:
        """An open event stream."""
        sock = self.connect()
        resume = f"Last-Event-ID: {last_id}\r\n" if last_id is not None else ""
        sock.sendall(
            f"GET {path if path.startswith('/') else '/api/v1/' + path} HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {self.token}\r\n{resume}\r\n".encode()
        )
        response = http.client.HTTPResponse(sock)
        response.begin()
        assert response.status == 200, response.read()
        return EventReader(sock, response)


@dataclass(frozen=True)
class SeenEvent:
    """A server-sent event."""

    kind: str
    id: str | None
    raw: str

    @property
    def json(self) -> Any:
        """Its data."""
        return json.loads(self.raw)


@dataclass
class EventReader:
    """Reads events one by one; `last_id` is what a browser would resume with."""

    sock: Any
    response: http.client.HTTPResponse
    last_id: str | None = None
    seen: list[SeenEvent] = field(default_factory=list)

    def next(self) -> SeenEvent:
        """The next event."""
        kind, lines = "message", []
        while True:
            line = self.response.readline()
            if not line.endswith(b"\n"):
                raise EOFError("the stream ended")
            text = line.decode().rstrip("\n")
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                kind = value
            elif name == "data":
                lines.append(value)
            elif name == "id":
                self.last_id = value
            elif not text and lines:
                found = SeenEvent(kind, self.last_id, "\n".join(lines))
                self.seen.append(found)
                return found

    def until(self, wanted: Any) -> list[SeenEvent]:
        """Events up to and with the first for which `wanted(event)` is true."""
        found = []
        while True:
            found.append(self.next())
            if wanted(found[-1]):
                return found

    def close(self) -> None:
        """Hang up."""
        self.response.close()
        self.sock.close()


def is_final(event: SeenEvent) -> bool:
    """Whether this is a final task."""
    return event.kind == "task" and event.json["state"] in ("succeeded", "failed", "cancelled")


def written(events: list[SeenEvent]) -> dict[tuple[str, int], bytes]:
    """Output by run and attempt; fails when a byte comes twice or out of order."""
    found: dict[tuple[str, int], bytes] = {}
    ends: dict[tuple[str, int], int] = {}
    for event in events:
        if event.kind == "output":
            told = event.json
            key = (told["run_id"], told["attempt"])
            content = base64.b64decode(told["data"])
            assert told["offset"] >= ends.get(key, 0), f"output came twice: {told['offset']} after {ends[key]}"
            ends[key] = told["offset"] + len(content)
            found[key] = found.get(key, b"") + content
    return found


@contextmanager
def webserver_for(
    master: FakeWebMaster, settings: Settings | None = None, *, connect_wait_s: float = 1.0, **options: float
) -> Iterator[Webserver]:
    """A webserver that speaks to this master; `options` are those of `Webserver`."""
    rpc = RpcClient(
        master.endpoint,
        server_key=master.keys.public,
        public_key=WEB_KEYS.public,
        secret_key=WEB_KEYS.secret,
        max_message_bytes=8 * 1024 * 1024,
        backoff=quick_backoff(),
        connect_wait_s=connect_wait_s,
    )
    webserver = Webserver(settings or Settings(), listen=("127.0.0.1", 0), rpc=rpc, **options)
    webserver.start()
    try:
        yield webserver
    finally:
        webserver.stop(grace_s=1.0)
