"""Reading posted forms: the framework's parser, with bounds where it has none.

A form in one line (`application/x-www-form-urlencoded`) is decoded at a stroke, in which nothing else is served; so it
is small, and has no more fields than one in parts. Whatever is large, such as a script, travels in parts.
"""

from __future__ import annotations

from io import BytesIO
from typing import IO, Any

import flask
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

URLENCODED_MOST = 256 * 1024
"""Bytes of a form in one line."""


class BoundedForms(FormDataParser):
    """Refuses forms in one line that would take long to decode."""

    def parse(
        self, stream: IO[bytes], mimetype: str, content_length: int | None, options: dict[str, str] | None = None
    ) -> Any:
        """See the base class. Raises `RequestEntityTooLarge`."""
        if mimetype != "application/x-www-form-urlencoded":
            return super().parse(stream, mimetype, content_length, options)
        raw = stream.read(URLENCODED_MOST + 1)
        fields_most = self.max_form_parts
        if len(raw) > URLENCODED_MOST or (fields_most is not None and raw.count(b"&") >= fields_most):
            raise RequestEntityTooLarge()
        return super().parse(BytesIO(raw), mimetype, content_length, options)


class Request(flask.Request):
    """A request whose form is read within bounds."""

    form_data_parser_class = BoundedForms
