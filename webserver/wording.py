"""The master's views as the REST contract words them: names, RFC 3339 times, nothing that is not promised.

A view's `*_at_ms` becomes `*_at`; the fields and their order are those of the records in `webserver.shapes`, so the
OpenAPI document, which is drawn from the same records, cannot say something else.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any

import msgspec

from common.errors import InvalidRequest
from webserver import shapes
from webserver.cursors import seal

View = Mapping[str, Any]
TARGETS_IN_LIST = 100
"""Up to so many targets of a task are told where it is one of many; as in the lists of the master."""
_YEAR_10000_MS = 253_402_300_800_000
_encode = msgspec.json.Encoder().encode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A `+` in a query that nobody escaped arrives as a space.
_LOST_PLUS = re.compile(r" (\d\d:\d\d)\Z")
_RUN_UNDER_WAY: Mapping[str, Any] = {
    "state": "running",
    "outcome": None,
    "exit_code": None,
    "signal": None,
    "killed_by_us": False,
    "ended_at": None,
    "duration": None,
    "leftovers": [],
    "output_sha256": None,
    "detail": None,
}


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def moment(wall_ms: int | None) -> str | None:
    """A point in time as RFC 3339 in UTC with milliseconds."""
    if wall_ms is None:
        return None
    seconds, rest_ms = divmod(wall_ms, 1000)
    return f"{_second(seconds)}.{rest_ms:03d}Z"


def wall_ms(text: str, *, field: str) -> int:
    """Milliseconds since 1970 of RFC 3339 text with a zone; raises `InvalidRequest` naming `field`."""
    try:
        when = msgspec.convert(_LOST_PLUS.sub(r"+\1", text) if "T" in text else text, datetime)
    except msgspec.ValidationError:
        when = None
    if when is None or when.tzinfo is None:
        raise InvalidRequest.of(field, "must be a time such as 2026-11-30T15:04:05Z, with its zone")
    passed = when - _EPOCH
    return (passed.days * 86400 + passed.seconds) * 1000 + passed.microseconds // 1000


@cache
def _plan(shape: type[msgspec.Struct]) -> tuple[tuple[str, str, bool, Any], ...]:
    """(name in the answer, name in the view, is a time, what to say when the view lacks it) for each field."""
    steps = []
    for field in msgspec.structs.fields(shape):
        is_time = field.encode_name.endswith(("_at", "since"))
        source = f"{field.encode_name}_ms" if is_time else field.encode_name
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        steps.append((field.encode_name, source, is_time, default))
    return tuple(steps)


def _worded(shape: type[msgspec.Struct], view: View) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for name, source, is_time, default in _plan(shape):
        value = view.get(source, default)
        answer[name] = moment(value) if is_time else value
    return answer


def task(view: View) -> dict[str, Any]:
    """A task as answered."""
    return _worded(shapes.Task, view)


def listed_task(view: View) -> dict[str, Any]:
    """A task as answered among many others: without its targets if they are many."""
    targets = view.get("targets") or ()
    return task(view) if len(targets) <= TARGETS_IN_LIST else task({**view, "targets": None})


def run(view: View) -> dict[str, Any]:
    """A run as answered."""
    return _worded(shapes.Run, view)


def agent_run(view: View) -> dict[str, Any]:
    """A run of an agent as answered."""
    return _worded(shapes.AgentRun, view)


def run_under_way(view: View) -> dict[str, Any]:
    """A run that has ended, as it was answered before its end."""
    return {**run(view), **_RUN_UNDER_WAY}


def task_under_way(view: View) -> dict[str, Any]:
    """A task that has ended, as it was answered before its end."""
    return {**task(view), "state": "running", "reason": None, "ended_at": None}


def attempt(view: View) -> dict[str, Any]:
    """An attempt as answered."""
    steps = [{"at": moment(at_ms), "text": text} for at_ms, text in view.get("steps") or ()]
    silences = [
        {"since": moment(each["since_ms"]), "until": moment(each["until_ms"])} for each in view.get("silences") or ()
    ]
    return _worded(shapes.Attempt, {**view, "steps": steps, "silences": silences})


def group(view: View) -> dict[str, Any]:
    """A group of runs with one outcome as answered."""
    return _worded(shapes.Group, view)


def agent(view: View) -> dict[str, Any]:
    """An agent as answered."""
    return _worded(shapes.Agent, {**view, "facts": _facts(view.get("facts"))})


def agent_token(view: View) -> dict[str, Any]:
    """A join token as answered."""
    return _worded(shapes.AgentToken, view)


def login_link(view: View, *, base: str) -> dict[str, Any]:
    """A login link as answered, at the webserver that its caller knows as `base`."""
    return _worded(shapes.LoginLink, {**view, "url": f"{base}/login/{view['secret']}"})


def token(view: View) -> dict[str, Any]:
    """An API token or a session as answered."""
    return _worded(shapes.Token, view)


def new_token(view: View) -> dict[str, Any]:
    """A fresh API token as answered, with its secret."""
    return _worded(shapes.NewToken, view)


def preview(view: View) -> dict[str, Any]:
    """What a task would do, as answered."""
    targets = [_worded(shapes.Target, target) for target in view["targets"]]
    return {"targets": targets, "plan": view["plan"], "summary": _worded(shapes.PreviewSummary, view["summary"])}


def explanation(view: View) -> dict[str, Any]:
    """Why a run is where it is, as answered."""
    return {"run": run(view["run"]), "verdicts": [_worded(shapes.Verdict, each) for each in view["verdicts"]]}


def overview(view: View) -> dict[str, Any]:
    """The overview as answered."""
    lists = {name: [task(each) for each in view[name]] for name in ("running", "waiting", "ended")}
    attention = [
        _worded(shapes.Attention, item) | {"at": moment(item["at_ms"]), "args": dict(item["args"])}
        for item in view["attention"]
    ]
    fleet = _worded(shapes.FleetCounts, view["fleet"])
    return _worded(shapes.Overview, {**view, **lists, "fleet": fleet, "attention": attention})


def page(noun: str, view: View, word: Callable[[View], dict[str, Any]]) -> dict[str, Any]:
    """A page of the list `noun`, each item worded by `word`."""
    return {"items": [word(item) for item in view["items"]], "next": seal(noun, view.get("next"))}


def _facts(facts: Any) -> dict[str, Any]:
    """What can be told of an agent's own account of its host: one odd fact must not hide a fleet."""
    told: dict[str, Any] = {}
    for name, value in facts.items() if isinstance(facts, Mapping) else ():
        if not isinstance(name, str):
            continue
        if name.endswith("_at_ms"):
            if value is None or (type(value) is int and 0 <= value < _YEAR_10000_MS):
                told[name.removesuffix("_ms")] = moment(value)
        elif _can_be_told(name, value):
            told[name] = value
    return told


def _can_be_told(name: str, value: Any) -> bool:
    try:
        _encode({name: value})
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True
