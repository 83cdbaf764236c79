"""`/runs/{run_id}/output`: the bytes a script wrote, exactly as written.

Small answers come whole, with a length; larger ones are read from the master and sent piece by piece, so no output is
ever held in memory. An answer that cannot be finished breaks off, and its framing tells the client so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import flask
import msgspec
from msgspec import UNSET, UnsetType

from common.errors import Conflict, NotFound
from common.model import Stream
from webserver.master_client import MasterClient
from webserver.rest import Answer, Call, Noun, Query

noun = Noun("output", "What scripts wrote.")

PIECE_BYTES = 1024 * 1024
_OCTETS = "application/octet-stream"


class OutputQuery(Query, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the output."""

    attempt: Annotated[int, msgspec.Meta(ge=1, le=1_000_000, description="default: the newest")] | UnsetType = UNSET
    stream: Annotated[Stream, msgspec.Meta(description="what the script wrote there")] = Stream.ALL
    offset: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53, description="counts over both streams of the attempt")] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53, description="bytes; default: all")] | UnsetType = UNSET


@noun.operation(
    "GET",
    "/runs/{run_id}/output",
    query=OutputQuery,
    answers={
        200: Answer(
            "The bytes from `offset` on; gaps are left out.",
            content_type=_OCTETS,
            headers={
                "Content-Disposition": "has a browser save it",
                "X-Output-Size": "bytes known of the whole attempt, gaps included",
                "X-Output-Gaps": "what was not kept, as `offset+length,…`",
                "X-Output-Attempt": "number of the attempt",
                "X-Output-Ended": "`true` when the attempt has ended, so that nothing will follow",
                "X-Output-Next": "the offset to go on from; not told when the answer is sent in pieces",
            },
        )
    },
    refuses=(NotFound, Conflict),
)
def read_output(call: Call) -> flask.Response:
    """Download output."""
    query: OutputQuery = call.query
    limit = None if query.limit is UNSET else query.limit
    attempt = None if query.attempt is UNSET else query.attempt
    output = _Output(call.web.master, call.path["run_id"], query.stream, limit)
    first = output.look(attempt, query.offset)
    content = bytearray(output.take(first))
    while not output.complete and len(content) < PIECE_BYTES:
        content += output.read_on()
    if output.complete:
        response = flask.Response(bytes(content), content_type=_OCTETS)
        response.headers["X-Output-Next"] = str(output.offset)
    else:
        response = flask.Response(_stream(bytes(content), output), content_type=_OCTETS)
    return _with_headers(response, first)


class _Output:
    """A walk over one attempt's output, as far as it was known at the first look."""

    def __init__(self, master: MasterClient, run_id: str, stream: Stream, limit: int | None) -> None:
        self._master = master
        self._run_id = run_id
        self._stream = stream
        self._left = limit
        self._attempt: int | None = None
        self._size = 0
        self.offset = 0
        self.complete = False

    def look(self, attempt: int | None, offset: int) -> Mapping[str, Any]:
        """The master's answer to the first look; to be taken next."""
        self._attempt, self.offset = attempt, offset
        answer = self._ask()
        self._attempt, self._size = answer["attempt"], answer["size"]
        return answer

    def read_on(self) -> bytes:
        """The next piece."""
        return self.take(self._ask())

    def _ask(self) -> Mapping[str, Any]:
        # The master's limit bounds what it looks at, of either stream: where one is picked out it stays large, or a
        # few bytes of it could cost a call for each few of the other.
        limit = PIECE_BYTES
        if self._left is not None and self._stream is Stream.ALL:
            limit = min(limit, self._left)
        answer: Mapping[str, Any] = self._master.read(
            "read_output", self._run_id, self._attempt, self._stream.value, self.offset, limit
        )
        return answer

    def take(self, answer: Mapping[str, Any]) -> bytes:
        """The bytes of an answer that are still wanted; the walk goes on behind them."""
        content: bytes = answer["data"]
        behind = max(self.offset, answer["next_offset"])
        if self._left is not None:
            if len(content) > self._left:
                content, behind = content[: self._left], _end_of(answer["segments"], self._left)
            self._left -= len(content)
        stuck = behind == self.offset
        self.offset = behind
        self.complete = stuck or behind >= self._size or self._left == 0
        return content


def _end_of(segments: Iterable[Sequence[int]], count: int) -> int:
    """The offset behind the first `count` bytes of the segments (offset, stream, length)."""
    end = 0
    for offset, _, length in segments:
        end = offset + min(length, count)
        count -= length
        if count <= 0:
            break
    return end


def _stream(content: bytes, output: _Output) -> Iterator[bytes]:
    yield content
    while not output.complete:
        yield output.read_on()


def _with_headers(response: flask.Response, first: Mapping[str, Any]) -> flask.Response:
    headers = response.headers
    headers["X-Output-Size"] = str(first["size"])
    headers["X-Output-Gaps"] = ",".join(f"{offset}+{length}" for offset, length in first["gaps"])
    headers["X-Output-Attempt"] = str(first["attempt"])
    headers["X-Output-Ended"] = "true" if first["ended"] else "false"
    headers["Content-Disposition"] = 'attachment; filename="output"'
    return response
