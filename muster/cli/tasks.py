"""`muster tasks`, `show`, `why`, `cancel`, `pause`, `resume`, `retry`: looking at tasks and steering them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from muster.cli.options import Several, connect, json_option, seconds, server_options

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


@click.command()
@click.option(
    "--state",
    metavar="STATE,…",
    type=Several(*_STATES),
    help=f"only those in one of these states: {', '.join(_STATES)}",
)
@click.option("--agent", metavar="NAME", help="only those with a run on this agent")
@click.option("--name", metavar="TEXT", help="only those with this in their name")
@click.option(
    "--since", metavar="TIME", help="only those submitted since: 2h ago, or a time such as 2026-11-30T12:00:00Z"
)
@click.option("--until", metavar="TIME", help="only those submitted before: 1h ago, or a time")
@click.option("--limit", metavar="N", type=click.IntRange(1), default=50, show_default=True, help="at most so many")
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
    print_table(("task", "state", "runs", "submitted", "name"), rows)


def _state(task: Task) -> str:
    return f"{task.state} (paused)" if task.paused and not task.final else task.state


@click.command()
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
    from muster.cli.output import counts, moment, print_fields, span

    took = (task.ended_at - task.started_at).total_seconds() if task.ended_at and task.started_at else None
    limits = {
        "parallel": str(task.parallel) if task.parallel else "",
        "fail count": str(task.fail_count) if task.fail_count > 0 else "",
        "fail rate": str(task.fail_rate) if task.fail_rate is not None else "",
        "timeout": span(task.timeout) if task.timeout else "",
    }
    print_fields(
        {
            "task": task.id,
            "name": task.name,
            "state": _state(task),
            "reason": (task.reason.detail or task.reason.code) if task.reason else None,
            "waiting": task.waiting_because,
            "runs": f"{counts(task.counts)} of {task.total}",
            "submitted": f"{moment(task.created_at)} by {task.submitted_by or '?'}",
            "started": moment(task.started_at),
            "ended": moment(task.ended_at) + (f" after {span(took)}" if took is not None else ""),
            "arguments": " ".join(task.args),
            "limits": ", ".join(f"{name} {value}" for name, value in limits.items() if value),
        }
    )


def _print_runs(runs: list[Run]) -> None:
    from muster.cli.output import print_table, size, span

    def remark(run: Run) -> str:
        told = [run.detail, run.waiting_because]
        if run.silent_since is not None and not run.final:
            told.append("its host is silent")
        if run.leftovers:
            told.append(f"processes left over: {len(run.leftovers)}")
        return "; ".join(text for text in told if text)

    rows = (
        [
            run.id,
            run.where,
            run.state,
            run.ending if run.outcome else "",
            str(run.attempt),
            span(run.duration),
            size(run.output_bytes),
            remark(run),
        ]
        for run in runs
    )
    print_table(("run", "agent", "state", "ended by", "try", "took", "output", "remark"), rows)


@click.command()
@click.argument("run")
@json_option
@server_options
def why(run: str, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Tell why a run is where it is. RUN is a run's id, or a task's: then each of its runs that is not final."""
    from muster.cli.output import print_json
    from muster.terminal import plain

    found = _explanations(connect(url, token, data), run)
    if not found and not as_json:
        click.echo(f"all runs of this task have ended; `muster show {run}` tells how")
    if as_json:
        print_json([dict(explanation.raw) for explanation in found])
        return
    for explanation in found:
        about = explanation.run
        click.echo(f"{about.id}  {plain(about.where)}  {about.ending if about.final else about.state}")
        for verdict in explanation.verdicts:
            click.echo(f"  {plain(verdict.get('text', verdict))}")


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


def _told(task: Task, what: str, as_json: bool) -> None:
    from muster.cli.output import counts, print_json

    if as_json:
        print_json(dict(task.raw))
    else:
        click.echo(f"task {task.id} {what}: {counts(task.counts)}")


@click.command()
@click.argument("task")
@click.option("--wait", is_flag=True, help="end when the last script has")
@json_option
@server_options
def cancel(task: str, wait: bool, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """End a task: what has not begun never will, what runs gets TERM and after a grace KILL."""
    client = connect(url, token, data)
    done = client.cancel(task)
    if wait:
        done = client.wait(done.id)
    _told(done, "is cancelled" if done.final else "is being cancelled", as_json)


@click.command()
@click.argument("task")
@json_option
@server_options
def pause(task: str, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Start no more runs of a task until `muster resume`; what runs goes on."""
    _told(connect(url, token, data).pause(task), "is paused", as_json)


@click.command()
@click.argument("task")
@json_option
@server_options
def resume(task: str, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Go on with a paused task."""
    _told(connect(url, token, data).resume(task), "goes on", as_json)


@click.command()
@click.argument("task")
@click.option("--failed", is_flag=True, help="only the runs that did not succeed")
@json_option
@server_options
def retry(task: str, failed: bool, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Run a task that has ended again: all of it, or with --failed what did not succeed. Ids stay the same."""
    only: Literal["failed", "all"] = "failed" if failed else "all"
    _told(connect(url, token, data).retry(task, only=only), "runs again", as_json)
