"""What the daemons write, line by line: to files of bounded size and, marked with the daemon's name, to the terminal.

Promises that neither a full disk nor a terminal that takes nothing (Ctrl-S, a pipe nobody reads) can hold up a daemon.
Standard library only.
"""

from __future__ import annotations

import os
import re
import select
import time
from pathlib import Path
from typing import Final

from muster.terminal import COLOURS, neutralise, pad
from muster.words import ngettext

_LONGEST_LINE: Final = 64 * 1024
_READ: Final = 64 * 1024
_ATOMIC: Final = 4096  # a writable pipe takes as much at once without blocking
_HARMLESS: Final = re.compile(rb"[\t\x20-\x7e]*").fullmatch


class LineReader:
    """Cuts what comes from a descriptor into lines; lines of more than 64 KiB are cut too."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.closed = False
        self._rest = b""

    def read(self, *, rounds: int = 1) -> tuple[list[bytes], bool]:
        """The lines that are there now, without their ends, and whether the other side has closed.

        Takes at most `rounds` times 64 KiB.
        """
        lines: list[bytes] = []
        for _ in range(rounds):
            try:
                got = os.read(self.fd, _READ)
            except BlockingIOError:
                break
            except OSError:
                got = b""
            if not got:
                rest, self._rest = self._rest, b""
                return ([*lines, rest] if rest else lines), True
            *whole, self._rest = (self._rest + got).split(b"\n")
            lines += whole
            if len(self._rest) > _LONGEST_LINE:
                lines.append(self._rest)
                self._rest = b""
        return lines, False

    def close(self) -> None:
        """Close the descriptor; `closed` tells of it."""
        self.closed = True
        os.close(self.fd)


class LogFile:
    """A file that lines are added to. At `most` bytes it is renamed to `.1`, the former `.1` to `.2`, and so on.

    A line that cannot be written is dropped.
    """

    def __init__(self, path: Path, *, most: int = 8 * 1024 * 1024, keep: int = 3) -> None:
        self._path = path
        self._most = most
        self._keep = keep
        self._fd: int | None = None
        self._size = 0

    def write(self, lines: list[bytes]) -> None:
        """Add lines, given without their ends."""
        content = b"".join(line + b"\n" for line in lines)
        try:
            if self._fd is None:
                self._open()
            elif self._size + len(content) > self._most:
                self._rotate()
            if self._fd is not None:
                self._size += os.write(self._fd, content)
        except OSError:
            return

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self.close()
        for number in range(self._keep - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))
        self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class Screen:
    """Where a person reads along: `ROLE | line`. What cannot be shown at once is counted and left to the files."""

    def __init__(self, fd: int, *, width: int, colours: bool) -> None:
        self._fd = fd
        self._width = width
        self._colours = colours
        self._roles: dict[str, bytes] = {}
        self._dropped = 0
        self._open = True

    def show(self, role: str, lines: list[bytes]) -> None:
        """Show lines of a role; as many as fit are written at once."""
        mark = self._mark(role)
        block: list[bytes] = []
        size = 0
        for line in lines:
            piece = mark + (line if _HARMLESS(line) else _shown(line))
            piece = piece[: _ATOMIC - 1] + b"\n"
            if size + len(piece) > _ATOMIC:
                self._put(b"".join(block), len(block))
                block, size = [], 0
            block.append(piece)
            size += len(piece)
        if block:
            self._put(b"".join(block), len(block))

    def say(self, text: str, *, wait_s: float = 1.0) -> None:
        """Show text of our own as it is; worth waiting a moment for a screen that takes nothing."""
        if self._takes(wait_s):
            self._put(text.encode("utf-8", "replace"), 0)

    def _mark(self, role: str) -> bytes:
        if role not in self._roles:
            padded = f"{pad(role, self._width)} | "
            colour = COLOURS[len(self._roles) % len(COLOURS)]
            self._roles[role] = (f"\x1b[{colour}m{padded}\x1b[0m" if self._colours else padded).encode()
        return self._roles[role]

    def _takes(self, wait_s: float) -> bool:
        if not self._open:
            return False
        deadline = time.monotonic() + wait_s
        try:
            return bool(select.select([], [self._fd], [], max(0.0, deadline - time.monotonic()))[1])
        except (OSError, ValueError):
            self._open = False
            return False

    def _put(self, content: bytes, lines: int) -> None:
        """Write a block of at most 4 KiB, if that can be done at once; else count its lines as not shown."""
        if not self._takes(0.0):
            self._dropped += lines
            return
        if self._dropped:
            told = ngettext(
                "%(num)s line was not shown here; see the log files",
                "%(num)s lines were not shown here; see the log files",
                self._dropped,
            )
            self._dropped = 0
            self._write(self._mark("muster") + told.encode() + b"\n")
            if not self._takes(0.0):
                self._dropped += lines
                return
        self._write(content)

    def _write(self, content: bytes) -> None:
        try:
            os.write(self._fd, content)
        except BlockingIOError:
            self._dropped += content.count(b"\n")
        except OSError:
            self._open = False  # nobody reads any more; the files still get everything


def _shown(line: bytes) -> bytes:
    return neutralise(line[:_ATOMIC].decode("utf-8", "replace"), colours=False).encode("utf-8", "replace")
