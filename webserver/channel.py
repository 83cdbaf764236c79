"""One stream of events, built once for all who follow it: of one task, of one run, or of everything.

The change feed says only what has changed. A channel fetches those things, each once however often it changed
meanwhile, and appends them to its log; followers read the log at their own pace, and one that falls behind what the log
still holds is brought up to date from the master. So memory is bounded whatever a task prints and however slowly
somebody reads, and nobody's slowness delays another.

A follower of a task or a run can count on the order: a run is told to be under way before its output, all its output
before its end, the runs' ends before the task's; output without gap or repeat. A snapshot keeps that order too: what
has ended is told as it was before, then its output, then its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import gevent
import msgspec
from gevent.event import Event
from gevent.lock import BoundedSemaphore

from common.clock import Clock
from common.errors import MusterError, NotFound
from common.model import FINAL_STATES, TASK_FINAL_STATES
from webserver import wording
from webserver.fetching import Key, View, changed_agents, changed_runs, runs_of
from webserver.output_reader import OutputReader
from webserver.sse import ID_STEP, KEEPALIVE, Entry, EventLog, Mark, Progress, event, output_event, trim, with_id

logger = logging.getLogger(__name__)

KEEPALIVE_S = 15.0
_SEND_BYTES = 64 * 1024
_PACE_LEAST_S = 0.01
_PACE_MOST_S = 0.25
_PACE_COUNTING_S = 0.2  # a task's counts may change with each of its runs; nobody reads them faster
_RETRY_S = 0.5
_DIRTY_MOST = 20_000
_ENDED_MOST = 5_000
_RESET = with_id(event("reset", b"{}"), 0)
_AWAY = event("away", b"{}") + b"\n"  # without an id: nothing happened that could be gone on from
_BACK = event("back", b"{}") + b"\n"
_encode = msgspec.json.Encoder().encode
Sent = dict[str, Mark]
Told = tuple[bytes, str | None, Mark | None]  # an unfinished event; for output, its run and the mark behind it


class Channel:
    """The events of what `key` names.

    `seq` is the feed row up to which the feed was read when the channel was made; every later row must be noted.
    """

    def __init__(
        self,
        reader: OutputReader,
        clock: Clock,
        *,
        key: Key,
        seq: int,
        log_bytes: Callable[[], int],
    ) -> None:
        self.key = key
        self.followers = 0
        self.fell_behind = 0
        self.idle_since_s = clock.monotonic_s()
        self._reader = reader
        self._master = reader.master
        self._clock = clock
        self._log_bytes = log_bytes
        self._log = EventLog(base_id=max(1, seq * ID_STEP))  # id 0 is no place to go on from
        self._seq = seq
        self._begun = False  # somebody has followed it, so its log is a continuation
        self._progress = Progress(ended_most=_ENDED_MOST if key.everything else None)
        self._told: dict[str, tuple[int, int | None]] = {}  # the last event's hash, and after which reading it was told
        self._readings = 0  # how often a follower had things from elsewhere than the log
        self._dirty: dict[tuple[str, str], int] = {}  # (kind, id) → last feed row that named it, in order of rows
        self._fetching = BoundedSemaphore(1)  # what is fetched under it is as new as its place in the log says
        self._grown = Event()
        self._wake = Event()
        self._pump: gevent.Greenlet[..., None] | None = None
        self._away = False  # whether the master cannot be asked at present
        self._broken = False
        self._closed = False

    # -- what comes from the feed ------------------------------------------------------------------------------------

    def note(self, seq: int, kind: str, item_id: str) -> None:
        """Feed row `seq` names a changed `task`, `run` or `agent`, or new `output` of the run `item_id`."""
        if kind == "output" and not self.key.output:
            return
        self._seq = seq
        self._dirty.pop((kind, item_id), None)
        self._dirty[kind, item_id] = seq
        if len(self._dirty) > _DIRTY_MOST and self.key.everything:
            self.break_off()
        self._wake.set()

    def tell_away(self, away: bool) -> None:
        """Tell all followers that nothing new can be known for now, or that it can again."""
        self._away = away
        self._grow()

    def break_off(self) -> None:
        """Tell all followers to begin anew: rows of the feed were missed. The channel is of no further use."""
        self._broken = True
        self._end()

    def close(self) -> None:
        """End all followers' streams: the webserver stops."""
        self._closed = True
        self._end()

    @property
    def usable(self) -> bool:
        """Whether it can be followed."""
        return not (self._broken or self._closed)

    def _end(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.kill(block=False)
        self._grow()

    def _grow(self) -> None:
        grown, self._grown = self._grown, Event()
        grown.set()

    def mark(self) -> int:
        """The id behind which everything is told that is not yet so when the master is asked from now on."""
        self._begin()
        self.idle_since_s = self._clock.monotonic_s()
        return self._log.last_id

    # -- following ---------------------------------------------------------------------------------------------------

    def follow(self, after: int | None) -> Generator[bytes, None, None]:
        """Events behind the one with id `after`; None, or an id that cannot be resumed: a snapshot first.

        Its first block, perhaps an empty one, comes when nothing more can be missed. Ends when the channel is closed
        or broken off. Raises what the master answers to the snapshot.
        """
        self.followers += 1
        try:
            place = self._log.place(after) if after is not None and self._begun else None
            if place is None:
                place = yield from self._catch_up({}, reset=after is not None)
            else:
                yield b""
            position, sent = place
            away = False
            while self.usable:
                self._keep_pumping()
                if away != self._away:
                    away = self._away
                    yield _AWAY if away else _BACK
                elif position < self._log.start:
                    self.fell_behind += 1
                    position, sent = yield from self._catch_up(sent, reset=self.key.everything)
                elif position == self._log.end:
                    if not self._grown.wait(timeout=KEEPALIVE_S):
                        yield KEEPALIVE
                else:
                    block, position = self._next(position, sent)
                    if block:
                        yield block
            if self._broken:
                yield _RESET
        finally:
            self.followers -= 1
            self.idle_since_s = self._clock.monotonic_s()

    def _next(self, position: int, sent: Sent) -> tuple[bytes, int]:
        """The events from `position` on that the follower has not had, up to a good size, and the position behind."""
        block = bytearray()
        while position < self._log.end and len(block) < _SEND_BYTES:
            entry = self._log[position]
            position += 1
            if entry.run_id is not None and entry.mark is not None:
                if entry.mark <= sent.get(entry.run_id, Mark(0, 0)):
                    continue
                sent[entry.run_id] = entry.mark
            block += entry.event
        return bytes(block), position

    def _catch_up(self, sent: Sent, *, reset: bool) -> Generator[bytes, None, tuple[int, Sent]]:
        """Bring a follower that has had output up to `sent` up to date; answers (position, marks) to go on from."""
        opening = _RESET if reset else b""
        if self.key.everything:
            self._begin()  # of everything there is no snapshot
            position = self._log.end
            yield opening + with_id(b"", self._log.last_id)
            return position, {}
        if opening:
            yield opening
        with self._fetching:
            first, last, target = self._snapshot()
            self._begin()
            position, last_id = self._log.end, self._log.last_id
        held = b""  # one event is held back: the last of all carries the id from which the client can go on
        for unfinished in self._missing(first, last, sent, target):
            if held:
                yield with_id(held, 0)
            held = unfinished
        yield with_id(held, last_id)
        return position, target

    def _begin(self) -> None:
        """Somebody goes on from here with what the master told: the next event of each thing is no repeat to them."""
        self._begun = True
        self._readings += 1

    def _snapshot(self) -> tuple[list[bytes], list[bytes], Sent]:
        """Events to tell before the output and behind it, and the marks up to which output belongs to the snapshot.

        An end whose output was not published in full is left to the log.
        """
        first: list[bytes] = []
        last: list[bytes] = []
        target: Sent = {}
        over = False
        if self.key.task_id is not None:
            task = self._master.get_task(self.key.task_id)
            over = task["state"] in TASK_FINAL_STATES
            first.append(event("task", _encode(wording.task_under_way(task) if over else wording.task(task))))
        for view in runs_of(self._master, self.key):
            mark = self._known_mark(view)
            target[view["id"]] = mark
            if view["state"] not in FINAL_STATES or not view.get("output_bytes"):
                first.append(event("run", _encode(wording.run(view))))
                continue
            first.append(event("run", _encode(wording.run_under_way(view))))
            if not self.key.output or mark >= Mark(view["attempt"], view["output_bytes"]):
                last.append(event("run", _encode(wording.run(view))))
            else:
                over = False
        if over:
            last.append(event("task", _encode(wording.task(task))))
        return first, last, target

    def _known_mark(self, view: View) -> Mark:
        """How far this run's output was published, now at the latest: what was written before belongs to snapshots."""
        run_id = view["id"]
        if not self.key.output:
            return Mark(view["attempt"], 0)
        mark = self._progress.mark(run_id)
        if mark is None:
            mark = Mark(view["attempt"], view.get("output_bytes") or 0)
            self._progress.reach(run_id, mark)
            self._log.set_base(run_id, mark)
            if view["state"] == "running":  # its view may lag behind its output
                self._dirty.setdefault(("output", run_id), self._seq)
                self._wake.set()
        return mark

    def _missing(self, first: list[bytes], last: list[bytes], sent: Sent, target: Sent) -> Iterator[bytes]:
        yield from first
        for run_id, until in target.items():
            for piece in self._reader.between(run_id, sent.get(run_id, Mark(until.attempt, 0)), until):
                yield output_event(run_id, piece)
        yield from last

    # -- publishing --------------------------------------------------------------------------------------------------

    def _keep_pumping(self) -> None:
        if self._pump is None and self.usable:
            self._pump = gevent.spawn(self._pump_loop)

    def _pump_loop(self) -> None:
        """Publish what is dirty while somebody follows; slower when that is much work."""
        try:
            while self.followers and self.usable:
                if not self._dirty:
                    self._wake.clear()
                    self._wake.wait(timeout=KEEPALIVE_S)
                    continue
                began_s = self._clock.monotonic_s()
                pause_s = _RETRY_S
                if self._publish_round():
                    pace_s = _PACE_LEAST_S if self.key.runs else _PACE_COUNTING_S
                    pause_s = min(max(self._clock.monotonic_s() - began_s, pace_s), _PACE_MOST_S)
                gevent.sleep(pause_s)
        finally:
            if self._pump is gevent.getcurrent():
                self._pump = None

    def _publish_round(self) -> bool:
        """Publish all that is dirty now; False when the master could not be asked, and the rest stays dirty."""
        dirty, self._dirty = self._dirty, {}
        try:
            with self._fetching:
                views = self._views(dirty)
                while dirty:
                    (kind, item_id), seq = next(iter(dirty.items()))
                    self._publish(kind, item_id, seq, views)
                    del dirty[kind, item_id]
        except MusterError as error:
            logger.debug("events wait for the master: %s", error)
            newer = self._dirty
            self._dirty = {key: seq for key, seq in dirty.items() if key not in newer} | newer
            return False
        except Exception:  # edge of a loop: what cannot be told must not leave followers waiting for ever
            logger.exception("an event could not be built")
            self.break_off()
        return True

    def _views(self, dirty: Mapping[tuple[str, str], int]) -> dict[str, View]:
        """Views of what is dirty, so far as they come more cheaply together than one by one."""
        runs = [item_id for kind, item_id in dirty if kind == "run"]
        agents = [item_id for kind, item_id in dirty if kind == "agent"]
        known = changed_runs(self._master, self.key, runs, total=len(self._progress))
        return {**known, **changed_agents(self._master, agents)}

    def _publish(self, kind: str, item_id: str, seq: int, views: Mapping[str, View]) -> None:
        try:
            if kind == "agent":
                self._append(seq, self._agent_events(item_id, views.get(item_id)))
            elif kind == "output":
                self._append(seq, self._output_events(item_id, None))
            elif kind == "run":
                view = views.get(item_id) or self._master.read("get_run", item_id)
                self._append(seq, self._run_events(view))
                if view["state"] in FINAL_STATES:
                    self._progress.end(item_id, view["attempt"])
            elif kind == "task":
                self._append(seq, self._task_events(item_id))
        except NotFound:
            logger.debug("gone before it could be told: %s %s", kind, item_id)

    def _append(self, seq: int, events: Iterator[Told]) -> None:
        """Append events of one feed row; the last of them carries the id that completes the row."""
        held = next(events, None)
        while held is not None:
            following = next(events, None)
            unfinished, run_id, mark = held
            event_id = self._log.next_id(seq, whole=following is None)
            entry = Entry(event_id, with_id(unfinished, event_id))
            if run_id is not None and mark is not None:
                self._progress.reach(run_id, mark)
                if not self.key.everything:  # of everything there is no snapshot that a follower could be ahead of
                    entry = entry._replace(run_id=run_id, mark=mark)
            self._log.append(entry, limit=self._log_bytes())
            held = following
            self._grow()

    def _task_events(self, task_id: str) -> Iterator[Told]:
        """What is new of a task; before its end, all that is new of its runs."""
        view = self._master.get_task(task_id)
        if self.key.task_id is not None and view["state"] in TASK_FINAL_STATES:
            for run in runs_of(self._master, self.key):
                yield from self._run_events(run)
        word = wording.listed_task if self.key.everything else wording.task
        yield from self._object("task", task_id, word(view))

    def _run_events(self, view: View) -> Iterator[Told]:
        """What is new of a run, its output before itself."""
        run_id, attempt = view["id"], view["attempt"]
        published = self._progress.mark(run_id) or Mark(attempt, 0)
        if self.key.output and published < Mark(attempt, view.get("output_bytes") or 0):
            yield from self._output_events(run_id, view)
        yield from self._object("run", run_id, wording.run(view), lasting=view["state"] in FINAL_STATES)
        if view["state"] == "running":
            self._progress.begin(run_id, attempt)

    def _output_events(self, run_id: str, view: View | None) -> Iterator[Told]:
        """What the run wrote since it was last published; `view` is the run if it was fetched already."""
        found = False
        for piece in self._reader.since(run_id, self._progress.mark(run_id)):
            found = True
            if self._progress.under_way(run_id) != piece.mark.attempt:
                view = view or self._master.read("get_run", run_id)
                self._progress.begin(run_id, piece.mark.attempt)
                yield from self._object("run", run_id, wording.run_under_way(view))
            yield output_event(run_id, piece), run_id, piece.mark
        if not found and view is not None:
            self._progress.reach(run_id, Mark(view["attempt"], view.get("output_bytes") or 0))

    def _agent_events(self, agent_id: str, view: View | None) -> Iterator[Told]:
        """An agent as it is, or that it was forgotten."""
        try:
            worded = wording.agent(view or self._master.read("get_agent", agent_id))
        except NotFound:
            worded = {"id": agent_id, "forgotten": True}
        yield from self._object("agent", agent_id, worded)

    def _object(self, kind: str, item_id: str, worded: Any, *, lasting: bool = False) -> Iterator[Told]:
        """The event, unless it is the last one about this again. What was another way meanwhile may have been seen
        that way by whoever read it from the master, except where it cannot come back (`lasting`)."""
        raw = _encode(worded)
        fresh = (hash(raw), None if lasting else self._readings)
        if self._told.pop(item_id, None) != fresh:
            yield event(kind, raw), None, None
        self._told[item_id] = fresh
        trim(self._told)
