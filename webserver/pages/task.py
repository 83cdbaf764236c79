"""The page of a task: its state, its hosts in groups of identical outcome, one run in detail, and what may be done.

The page is whole without scripts, but for the runs one by one and their output; with scripts it follows the task's
stream. Actions are forms; they are answered by a notice where a script posted them, since the stream tells the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import flask
from flask_babel import format_percent, ngettext
from flask_babel import gettext as _

from common.errors import InvalidRequest, NotFound
from common.model import FINAL_STATES, TASK_FINAL_STATES, RunState
from webserver import said
from webserver.pages.door import PageDoor, Visit
from webserver.pages.filters import count as counted
from webserver.pages.filters import duration, state_word

SCRIPT_SHOWN = 64 * 1024
"""Bytes up to which a script stands on the page; a larger one is only linked."""
ID_LENGTH = 36
NAMES_SHOWN = 40
_RANKS = {"failed": 0, "running": 1, "leased": 2, "ready": 3, "delayed": 3, "cancelled": 4, "skipped": 4, "expired": 4}
_NOT_BEGUN = ("delayed", "ready", "leased")
_SOON = ("leased_not_begun", "may", "could_begin")
_OF_AGENT = ("agent_draining", "agent_offline", "agent_conflict", "agent_busy")
View = Mapping[str, Any]


def add(door: PageDoor) -> None:
    """Add the routes."""
    door.get("/tasks/<task_id>")(show)
    door.get("/runs/<run_id>")(show_run)
    door.post("/tasks/<task_id>/cancel")(cancel)
    door.post("/tasks/<task_id>/pause")(pause)
    door.post("/tasks/<task_id>/resume")(resume)
    door.post("/tasks/<task_id>/retry")(retry)
    door.post("/runs/<run_id>/cancel")(cancel_run)


# -- looking -----------------------------------------------------------------------------------------------------------


def show(visit: Visit, task_id: str) -> flask.Response:
    """The page; an id that is a beginning leads to the whole one."""
    task = _found(visit, "get_task", task_id)
    if task["id"] != task_id:
        return visit.redirect(f"/tasks/{task['id']}")
    groups = grouped(visit.web.master.read("list_groups", task["id"])["items"])
    return visit.render(
        "task.html",
        task=task,
        groups=groups,
        may=allowed(task),
        took=took(task),
        waits=waits(task),
        turn=turn(task),
        retry_words=retry_words(task),
        never_begun=never_begun,
        reason=said.reason(task["reason"]),
        share=None if task["fail_rate"] is None else format_percent(task["fail_rate"], "#,##0.##%"),
        script=_script(visit, task),
        cancel_question=cancel_question(task, grace_s=visit.web.settings.kill_grace),
        retry_all_question=retry_all_question(task),
        kill_grace=visit.web.settings.kill_grace,
    )


def show_run(visit: Visit, run_id: str) -> flask.Response:
    """On to the run on the page of its task."""
    run = _found(visit, "get_run", run_id)
    if run["task_id"] is None:
        raise NotFound(_("There is no run “%(text)s”.", text=run_id[:100]))
    return visit.redirect(run_path(run))


def run_path(run: View) -> str:
    """Where a run is shown."""
    return f"/tasks/{quote(run['task_id'])}#run={quote(run['id'])}"


def _found(visit: Visit, method: str, text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = visit.web.master.read(method, text)
        return found
    except NotFound:
        shown = text[:100]
        told = _("There is no task “%(text)s”.", text=shown) if method == "get_task" else None
        raise NotFound(told or _("There is no run “%(text)s”.", text=shown)) from None


def _script(visit: Visit, task: View) -> dict[str, Any] | None:
    """The script's text and number of lines; None for one too large to be shown."""
    if task["script_size"] > SCRIPT_SHOWN:
        return None
    content: bytes = visit.web.master.read("get_script", task["id"])["data"]
    return {"text": content.decode("utf-8", "replace"), "lines": content.count(b"\n") + (not content.endswith(b"\n"))}


# -- what is said ------------------------------------------------------------------------------------------------------


def allowed(task: View) -> dict[str, bool]:
    """What may be done with the task now; `static/js/task_header.js` says the same."""
    final = task["state"] in TASK_FINAL_STATES
    return {
        "retry_failed": final and task["state"] != "succeeded",
        "retry_all": final,
        "resume": not final and task["paused"],
        "pause": not final and not task["paused"],
        "cancel": not final,
    }


def took(task: View) -> str | None:
    """How long the task took; None when it goes on or never began."""
    if task["started_at_ms"] is None or task["ended_at_ms"] is None:
        return None
    return duration((task["ended_at_ms"] - task["started_at_ms"]) / 1000)


def _reasons(task: View) -> list[View]:
    """Why runs of the task wait, but for those that are soon to begin or have only their turn to wait for."""
    return [each for each in task["waiting"] if each["code"] not in (*_SOON, "window_full")]


def _count(task: View, *states: str) -> int:
    return sum(task["counts"].get(state, 0) for state in states)


def waits(task: View) -> dict[str, Any] | None:
    """How many runs wait, why, and the agents it depends on with what to do there; None when nothing needs a word."""
    reasons = _reasons(task)
    if not reasons:
        return None
    number = _count(task, "ready", "delayed")
    if not number:
        head = _("Waits:")
    elif task["state"] == "running" and not _count(task, "running", "leased"):
        head = ngettext("Nothing runs now; %(num)s run waits:", "Nothing runs now; %(num)s runs wait:", number)
    else:
        head = ngettext("%(num)s run waits:", "%(num)s runs wait:", number)
    agents = [_at_agent(each) for each in reasons if each["code"] in _OF_AGENT]
    return {"head": head, "text": said.waiting(reasons, text=task["waiting_because"]), "agents": agents}


