"""`/tasks`: submit, look at, stop and repeat tasks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import flask
import msgspec
from msgspec import UNSET, UnsetType

from common.errors import Conflict, KeyReused, NotFound, StoreFull
from common.model import RunState, TaskState
from common.requests import TaskRequest
from webserver import shapes, submission, wording
from webserver.cursors import unseal
from webserver.rest import (
    Answer,
    Call,
    Header,
    Nothing,
    Noun,
    Query,
    Reply,
    idempotency_key,
    list_of,
    several,
    wait_preference,
)
from webserver.server import PATIENT

noun = Noun("tasks", "Scripts submitted to run on agents.")

Limit = Annotated[int, msgspec.Meta(ge=1, le=500, description="items on the page")]
Cursor = Annotated[str, msgspec.Meta(min_length=1, max_length=500, description="`next` of the page before")]
Wait = Annotated[
    float, msgspec.Meta(ge=0, le=60, description="answer when the task is final, or after this many seconds")
]
_RFC3339 = r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$"
_MOMENT = {"format": "date-time", "pattern": _RFC3339}
Since = Annotated[str, msgspec.Meta(description="created at or after", extra_json_schema=_MOMENT)]
Until = Annotated[str, msgspec.Meta(description="created before", extra_json_schema=_MOMENT)]
_SUBMITTED = {
    "Location": "the task's address",
    "Preference-Applied": "`wait=S` where the request asked to wait",
}
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class TaskQuery(Query, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one may ask of one task."""

    wait: Wait = 0.0


