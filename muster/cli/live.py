"""Output of many runs on one screen: whole lines, each marked with its agent, and one line of progress below.

Bytes of stdout go to our stdout, of stderr to our stderr, in the order in which their lines were completed. On a
terminal lines are made safe and progress bars are folded; elsewhere every byte is passed on as it was written.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import BinaryIO, Final

from muster.terminal import COLOURS, cells, cut, fold, neutralise, pad, plain

_LONGEST_LINE: Final = 64 * 1024
_WIDEST_NAME: Final = 24


class Lines:
    """Cuts one pipe's bytes into lines; a longer line than 64 KiB is given in pieces."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, content: bytes) -> list[bytes]:
        """The lines completed by `content`, without their ends."""
        *lines, self.rest = (self.rest + content).split(b"\n")
        while len(self.rest) > _LONGEST_LINE:
            lines.append(self.rest[:_LONGEST_LINE])
            self.rest = self.rest[_LONGEST_LINE:]
        return lines

    def end(self) -> list[bytes]:
        """What is left without an end."""
        rest, self.rest = self.rest, b""
        return [rest] if rest else []


class Printer:
    """Prints lines of agents. `prefix` false: without their names. `names` are those expected, for the width."""

    def __init__(self, *, prefix: bool = True, names: Sequence[str] = ()) -> None:
        self._out = _Sink(sys.stdout.buffer)
        self._err = _Sink(sys.stderr.buffer)
        self._prefix = prefix
        self._width = min(max(map(cells, names), default=0), _WIDEST_NAME)
        self._order: dict[str, int] = {}
        self._status = ""
        self._drawn = False
        # Progress belongs on the person's screen, wherever the output goes.
        self.shows_progress = self._err.is_terminal and os.environ.get("TERM") != "dumb"

    def lines(self, name: str, stream: str, lines: Sequence[bytes]) -> None:
        """Print lines, given without their ends, of an agent's stdout or stderr."""
        if not lines:
            return
        sink = self._err if stream == "stderr" else self._out
        mark = self._mark(name, stream, coloured=sink.coloured) if self._prefix else b""
        self.clear()
        if sink.is_terminal:
            shown = (neutralise(fold(line).decode("utf-8", "replace"), colours=sink.coloured) for line in lines)
            sink.write(b"".join(mark + line.encode("utf-8", "replace") + b"\n" for line in shown))
        else:
            sink.write(b"".join(mark + line + b"\n" for line in lines))
        self._draw()

    def say(self, text: str) -> None:
        """A line of our own, on stderr; safe for a terminal as it is."""
        self.clear()
        self._err.write(f"{text}\n".encode("utf-8", "replace"))
        self._draw()

    def progress(self, text: str) -> None:
        """Show `text` as the last line until something else is shown; nothing without a terminal."""
        if self.shows_progress and (text != self._status or not self._drawn):
            self._status = text
            self._draw()

    def clear(self) -> None:
        """Take the line of progress away."""
        if self._drawn:
            self._err.write(b"\r\x1b[K")
            self._drawn = False

    def end_progress(self) -> None:
        """Show no progress any more."""
        self.clear()
        self._status = ""

    def _draw(self) -> None:
        if self._status and self.shows_progress:
            shown = cut(plain(self._status), shutil.get_terminal_size().columns - 1)
            self._err.write(b"\r\x1b[K" + shown.encode("utf-8", "replace"))
            self._drawn = True

    def _mark(self, name: str, stream: str, *, coloured: bool) -> bytes:
        self._width = max(self._width, min(cells(name), _WIDEST_NAME))
        divider = "!" if stream == "stderr" else "|"
        text = f"{pad(plain(name), self._width)} {divider} "
        if coloured:
            number = self._order.setdefault(name, len(self._order))
            colour = "31" if stream == "stderr" else COLOURS[number % len(COLOURS)]
            text = f"\x1b[{colour}m{text}\x1b[0m"
        return text.encode("utf-8", "replace")


class _Sink:
    """One of our two streams."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.is_terminal = file.isatty()
        self.coloured = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._file.flush()
