"""The list of tasks: filtered, page by page, kept up to date by the page's script."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import flask
from flask_babel import gettext as _
from flask_babel import ngettext

from common.errors import Conflict, InvalidRequest, NotFound
from common.model import TaskState
from webserver.cursors import seal, unseal
from webserver.pages.door import PageDoor, Visit
from webserver.wording import wall_ms

PERIODS_S = {"1h": 3600, "24h": 86400, "7d": 7 * 86400, "30d": 30 * 86400}
_PAGE = 50
_NAMES_MOST = 50  # suggested for the filter
_CLOSE_MOST = 8
_FIELDS = ("state", "name", "agent", "period", "since", "until")


def add(door: PageDoor) -> None:
    """Add the routes."""
    door.get("/tasks")(show)


def show(visit: Visit) -> flask.Response:
    """A page of the list."""
    given = flask.request.args.to_dict(flat=False)
    # The last value: without scripts the button of a state says it behind the hidden field.
    asked = {name: given.get(name, [""])[-1].strip() for name in _FIELDS}
    after = visit.web.streams.mark(runs=False)
    faults: dict[str, str] = {}
    where = _where(visit, asked, faults)
    found: Mapping[str, Any] = {"items": [], "next": None, "previous": None}
    cursor = flask.request.args.get("cursor")
    if not faults:
        found = visit.web.master.read("list_tasks", where, _PAGE, unseal("tasks", cursor) if cursor else None)
    kept = {name: value for name, value in asked.items() if value}
    names = [agent["name"] for agent in visit.web.master.read("list_agents", _NAMES_MOST)["items"]]
    unknown = bool(asked["agent"]) and not faults and not found["items"] and not _is_agent(visit, asked["agent"])
    return visit.render(
        "tasks.html",
        status=422 if faults else 200,
        tasks=found["items"],
        asked=asked,
        faults=faults,
        after=after,
        narrowed=bool(kept),
        first=not cursor,
        live=not cursor and not {"agent", "until", "since"} & kept.keys(),
        newest=_address(kept),
        older=_address(kept, seal("tasks", found["next"])) if found["next"] else None,
        newer=_address(kept, seal("tasks", found["previous"])) if found.get("previous") else None,
        limit=_PAGE,
        agent_names=names,
        unknown_agent=asked["agent"] if unknown else None,
        close_agents=_close(visit, asked["agent"], names, kept) if unknown else [],
    )


def _is_agent(visit: Visit, text: str) -> bool:
    """Whether an agent has this name or id, or one beginning so."""
    try:
        visit.web.master.read("get_agent", text)
    except (NotFound, Conflict):
        return False
    return True


def _close(visit: Visit, text: str, names: list[str], kept: Mapping[str, str]) -> list[tuple[str, str]]:
    """Agents that may be meant by `text`: (name, address of their tasks)."""
    found = visit.web.master.read("list_agents", _CLOSE_MOST, None, {"q": text})["items"]
    close = [agent["name"] for agent in found] or difflib.get_close_matches(text, names, _CLOSE_MOST)
    return [(name, _address({**kept, "agent": name})) for name in close]


def share_words(task: Mapping[str, Any]) -> str:
    """How far a task is, in words, as `shareWords` of static/js/task_rows.js."""
    counts = task["counts"]
    over = sum(counts.get(state, 0) for state in ("succeeded", "failed", "cancelled", "skipped", "expired"))
    if over == task["total"]:
        said = ngettext("%(num)s run", "%(num)s runs", over)
    else:
        said = _("%(over)s of %(total)s", over=over, total=task["total"])
    if counts.get("failed"):
        said += " · " + ngettext("%(num)s failed", "%(num)s failed", counts["failed"])
    return str(said)


def _where(visit: Visit, asked: Mapping[str, str], faults: dict[str, str]) -> dict[str, Any]:
    """What the master is asked for; what cannot be asked is told in `faults`."""
    where: dict[str, Any] = {}
    states = [state for state in asked["state"].split(",") if state]
    if not set(states) <= {state.value for state in TaskState}:
        faults["state"] = _("There is no such state.")
    elif states:
        where["state"] = states
    for name in ("name", "agent"):
        if len(asked[name]) > 200:
            faults[name] = _("At most 200 characters.")
        elif asked[name]:
            where[name] = asked[name]
    if asked["period"] in PERIODS_S:
        where["since_ms"] = visit.web.clock.wall_ms() - 1000 * PERIODS_S[asked["period"]]
    elif asked["period"]:
        faults["period"] = _("There is no such period.")
    for name in ("since", "until"):
        if asked[name]:
            try:
                where[f"{name}_ms"] = wall_ms(asked[name], field=name)
            except InvalidRequest:
                faults["period"] = _("This is not a time such as 2026-11-30T15:04:05Z.")
    return where


def _address(given: Mapping[str, str], cursor: str | None = None) -> str:
    query = {**given, **({"cursor": cursor} if cursor else {})}
    return "/tasks" + (f"?{urlencode(query)}" if query else "")
