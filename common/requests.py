"""What a person submits, checked: `TaskRequest` has exactly the fields of the REST contract that exist today.

`check` looks at every field and tells all faults at once; what needs the store (do the targets exist?) is the master's.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from common.errors import FieldError, InvalidRequest, TooLarge
from common.model import OnStop
from common.wire import from_wire

NAME_MOST = 200
PRIORITY_MOST = 4294967295
TEXT_MOST = 128 * 1024 - 4096  # the kernel takes no single argument or variable of 128 KiB or more
VARIABLE_MOST = 128 * 1024  # of a variable as the kernel takes it: name, `=`, value and a NUL
PATH_MOST = 4095
ENVIRONMENT_MOST = 1024 * 1024  # of all texts together; well under a quarter of the usual 8 MiB stack, and of a message
LONGEST_S = 10 * 365 * 86400.0
LABELS_MOST = 1_000
LABEL_MOST = 300  # characters of a label's name, and of its value
TOKEN_NAME_MOST = 100
_INVISIBLE = (
    r"\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
)
TOKEN_NAME = rf"^[^{_INVISIBLE}]*[^{_INVISIBLE}\s][^{_INVISIBLE}]*$"
"""What a token or a session may be called, as JSON Schema says it: nothing that does not show, or turns text around."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9+/;.$_()-]{1,200}\Z")


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task as submitted. Durations are in seconds."""

    script: bytes
    interpreter: list[str] | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    name: str | None = None
    timeout: float = 3600.0
    parallel: int = 0
    fail_count: int = -1
    fail_rate: float | None = None
    on_stop: OnStop = OnStop.FINISH
    targets: list[str] | None = None
    count: int | None = None
    queue: str = "default"
    priority: int = 1024
    expires: float = 86400.0
    lost_after: float = 120.0
    output_limit: int | None = None


def check(request: TaskRequest, *, max_script: int, max_targets: int) -> None:
    """Raise `InvalidRequest` naming every faulty field, or `TooLarge` for more text than a process could start with."""
    faults = [*_script(request, max_script), *_process(request), *_numbers(request), *_placement(request, max_targets)]
    if faults:
        raise InvalidRequest("; ".join(f"{f.field}: {f.message}" for f in faults), fields=faults)
    sizes = _sizes(request)
    size = sum(sizes.values())
    if size > ENVIRONMENT_MOST:
        field = max(sizes, key=lambda name: sizes[name])
        message = f"{' and '.join(sizes)} take {size} bytes together; at most {ENVIRONMENT_MOST} can go to a process"
        raise TooLarge(f"{field}: {message}", fields=[FieldError(field, message)])


def _sizes(request: TaskRequest) -> dict[str, int]:
    """Bytes of what is handed to the process, by field; each text costs a pointer and a NUL beside itself."""
    texts: dict[str, list[str]] = {
        "interpreter": request.interpreter or [],
        "args": request.args,
        "env": [*request.env, *request.env.values()],
        "cwd": [] if request.cwd is None else [request.cwd],
    }
    return {field: sum(len(text.encode()) + 9 for text in of_field) for field, of_field in texts.items() if of_field}


def from_map(value: dict[str, Any]) -> TaskRequest:
    """The request another process sent as a plain map; raises `InvalidRequest` naming the field."""
    return from_wire(TaskRequest, value)


def check_token_name(text: str) -> str:
    """The name without space at its ends. Raises `InvalidRequest` naming `name`."""
    name = text.strip()
    if len(name) > TOKEN_NAME_MOST or not re.fullmatch(TOKEN_NAME, name):
        raise InvalidRequest.of("name", f"must have 1 to {TOKEN_NAME_MOST} characters that can be seen")
    return name


def default_name(script: bytes) -> str:
    """The first line of the script that says something, shortened: what a task is called when nobody named it."""
    for raw in script.splitlines():
        line = raw.decode("utf-8", "replace").strip().removeprefix("\ufeff")
        if line and not line.startswith("#!"):
            return "".join(c if c.isprintable() else "\ufffd" for c in line)[:NAME_MOST]
    return "script"


def _fault(field: str, message: str) -> FieldError:
    return FieldError(field, message)


def _script(request: TaskRequest, max_script: int) -> list[FieldError]:
    size = len(request.script)
    if size == 0:
        return [_fault("script", "the script is empty; send at least one byte, in base64")]
    if size > max_script:
        return [_fault("script", f"the script has {size} bytes; at most {max_script} are accepted")]
    return []


def _text(field: str, text: str) -> list[FieldError]:
    if "\0" in text:
        return [_fault(field, "must not contain a NUL character")]
    if any("\ud800" <= c <= "\udfff" for c in text):
        return [_fault(field, "is not valid Unicode text")]
    if len(text.encode()) > TEXT_MOST:
        return [_fault(field, f"is longer than the {TEXT_MOST} bytes a process can be given")]
    return []


def _variable(name: str, text: str) -> list[FieldError]:
    if len(name.encode("utf-8", "replace")) + len(text.encode()) + 2 >= VARIABLE_MOST:
        message = f"name and value are longer than the {VARIABLE_MOST} bytes one variable can have"
        return [_fault(f"env.{name[:60]}", message)]
    return []


def _process(request: TaskRequest) -> list[FieldError]:
    faults: list[FieldError] = []
    if request.interpreter is not None and (not request.interpreter or not request.interpreter[0]):
        faults.append(_fault("interpreter", 'name a program, such as ["/bin/bash"], or leave the field out'))
    for field, texts in (("interpreter", request.interpreter or []), ("args", request.args)):
        for number, text in enumerate(texts):
            faults += _text(f"{field}[{number}]", text)
    for name, text in request.env.items():
        if not _ENV_NAME.match(name):
            faults.append(_fault(f"env.{name[:60]}", "a variable's name has letters, digits and _, no digit first"))
        elif name.startswith("MUSTER_"):
            faults.append(_fault(f"env.{name[:60]}", "names that begin with MUSTER_ are set by muster itself"))
        faults += _text(f"env.{name[:60]}", text) or _variable(name, text)
    if request.cwd is not None:
        faults += _text("cwd", request.cwd)
        if not request.cwd.startswith("/"):
            faults.append(_fault("cwd", "must be an absolute path"))
        elif len(request.cwd.encode("utf-8", "replace")) > PATH_MOST:
            faults.append(_fault("cwd", f"is longer than the {PATH_MOST} bytes a path can have"))
    if request.name is not None:
        if not request.name.strip() or len(request.name) > NAME_MOST:
            faults.append(_fault("name", f"must have 1 to {NAME_MOST} characters"))
        faults += _text("name", request.name)
    return faults


def _seconds(field: str, value: float) -> list[FieldError]:
    if not math.isfinite(value) or not 0 <= value <= LONGEST_S:
        return [_fault(field, f"must be 0 to {LONGEST_S:.0f} seconds")]
    return []


def _numbers(request: TaskRequest) -> list[FieldError]:
    faults = [
        *_seconds("timeout", request.timeout),
        *_seconds("expires", request.expires),
        *_seconds("lost_after", request.lost_after),
    ]
    if not 0 <= request.parallel <= 1_000_000:
        faults.append(_fault("parallel", "must be 0 (no bound) or a positive number"))
    if request.fail_count != -1 and not 1 <= request.fail_count <= 1_000_000:
        faults.append(_fault("fail_count", "must be 1 or more, or -1 for no bound"))
    if request.fail_rate is not None and not 0 <= request.fail_rate <= 1:
        faults.append(_fault("fail_rate", "must be between 0 and 1"))
    if not 0 <= request.priority <= PRIORITY_MOST:
        faults.append(_fault("priority", f"must be 0 (most urgent) to {PRIORITY_MOST}"))
    if request.output_limit is not None and not 1024 <= request.output_limit <= 1 << 40:
        faults.append(_fault("output_limit", "must be at least 1024 bytes"))
    return faults


def _placement(request: TaskRequest, max_targets: int) -> list[FieldError]:
    faults: list[FieldError] = []
    if request.targets is None and request.count is None:
        faults.append(_fault("targets", "say where to run: targets, or count for any N agents"))
    if request.targets is not None:
        if not request.targets:
            faults.append(_fault("targets", "the list is empty: nothing runs everywhere by accident"))
        if len(request.targets) > max_targets:
            faults.append(_fault("targets", f"at most {max_targets} targets are accepted"))
        for number, target in enumerate(request.targets):
            if not target.strip() or "*" in target or len(target) > NAME_MOST:
                faults.append(_fault(f"targets[{number}]", "must be the id, name or id prefix of one agent"))
    if request.count is not None and not 1 <= request.count <= max_targets:
        faults.append(_fault("count", f"must be 1 to {max_targets}"))
    if not _QUEUE_NAME.match(request.queue) or request.queue.startswith("-"):
        faults.append(_fault("queue", "a queue's name has 1 to 200 letters, digits or any of +/;.$_()- , no - first"))
    return faults
