"""Log lines: one event, one line, key=value or JSON, UTC with milliseconds, the process's role in each.

Promises that no value can break a line or steer a terminal: whatever a script, a host or a person supplied is quoted,
control characters are escaped and long text is cut. Writing never raises: a log that cannot be written is dropped.
`configure` is called once per process; modules use `logging.getLogger(__name__)` with `extra=fields(...)`, and
`change` for each change of a state.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import traceback
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final

FORMATS: Final = ("kv", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

# Longer values are cut, with the number of characters left out; a traceback may be longer than anything else.
_VALUE_MAX: Final = 1_000
_TRACEBACK_MAX: Final = 8_000
_OUR_PACKAGES: Final = ("common", "master", "agent", "webserver", "muster")
_FIELDS: Final = "muster_fields"
_LEVEL_NAMES: Final = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", _FIELDS}
# How many attributes a record has that was given `fields` and nothing else.
_USUAL: Final = len(logging.makeLogRecord({}).__dict__) + 1

_bare = re.compile(r"[A-Za-z0-9_./:@+,\[\]-]+").fullmatch
# json.dumps escapes what is below a space. These, too, move a cursor, turn text round, or cannot be encoded at all.
_unsafe = re.compile("[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def fields(**values: object) -> dict[str, Any]:
    """The `extra` argument that puts `values` into the line; any name is allowed, `name` and `module` included."""
    return {_FIELDS: values}


def change(
    logger: logging.Logger, what: str, *, from_: object, to: object, level: int = logging.INFO, **values: object
) -> None:
    """Log that a `what` ("run", "agent", …) went from one state to another; `values` say which and why.

    >>> change(logger, "run", run_id=run.run_id, from_="ready", to="leased", agent_id=agent_id)
    """
    if logger.isEnabledFor(level):
        logger.log(level, what, extra={_FIELDS: {"from": from_, "to": to, **values}})


def configure(role: str, *, log_format: str | None = None, level: str | None = None, fd: int = 2) -> None:
    """Send this process's log lines to `fd`, marked with `role`; replaces what was configured before.

    Left out, the format and the level come from MUSTER_LOG_FORMAT (`kv`) and MUSTER_LOG_LEVEL (`info`). The level is
    that of our own packages; other libraries are heard from `warning` on. Raises ValueError for an unknown word.
    """
    log_format = log_format or os.environ.get("MUSTER_LOG_FORMAT") or "kv"
    level = (level or os.environ.get("MUSTER_LOG_LEVEL") or "info").lower()
    if log_format not in FORMATS:
        raise ValueError(f"log format {log_format!r} is not known: use one of {', '.join(FORMATS)}")
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is not known: use one of {', '.join(LEVELS)}")
    # Nothing below is printed by our formatter, and looking it up costs more than the rest of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    number = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    sink = LineSink(fd)
    sink.setFormatter(JsonFormatter(role) if log_format == "json" else KeyValueFormatter(role))
    root.handlers[:] = [sink]
    root.setLevel(max(number, logging.WARNING))
    for package in _OUR_PACKAGES:
        logging.getLogger(package).setLevel(number)
    logging.captureWarnings(True)


class LineSink(logging.Handler):
    """Writes each line with one call to a descriptor, so that lines of several processes do not mix."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record's line; a full disk, a closed pipe or an unprintable value drops it."""
        try:
            rest = memoryview(self.format(record).encode("utf-8", "backslashreplace") + b"\n")
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            return
        except Exception:  # a value's own __str__ may raise anything; the log must never stop the work it tells about
            self.handleError(record)


class _Formatter(logging.Formatter):
    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role
        self._second = (-1, "")

    def _at(self, record: logging.LogRecord) -> str:
        second, text = self._second
        now = int(record.created)
        if now != second:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
            self._second = (now, text)
        return f"{text}.{int(record.msecs):03d}Z"

    def _extras(self, record: logging.LogRecord) -> Mapping[str, object]:
        values: dict[str, object] = record.__dict__.get(_FIELDS, {})
        if values and len(record.__dict__) == _USUAL:
            return values
        others = record.__dict__.keys() - _STANDARD
        return {**{key: record.__dict__[key] for key in others}, **values}


class KeyValueFormatter(_Formatter):
    """`at=… level=… role=… in=LOGGER msg=… key=value …`; a value with anything unusual in it is a JSON string."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line without its end."""
        head = f"at={self._at(record)} level={_level_name(record.levelno)} role={_shown(self._role)}"
        parts = [head, f"in={_shown(record.name)}", f"msg={_shown(record.getMessage())}"]
        for key, value in self._extras(record).items():
            if value is not None:
                parts.append(f"{_key(key)}={_shown(value)}")
        if record.exc_info and record.exc_info[1] is not None:
            parts.append(f"error={_shown(_error(record.exc_info[1]))}")
            parts.append(f"traceback={_quoted(_traceback(record.exc_info[1]))}")
        return " ".join(parts)


class JsonFormatter(_Formatter):
    """One JSON object per line: `at`, `level`, `role`, `in`, `msg` and the event's own keys."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line without its end."""
        line: dict[str, object] = {
            "at": self._at(record),
            "level": _level_name(record.levelno),
            "role": self._role,
            "in": record.name,
            "msg": _cut(record.getMessage()),
        }
        for key, value in self._extras(record).items():
            plain = value is None or isinstance(value, bool | int | float)
            # A field of the event never replaces one of the line's own.
            line[f"{key}_" if key in line else key] = value if plain else _text(value)
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = _cut(_error(record.exc_info[1]))
            line["traceback"] = _traceback(record.exc_info[1])
        return _escape(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


def _level_name(number: int) -> str:
    return _LEVEL_NAMES.get(number) or str(number)


def _error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-_TRACEBACK_MAX:]


def _escape(text: str) -> str:
    return _unsafe.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def _cut(text: str) -> str:
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}… ({len(text) - _VALUE_MAX} more)"


def _text(value: object) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value[: _VALUE_MAX + 1]).decode("utf-8", "backslashreplace")
    return _cut(value if isinstance(value, str) else str(value))


def _quoted(text: str) -> str:
    return _escape(json.dumps(text, ensure_ascii=False))


def _shown(value: object) -> str:
    # Ids and states, which most values are, take the first way out.
    if type(value) is str and len(value) <= _VALUE_MAX and _bare(value):
        return value
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e5 else f"{value:.3f}"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _text(value)
    return text if _bare(text) else _quoted(text)


@lru_cache(maxsize=512)
def _key(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", key) or "_"
