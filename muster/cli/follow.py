"""Following a task to its end: its events become lines on the screen, Ctrl-C becomes a question.

Events come by server-sent events, which go on by themselves behind a restart of the webserver; where a proxy lets none
through, by asking again and again. A thread reads them, so that a signal is heard at once and nothing is cut in two.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

from muster.cli import reasons
from muster.cli.live import Lines, Printer
from muster.cli.output import counts
from muster.client import ApiError, Client, Event, Run, Task, Unavailable
from muster.sse import Subscription
from muster.terminal import plain
from muster.words import _

_TICK_S: Final = 0.25
_FIRST_EVENT_S: Final = 10.0
_POLL_S: Final = 1.0
_REDRAW_S: Final = 0.1
_AHEAD: Final = 64  # events read and not yet shown; each may hold 256 KiB
_QUIET_S: Final = 2.0  # after this long without a run, say what the task waits for


class Choice(Enum):
    """What the person wants after Ctrl-C."""

    GO_ON = "go on"
    DETACH = "detach"
    CANCEL = "cancel"


class Detached(Exception):
    """The person has left the task to itself."""


_INTERRUPTED: Final = object()


@dataclass(slots=True)
class _Printed:
    """How far a run's output has been shown."""

    attempt: int = 0
    offset: int = 0
    pipes: dict[str, Lines] = field(default_factory=dict)


class Follower:
    """Shows a task's output on `printer` until the task is final.

    `wanted` says whose output to show; all if left out. `ask` is called after Ctrl-C.
    """

    def __init__(
        self,
        client: Client,
        task_id: str,
        *,
        printer: Printer,
        ask: Callable[[], Choice],
        wanted: Callable[[Run], bool] | None = None,
        stream: str = "all",
    ) -> None:
        self._client = client
        self._task_id = task_id
        self._printer = printer
        self._ask = ask
        self._wanted = wanted or (lambda run: True)
        self._stream = stream
        self._task: Task | None = None
        self.runs: dict[str, Run] = {}
        self._printed: dict[str, _Printed] = {}
        self._news: SimpleQueue[Event | Exception | object] = SimpleQueue()
        self._room = threading.Semaphore(_AHEAD)
        self._over = False
        self._began_at = time.monotonic()
        self._told_waiting = ""
        self._progress_at = 0.0  # not before this; a busy task has thousands of events a second

    def follow(self) -> Task:
        """The final task. Raises `Detached`, or what kept the events from coming (`MusterError`)."""
        subscription = self._client.events(self._task_id)
        reader = threading.Thread(target=self._read, args=(subscription,), name="events", daemon=True)
        try:
            with self._interrupts():
                reader.start()
                while self._task is None or not self._task.final:
                    self._next()
            self._end_lines()
            return self._task
        finally:
            self._printer.end_progress()
            subscription.close()
            self._over = True
            self._room.release()

    def _next(self) -> None:
        """Wait for the next event or signal, for a moment at most, and act on it."""
        try:
            news = self._news.get(timeout=_TICK_S)
        except Empty:
            self._tick()
            return
        if news is _INTERRUPTED:
            self._interrupted()
        elif isinstance(news, Exception):
            raise news
        elif isinstance(news, Event):
            self._room.release()
            self._show(news)

    # Events

    def _read(self, subscription: Subscription) -> None:
        """Put events into the queue until all is over. In a thread of its own."""
        try:
            for event in events(self._client, self._task_id, subscription):
                self._room.acquire()
                if self._over:
                    return
                self._news.put(event)
        except Exception as error:  # the edge of the thread: whatever it is, the main thread raises it
            self._news.put(error)

    def _show(self, event: Event) -> None:
        if event.kind == "output":
            self._output(event)
        elif event.run is not None:
            self.runs[event.run.id] = event.run
            if event.run.final:
                self._end_lines(event.run.id)
        elif event.task is not None:
            self._task = event.task
        if time.monotonic() >= self._progress_at:
            self._progress()

    def _output(self, event: Event) -> None:
        run_id = event.run_id or ""
        run = self.runs.get(run_id)
        if run is None or (run.agent is None and not run.final):
            run = self.runs[run_id] = self._client.run(run_id)
        if not self._wanted(run):
            return
        printed = self._printed.setdefault(run_id, _Printed())
        if event.attempt < printed.attempt:
            return
        if event.attempt > printed.attempt:
            self._end_lines(run_id)
            if printed.attempt:
                self._printer.say(_("%(agent)s: attempt %(num)s", agent=plain(run.where), num=event.attempt))
            printed.attempt, printed.offset = event.attempt, 0
        end = event.offset + len(event.data)
        fresh = event.data[max(0, printed.offset - event.offset) :]  # a snapshot may repeat what was shown
        if event.offset > printed.offset:
            self._end_lines(run_id)
            missing = event.offset - printed.offset
            self._printer.say(_("%(agent)s: %(num)s bytes were not kept", agent=plain(run.where), num=missing))
        printed.offset = max(printed.offset, end)
        if fresh and self._stream in ("all", event.stream):
            pipe = printed.pipes.setdefault(event.stream, Lines())
            self._printer.lines(run.where, event.stream, pipe.feed(fresh))

    def _end_lines(self, run_id: str | None = None) -> None:
        """Show what was written without a line's end; of one run, or of all."""
        for known in [run_id] if run_id else list(self._printed):
            for stream, pipe in self._printed[known].pipes.items() if known in self._printed else ():
                self._printer.lines(self.runs[known].where, stream, pipe.end())

    # What the person sees beside the output

    def _progress(self) -> None:
        task = self._task
        if task is None or not self._printer.shows_progress:
            return
        self._progress_at = time.monotonic() + _REDRAW_S
        parts = [_("%(ended)s/%(total)s ended", ended=task.ended, total=task.total), counts(task.counts)]
        busy = [run for run in self.runs.values() if run.state == "running"]
        if not busy and task.waiting_because:
            parts.append(reasons.waiting(task) or "")
        elif len(busy) == 1:
            parts.append(f"{busy[0].where} {self._half_line(busy[0])}".strip())
        self._printer.progress(" · ".join(part for part in parts if part))

    def _half_line(self, run: Run) -> str:
        """What the run has written since its last whole line: a progress bar, or a question."""
        printed = self._printed.get(run.id)
        halves = [pipe.rest for pipe in printed.pipes.values() if pipe.rest] if printed else []
        return halves[-1][-2000:].split(b"\r")[-1].decode("utf-8", "replace") if halves else ""

    def _tick(self) -> None:
        self._progress()
        task = self._task
        if task is None or self._printer.shows_progress or time.monotonic() - self._began_at < _QUIET_S:
            return
        if not task.counts.get("running") and task.waiting_because and task.waiting_because != self._told_waiting:
            self._told_waiting = task.waiting_because
            self._printer.say(_("waiting: %(because)s", because=plain(reasons.waiting(task))))

    # Ctrl-C

    @contextlib.contextmanager
    def _interrupts(self) -> Iterator[None]:
        def caught(number: int, frame: FrameType | None) -> None:
            self._news.put(_INTERRUPTED)  # the one queue that may be used in a signal's handler

        before = signal.signal(signal.SIGINT, caught)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupted(self) -> None:
        self._printer.clear()
        choice = self._ask()
        if choice is Choice.CANCEL:
            self._client.cancel(self._task_id)
            self._printer.say(_("cancelling; waiting for the scripts to end"))
        elif choice is Choice.DETACH:
            raise Detached


