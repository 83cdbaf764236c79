"""The overview: what runs, what waits and why, what has ended, how the fleet stands, and what needs a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flask
from flask_babel import gettext as _
from flask_babel import ngettext

from webserver.pages.door import PageDoor, Visit

ENDED_SHOWN = 12
ICONS = {
    "disk": "hard-drive",
    "agent_conflict": "triangle-alert",
    "task_stopped": "ban",
    "run_silent": "wifi-off",
    "task_failed": "circle-x",
    "agent_offline": "wifi-off",
    "task_paused": "circle-pause",
}


def add(door: PageDoor) -> None:
    """Add the routes."""
    door.get("/")(show)
    door.get("/fleet")(fleet)


def show(visit: Visit) -> flask.Response:
    """The page."""
    after = visit.web.streams.mark(runs=False)
    found = dict(visit.web.master.read("overview"))
    found["waiting"] = [task for task in found["waiting"] if held_back(task)]
    found["ended"] = found["ended"][:ENDED_SHOWN]
    first = not any(found["counts"].values())
    return visit.render(
        "home.html", after=after, found=found, first=first, attention_words=attention_words, icons=ICONS
    )


def fleet(visit: Visit) -> flask.Response:
    """The line about the fleet alone, for the page's script."""
    return visit.render("fleet_line.html", fleet=visit.web.master.read("fleet"))


def held_back(task: Mapping[str, Any]) -> bool:
    """Whether a task waits for something else than its own runs, or its turn at an agent that asks soon."""
    if task["state"] == "waiting" or task["paused"]:
        return True
    return any(each["code"] not in ("window_full", "may", "leased_not_begun") for each in task["waiting"])


def attention_words(item: Mapping[str, Any]) -> str:
    """What is wrong, in words, as `words` of static/js/attention.js; the name of the thing stands before it."""
    args = item["args"]
    code = item["code"]
    if code == "disk":
        return str(args.get("detail") or "")
    if code == "agent_conflict":
        return _("two daemons use its identity: stop one of them, or enrol one anew")
    if code == "task_stopped":
        return _("stopped by its rule: %(failed)s of %(total)s runs failed", failed=args["failed"], total=args["total"])
    if code == "run_silent":
        return ngettext(
            "fell silent while %(num)s run is under way", "fell silent while %(num)s runs are under way", args["runs"]
        )
    if code == "task_failed":
        return _("%(failed)s of %(total)s runs failed", failed=args["failed"], total=args["total"])
    if code == "agent_offline":
        waiting = args.get("waiting", 0)
        if waiting:
            return ngettext("offline, and %(num)s task waits for it", "offline, and %(num)s tasks wait for it", waiting)
        return _("offline")
    if code == "task_paused":
        return ngettext("paused, with %(num)s run ready", "paused, with %(num)s runs ready", args["ready"])
    return str(code)
