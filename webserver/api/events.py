"""`/events`, `/tasks/{task_id}/events`: what happens, as server-sent events."""

from __future__ import annotations

from typing import Annotated

import flask
import msgspec

from common.errors import Conflict, NotFound
from webserver.rest import Answer, Call, Header, Noun, Query
from webserver.server import PATIENT

noun = Noun("events", "What happens, as it happens.")

_EVENT_STREAM = "text/event-stream"
_RESUME = Header("Last-Event-ID", "The id of the last event seen: go on behind it.")
_ABOUT = (
    "Events `task` and `run` (the object as JSON), `output` (`run_id`, `attempt`, `stream`, `offset`, and `data` in "
    "base64), and `reset`: what was told before may lack something, everything that matters follows anew."
)


class EventQuery(Query, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to be told."""

    output: Annotated[bool, msgspec.Meta(description="false: no `output` events")] = True


@noun.operation(
    "GET",
    "/tasks/{task_id}/events",
    query=EventQuery,
    answers={200: Answer(_ABOUT, content_type=_EVENT_STREAM)},
    headers=[_RESUME],
    refuses=(NotFound, Conflict),
)
def task_events(call: Call) -> flask.Response:
    """Follow one task.

    The task, its runs and all output so far come first. A run is told to be under way before its output, all its output
    before its end, the runs' ends before the task's.
    """
    view = call.web.master.get_task(call.path["task_id"])
    return _follow(call, view["id"])


@noun.operation(
    "GET",
    "/events",
    query=EventQuery,
    answers={200: Answer(_ABOUT, content_type=_EVENT_STREAM)},
    headers=[_RESUME],
)
def all_events(call: Call) -> flask.Response:
    """Follow everything, from now on."""
    return _follow(call, None)


def _follow(call: Call, task_id: str | None) -> flask.Response:
    environ = flask.request.environ
    environ[PATIENT] = True
    stream = call.web.streams.follow(task_id, output=call.query.output, last_event_id=environ.get("HTTP_LAST_EVENT_ID"))
    response = flask.Response(stream, content_type=_EVENT_STREAM)
    response.headers["Cache-Control"] = "no-cache, no-store"
    response.headers["X-Accel-Buffering"] = "no"
    return response
