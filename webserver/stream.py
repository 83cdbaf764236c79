"""Event streams of the webserver: one long poll of the master's change feed, told on to everybody who follows.

The poll runs only while somebody follows or may come back soon. Rows go to the channels of their run, of their task and
of everything; a channel without followers is kept a while, so that a client that lost its connection can go on where it
was, and a page where it was made. When the feed cannot be followed without a gap, every stream begins anew with the
event `reset`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing

import gevent
from gevent.lock import BoundedSemaphore

from common.clock import Clock
from common.errors import MusterError
from webserver.channel import Channel
from webserver.fetching import Key
from webserver.master_client import MasterClient
from webserver.output_reader import OutputReader

logger = logging.getLogger(__name__)

IDLE_S = 120.0
"""How long a stream nobody follows can still be resumed."""
LOG_BYTES = 64 * 1024 * 1024
"""Of all channels' logs together."""
_LOG_LEAST = 32 * 1024
_IDLE_MOST = 100
_FEED_WAIT_S = 5.0
_FEED_PATIENCE_S = 3.0  # beyond that wait: a master that does not answer by then is told to be away
_FEED_ROWS = 1000
_RETRY_S = 0.3
_KINDS = frozenset({"task", "run", "output", "agent"})
_COUNTING = Key(runs=False)
_OPENING = b"retry: 1000\n: events\n\n"


class EventStreams:
    """All event streams of this webserver."""

    def __init__(self, master: MasterClient, clock: Clock) -> None:
        self._master = master
        self._reader = OutputReader(master)
        self._clock = clock
        self._channels: dict[Key, Channel] = {}
        self._seq: int | None = None  # up to here the feed was read; None: it is not being read
        self._poll: gevent.Greenlet[..., None] | None = None
        self._starting = BoundedSemaphore(1)
        self._stopped = False
        self._away = False
        self._fell_behind = 0

    @property
    def followers(self) -> int:
        """How many streams are open."""
        return sum(channel.followers for channel in self._channels.values())

    @property
    def fell_behind(self) -> int:
        """How often a follower was slower than its channel's log is long."""
        return self._fell_behind + sum(channel.fell_behind for channel in self._channels.values())

    def mark(self, task_id: str | None = None, *, output: bool = False, runs: bool = True) -> str:
        """The id from which a page can follow (`?after=`) and miss nothing, if it is made of what the master says after
        this call: of everything, or without output of the task with this whole id. Good while that very stream, with or
        without output and runs, is kept.

        Raises what the master answers when it cannot be asked for its feed.
        """
        if output and task_id is not None:
            raise ValueError("a task's output begins with a snapshot: there is nothing to mark")
        return str(self._channel(Key(task_id, output=output, runs=runs)).mark())

    def follow(self, key: Key, *, after: str | None) -> Iterator[bytes]:
        """A stream's bytes, without end, behind the event with the id `after`. Ids in `key` are whole ones.

        Ends when the webserver stops or the master stays away; the client then comes back with the last id it saw.
        """
        place = _event_id(after)
        opening = _OPENING  # told with the first block: whoever has it misses nothing that happens from then on
        try:
            while not self._stopped:
                with closing(self._channel(key).follow(place)) as events:
                    for block in events:
                        yield opening + block
                        opening = b""
                place = None  # the channel broke off and has told so
        except MusterError as error:
            logger.debug("a stream ends: %s", error)
        if opening:
            yield opening

    def stop(self) -> None:
        """End all streams and read the feed no more."""
        self._stopped = True
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.kill(block=False)
        for channel in self._channels.values():
            channel.close()

    # -- channels ----------------------------------------------------------------------------------------------------

    def _channel(self, key: Key) -> Channel:
        seq = self._reading()
        channel = self._channels.get(key)
        if channel is None or not channel.usable:
            if len(self._channels) > 2 * _IDLE_MOST:
                self._forget_idle()
            channel = Channel(self._reader, self._clock, key=key, seq=seq, log_bytes=self._log_bytes)
            channel.tell_away(self._away)
            self._channels[key] = channel
        return channel

    def _log_bytes(self) -> int:
        return max(_LOG_LEAST, LOG_BYTES // max(16, len(self._channels)))

    def _forget_idle(self) -> None:
        """Forget channels nobody will come back to; the longest idle first when there are many."""
        now_s = self._clock.monotonic_s()
        idle = sorted(
            (channel.idle_since_s, str(key), key) for key, channel in self._channels.items() if not channel.followers
        )
        many = max(0, len(idle) - _IDLE_MOST)
        for number, (since_s, _, key) in enumerate(idle):
            if number < many or now_s - since_s >= IDLE_S or not self._channels[key].usable:
                self._fell_behind += self._channels[key].fell_behind
                self._channels.pop(key).close()

    # -- the feed ----------------------------------------------------------------------------------------------------

    def _reading(self) -> int:
        """Have the feed read from now on; answers the row up to which it was."""
        with self._starting:
            if self._seq is None:
                answer = self._master.read("feed", -1, 0.0, 1)
                self._seq = int(answer["last"])
                self._poll = gevent.spawn(self._poll_loop)
            return self._seq

    def _poll_loop(self) -> None:
        while self._channels or self._starting.locked():
            try:
                self._poll_once()
                self._tell_away(False)
            except MusterError as error:
                logger.debug("the feed cannot be read: %s", error)
                self._tell_away(True)
                gevent.sleep(_RETRY_S)
            except Exception:  # edge of a loop: a row that makes no sense must not end all streams for good
                logger.exception("the feed could not be told on")
                self._break_off()
                gevent.sleep(_RETRY_S)
            self._forget_idle()
        self._seq = self._poll = None

    def _poll_once(self) -> None:
        seq = self._seq or 0
        answer = self._master.read("feed", seq, _FEED_WAIT_S, _FEED_ROWS, timeout_s=_FEED_WAIT_S + _FEED_PATIENCE_S)
        if answer["reset"]:
            self._seq = int(answer["last"])
            self._break_off()
            return
        for row in answer["events"]:
            seq, kind, task_id, run_id = row[:4]
            self._seq = seq
            item_id = task_id if kind == "task" else run_id  # that of an agent stands where others name a run
            if item_id is None:
                continue
            for key in _concerned(kind, task_id, run_id):
                channel = self._channels.get(key)
                if channel is not None:
                    channel.note(seq, kind, item_id)
            counting = self._channels.get(_COUNTING)
            if counting is not None and kind == "run" and task_id is not None:
                counting.note(seq, "task", task_id)

    def _tell_away(self, away: bool) -> None:
        """Tell everybody, once, that nothing new can be known for now, or that it can again."""
        if away != self._away:
            self._away = away
            for channel in self._channels.values():
                channel.tell_away(away)

    def _break_off(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            self._fell_behind += channel.fell_behind
            channel.break_off()


def _concerned(kind: str, task_id: str | None, run_id: str | None) -> list[Key]:
    """The streams that tell of a row."""
    if kind not in _KINDS:
        return []
    keys = [Key(output=output) for output in (True, False)]
    if kind in ("task", "agent"):
        keys.append(_COUNTING)
    if kind != "agent" and task_id is not None:
        keys += [Key(task_id=task_id, output=output) for output in (True, False)]
    if kind in ("run", "output"):
        keys += [Key(run_id=run_id, output=output) for output in (True, False)]
    return keys


def _event_id(text: str | None) -> int | None:
    """The number in a `Last-Event-ID`; one we never gave counts as too old."""
    if text is None or not text.strip():
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
