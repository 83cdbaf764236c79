"""`/healthz`, `/readyz`, `/metrics`: whether it is well, for machines that ask. They need no token."""

from __future__ import annotations

import flask

from common.errors import MusterError, Unavailable
from common.version import VERSION
from webserver import problems
from webserver.rest import json_answer
from webserver.server import ROUTE
from webserver.services import Services

PATHS = ("/healthz", "/readyz", "/metrics")
_ASK_S = 12.0  # the master looks for up to 5 s at each store that does not answer
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def blueprint(web: Services) -> flask.Blueprint:
    """The three addresses."""
    health = flask.Blueprint("health", __name__)

    def healthz() -> flask.Response:
        flask.request.environ[ROUTE] = "/healthz"
        return json_answer({"status": "ok", "version": VERSION}, 200)

    def readyz() -> flask.Response:
        flask.request.environ[ROUTE] = "/readyz"
        return readiness(web)

    def metrics() -> flask.Response:
        flask.request.environ[ROUTE] = "/metrics"
        return flask.Response(metrics_text(web), content_type=_PROMETHEUS)

    for path, view in zip(PATHS, (healthz, readyz, metrics), strict=True):
        health.add_url_rule(path, view.__name__, view, methods=["GET"], provide_automatic_options=False)
    return health


def readiness(web: Services) -> flask.Response:
    """200 when work can be accepted now, else 503 and everything that is in the way."""
    try:
        told = web.master.read("ready", timeout_s=_ASK_S, patience_s=0.0)
        found = [str(text) for text in told["problems"]]
        ready = bool(told["ready"]) and not found
    except MusterError as error:
        found, ready = [error.message], False
    members = {"ready": ready, "problems": found, "version": VERSION}
    if ready:
        return json_answer(members, 200)
    trouble = problems.problem(NotReady("; ".join(found) or "The master is not ready."))
    response = json_answer({**trouble, **members}, 503, {"Retry-After": str(problems.RETRY_AFTER_S[503])})
    response.content_type = problems.CONTENT_TYPE
    return response


def metrics_text(web: Services) -> str:
    """The master's metrics, if it can be asked, and the webserver's own."""
    own = web.metrics.text()
    try:
        of_master = str(web.master.read("metrics", timeout_s=_ASK_S, patience_s=0.0))
    except MusterError:
        return own
    return of_master.rstrip("\n") + "\n" + own


class NotReady(Unavailable):
    """Work cannot be accepted now; the detail names what is in the way."""

    code = "not_ready"
