"""`muster logs`: what a task's scripts wrote."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.main import INTERRUPTED
from muster.cli.options import Failure, connect, names, server_options
from muster.cli.speech import command
from muster.words import _

if TYPE_CHECKING:
    from muster.client import Client, Run
    from muster.client import StreamName as Stream


@command()
@click.argument("task")
@click.option("--on", metavar="A,B", multiple=True, help=_("only of these agents; may be repeated"))
@click.option("--follow", "-f", is_flag=True, help=_("go on until the task has ended"))
@click.option(
    "--stream", type=click.Choice(["all", "stdout", "stderr"]), default="all", show_default=True, help=_("which pipe")
)
@click.option("--attempt", metavar="N", type=click.IntRange(1), help=_("of this try instead of the newest"))
@click.option("--no-prefix", is_flag=True, help=_("print lines without the agents' names"))
@server_options
def logs(
    task: str,
    on: tuple[str, ...],
    follow: bool,
    stream: Stream,
    attempt: int | None,
    no_prefix: bool,
    url: str | None,
    token: str | None,
    data: Path | None,
) -> None:
    """Show what a task's scripts wrote, each line as `NAME | line`, agent by agent.

    The output of one run alone, on anything but a terminal, is given exactly as the script wrote it, byte for byte;
    so `muster logs TASK --on NAME > FILE` is a download.
    """
    client = connect(url, token, data)
    wanted = set(names(on))
    found = client.task(task)
    if follow:
        if attempt is not None:
            raise click.UsageError(_("--attempt names a try of the past; it cannot be followed"))
        click.get_current_context().exit(_follow(client, found.id, wanted, stream, prefix=not no_prefix))
    runs = [run for run in client.runs(found.id) if not wanted or _is_on(run, wanted)]
    missing = wanted - {word for run in runs for word in _words(run)}
    if missing:
        raise Failure(_("task %(id)s has no run on %(names)s", id=found.id, names=", ".join(sorted(missing))))
    if len(runs) == 1 and not sys.stdout.isatty():
        _raw(client, runs[0], attempt, stream)
    else:
        for run in runs:
            _marked(client, run, attempt, stream, prefix=not no_prefix and len(runs) > 1)


def _words(run: Run) -> tuple[str, ...]:
    return (run.agent.name, run.agent.id, run.agent.hostname) if run.agent else ()


def _is_on(run: Run, wanted: set[str]) -> bool:
    return any(word in wanted for word in _words(run))


def _raw(client: Client, run: Run, attempt: int | None, stream: Stream) -> None:
    """The bytes themselves; gaps are told on stderr."""
    offset = 0
    told: set[tuple[int, int]] = set()
    while True:
        piece = client.output_at(run.id, offset=offset, attempt=attempt, stream=stream)
        sys.stdout.buffer.write(piece.data)
        for gap in piece.gaps:
            if gap not in told:
                told.add(gap)
                said = _("%(num)s bytes from %(offset)s on were not kept", num=gap[1], offset=gap[0])
                click.echo(f"muster: {said}", err=True)
        if piece.next_offset >= piece.size or piece.next_offset <= offset:
            break
        offset = piece.next_offset
    sys.stdout.buffer.flush()


def _marked(client: Client, run: Run, attempt: int | None, stream: Stream, *, prefix: bool) -> None:
    from muster.cli.live import Lines, Printer
    from muster.terminal import plain

    printer = Printer(prefix=prefix)
    lines = Lines()
    # Of the past the order of both pipes is kept by showing them as one.
    for piece in client.output(run.id, attempt=attempt, stream=stream):
        printer.lines(run.where, "stdout", lines.feed(piece))
    printer.lines(run.where, "stdout", lines.end())
    for offset, length in run.output_gaps:
        said = _("%(num)s bytes from %(offset)s on were not kept", num=length, offset=offset)
        printer.say(f"{plain(run.where)}: {said}")


def _follow(client: Client, task_id: str, wanted: set[str], stream: Stream, *, prefix: bool) -> int:
    from muster.cli.follow import Choice, Detached, Follower
    from muster.cli.live import Printer

    follower = Follower(
        client,
        task_id,
        printer=Printer(prefix=prefix),
        ask=lambda: Choice.DETACH,  # whoever only reads along has nothing to cancel
        wanted=(lambda run: _is_on(run, wanted)) if wanted else None,
        stream=stream,
    )
    try:
        follower.follow()
    except Detached:
        return INTERRUPTED
    return 0
