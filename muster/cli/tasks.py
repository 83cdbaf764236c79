"""`muster tasks`, `show`, `why`, `cancel`, `pause`, `resume`, `retry`: looking at tasks and steering them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from muster.cli.options import Several, connect, json_option, seconds, server_options
from muster.cli.speech import command
from muster.words import _

if TYPE_CHECKING:
    from muster.client import Client, Explanation, Run, Task

_STATES = ("waiting", "running", "succeeded", "failed", "cancelled")


def _moment(text: str | None) -> str | None:
    """`--since` and `--until`: an RFC 3339 time, or how long ago."""
    if text is None:
        return None
    try:
        ago = timedelta(seconds=seconds(text))
        return (datetime.now(UTC) - ago).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except ValueError:
        return text


@command()
@click.option(
    "--state",
    metavar="STATE,…",
    type=Several(*_STATES),
    help=_("only those in one of these states: %(states)s", states=", ".join(_STATES)),
)
@click.option("--agent", metavar="NAME", help=_("only those with a run on this agent"))
@click.option("--name", metavar="TEXT", help=_("only those with this in their name"))
@click.option(
    "--since", metavar="TIME", help=_("only those submitted since: 2h ago, or a time such as 2026-11-30T12:00:00Z")
)
@click.option("--until", metavar="TIME", help=_("only those submitted before: 1h ago, or a time"))
@click.option("--limit", metavar="N", type=click.IntRange(1), default=50, show_default=True, help=_("at most so many"))
@json_option
@server_options
def tasks(
    state: str | None,
    agent: str | None,
    name: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    as_json: bool,
    url: str | None,
    token: str | None,
    data: Path | None,
) -> None:
    """List tasks, the newest first."""
    from muster.cli.output import ago, counts, print_json, print_table

    client = connect(url, token, data)
    listed = client.tasks(
        state=state, agent=agent, name=name, since=_moment(since), until=_moment(until), page=min(limit, 500)
    )
    found = list(islice(listed, limit))
    if as_json:
        print_json([dict(task.raw) for task in found])
        return
    rows = ([t.id, _state(t), counts(t.counts), ago(t.created_at), t.name] for t in found)
    print_table((_("task"), _("state"), _("runs"), _("submitted"), _("name")), rows)


def _state(task: Task) -> str:
    from muster.cli.output import state_word

    word = state_word(task.state)
    return _("%(state)s (paused)", state=word) if task.paused and not task.final else word


@command()
@click.argument("task")
@json_option
@server_options
def show(task: str, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Show a task and its runs. TASK is an id, or the beginning of one."""
    from muster.cli.output import print_json

    client = connect(url, token, data)
    found = client.task(task)
    runs = list(client.runs(found.id))
    if as_json:
        print_json({**found.raw, "runs": [dict(run.raw) for run in runs]})
        return
    _print_task(found)
    click.echo()
    _print_runs(runs)


def _print_task(task: Task) -> None:
    from muster.cli import reasons
    from muster.cli.output import counts, moment, print_fields, span

    took = (task.ended_at - task.started_at).total_seconds() if task.ended_at and task.started_at else None
    limits = {
        _("parallel"): str(task.parallel) if task.parallel else "",
        _("fail count"): str(task.fail_count) if task.fail_count > 0 else "",
        _("fail rate"): str(task.fail_rate) if task.fail_rate is not None else "",
        _("timeout"): span(task.timeout) if task.timeout else "",
    }
    ended = moment(task.ended_at)
    print_fields(
        {
            _("task"): task.id,
            _("name"): task.name,
            _("state"): _state(task),
            _("reason"): reasons.reason(task.reason),
            _("waiting"): reasons.waiting(task),
            _("runs"): _("%(counts)s of %(total)s", counts=counts(task.counts), total=task.total),
            _("submitted"): _("%(at)s by %(who)s", at=moment(task.created_at), who=task.submitted_by or "?"),
            _("started"): moment(task.started_at),
            _("ended"): ended if took is None else _("%(at)s after %(span)s", at=ended, span=span(took)),
            _("arguments"): " ".join(task.args),
            _("limits"): _(", ").join(f"{name} {value}" for name, value in limits.items() if value),
        }
    )


