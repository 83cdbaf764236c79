"""The door of the pages: who visits, what may be posted, and how a page is answered.

Promises that a page without a valid session shows nothing but the way in, that nothing is changed by a request that
another site caused, that every page carries the content policy, and that an error is a page a person can act on.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode

import flask
from flask_babel import gettext as _
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.urls import iri_to_uri

from common import log
from common.errors import Forbidden, MusterError, NotFound, Unauthorized
from webserver import languages, problems
from webserver.plain import plain
from webserver.security import SAFE, Caller, base_url, is_cross_site, require_admin, session_cookie
from webserver.server import ROUTE
from webserver.services import Services
from webserver.static_files import StaticFiles

logger = logging.getLogger(__name__)

DOCS = "/api/v1/docs"
"""The page about the API, the only one below the API's own addresses."""
THEME_COOKIE = "muster_theme"
THEMES = ("auto", "light", "dark")
_NOTICE_COOKIE = "muster_notice"
_NOTICE_MOST = 1000  # bytes; as a cookie up to three times as many
_YEAR_S = 365 * 86400
_AWAY = (502, 503, 504)
"""What an answer says that needed the master and did not get it."""
_LOOK_AGAIN_S = 5  # a page that could not be had comes by itself once the master is back
_STRANGERS_FORM_MOST = 16 * 1024  # reading millions of fields would hold up everybody for seconds
_POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
View = TypeVar("View", bound=Callable[..., flask.Response])


class StaleForm(MusterError):
    """This form is older than your session: load the page again and repeat what you did."""

    code = "stale_form"
    status = 403


@dataclass(slots=True)
class Visit:
    """One request for a page, and what answers it. `caller` is None on the few pages that need no session."""

    web: Services
    static: StaticFiles
    caller: Caller | None
    secret: str | None
    language: languages.Language
    nonce: str = field(default_factory=lambda: secrets.token_urlsafe(16))

    @property
    def who(self) -> Caller:
        """The visitor, on pages that need a session."""
        if self.caller is None:
            raise Unauthorized()
        return self.caller

    @property
    def session_id(self) -> str:
        """The id of this session among those that the master lists."""
        return self.who.id

    @property
    def csrf(self) -> str:
        """What a form of this session carries to show that it is one of ours."""
        return csrf_token(self.secret) if self.secret is not None else ""

    @property
    def theme(self) -> str:
        """`auto`, `light` or `dark`."""
        chosen = flask.request.cookies.get(THEME_COOKIE, "")
        return chosen if chosen in THEMES else THEMES[0]

    @property
    def partial(self) -> bool:
        """Whether a script asks for a part of a page."""
        return flask.request.headers.get("HX-Request") == "true"

    def render(self, template: str, *, status: int = 200, **context: Any) -> flask.Response:
        """The page or part as HTML, in the visitor's language."""
        text = flask.render_template(template, visit=self, static=self.static.url, **context)
        response = flask.Response(text, status=status, content_type="text/html; charset=utf-8")
        response.headers["Content-Security-Policy"] = _POLICY.format(nonce=self.nonce)
        response.headers["Vary"] = "Cookie, Accept-Language, HX-Request"
        if not self.partial and _NOTICE_COOKIE in flask.request.cookies:
            response.delete_cookie(_NOTICE_COOKIE, path="/")
        return response

    def redirect(self, path: str, *, notice: str | None = None) -> flask.Response:
        """On to another page of ours, which shows `notice` once."""
        if self.partial:
            response = flask.Response(status=204, headers={"HX-Redirect": iri_to_uri(path)})
        else:
            response = flask.Response(status=303, headers={"Location": path})
        if notice:
            shown = quote(notice.encode()[:_NOTICE_MOST].decode(errors="ignore"))
            response.set_cookie(_NOTICE_COOKIE, shown, max_age=60, path="/", httponly=True, samesite="Lax")
        return response

    def notify(self, response: flask.Response, notice: str) -> flask.Response:
        """Have the page that asked by script show `notice`."""
        response.headers["HX-Trigger"] = json.dumps({"muster:notice": {"text": plain(notice)}})
        return response

    @property
    def notice(self) -> str:
        """What the page before wants said here."""
        return unquote(flask.request.cookies.get(_NOTICE_COOKIE, ""))


