"""One runnable example of every call of the REST API.

The OpenAPI document and the page about the API show them; a test runs each one as it is printed. What differs from
place to place stands in them as shell variables, all named in `VARIABLES`.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

JSON_TYPE = "application/json"
_SCRIPT = base64.b64encode(b"echo hello from $(hostname)\n").decode()
_SAMPLE_ID = "01a22e39-a06f-7e06-a9bd-104b83e9b864"
_IN_PATH = re.compile(r"\{(\w+)\}")
_VARIABLE = re.compile(r"\$([A-Z_]+)")


@dataclass(frozen=True, slots=True)
class Variable:
    """A shell variable of the examples: a sample of what it holds, and what that is."""

    sample: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A call of one operation, beyond its method and path, and the status it is answered with."""

    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    status: int = 200
    endless: bool = False  # the answer is a stream, which goes on until the client leaves
    open: bool = False  # needs no token


VARIABLES: Mapping[str, Variable] = {
    "MUSTER_URL": Variable("http://127.0.0.1:7440", "where the webserver is; `muster up` writes it into DIR/url"),
    "MUSTER_TOKEN": Variable("…", "an API token; `muster up` writes one into DIR/admin.token"),
    "TASK_ID": Variable(_SAMPLE_ID, "the id of a task, as POST /api/v1/tasks answers it"),
    "RUN_ID": Variable(_SAMPLE_ID, "the id of a run, from the task's runs"),
    "AGENT": Variable("web-1", "the id or the name of an agent"),
    "TOKEN_ID": Variable(_SAMPLE_ID, "the id of an API token or a session"),
}

# In the order in which one would try them; a test does.
EXAMPLES: Mapping[str, Example] = {
    "healthz": Example(open=True),
    "readyz": Example(open=True),
    "metrics": Example(open=True),
    "overview": Example(),
    "list_agents": Example(query={"state": "online,draining", "limit": "20"}),
    "get_agent": Example(),
    "get_agent_samples": Example(),
    "patch_agent": Example(body={"labels": {"env": "prod", "role": "web"}, "slots": 4}),
    "drain_agent": Example(body={}),
    "resume_agent": Example(body={}),
    "preview": Example(body={"script": _SCRIPT, "count": 1, "parallel": 1, "fail_count": 1}),
    "submit": Example(
        headers={"Prefer": "wait=30"},
        body={"script": _SCRIPT, "name": "hello", "count": 1, "timeout": 60},
        status=201,
    ),
    "list_tasks": Example(query={"state": "running,waiting", "agent": "$AGENT", "limit": "20"}),
    "get_task": Example(query={"wait": "10"}),
    "get_script": Example(),
    "list_runs": Example(query={"limit": "100"}),
    "list_agent_runs": Example(query={"limit": "20"}),
    "list_groups": Example(),
    "get_run": Example(),
    "list_attempts": Example(),
    "explain_run": Example(),
    "read_output": Example(query={"stream": "stdout"}),
    "task_events": Example(endless=True),
    "run_events": Example(endless=True),
    "all_events": Example(query={"output": "false"}, endless=True),
    "pause_task": Example(body={}, status=202),
    "resume_task": Example(body={}, status=202),
    "cancel_run": Example(body={}, status=202),
    "cancel_task": Example(body={}, status=202),
    "retry_task": Example(body={"only": "failed"}, status=202),
    "add_agent_token": Example(body={}, status=201),
    "add_login_link": Example(body={"name": "ann"}, status=201),
    "add_token": Example(body={"name": "ci"}, status=201),
    "list_tokens": Example(),
    "revoke_token": Example(status=204),
    "revoke_agent": Example(body={}),
    "forget_agent": Example(status=204),
    "verify": Example(),
}

# What a parameter or header may look like, where the example of its operation has none.
PARAMETERS: Mapping[str, str | int | float | bool] = {
    "task_id": _SAMPLE_ID,
    "run_id": _SAMPLE_ID,
    "agent": "web-1",
    "token_id": _SAMPLE_ID,
    "state": "running",
    "name": "deploy",
    "q": "env=prod",
    "since": "2026-11-30T00:00:00Z",
    "until": "2026-12-01T00:00:00Z",
    "limit": 20,
    "wait": 10,
    "attempt": 1,
    "stream": "stdout",
    "offset": 0,
    "output": False,
    "runs": True,
    "after": 42_000_000,
    "Last-Event-ID": "42000000",
    "Idempotency-Key": "deploy-2026-11-30",
    "Prefer": "wait=30",
}


def curl(method: str, path: str, example: Example) -> str:
    """The example as a command for a POSIX shell. `path` may hold parameters in braces: they become variables."""
    address = _IN_PATH.sub(lambda match: f"${match[1].upper()}", path)
    query = "&".join(f"{name}={quote(value, safe='$,:')}" for name, value in example.query.items())
    options = ("-sSN" if example.endless else "-sS") + (f" -X {method}" if method != "GET" else "")
    words = [f'curl {options} "$MUSTER_URL{address}{"?" + query if query else ""}"']
    if not example.open:
        words.append('-H "Authorization: Bearer $MUSTER_TOKEN"')
    words += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in example.headers.items()]
    if example.body is not None:
        words.append(f"-H 'Content-Type: {JSON_TYPE}'")
        words.append(f"-d {shlex.quote(json.dumps(example.body, ensure_ascii=False))}")
    return " \\\n  ".join(words)


def of_parameter(operation_id: str, name: str) -> str | int | float | bool | None:
    """A value for a query parameter, header or part of the path; None when none can be made up."""
    example = EXAMPLES.get(operation_id, Example())
    given = example.query.get(name) or example.headers.get(name)
    known = PARAMETERS.get(name)
    if given is None:
        return known
    text = _VARIABLE.sub(lambda match: VARIABLES[match[1]].sample, given)
    if isinstance(known, bool):
        return text == "true"
    return type(known)(text) if isinstance(known, int | float) else text
