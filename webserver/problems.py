"""Errors as problem details (RFC 9457): the one place that turns an exception into an HTTP answer.

Promises that every refusal, also of a path or a method that does not exist, is `application/problem+json` with a
stable `code`, that `Allow` is kept on 405, and that an error of ours tells the client a reference and nothing else.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import flask
import msgspec
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from common import log
from common.errors import Malformed, MusterError, NotFound, TooLarge, Unauthorized, UnsupportedContentType

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:muster:error:"
RETRY_AFTER_S = {503: 2, 429: 5}
_KNOWN: dict[int, type[MusterError]] = {413: TooLarge, 415: UnsupportedContentType}
_encode = msgspec.json.Encoder().encode
_SECRET_PATH = "/login/"


class MethodRefused(MusterError):
    """This address does not take that method; `Allow` names those it takes."""

    code = "method_not_allowed"
    status = 405


class BadHost(MusterError):
    """This server is not known by that name; add it to the setting `hosts` if it should be."""

    code = "unknown_host"
    status = 400


class BrokenBody(MusterError):
    """The body of the request broke off or is not framed as HTTP wants it; nothing was done."""

    code = "broken_body"
    status = 400


def told_path(path: str) -> str:
    """A path as logs may tell it: what stands behind `/login/` is a secret, good until it is used."""
    return f"{_SECRET_PATH}…" if path.startswith(_SECRET_PATH) else path


def problem(error: MusterError) -> dict[str, Any]:
    """The members of an error's problem document."""
    members: dict[str, Any] = {
        "type": TYPE_PREFIX + error.code,
        "title": _title(type(error)),
        "status": error.status,
        "detail": error.message,
        "code": error.code,
    }
    if error.fields:
        members["errors"] = [{"field": fault.field, "message": fault.message} for fault in error.fields]
    return members


def body(error: MusterError) -> bytes:
    """The problem document as JSON."""
    return _encode(problem(error))


def answer(error: MusterError) -> flask.Response:
    """The whole HTTP answer to an error."""
    response = flask.Response(body(error), status=error.status, content_type=CONTENT_TYPE)
    if error.status in RETRY_AFTER_S:
        response.headers["Retry-After"] = str(RETRY_AFTER_S[error.status])
    if isinstance(error, Unauthorized):
        response.headers["WWW-Authenticate"] = 'Bearer realm="muster"'
    if error.status == 413 or isinstance(error, BrokenBody):
        response.headers["Connection"] = "close"  # what is left of the body is not worth reading
    return response


def install(app: flask.Flask) -> None:
    """Have `app` answer every error with a problem document."""
    app.register_error_handler(MusterError, answer)
    app.register_error_handler(HTTPException, from_http)
    app.register_error_handler(Exception, from_fault)


def _title(kind: type[MusterError]) -> str:
    return (kind.__doc__ or kind.__name__).strip().splitlines()[0]


def allowed(error: MethodNotAllowed) -> str:
    """The methods that the address takes, as `Allow` names them."""
    return ", ".join(sorted(error.valid_methods or ()))


def from_http(error: HTTPException) -> flask.Response:
    """Flask's own refusals: unknown paths, methods, requests it cannot read."""
    if isinstance(error, MethodNotAllowed):
        told = allowed(error)
        response = answer(MethodRefused(f"{flask.request.method[:20]} is not possible here; use one of: {told}"))
        response.headers["Allow"] = told
        return response
    if error.code == 404:
        return answer(NotFound("There is nothing at this address; /api/v1/openapi.json lists what there is."))
    if error.code is None or error.code < 400:
        return error.get_response()  # type: ignore[return-value]  # Flask makes its own kind of it
    return answer(_KNOWN.get(error.code, Malformed)(error.description or error.name))


def from_fault(error: Exception) -> flask.Response:
    """A fault of ours: the log has it whole, the client a reference to find it by."""
    reference = os.urandom(6).hex()
    logger.error(
        "a request failed",
        exc_info=error,
        extra=log.fields(method=flask.request.method, path=told_path(flask.request.path), reference=reference),
    )
    return answer(MusterError(f"Something went wrong inside muster; its log tells more under {reference}."))
