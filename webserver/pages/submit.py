"""`/submit`: write or upload a script, choose where it runs, read what will happen, send it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import flask
from flask_babel import gettext as _
from flask_babel import lazy_gettext as _l

from common.errors import InvalidRequest, KeyReused, MusterError, TooLarge, Unauthorized
from webserver import commands, submission
from webserver.form_fields import size_shown
from webserver.forms import OTHER, SubmitForm
from webserver.pages import plan
from webserver.pages.door import PageDoor, Visit
from webserver.security import base_url
from webserver.wording import View

_PAGE = 500
_ROWS_MOST = 200
_RECENT = 50
_EXAMPLE_HOSTS_MOST = 3
_EXAMPLE = b"""#!/bin/sh
echo "Hello from $(hostname)"
uname -sr
for step in 1 2 3; do
    echo "step $step"
    sleep 1
done
"""
_LABELS = {
    "": _l("Submission"),
    "script": _l("Script"),
    "interpreter_other": _l("Run with"),
    "args": _l("Arguments"),
    "env": _l("Environment"),
    "targets": _l("Where to run"),
    "count": _l("Number of hosts"),
    "name": _l("Name"),
    "timeout": _l("Time limit"),
    "parallel": _l("At a time"),
    "fail_count": _l("Stop after failures"),
    "fail_rate": _l("Stop at a share of failures"),
    "cwd": _l("Working directory"),
    "queue": _l("Queue"),
    "priority": _l("Priority"),
    "expires": _l("Give up waiting after"),
    "lost_after": _l("Count as lost after"),
    "output_limit": _l("Output kept of each run"),
}


def add(door: PageDoor) -> None:
    """Add the routes."""
    door.get("/submit")(show)
    door.post("/submit")(send)
    door.post("/submit/plan")(say_plan)
    door.post("/submit/commands")(show_commands)


def show(visit: Visit) -> flask.Response:
    """The form: empty, filled from the task `from`, with the hosts `on` chosen, or with an `example`."""
    mark = visit.web.streams.mark(runs=False)
    agents = list(_agents(visit))
    origin = flask.request.args.get("from")
    task = visit.web.master.get_task(origin) if origin else None
    if task is None:
        form = SubmitForm(targets=flask.request.args.getlist("on"))
        if "example" in flask.request.args:
            form = _example(agents)
    else:
        script = visit.web.master.read("get_script", task["id"])["data"]
        names = _present_names(task.get("targets") or (), agents)
        form = SubmitForm.of_task(task, script, names, output_limit=visit.web.settings.output_limit)
    last = None if task else _last_submission(visit)
    return _page(visit, form, agents, mark=mark, origin=task, last=last)


def _example(agents: list[View]) -> SubmitForm:
    """A form with which one may try it: it changes nothing on a host."""
    online = [agent["name"] for agent in agents if agent["state"] == "online"]
    form = SubmitForm(script=_EXAMPLE, targets=online[:_EXAMPLE_HOSTS_MOST])
    form.texts["name"] = _("My first task")
    return form


def send(visit: Visit) -> flask.Response:
    """Submit the form. What is wrong with it is told at its fields, and nothing typed is lost."""
    form = _posted()
    status = 422
    try:
        request = form.request(max_script=visit.web.settings.max_script)
        if request is not None:
            view, _created = submission.submit(visit.web, request, by=visit.who.name, key=form.key)
            return visit.redirect(f"/tasks/{view['id']}", notice=_("Submitted."))
    except (InvalidRequest, TooLarge) as error:
        _note_refusal(visit, form, error)
    except KeyReused:
        form.key = SubmitForm().key
        form.faults[""] = _("This form was sent before and has made a task. Send it again to make another.")
        status = 409
    except Unauthorized:
        raise
    except MusterError as error:
        form.faults[""], status = error.message, error.status
    if visit.partial:
        return visit.render("submit_faults.html", status=status, form=form, labels=_LABELS)
    return _again(visit, form, status=status)


def say_plan(visit: Visit) -> flask.Response:
    """The plan of the form as it is, in words; the script does not matter for it."""
    form = _posted()
    spoken, missing = None, ""
    try:
        request = form.request(max_script=visit.web.settings.max_script, script=b"#")
        if request is not None:
            spoken = plan.spoken(submission.preview(visit.web, request))
    except (InvalidRequest, TooLarge) as error:
        _note_refusal(visit, form, error)
    except Unauthorized:
        raise
    except MusterError as error:
        missing = error.message
    return visit.render("submit_plan.html", plan=spoken, form=form, labels=_LABELS, missing=missing)


def show_commands(visit: Visit) -> flask.Response:
    """The form as commands for a shell."""
    form = _posted()
    shown = _commands(visit, form)
    if visit.partial:
        template = "submit_commands.html" if shown else "submit_faults.html"
        return visit.render(template, status=200 if shown else 422, form=form, labels=_LABELS, commands=shown)
    return _again(visit, form, status=200 if shown else 422, commands=shown)


def _commands(visit: Visit, form: SubmitForm) -> dict[str, str] | None:
    request = form.request(max_script=visit.web.settings.max_script)
    if request is None:
        return None
    url = base_url(visit.web.settings, flask.request)
    return {"curl": commands.curl(request, url=url), "run": commands.muster_run(request, url=url)}


def _posted() -> SubmitForm:
    return SubmitForm.of_post(flask.request.form, flask.request.files.get("file"))


def _again(visit: Visit, form: SubmitForm, *, status: int, **context: Any) -> flask.Response:
    """The whole page with what was typed; also while the master is away."""
    try:
        mark: str | None = visit.web.streams.mark(runs=False)
        agents = list(_agents(visit))
    except MusterError:
        mark, agents = None, []
    return _page(visit, form, agents, mark=mark, status=status, **context)


def _page(
    visit: Visit, form: SubmitForm, agents: list[View], *, mark: str | None, status: int = 200, **context: Any
) -> flask.Response:
    known = {agent["name"] for agent in agents}
    gone = [name for name in form.targets if name not in known]
    chosen = set(form.targets)
    # Rows that do not fit come with a script; without one, those that are chosen must be there.
    rows = sorted(agents, key=lambda agent: agent["name"] not in chosen)[: max(_ROWS_MOST, len(chosen))]
    return visit.render(
        "submit.html",
        status=status,
        form=form,
        faults=form.faults,
        labels=_LABELS,
        other=OTHER,
        agents=[_slim(agent) for agent in agents],
        rows=sorted((_slim(agent) for agent in rows), key=lambda agent: str(agent["name"])),
        gone=gone,
        mark=mark,
        max_script=visit.web.settings.max_script,
        output_limit=size_shown(visit.web.settings.output_limit),
        **context,
    )


def _slim(agent: View) -> dict[str, Any]:
    """What a row needs of an agent, as events tell it."""
    facts = agent.get("facts") or {}
    told = {name: facts[name] for name in ("load", "cpus") if isinstance(facts.get(name), int | float)}
    kept = ("id", "name", "hostname", "state", "labels", "slots", "held")
    return {**{name: agent[name] for name in kept}, "facts": told}


def _agents(visit: Visit) -> Iterator[View]:
    """All agents, by name."""
    cursor = None
    while True:
        page = visit.web.master.read("list_agents", _PAGE, cursor)
        yield from page["items"]
        cursor = page["next"]
        if cursor is None:
            return


def _present_names(targets: Iterable[str], agents: list[View]) -> list[str]:
    """The targets of a task by their present names; those that are no agents any more as they are."""
    by_word: dict[str, str] = {}
    for agent in agents:
        by_word[agent["id"]] = agent["name"]
    by_word |= {agent["name"]: agent["name"] for agent in agents}
    found = []
    for target in targets:
        begun = [agent["name"] for agent in agents if agent["id"].startswith(target.lower())] if target else []
        found.append(by_word.get(target) or (begun[0] if len(begun) == 1 else target))
    return list(dict.fromkeys(found))


def _last_submission(visit: Visit) -> Mapping[str, Any] | None:
    """The visitor's newest task, if it is among the recent ones."""
    page = visit.web.master.read("list_tasks", {}, _RECENT, None)
    return next((task for task in page["items"] if task["submitted_by"] == visit.who.name), None)


def _note_refusal(visit: Visit, form: SubmitForm, error: MusterError) -> None:
    """Say what the master refused at the fields, in the visitor's language where it is about what it alone knows."""
    fields = {fault.field.partition("[")[0] for fault in error.fields}
    if isinstance(error, TooLarge):
        for name in fields or {""}:
            form.faults[name] = _("Arguments and environment are larger together than a process can be given (1 MiB).")
        return
    if "targets" in fields:
        known = {name for agent in _agents(visit) for name in (agent["name"], agent["id"])}
        unknown = [name for name in form.targets if name not in known]
        if unknown:
            form.faults["targets"] = _("There is no such host (any more): %(names)s", names=", ".join(unknown[:10]))
    if fields == {"count"}:
        form.faults["count"] = _(
            "Fewer hosts than that can take it and serve the queue %(queue)s.", queue=form.texts["queue"]
        )
    form.refused(error)
