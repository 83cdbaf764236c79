"""Who this agent is: the files of its state directory that name it, and what names its host.

`agent.json` (0600) keeps the master's address and what the master answered, `agent.key` (0600) the agent's own key,
`agent.lock` the promise that one agent alone uses the directory: a second one is refused with the first one's pid.
The lock goes with the process, so nothing has to be cleaned up after a crash.
"""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec

from common import auth, pidlock
from common.errors import Conflict, MusterError, NotFound
from common.model import Record

_MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class BadIdentity(MusterError):
    """The state directory's agent.json cannot be used."""

    code = "bad_identity"


class Identity(Record, frozen=True, kw_only=True):
    """What `agent.json` holds. The last four are what the command line said when it last said anything."""

    endpoint: str  # tcp://HOST:PORT of the master
    master_key: str  # its public CURVE key, z85
    agent_id: str | None = None  # given by the master; None before the first register of a local agent
    name: str | None = None  # wished for until the master has given one
    boot_id: str | None = None  # of the boot under which the master last heard of all that runs here
    labels: dict[str, str] | None = None
    queues: list[str] | None = None  # None: all
    slots: int | None = None  # None: as many as there are CPUs


@dataclass(frozen=True, slots=True)
class Host:
    """What names the machine and its present boot."""

    hostname: str
    machine_id: str  # the same after a reboot; a hash, because the original should stay on its machine
    boot_id: str


class AgentHome:
    """A state directory in use by this process: `open` locks it, `close` gives it back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = -1

    @property
    def key_file(self) -> Path:
        """Where the agent's own key pair is."""
        return self.path / "agent.key"

    def open(self) -> None:
        """Make the directory where there is none, and lock it. Raises `Conflict` naming the process that has it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._lock_fd = pidlock.take(self.path / "agent.lock")
        except pidlock.Held as held:
            raise Conflict(
                f"The agent's state directory {self.path} is in use by {held.who}: stop that agent first, "
                "or give this one a directory of its own with --state."
            ) from None

    def close(self) -> None:
        """Let another agent use the directory."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def load(self) -> Identity | None:
        """The identity kept here, None if there is none. Raises `BadIdentity`, or `auth.BadKeyFile` for its mode."""
        path = self.path / "agent.json"
        try:
            return msgspec.json.decode(auth.read_private(path), type=Identity)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise BadIdentity(
                f"{path} cannot be read ({error}): restore it, or remove it and enrol anew with a join token."
            ) from error

    def save(self, identity: Identity) -> None:
        """Keep `identity`, all of it or, after a crash, what was there before."""
        auth.write_private(self.path / "agent.json", msgspec.json.format(msgspec.json.encode(identity)) + b"\n")

    def key_pair(self) -> auth.KeyPair:
        """The agent's key pair. Raises `NotFound` when there is none, `auth.BadKeyFile`."""
        try:
            return auth.load_key_pair(self.key_file)
        except FileNotFoundError:
            raise NotFound(f"{self.key_file} is missing: restore it, or enrol anew with a join token.") from None


def this_host(*, boot_id_file: Path | None = None, machine_id_file: Path | None = None) -> Host:
    """The machine this process runs on; the files are given by tests only."""
    return Host(
        hostname=socket.gethostname(),
        machine_id=_machine_id((machine_id_file,) if machine_id_file else _MACHINE_ID_FILES),
        boot_id=(boot_id_file or _BOOT_ID_FILE).read_text("ascii").strip(),
    )


def _machine_id(files: tuple[Path, ...]) -> str:
    for file in files:
        try:
            text = file.read_text("ascii", "replace").strip()
        except OSError:
            continue
        if text:
            return hashlib.sha256(b"muster agent " + text.encode()).hexdigest()[:32]
    # No such file, as in some containers: the network card's address, which also survives a restart.
    return hashlib.sha256(b"muster agent " + uuid.getnode().to_bytes(8, "big")).hexdigest()[:32]
