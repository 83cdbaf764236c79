"""`muster login` and `muster tokens`: who may use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.options import Failure, connect, json_option, server_options
from muster.cli.speech import command, group
from muster.words import _

if TYPE_CHECKING:
    from muster.client import Client


@command()
@click.option("--name", metavar="NAME", help=_("whom it logs in; shown beside what is done then [the token's name]"))
@json_option
@server_options
def login(name: str | None, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Print a link that logs a browser in. It is good once, and not for long."""
    from muster.cli.output import moment, print_json
    from muster.terminal import plain

    link = connect(url, token, data).login_link(name)
    if as_json:
        print_json(dict(link.raw))
        return
    click.echo(plain(link.url))
    click.echo(_("good once, until %(at)s", at=moment(link.expires_at)), err=True)


@group(invoke_without_command=True)
@json_option
@server_options
@click.pass_context
def tokens(ctx: click.Context, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """List API tokens and browsers' sessions; with a command, add or revoke one."""
    if ctx.invoked_subcommand is None:
        _print_tokens(connect(url, token, data), as_json)


def _print_tokens(client: Client, as_json: bool) -> None:
    from muster.cli.output import ago, moment, print_json, print_table

    found = client.tokens()
    if as_json:
        print_json([dict(each.raw) for each in found])
        return
    kinds = {"api": _("api"), "session": _("session")}
    rows = (
        [
            each.id,
            each.name,
            kinds.get(each.kind, each.kind),
            moment(each.created_at),
            ago(each.last_used_at) or _("never"),
            moment(each.expires_at) or _("never"),
            each.about,
        ]
        for each in found
    )
    print_table((_("id"), _("name"), _("kind"), _("created"), _("used"), _("ends"), _("about")), rows)


@tokens.command("list")
@json_option
@server_options
def list_tokens(as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """List API tokens and browsers' sessions, the newest first."""
    _print_tokens(connect(url, token, data), as_json)


@tokens.command("add")
@click.argument("name")
@json_option
@server_options
def add_token(name: str, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Make an API token for a program and print it. It is shown this once."""
    from muster.cli.output import print_json
    from muster.terminal import plain

    made = connect(url, token, data).add_token(name)
    if as_json:
        print_json(dict(made.raw))
        return
    click.echo(plain(made.token or ""))
    said = _("the token %(name)s, shown this once; `muster tokens revoke %(id)s` ends it", name=made.name, id=made.id)
    click.echo(plain(said), err=True)


@tokens.command("revoke")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@server_options
def revoke_token(ids: tuple[str, ...], url: str | None, token: str | None, data: Path | None) -> None:
    """Refuse API tokens from now on, end sessions. An id may be shortened as long as it is clear."""
    from muster.client import ApiError, Unavailable
    from muster.terminal import plain

    client = connect(url, token, data)
    failed = 0
    for token_id in ids:
        try:
            client.revoke_token(token_id)
        except Unavailable:
            raise
        except ApiError as error:
            failed += 1
            click.echo(f"muster: {plain(token_id)}: {plain(error)}", err=True)
        else:
            click.echo(_("%(name)s is revoked", name=plain(token_id)))
    if failed:
        raise Failure(_("%(failed)s of %(total)s could not be revoked", failed=failed, total=len(ids)))
