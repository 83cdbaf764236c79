"""The HTTP server: gevent's, with its edges closed.

Promises that a peer which sends nothing, too much or nonsense costs a greenlet for half a minute at most, that such
requests too are answered with a problem document, that `HEAD` sends no body, and that `stop` lets running requests
finish for a few seconds.
"""

from __future__ import annotations

import io
import logging
import resource
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

import gevent
import gevent.pool
from gevent import pywsgi
from gevent.event import Event

from common import log
from common.errors import Malformed, MusterError, Unavailable
from webserver import problems
from webserver.metrics import WebMetrics
from webserver.request_head import check_request_line, read_headers

logger = logging.getLogger(__name__)

SILENCE_S = 30.0
"""How long a peer may neither send what it announced nor take what it asked for."""
SLOW_S = 1.0
CONNECTIONS_MOST = 10_000
PATIENT = "muster.patient"
"""Set in the environ of a request that takes long on purpose."""
ROUTE = "muster.route"
"""The rule that matched, for the metrics."""
_SLICE_BYTES = 64 * 1024
_DISCARD_BYTES = 32 * 1024 * 1024
_DISCARD_S = 5.0
_SPARE_DESCRIPTORS = 200
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PHRASES = {400: "Bad Request", 414: "URI Too Long"}
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class UriTooLong(MusterError):
    """The address is longer than this server reads."""

    code = "uri_too_long"
    status = 414


class _Body(pywsgi.Input):
    """A request's body; what the application left of it is read away only where that is little and quick.

    `abandoned`: it was not, so nothing more can be read from the connection.
    """

    abandoned = False

    def _discard(self) -> None:
        left = (self.content_length or 0) - self.position
        if self.socket is not None and (left > 0 or self.chunked_input):
            self.abandoned = True  # the client waits for our leave to send it
        elif left > _DISCARD_BYTES:
            self.abandoned = True
        elif left > 0 or (self.chunked_input and not getattr(self, "_chunked_input_error", False)):
            self.abandoned = not self._skip()

    def _skip(self) -> bool:
        """Read what is left; False when that is too much or takes too long."""
        give_up_at = time.monotonic() + _DISCARD_S
        skipped = 0
        while piece := self.read(_SLICE_BYTES):
            skipped += len(piece)
            if skipped > _DISCARD_BYTES or time.monotonic() > give_up_at:
                return False
        return True


