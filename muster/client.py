"""The Python client of the REST API. Standard library only, typed; importing it changes nothing in the process.

    from muster.client import Client

    with Client() as client:
        task = client.submit("uptime", targets=["web-1"])
        print(client.wait(task.id).state)

Without arguments it finds the server as the command line does (`muster.address`). Submitting is safe to repeat: each
request carries a key, so a lost connection never makes two tasks.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

from muster.address import Address, NotConfigured, find
from muster.records import (
    Agent,
    AgentToken,
    Attempt,
    Event,
    Explanation,
    Group,
    LoginLink,
    Output,
    Preview,
    Record,
    Run,
    Target,
    Task,
    Token,
    Verification,
    read,
)
from muster.sse import Subscription
from muster.transport import (
    ApiError,
    Conflict,
    FieldError,
    InvalidRequest,
    MusterError,
    NotFound,
    Transport,
    Unauthorized,
    Unavailable,
    Unreachable,
)

__all__ = [
    "Agent",
    "AgentToken",
    "ApiError",
    "Attempt",
    "Client",
    "Conflict",
    "Event",
    "Explanation",
    "FieldError",
    "Group",
    "InvalidRequest",
    "LoginLink",
    "MusterError",
    "NotConfigured",
    "NotFound",
    "Output",
    "Preview",
    "Run",
    "Target",
    "Task",
    "TaskOptions",
    "Token",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "Verification",
]

StreamName = Literal["stdout", "stderr", "all"]
R = TypeVar("R", bound=Record)
_LONGEST_WAIT_S = 60.0
_OUTPUT_PIECE = 1024 * 1024


class TaskOptions(TypedDict, total=False):
    """The fields of a task request besides its script; what is left out has the server's default.

    Durations in seconds. One of `targets` and `count` is needed.
    """

    targets: Sequence[str]
    count: int
    interpreter: Sequence[str]
    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    name: str
    timeout: float
    parallel: int
    fail_count: int
    fail_rate: float
    on_stop: Literal["finish", "kill"]
    queue: str
    priority: int
    expires: float
    lost_after: float
    output_limit: int


class Client:
    """Calls to a muster webserver.

    `url` and `token` say which; left out, they are found (raises `NotConfigured` when nothing is). `data` is a data
    directory of `muster up` to look in. `timeout_s` bounds one answer. A call that fails because a server that was
    there before is away is repeated for `retry_for_s` if a repeat is harmless; see also `be_patient`.
    Every method raises `ApiError` (by kind: `InvalidRequest`, `Unauthorized`, `NotFound`, `Conflict`, `Unavailable`)
    when the server says no, and `Unreachable` when it does not answer.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        data: str | Path | None = None,
        timeout_s: float = 30.0,
        retry_for_s: float = 10.0,
    ) -> None:
        self.address: Address = find(url=url, token=token, data=data)
        self._transport = Transport(self.address.url, self.address.token, timeout_s=timeout_s, retry_for_s=retry_for_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def be_patient(self, retry_for_s: float) -> None:
        """From now on repeat failing calls for so long, as a program may want that only has to wait for an end."""
        self._transport.retry_for_s = retry_for_s

    def close(self) -> None:
        """Close the connection; another call opens a new one."""
        self._transport.close()

    # Tasks

    def submit(
        self,
        script: bytes | str,
        *,
        wait_s: float = 0.0,
        idempotency_key: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Task:
        """Submit a script; with `wait_s` (at most 60) answers when the task is final, or after that long.

        The same `idempotency_key` with the same request answers the first task again; one is made when none is given.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        if wait_s > 0:
            headers["Prefer"] = f"wait={min(wait_s, _LONGEST_WAIT_S):g}"
        body = _task_request(script, options)
        answer = self._transport.call("POST", "/api/v1/tasks", body=body, headers=headers, wait_s=wait_s)
        return read(Task, answer.json())

    def preview(self, script: bytes | str, **options: Unpack[TaskOptions]) -> Preview:
        """Where a task would run, and in what order; nothing is stored."""
        body = _task_request(script, options)
        raw = self._transport.call("POST", "/api/v1/tasks/preview", body=body).json()
        targets = [read(Target, target) for target in raw.get("targets", ())]
        return Preview(raw=raw, targets=targets, plan=str(raw.get("plan", "")))

    def task(self, task_id: str, *, wait_s: float = 0.0) -> Task:
        """A task by its id or an unambiguous prefix; `wait_s` (at most 60): when it is final, or after that long."""
        query = {"wait": f"{min(wait_s, _LONGEST_WAIT_S):g}" if wait_s > 0 else None}
        return read(Task, self._get(f"/tasks/{_part(task_id)}", query, wait_s=wait_s))

    def wait(self, task_id: str, *, timeout_s: float | None = None) -> Task:
        """The task once it is final. Raises `TimeoutError` when `timeout_s` pass first; the task goes on."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _LONGEST_WAIT_S if deadline is None else max(0.0, deadline - time.monotonic())
            task = self.task(task_id, wait_s=min(left_s, _LONGEST_WAIT_S))
            if task.final:
                return task
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"task {task_id} is still {task.state} after {timeout_s:g} s")

    def tasks(
        self,
        *,
        state: str | Sequence[str] | None = None,
        agent: str | None = None,
        name: str | None = None,
        since: str | None = None,
        until: str | None = None,
        page: int = 100,
    ) -> Iterator[Task]:
        """Tasks, the newest first, fetched `page` at a time as they are asked for. `state`: one or several; `since` and
        `until` (created before): RFC 3339."""
        query = {"state": _several(state), "agent": agent, "name": name, "since": since, "until": until}
        yield from self._list(Task, "/tasks", query, page)

    def script(self, task_id: str) -> bytes:
        """The task's script, byte for byte as submitted."""
        return self._transport.call("GET", f"/api/v1/tasks/{_part(task_id)}/script").body

    def cancel(self, task_id: str) -> Task:
        """Ask that the task end: what has not begun never will, what runs is stopped."""
        return self._act(Task, f"/tasks/{_part(task_id)}/cancel")

    def pause(self, task_id: str) -> Task:
        """Begin no further runs of the task until `resume`."""
        return self._act(Task, f"/tasks/{_part(task_id)}/pause")

    def resume(self, task_id: str) -> Task:
        """Go on with a paused task."""
        return self._act(Task, f"/tasks/{_part(task_id)}/resume")

    def retry(self, task_id: str, *, only: Literal["failed", "all"] = "failed") -> Task:
        """Run a final task again, under the same ids: what did not succeed, or all of it. `Conflict` if not final."""
        body = {"only": only}
        answer = self._transport.call("POST", f"/api/v1/tasks/{_part(task_id)}/retry", body=body, repeatable=False)
        return read(Task, answer.json())

    # Runs

    def runs(
        self, task_id: str, *, state: str | Sequence[str] | None = None, agent: str | None = None, page: int = 500
    ) -> Iterator[Run]:
        """The runs of a task, fetched `page` at a time as they are asked for. `state`: one or several; `agent`: of
        agents with this in their name."""
        query = {"state": _several(state), "agent": agent}
        yield from self._list(Run, f"/tasks/{_part(task_id)}/runs", query, page)

    def run(self, run_id: str) -> Run:
        """A run by its id."""
        return read(Run, self._get(f"/runs/{_part(run_id)}"))

    def attempts(self, run_id: str) -> list[Attempt]:
        """All tries of a run, the first first."""
        return list(self._list(Attempt, f"/runs/{_part(run_id)}/attempts", {}, None))

    def groups(self, task_id: str) -> list[Group]:
        """The task's runs, grouped by identical outcome."""
        return list(self._list(Group, f"/tasks/{_part(task_id)}/groups", {}, None))

    def cancel_run(self, run_id: str) -> Run:
        """Ask that one run end."""
        return self._act(Run, f"/runs/{_part(run_id)}/cancel")

    def why(self, run_id: str) -> Explanation:
        """Why a run is where it is, as the dispatching code sees it."""
        return read(Explanation, self._get(f"/runs/{_part(run_id)}/why"))

    def output_at(
        self,
        run_id: str,
        *,
        offset: int = 0,
        limit: int = _OUTPUT_PIECE,
        attempt: int | None = None,
        stream: StreamName = "all",
    ) -> Output:
        """At most `limit` bytes of a run's output from `offset` on; of the newest attempt unless one is named."""
        query = {"offset": offset, "limit": limit, "attempt": attempt, "stream": stream}
        answer = self._transport.call("GET", f"/api/v1/runs/{_part(run_id)}/output", query=query)
        headers = answer.headers
        gaps = _gaps(headers.get("X-Output-Gaps", ""))
        size = int(headers.get("X-Output-Size", "0"))
        told = headers.get("X-Output-Next")
        next_offset = int(told) if told else _after(offset, len(answer.body), gaps)
        return Output(raw={}, data=answer.body, offset=offset, next_offset=next_offset, size=size, gaps=gaps)

    def output(self, run_id: str, *, attempt: int | None = None, stream: StreamName = "all") -> Iterator[bytes]:
        """The bytes a run has written so far, exactly as written, in pieces; gaps (see `output_at`) are left out."""
        offset = 0
        while True:
            piece = self.output_at(run_id, offset=offset, attempt=attempt, stream=stream)
            if piece.data:
                yield piece.data
            if piece.next_offset >= piece.size or piece.next_offset <= offset:
                return
            offset = piece.next_offset

    def events(self, task_id: str | None = None, *, after: str | None = None, patience_s: float = 60.0) -> Subscription:
        """An iterator over what happens from now on, to one task or to all; `after` is an earlier event's id.

        It reconnects by itself and goes on behind the last event; `Unreachable` after `patience_s` without success.
        An event of kind `reset` says that events were missed: look at the present state. Close it to stop.
        """
        path = "/api/v1/events" if task_id is None else f"/api/v1/tasks/{_part(task_id)}/events"
        return Subscription(self._transport, path, after=after, patience_s=patience_s)

    # Agents

    def agents(
        self, *, state: str | Sequence[str] | None = None, match: str | None = None, page: int = 500
    ) -> Iterator[Agent]:
        """Agents by name, fetched `page` at a time. `state`: one or several; `match`: text in their name, host name or
        a `label=value`."""
        yield from self._list(Agent, "/agents", {"state": _several(state), "q": match}, page)

    def agent(self, agent: str) -> Agent:
        """An agent by id or name."""
        return read(Agent, self._get(f"/agents/{_part(agent)}"))

    def patch_agent(self, agent: str, *, labels: Mapping[str, str] | None = None, slots: int | None = None) -> Agent:
        """Set an agent's labels (all of them) or slots; what is left out stays."""
        changes = {"labels": None if labels is None else dict(labels), "slots": slots}
        body = {name: value for name, value in changes.items() if value is not None}
        return read(Agent, self._transport.call("PATCH", f"/api/v1/agents/{_part(agent)}", body=body).json())

    def drain_agent(self, agent: str) -> Agent:
        """Let an agent finish what it holds and give it nothing new."""
        return self._act(Agent, f"/agents/{_part(agent)}/drain")

    def resume_agent(self, agent: str) -> Agent:
        """Give a drained agent work again."""
        return self._act(Agent, f"/agents/{_part(agent)}/resume")

    def revoke_agent(self, agent: str) -> Agent:
        """Refuse an agent's key from its next message on, also while it is online."""
        return self._act(Agent, f"/agents/{_part(agent)}/revoke")

    def forget_agent(self, agent: str) -> None:
        """Remove an agent that is offline; its key is no longer accepted. `Conflict` when it is online."""
        self._transport.call("DELETE", f"/api/v1/agents/{_part(agent)}", repeatable=False)

    def agent_token(self) -> AgentToken:
        """A permission for one new host to enrol, good once and for a day."""
        return read(AgentToken, self._transport.call("POST", "/api/v1/agent-tokens").json())

    # Who may use it

    def login_link(self, name: str | None = None) -> LoginLink:
        """A link that logs a browser in under `name` (left out: the name of this client's token), once."""
        body = {} if name is None else {"name": name}
        return read(LoginLink, self._transport.call("POST", "/api/v1/login-links", body=body).json())

    def tokens(self) -> list[Token]:
        """All API tokens and browsers' sessions that are good, the newest first."""
        return list(self._list(Token, "/tokens", {}, None))

    def add_token(self, name: str) -> Token:
        """A new API token, its secret in `token`. `Conflict` when one has that name."""
        answer = self._transport.call("POST", "/api/v1/tokens", body={"name": name}, repeatable=False)
        return read(Token, answer.json())

    def revoke_token(self, token_id: str) -> None:
        """Refuse an API token from now on, or end a session. `Conflict` for the token of `admin.token`."""
        self._transport.call("DELETE", f"/api/v1/tokens/{_part(token_id)}", repeatable=False)

    # The service itself

    def ready(self) -> tuple[bool, list[str]]:
        """Whether tasks can be accepted now, and what is in the way."""
        try:
            self._transport.call("GET", "/readyz", repeatable=False)
        except Unavailable as error:
            return False, [error.detail]
        return True, []

    def metrics(self) -> str:
        """The metrics of the whole service, as Prometheus text."""
        return self._transport.call("GET", "/metrics").body.decode("utf-8", "replace")

    def verify(self) -> Verification:
        """Check the invariants of the running store; findings are sentences."""
        return read(Verification, self._get("/verify", wait_s=600.0))

    def _get(self, path: str, query: Mapping[str, Any] | None = None, *, wait_s: float = 0.0) -> Any:
        return self._transport.call("GET", "/api/v1" + path, query=query, wait_s=wait_s).json()

    def _act(self, kind: type[R], path: str) -> R:
        return read(kind, self._transport.call("POST", "/api/v1" + path).json())

    def _list(self, kind: type[R], path: str, query: Mapping[str, Any], page: int | None) -> Iterator[R]:
        cursor: str | None = None
        while True:
            answer = self._get(path, {**query, "limit": page, "cursor": cursor})
            for item in answer["items"]:
                yield read(kind, item)
            cursor = answer.get("next")
            if not cursor:
                return


def _task_request(script: bytes | str, options: Mapping[str, Any]) -> dict[str, Any]:
    raw = script.encode() if isinstance(script, str) else bytes(script)
    request: dict[str, Any] = {"script": base64.b64encode(raw).decode("ascii")}
    for name, value in options.items():
        if value is not None:
            request[name] = list(value) if isinstance(value, tuple) else value
    return request


def _several(states: str | Sequence[str] | None) -> str | None:
    """One or several words as one parameter."""
    return states if states is None or isinstance(states, str) else ",".join(states)


def _part(text: str) -> str:
    # An empty part would name another resource; the server answers 404 for a blank one.
    return quote(text, safe="") or "%20"


def _gaps(text: str) -> tuple[tuple[int, int], ...]:
    """`offset+length,…` as pairs."""
    pairs = (part.split("+") for part in text.split(",") if part.strip())
    return tuple((int(offset), int(length)) for offset, length in pairs)


def _after(offset: int, kept: int, gaps: Sequence[tuple[int, int]]) -> int:
    """The offset behind `kept` bytes from `offset` on, with the gaps among and right behind them."""
    position = offset
    for start, length in sorted(gaps):
        if start + length <= position:
            continue
        before = max(0, start - position)
        if before > kept:
            break
        kept -= before
        position = start + length
    return position + kept
