"""A data directory made ready for `muster up`: one user at a time, private, with keys for every local daemon.

Keys and agents that are there are kept: a renamed host or another number of agents changes nobody's identity.
The master trusts what `keys/trusted.json` lists when it starts.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.identity import AgentHome, Identity
from common import auth, pidlock
from common.errors import Conflict, InvalidRequest
from common.model import evolve
from muster.words import _

LOCK_FILE: Final = "up.lock"
# Any of these in a directory, made by this user, shows that it is a data directory.
_OURS: Final = (LOCK_FILE, "muster.db", "keys/master.key")
_NUMBERS_FILE: Final = "numbers.json"
_UNSAFE_IN_PATH: Final = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class LocalAgent:
    """An agent of this machine: its first name, which is also its directory's, and its public key."""

    name: str
    state_dir: Path
    public_key: str


class DataLock:
    """The promise that one `muster up` alone uses a data directory; it goes with the process."""

    def __init__(self, data_dir: Path) -> None:
        """Make the directory if needed, and lock it. Raises `Conflict` naming the process that has it, and
        `InvalidRequest` for a directory that cannot be used or is somebody else's.
        """
        try:
            _make_private(data_dir)
            self._fd = pidlock.take(data_dir / LOCK_FILE)
        except OSError as error:
            why = error.strerror or error
            said = _("the data directory %(folder)s cannot be used: %(why)s", folder=data_dir, why=why)
            raise InvalidRequest(said) from error
        except pidlock.Held as held:
            said = _(
                "%(folder)s is in use by %(who)s: stop that `muster up` first, or name another directory with --data",
                folder=data_dir,
                who=held.who,
            )
            raise Conflict(said) from None

    def close(self) -> None:
        """Let another one use the directory."""
        os.close(self._fd)


def _make_private(data_dir: Path) -> None:
    """Make the directory, or take the rights of others off one that is there, if that is ours to do.

    A wrong word behind --data must not shut everybody else out of, say, /tmp. Raises `InvalidRequest`, `OSError`.
    """
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if data_dir.stat().st_mode & 0o077:
        filled = any(path.name != "lost+found" for path in data_dir.iterdir())  # that is in every new ext4 volume
        if filled and not any(_made_by_us(data_dir / name) for name in _OURS):
            said = _(
                "the directory %(folder)s can be entered by other users and holds files that are not muster's: name "
                "another one with --data, or take away the rights of others (chmod 700) if it is meant to be used",
                folder=data_dir,
            )
            raise InvalidRequest(said)
        data_dir.chmod(0o700)


def _made_by_us(file: Path) -> bool:
    try:
        found = file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def prepare(data_dir: Path, *, agents: int, endpoint: str, hostname: str | None = None) -> list[LocalAgent]:
    """Make keys and state directories for the daemons and `agents` local agents; answers those to be started.

    `endpoint` is where local agents reach the master. Raises `BadKeyFile` or `InvalidRequest` naming the file.
    """
    try:
        for folder in ("keys", "logs", "agents"):
            (data_dir / folder).mkdir(mode=0o700, exist_ok=True)
        master = auth.load_or_create_key_pair(data_dir / "keys" / "master.key")
        web = auth.load_or_create_key_pair(data_dir / "keys" / "web.key")
        locals_ = _local_agents(data_dir / "agents", agents, hostname or socket.gethostname())
        for local in locals_:
            _point_at(local, endpoint, master.public_text)
        _trust(data_dir / "keys" / "trusted.json", web.public_text, locals_)
    except OSError as error:
        said = _("the data directory %(folder)s cannot be prepared: %(why)s", folder=data_dir, why=error)
        raise InvalidRequest(said) from error
    return locals_[:agents]


def path_safe(hostname: str) -> str:
    """A host name as the name of a directory and of an agent."""
    cleaned = _UNSAFE_IN_PATH.sub("_", hostname)[:_LONGEST_NAME].lstrip(".-")
    return cleaned or "host"


def _local_agents(folder: Path, wanted: int, hostname: str) -> list[LocalAgent]:
    """All local agents by their numbers, new ones added up to `wanted`."""
    numbers = _numbers(folder)
    base = path_safe(hostname)
    while len(numbers) < wanted:
        number = max(numbers.values(), default=0) + 1
        name = base if wanted == 1 else f"{base}-{number}"
        while name in numbers:  # a host that was renamed to what another was called
            name += "-x"
        numbers[name] = number
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    ordered = sorted(numbers, key=numbers.__getitem__)
    # The numbers are kept before the keys are: a start that was cut short goes on with the same names.
    auth.write_private(folder / _NUMBERS_FILE, json.dumps(numbers, indent=1).encode() + b"\n")
    return [
        LocalAgent(name, folder / name, auth.load_or_create_key_pair(folder / name / "agent.key").public_text)
        for name in ordered
    ]


def _numbers(folder: Path) -> dict[str, int]:
    """The numbers given so far. Directories that have none, as after a restored backup, get the next ones."""
    file = folder / _NUMBERS_FILE
    try:
        kept = json.loads(auth.read_private(file))
        numbers = {str(name): int(number) for name, number in kept.items() if (folder / name).is_dir()}
    except FileNotFoundError:
        numbers = {}
    except (ValueError, AttributeError, TypeError) as error:
        said = _("%(file)s cannot be read (%(why)s): remove it, and the agents are numbered anew", file=file, why=error)
        raise InvalidRequest(said) from error
    for path in sorted(folder.iterdir()):
        if path.name not in numbers and (path / "agent.key").is_file():
            numbers[path.name] = max(numbers.values(), default=0) + 1
    return numbers


def _point_at(local: LocalAgent, endpoint: str, master_key: str) -> None:
    """Tell the agent where its master is; everything else it knows stays."""
    home = AgentHome(local.state_dir)
    known = home.load()
    wanted = _identity(known, endpoint=endpoint, master_key=master_key, name=local.name)
    if wanted != known:
        home.save(wanted)


def _identity(known: Identity | None, *, endpoint: str, master_key: str, name: str) -> Identity:
    if known is None:
        return Identity(endpoint=endpoint, master_key=master_key, name=name)
    return evolve(known, endpoint=endpoint, master_key=master_key, name=known.name or name)


def _trust(file: Path, web_key: str, locals_: list[LocalAgent]) -> None:
    entries = [{"public_key": web_key, "role": "web", "name": "web"}]
    entries += [{"public_key": local.public_key, "role": "agent", "name": local.name} for local in locals_]
    auth.write_private(file, json.dumps(entries, indent=1).encode() + b"\n")
