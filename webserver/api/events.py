"""`/events`, `/tasks/{task_id}/events`, `/runs/{run_id}/events`: what happens, as server-sent events."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import flask
import msgspec
from msgspec import UNSET, UnsetType

from common.errors import Conflict, MusterError, NotFound, Unauthorized
from webserver import shapes
from webserver.fetching import Key
from webserver.rest import Answer, Call, Header, Noun, Query
from webserver.server import PATIENT

noun = Noun("events", "What happens, as it happens.")

logger = logging.getLogger(__name__)

RECHECK_S = 30.0
"""How often an open stream asks whether its token or session is still good."""
_EVENT_STREAM = "text/event-stream"
_ID_MOST = 10**18 - 1
_RESUME = Header("Last-Event-ID", "The id of the last event seen: go on behind it.")
_ABOUT = (
    "Events {kinds}, and `reset`: what was told before may lack something, everything that matters follows anew. "
    "`away` and `back` say that the master cannot be reached at present, and that it can again. "
    "Kinds that a client does not know are to be passed over."
)
_OUTPUT = "`output` (`run_id`, `attempt`, `stream`, `offset`, and `data` in base64)"
_OF_TASK = _ABOUT.format(kinds=f"`task` and `run` (the object as JSON), {_OUTPUT}")
_OF_RUN = _ABOUT.format(kinds=f"`run` (the object as JSON), {_OUTPUT}")
_OF_ALL = _ABOUT.format(
    kinds="`task`, `run` and `agent` (the object as JSON; of an agent that was forgotten `id` and `forgotten`: true), "
    + _OUTPUT
)
After = Annotated[
    int,
    msgspec.Meta(
        ge=0, le=_ID_MOST, description="as the header Last-Event-ID, for whoever cannot send one; the header wins"
    ),
]


class EventQuery(Query, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to be told."""

    output: Annotated[bool, msgspec.Meta(description="false: no `output` events")] = True
    after: After | UnsetType = UNSET


@noun.operation(
    "GET",
    "/tasks/{task_id}/events",
    query=EventQuery,
    answers={200: Answer(_OF_TASK, shapes.Event, _EVENT_STREAM)},
    headers=[_RESUME],
    refuses=(NotFound, Conflict),
)
def task_events(call: Call) -> flask.Response:
    """Follow one task.

    The task, its runs and all output so far come first. A run is told to be under way before its output, all its output
    before its end, the runs' ends before the task's.
    """
    view = call.web.master.get_task(call.path["task_id"])
    return _follow(call, Key(task_id=view["id"], output=call.query.output))


@noun.operation(
    "GET",
    "/runs/{run_id}/events",
    query=EventQuery,
    answers={200: Answer(_OF_RUN, shapes.Event, _EVENT_STREAM)},
    headers=[_RESUME],
    refuses=(NotFound, Conflict),
)
def run_events(call: Call) -> flask.Response:
    """Follow one run.

    The run and all its output so far come first. It is told to be under way before its output, and all its output
    before its end.
    """
    view = call.web.master.read("get_run", call.path["run_id"])
    return _follow(call, Key(run_id=view["id"], output=call.query.output))


class AllEventQuery(EventQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to be told of everything."""

    runs: Annotated[
        bool, msgspec.Meta(description="false: no `run` and no `output` events; tasks when their counts change, too")
    ] = True


@noun.operation(
    "GET",
    "/events",
    query=AllEventQuery,
    answers={200: Answer(_OF_ALL, shapes.Event, _EVENT_STREAM)},
    headers=[_RESUME],
)
def all_events(call: Call) -> flask.Response:
    """Follow everything, from now on."""
    query: AllEventQuery = call.query
    return _follow(call, Key(output=query.output and query.runs, runs=query.runs))


def _follow(call: Call, key: Key) -> flask.Response:
    environ = flask.request.environ
    environ[PATIENT] = True
    after = environ.get("HTTP_LAST_EVENT_ID", "").strip()
    if not after and call.query.after is not UNSET:
        after = str(call.query.after)
    events = call.web.streams.follow(key, after=after or None)
    response = flask.Response(_while_allowed(call, events), content_type=_EVENT_STREAM)
    response.headers["Cache-Control"] = "no-cache, no-store"
    response.headers["X-Accel-Buffering"] = "no"
    return response


def _while_allowed(call: Call, events: Iterator[bytes]) -> Iterator[bytes]:
    """The events until the token or session that asked for them is revoked, which is looked at now and then, keepalives
    being events too. A master that is away revokes nothing."""
    clock = call.web.clock
    ask_at_s = clock.monotonic_s() + RECHECK_S
    with closing(events):  # type: ignore[type-var]
        for block in events:
            if clock.monotonic_s() >= ask_at_s:
                ask_at_s = clock.monotonic_s() + RECHECK_S
                try:
                    call.ask_again()
                except Unauthorized:
                    return
                except MusterError as error:
                    logger.debug("a stream goes on unchecked: %s", error)
            yield block
