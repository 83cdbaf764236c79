"""What schemathesis loads beside the document (`SCHEMATHESIS_HOOKS`): how waits and endless answers are kept short.

Both are properties of the API, not faults of it: a call with `wait` answers after up to a minute on purpose, and an
event stream goes on until its reader leaves.
"""

from __future__ import annotations

import contextlib
from typing import Any

import requests
import schemathesis

WAIT_MOST_S = 0.2
STREAM_SILENCE_S = 0.05
"""A stream that says nothing for so long has told what it had to; its head and these events are checked."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Shorten what would take long, without making fit what is unfit: only fit waits are shortened."""
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
