"""Where an attempt's files are and which of them says what; used by the agent and by the shepherd.

    DIR/attempts/RUN_ID.ATTEMPT/      0700
        script                        0400, the bytes as they came
        attempt.jsonl                 0600, made by the shepherd before it forks: started once, never again.
                                      First line: who it is and when; second line: the main process
        output.OFFSET                 0600, the spool (agent/spool.py)
        exit.json                     0600, the exit record; appears whole or not at all

Nothing a person wrote gets into a path: a run id that is no UUID is refused. Standard library only, and small.
"""

from __future__ import annotations

import json
import os
import re

TYPE_CHECKING = False  # the module typing is left out of the shepherd
if TYPE_CHECKING:
    from typing import Any

_uuid = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch

SCRIPT = "script"
STARTED = "attempt.jsonl"
EXIT = "exit.json"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_JSON = 16 * 1024 * 1024


def boot_id(path: str = "/proc/sys/kernel/random/boot_id") -> str:
    """What names the present boot of this host."""
    with open(path, encoding="ascii") as file:
        return file.read().strip()


class AttemptFiles:
    """The directory of one attempt."""

    __slots__ = ("attempt", "path", "run_id")

    def __init__(self, attempts: str, run_id: str, attempt: int) -> None:
        """`attempts` is DIR/attempts. Raises ValueError for what cannot be an attempt's name."""
        if not (isinstance(run_id, str) and _uuid(run_id)):
            raise ValueError("the run id is not a UUID in small letters")
        if type(attempt) is not int or not 0 < attempt < 1_000_000_000:
            raise ValueError("the attempt is not a whole number from 1 on")
        self.run_id = run_id
        self.attempt = attempt
        self.path = f"{attempts}/{run_id}.{attempt}"

    def __repr__(self) -> str:
        return f"AttemptFiles({self.path!r})"

    @property
    def key(self) -> tuple[str, int]:
        """(run id, attempt)."""
        return (self.run_id, self.attempt)

    @property
    def script(self) -> str:
        """The path of the script file, an argument of its interpreter."""
        return f"{self.path}/{SCRIPT}"

    def create(self, script: bytes) -> None:
        """Make the directory and the script file. What an earlier try left there without starting is replaced.

        Raises OSError (a full disk, say); then nothing is left behind. FileExistsError: it was started before.
        """
        try:
            self._make()
        except FileExistsError:
            if os.path.lexists(f"{self.path}/{STARTED}"):
                raise
            self.remove()
            self._make()
        try:
            _write_new(self.script, script, 0o400)
        except OSError:
            self.remove()
            raise

    def _make(self) -> None:
        try:
            os.mkdir(self.path, 0o700)
        except FileNotFoundError:
            # Whoever removed the parent, a script perhaps, must not keep this host from ever working again.
            os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
            os.mkdir(self.path, 0o700)

    def claim(self, line: bytes) -> int:
        """Note, before the fork, that this attempt is being started; returns the descriptor to note the rest in.

        Raises FileExistsError if it was started before, other OSError if that cannot be noted.
        """
        path = f"{self.path}/{STARTED}"
        fd = os.open(path, _NEW_FILE | os.O_APPEND, 0o600)
        try:
            _write_all(fd, line)
        except OSError:
            os.close(fd)
            os.unlink(path)
            raise
        return fd

    def started(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """What `attempt.jsonl` says: (who and when, the main process); None if it was never started.

        A part that cannot be read, as after a loss of power, is an empty map.
        """
        raw = _read(f"{self.path}/{STARTED}")
        if raw is None:
            return None
        lines = [*raw.split(b"\n"), b"", b""]
        return _object(lines[0]), _object(lines[1])

    def write_exit(self, record: bytes) -> None:
        """Put the exit record (JSON) in place, whole or not at all. Raises OSError."""
        temporary = f"{self.path}/{EXIT}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, record)
        finally:
            os.close(fd)
        os.rename(temporary, f"{self.path}/{EXIT}")

    def exit(self) -> dict[str, Any] | None:
        """The exit record; None if there is none, or none that can be read."""
        return _object(_read(f"{self.path}/{EXIT}") or b"") or None

    def exists(self) -> bool:
        """Whether the directory is there."""
        return os.path.isdir(self.path)

    def remove(self) -> None:
        """Take the directory away; no error if it is gone, or cannot be taken away (then it is tried again later)."""
        try:
            with os.scandir(self.path) as entries:
                names = [entry.name for entry in entries]
            for name in names:
                os.unlink(f"{self.path}/{name}")
            os.rmdir(self.path)
        except OSError:
            pass


def find_attempts(attempts: str) -> list[AttemptFiles]:
    """All attempts that have a directory below DIR/attempts; names that are no attempt's are left alone."""
    found = []
    try:
        names = os.listdir(attempts)
    except FileNotFoundError:
        return []
    for name in sorted(names):
        run_id, _, number = name.rpartition(".")
        if number.isdecimal() and number.isascii():
            try:
                found.append(AttemptFiles(attempts, run_id, int(number)))
            except ValueError:
                continue
    return found


def _write_new(path: str, content: bytes, mode: int) -> None:
    fd = os.open(path, _NEW_FILE, mode)
    try:
        _write_all(fd, content)
    finally:
        os.close(fd)


def _write_all(fd: int, content: bytes) -> None:
    written = os.write(fd, content)
    while written < len(content):
        written += os.write(fd, memoryview(content)[written:])


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(_MAX_JSON)
    except OSError:
        return None


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError:  # torn, or not text at all
        return {}
    return value if isinstance(value, dict) else {}
