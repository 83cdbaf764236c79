"""What templates use to say values: times, durations, sizes, states. Everything else that they print is made plain."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import flask
import jinja2
import jinja2.runtime
from flask_babel import format_datetime, format_decimal
from flask_babel import gettext as _
from flask_babel import lazy_gettext as _l
from markupsafe import Markup

from webserver import languages
from webserver.plain import plain
from webserver.wording import moment

TASK_STATES = {
    "waiting": _l("waiting"),
    "running": _l("running"),
    "succeeded": _l("succeeded"),
    "failed": _l("failed"),
    "cancelled": _l("cancelled"),
    "paused": _l("paused"),
}
RUN_STATES = {
    "delayed": _l("delayed"),
    "ready": _l("waiting"),
    "leased": _l("claimed"),
    "running": _l("running"),
    "buried": _l("buried"),
    "succeeded": _l("succeeded"),
    "failed": _l("failed"),
    "cancelled": _l("cancelled"),
    "skipped": _l("skipped"),
    "expired": _l("expired"),
}
AGENT_STATES = {
    "online": _l("online"),
    "offline": _l("offline"),
    "draining": _l("draining"),
    "conflict": _l("conflict"),
}
OUTCOMES = {
    "exit": _l("exit code"),
    "signal": _l("ended by a signal"),
    "timeout": _l("timed out"),
    "spawn_error": _l("could not be started"),
    "lost": _l("lost: its agent fell silent"),
    "interrupted": _l("interrupted"),
    "rebooted": _l("its host was restarted"),
    "output_limit": _l("wrote too much output"),
    "refused": _l("refused by the agent"),
}
STATE_ICONS = {
    "waiting": "hourglass",
    "delayed": "clock",
    "ready": "hourglass",
    "leased": "circle-dot",
    "running": "loader",
    "succeeded": "circle-check",
    "failed": "circle-x",
    "cancelled": "ban",
    "paused": "circle-pause",
    "skipped": "skip-forward",
    "expired": "clock",
    "buried": "inbox",
    "online": "circle-check",
    "offline": "wifi-off",
    "draining": "circle-slash",
    "conflict": "triangle-alert",
}
PROGRESS_ORDER = ("succeeded", "failed", "cancelled", "skipped", "expired", "running", "leased", "ready", "delayed")
"""The parts of a progress bar from left to right: what is over first, then what goes on, then what waits."""


def finalize(value: Any) -> Any:
    """What a template prints: markup of ours as it is, any other text made plain, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, Markup):
        return value
    return plain(value) if isinstance(value, str) else value


def install(app: flask.Flask) -> None:
    """Give the templates of `app` these words."""
    spoken: dict[str, Callable[..., Any]] = {
        "time": time_tag, "duration": duration, "size": size, "count": count, "state_word": state_word,
        "outcome_words": outcome_words,
    }  # fmt: skip
    app.jinja_env.filters.update({name: each_time(say) for name, say in spoken.items()}, moment=moment, parts=parts)
    for name in ("gettext", "ngettext", "pgettext", "npgettext"):
        app.jinja_env.globals[name] = of_plain_values(cast("Callable[..., str]", app.jinja_env.globals[name]))
    app.jinja_env.globals.update(
        LANGUAGES=languages.LANGUAGES,
        script_words=languages.script_words,
        STATE_ICONS=STATE_ICONS,
        TASK_STATES=TASK_STATES,
        RUN_STATES=RUN_STATES,
        AGENT_STATES=AGENT_STATES,
    )


def each_time(say: Callable[..., Any]) -> Callable[..., Any]:
    """The same filter, asked again for every page. What looks constant (`"failed" | state_word`) Jinja works out once,
    when it compiles a template, and that would be the language of whoever comes first."""

    @jinja2.pass_context
    def said(context: jinja2.runtime.Context, *values: Any, **options: Any) -> Any:
        return say(*values, **options)

    return said


def of_plain_values(translate: Callable[..., str]) -> Callable[..., str]:
    """The same translation for templates, with what is put into it made plain: the result counts as markup of ours."""

    @jinja2.pass_context
    def said(context: jinja2.runtime.Context, *texts: Any, **values: Any) -> str:
        return translate(context, *texts, **{name: finalize(value) for name, value in values.items()})

    return said


def time_tag(wall_ms: int | None, form: str = "ago") -> Markup:
    """A point in time; the browser makes it local, and relative where `form` is `ago`."""
    if wall_ms is None:
        return Markup("")
    when = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return Markup('<time datetime="{}" data-form="{}">{} UTC</time>').format(
        moment(wall_ms),
        form,
        format_datetime(when, "short"),  # type: ignore[no-untyped-call]
    )


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units: `40 ms`, `1.4 s`, `12 s`, `3 min 5 s`, `2 h 7 min`, `3 d 4 h`."""
    if seconds is None:
        return ""
    if 0 < seconds < 0.9995:
        return _("%(n)s ms", n=max(1, round(seconds * 1000)))
    if seconds < 10:
        return _("%(n)s s", n=format_decimal(round(max(0.0, seconds), 1)))
    whole = round(seconds)
    if whole < 60:
        return _("%(n)s s", n=whole)
    if whole < 3600:
        return _("%(m)s min %(s)s s", m=whole // 60, s=whole % 60) if whole % 60 else _("%(m)s min", m=whole // 60)
    if whole < 86400:
        h, m = divmod(whole // 60, 60)
        return _("%(h)s h %(m)s min", h=h, m=m) if m else _("%(h)s h", h=h)
    hours = whole // 3600
    return _("%(d)s d %(h)s h", d=hours // 24, h=hours % 24) if hours % 24 else _("%(d)s d", d=hours // 24)


def size(count_of_bytes: int | float | None) -> str:
    """Bytes in binary units: `512 B`, `1.4 KiB`, `16 MiB`."""
    if count_of_bytes is None:
        return ""
    number = float(count_of_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{format_decimal(round(number, 1 if number < 10 and unit != 'B' else 0))} {unit}"


def count(number: int) -> str:
    """A number with its thousands apart, as the language does it."""
    return str(format_decimal(number))


def state_word(state: str) -> str:
    """A state of a task, a run or an agent in words."""
    known = RUN_STATES.get(state) or TASK_STATES.get(state) or AGENT_STATES.get(state)
    return str(known) if known is not None else state


def outcome_words(run: Any) -> str:
    """Why an attempt ended, as said in a row: `exit code 3`, `ended by a signal SIGKILL`, `timed out`."""
    outcome = run.get("outcome")
    if outcome is None:
        return ""
    if outcome == "exit":
        return _("exit code %(code)s", code=run.get("exit_code"))
    if outcome == "signal":
        return _("ended by %(signal)s", signal=run.get("signal"))
    known = OUTCOMES.get(outcome)
    return str(known) if known is not None else str(outcome)


def parts(task: Any) -> list[tuple[str, float, float, int]]:
    """The parts of a task's progress bar: (state, left and width in percent, number of runs)."""
    counts, total = task["counts"], max(1, task["total"])
    found, left = [], 0.0
    for state in PROGRESS_ORDER:
        number = counts.get(state, 0)
        if number:
            width = 100 * number / total
            found.append((state, round(left, 3), round(width, 3), number))
            left += width
    return found
