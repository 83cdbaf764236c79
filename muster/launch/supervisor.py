"""Keeps a set of daemons running: starts them in stages, restarts those that die, stops them in reverse order.

One thread and one selector: child output, readiness, signals and timers are all events of it, and it waits for
nothing else. To be run in the main thread. Standard library only.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from common.backoff import Backoff
from muster.launch.children import BAD_CONFIGURATION, Child, Phase, Program, adopts_orphans, bury_orphans, death
from muster.launch.lines import LineReader, LogFile, Screen
from muster.launch.readiness import Readiness
from muster.words import Phrase

_NEVER: Final = float("inf")
_SLOW_START_S: Final = 30.0
_AGAIN_S: Final = 0.3
# A pipe rests after it was read: under load lines come in batches, which cost a tenth of single ones.
_REST_S: Final = 0.1
_ROUNDS: Final = 8
_LAST_ROUNDS: Final = 64
_NAMED_MOST: Final = 4
_LONG_LIFE_S: Final = 30.0  # who lived longer than this did not die of its start
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
_FINISHED: Final = (Phase.STOPPED, Phase.REFUSED)


class Supervisor:
    """Runs `programs` until told to stop. `log_dir` gets a file for each role, and `up.log` for its own lines.

    `on_stage(stage)` is called once, when all programs of a stage are ready for the first time; those that the others
    do not need are waited for `optional_wait_s` at most.
    `restart_s` and `restart_most_s` bound the pause before a daemon that died is started again.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        log_dir: Path,
        screen: Screen,
        on_stage: Callable[[int], None],
        restart_s: float = 0.5,
        restart_most_s: float = 30.0,
        optional_wait_s: float = 10.0,
    ) -> None:
        first_s = max(restart_s, 0.01)
        most_s = max(restart_most_s, first_s)
        self.children = [
            Child(program, backoff=Backoff(base_s=first_s, cap_s=most_s, floor_s=first_s / 2)) for program in programs
        ]
        self._screen = screen
        self._on_stage = on_stage
        self._log_dir = log_dir
        self._logs: dict[str, LogFile] = {}
        self._readers: dict[Child, LineReader] = {}  # of the present processes; older pipes may still be read
        self._resting: dict[LineReader, tuple[Child, float]] = {}  # not watched until then
        self._selector = selectors.DefaultSelector()
        self._readiness = Readiness(self._selector, find=self._by_pid, on_ready=self._ready)
        self._caught: list[int] = []
        self._stage = -1  # the last one whose start has begun
        self._announced = -1  # the last one that was ready
        self._stage_at = 0.0  # when that start began
        self._optional_wait_s = optional_wait_s
        self._asked = 0  # how often we were asked to stop
        self._stopping: int | None = None  # the stage that is being stopped
        self._exit_code = 0
        self._told_slow: set[Child] = set()
        self._adopts = adopts_orphans()

    def run(self) -> int:
        """Run until everything has stopped: 0 after a stop on request, 1 if something had to be killed, 2 if a daemon
        that the others need refused its configuration.
        """
        with self._signals_caught():
            self._advance(time.monotonic())
            while not all(child.phase in _FINISHED for child in self.children):
                for key, _ in self._selector.select(self._wait_s(time.monotonic())):
                    key.data()
                now = time.monotonic()
                self._heed(now)
                self._reap(now)
                self._due(now)
                self._advance(now)
        self._readiness.close()
        self._selector.close()
        for log in self._logs.values():
            log.close()
        return self._exit_code

    def say(self, phrase: Phrase) -> None:
        """A line of our own: in the person's language on the screen, in English in `up.log`."""
        self._screen.show("muster", [str(phrase).encode()])
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._log("up", [f"{stamp} {phrase.english}".encode()])

    def stop(self, *, exit_code: int = 0) -> None:
        """Begin to stop, as the first signal does; `run` will answer at least `exit_code`."""
        self._exit_code = max(self._exit_code, exit_code)
        self._asked = max(self._asked, 1)
        if self._stopping is None:
            self._stop_stage(max((child.program.stage for child in self.children), default=0), time.monotonic())

    # Starting and restarting

    def _advance(self, now: float) -> None:
        """Begin the next stage once all of the present one is ready, has refused, or need not be waited for."""
        while self._asked == 0:
            missing = self._missing()
            if any(child.program.needed for child in missing):
                return
            if missing and now < self._stage_at + self._optional_wait_s:
                return
            if self._announced < self._stage:
                self._announced = self._stage
                if missing:
                    self._go_on_without(missing)
                self._on_stage(self._stage)
            later = [child.program.stage for child in self.children if child.program.stage > self._stage]
            if not later:
                return
            self._stage = min(later)
            self._stage_at = now
            for child in self.children:
                if child.program.stage == self._stage:
                    self._start(child, now)

    def _missing(self) -> list[Child]:
        """Those of the present stage that have never been ready and may yet be."""
        present = [child for child in self.children if child.program.stage == self._stage]
        return [child for child in present if not child.was_ready and child.phase is not Phase.REFUSED]

    def _go_on_without(self, missing: list[Child]) -> None:
        self._told_slow.update(missing)
        one, wait = len(missing) == 1, f"{self._optional_wait_s:g}"
        self.say(
            Phrase(
                "%(role)s is not ready after %(wait)s s: the start goes on without it; "
                "the lines above and the log files tell why",
                role=missing[0].role,
                wait=wait,
            )
            if one
            else Phrase(
                "%(roles)s are not ready after %(wait)s s: the start goes on without them; "
                "the lines above and the log files tell why",
                roles=_named(missing),
                wait=wait,
            )
        )

    def _start(self, child: Child, now: float) -> None:
        try:
            reader = LineReader(child.start(now, self._readiness.environ))
        except OSError as error:
            self._pause(child, now, Phrase("could not be started (%(error)s)", error=error))
            return
        self.say(Phrase("%(role)s is starting (process %(pid)s)", role=child.role, pid=child.pid))
        self._readers[child] = reader
        self._watch(child, reader)

    def _ready(self, child: Child) -> None:
        if child.phase is not Phase.STARTING:
            return
        reader = self._readers.get(child)
        if reader is not None:  # what it said before
            self._read(child, reader)
        child.phase = Phase.READY
        child.was_ready = True
        self.say(Phrase("%(role)s is ready", role=child.role))

    def _reap(self, now: float) -> None:
        for child in self.children:
            code = child.poll()
            if code is not None:
                self._readiness.forget(child)
                reader = self._readers.pop(child, None)
                if reader is not None:  # its last words first
                    self._read(child, reader, rounds=_LAST_ROUNDS)
                self._ended(child, code, now)
        if self._adopts:
            bury_orphans([child.pid for child in self.children if child.pid is not None])

    def _ended(self, child: Child, code: int, now: float) -> None:
        if child.phase is Phase.STOPPING:
            self.say(
                Phrase("%(role)s has stopped (%(how)s)", role=child.role, how=death(code))
                if code
                else Phrase("%(role)s has stopped", role=child.role)
            )
            child.phase = Phase.STOPPED
            self._stop_on(now)
        elif code == BAD_CONFIGURATION:
            self._refused(child)
        else:
            if now - child.started_at > _LONG_LIFE_S:
                child.backoff.reset()
            self._pause(child, now, Phrase("died (%(how)s)", how=death(code)))

    def _refused(self, child: Child) -> None:
        child.phase = Phase.REFUSED
        why = f": {child.last_line}" if child.last_line else ""
        role = child.role
        if child.program.needed:
            self.say(Phrase("%(role)s cannot run with this configuration%(why)s", role=role, why=why))
            self.stop(exit_code=BAD_CONFIGURATION)
        else:
            self.say(Phrase("%(role)s cannot run and is left out until the next start%(why)s", role=role, why=why))

    def _pause(self, child: Child, now: float, what: Phrase) -> None:
        pause_s = child.backoff.next_s()
        child.phase = Phase.PAUSING
        child.due_at = now + pause_s
        again = Phrase("it is started again in %(pause).1f s", pause=pause_s)
        self.say(Phrase("%(role)s %(what)s; %(again)s", role=child.role, what=what, again=again))

    # Stopping

    def _heed(self, now: float) -> None:
        caught, self._caught = self._caught, []
        for number in caught:
            if number == signal.SIGCHLD:
                continue
            self._asked += 1
            if self._asked == 1:
                self._asked_to_stop(number)
            elif self._asked == 2:
                self._hurry(now)
            else:
                self._kill(now)

    def _asked_to_stop(self, number: int) -> None:
        last = max((child.program.stage for child in self.children), default=0)
        busy = [child for child in self.children if child.alive and child.program.stage == last]
        self.say(
            Phrase(
                "stopping: waiting for %(roles)s to finish what runs; %(signal)s ends it at once",
                roles=_named(busy) if busy else Phrase("nobody"),
                signal=Phrase("Ctrl-C once more") if number == signal.SIGINT else Phrase("a second signal"),
            )
        )
        self.stop()

    def _stop_stage(self, stage: int, now: float) -> None:
        """Ask the daemons of a stage to end; the stage below follows when they have."""
        self._stopping = stage
        for child in self.children:
            if child.program.stage != stage or child.phase in _FINISHED:
                continue
            if child.alive:
                self._readiness.forget(child)
                child.phase = Phase.STOPPING
                child.due_at = now + (child.program.stop_s if self._asked < 2 else child.program.hurry_s)
                child.send(signal.SIGTERM)
                child.again_at = now + _AGAIN_S if self._asked > 1 else _NEVER
            else:
                child.phase = Phase.STOPPED
        self._stop_on(now)

    def _stop_on(self, now: float) -> None:
        """Go on to the stage below when all of the present one have stopped."""
        if any(c.phase is Phase.STOPPING for c in self.children) or self._stopping is None:
            return
        below = [c.program.stage for c in self.children if c.phase not in _FINISHED]
        if below:
            self._stop_stage(max(below), now)

    def _hurry(self, now: float) -> None:
        self.say(Phrase("stopping at once: scripts that still run are ended"))
        for child in self.children:
            if child.phase is Phase.STOPPING:
                child.due_at = now + child.program.hurry_s
                child.send(signal.SIGTERM)
                child.again_at = now + _AGAIN_S  # two that come close together count as one for the receiver

    def _kill(self, now: float) -> None:
        self.say(Phrase("killing the daemons; scripts are left to their shepherds, which end by themselves"))
        for child in self.children:
            child.due_at = now
            child.phase = Phase.STOPPING if child.alive else Phase.STOPPED
            child.send(signal.SIGKILL)

    # Events and timers

    def _due(self, now: float) -> None:
        self._readiness.due(now)
        for reader, (child, rested_at) in list(self._resting.items()):
            if rested_at <= now:
                del self._resting[reader]
                self._watch(child, reader)
        for child in self.children:
            if child.phase is Phase.PAUSING and child.due_at <= now:
                self._start(child, now)
            elif child.phase is Phase.STOPPING and child.due_at <= now:
                self._exit_code = max(self._exit_code, 1)
                self.say(Phrase("%(role)s did not stop and is killed", role=child.role))
                child.due_at = _NEVER
                child.send(signal.SIGKILL)
            elif child.phase is Phase.STOPPING and child.again_at <= now:
                child.again_at = _NEVER
                child.send(signal.SIGTERM)
            elif self._may_be_slow(child) and now - child.started_at > _SLOW_START_S:
                self._told_slow.add(child)
                self.say(
                    Phrase(
                        "%(role)s is not ready after %(wait).0f s; its lines above tell why",
                        role=child.role,
                        wait=_SLOW_START_S,
                    )
                )

    def _wait_s(self, now: float) -> float | None:
        if self._caught:
            return 0.0
        moments = [child.due_at for child in self.children if child.phase in (Phase.PAUSING, Phase.STOPPING)]
        moments += [child.again_at for child in self.children if child.phase is Phase.STOPPING]
        moments += [child.started_at + _SLOW_START_S for child in self.children if self._may_be_slow(child)]
        moments += [rested_at for _, rested_at in self._resting.values()]
        if self._announced < self._stage and now < self._stage_at + self._optional_wait_s:
            moments.append(self._stage_at + self._optional_wait_s)
        if self._readiness.next_at is not None:
            moments.append(self._readiness.next_at)
        soonest = min(moments, default=_NEVER)
        return None if soonest == _NEVER else max(0.0, soonest - now) + 0.001

    def _may_be_slow(self, child: Child) -> bool:
        return child.phase is Phase.STARTING and child not in self._told_slow

    def _watch(self, child: Child, reader: LineReader) -> None:
        self._selector.register(reader.fd, selectors.EVENT_READ, lambda: self._read(child, reader))

    def _read(self, child: Child, reader: LineReader, *, rounds: int = _ROUNDS) -> None:
        if reader.closed:  # by another event of the same moment
            return
        lines, closed = reader.read(rounds=rounds)
        if lines:
            child.last_line = lines[-1].decode("utf-8", "replace").strip() or child.last_line
            self._screen.show(child.role, lines)
            self._log(child.role, lines)
        if self._resting.pop(reader, None) is None:
            self._selector.unregister(reader.fd)
        if closed:
            if self._readers.get(child) is reader:
                del self._readers[child]
            reader.close()
        else:
            self._resting[reader] = (child, time.monotonic() + _REST_S)

    def _log(self, role: str, lines: list[bytes]) -> None:
        if role not in self._logs:
            self._logs[role] = LogFile(self._log_dir / f"{role}.log")
        self._logs[role].write(lines)

    def _by_pid(self, pid: int) -> Child | None:
        return next((child for child in self.children if child.pid == pid), None)

    @contextlib.contextmanager
    def _signals_caught(self) -> Iterator[None]:
        """Our signals wake the selector instead of interrupting whatever runs; SIGHUP stays ignored under `nohup`."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        wanted = [s for s in _SIGNALS if not (s == signal.SIGHUP and signal.getsignal(s) is signal.SIG_IGN)]
        before = {s: signal.signal(s, lambda number, _: self._caught.append(number)) for s in wanted}
        woken = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self._selector.register(ours, selectors.EVENT_READ, lambda: ours.recv(4096))
        try:
            yield
        finally:
            self._selector.unregister(ours)
            signal.set_wakeup_fd(woken)
            for number, action in before.items():
                signal.signal(number, action)
            ours.close()
            theirs.close()


def _named(children: Sequence[Child]) -> Phrase | str:
    """Their roles; of many the first ones, and how many more there are."""
    names = ", ".join(child.role for child in children[:_NAMED_MOST])
    more = len(children) - _NAMED_MOST
    return names if more <= 0 else Phrase("%(names)s and %(num)s more", names=names, num=more)
