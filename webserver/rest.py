"""The thin layer under the REST API: operations as declarations, typed queries and bodies, JSON answers.

An operation names its method, path, query, body and answers once; the Flask routes and the OpenAPI document both come
from that. Whatever is not declared (a parameter, a field, a method) is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import flask
import msgspec
from msgspec import UnsetType
from werkzeug.routing import BaseConverter

from common.errors import InvalidRequest, Malformed, MusterError, TooLarge, UnsupportedContentType
from common.wire import invalid
from webserver.problems import BrokenBody
from webserver.security import SAFE, Caller, is_cross_site, require_admin, session_cookie
from webserver.server import ROUTE

if TYPE_CHECKING:
    from webserver.services import Services

PREFIX = "/api/v1"
JSON = "application/json"
WAIT_MOST_S = 60.0
_encode = msgspec.json.Encoder().encode
_PREFERENCE = re.compile(r'\s*wait\s*=\s*"?([0-9]{1,9}(?:\.[0-9]{1,9})?)"?\s*(?:;.*)?\Z', re.IGNORECASE)
_VISIBLE = re.compile(r"[\x21-\x7e]{1,200}\Z")
Fn = TypeVar("Fn", bound=Callable[..., Any])
E = TypeVar("E", bound=StrEnum)


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all query parameters. A parameter not given is `UNSET`, or has its default."""


def several(kind: type[E], text: str | UnsetType, *, field: str) -> list[E] | None:
    """The values of `kind` that a comma-separated parameter names; None when it is not given. Raises `InvalidRequest`
    naming `field`."""
    if isinstance(text, UnsetType):
        return None
    try:
        return [kind(part) for part in dict.fromkeys(text.split(","))]
    except ValueError:
        raise InvalidRequest.of(field, f"must be one or more, separated by commas, of {', '.join(kind)}") from None


def list_of(kind: type[StrEnum], description: str) -> msgspec.Meta:
    """What the document says of a parameter that `several` reads."""
    words = "|".join(kind)
    pattern = f"^(?:{words})(?:,(?:{words}))*$"
    return msgspec.Meta(description=description, extra_json_schema={"pattern": pattern, "examples": [",".join(kind)]})


class IdConverter(BaseConverter):
    """An id in an address: anything but the words that are addresses beside ids."""

    regex = "(?!preview$)[^/]+"


class Nothing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a call that takes none: no body at all, or an empty object."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One possible success of an operation: the shape of its JSON (None: no JSON), else its content type."""

    description: str
    shape: type[msgspec.Struct] | None = None
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)  # name → description


@dataclass(frozen=True, slots=True)
class Header:
    """A request header that an operation understands."""

    name: str
    description: str
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call of the API."""

    method: str
    path: str  # below the prefix, parameters in braces
    fn: Callable[[Call], Any]
    answers: Mapping[int, Answer]
    query: type[Query]
    body: type[msgspec.Struct] | None
    body_required: bool
    headers: tuple[Header, ...]
    refuses: tuple[type[MusterError], ...]  # beyond what every operation may refuse


@dataclass(slots=True)
class Call:
    """One request, checked, and what serves it."""

    web: Services
    caller: Caller
    ask_again: Callable[[], Caller]  # whose request it is by now; raises `Unauthorized` once that was revoked
    path: Mapping[str, str]
    query: Any
    body: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with another status than the operation's first, or with headers."""

    content: Any
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)


class Noun:
    """The operations about one thing: a table of declarations, and the blueprint made from it."""

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.description = description
        self.operations: list[Operation] = []

    def operation(
        self,
        method: str,
        path: str,
        *,
        answers: Mapping[int, Answer],
        query: type[Query] = Query,
        body: type[msgspec.Struct] | None = None,
        body_required: bool = False,
        headers: Iterable[Header] = (),
        refuses: Iterable[type[MusterError]] = (),
    ) -> Callable[[Fn], Fn]:
        """Declare the decorated function as an operation; its docstring is the documentation."""

        def declare(fn: Fn) -> Fn:
            operation = Operation(
                method=method,
                path=path,
                fn=fn,
                answers=answers,
                query=query,
                body=body,
                body_required=body_required,
                headers=tuple(headers),
                refuses=tuple(refuses),
            )
            self.operations.append(operation)
            return fn

        return declare

    def blueprint(self, web: Services) -> flask.Blueprint:
        """The Flask routes of these operations."""
        blueprint = flask.Blueprint(self.name, __name__, url_prefix=PREFIX)
        for operation in self.operations:
            rule = operation.path.replace("{task_id}", "<id:task_id>").replace("{", "<").replace("}", ">")
            view = _view(web, operation)
            name = f"{operation.method.lower()}_{operation.fn.__name__}"
            blueprint.add_url_rule(
                rule, name, view, methods=[operation.method], provide_automatic_options=False, strict_slashes=True
            )
        return blueprint


