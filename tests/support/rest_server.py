"""A small real HTTP server for tests of the client: answers by a table, records what it was asked, breaks on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TASK_ID = "0193aaaa-0000-7000-8000-000000000001"
RUN_ID = "0193aaaa-0000-7000-8000-000000000002"
AGENT_ID = "0193aaaa-0000-7000-8000-000000000003"


def task_json(**more: Any) -> dict[str, Any]:
    """A task as the API words it."""
    return {
        "id": TASK_ID,
        "name": "uptime",
        "state": "waiting",
        "paused": False,
        "counts": {"ready": 1},
        "total": 1,
        "reason": None,
        "waiting_because": None,
        "created_at": "2026-11-30T12:00:00.000Z",
        "started_at": None,
        "ended_at": None,
        "submitted_by": "admin",
        **more,
    }


def run_json(**more: Any) -> dict[str, Any]:
    """A run as the API words it."""
    return {
        "id": RUN_ID,
        "task_id": TASK_ID,
        "agent": {"id": AGENT_ID, "name": "web-1", "hostname": "web-1"},
        "state": "running",
        "outcome": None,
        "exit_code": None,
        "attempt": 1,
        "output_bytes": 0,
        **more,
    }


def agent_json(**more: Any) -> dict[str, Any]:
    """An agent as the API words it."""
    return {
        "id": AGENT_ID,
        "name": "web-1",
        "hostname": "web-1",
        "state": "online",
        "labels": {"env": "prod"},
        "facts": {"os": "Debian 12", "arch": "x86_64"},
        "slots": 2,
        "held": 0,
        "last_seen_at": "2026-11-30T12:00:00.000Z",
        "enrolled_at": "2026-11-30T11:00:00.000Z",
        **more,
    }


@dataclass(slots=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body's JSON."""
        return json.loads(self.body)


@dataclass(slots=True)
class Said:
    """An answer: JSON unless `raw` is given. `cut`: hang up after so many bytes of the body, 0 before any answer."""

    content: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    cut: int | None = None


Answer = Said | Callable[[Asked], Said] | list["Said"]


class RestServer:
    """Answers `METHOD /path` (without /api/v1) from `answers`; a list is used up one by one, its last one stays."""

    def __init__(self, httpd: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{httpd.server_port}"
        self.answers: dict[str, Answer] = {}
        self.asked: list[Asked] = []

    def paths(self) -> list[str]:
        """What was asked, as `METHOD /path`."""
        return [f"{asked.method} {asked.path}" for asked in self.asked]

    def answer(self, asked: Asked) -> Said:
        """The answer to a request; 404 for what is not in the table."""
        self.asked.append(asked)
        found = self.answers.get(f"{asked.method} {asked.path}")
        if found is None:
            return problem(404, "not_found", "There is no such thing here.")
        if isinstance(found, list):
            return found.pop(0) if len(found) > 1 else found[0]
        return found if isinstance(found, Said) else found(asked)


def problem(status: int, code: str, detail: str, **fields: str) -> Said:
    """An error as the API words it."""
    errors = [{"field": name, "message": message} for name, message in fields.items()]
    content = {"type": "about:blank", "title": detail, "status": status, "detail": detail, "code": code}
    return Said({**content, "errors": errors} if errors else content, status=status)


def page(*items: Any, next: str | None = None) -> Said:
    """A page of a list."""
    return Said({"items": list(items), "next": next})


@contextmanager
def serving() -> Iterator[RestServer]:
    """A server on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            path = parts.path.removeprefix("/api/v1")
            said = server.answer(Asked(self.command, path, query, dict(self.headers.items()), body))
            content = (
                said.raw if said.raw is not None else b"" if said.content is None else json.dumps(said.content).encode()
            )
            if said.cut == 0:
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content if said.cut is None else content[: said.cut])
            self.close_connection = said.cut is not None

        do_GET = do_POST = do_PATCH = do_DELETE = handle_any

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.daemon_threads = True
        server = RestServer(httpd)
        thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            httpd.shutdown()
            thread.join()
