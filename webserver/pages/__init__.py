"""The pages: one module a noun, each adding its routes to the door."""

from __future__ import annotations

import flask

from webserver import languages, said
from webserver.form_reading import Request
from webserver.pages import access, agent, agents, api_docs, filters, home, submit, task, tasks, tokens
from webserver.pages.door import PageDoor
from webserver.services import Services
from webserver.static_files import StaticFiles


def install(app: flask.Flask, web: Services) -> None:
    """Serve the pages and what they load."""
    # First of all: with the languages the environment is made, and from then on these have no effect.
    app.jinja_options = {**app.jinja_options, "finalize": filters.finalize}
    languages.install(app)
    filters.install(app)
    app.jinja_env.globals.update(said=said, share_words=tasks.share_words)
    app.request_class = Request
    static = StaticFiles()
    door = PageDoor(web, static)
    for noun in (access, agent, agents, api_docs, home, submit, task, tasks, tokens):
        noun.add(door)
    app.register_blueprint(static.blueprint())
    app.register_blueprint(door.blueprint)
    door.install(app)
