"""Requests to the webserver: one kept connection, the server's complaints as exceptions, repeats where they are safe.

A server that has answered before is waited for when it goes away (it may be restarting); one that was never reached
is reported at once. Standard library only; usable from several threads, which take turns.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPMessage
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from muster.words import _

_MOST_ERROR_BYTES: Final = 1024 * 1024
_LONGEST_LINE: Final = 8 * 1024 * 1024
_TEMPORARY: Final = frozenset({502, 503, 504})


class MusterError(Exception):
    """Something kept a call from being done; the text says what."""


class Unreachable(MusterError):
    """The webserver cannot be reached, or stopped answering."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault of one field of a request."""

    field: str
    message: str


class ApiError(MusterError):
    """The server refused or could not do it: `status` (HTTP), `code` (stable word), `detail`, `errors` by field."""

    def __init__(self, status: int, code: str, detail: str, errors: tuple[FieldError, ...] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors


class InvalidRequest(ApiError):
    """The request is not valid (400, 413, 415, 422): see `errors`. Nothing was stored."""


class Unauthorized(ApiError):
    """The token is missing, wrong, or does not allow this (401, 403)."""


class NotFound(ApiError):
    """There is no such task, run or agent (404)."""


class Conflict(ApiError):
    """It does not fit the present state (409)."""


class Unavailable(ApiError):
    """The webserver is there but cannot do this now: master away, store or disk in trouble (502 … 507)."""


_KINDS: Final[Mapping[int, type[ApiError]]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    413: InvalidRequest,
    415: InvalidRequest,
    422: InvalidRequest,
    429: Unavailable,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: Unavailable,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: status, headers (case-insensitive) and body."""

    status: int
    headers: HTTPMessage
    body: bytes

    def json(self) -> Any:
        """The body as JSON; raises `MusterError` when it is none."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            said = _("the server's answer is no JSON: is this the address of a muster webserver?")
            raise MusterError(said) from error


class LineStream:
    """An answer that has no end yet. `hang_up` may be called from any thread; `close` from the one that reads."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, sock: socket.socket
    ) -> None:
        self._connection = connection
        self._response = response
        self._sock = sock  # the connection forgets it once the answer has begun

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self._response.readline(_LONGEST_LINE), b"")

    def hang_up(self) -> None:
        """End a wait for the next line, and the answer; harmless when done already."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was faster

    def close(self) -> None:
        """Hang up and give everything back."""
        self.hang_up()
        self._response.close()
        self._connection.close()


class Transport:
    """Calls to one webserver at `url`.

    `retry_for_s`, which may be set anew at any time, is how long after its first failure a call is repeated.
    """

    def __init__(self, url: str, token: str | None, *, timeout_s: float = 30.0, retry_for_s: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise MusterError(_("%(url)r is no base URL such as http://127.0.0.1:7440", url=url))
        self.url = url.rstrip("/")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._base = parts.path.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self.retry_for_s = retry_for_s
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._answered = False

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        repeatable: bool = True,
    ) -> Answer:
        """The answer to a request; `wait_s` is how much longer than usual the server may take.

        A `repeatable` one is sent again while the server is away. Raises `ApiError` or `Unreachable`.
        """
        target, raw, all_headers = self._prepare(path, query, body, headers)
        deadline: float | None = None  # a long wait for an answer takes nothing from the time for repeats
        tries = 0
        while True:
            with self._lock:
                reused = self._connection is not None
                try:
                    status, got, content = self._exchange(method, target, raw, all_headers, wait_s)
                except (OSError, http.client.HTTPException) as error:
                    self._drop()
                    now = time.monotonic()
                    deadline = deadline or now + self.retry_for_s
                    # A kept connection may have been closed by the server between two calls: that says nothing.
                    again = repeatable and (reused or self._answered)
                    if not again or (not reused and now >= deadline):
                        raise self._unreachable(error) from error
                    pause_s = 0.0 if reused else _pause_s(tries)
                else:
                    if status < 400:
                        return Answer(status, got, content)
                    now = time.monotonic()
                    deadline = deadline or now + self.retry_for_s
                    if not (repeatable and status in _TEMPORARY) or now >= deadline:
                        raise complaint(status, content)
                    pause_s = _pause_s(tries)
            tries += 1
            time.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))

    def stream(self, path: str, *, headers: Mapping[str, str], idle_s: float) -> LineStream:
        """An answer to be read line by line as it comes, on a connection of its own.

        Reading raises `OSError` after `idle_s` of silence. Raises `ApiError` or `Unreachable`.
        """
        target, _raw, all_headers = self._prepare(path, None, None, headers)
        connection = self._connect(idle_s)
        try:
            connection.request("GET", target, headers={**all_headers, "Connection": "close"})
            sock = connection.sock
            response = connection.getresponse()
            if response.status >= 400:
                raise complaint(response.status, response.read(_MOST_ERROR_BYTES))
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unreachable(error) from error
        except ApiError:
            connection.close()
            raise
        self._answered = True
        return LineStream(connection, response, sock)

    def close(self) -> None:
        """Close the kept connection; the next call opens another."""
        with self._lock:
            self._drop()

    def _prepare(
        self, path: str, query: Mapping[str, Any] | None, body: Any, headers: Mapping[str, str] | None
    ) -> tuple[str, bytes | None, dict[str, str]]:
        named = {name: _word(value) for name, value in (query or {}).items() if value is not None}
        target = self._base + path + ("?" + urlencode(named) if named else "")
        all_headers = {"Accept": "application/json", **(headers or {})}
        if self._token:
            all_headers["Authorization"] = f"Bearer {self._token}"
        raw = None
        if body is not None:
            raw = json.dumps(body, separators=(",", ":")).encode()
            all_headers["Content-Type"] = "application/json"
        return target, raw, all_headers

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _exchange(
        self, method: str, target: str, raw: bytes | None, headers: dict[str, str], wait_s: float
    ) -> tuple[int, HTTPMessage, bytes]:
        if self._connection is None:
            self._connection = self._connect(self._timeout_s)
            self._connection.connect()
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self._connection
        connection.sock.settimeout(self._timeout_s + wait_s)
        try:
            connection.request(method, target, raw, headers)
        except (BrokenPipeError, ConnectionResetError):
            if not raw:
                raise
            # A server that refuses a large body answers and closes before it has read all of it.
        response = connection.getresponse()
        content = response.read()
        self._answered = True
        if response.will_close:
            self._drop()
        return response.status, response.headers, content

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = _("it did not answer in time") if isinstance(error, TimeoutError) else _reason(error)
        return Unreachable(_("the webserver at %(url)s cannot be reached: %(reason)s", url=self.url, reason=reason))


def complaint(status: int, body: bytes) -> ApiError:
    """The exception for an answer of status 400 and above; reads problem details (RFC 9457) where there are some."""
    detail = _("the server answered %(status)s %(phrase)s", status=status, phrase=_phrase(status))
    code = ""
    errors: tuple[FieldError, ...] = ()
    try:
        problem = json.loads(body)
        detail = str(problem.get("detail") or problem.get("title") or detail)
        code = str(problem.get("code") or "")
        errors = tuple(FieldError(str(e["field"]), str(e["message"])) for e in problem.get("errors") or ())
    except (ValueError, AttributeError, TypeError, KeyError):
        pass  # not ours, or a proxy's page: the status says enough
    kind = _KINDS.get(status, Unavailable if status >= 500 and status != 500 else ApiError)
    return kind(status, code, detail, errors)


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return _("its answer broke off")
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _pause_s(tries: int) -> float:
    return float(random.uniform(0.5, 1.0) * min(2.0, 0.1 * 2 ** min(tries, 5)))


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
