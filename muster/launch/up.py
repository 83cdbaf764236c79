"""Everything on one machine: which daemons `muster up` runs, in what order, and what it tells the person.

Promises that a port given as 0 is chosen once and kept over restarts of the daemons, and that none of the settings
and no token of the caller's environment reaches a daemon by another way than the settings record.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common import notify
from common.config import SETTINGS, Settings, to_environ
from muster.launch import ports
from muster.launch.children import Program, own_command
from muster.launch.lines import Screen
from muster.launch.ports import HostPort
from muster.launch.prepare import DataLock, LocalAgent, prepare
from muster.launch.supervisor import Supervisor
from muster.terminal import cells, pad
from muster.words import _

_MASTER_STAGE, _WEB_STAGE, _AGENT_STAGE = 0, 1, 2
# A master or webserver has nothing to wait for but answers under way.
_STOP_S: Final = 15.0
_HURRY_S: Final = 5.0
_SPARE_S: Final = 10.0
_LINK_WITHIN_S: Final = 3.0
_WEB_RPC: Final = HostPort("127.0.0.1", 7442)
# Of the caller's environment these are not for daemons: they would name another server or another settings file.
_NOT_FOR_DAEMONS: Final = (
    "MUSTER_URL",
    "MUSTER_TOKEN",
    "MUSTER_DATA",
    "MUSTER_STATE",
    "MUSTER_CONFIG",
    "MUSTER_JOIN_TOKEN",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where everything is: the data directory and the addresses, with their final ports."""

    data_dir: Path
    listen: HostPort
    rpc: HostPort
    web_rpc: HostPort

    @property
    def url(self) -> str:
        """The webserver's base URL as seen from this machine."""
        return f"http://{self.listen.near}"


def run(settings: Settings, *, data_dir: Path, named_data: bool, listen: HostPort, rpc: HostPort, agents: int) -> int:
    """Run everything until asked to stop; answers the exit code. To be called in the main thread.

    `named_data`: the directory is not the one that clients look in by themselves. Raises `Conflict` when another
    `muster up` has the directory, `BadAddress` for a port in use, `InvalidRequest` or `BadKeyFile` for its files.
    """
    lock = DataLock(data_dir)
    reserved = ports.Reserved()
    try:
        (data_dir / "url").unlink(missing_ok=True)  # of an earlier start: whoever waits for it would be misled
        places = Places(
            data_dir=data_dir,
            listen=ports.settle(listen, option="--listen"),
            rpc=ports.settle(rpc, option="--rpc"),
            web_rpc=reserved.free_or_other(_WEB_RPC),
        )
        local_agents = prepare(data_dir, agents=agents, endpoint=f"tcp://{places.rpc.near}")
        return _supervise(settings, places, local_agents, named_data=named_data)
    finally:
        reserved.close()
        lock.close()


def programs(
    settings: Settings, places: Places, local_agents: list[LocalAgent], environ: Mapping[str, str]
) -> list[Program]:
    """The daemons to run, with their command lines and environments."""
    own, data = own_command(), str(places.data_dir)
    child_environ = daemon_environ(settings, environ)
    # What an agent may take to let its scripts finish, or to end them.
    drain_s, end_s = settings.drain + settings.kill_grace + _SPARE_S, settings.kill_grace + _SPARE_S
    found = [
        Program(
            role="master",
            argv=(*own, "master", "--data", data, "--rpc", str(places.rpc), "--web-rpc", str(places.web_rpc)),
            stage=_MASTER_STAGE,
            environ=child_environ,
            stop_s=_STOP_S,
            hurry_s=_HURRY_S,
        ),
        Program(
            role="web",
            argv=(*own, "web", "--data", data, "--listen", str(places.listen), "--rpc", str(places.web_rpc)),
            stage=_WEB_STAGE,
            environ=child_environ,
            stop_s=_STOP_S,
            hurry_s=_HURRY_S,
            probe_url=f"{places.url}/readyz",
        ),
    ]
    found += [
        Program(
            role=local.name,
            argv=(*own, "agent", "--state", str(local.state_dir)),
            stage=_AGENT_STAGE,
            environ=child_environ,
            stop_s=drain_s,
            hurry_s=end_s,
            needed=False,
        )
        for local in local_agents
    ]
    return found


