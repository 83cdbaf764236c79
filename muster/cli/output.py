"""What commands print: tables for people, JSON for programs, text that no terminal can be steered with.

On a terminal tables are drawn by rich, which is imported only then; elsewhere they are plain aligned columns, one line
a row and nothing cut off, for `grep` and `awk`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from muster.terminal import cells, json_safe, pad, plain
from muster.words import _

if TYPE_CHECKING:
    from muster.records import Run

STATE_COLOURS: Final[Mapping[str, str]] = {
    "succeeded": "green",
    "online": "green",
    "running": "cyan",
    "leased": "cyan",
    "failed": "red",
    "conflict": "red",
    "offline": "red",
    "cancelled": "yellow",
    "skipped": "yellow",
    "expired": "yellow",
    "draining": "yellow",
}
STATE_WORDS: Final[Mapping[str, str]] = {
    "delayed": _("delayed"),
    "ready": _("ready"),
    "leased": _("leased"),
    "waiting": _("waiting"),
    "running": _("running"),
    "succeeded": _("succeeded"),
    "failed": _("failed"),
    "cancelled": _("cancelled"),
    "skipped": _("skipped"),
    "expired": _("expired"),
    "buried": _("buried"),
    "online": _("online"),
    "offline": _("offline"),
    "draining": _("draining"),
    "conflict": _("conflict"),
}
_OUTCOME_WORDS: Final[Mapping[str, str]] = {
    "exit": _("exit"),
    "signal": _("signal"),
    "timeout": _("timeout"),
    "spawn_error": _("spawn_error"),
    "lost": _("lost"),
    "interrupted": _("interrupted"),
    "rebooted": _("rebooted"),
    "output_limit": _("output_limit"),
    "refused": _("refused"),
}
_COLOURS: Final = {STATE_WORDS[state]: colour for state, colour in STATE_COLOURS.items()}
_FIRST_WORD: Final = re.compile(r"[ （]")
_COUNTED: Final = ("running", "leased", "ready", "delayed", "succeeded", "failed", "cancelled", "skipped", "expired")


def print_json(value: Any) -> None:
    """Print a value as indented JSON; on a terminal with everything escaped that a terminal would obey."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo(json_safe(text, terminal=sys.stdout.isatty()))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of text under column names; those that are a state's word get its colour on a terminal."""
    shown = [[plain(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, shown)
        return
    widths = [max(map(cells, column)) for column in zip(columns, *shown, strict=True)]
    for row in [[name.upper() for name in columns], *shown]:
        click.echo("  ".join(map(pad, row, widths)).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name.upper(), overflow="fold", no_wrap=name in (_("task"), _("run"), _("state")))
    for row in rows:
        table.add_row(*(Text(cell, style=_COLOURS.get(_FIRST_WORD.split(cell)[0], "")) for cell in row))
    Console(highlight=False).print(table)


def print_fields(fields: Mapping[str, str | None]) -> None:
    """Print `name  value` lines; a value of None or "" is left out."""
    width = max(map(cells, fields), default=0)
    for name, value in fields.items():
        if value:
            click.echo(f"{pad(name, width)}  {plain(value)}")


def state_word(state: str) -> str:
    """A state in the person's language; one that a newer server has is shown as it is."""
    return STATE_WORDS.get(state, state)


def ending(run: Run) -> str:
    """How a run ended, in a few words; its state before the end."""
    if run.outcome == "exit" and run.exit_code is not None:
        return _("exit %(code)s", code=run.exit_code)
    if run.outcome == "signal" and run.signal:
        return _("signal %(name)s", name=run.signal)
    return _OUTCOME_WORDS.get(run.outcome, run.outcome) if run.outcome else state_word(run.state)


def counts(states: Mapping[str, int]) -> str:
    """`3 running, 1 failed`, in the order in which runs go through their states."""
    known = [state for state in _COUNTED if states.get(state)]
    other = [state for state, number in states.items() if number and state not in _COUNTED]
    told = (_("%(number)s %(state)s", number=states[state], state=plain(state_word(state))) for state in known + other)
    return _(", ").join(told)


def moment(at: datetime | None) -> str:
    """A time as the person's clock shows it; empty for none."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at is not None else ""


def ago(at: datetime | None, now: datetime | None = None) -> str:
    """How long ago, in words; empty for none."""
    if at is None:
        return ""
    passed_s = ((now or datetime.now(UTC)) - at).total_seconds()
    # Just now: also where that clock is ahead of ours.
    return _("%(span)s ago", span=span(passed_s)) if passed_s >= 1 else _("just now")


def span(seconds: float | None) -> str:
    """A length of time for a person, such as `40 ms`, `2.3 s`, `42 s`, `3m 05s`, `2h 10m`; empty for none."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return _("%(ms).0f ms", ms=seconds * 1000)
    if seconds < 10:
        return _("%(s).1f s", s=seconds)
    whole = round(seconds)
    if whole < 60:
        return _("%(s)d s", s=whole)
    if whole < 3600:
        return _("%(m)dm %(s)02ds", m=whole // 60, s=whole % 60)
    if whole < 86400:
        return _("%(h)dh %(m)02dm", h=whole // 3600, m=whole // 60 % 60)
    return _("%(d)dd %(h)dh", d=whole // 86400, h=whole // 3600 % 24)


def size(count: float | None) -> str:
    """A number of bytes for a person, such as `512 B` or `1.4 GiB`; empty for none."""
    if count is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the loop answers for its last unit")


def name_list(names: Sequence[str], *, most: int = 8) -> str:
    """Names divided by commas, the rest counted."""
    shown = ", ".join(plain(name) for name in names[:most])
    return shown if len(names) <= most else _("%(names)s and %(num)s more", names=shown, num=len(names) - most)