class Connection(pywsgi.WSGIHandler):
    """One connection."""

    server: HttpServer
    MessageClass = staticmethod(read_headers)  # type: ignore[assignment]  # the stubs take it for a method

    def __init__(self, sock: Any, address: Any, server: HttpServer, rfile: io.BufferedReader | None = None) -> None:
        sock.settimeout(SILENCE_S)
        # Head and body go out apart: without this the body waits for the peer's delayed acknowledgement (40 ms).
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(sock, address, server, rfile)  # type: ignore[call-arg]  # the stubs know no arguments

    def read_request(self, raw_requestline: str) -> Any:
        """See the base class; stricter where two readers of one request could disagree about its body."""
        check_request_line(raw_requestline)
        if not super().read_request(raw_requestline):
            return False
        if self.request_version != "HTTP/1.1" and "transfer-encoding" in self.headers:
            raise ValueError("a Transfer-Encoding, which this version of HTTP does not know")
        return True

    def get_environ(self) -> dict[str, Any]:
        """See the base class."""
        environ: dict[str, Any] = super().get_environ()
        plain: Any = self.wsgi_input
        self.wsgi_input = _Body(plain.rfile, plain.content_length, plain.socket, plain.chunked_input)
        # Also where the client wishes for another protocol: nobody here speaks one, so the body ends where it says.
        environ.update({"wsgi.input": self.wsgi_input, "wsgi.input_terminated": True})
        return environ

    def handle_one_request(self) -> Any:
        """See the base class; refusals of the request as such become problem documents."""
        result = super().handle_one_request()
        if isinstance(result, tuple):
            return result[0], _refusal(int(result[0]))
        return None if self.server.stopping else result

    def handle_one_response(self) -> None:
        """See the base class; counts the requests under way."""
        self.server.begin_request()
        try:
            super().handle_one_response()
            if getattr(self.wsgi_input, "abandoned", False):
                self.close_connection = True
        finally:
            self.server.end_request()

    def finalize_headers(self) -> None:
        """See the base class; an answer to HEAD has no body to be cut into chunks."""
        if self.request_version == "HTTP/1.0" and self.provided_content_length is None:
            self.close_connection = True  # nothing else tells where the body ends
        if self.command == "HEAD" and self.provided_content_length is None and self.code not in (204, 304):
            self.provided_content_length = "none is sent"
            super().finalize_headers()
            self.provided_content_length = None
        else:
            super().finalize_headers()

    def _sendall(self, data: Any) -> None:
        # The time a peer may take counts for each slice, so a slow link is no silent one.
        if len(data) <= _SLICE_BYTES:
            self._send_slice(data)
            return
        view = memoryview(data)
        for start in range(0, len(view), _SLICE_BYTES):
            self._send_slice(view[start : start + _SLICE_BYTES])

    def _send_slice(self, data: Any) -> None:
        super()._sendall(data)  # type: ignore[misc]  # missing in the stubs

    def log_request(self) -> None:
        """One line for what went wrong or took long, and the count."""
        if self.environ is None or self.status is None:
            return
        took_s = (self.time_finish or time.time()) - self.time_start
        patient = bool(self.environ.get(PATIENT))
        status = abs(self.code or 0)
        method = self.command if self.command in _METHODS else "other"
        route = self.environ.get(ROUTE, "none")
        self.server.metrics.request(route, method, status, None if patient else took_s)
        level = logging.DEBUG
        if status >= 500:
            level = logging.WARNING
        elif status >= 400 or (took_s > SLOW_S and not patient):
            level = logging.INFO
        if logger.isEnabledFor(level):
            address: Any = self.client_address
            fields = {
                "method": method,
                "path": self._plain_path,
                "status": status,
                "peer": address[0] if address else "",
            }
            fields.update(took_s=round(took_s, 4), bytes=self.response_length)
            logger.log(level, "request", extra=log.fields(**fields))

    def log_error(self, msg: str, *args: object) -> None:
        """See the base class; what peers do wrong is no trouble of ours."""
        logger.debug("a request was refused: %s", msg % args if args else msg)

    def _handle_client_error(self, ex: BaseException) -> tuple[str, bytes]:
        self.log_error("%s: %s", type(ex).__name__, ex)
        return ("400", b"")

    @property
    def _plain_path(self) -> str:
        return problems.told_path((self.path or "").partition("?")[0])

    def _log_error(self, t: type[BaseException], v: BaseException, tb: Any) -> None:
        if issubclass(t, TimeoutError):
            logger.info("a peer took no more of its answer", extra=log.fields(path=self._plain_path))
        elif not issubclass(t, gevent.GreenletExit):
            logger.error("an answer broke off", exc_info=(t, v, tb), extra=log.fields(path=self._plain_path))


class HttpServer(pywsgi.WSGIServer):
    """Serves `application` on `listener` (host, port). Raises `Unavailable` when the address cannot be had."""

    handler_class = Connection

    def __init__(self, listener: tuple[str, int], application: Wsgi, metrics: WebMetrics) -> None:
        pool = gevent.pool.Pool(min(CONNECTIONS_MOST, _descriptors() - _SPARE_DESCRIPTORS))
        environ = {"SERVER_NAME": listener[0]}  # else gevent would ask the DNS for it
        super().__init__(listener, application, log=None, error_log=None, spawn=pool, backlog=1024, environ=environ)
        self.metrics = metrics
        self.stopping = False
        self._running = 0
        self._quiet = Event()
        self._quiet.set()

    def listen(self) -> None:
        """Begin to serve."""
        try:
            self.start()
        except OSError as error:
            raise Unavailable(f"Cannot listen on {self.address[0]}:{self.address[1]}: {error.strerror}.") from error

    def begin_request(self) -> None:
        """A request is being answered."""
        self._running += 1
        self._quiet.clear()

    def end_request(self) -> None:
        """It was answered."""
        self._running -= 1
        if not self._running:
            self._quiet.set()

    def hurry(self) -> None:
        """Wait for nothing more when winding down."""
        self._quiet.set()

    def wind_down(self, *, grace_s: float) -> None:
        """Accept nothing new, wait for the requests under way for up to `grace_s`, then close all connections."""
        self.stopping = True
        self.close()
        if not self._quiet.wait(timeout=grace_s):
            logger.warning("requests did not end in time", extra=log.fields(count=self._running))
        self.stop(timeout=0)


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else max(soft, 2 * _SPARE_DESCRIPTORS)


def _refusal(status: int) -> bytes:
    """The whole answer to what is no proper request."""
    error: MusterError = UriTooLong() if status == 414 else Malformed("This is no proper HTTP request.")
    raw = problems.body(error)
    head = (
        f"HTTP/1.1 {status} {_PHRASES.get(status, 'Bad Request')}\r\nContent-Type: {problems.CONTENT_TYPE}\r\n"
        f"Content-Length: {len(raw)}\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + raw
