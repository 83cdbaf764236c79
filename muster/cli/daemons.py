"""`muster master`, `muster web`, `muster agent`: each daemon alone, in the foreground, logging to standard error."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from muster.cli.options import Failure, pairs, settings, settings_options
from muster.cli.speech import command
from muster.launch import ports
from muster.words import _

if TYPE_CHECKING:
    from common.errors import MusterError


_JOIN_TOKEN: Final = "MUSTER_JOIN_TOKEN"
# Of a file or directory that is not as it must be; a full disk, for one, is not among them.
_FOR_A_PERSON: Final = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP)


def address(text: str, default_port: int) -> ports.HostPort:
    """HOST:PORT of an option. Raises `click.UsageError`."""
    try:
        return ports.parse(text, default_port=default_port)
    except ports.BadAddress as error:
        raise click.UsageError(str(error)) from error


def _data(named: Path | None) -> Path:
    from muster.address import data_directory

    return data_directory(named)


def _typed_token() -> str:
    """The first line of standard input: unlike a command line, no other user of the host can read it."""
    token = sys.stdin.readline().strip()
    if not token:
        raise click.BadParameter(_("no token came on standard input"), param_hint="--join -")
    return token


def _end(code: int) -> None:
    click.get_current_context().exit(code)


def _failure(error: MusterError | OSError) -> Failure:
    """How a daemon ends that could not start: 2 if a person has to mend something, 1 if time alone may do it."""
    from common.errors import Conflict, Unavailable

    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Failure(f"{where}{error.strerror or error}", exit_code=2 if error.errno in _FOR_A_PERSON else 1)
    return Failure(error.message, exit_code=1 if isinstance(error, Unavailable | Conflict) else 2)


@command()
@click.option("--data", metavar="DIR", type=click.Path(path_type=Path), help=_("data directory [MUSTER_DATA]"))
@click.option("--rpc", metavar="HOST:PORT", default="0.0.0.0:7441", show_default=True, help=_("where agents connect"))
@click.option(
    "--web-rpc", metavar="HOST:PORT", default="127.0.0.1:7442", show_default=True, help=_("where webservers connect")
)
@settings_options()
def master(data: Path | None, rpc: str, web_rpc: str, config: Path | None, **flags: Any) -> None:
    """The master alone: it keeps tasks and results, and hands out work."""
    chosen = settings(config, flags)
    from common.errors import MusterError
    from master.app import main

    try:
        code = main(
            chosen,
            data_dir=_data(data),
            agent_listen=str(address(rpc, 7441)),
            web_listen=str(address(web_rpc, 7442)),
            advertise=chosen.advertise or None,
        )
    except (MusterError, OSError) as error:
        raise _failure(error) from error
    _end(code)


@command()
@click.option("--data", metavar="DIR", type=click.Path(path_type=Path), help=_("data directory [MUSTER_DATA]"))
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:7440", show_default=True, help=_("where to serve HTTP")
)
@click.option(
    "--rpc", metavar="HOST:PORT", default="127.0.0.1:7442", show_default=True, help=_("the master's web door")
)
@settings_options()
def web(data: Path | None, listen: str, rpc: str, config: Path | None, **flags: Any) -> None:
    """The webserver alone: REST and pages. Its keys are in the data directory."""
    chosen = settings(config, flags)
    from common.errors import MusterError
    from webserver.app import main

    try:
        code = main(
            chosen,
            data_dir=_data(data),
            listen=str(address(listen, 7440)),
            master_endpoint=f"tcp://{address(rpc, 7442)}",
        )
    except (MusterError, OSError) as error:
        raise _failure(error) from error
    _end(code)


@command()
@click.option(
    "--join",
    metavar="TOKEN|-",
    envvar=_JOIN_TOKEN,
    help=_("join token of `muster agent-token`, needed once; -: from standard input [MUSTER_JOIN_TOKEN]"),
)
@click.option("--name", metavar="NAME", help=_("the agent's name; the host's name if left out"))
@click.option(
    "--state",
    metavar="DIR",
    envvar="MUSTER_STATE",
    type=click.Path(path_type=Path),
    help=_("state directory [MUSTER_STATE]"),
)
@click.option("--rpc", metavar="HOST:PORT", help=_("where the master is now, if it has moved"))
@click.option(
    "--slots", metavar="N", type=click.IntRange(min=1), help=_("scripts run at once; as many as there are CPUs")
)
@click.option("--label", "labels", metavar="K=V", multiple=True, help=_("a label; may be repeated"))
@click.option("--queue", "queues", metavar="QUEUE", multiple=True, help=_("serve this queue only; may be repeated"))
@settings_options(leave_out=("slots",))
def agent(
    join: str | None,
    name: str | None,
    state: Path | None,
    rpc: str | None,
    slots: int | None,
    labels: tuple[str, ...],
    queues: tuple[str, ...],
    config: Path | None,
    **flags: Any,
) -> None:
    """An agent alone: it runs scripts on this host. It needs a join token once, and no open port.

    TERM lets it finish its scripts (at most the setting `drain`), a second TERM ends it at once.
    """
    os.environ.pop(_JOIN_TOKEN, None)  # nothing that is started from here needs it
    token = _typed_token() if join == "-" else join
    label_map = pairs(labels, "--label")
    chosen = settings(config, flags)
    from agent.app import main
    from common.errors import MusterError
    from muster.address import state_home

    directory = (state or state_home().with_name("muster-agent")).expanduser().absolute()
    try:
        code = main(
            chosen,
            state_dir=directory,
            join_token=token,
            name=name,
            slots=slots,
            labels=label_map,
            queues=list(queues) or None,
            master_endpoint=f"tcp://{address(rpc, 7441)}" if rpc else None,
        )
    except (MusterError, OSError) as error:
        raise _failure(error) from error
    _end(code)
