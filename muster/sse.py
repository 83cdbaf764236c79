"""Server-sent events: reading the stream, and a subscription that goes on behind the last event after a break.

Standard library only. `parse` is pure.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Self

from muster.records import Event, Run, Task, read
from muster.transport import LineStream, Transport, Unavailable, Unreachable

_IDLE_S: Final = 60.0  # the server says something at least every 15 s
_PAUSES_S: Final = (0.05, 0.2, 0.5, 1.0)


class Message(NamedTuple):
    """One server-sent event as it came."""

    event: str
    data: str
    id: str | None


def parse(lines: Iterable[bytes]) -> Iterator[Message]:
    """The events in a stream of lines with their ends; a last event that was cut off is left out.

    One without data is given too when it has an id: that is the place to go on from.
    """
    event = ""
    event_id: str | None = None
    data: list[str] = []
    for raw in lines:
        if not raw.endswith((b"\n", b"\r")):
            return
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if data or event_id is not None:
                yield Message(event or "message", "\n".join(data), event_id)
            event, event_id, data = "", None, []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            event = value
        elif name == "data":
            data.append(value)
        elif name == "id" and "\0" not in value:
            event_id = value


class Subscription:
    """The events of one address, across breaks of the connection; an iterator that ends when closed.

    `close` may be called from another thread; it ends a wait for the next event.
    """

    def __init__(self, transport: Transport, path: str, *, after: str | None, patience_s: float) -> None:
        self._transport = transport
        self._path = path
        self._patience_s = patience_s
        self._stream: LineStream | None = None
        self._closed = threading.Event()
        self._events = self._read()
        self.last_id = after

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connected(self) -> bool:
        """Whether a connection is open now."""
        return self._stream is not None

    def close(self) -> None:
        """Stop; harmless when stopped already."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.hang_up()
        try:
            self._events.close()
        except ValueError:
            pass  # another thread waits for an event just now; it closes what it has

    def _read(self) -> Generator[Event, None, None]:
        good_at = time.monotonic()
        tries = 0
        while not self._closed.is_set():
            try:
                stream = self._open()
            except (Unreachable, Unavailable):
                if time.monotonic() - good_at > self._patience_s:
                    raise
            else:
                for event in self._listen(stream):
                    tries = 0
                    yield event
                good_at = time.monotonic()
            self._closed.wait(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            tries += 1

    def _open(self) -> LineStream:
        headers = {"Accept": "text/event-stream"}
        if self.last_id is not None:
            headers["Last-Event-ID"] = self.last_id
        return self._transport.stream(self._path, headers=headers, idle_s=_IDLE_S)

    def _listen(self, stream: LineStream) -> Iterator[Event]:
        self._stream = stream
        try:
            if self._closed.is_set():  # `close` came before it could see this stream
                return
            for message in parse(stream):
                if self._closed.is_set():
                    return
                if message.id is not None:
                    self.last_id = message.id
                event = _event(message)
                if event is not None:
                    yield event
        except (OSError, http.client.HTTPException):
            return  # the connection broke: go on behind `last_id`
        finally:
            self._stream = None
            stream.close()


def _event(message: Message) -> Event | None:
    """The event in a message; None for kinds this version does not know."""
    if message.event == "reset":
        return Event(raw={}, kind="reset", id=message.id)
    if message.event not in ("task", "run", "output") or not message.data:
        return None
    raw = json.loads(message.data)
    if message.event == "task":
        return Event(raw=raw, kind="task", id=message.id, task=read(Task, raw))
    if message.event == "run":
        run = read(Run, raw)
        return Event(raw=raw, kind="run", id=message.id, run=run, run_id=run.id, attempt=run.attempt)
    return _output(raw, message.id)


def _output(raw: Mapping[str, Any], event_id: str | None) -> Event:
    return Event(
        raw=raw,
        kind="output",
        id=event_id,
        run_id=str(raw["run_id"]),
        attempt=int(raw["attempt"]),
        stream=str(raw["stream"]),
        offset=int(raw["offset"]),
        data=base64.b64decode(raw["data"]),
    )
