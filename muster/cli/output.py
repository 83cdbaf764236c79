"""What commands print: tables for people, JSON for programs, text that no terminal can be steered with.

On a terminal tables are drawn by rich, which is imported only then; elsewhere they are plain aligned columns, one line
a row and nothing cut off, for `grep` and `awk`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from muster.terminal import json_safe, plain

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
_COUNTED: Final = ("running", "leased", "ready", "delayed", "succeeded", "failed", "cancelled", "skipped", "expired")


def print_json(value: Any) -> None:
    """Print a value as indented JSON; on a terminal with everything escaped that a terminal would obey."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo(json_safe(text, terminal=sys.stdout.isatty()))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of text under column names; cells that are a state's name get its colour on a terminal."""
    cells = [[plain(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, cells)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in [[name.upper() for name in columns], *cells]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name.upper(), overflow="fold", no_wrap=name in ("task", "run", "state"))
    for row in rows:
        table.add_row(*(Text(cell, style=STATE_COLOURS.get(cell.split(" ")[0], "")) for cell in row))
    Console(highlight=False).print(table)


def print_fields(fields: Mapping[str, str | None]) -> None:
    """Print `name  value` lines; a value of None or "" is left out."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        if value:
            click.echo(f"{name.ljust(width)}  {plain(value)}")


def counts(states: Mapping[str, int]) -> str:
    """`3 running, 1 failed`, in the order in which runs go through their states."""
    known = [f"{states[state]} {state}" for state in _COUNTED if states.get(state)]
    other = [f"{number} {plain(state)}" for state, number in states.items() if number and state not in _COUNTED]
    return ", ".join(known + other)


def moment(at: datetime | None) -> str:
    """A time as the person's clock shows it; empty for none."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at is not None else ""


def ago(at: datetime | None, now: datetime | None = None) -> str:
    """How long ago, in words; empty for none."""
    if at is None:
        return ""
    passed_s = ((now or datetime.now(UTC)) - at).total_seconds()
    return f"{span(passed_s)} ago" if passed_s >= 1 else "just now"  # also where that clock is ahead of ours


def span(seconds: float | None) -> str:
    """A length of time for a person, such as `40 ms`, `2.3 s`, `42 s`, `3m 05s`, `2h 10m`; empty for none."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole // 60 % 60:02}m"
    return f"{whole // 86400}d {whole // 3600 % 24}h"


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
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
