"""`muster agent-token`: a permission for a new host."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from muster.cli.options import connect, json_option, server_options
from muster.cli.speech import command
from muster.words import _

_LOOPBACK = ("127.", "localhost", "[::1]", "::1")


@command("agent-token")
@json_option
@server_options
def agent_token(as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Make a join token and print the line to paste on the new host. It is good for one host and one day."""
    from muster.cli.output import moment, print_json

    made = connect(url, token, data).agent_token()
    if as_json:
        print_json(dict(made.raw))
    else:
        click.echo(made.line or f"muster agent --join {shlex.quote(made.token)}")
        if made.expires_at:
            click.echo(_("good once, until %(at)s", at=moment(made.expires_at)), err=True)
    endpoint = master_endpoint(made.token)
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
