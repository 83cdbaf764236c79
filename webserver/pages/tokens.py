"""Who may use it: API tokens of programs, browsers that are logged in, and links to log in further ones."""

from __future__ import annotations

from typing import Any

import flask
from flask_babel import gettext as _

from common.errors import Conflict, InvalidRequest
from webserver.pages.door import PageDoor, Visit
from webserver.security import base_url


def add(door: PageDoor) -> None:
    """Add the routes."""
    door.get("/tokens")(show)
    door.post("/tokens")(add_token)
    door.post("/tokens/<token_id>/revoke")(revoke)
    door.post("/login-links")(add_login_link)


def show(visit: Visit, *, status: int = 200, **more: Any) -> flask.Response:
    """The page. `more`: what was just made, or what was wrong with the form."""
    items = visit.web.master.read("list_tokens")["items"]
    own = visit.session_id
    return visit.render(
        "tokens.html",
        status=status,
        tokens=[item for item in items if item["kind"] == "api"],
        sessions=[{**item, "own": item["id"] == own} for item in items if item["kind"] == "session"],
        **more,
    )


def add_token(visit: Visit) -> flask.Response:
    """Make an API token; its secret is on this answer and nowhere else."""
    name = flask.request.form.get("name", "").strip()
    if not name:
        return show(
            visit, status=422, faults={"name": _("Give the token a name, such as the program that will use it.")}
        )
    try:
        made = visit.web.master.act("add_token", name, visit.who.name)
    except (Conflict, InvalidRequest) as error:
        text = error.fields[0].message if error.fields else error.message
        return show(visit, status=error.status, faults={"name": text}, name=name)
    return show(visit, status=201, made=made)


def revoke(visit: Visit, token_id: str) -> flask.Response:
    """Refuse a token, or end a session, from now on."""
    own = token_id == visit.session_id
    visit.web.master.act("revoke_token", token_id, visit.who.name)
    visit.web.tokens.forget_all()
    visit.web.sessions.forget_all()
    return visit.redirect("/login" if own else "/tokens", notice=_("Revoked."))


def add_login_link(visit: Visit) -> flask.Response:
    """Make a link that logs in another browser."""
    made = visit.web.master.act("add_login_link", visit.who.name, visit.who.name)
    link = f"{base_url(visit.web.settings, flask.request)}/login/{made['secret']}"
    if visit.partial:  # the rest of the page stays: a fresh token may be shown on it, and nowhere else
        return visit.render("token_link.html", status=201, link=link)
    return show(visit, status=201, link=link)
