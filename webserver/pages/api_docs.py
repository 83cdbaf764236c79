"""The page about the REST API: the OpenAPI document to read, with an example of every call to copy."""

from __future__ import annotations

from functools import lru_cache

import flask

from webserver import api, examples, openapi, reference
from webserver.pages.door import DOCS, PageDoor, Visit
from webserver.security import base_url


def add(door: PageDoor) -> None:
    """Add the route."""
    told = lru_cache(maxsize=1)(lambda: reference.read(openapi.document(api.NOUNS)))

    def show(visit: Visit) -> flask.Response:
        """All calls, from the top."""
        return visit.render(
            "api_docs.html",
            reference=told(),
            variables=examples.VARIABLES,
            base=base_url(visit.web.settings, flask.request),
        )

    door.get(DOCS)(show)
