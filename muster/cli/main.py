"""The `muster` command: the list of its subcommands, loaded one at a time, and how every one of them ends.

Exit codes: 0 done · 1 the answer is no · 2 wrong usage · 5 master or webserver unreachable · 130 interrupted;
`muster run` has more, see its help.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final, NamedTuple, NoReturn

import click

from muster.cli.speech import Group, complaint
from muster.words import _

UNREACHABLE: Final = 5
INTERRUPTED: Final = 130


class Entry(NamedTuple):
    """Where a subcommand is, under which heading it is listed, and what it does in a few words."""

    module: str
    name: str
    heading: str
    does: str


_TASKS, _FLEET, _ACCESS, _SERVICE = _("Tasks"), _("Agents"), _("Access"), _("Service")
COMMANDS: Final[dict[str, Entry]] = {
    "run": Entry("run", "run", _TASKS, _("run a script on agents and follow it live")),
    "tasks": Entry("tasks", "tasks", _TASKS, _("list tasks, the newest first")),
    "show": Entry("tasks", "show", _TASKS, _("show a task and its runs")),
    "logs": Entry("logs", "logs", _TASKS, _("show what a task's scripts wrote")),
    "why": Entry("tasks", "why", _TASKS, _("tell why a run is where it is")),
    "cancel": Entry("tasks", "cancel", _TASKS, _("end a task: stop what runs, start nothing more")),
    "pause": Entry("tasks", "pause", _TASKS, _("start no more runs of a task for now")),
    "resume": Entry("tasks", "resume", _TASKS, _("go on with a paused task")),
    "retry": Entry("tasks", "retry", _TASKS, _("run a task that has ended again, under the same id")),
    "agents": Entry("agents", "agents", _FLEET, _("list, label, drain and forget agents")),
    "agent-token": Entry("tokens", "agent_token", _FLEET, _("make a join token for a new host")),
    "login": Entry("access", "login", _ACCESS, _("print a link that logs a browser in, once")),
    "tokens": Entry("access", "tokens", _ACCESS, _("list, add and revoke API tokens, and browsers' sessions")),
    "up": Entry("up", "up", _SERVICE, _("start everything on this machine")),
    "master": Entry("daemons", "master", _SERVICE, _("the master alone, for a service manager")),
    "web": Entry("daemons", "web", _SERVICE, _("the webserver alone")),
    "agent": Entry("daemons", "agent", _SERVICE, _("an agent alone")),
    "verify": Entry("verify", "verify", _SERVICE, _("check the store's invariants")),
}


class LazyGroup(Group):
    """A group that imports a subcommand's module only when that subcommand is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which they are listed."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand, imported now."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(f"muster.cli.{entry.module}"), entry.name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The subcommand that `args` begin with; an unknown one is answered with those that look alike."""
        name = args[0] if args else ""
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            close = difflib.get_close_matches(name, COMMANDS, n=2, cutoff=0.7)
            if not close:
                ctx.fail(_("there is no command %(name)r", name=name))
            ctx.fail(_("there is no command %(name)r; did you mean %(close)s?", name=name, close=_(" or ").join(close)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands by heading, without importing any."""
        for heading in (_TASKS, _FLEET, _ACCESS, _SERVICE):
            rows = [(name, entry.does) for name, entry in COMMANDS.items() if entry.heading == heading]
            with formatter.section(heading):
                formatter.write_dl(rows)


def main(args: list[str] | None = None, *, prog_name: str = "muster") -> None:
    """Run the command line (of this process, if none is given) and end the process with the right exit code."""
    try:
        code = cli.main(args, prog_name, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads any more, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(INTERRUPTED)
    except Exception as error:  # the door to the person: what is ours is told in a sentence, the rest goes on
        _tell(error)
    sys.exit(code if isinstance(code, int) else 0)


def _tell(error: Exception) -> NoReturn:
    """End with the error's sentence and its exit code; an error nobody foresaw is raised as it is."""
    from muster.terminal import plain

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()  # the help, as a whole
        sys.exit(error.exit_code)
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "muster"
        said = plain(complaint(error)).rstrip(".。")
        click.echo(f"{where}: " + _("%(said)s (see `%(where)s --help`)", said=said, where=where), err=True)
        sys.exit(error.exit_code)
    code = exit_code(error)
    if code is None:
        raise error
    hint = _(" (give one with --token or MUSTER_TOKEN)") if getattr(error, "status", 0) == 401 else ""
    click.echo(f"muster: {plain(error)}{hint}", err=True)
    for fault in getattr(error, "errors", ())[1:]:
        click.echo(f"  {plain(fault.field)}: {plain(fault.message)}", err=True)
    sys.exit(code)


def exit_code(error: Exception) -> int | None:
    """The exit code for an error that has something to say to the person; None for any other."""
    from muster.address import NotConfigured
    from muster.cli.options import Failure
    from muster.records import BadAnswer
    from muster.transport import ApiError, InvalidRequest, MusterError, Unauthorized, Unavailable

    if isinstance(error, Failure):
        return error.exit_code
    if isinstance(error, InvalidRequest | Unauthorized):
        return 2
    if isinstance(error, BadAnswer) or (isinstance(error, ApiError) and not isinstance(error, Unavailable)):
        return 1
    return UNREACHABLE if isinstance(error, MusterError | NotConfigured) else None


def _version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from common.version import VERSION

        click.echo(f"muster {VERSION}")
        ctx.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help=_("Show the version.")
)
def cli() -> None:
    """Run scripts on many hosts at once, durably.

    Start everything on this machine with `muster up`; it says how to run a first script.
    """