class PageDoor:
    """Makes the routes of the pages from views that take a `Visit` and the parameters of their address."""

    def __init__(self, web: Services, static: StaticFiles) -> None:
        self.web = web
        self.static = static
        self.blueprint = flask.Blueprint("pages", __name__)

    def get(self, rule: str, *, public: bool = False) -> Callable[[View], View]:
        """Declare the decorated view as the page at `rule`."""
        return self._route(rule, "GET", public=public)

    def post(self, rule: str, *, public: bool = False) -> Callable[[View], View]:
        """Declare the decorated view as what a form of ours may post to `rule`."""
        return self._route(rule, "POST", public=public)

    def _route(self, rule: str, method: str, *, public: bool) -> Callable[[View], View]:
        def declare(view: View) -> View:
            def answer(**path: str) -> flask.Response:
                flask.request.environ[ROUTE] = rule
                if public:
                    flask.request.max_content_length = _STRANGERS_FORM_MOST
                visit = self.visit(public=public)
                if visit is None:
                    return self._way_in()
                try:
                    if method == "POST":
                        check_origin(flask.request, self.web.settings.public_url)
                        if not public:
                            check_csrf(flask.request, visit.secret)
                    return view(visit, **path)
                except Unauthorized:
                    return self._way_in()
                except MusterError as error:
                    return self.refuse(visit, error)

            name = f"{method.lower()}_{view.__module__.rpartition('.')[2]}_{view.__name__}"
            self.blueprint.add_url_rule(rule, name, answer, methods=[method], provide_automatic_options=False)
            return view

        return declare

    def visit(self, *, public: bool) -> Visit | None:
        """The visit of this request; None when it needs a session and has none. `public`: then a stranger's."""
        request = flask.request
        secret = request.cookies.get(session_cookie(request))
        caller = None
        try:
            if secret:
                caller = self.web.sessions.caller(secret)
                require_admin(caller)
        except (Unauthorized, Forbidden):
            caller = None
        except MusterError:
            if not public:
                raise
        if caller is None and not public:
            return None
        return Visit(self.web, self.static, caller, secret if caller else None, languages.of_request(request))

    def _way_in(self) -> flask.Response:
        """To the page that tells how to log in; back to where one wanted to go, if that was a page."""
        request = flask.request
        if request.headers.get("HX-Request"):
            wanted = _page_of(request)
        else:
            wanted = request.full_path.rstrip("?") if request.method in SAFE else ""
        address = "/login" + (f"?{urlencode({'next': wanted})}" if wanted not in ("", "/") else "")
        if request.headers.get("HX-Request") == "true":
            return flask.Response(status=401, headers={"HX-Redirect": address})
        return flask.Response(status=303, headers={"Location": address})

    def refuse(self, visit: Visit, error: MusterError, *, status: int | None = None) -> flask.Response:
        """An error as a page, or as a notice where a script asked. `status`: if another than the error's own."""
        status = error.status if status is None else status
        if visit.partial:
            response = flask.Response(status=status, headers={"HX-Reswap": "none"})
            return visit.notify(response, error.message)
        response = visit.render("error.html", status=status, error=error, headline=headline(status))
        if status in problems.RETRY_AFTER_S:
            response.headers["Retry-After"] = str(problems.RETRY_AFTER_S[status])
        if status in _AWAY and flask.request.method in SAFE:
            response.headers["Refresh"] = str(_LOOK_AGAIN_S)
        return response

    def install(self, app: flask.Flask) -> None:
        """Answer browsers' errors outside the API as pages: what is not there, and what went wrong in a view."""

        def from_http(error: HTTPException) -> flask.typing.ResponseReturnValue:
            if not wants_page(flask.request) or (error.code or 500) < 400:
                return problems.from_http(error)
            if isinstance(error, MethodNotAllowed):
                return self._method_refused(error)
            known = NotFound(_("There is no page at this address.")) if error.code == 404 else None
            return self._as_page(known or MusterError(error.description or error.name), error.code or 500)

        def from_fault(error: Exception) -> flask.typing.ResponseReturnValue:
            if isinstance(error, HTTPException):
                return from_http(error)
            answer = problems.from_fault(error)
            if not wants_page(flask.request):
                return answer
            return self._as_page(MusterError(answer.get_json(force=True)["detail"]), 500)

        def from_muster(error: MusterError) -> flask.typing.ResponseReturnValue:
            return self._as_page(error, error.status) if wants_page(flask.request) else problems.answer(error)

        app.register_error_handler(HTTPException, from_http)
        app.register_error_handler(MusterError, from_muster)
        app.register_error_handler(Exception, from_fault)

    def _method_refused(self, error: MethodNotAllowed) -> flask.Response:
        allowed = problems.allowed(error)
        method = flask.request.method
        text = _("%(method)s is not possible here; use one of: %(allowed)s", method=method[:20], allowed=allowed)
        response = self._as_page(problems.MethodRefused(text), 405)
        response.headers["Allow"] = allowed
        return response

    def _as_page(self, error: MusterError, status: int) -> flask.Response:
        visit = None
        try:
            if status not in _AWAY:  # asking who visits would be to wait for the master once more
                visit = self.visit(public=True)
        except MusterError as trouble:
            logger.debug("an error page without its visitor: %s", trouble)
        stranger = Visit(self.web, self.static, None, None, languages.of_request(flask.request))
        return self.refuse(visit or stranger, error, status=status)