def _view(web: Services, operation: Operation) -> Callable[..., flask.Response]:
    """The Flask view of an operation: authenticate, read, call, answer."""
    decoder = msgspec.json.Decoder(operation.body) if operation.body is not None else None
    first_status = next(iter(operation.answers))
    fn = operation.fn

    def view(**path: str) -> flask.Response:
        request = flask.request
        request.environ[ROUTE] = operation.path
        ask = _credentials(web, request)
        caller = ask()
        require_admin(caller)
        query = read_query(request, operation.query)
        body = read_json(request, decoder, limit=web.settings.max_body, required=operation.body_required)
        result = fn(Call(web, caller, ask, path, query, body))
        if isinstance(result, flask.Response):
            return result
        if isinstance(result, Reply):
            return json_answer(result.content, result.status, result.headers)
        return json_answer(result, first_status)

    return view


def _credentials(web: Services, request: flask.Request) -> Callable[[], Caller]:
    """What tells whose request it is: a token, or, where nothing is changed, a browser's session."""
    authorization = request.environ.get("HTTP_AUTHORIZATION")
    usable = request.method in SAFE and not is_cross_site(request)
    secret = request.cookies.get(session_cookie(request)) if usable else None
    if authorization is None and secret:
        return lambda: web.sessions.caller(secret)
    return lambda: web.tokens.caller(authorization)


def json_answer(content: Any, status: int, headers: Mapping[str, str] | None = None) -> flask.Response:
    """`content` as JSON; None is an answer without content."""
    raw = b"" if content is None else _encode(content)
    response = flask.Response(raw, status=status, content_type=JSON)
    if content is None:
        del response.headers["Content-Type"]
    for name, value in (headers or {}).items():
        response.headers[name] = value
    return response


def read_query(request: flask.Request, shape: type[Query]) -> Any:
    """The query parameters as `shape`; raises `InvalidRequest` for an unknown, repeated or unfit one."""
    given: dict[str, str] = {}
    if request.query_string:
        for name, values in request.args.lists():
            if len(values) > 1:
                raise InvalidRequest.of(name[:100], "this parameter was given more than once")
            given[name] = values[0]
    try:
        return msgspec.convert(given, shape, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error) from error


def read_json(request: flask.Request, decoder: msgspec.json.Decoder[Any] | None, *, limit: int, required: bool) -> Any:
    """The request's body; raises `Malformed`, `InvalidRequest`, `TooLarge` or `UnsupportedContentType`."""
    if decoder is None:
        return None
    environ = request.environ
    has_body = environ.get("HTTP_TRANSFER_ENCODING") or environ.get("CONTENT_LENGTH", "0") not in ("", "0")
    if not has_body and not required:
        return msgspec.convert({}, decoder.type)
    _check_content_type(request)
    raw = read_body(request, limit=limit)
    if not raw:
        if required:
            raise Malformed("The body is empty; send JSON.")
        return msgspec.convert({}, decoder.type)
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise invalid(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Malformed(f"The body is not proper JSON: {text}.") from error


def read_body(request: flask.Request, *, limit: int) -> bytes:
    """The request's body, at most `limit` bytes; raises `TooLarge`, or `BrokenBody` when it does not come whole."""
    if (request.content_length or 0) > limit:
        raise TooLarge(f"The body has {request.content_length} bytes; at most {limit} are accepted.")
    stream = request.environ["wsgi.input"]
    pieces: list[bytes] = []
    size = 0
    try:
        while size <= limit:
            piece = stream.read(min(limit + 1 - size, 1 << 20))
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
    except (OSError, ValueError) as error:
        raise BrokenBody(f"The body of the request broke off: {error}.") from error
    raise TooLarge(f"The body has more than {limit} bytes.")


def wait_preference(header: str | None) -> float | None:
    """Seconds of `Prefer: wait=S` (RFC 7240), at most 60; None when there is no such wish, or none we understand."""
    for preference in (header or "").split(","):
        match = _PREFERENCE.match(preference)
        if match:
            return min(float(match[1]), WAIT_MOST_S)
    return None


def idempotency_key(header: str | None) -> str | None:
    """The request's `Idempotency-Key`; raises `InvalidRequest` for one that cannot be kept."""
    if header is not None and not _VISIBLE.match(header):
        raise InvalidRequest.of("Idempotency-Key", "must have 1 to 200 visible ASCII characters, without spaces")
    return header


def _check_content_type(request: flask.Request) -> None:
    if request.environ.get("HTTP_CONTENT_ENCODING", "identity").strip().lower() not in ("identity", ""):
        raise UnsupportedContentType("Send the body as it is: no Content-Encoding is understood here.")
    if request.mimetype != JSON:
        raise UnsupportedContentType(f"Send the body as {JSON}, not as {request.mimetype[:100] or 'nothing at all'}.")
    charset = request.mimetype_params.get("charset", "utf-8").lower()
    if charset not in ("utf-8", "utf8"):
        raise UnsupportedContentType(f"JSON is UTF-8; {charset[:40]!r} is not understood.")
