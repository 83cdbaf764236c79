"""`muster run`: submit a script, follow it, and end with a code that says how it went."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from muster.cli.main import INTERRUPTED, UNREACHABLE
from muster.cli.options import Duration, Failure, Share, connect, json_option, names, pairs, server_options
from muster.cli.speech import command
from muster.words import _

if TYPE_CHECKING:
    from muster.client import Client, InvalidRequest, MusterError, Run, Task, TaskOptions

_SUCCEEDED, _FAILED, _STOPPED, _NOT_PLACED = 0, 1, 3, 4
# A fault of one of these fields means that there is nowhere to run, not that the command line is wrong.
_PLACEMENT: Final = ("targets", "count", "selector", "queue")
_PATIENCE_S: Final = 60.0  # how long an outage may last; the same as for following live
_STOP_RULES: Final = ("fail_count", "fail_rate")
_OPTIONS: Final = (
    click.option("--on", metavar="A,B", multiple=True, help=_("run on these agents; may be repeated")),
    click.option("--count", metavar="N", type=int, help=_("run on any N agents")),
    click.option("--timeout", type=Duration(), help=_("end an attempt after this time (default 1h; 0: never)")),
    click.option("--parallel", metavar="N", type=int, help=_("run on at most N agents at once")),
    click.option("--fail-count", metavar="N", type=int, help=_("start nothing more once N have failed")),
    click.option(
        "--fail-rate", type=Share(), help=_("start nothing more once a greater share has failed (0.2 or 20%)")
    ),
    click.option("--on-stop", type=click.Choice(["finish", "kill"]), help=_("what becomes of those that run then")),
    click.option("--env", metavar="K=V", multiple=True, help=_("a variable for the script; may be repeated")),
    click.option("--cwd", metavar="DIR", help=_("the script's working directory")),
    click.option("--interpreter", metavar="PROGRAM", help=_("run the script with this; else by its first line")),
    click.option("--name", metavar="TEXT", help=_("what to call the task")),
    click.option("--queue", metavar="QUEUE", help=_("with --count: only agents that serve this queue")),
    click.option("--priority", metavar="P", type=int, help=_("0 (most urgent) to 4294967295 (default 1024)")),
    click.option("--expires", type=Duration(), help=_("give up what has not begun after this time (default 24h)")),
    click.option("--lost-after", type=Duration(), help=_("count a run on a silent host as lost after this time")),
    click.option("--output-limit", metavar="BYTES", type=int, help=_("keep this much output of each run")),
    click.option("--detach", is_flag=True, help=_("print the task's id and do not wait")),
    click.option("--no-prefix", is_flag=True, help=_("print lines without the agents' names")),
)


def _task_options(function: Any) -> Any:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@_task_options
@json_option
@server_options
@click.argument("script", metavar="SCRIPT|-")
@click.argument("args", metavar="[ARG]...", nargs=-1, type=click.UNPROCESSED)
def run(
    script: str,
    args: tuple[str, ...],
    detach: bool,
    no_prefix: bool,
    as_json: bool,
    url: str | None,
    token: str | None,
    data: Path | None,
    **chosen: Any,
) -> None:
    """Run SCRIPT (a file, or - for standard input) on agents, with ARGs, and follow it live.

    Say where with --on or --count. What scripts write to stdout goes to stdout as `NAME | line`, their stderr to
    stderr as `NAME ! line`. Ctrl-C asks whether to detach or to cancel; without a terminal it detaches.

    \b
    Exit codes: 0 all succeeded · 1 some target failed · 2 wrong usage, nothing submitted
                3 cancelled, or stopped by the stop rule · 4 nothing could be placed, or expired
                5 master or webserver unreachable · 130 detached by Ctrl-C
    """
    from muster.client import InvalidRequest

    options = _request(args, chosen)
    client = connect(url, token, data)
    if not options.get("targets") and chosen["count"] is None:
        raise click.UsageError(_("say where to run: --on A,B or --count N") + _known_agents(client))
    content = _read_script(script)
    try:
        task = client.submit(content, **options)
    except InvalidRequest as error:
        raise _refusal(error) from error
    if detach:
        from muster.cli.output import print_json

        print_json(dict(task.raw)) if as_json else click.echo(task.id)
        return
    code = _quietly(client, task) if as_json else _live(client, task, prefix=not no_prefix)
    click.get_current_context().exit(code)


def _request(args: tuple[str, ...], chosen: dict[str, Any]) -> TaskOptions:
    """The task request that the options describe; what was not given is left to the server."""
    options: Any = {
        name: chosen[name]
        for name in (
            *("count", "timeout", "parallel", "fail_count", "fail_rate", "on_stop", "cwd", "name", "queue"),
            *("priority", "expires", "lost_after", "output_limit"),
        )
        if chosen[name] is not None
    }
    if chosen["on"]:
        options["targets"] = names(chosen["on"])
    if chosen["env"]:
        options["env"] = pairs(chosen["env"], "--env")
    if chosen["interpreter"]:
        import shlex

        options["interpreter"] = shlex.split(chosen["interpreter"])
    if args:
        options["args"] = list(args)
    request: TaskOptions = options
    return request


def _read_script(script: str) -> bytes:
    if script == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(script).read_bytes()
    except OSError as error:
        said = _("cannot read %(file)s: %(error)s", file=script, error=error.strerror)
        raise click.BadParameter(said, param_hint="SCRIPT") from error


def _known_agents(client: Client) -> str:
    """The agents one could name, as far as they can be found out."""
    from itertools import islice

    from muster.cli.output import name_list
    from muster.client import MusterError

    try:
        known = [agent.name for agent in islice(client.agents(page=100), 100)]
    except MusterError:
        return ""
    return _("; agents: %(names)s", names=name_list(known, most=20)) if known else _("; there are no agents yet")


def _refusal(error: InvalidRequest) -> Failure:
    """What a refused request ends with: 4 when there is nowhere to run, else 2."""
    fields = {fault.field.partition("[")[0] for fault in error.errors}
    nowhere = bool(fields) and fields <= set(_PLACEMENT)
    return Failure(error.detail, exit_code=_NOT_PLACED if nowhere else 2)


def _quietly(client: Client, task: Task) -> int:
    """Wait for the end and print the task with its runs as JSON."""
    from muster.cli.output import print_json
    from muster.client import MusterError

    client.be_patient(_PATIENCE_S)
    try:
        final = client.wait(task.id)
        runs = [dict(run.raw) for run in client.runs(task.id)]
    except KeyboardInterrupt:
        return _left_alone(task)
    except MusterError as error:
        raise _lost(task, error) from error
    print_json({**final.raw, "runs": runs})
    return exit_code(final)


def _lost(task: Task, error: MusterError) -> Failure:
    """What a task that cannot be followed ends with. Whatever the reason, never with a code that says that nothing was
    submitted: who believes that submits again.
    """
    said = _("%(error)s; task %(id)s goes on without being followed", error=str(error).rstrip("."), id=task.id)
    return Failure(said, exit_code=UNREACHABLE)


def _left_alone(task: Task) -> int:
    said = _("the task goes on; `muster cancel %(id)s` ends it, `muster logs --follow %(id)s` shows it", id=task.id)
    click.echo(said, err=True)
    return INTERRUPTED


def _live(client: Client, task: Task, *, prefix: bool) -> int:
    """Follow the task on the screen."""
    from muster.cli.follow import Detached, Follower, ask_person
    from muster.cli.live import Printer
    from muster.client import MusterError

    printer = Printer(prefix=prefix, names=task.targets or ())
    if printer.shows_progress:
        printer.say(_("task %(id)s", id=task.id))
    follower = Follower(client, task.id, printer=printer, ask=lambda: ask_person(task.id))
    try:
        final = follower.follow()
    except Detached:
        return _left_alone(task)
    except MusterError as error:
        raise _lost(task, error) from error
    for line in summary(final, follower.runs.values()):
        printer.say(line)
    return exit_code(final)


def summary(task: Task, runs: Iterable[Run]) -> list[str]:
    """What to tell at the end: counts, then those that did not succeed, by how they ended. Nothing for a plain success
    on one agent.
    """
    from muster.cli import reasons
    from muster.cli.output import counts, ending, name_list, span
    from muster.terminal import plain

    if task.state == "succeeded" and task.total == 1:
        return []
    took = (task.ended_at - task.created_at).total_seconds() if task.ended_at and task.created_at else None
    lines = [_("task %(id)s: %(counts)s", id=task.id, counts=counts(task.counts))]
    if took is not None:
        lines = [_("task %(id)s: %(counts)s in %(span)s", id=task.id, counts=counts(task.counts), span=span(took))]
    if task.reason is not None:
        lines.append(f"  {plain(reasons.reason(task.reason))}")
    groups: dict[str, list[str]] = defaultdict(list)
    details: dict[str, str] = {}
    for run in runs:
        if run.state != "succeeded":
            groups[ending(run)].append(run.where)
            if run.detail:
                details.setdefault(ending(run), run.detail)
    for end, where in sorted(groups.items(), key=lambda group: -len(group[1])):
        told = _("%(ending)s: %(names)s", ending=plain(end), names=name_list(sorted(where)))
        detail = _(" (%(detail)s)", detail=plain(details[end])) if end in details else ""
        lines.append(f"  {told}{detail}")
    return lines


def exit_code(task: Task) -> int:
    """How `muster run` ends for a final task."""
    if task.state == "succeeded":
        return _SUCCEEDED
    if task.state == "cancelled" or (task.reason is not None and task.reason.code in _STOP_RULES):
        return _STOPPED
    if task.counts.get("failed"):
        return _FAILED
    if task.counts.get("expired"):
        return _NOT_PLACED
    return _STOPPED