def _at_agent(reason: View) -> dict[str, str]:
    name = reason["args"]["agent"]
    draining = reason["code"] == "agent_draining"
    words = _("Resume %(agent)s on its page", agent=name) if draining else _("Look at %(agent)s", agent=name)
    return {"path": f"/agents/{quote(name, safe='')}", "words": words}


def turn(task: View) -> str:
    """That runs wait for their turn, as the task wants it; nothing when they wait for something else."""
    number = _count(task, "ready")
    if not task["parallel"] or not number or task["paused"] or _reasons(task):
        return ""
    return ngettext(
        "%(parallel)s at a time; %(num)s more waits for its turn",
        "%(parallel)s at a time; %(num)s more wait for their turn",
        number,
        parallel=task["parallel"],
    )


def retry_words(task: View) -> dict[str, Any]:
    """What the button says that runs again whatever did not succeed: how many failed, and which others there are."""
    failed = _count(task, "failed")
    if not failed:
        rest = task["total"] - _count(task, "succeeded")
        return {"word": _("Run the remaining %(number)s", number=counted(rest)), "count": None, "also": ""}
    others = [(_count(task, state), state_word(state)) for state in ("cancelled", "skipped", "expired")]
    what = ", ".join(f"{counted(number)} {word}" for number, word in others if number)
    return {"word": _("Retry failed"), "count": failed, "also": _("and %(what)s", what=what) if what else ""}


def never_begun(run: View) -> str:
    """Why a run or group of runs has ended without having begun; nothing for others."""
    if run.get("outcome") is not None:
        return ""
    said_of = {
        "skipped": lambda: _("never began: the stop rule fired"),
        "expired": lambda: _("never began: no agent took it in time"),
        "cancelled": lambda: _("never began: it was cancelled before"),
    }.get(run["state"])
    return said_of() if said_of else ""


def cancel_question(task: View, *, grace_s: float) -> str:
    """What cancelling does now, in words; `static/js/task_header.js` says the same."""
    idle = sum(task["counts"].get(state, 0) for state in _NOT_BEGUN)
    busy = task["counts"].get("running", 0)
    parts = []
    if idle:
        parts.append(
            ngettext("%(num)s run has not begun and never will.", "%(num)s runs have not begun and never will.", idle)
        )
    if busy:
        grace = f"{grace_s:g}"
        parts.append(
            ngettext(
                "%(num)s running script gets TERM, then KILL after %(grace)s s.",
                "%(num)s running scripts get TERM, then KILL after %(grace)s s.",
                busy,
                grace=grace,
            )
        )
    return " ".join([_("Cancel this task?"), *parts])


def retry_all_question(task: View) -> str:
    """What running all again does."""
    return ngettext(
        "Run the script again on its %(num)s host, whatever came of it before?",
        "Run the script again on all %(num)s hosts, also where it succeeded?",
        task["total"],
    )


def grouped(groups: Iterable[View]) -> list[dict[str, Any]]:
    """The groups in the order in which a person wants them: what failed before what goes on, and last what succeeded,
    the largest first. Runs that differ in nothing but their output, each from all others, make one group: a script that
    prints its host's name would make as many groups as there are hosts. `static/js/task_groups.js` does the same."""
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        alike = (group["state"], group["outcome"], group["exit_code"], group["signal"])
        sole = group["count"] == 1 and group["output_sha256"] is not None
        key = "|".join("" if each is None else str(each) for each in (*alike, "*" if sole else group["output_sha256"]))
        there = found.setdefault(key, _empty_group(group, key))
        there["count"] += group["count"]
        there["names"] = [*there["names"], *group["names"]][:NAMES_SHOWN]
        there["mixed"] = sole and there["count"] > 1
    return sorted(found.values(), key=lambda group: (_RANKS.get(group["state"], 5), -group["count"]))


def _empty_group(group: View, key: str) -> dict[str, Any]:
    return {**group, "key": key, "count": 0, "names": [], "mixed": False}


# -- acting ------------------------------------------------------------------------------------------------------------


def cancel(visit: Visit, task_id: str) -> flask.Response:
    """End the task."""
    return _act(visit, task_id, _("The task is being cancelled."), "cancel_task", visit.who.name)


def pause(visit: Visit, task_id: str) -> flask.Response:
    """Start nothing more of the task for now."""
    return _act(visit, task_id, _("Paused: nothing more begins; what runs goes on."), "pause_task")


def resume(visit: Visit, task_id: str) -> flask.Response:
    """Let the task go on."""
    return _act(visit, task_id, _("The task goes on."), "resume_task")


def retry(visit: Visit, task_id: str) -> flask.Response:
    """Reopen what did not succeed, or all."""
    only = flask.request.form.get("only", "failed")
    if only not in ("failed", "all"):
        raise InvalidRequest.of("only", _("must be `failed` or `all`"))
    notice = _("All runs begin again.") if only == "all" else _("What did not succeed begins again.")
    return _act(visit, task_id, notice, "retry_task", only)


def _act(visit: Visit, task_id: str, notice: str, method: str, *args: Any) -> flask.Response:
    task = visit.web.master.act(method, task_id, *args)
    return _done(visit, f"/tasks/{task['id']}", notice)


def cancel_run(visit: Visit, run_id: str) -> flask.Response:
    """End one run of a task."""
    run = visit.web.master.act("cancel_run", run_id)
    over = RunState(run["state"]) in FINAL_STATES
    notice = _("The run is cancelled.") if over else _("The run is being ended.")
    return _done(visit, run_path(run) if run["task_id"] else "/tasks", notice)


def _done(visit: Visit, path: str, notice: str) -> flask.Response:
    if visit.partial:
        return visit.notify(flask.Response(status=204), notice)
    return visit.redirect(path, notice=notice)
