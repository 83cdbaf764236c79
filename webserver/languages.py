"""Languages of the pages: which there are, which one a request gets, and the words that scripts need.

Promises that English needs no catalogue (it is the source), that any kind of Chinese gets the Chinese there is, and
that nothing but a known language ever comes out of a cookie or a header.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import flask
from flask_babel import Babel

COOKIE = "muster_language"
FOLDER = Path(__file__).with_name("translations")


@dataclass(frozen=True, slots=True)
class Language:
    """`code` as gettext says it, `tag` as HTML says it, `name` as its readers say it."""

    code: str
    tag: str
    name: str


ENGLISH = Language("en", "en", "English")
CHINESE = Language("zh_Hans_CN", "zh-Hans-CN", "简体中文")
LANGUAGES = (ENGLISH, CHINESE)


def by_tag(tag: str) -> Language | None:
    """The language with this tag."""
    return next((language for language in LANGUAGES if language.tag == tag), None)


def of_request(request: flask.Request) -> Language:
    """What this visitor chose, else what their browser prefers, else English."""
    chosen = by_tag(request.cookies.get(COOKIE, ""))
    if chosen is not None:
        return chosen
    for tag, quality in request.accept_languages:
        first = tag.lower().replace("_", "-").partition("-")[0]
        if quality > 0 and first in ("en", "zh"):
            return ENGLISH if first == "en" else CHINESE
    return ENGLISH


def install(app: flask.Flask) -> None:
    """Have every request of `app` speak its visitor's language; times are told in UTC and made local by the browser."""
    Babel(  # type: ignore[no-untyped-call]
        app,
        default_locale=ENGLISH.code,
        default_timezone="UTC",
        default_translation_directories=str(FOLDER),
        locale_selector=lambda: of_request(flask.request).code,
    )


@lru_cache(maxsize=len(LANGUAGES))
def script_words(code: str) -> str:
    """The catalogue of what scripts say, as JSON that may stand inside HTML; empty for English."""
    file = FOLDER / code / "script.json"
    if not file.exists():
        return "{}"
    return json.dumps(json.loads(file.read_text("utf-8")), ensure_ascii=False).replace("<", "\\u003c")