def daemon_environ(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a daemon: the caller's, with these settings instead of any others."""
    ours = {f"MUSTER_{name.upper()}" for name in SETTINGS}
    kept = {name: value for name, value in environ.items() if name not in ours and name not in _NOT_FOR_DAEMONS}
    # Empty: no settings file either; what was in it is part of the settings already.
    return {**kept, **to_environ(settings), "MUSTER_CONFIG": ""}


def _supervise(settings: Settings, places: Places, local_agents: list[LocalAgent], *, named_data: bool) -> int:
    colours = os.isatty(1) and not os.environ.get("NO_COLOR")
    width = max([len("master"), *(cells(local.name) for local in local_agents)])
    screen = Screen(1, width=width, colours=colours)

    def on_stage(stage: int) -> None:
        if stage == _WEB_STAGE:
            write_url(places)
        if stage == last:
            notify.ready()  # a service manager may have started us
            ready = {child.role for child in supervisor.children if child.was_ready}
            there = [local for local in local_agents if local.name in ready]
            missing = len(local_agents) - len(there)
            link, link_s = login_link(places), settings.login_link_age
            screen.say(welcome(places, there, named_data=named_data, missing=missing, link=link, link_s=link_s))

    running = programs(settings, places, local_agents, os.environ)
    last = max(program.stage for program in running)
    supervisor = Supervisor(
        running,
        log_dir=places.data_dir / "logs",
        screen=screen,
        on_stage=on_stage,
        restart_s=settings.restart_delay,
        restart_most_s=settings.restart_delay_most,
    )
    return supervisor.run()


def write_url(places: Places) -> None:
    """Tell clients of this machine where the webserver is, in one step."""
    temporary = places.data_dir / ".url.new"
    temporary.write_text(places.url + "\n", "utf-8")
    temporary.replace(places.data_dir / "url")


def login_link(places: Places) -> str | None:
    """A fresh link for the person who sees the welcome; None when there is none to be had."""
    from muster.address import NotConfigured
    from muster.client import Client, MusterError

    try:
        token = (places.data_dir / "admin.token").read_text("ascii").strip()
        with Client(places.url, token, timeout_s=_LINK_WITHIN_S, retry_for_s=0.0) as client:
            return client.login_link().url
    except (OSError, ValueError, NotConfigured, MusterError):
        return None  # the welcome says how to get one; nothing else depends on it


def welcome(
    places: Places,
    local_agents: list[LocalAgent],
    *,
    named_data: bool,
    missing: int = 0,
    link: str | None = None,
    link_s: float = 0.0,
) -> str:
    """What the person sees once all is ready: `local_agents` are, `missing` more are not; `link` logs a browser in."""
    command = _command()
    data = f" --data {shlex.quote(str(places.data_dir))}" if named_data else ""
    names = ", ".join(local.name for local in local_agents[:8]) + (", …" if len(local_agents) > 8 else "")
    login = f"{command} login{data}"
    if link is not None:
        said = _("(once, %(length)s; `%(command)s` prints another)", length=_length(link_s), command=login)
        rows = [(_("log in"), f"{link}  {said}")]
    else:
        rows = [(_("log in"), login + "   " + _("prints the link to open"))]
    if local_agents or missing:
        more = " " + _("(%(num)s not ready: see above)", num=missing) if missing else ""
        rows += [(_("agents here"), (names or _("none")) + more)]
    rows += [
        (_("command"), command),
        (_("a first script"), f"echo 'echo hello from $(hostname)' | {command} run{data} --count 1 -"),
        (_("another host"), f"{command} agent-token{data}   " + _("prints the line to paste there")),
    ]
    if not places.rpc.everywhere and places.rpc.host in ("127.0.0.1", "localhost", "::1"):
        rows += [("", _("(start with --rpc 0.0.0.0:7441 first: other hosts cannot reach the loopback)"))]
    rows += [
        (_("log files"), str(places.data_dir / "logs")),
        (_("Ctrl-C stops"), _("and lets running scripts finish")),
    ]
    width = max(cells(label) for label, _text in rows)
    lines = [f"  {pad(label, width)} {text}" for label, text in rows]
    return "\n".join(["", _("muster is ready: %(url)s", url=places.url), *lines, "", ""])


def _length(seconds: float) -> str:
    if seconds >= 120:
        return _("%(num).0f minutes", num=seconds / 60)
    return _("%(num).0f seconds", num=seconds)


def _command() -> str:
    """The `muster` command by its full path, as this process was started; quoted for a shell."""
    started = Path(sys.argv[0])
    if started.name == "muster":
        path = started.absolute() if started.parent != Path() else Path(shutil.which("muster") or started)
        if path.is_file():
            return shlex.quote(str(path))
    return shlex.join(own_command())
