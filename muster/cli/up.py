"""`muster up`: everything on this machine, as child processes that are kept running."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from muster.cli.daemons import address
from muster.cli.options import Failure, settings, settings_options
from muster.cli.speech import command
from muster.words import _


@command()
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help=_("data directory [MUSTER_DATA, else the state folder]"),
)
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:7440", show_default=True, help=_("where to serve HTTP")
)
@click.option("--rpc", metavar="HOST:PORT", default="0.0.0.0:7441", show_default=True, help=_("where agents connect"))
@click.option(
    "--agents", metavar="N", type=click.IntRange(0, 999), default=1, show_default=True, help=_("local agents")
)
@settings_options()
def up(data: Path | None, listen: str, rpc: str, agents: int, config: Path | None, **flags: Any) -> None:
    """Start master, webserver and N agents on this machine, and keep them running.

    Ctrl-C lets running scripts finish; a second Ctrl-C ends them at once. A port of 0 means any free one.
    """
    web_at, rpc_at = address(listen, 7440), address(rpc, 7441)
    chosen = settings(config, flags)
    from common.errors import MusterError
    from muster.address import data_directory, state_home
    from muster.launch.ports import BadAddress
    from muster.launch.up import run

    directory = data_directory(data)
    try:
        code = run(
            chosen,
            data_dir=directory,
            named_data=directory != state_home(),
            listen=web_at,
            rpc=rpc_at,
            agents=agents,
        )
    except BadAddress as error:
        raise Failure(str(error), exit_code=2) from error
    except MusterError as error:
        raise Failure(error.message) from error
    click.get_current_context().exit(code)
