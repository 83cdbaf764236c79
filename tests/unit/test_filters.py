"""How pages say numbers; scripts say them by the same rules (static/js/view.js)."""

from __future__ import annotations

from collections.abc import Iterator

import flask
import pytest

from webserver import languages
from webserver.pages import filters


@pytest.fixture
def english() -> Iterator[None]:
    app = flask.Flask("x")
    languages.install(app)
    with app.test_request_context("/"):
        yield


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, ""), (0, "0 s"), (0.0004, "1 ms"), (0.04, "40 ms"), (0.9991, "999 ms"), (0.9996, "1 s"), (1.44, "1.4 s"),
        (9.94, "9.9 s"), (12.4, "12 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (7620, "2 h 7 min"),
        (86400, "1 d"), (273600, "3 d 4 h"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("english")
def test_durations(seconds: float | None, said: str) -> None:
    assert filters.duration(seconds) == said


@pytest.mark.parametrize(
    ("size", "said"), [(None, ""), (0, "0 B"), (1023, "1,023 B"), (1434, "1.4 KiB"), (16 * 1024**2, "16 MiB")]
)
@pytest.mark.usefixtures("english")
def test_sizes(size: int | None, said: str) -> None:
    assert filters.size(size) == said


@pytest.mark.parametrize("text", ['{{ "failed" | state_word }}', "{{ 7200 | duration }}", '{{ _("failed") }}'])
def test_what_looks_constant_is_said_in_each_visitors_language(text: str) -> None:
    app = flask.Flask("x")
    languages.install(app)
    filters.install(app)
    template = app.jinja_env.from_string(text)
    said = []
    for language in ("en", "zh-CN"):
        with app.test_request_context("/", headers={"Accept-Language": language}):
            said.append(template.render())
    assert said[0].isascii() and not said[1].isascii()
