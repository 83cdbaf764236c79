"""Who may speak to this webserver and what every answer carries: host names, bearer tokens, security headers.

Promises that a token is looked up by its SHA-256 only, that what the master said about it is believed for at most
`REMEMBER_S` seconds, and that a name the operator did not allow (a page elsewhere pointing its own name at us) is
refused before anything else is looked at.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import flask

from common.auth import token_hash
from common.clock import Clock
from common.config import Settings
from common.errors import Forbidden, Unauthorized
from common.model import Role
from webserver import problems
from webserver.master_client import MasterClient
from webserver.problems import BadHost

REMEMBER_S = 10.0
_REMEMBERED = 1000
_LONGEST_TOKEN = 512
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE = ("GET", "HEAD")
"""The methods that change nothing."""
_ANY_ADDRESS = frozenset({"", "0.0.0.0", "::", "*"})
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?\Z")
_PORT_MOST = 65_535

# What an answer says unless it says otherwise itself: pages bring a content policy of their own.
HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("Cache-Control", "no-store"),
)
_HEADERS = tuple((name.lower(), (name, value)) for name, value in HEADERS)
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: the name of the token or session, its role, its id."""

    name: str
    role: Role
    id: str = ""


class AllowedHosts:
    """The names by which this webserver may be addressed.

    Those are the loopback names, the address it listens on and `more`. Listening on every address, any IP address and
    the machine's own name are fine too: an address cannot be pointed elsewhere by whoever wrote a page.
    """

    def __init__(self, listen_host: str, *, more: Iterable[str] = ()) -> None:
        bare = listen_host.strip("[]").lower()
        self._everywhere = bare in _ANY_ADDRESS
        own = {socket.gethostname().lower()} if self._everywhere else {bare}
        self._names = _LOOPBACK | own | {name.strip().strip("[]").lower() for name in more if name.strip()}

    def check(self, header: str | None) -> None:
        """Raise `BadHost` unless `header`, the request's `Host`, is one of ours. A request without one is HTTP/1.0."""
        if header is None:
            return
        match = _HOST.match(header)
        sound = match is not None and int(match[3] or 0) <= _PORT_MOST
        name = (match[1] or match[2]).lower().rstrip(".") if match is not None and sound else ""
        if name in self._names or (self._everywhere and _is_address(name)):
            return
        raise BadHost(f"This server is not known as {header[:100]!r}: add the name to the setting `hosts`.")


class _Callers:
    """Who a secret belongs to, as the master says by its SHA-256; remembered for a few seconds."""

    def __init__(self, master: MasterClient, clock: Clock, method: str) -> None:
        self._master = master
        self._clock = clock
        self._method = method
        self._known: OrderedDict[str, tuple[float, Caller]] = OrderedDict()
        self._forgotten = 0  # how often something was: an answer from before must not be remembered after it

    def of(self, secret: str) -> Caller:
        """Whose it is; raises `Unauthorized`."""
        digest = token_hash(secret)
        now_s = self._clock.monotonic_s()
        known = self._known.get(digest)
        if known is not None and known[0] > now_s:
            return known[1]
        self._known.pop(digest, None)
        forgotten = self._forgotten
        answer = self._master.read(self._method, digest)
        caller = Caller(name=str(answer["name"]), role=Role(answer["role"]), id=str(answer.get("id", "")))
        if forgotten == self._forgotten:
            self._known[digest] = (now_s + REMEMBER_S, caller)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return caller

    def forget(self, secret: str) -> None:
        """Ask the master the next time."""
        self._forgotten += 1
        self._known.pop(token_hash(secret), None)

    def forget_all(self) -> None:
        """Ask the master about everybody the next time."""
        self._forgotten += 1
        self._known.clear()


class TokenCheck:
    """Who a bearer token belongs to, as the master says; remembered for a few seconds."""

    def __init__(self, master: MasterClient, clock: Clock) -> None:
        self._callers = _Callers(master, clock, "check_token")

    def caller(self, authorization: str | None) -> Caller:
        """The caller of a request with this `Authorization` header; raises `Unauthorized`."""
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _LONGEST_TOKEN or not token.isascii():
            raise Unauthorized()
        try:
            return self._callers.of(token)
        except Unauthorized:
            raise Unauthorized("This token is not valid (any more).") from None

    def forget_all(self) -> None:
        """Believe nothing that was remembered: a token was revoked."""
        self._callers.forget_all()


class SessionCheck:
    """Who a session of a browser belongs to, as the master says; remembered for a few seconds."""

    def __init__(self, master: MasterClient, clock: Clock) -> None:
        self._master = master
        self._callers = _Callers(master, clock, "check_session")

    def caller(self, secret: str) -> Caller:
        """The caller whose browser holds this secret; raises `Unauthorized`."""
        if not secret or len(secret) > _LONGEST_TOKEN or not secret.isascii():
            raise Unauthorized()
        return self._callers.of(secret)

    def log_out(self, secret: str) -> None:
        """End the session."""
        self._callers.forget(secret)
        self._master.act("log_out", token_hash(secret))
        self._callers.forget(secret)

    def forget_all(self) -> None:
        """Believe nothing that was remembered: a session was revoked."""
        self._callers.forget_all()


def session_cookie(request: flask.Request) -> str:
    """The name of the session's cookie. Cookies are shared between ports, so it carries the port."""
    port = urlsplit(f"//{request.host}").port
    return f"muster_session_{port}" if port is not None else "muster_session"


def is_cross_site(request: flask.Request) -> bool:
    """Whether the browser says that a page of another site is behind this request, a link there included."""
    return request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")


def base_url(settings: Settings, request: flask.Request) -> str:
    """The address of this webserver as browsers see it, without a slash at its end: as it was asked, unless a proxy
    stands before it and the operator said by which address people come."""
    return settings.public_url.rstrip("/") or f"{request.scheme}://{request.host}"


def require_admin(caller: Caller) -> None:
    """Raise `Forbidden` unless the caller may do everything."""
    if caller.role is not Role.ADMIN:
        raise Forbidden(f"The token {caller.name!r} has the role {caller.role.value}; this call needs admin.")


class Guard:
    """Stands before the application: refuses foreign host names, and completes every answer's headers.

    `open_paths` are answered under any name: whoever checks a service's health knows its address only.
    """

    def __init__(self, app: Wsgi, hosts: AllowedHosts, *, open_paths: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts
        self._open_paths = open_paths

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            there = {name.lower() for name, _ in headers}
            complete = headers + [pair for name, pair in _HEADERS if name not in there]
            return start_response(status, complete, exc_info)

        try:
            if environ["PATH_INFO"] not in self._open_paths:
                self._hosts.check(environ.get("HTTP_HOST"))
        except BadHost as error:
            return problems.answer(error)(environ, start)
        return self._app(environ, start)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