class TaskListQuery(Query, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks to list."""

    state: Annotated[str, list_of(TaskState, "in one of these states, separated by commas")] | UnsetType = UNSET
    agent: Annotated[Text, msgspec.Meta(description="with a run on it: id, name, former name")] | UnsetType = UNSET
    name: Annotated[Text, msgspec.Meta(description="with this in their name, in any case")] | UnsetType = UNSET
    since: Since | UnsetType = UNSET
    until: Until | UnsetType = UNSET
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET

    def __post_init__(self) -> None:
        several(TaskState, self.state, field="state")

    def where(self) -> dict[str, Any]:
        """What the master is asked for."""
        asked: dict[str, Any] = {"agent": self.agent, "name": self.name}
        if self.state is not UNSET:
            asked["state"] = several(TaskState, self.state, field="state")
        if self.since is not UNSET:
            asked["since_ms"] = wording.wall_ms(self.since, field="since")
        if self.until is not UNSET:
            asked["until_ms"] = wording.wall_ms(self.until, field="until")
        return {name: value for name, value in asked.items() if value is not UNSET}


class RunListQuery(Query, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runs of a task to list."""

    state: Annotated[str, list_of(RunState, "in one of these states, separated by commas")] | UnsetType = UNSET
    agent: Annotated[Text, msgspec.Meta(description="of agents with this in their name, in any case")] | UnsetType = (
        UNSET
    )
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET

    def __post_init__(self) -> None:
        several(RunState, self.state, field="state")


class RetryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runs to repeat: those that did not succeed, or all."""

    only: Literal["failed", "all"] = "failed"


@noun.operation(
    "POST",
    "/tasks",
    body=TaskRequest,
    body_required=True,
    answers={
        201: Answer("The task was stored.", shapes.Task, headers=_SUBMITTED),
        200: Answer("The task that was stored under this Idempotency-Key before.", shapes.Task, headers=_SUBMITTED),
    },
    headers=[
        Header("Idempotency-Key", "Makes a repeat answer the first task.", "^[!-~]{1,200}$"),
        Header("Prefer", "`wait=S` (at most 60): answer when the task is final, or after S seconds."),
    ],
    refuses=(KeyReused, StoreFull),
)
def submit(call: Call) -> Reply:
    """Submit a task.

    The script goes to the agents byte for byte. Where it runs is said by `targets`, by `count`, or by both:
    nothing runs everywhere by accident.
    """
    headers = flask.request.environ
    preferred_s = wait_preference(headers.get("HTTP_PREFER"))
    key = idempotency_key(headers.get("HTTP_IDEMPOTENCY_KEY"))
    headers[PATIENT] = preferred_s is not None
    view, created = submission.submit(call.web, call.body, by=call.caller.name, key=key, wait_s=preferred_s or 0.0)
    answer_headers = {"Location": f"/api/v1/tasks/{view['id']}"}
    if preferred_s is not None:
        answer_headers["Preference-Applied"] = f"wait={preferred_s:g}"
    return Reply(wording.task(view), 201 if created else 200, answer_headers)


@noun.operation(
    "POST",
    "/tasks/preview",
    body=TaskRequest,
    body_required=True,
    answers={200: Answer("Where the task would go.", shapes.Preview)},
)
def preview(call: Call) -> Any:
    """Show what submitting this task would do.

    Nothing is stored.
    """
    return wording.preview(submission.preview(call.web, call.body))


@noun.operation(
    "GET", "/tasks", query=TaskListQuery, answers={200: Answer("Tasks, the newest first.", shapes.TaskPage)}
)
def list_tasks(call: Call) -> Any:
    """List tasks."""
    query: TaskListQuery = call.query
    cursor = unseal("tasks", query.cursor)
    page = call.web.master.read("list_tasks", query.where(), query.limit, cursor)
    return wording.page("tasks", page, wording.task)


@noun.operation(
    "GET",
    "/tasks/{task_id}",
    query=TaskQuery,
    answers={200: Answer("The task.", shapes.Task)},
    refuses=(NotFound, Conflict),
)
def get_task(call: Call) -> Any:
    """Look at a task."""
    flask.request.environ[PATIENT] = call.query.wait > 0
    return wording.task(call.web.master.get_task(call.path["task_id"], wait_s=call.query.wait))


@noun.operation(
    "GET",
    "/tasks/{task_id}/script",
    answers={
        200: Answer(
            "The script, byte for byte.",
            content_type="application/octet-stream",
            headers={"Content-Disposition": "has a browser save it"},
        )
    },
    refuses=(NotFound, Conflict),
)
def get_script(call: Call) -> flask.Response:
    """Download a task's script."""
    answer = call.web.master.read("get_script", call.path["task_id"])
    response = flask.Response(answer["data"], content_type="application/octet-stream")
    response.headers["Content-Disposition"] = 'attachment; filename="script"'
    return response


@noun.operation(
    "GET",
    "/tasks/{task_id}/runs",
    query=RunListQuery,
    answers={200: Answer("The task's runs.", shapes.RunPage)},
    refuses=(NotFound, Conflict),
)
def list_runs(call: Call) -> Any:
    """List a task's runs."""
    query: RunListQuery = call.query
    state = several(RunState, query.state, field="state")
    agent = None if query.agent is UNSET else query.agent
    cursor = unseal("runs", query.cursor)
    page = call.web.master.read("list_runs", call.path["task_id"], state, query.limit, cursor, agent)
    return wording.page("runs", page, wording.run)


@noun.operation(
    "GET",
    "/tasks/{task_id}/groups",
    answers={200: Answer("Runs that are alike, the largest group first.", shapes.GroupPage)},
    refuses=(NotFound, Conflict),
)
def list_groups(call: Call) -> Any:
    """Group a task's runs by outcome and output."""
    return wording.page("groups", call.web.master.read("list_groups", call.path["task_id"]), wording.group)


def _order(verb: str, method: str, doc: str, body: type[msgspec.Struct] = Nothing) -> Any:
    """Declare `POST /tasks/{task_id}/VERB`: an order that the master acknowledges and carries out."""

    def order(call: Call) -> Any:
        more: tuple[str, ...] = (call.body.only,) if isinstance(call.body, RetryRequest) else ()
        if method == "cancel_task":
            more = (call.caller.name,)
        return wording.task(call.web.master.act(method, call.path["task_id"], *more))

    order.__name__, order.__doc__ = method, doc
    noun.operation(
        "POST",
        f"/tasks/{{task_id}}/{verb}",
        body=body,
        answers={202: Answer("The task as it is now; the order is being carried out.", shapes.Task)},
        refuses=(NotFound, Conflict, StoreFull),
    )(order)
    return order


cancel_task = _order(
    "cancel", "cancel_task", "Cancel a task.\n\nWhat has not begun never will; what runs is asked to end."
)
pause_task = _order(
    "pause", "pause_task", "Pause a task.\n\nNo further runs begin until it is resumed; those under way go on."
)
resume_task = _order("resume", "resume_task", "Go on with a paused task.")
retry_task = _order(
    "retry",
    "retry_task",
    "Retry a task that has ended.\n\nThe same runs begin again, under the same ids, each as a further attempt.",
    RetryRequest,
)
