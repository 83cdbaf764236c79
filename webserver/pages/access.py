"""The way in and out: login links, logging out, language and theme."""

from __future__ import annotations

import flask
from flask_babel import gettext as _

from common.errors import InvalidRequest, LoginExpired, LoginRefused, LoginUsed
from webserver import languages
from webserver.pages.door import THEME_COOKIE, THEMES, PageDoor, Visit, set_session
from webserver.security import session_cookie

_YEAR_S = 365 * 86400


def add(door: PageDoor) -> None:
    """Add the routes."""
    door.get("/login", public=True)(way_in)
    door.get("/login/<link>", public=True)(offer)
    door.post("/login/<link>", public=True)(log_in)
    door.post("/logout")(log_out)
    door.post("/preferences", public=True)(prefer)


def way_in(visit: Visit) -> flask.Response:
    """How to log in."""
    if visit.caller is not None:
        return visit.redirect(local_path(flask.request.args.get("next")))
    return visit.render("login.html", next_path=local_path(flask.request.args.get("next")))


def offer(visit: Visit, link: str) -> flask.Response:
    """A button that takes the login link: whoever only looks at an address (a chat's preview) must not use it up."""
    return visit.render("login_link.html", link=link, next_path=local_path(flask.request.args.get("next")))


def log_in(visit: Visit, link: str) -> flask.Response:
    """Take the login link."""
    request = flask.request
    address = request.remote_addr or ""
    about = f"{_browser(request)}, {address}"
    wanted = local_path(request.form.get("next"))  # first: a form that is refused must not use up the link
    try:
        answer = visit.web.master.act("log_in", link, address, about)
    except LoginRefused as error:
        return visit.render("login.html", status=error.status, fault=_refusal(error), next_path="/")
    response = visit.redirect(wanted)
    if visit.secret is not None:
        visit.web.sessions.log_out(visit.secret)  # the one that this browser had before
    set_session(response, visit, answer["session"])
    return response


def log_out(visit: Visit) -> flask.Response:
    """End this session."""
    if visit.secret is not None:
        visit.web.sessions.log_out(visit.secret)
    response = visit.redirect("/login", notice=_("You are logged out."))
    response.delete_cookie(session_cookie(flask.request), path="/")
    return response


def prefer(visit: Visit) -> flask.Response:
    """Choose a language or a theme; kept in a cookie of this browser."""
    request = flask.request
    response = visit.redirect(local_path(request.form.get("next")))
    language, theme = request.form.get("language"), request.form.get("theme")
    if language is not None:
        if languages.by_tag(language) is None:
            raise InvalidRequest.of("language", _("This language is not known here."))
        response.set_cookie(languages.COOKIE, language, max_age=_YEAR_S, path="/", samesite="Lax")
    if theme is not None:
        if theme not in THEMES:
            raise InvalidRequest.of("theme", _("This theme is not known here."))
        response.set_cookie(THEME_COOKIE, theme, max_age=_YEAR_S, path="/", samesite="Lax")
    return response


def local_path(text: str | None) -> str:
    """`text` if it is a path of this server, else the home page: nobody is sent elsewhere."""
    odd = not text or not text.startswith("/") or text.startswith("//") or not text.isprintable() or "\\" in text
    return "/" if odd else str(text)


def _refusal(error: LoginRefused) -> str:
    """Why a link is no good, and what to do."""
    if isinstance(error, LoginUsed):
        return _("This link was used already. Make a fresh one as told below.")
    if isinstance(error, LoginExpired):
        return _("This link is too old. Make a fresh one as told below.")
    return _("This link is not known here. Make a fresh one as told below.")


def _browser(request: flask.Request) -> str:
    """The browser's name and system, as far as its header tells."""
    said = request.headers.get("User-Agent", "")
    names = ("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari")
    name = next((shown for mark, shown in names if mark in said), said.partition("/")[0][:30] or "unknown")
    systems = ("Windows", "Android", "iPhone", "iPad", "Mac OS X", "Linux")
    system = next((system for system in systems if system in said), "")
    return f"{name} ({system})" if system else name
