"""What schemathesis loads beside the document (`SCHEMATHESIS_HOOKS`): how waits and endless answers are kept short.

Both are properties of the API, not faults of it: a call with `wait` answers after up to a minute on purpose, and an
event stream goes on until its reader leaves. Where something is only read, the ids of the document's examples stand for
real ones, which the test names in `KNOWN_IDS`.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import requests
import schemathesis

from webserver.examples import PARAMETERS

KNOWN: dict[str, str] = json.loads(os.environ.get("KNOWN_IDS", "{}"))
WAIT_MOST_S = 0.2
STREAM_SILENCE_S = 0.05
"""A stream that says nothing for so long has told what it had to; its head and these events are checked."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Shorten what would take long, without making fit what is unfit: only fit waits are shortened."""
    if case.method == "GET" and isinstance(case.path_parameters, dict):
        for name, known in KNOWN.items():
            if case.path_parameters.get(name) == PARAMETERS[name]:
                case.path_parameters[name] = known
    kwargs["hooks"] = {"response": _leave_when_silent}
    query = case.query if isinstance(case.query, dict) else {}
    wait = query.get("wait")
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(wait, bool) and WAIT_MOST_S < float(wait) <= 60:  # type: ignore[arg-type]
            query["wait"] = WAIT_MOST_S


def _leave_when_silent(response: requests.Response, *args: Any, **kwargs: Any) -> None:
    if response.headers.get("Content-Type", "").startswith("text/event-stream"):
        connection: Any = getattr(response.raw, "connection", None)
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(STREAM_SILENCE_S)
