"""`muster verify`: do the store's promises hold?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from muster.cli.options import Failure, connect, json_option, server_options
from muster.cli.speech import command
from muster.words import _


@command()
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
        data_dir = None if url else _with_store(data)
        if data_dir is None:
            raise
        findings, checked = _offline(data_dir)
    _tell(findings, checked, as_json)


def _with_store(data: Path | None) -> Path | None:
    """The data directory, if it is on this machine."""
    from muster.address import data_directory

    data_dir = data_directory(data)
    return data_dir if (data_dir / "muster.db").is_file() else None


def _offline(data_dir: Path) -> tuple[Sequence[str], Mapping[str, Any]]:
    """Check the files themselves, opened as a master opens them: their lock keeps one from starting meanwhile."""
    from common.errors import MusterError
    from master.output import OutputStore
    from master.store.sqlite import SqliteStore
    from master.verify import verify as check

    click.echo("muster: " + _("no master answers; checking the files in %(folder)s", folder=data_dir), err=True)
    store, output = SqliteStore(data_dir / "muster.db"), OutputStore(data_dir / "output.db")
    try:
        store.open()
        output.open()
        answer = check(store, output)
    except MusterError as error:
        raise Failure(error.message) from error
    finally:
        output.close()
        store.close()
    return answer["findings"], answer["checked"]


def _counted(what: str, number: object) -> str:
    from muster.terminal import plain

    known = {
        "tasks": _("%(number)s tasks"),
        "runs": _("%(number)s runs"),
        "attempts": _("%(number)s attempts"),
        "outputs": _("%(number)s outputs"),
    }
    return known[what] % {"number": number} if what in known else f"{number} {plain(what)}"


def _tell(findings: Sequence[str], checked: Mapping[str, Any], as_json: bool) -> None:
    from muster.cli.output import print_json
    from muster.terminal import plain

    if as_json:
        print_json({"findings": list(findings), "checked": dict(checked)})
    else:
        for finding in findings:
            click.echo(plain(finding))
        looked_at = _(", ").join(_counted(what, number) for what, number in checked.items())
        number, what = len(findings) or _("no"), looked_at or _("everything")
        click.echo(_("%(number)s findings; checked %(what)s", number=number, what=what), err=bool(findings))
    click.get_current_context().exit(1 if findings else 0)
