"""Untrusted text made plain: what a terminal or a browser would obey becomes a visible mark. Pure.

Control characters and the marks that change the direction of writing can make a name look like another one, or a log
line like markup of the page. Escaping as HTML is the templates' work; this comes before it.
"""

from __future__ import annotations

import re

_MARKS = {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)} | {0x7F: "␡"}
_UNSEEN = re.compile(r"[\x80-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]")


def plain(text: str) -> str:
    """`text` with control characters, invisible ones and direction marks shown: `\\x1b` as `␛`, U+202E as `⟦202E⟧`."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub(lambda match: f"⟦{ord(match[0]):04X}⟧", text.translate(_MARKS))
