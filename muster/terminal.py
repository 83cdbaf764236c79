"""Text from scripts, hosts and people, made safe for a terminal. Pure functions, standard library only.

A terminal obeys what is written to it: control sequences can move the cursor over earlier lines, set the window's
title, answer questions as if typed. Only colours (SGR, `ESC [ … m`) are let through; the rest is shown, not obeyed.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

RESET: Final = "\x1b[0m"
# One for each of those whose lines are shown side by side (SGR numbers); red is left to what went wrong.
COLOURS: Final = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")

# Characters that turn the direction of text, or take no room: a name could pretend to be another.
_HIDDEN: Final = "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
_COLOUR: Final = "\x1b\\[[0-9;:]{0,60}m"
_UNSAFE: Final = re.compile(f"({_COLOUR})|[\x00-\x08\x0a-\x1f\x7f-\x9f{_HIDDEN}\ud800-\udfff\ufff9-\ufffb]")
# In JSON the encoder has taken care of what is below a space; a surrogate cannot be written anywhere.
_UNSAFE_JSON: Final = re.compile(f"[\x7f-\x9f{_HIDDEN}\ud800-\udfff\ufff9-\ufffb]")
_UNWRITABLE: Final = re.compile("[\ud800-\udfff]")
_UNSAFE_LINE: Final = re.compile(f"[\x00-\x1f\x7f-\x9f{_HIDDEN}\ud800-\udfff\ufff9-\ufffb]")


def neutralise(line: str, *, colours: bool = True) -> str:
    """A line of output as it may be written to a terminal: tabs and, if wanted, colours stay; a colour is ended.

    Everything else that a terminal would obey is replaced by a visible form such as `^[` or `<U+202E>`.
    """
    if line.isascii() and line.isprintable():
        return line
    coloured = False

    def shown(found: re.Match[str]) -> str:
        nonlocal coloured
        if found.group(1) is None:
            return visible(found.group())
        coloured = coloured or colours
        return found.group() if colours else ""

    safe = _UNSAFE.sub(shown, line)
    return safe + RESET if coloured else safe


def plain(text: object) -> str:
    """A name, reason or other short text on one line, without any control character."""
    shown = str(text)
    return shown if shown.isascii() and shown.isprintable() else _UNSAFE_LINE.sub(lambda f: visible(f.group()), shown)


def visible(char: str) -> str:
    """A character that must not be obeyed, as something that can be seen."""
    code = ord(char)
    if code < 0x20:
        return "^" + chr(code + 0x40)
    if code == 0x7F:
        return "^?"
    return f"<U+{code:04X}>"


def json_safe(text: str, *, terminal: bool) -> str:
    """JSON that says the same, with what cannot be written, and on a terminal what would be obeyed, as `\\u009b`."""
    unsafe = _UNSAFE_JSON if terminal else _UNWRITABLE
    return unsafe.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def fold(line: bytes) -> bytes:
    """What remains to be seen of a line in which carriage returns took the cursor back to its beginning.

    A progress bar's last state; text that is overwritten only in part is dropped with the rest.
    """
    if b"\r" not in line:
        return line
    parts = [part for part in line.split(b"\r") if part]
    return parts[-1] if parts else b""


def cells(text: str) -> int:
    """How many columns of a terminal a text without control characters takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def pad(text: str, width: int) -> str:
    """The text with spaces behind it, up to `width` columns."""
    return text + " " * (width - cells(text))


def cut(text: str, width: int) -> str:
    """The text if it takes at most `width` columns, else as much of it as fits in front of an ellipsis."""
    if cells(text) <= width:
        return text
    left = width - 1
    for number, char in enumerate(text):
        left -= _cells(char)
        if left < 0:
            return text[:number] + "…"
    return text