def ask_person(task_id: str) -> Choice:
    """Ask what Ctrl-C is to do; without a terminal to ask at, or at a second Ctrl-C, detach."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return Choice.DETACH
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while True:
            asked = _("The task goes on. [d]etach, [c]ancel it, or Enter to go on following: ")
            print("\n" + asked, end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            word = line.strip().lower()
            if not line or word in ("d", "detach"):
                return Choice.DETACH
            if word in ("c", "cancel"):
                return Choice.CANCEL
            if not word:
                return Choice.GO_ON
    except KeyboardInterrupt:
        return Choice.DETACH
    finally:
        signal.signal(signal.SIGINT, before)


def events(client: Client, task_id: str, subscription: Subscription) -> Iterator[Event]:
    """The task's events from its first on: as a stream, or by polling where no stream comes through.

    Ends when the subscription is closed.
    """
    heard, silent = threading.Event(), threading.Event()
    threading.Thread(target=_give_up_if_silent, args=(subscription, heard, silent), daemon=True).start()
    try:
        for event in subscription:
            heard.set()
            yield event
        if not silent.is_set():
            return
    except Unavailable:
        raise
    except ApiError:
        if heard.is_set():
            raise
    finally:
        heard.set()
    yield from polled(client, task_id)


def _give_up_if_silent(subscription: Subscription, heard: threading.Event, silent: threading.Event) -> None:
    """Close a stream that is open and says nothing: a proxy keeps its events back."""
    silent_s = 0.0
    while not heard.wait(_POLL_S):
        silent_s = silent_s + _POLL_S if subscription.connected else 0.0
        if silent_s >= _FIRST_EVENT_S:
            silent.set()
            subscription.close()
            return


def polled(client: Client, task_id: str, *, pause: Callable[[float], object] = time.sleep) -> Iterator[Event]:
    """The same events by asking each second: runs before their output, all output before the final task."""
    offsets: dict[tuple[str, int], int] = {}
    while True:
        task = client.task(task_id)
        for run in client.runs(task_id):
            yield Event(raw=run.raw, kind="run", run=run, run_id=run.id, attempt=run.attempt)
            key = (run.id, run.attempt)
            while offsets.get(key, 0) < run.output_bytes or (run.state == "running" and key not in offsets):
                piece = client.output_at(run.id, offset=offsets.get(key, 0), attempt=run.attempt)
                offsets[key] = piece.next_offset
                if not piece.data:
                    break
                yield Event(
                    raw={}, kind="output", run_id=run.id, attempt=run.attempt, offset=piece.offset, data=piece.data
                )
        yield Event(raw=task.raw, kind="task", task=task)
        if task.final:
            return
        pause(_POLL_S)
