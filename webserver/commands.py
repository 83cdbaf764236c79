"""A submission as commands for a shell: with curl, and as `muster run`.

Promises that a POSIX shell which reads such a command submits exactly this request, whatever bytes and names are in it,
and that a command shows every character it has: nothing in it is invisible, turns text around or acts on a terminal.
"""

from __future__ import annotations

import base64
import json
import shlex
from itertools import groupby
from typing import Any

import msgspec

from common.model import OnStop
from common.requests import TaskRequest
from webserver.form_fields import decimal

_DEFAULTS = TaskRequest(script=b"")
_LINE = 100


def curl(request: TaskRequest, *, url: str) -> str:
    """The request sent to the webserver at `url` by curl; the token is taken from `$MUSTER_TOKEN`."""
    body: dict[str, Any] = {"script": base64.b64encode(request.script).decode()}
    for name in request.__struct_fields__[1:]:
        value = getattr(request, name)
        if value != getattr(_DEFAULTS, name):
            body[name] = msgspec.to_builtins(value)
    # Plain ASCII, and no line of it can be the mark that ends the text.
    text = json.dumps(body, indent=2)
    return (
        f"curl -sS -X POST {quoted(url + '/api/v1/tasks')} \\\n"
        '  -H "Authorization: Bearer $MUSTER_TOKEN" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"  --data-binary @- <<'EOF'\n{text}\nEOF\n"
    )


def muster_run(request: TaskRequest, *, url: str) -> str:
    """The request as `muster run`, which follows what it submits."""
    command = _folded([f"muster run --url {quoted(url)}", *_options(request), _words(["-", *request.args])])
    script = _as_text(request.script)
    if script is None:
        encoded = base64.encodebytes(request.script).decode()
        return f"base64 -d <<'EOF' | {command}\n{encoded}EOF\n"
    if not script.endswith("\n"):
        return f"printf %s {quoted(script)} | {command}\n"
    mark, lines = "EOF", set(script.split("\n"))
    while mark in lines:
        mark += "_"
    return f"{command} <<'{mark}'\n{script}{mark}\n"


def quoted(text: str) -> str:
    """One word of a shell's command line. What does not show is written as octal numbers."""
    pieces = ((shows, "".join(piece)) for shows, piece in groupby(text, lambda c: c.isprintable() or c == "\n"))
    return "".join(shlex.quote(piece) if shows else _octal(piece) for shows, piece in pieces) or "''"


def _octal(text: str) -> str:
    numbers = "".join(f"\\{byte:03o}" for byte in text.encode("utf-8", "surrogateescape"))
    return f"\"$(printf '{numbers}')\""


def _as_text(script: bytes) -> str | None:
    """The script if it can stand in a command as it is."""
    try:
        text = script.decode()
    except UnicodeDecodeError:
        return None
    return text if all(c.isprintable() or c in "\n\t" for c in text) else None


def _options(request: TaskRequest) -> list[str]:
    found: list[str] = []

    def add(option: str, text: str) -> None:
        found.append(f"--{option}={quoted(text)}")

    if request.targets:
        add("on", ",".join(request.targets))
    for name in ("count", "timeout", "parallel", "fail_count", "fail_rate", "on_stop", "cwd", "name", "queue",
                 "priority", "expires", "lost_after", "output_limit"):  # fmt: skip
        value = getattr(request, name)
        if value is None or value == getattr(_DEFAULTS, name):
            continue
        text = value.value if isinstance(value, OnStop) else decimal(value) if isinstance(value, float) else str(value)
        add(name.replace("_", "-"), text)
    if request.interpreter:
        add("interpreter", shlex.join(request.interpreter))
    for name, value in request.env.items():
        add("env", f"{name}={value}")
    return found


def _words(words: list[str]) -> str:
    return " ".join(quoted(word) for word in words)


def _folded(parts: list[str]) -> str:
    """The parts as one command, over several lines when it is long."""
    line = " ".join(parts)
    return line if len(line) <= _LINE and "\n" not in line else " \\\n  ".join(parts)
