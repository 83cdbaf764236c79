"""`muster agent-token`: a permission for a new host."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from muster.cli.options import connect, json_option, server_options
from muster.cli.speech import command
from muster.words import _

_COUNT_MOST = 1000
_LOOPBACK = ("127.", "localhost", "[::1]", "::1")


@command("agent-token")
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(1, _COUNT_MOST),
    help=_("make so many, one line each: every host needs its own"),
)
@json_option
@server_options
def agent_token(count: int | None, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Make a join token and print the command to run on the new host. It is good for one host and one day."""
    from muster.cli.output import moment, print_json

    client = connect(url, token, data)
    made = [client.agent_token() for _number in range(count or 1)]
    if as_json:
        print_json(dict(made[0].raw) if count is None else [dict(each.raw) for each in made])
    else:
        for each in made:
            click.echo(each.line or f"muster agent --join {shlex.quote(each.token)}")
        if made[-1].expires_at:
            click.echo(_("good once, until %(at)s", at=moment(made[-1].expires_at)), err=True)
    endpoint = master_endpoint(made[0].token)
    if endpoint is not None and endpoint.startswith(_LOOPBACK):
        said = _(
            "this token leads to %(endpoint)s, which other hosts cannot reach: start the master with "
            "--rpc 0.0.0.0:7441, or with --advertise HOST:PORT if another address leads to it",
            endpoint=endpoint,
        )
        click.echo(f"muster: {said}", err=True)


def master_endpoint(token: str) -> str | None:
    """HOST:PORT of the master in a join token; None if it cannot be read here."""
    from common.auth import decode_join_token
    from common.errors import InvalidRequest

    try:
        return decode_join_token(token).endpoint.removeprefix("tcp://")
    except InvalidRequest:
        return None
