"""Texts that would like to be markup, or to be obeyed by a terminal: one table, from which all tests of them are made.

`markup(place)` can be seen throughout; `payload(place)` has control characters and direction marks besides. Each names
its place, so that a test can tell what is shown where, and an element that came of it.
"""

from __future__ import annotations

import re
from typing import Final

ELEMENT: Final = "x-hostile"
ELSEWHERE: Final = "hostile.invalid"
TAGS: Final = {
    "element": f"<{ELEMENT}>",
    "closing": "\"'></a></script></textarea>",
    "image": f"<img src=//{ELSEWHERE}/ onerror=hit=1>",
    "script": "<script>hit=1</script>",
    "template": "{{7*7}}%(a)s${1}",
    "entity": "&lt;b&gt;",
}
ESCAPES: Final = {
    "screen": "\x1b[2J",
    "title": "\x1b]0;t\x07",
    "link": f"\x1b]8;;http://{ELSEWHERE}\x1b\\",
    "C1": "\x9b31m\x85",
    "override": "\u202e",
    "isolate": "\u2066",
    "invisible": "\u200b\ufeff",
    "line": "\u2028",
    "bell": "\x07\x08\x7f",
}
# What a script may write besides: not even text.
BYTES: Final = {
    "NUL": b"a\x00b",
    "no UTF-8": b"\xff\xfe\xc3\x28\xed\xa0\x80",
    "carriage": b"over\rwritten",
    "colour": b"\x1b[31mred\x1b[0m \x1b[38;5;999m \x1b[1;2;3",
    "application": b"\x1bP1$r\x1b\\\x1b_x\x1b\\\x1b[6n\x1b[5i\x1bc",
}
LONG_LINE: Final = 1024 * 1024

# Neither may be on a page or a terminal as it is: what is left of them must be visible marks.
CONTROLS: Final = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_RAW: Final = re.compile(f"[{CONTROLS}\r]")
SHORT: Final = f"<{ELEMENT}><b onx=1>"
"""For places that hold little."""


def markup(place: str) -> str:
    """Every tag of the table, in at most 200 characters even with the escapes."""
    return f"{place}:" + "".join(TAGS.values())


def payload(place: str) -> str:
    """The same, and every escape of the table."""
    return f"{place}:" + "".join(ESCAPES.values()) + "".join(TAGS.values())


def output() -> bytes:
    """What a hostile script writes: each of the tables on a line of its own, and one very long line."""
    lines = [text.encode() for text in (*TAGS.values(), *ESCAPES.values(), payload("output"))]
    return b"\n".join([*lines, *BYTES.values(), b"x" * LONG_LINE, b"the last line", b""])


def raw_in_terminal(written: bytes) -> list[str]:
    """What a terminal would have obeyed of this output of ours, colours aside."""
    text = _COLOUR.sub("", written.decode("utf-8", "backslashreplace").replace("\r\n", "\n"))
    around = [text[max(0, found.start() - 30) : found.end() + 30] for found in _RAW.finditer(text)]
    return [repr(each) for each in around]