def _page_of(request: flask.Request) -> str:
    """The path of the page from which a script asks; empty when it does not say."""
    path = request.headers.get("HX-Current-URL", "").partition("#")[0].partition("://")[2].partition("/")[2]
    return f"/{path}" if path else ""


def headline(status: int) -> str:
    """What an error of this status is called, for a person."""
    if status == 404:
        return _("Not found")
    if status in _AWAY:
        return _("The master cannot be reached")
    if status in (401, 403):
        return _("Not allowed")
    if status == 409:
        return _("This is not possible now")
    if status == 429:
        return _("Too many tries")
    return _("This cannot be done") if status < 500 else _("Something went wrong")


def wants_page(request: flask.Request) -> bool:
    """Whether an error of this request should be a page: a browser looks at an address outside the API."""
    path = request.path
    outside = path == DOCS or not path.startswith(("/api/", "/static/", "/healthz", "/readyz", "/metrics"))
    return outside and request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html"


def set_session(response: flask.Response, visit: Visit, secret: str) -> None:
    """Give the browser its session; where people come by HTTPS, it is never sent otherwise."""
    secure = base_url(visit.web.settings, flask.request).startswith("https:")
    name = session_cookie(flask.request)
    response.set_cookie(name, secret, max_age=_YEAR_S, path="/", httponly=True, samesite="Lax", secure=secure)


def csrf_token(secret: str) -> str:
    """What forms of the session with this secret carry."""
    return hmac.new(secret.encode(), b"form", hashlib.sha256).hexdigest()[:40]


def check_origin(request: flask.Request, public_url: str = "") -> None:
    """Raise `Forbidden` for a request that a page of another site caused. `public_url`: ours behind a proxy, if any."""
    origin = request.headers.get("Origin")
    own = origin is None or origin.lower().partition("://")[2] == request.host.lower()
    own = own or bool(public_url and origin and origin.lower() == public_url.rstrip("/").lower())
    if not own or is_cross_site(request):
        logger.warning(
            "a request of another site was refused",
            extra=log.fields(origin=origin, path=problems.told_path(request.path)),
        )
        raise Forbidden(_("This request came from another site and was refused."))


def check_csrf(request: flask.Request, secret: str | None) -> None:
    """Raise `StaleForm` unless the request carries the token of this session's forms."""
    given = request.headers.get("X-Csrf-Token") or request.form.get("csrf", "")
    if secret is None or not hmac.compare_digest(given.encode(), csrf_token(secret).encode()):
        raise StaleForm(_("This form is older than your session: load the page again and repeat what you did."))
