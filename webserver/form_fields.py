"""How the fields of a form are written and read: durations, numbers, sizes, shares, words as in a shell.

Promises that what `SHOWN` writes `FIELDS` reads as the same value, and that what cannot be read raises `Wrong`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from flask_babel import gettext as _

from common.model import OnStop
from common.requests import LONGEST_S, NAME_MOST, PATH_MOST, PRIORITY_MOST, TEXT_MOST

COUNT_MOST = 1_000_000
_WORDS_MOST = 2 * TEXT_MOST  # one word of full length may be quoted; splitting much more holds up everybody for seconds
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?|\.\d{1,9})\s*(ms|s|m|h|d)?", re.ASCII)
_UNIT_S = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)}
_SIZE = re.compile(r"(\d{1,13}(?:\.\d{1,3})?)\s*(?:([kmgt])(?:i?b)?|b)?", re.ASCII | re.IGNORECASE)
_UNIT_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE_LEAST, _SIZE_MOST = 1024, 1 << 40
_QUEUE_NAME = re.compile(r"(?!-)[A-Za-z0-9+/;.$_()-]{1,200}\Z")


class Wrong(Exception):
    """A field cannot be read; the text says how it should be, in the visitor's language."""


def seconds(text: str) -> float:
    """`30`, `30s`, `5m`, `2h`, `1.5d` or `200ms` in seconds, as the command line takes it. Raises `Wrong`."""
    found = _DURATION.fullmatch(text.strip())
    value = float(Decimal(found[1]) * _UNIT_S[found[2] or "s"]) if found else -1.0
    if not 0 <= value <= LONGEST_S:
        raise Wrong(_("Write a time such as 30, 30s, 5m or 2h."))
    return value


def span(value: float) -> str:
    """Seconds as one writes them: the largest unit that needs no fraction; `seconds` gives the same back."""
    for unit, length_s, least in (("d", 86400, 2), ("h", 3600, 1), ("m", 60, 1)):
        if value >= least * length_s and value % length_s == 0:
            return f"{value / length_s:.0f}{unit}"
    return f"{decimal(value)}s" if value else "0"


def decimal(value: float) -> str:
    """A number without exponent or needless zeros."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def lines(text: str) -> str:
    """Text with the line ends that were there before a browser sent it."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def words(text: str) -> list[str]:
    """Words as a shell would read them. Raises `Wrong`."""
    if len(text) > _WORDS_MOST:
        raise Wrong(_("This is longer than the %(most)s bytes that can be given to a process.", most=TEXT_MOST))
    try:
        found = shlex.split(text)
    except ValueError:
        raise Wrong(_("A quotation mark is not closed, or a backslash stands at the end.")) from None
    return [short(word) for word in found]


def short(text: str, *, most: int = TEXT_MOST) -> str:
    """The text if a process can be given it. Raises `Wrong`."""
    if "\0" in text:
        raise Wrong(_("A NUL character cannot be given to a process."))
    if len(text.encode("utf-8", "replace")) > most:
        raise Wrong(_("This is longer than the %(most)s bytes that can be given to a process.", most=most))
    return text


def number(text: str, *, least: int, most: int, default: int | None = None) -> int:
    """A whole number; `default`: what an empty field stands for. Raises `Wrong`."""
    bare = text.strip()
    if not bare and default is not None:
        return default
    if not re.fullmatch(r"[0-9]{1,12}", bare) or not least <= int(bare) <= most:
        raise Wrong(_("Write a whole number from %(least)s to %(most)s.", least=least, most=most))
    return int(bare)


def size(text: str) -> int:
    """`65536`, `64k`, `64 KiB`, `16M` or `1.5G` in bytes; units are binary. Raises `Wrong`."""
    found = _SIZE.fullmatch(text.strip())
    value = int(Decimal(found[1]) * _UNIT_BYTES[(found[2] or "").lower()]) if found else 0
    if not _SIZE_LEAST <= value <= _SIZE_MOST:
        raise Wrong(_("Write a size from 1k to 1T, such as 65536, 64k or 16M."))
    return value


def size_shown(value: int) -> str:
    """Bytes as one writes them: the largest unit that needs no fraction; `size` gives the same back."""
    for unit in ("T", "G", "M", "k"):
        if value % _UNIT_BYTES[unit.lower()] == 0:
            return f"{value // _UNIT_BYTES[unit.lower()]}{unit}"
    return str(value)


def _share(text: str) -> float | None:
    bare = text.strip().removesuffix("%").strip()
    if not bare:
        return None
    if not re.fullmatch(r"\d{1,3}(\.\d{1,9})?|\.\d{1,9}", bare, re.ASCII) or Decimal(bare) > 100:
        raise Wrong(_("Write a percentage from 0 to 100."))
    return float(Decimal(bare) / 100)


def _name(text: str) -> str | None:
    if len(text) > NAME_MOST:
        raise Wrong(_("A name has at most %(most)s characters.", most=NAME_MOST))
    return short(text) if text.strip() else None


def _folder(text: str) -> str | None:
    if not text.strip():
        return None
    if not text.startswith("/"):
        raise Wrong(_("Write the whole path, from / on."))
    return short(text, most=PATH_MOST)


def _queue(text: str) -> str:
    bare = text.strip() or "default"
    if not _QUEUE_NAME.match(bare):
        raise Wrong(_("A queue's name has 1 to 200 letters, digits or any of + / ; . $ _ ( ) -, and no - first."))
    return bare


def _time_or(default: float) -> Callable[[str], float]:
    return lambda text: seconds(text) if text.strip() else default


def _percent(share: float) -> str:
    return format(Decimal(repr(share)) * 100, "f").rstrip("0").rstrip(".") or "0"


FIELDS: dict[str, Callable[[str], Any]] = {
    "args": words,
    "name": _name,
    "cwd": _folder,
    "timeout": _time_or(3600.0),
    "parallel": lambda text: number(text, least=0, most=COUNT_MOST, default=0),
    "fail_count": lambda text: number(text, least=1, most=COUNT_MOST, default=-1),
    "fail_rate": _share,
    "on_stop": lambda text: OnStop.KILL if text == "kill" else OnStop.FINISH,
    "queue": _queue,
    "priority": lambda text: number(text, least=0, most=PRIORITY_MOST, default=1024),
    "expires": _time_or(86400.0),
    "lost_after": _time_or(120.0),
    "output_limit": lambda text: size(text) if text.strip() else None,
}
"""How the text of each field becomes its value; those not here are read with others."""

SHOWN: dict[str, Callable[[Any], str]] = {
    "args": shlex.join,
    "name": str,
    "cwd": str,
    "interpreter": shlex.join,
    "timeout": span,
    "parallel": lambda value: str(value or ""),
    "fail_count": lambda value: "" if value == -1 else str(value),
    "fail_rate": _percent,
    "on_stop": str,
    "queue": str,
    "priority": str,
    "expires": span,
    "lost_after": span,
    "output_limit": size_shown,
}
"""How the value of each field is shown."""
