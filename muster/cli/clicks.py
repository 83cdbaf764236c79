"""Click's own words in another language than English, and help pages for a script that needs no spaces between words.

Click asks the gettext of its process, which knows neither our catalogue nor MUSTER_LANGUAGE; so its sentences are
recognised by their patterns and said anew. One that is not known stays English. Loaded only where it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

import click

from muster.terminal import cells, pad
from muster.words import _

_HOLE: Final = re.compile(r"\{(\w+)(?:!r)?\}")
# A space, or what must not be torn apart: a word, a sign of a script without spaces, each with the marks around it.
_OPENING, _CLOSING = "（「“《", "、。，；：）」”》！？"
_PIECE: Final = re.compile(rf"\s+|[{_OPENING}]*(?:[!-~…·–]+|\S)[{_CLOSING}]*")
_DEFAULT: Final = re.compile(r"\[default: ([^\]]*)\]$")


@cache
def _sentences() -> list[tuple[re.Pattern[str], str]]:
    """What click may say to somebody who uses these commands: its patterns, and the translations to be filled."""
    known = [
        ("Show this message and exit.", _("Show this message and exit.")),
        ("Missing command.", _("Missing command.")),
        ("Invalid value for {param_hint}: {message}", _("Invalid value for {param_hint}: {message}")),
        ("Invalid value: {message}", _("Invalid value: {message}")),
        ("Missing argument {name}.", _("Missing argument {name}.")),
        ("Missing option {name}.", _("Missing option {name}.")),
        ("No such option {name!r}. {hint}", _("No such option {name!r}. {hint}")),
        ("No such option {name!r}.", _("No such option {name!r}.")),
        ("No such command {name!r}. {hint}", _("No such command {name!r}. {hint}")),
        ("No such command {name!r}.", _("No such command {name!r}.")),
        ("Did you mean {possibility}?", _("Did you mean {possibility}?")),
        ("(Did you mean one of: {possibilities}?)", _("(Did you mean one of: {possibilities}?)")),
        ("Got unexpected extra argument ({args})", _("Got unexpected extra argument ({args})")),
        ("Got unexpected extra arguments ({args})", _("Got unexpected extra arguments ({args})")),
        ("Option {name!r} requires an argument.", _("Option {name!r} requires an argument.")),
        ("Option {name!r} does not take a value.", _("Option {name!r} does not take a value.")),
        ("{value!r} is not a valid integer.", _("{value!r} is not a valid integer.")),
        ("{value!r} is not a valid integer range.", _("{value!r} is not a valid integer range.")),
        ("{value} is not in the range {range}.", _("{value} is not in the range {range}.")),
        ("{value!r} is not one of {choices}.", _("{value!r} is not one of {choices}.")),
    ]
    return [(_pattern(english), _HOLE.sub(r"{\1}", said)) for english, said in known]


def _pattern(english: str) -> re.Pattern[str]:
    parts = _HOLE.split(english)
    return re.compile("".join(f"(?P<{part}>.+)" if n % 2 else re.escape(part) for n, part in enumerate(parts)), re.S)


def translated(sentence: str) -> str:
    """One of click's sentences in the person's language, with what it quotes; any other as it is."""
    for pattern, said in _sentences():
        found = pattern.fullmatch(sentence)
        if found:
            # A quoted part may be such a sentence itself: the fault within "Invalid value for …".
            return said.format_map({name: translated(part) for name, part in found.groupdict().items()})
    return sentence


class Formatter(click.HelpFormatter):
    """Writes help pages whose columns and lines are measured in a terminal's cells."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the line that shows how to call it."""
        super().write_usage(prog, args, prefix or _("Usage: "))

    def write_heading(self, heading: str) -> None:
        """Write the heading of a section."""
        known = {"Options": _("Options"), "Commands": _("Commands")}
        self.write(" " * self.current_indent + _("%(heading)s:", heading=known.get(heading, heading)) + "\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs."""
        indent = " " * self.current_indent
        blocks = [wrap(block, self.width - self.current_indent) for block in text.split("\n\n")]
        self.write("\n\n".join("\n".join(indent + line for line in lines) for lines in blocks) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write terms and what they mean, side by side."""
        listed = list(rows)
        widest = min(max((cells(term) for term, meaning in listed), default=0), col_max)
        indent, column = " " * self.current_indent, widest + col_spacing
        for term, meaning in listed:
            said = _DEFAULT.sub(lambda found: _("[default: %(value)s]", value=found[1]), translated(meaning))
            lines = wrap(said, max(self.width - column - 2, 10)) or [""]
            if cells(term) > widest:
                self.write(f"{indent}{term}\n")
                term = ""
            for number, line in enumerate(lines):
                self.write(f"{indent}{pad(term if number == 0 else '', column)}{line}".rstrip() + "\n")


def wrap(text: str, width: int) -> list[str]:
    """A paragraph's lines of at most `width` cells; one that begins with `\\b` keeps its own lines."""
    if text.startswith("\b\n"):
        return text[2:].split("\n")
    lines, line = [], ""
    for piece in _PIECE.findall(" ".join(text.split())):
        if line and cells(line + piece) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece if line else piece.lstrip()
    return [*lines, line] if line else lines