def _print_runs(runs: list[Run]) -> None:
    from muster.cli import reasons
    from muster.cli.output import ending, print_table, size, span, state_word

    def remark(run: Run) -> str:
        told = [run.detail, reasons.waiting(run)]
        if run.silent_since is not None and not run.final:
            told.append(_("its host is silent"))
        if run.leftovers:
            told.append(_("processes left over: %(num)s", num=len(run.leftovers)))
        return _("; ").join(text for text in told if text)

    rows = (
        [
            run.id,
            run.where,
            state_word(run.state),
            ending(run) if run.outcome else "",
            str(run.attempt),
            span(run.duration),
            size(run.output_bytes),
            remark(run),
        ]
        for run in runs
    )
    columns = (_("run"), _("agent"), _("state"), _("ended by"), _("try"), _("took"), _("output"), _("remark"))
    print_table(columns, rows)


@command()
@click.argument("run")
@json_option
@server_options
def why(run: str, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Tell why a run is where it is. RUN is a run's id, or a task's: then each of its runs that is not final."""
    from muster.cli import reasons
    from muster.cli.output import ending, print_json, state_word
    from muster.terminal import plain

    found = _explanations(connect(url, token, data), run)
    if not found and not as_json:
        click.echo(_("all runs of this task have ended; `muster show %(run)s` tells how", run=run))
    if as_json:
        print_json([dict(explanation.raw) for explanation in found])
        return
    for explanation in found:
        about = explanation.run
        click.echo(f"{about.id}  {plain(about.where)}  {ending(about) if about.final else state_word(about.state)}")
        for verdict in explanation.verdicts:
            click.echo(f"  {plain(reasons.verdict(verdict))}")


def _explanations(client: Client, wanted: str) -> list[Explanation]:
    from muster.client import NotFound

    try:
        return [client.why(wanted)]
    except NotFound as no_run:
        try:
            runs = [run for run in client.runs(wanted) if not run.final]
        except NotFound:
            raise no_run from None
    return [client.why(run.id) for run in runs[:50]]


def _told(task: Task, sentence: str, as_json: bool) -> None:
    """Say what became of the task; `sentence` has a place for its id."""
    from muster.cli.output import counts, print_json

    if as_json:
        print_json(dict(task.raw))
    else:
        click.echo(_("%(sentence)s: %(counts)s", sentence=sentence % {"id": task.id}, counts=counts(task.counts)))


@command()
@click.argument("task")
@click.option("--wait", is_flag=True, help=_("end when the last script has"))
@json_option
@server_options
def cancel(task: str, wait: bool, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """End a task: what has not begun never will, what runs gets TERM and after a grace KILL."""
    client = connect(url, token, data)
    done = client.cancel(task)
    if wait:
        done = client.wait(done.id)
    _told(done, _("task %(id)s is cancelled") if done.final else _("task %(id)s is being cancelled"), as_json)


@command()
@click.argument("task")
@json_option
@server_options
def pause(task: str, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Start no more runs of a task until `muster resume`; what runs goes on."""
    _told(connect(url, token, data).pause(task), _("task %(id)s is paused"), as_json)


@command()
@click.argument("task")
@json_option
@server_options
def resume(task: str, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Go on with a paused task."""
    _told(connect(url, token, data).resume(task), _("task %(id)s goes on"), as_json)


@command()
@click.argument("task")
@click.option("--failed", is_flag=True, help=_("only the runs that did not succeed"))
@json_option
@server_options
def retry(task: str, failed: bool, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Run a task that has ended again: all of it, or with --failed what did not succeed. Ids stay the same."""
    only: Literal["failed", "all"] = "failed" if failed else "all"
    _told(connect(url, token, data).retry(task, only=only), _("task %(id)s runs again"), as_json)
