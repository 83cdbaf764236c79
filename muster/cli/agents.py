"""`muster agents`: the fleet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.options import Failure, Several, connect, json_option, server_options
from muster.cli.speech import group
from muster.words import _

if TYPE_CHECKING:
    from muster.client import Agent, Client

_STATES = ("online", "offline", "draining", "conflict")
_FACTS = {
    "os": _("os"),
    "kernel": _("kernel"),
    "arch": _("arch"),
    "cpus": _("cpus"),
    "memory_total": _("memory total"),
    "memory_used": _("memory used"),
    "disk_free": _("disk free"),
    "boot_at": _("boot at"),
    "cpu_percent": _("cpu percent"),
    "clock_skew": _("clock skew"),
    "load": _("load"),
    "addresses": _("addresses"),
    "version": _("version"),
}


@group(invoke_without_command=True)
@json_option
@server_options
@click.pass_context
def agents(ctx: click.Context, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """List the agents; with a command, look at one or change it."""
    if ctx.invoked_subcommand is None:
        _print_agents(connect(url, token, data), as_json)


def _print_agents(client: Client, as_json: bool, *, state: str | None = None, match: str | None = None) -> None:
    from muster.cli.output import ago, print_json, print_table, state_word

    found = list(client.agents(state=state, match=match))
    if as_json:
        print_json([dict(agent.raw) for agent in found])
        return
    rows = (
        [
            agent.name,
            state_word(agent.state),
            f"{agent.held}/{agent.slots}",
            _("now") if agent.state == "online" else ago(agent.last_seen_at),
            _system(agent),
            _labels(agent),
        ]
        for agent in found
    )
    print_table((_("agent"), _("state"), _("slots"), _("seen"), _("system"), _("labels")), rows)


def _system(agent: Agent) -> str:
    known = [agent.facts.get(name) for name in ("os", "arch")]
    return " ".join(str(fact) for fact in known if fact)


def _labels(agent: Agent) -> str:
    return " ".join(f"{key}={value}" if value else key for key, value in sorted(agent.labels.items()))


def _fact(name: str, value: object) -> str:
    """A host's fact in the words of a person."""
    from muster.cli.output import size

    if isinstance(value, int) and name.startswith(("memory", "disk")):
        return size(value)
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    return str(value)


@agents.command("list")
@click.option(
    "--state",
    metavar="STATE,…",
    type=Several(*_STATES),
    help=_("only those in one of these states: %(states)s", states=", ".join(_STATES)),
)
@click.option("--match", metavar="TEXT", help=_("only those with this in their name, host name or a label=value"))
@json_option
@server_options
def list_agents(
    state: str | None, match: str | None, as_json: bool, url: str | None, token: str | None, data: Path | None
) -> None:
    """List the agents."""
    _print_agents(connect(url, token, data), as_json, state=state, match=match)


@agents.command("show")
@click.argument("name")
@json_option
@server_options
def show_agent(name: str, as_json: bool, url: str | None, token: str | None, data: Path | None) -> None:
    """Show what is known of an agent and its host."""
    from muster.cli.output import ago, moment, print_fields, print_json, state_word

    agent = connect(url, token, data).agent(name)
    if as_json:
        print_json(dict(agent.raw))
        return
    facts = {_FACTS.get(name, name.replace("_", " ")): _fact(name, value) for name, value in agent.facts.items()}
    print_fields(
        {
            _("agent"): agent.name,
            _("id"): agent.id,
            _("host"): agent.hostname,
            _("state"): state_word(agent.state),
            _("slots"): _("%(held)s of %(slots)s in use", held=agent.held, slots=agent.slots),
            _("labels"): _labels(agent),
            _("seen"): ago(agent.last_seen_at),
            _("enrolled"): moment(agent.enrolled_at),
            **facts,
        }
    )


def _each(names: tuple[str, ...], act: Callable[[str], str], done: str) -> None:
    """Do it to every agent named, also when one of them fails; then end with 1. `done` has a place for its name."""
    from muster.client import ApiError, Unavailable
    from muster.terminal import plain

    failed = 0
    for name in names:
        try:
            click.echo(done % {"name": plain(act(name))})
        except Unavailable:
            raise
        except ApiError as error:
            failed += 1
            click.echo(f"muster: {plain(name)}: {plain(error)}", err=True)
    if failed:
        raise Failure(_("%(failed)s of %(total)s could not be changed", failed=failed, total=len(names)))


@agents.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@server_options
def drain(names: tuple[str, ...], url: str | None, token: str | None, data: Path | None) -> None:
    """Let agents finish what they have and give them nothing new."""
    client = connect(url, token, data)
    _each(names, lambda name: client.drain_agent(name).name, _("%(name)s is draining"))


@agents.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@server_options
def resume(names: tuple[str, ...], url: str | None, token: str | None, data: Path | None) -> None:
    """Give drained agents work again."""
    client = connect(url, token, data)
    _each(names, lambda name: client.resume_agent(name).name, _("%(name)s takes work again"))


@agents.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@server_options
def revoke(names: tuple[str, ...], url: str | None, token: str | None, data: Path | None) -> None:
    """Refuse the keys of agents from now on, also while they are online; they may enrol again with a fresh token."""
    client = connect(url, token, data)
    _each(names, lambda name: client.revoke_agent(name).name, _("%(name)s is refused from now on"))


@agents.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@server_options
def forget(names: tuple[str, ...], url: str | None, token: str | None, data: Path | None) -> None:
    """Remove agents that are offline; what was addressed to them ends, and their keys are refused from then on."""
    client = connect(url, token, data)

    def act(name: str) -> str:
        client.forget_agent(name)
        return name

    _each(names, act, _("%(name)s is forgotten"))


@agents.command()
@click.argument("name")
@click.argument("changes", metavar="K=V|K-...", nargs=-1, required=True)
@server_options
def label(name: str, changes: tuple[str, ...], url: str | None, token: str | None, data: Path | None) -> None:
    """Set labels with K=V and remove them with K-."""
    client = connect(url, token, data)
    labels = dict(client.agent(name).labels)
    for change in changes:
        key, equals, value = change.partition("=")
        if equals and key:
            labels[key] = value
        elif not equals and change.endswith("-") and len(change) > 1:
            labels.pop(change[:-1], None)
        else:
            said = _("%(change)r: write K=V to set a label, K- to remove it", change=change)
            raise click.BadParameter(said, param_hint="K=V|K-")
    done = client.patch_agent(name, labels=labels)
    from muster.terminal import plain

    click.echo(f"{plain(done.name)}  {plain(_labels(done))}".rstrip())
