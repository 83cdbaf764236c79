"""The command line's texts in the person's language: English as the source has it, or Simplified Chinese.

MUSTER_LANGUAGE, else LC_ALL, LC_MESSAGES or LANG says which, once for a process; all that is not Chinese is English,
which loads nothing. The catalogue lies in `translations/`. Standard library only.
"""

from __future__ import annotations

import gettext
import inspect
import os
from functools import cache
from typing import Final

ENGLISH: Final = "en"
CHINESE: Final = "zh_Hans_CN"
_VARIABLES: Final = ("MUSTER_LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
_TRANSLATIONS: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "translations")


@cache
def language() -> str:
    """`ENGLISH` or `CHINESE`: the first variable that is set decides."""
    said = next((value for name in _VARIABLES if (value := os.environ.get(name))), "")
    return CHINESE if said.lower().startswith("zh") else ENGLISH


@cache
def _catalogue() -> gettext.NullTranslations:
    if language() == ENGLISH:
        return gettext.NullTranslations()
    # Without its catalogue a damaged installation still speaks, in English.
    return gettext.translation("messages", _TRANSLATIONS, [language()], fallback=True)


def _(text: str, /, **values: object) -> str:
    """The text in the person's language, `%(name)s` filled with `values`; without any it is taken as it is."""
    said = _catalogue().gettext(text) if text else ""
    return said % values if values else said


def ngettext(one: str, many: str, num: int, /, **values: object) -> str:
    """The form for `num` of a text, filled with `values` and with `num` itself."""
    return _catalogue().ngettext(one, many, num) % {"num": num, **values}


class Phrase:
    """A sentence and its values, told twice: `english` to log files, `str()` in the person's language to a screen.

    A value may be a phrase itself.
    """

    __slots__ = ("_text", "_values")

    def __init__(self, text: str, /, **values: object) -> None:
        self._text = text
        self._values = values

    def __str__(self) -> str:
        return _(self._text, **self._values)

    @property
    def english(self) -> str:
        """As the source has it."""
        values = {name: value.english if isinstance(value, Phrase) else value for name, value in self._values.items()}
        return self._text % values if values else self._text


def paragraphs(docstring: str) -> list[tuple[str, bool]]:
    """A docstring's paragraphs as texts of the catalogue, each with whether its lines stay as they are.

    That is what `\\b` before them says to click. How the lines of the others are broken in the source does not matter.
    """
    found = []
    for block in inspect.cleandoc(docstring).split("\n\n"):
        kept = block.startswith("\b\n")
        found.append((block[2:] if kept else " ".join(block.split()), kept))
    return found


def docstring(text: str) -> str:
    """A command's docstring, paragraph by paragraph in the person's language."""
    return "\n\n".join(f"\b\n{_(block)}" if kept else _(block) for block, kept in paragraphs(text))
