"""`muster verify`: do the store's promises hold?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from muster.cli.options import connect, json_option, server_options


@click.command()
@json_option
@server_options
def verify(as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Check the invariants of the store, through the running master, or of a data directory whose master is stopped.

    Ends with 1 and the findings if one is broken.
    """
    from muster.address import NotConfigured
    from muster.transport import Unavailable, Unreachable

    try:
        found = connect(url, token, data).verify()
        findings: Sequence[str] = found.findings
        checked: Mapping[str, Any] = found.checked
    except (Unreachable, Unavailable, NotConfigured):
        database = _database(data) if not url else None
        if database is None:
            raise
        findings, checked = _offline(database)
    _tell(findings, checked, as_json)


def _database(data: Path | None) -> Path | None:
    from muster.address import data_directory

    database = data_directory(data) / "muster.db"
    return database if database.is_file() else None


def _offline(database: Path) -> tuple[Sequence[str], Mapping[str, Any]]:
    from master.verify import verify_file

    click.echo(f"muster: no master answers; checking {database} itself", err=True)
    answer = verify_file(database)
    return answer["findings"], answer["checked"]


def _tell(findings: Sequence[str], checked: Mapping[str, Any], as_json: bool) -> None:
    from muster.cli.output import print_json
    from muster.terminal import plain

    if as_json:
        print_json({"findings": list(findings), "checked": dict(checked)})
    else:
        for finding in findings:
            click.echo(plain(finding))
        looked_at = ", ".join(f"{number} {plain(what)}" for what, number in checked.items())
        click.echo(f"{len(findings) or 'no'} findings; checked {looked_at or 'everything'}", err=bool(findings))
    click.get_current_context().exit(1 if findings else 0)
