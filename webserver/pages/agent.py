"""The page of one agent: how its host stands, what runs there, and what people do with it.

Names may hold anything, a slash too; the forms post to the agent's id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

import flask
from flask_babel import format_decimal
from flask_babel import gettext as _

from common.errors import Conflict, InvalidRequest
from webserver.pages import filters
from webserver.pages.agents import is_number, percent
from webserver.pages.door import PageDoor, Visit
from webserver.wording import wall_ms

_OPEN_MOST = 200
_SHOWN_MOST = 20
_LABEL_MOST = 300
_SLOTS_MOST = 10_000
_FACT_MOST = 300
_LISTED_MOST = 6


def add(door: PageDoor) -> None:
    """Add the routes."""
    door.get("/agents/<path:agent>")(show)
    door.get("/agents/<path:agent>/facts")(facts_part)
    door.get("/agents/<path:agent>/runs")(runs_part)
    door.post("/agents/<path:agent>/drain")(drain)
    door.post("/agents/<path:agent>/resume")(resume)
    door.post("/agents/<path:agent>/revoke")(revoke)
    door.post("/agents/<path:agent>/forget")(forget)
    door.post("/agents/<path:agent>/labels")(set_labels)
    door.post("/agents/<path:agent>/slots")(set_slots)


def show(visit: Visit, agent: str, *, status: int = 200, **more: Any) -> flask.Response:
    """The page. `more`: what could not be done, and the fields as they were filled in."""
    after = visit.web.streams.mark(runs=False)
    found = visit.web.master.read("get_agent", agent)
    context = {"faults": {}, **more}
    return visit.render(
        "agent.html", status=status, agent=found, facts=facts_of(found), after=after, key=quote,
        **_runs(visit, found["id"]), **context,
    )  # fmt: skip


def facts_part(visit: Visit, agent: str) -> flask.Response:
    """The facts alone, for the page's script."""
    found = visit.web.master.read("get_agent", agent)
    return visit.render("agent_facts.html", agent=found, facts=facts_of(found))


def runs_part(visit: Visit, agent: str) -> flask.Response:
    """Its runs alone, for the page's script."""
    found = visit.web.master.read("get_agent", agent)
    return visit.render("agent_runs.html", agent=found, **_runs(visit, found["id"]))


def drain(visit: Visit, agent: str) -> flask.Response:
    """Give it nothing new."""
    found = visit.web.master.act("drain_agent", agent)
    return _back(visit, found, _("%(name)s is given nothing new. What it holds it finishes.", name=found["name"]))


def resume(visit: Visit, agent: str) -> flask.Response:
    """Give it work again."""
    found = visit.web.master.act("resume_agent", agent)
    return _back(visit, found, _("%(name)s is given work again.", name=found["name"]))


def revoke(visit: Visit, agent: str) -> flask.Response:
    """Refuse its key from now on."""
    found = visit.web.master.act("revoke_agent", agent)
    return _back(visit, found, _("The key of %(name)s is refused from now on.", name=found["name"]))


def forget(visit: Visit, agent: str) -> flask.Response:
    """Remove it, if it is offline."""
    found = visit.web.master.read("get_agent", agent)
    try:
        visit.web.master.act("forget_agent", found["id"])
    except Conflict as error:
        words = _(
            "%(name)s cannot be forgotten while its agent speaks: stop it on the host, wait until it is offline here, "
            "and try again.",
            name=found["name"],
        )
        return show(visit, found["id"], status=error.status, fault=words)
    return visit.redirect("/agents", notice=_("%(name)s is forgotten.", name=found["name"]))


def set_labels(visit: Visit, agent: str) -> flask.Response:
    """Add a label, take one away, or go back to what the agent announces."""
    found = visit.web.master.read("get_agent", agent)
    form = flask.request.form
    labels: dict[str, str] | None = dict(found["labels"])
    text = form.get("label", "").strip()
    if "reset" in form:
        labels = None
    elif "remove" in form:
        labels = {name: value for name, value in found["labels"].items() if name != unquote(form["remove"])}
    else:
        fault = _label_fault(text)
        if fault:
            return show(visit, found["id"], status=422, faults={"label": fault}, label=text)
        name, _equals, value = text.partition("=")
        labels = {**found["labels"], name.strip(): value.strip()}
    try:
        visit.web.master.act("patch_agent", found["id"], {"labels": labels})
    except InvalidRequest as error:
        return show(visit, found["id"], status=error.status, faults={"label": error.message}, label=text)
    return _back(visit, found, _("The labels are stored."))


def set_slots(visit: Visit, agent: str) -> flask.Response:
    """Set how many runs it may hold at once; empty: as many as it says itself."""
    found = visit.web.master.read("get_agent", agent)
    text = flask.request.form.get("slots", "").strip()
    right = not text or (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= _SLOTS_MOST)
    if not right:
        fault = _("A whole number from 1 to %(most)s, or nothing.", most=filters.count(_SLOTS_MOST))
        return show(visit, found["id"], status=422, faults={"slots": fault}, slots=text)
    visit.web.master.act("patch_agent", found["id"], {"slots": int(text) if text else None})
    return _back(visit, found, _("The number of slots is stored."))


def facts_of(agent: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What is known of the host, as (term, words); what is not known here comes last, as it was said."""
    facts = dict(agent.get("facts") or {})
    told: list[tuple[str, Any]] = []
    for name, (word, say) in _known_facts().items():
        value = facts.pop(name, None)
        if value is not None:
            told.append((word, say(value, agent["facts"])))
    told += [(name, _as_said(value)) for name, value in facts.items() if name not in _ELSEWHERE]
    return told


_ELSEWHERE = ("memory_used",)
"""Facts that are told together with another one."""


def _known_facts() -> dict[str, tuple[str, Any]]:
    """Each fact's word, and how it is said from its value and all facts."""
    return {
        "os": (_("System"), lambda v, a: _as_said(v)),
        "kernel": (_("Kernel"), lambda v, a: _as_said(v)),
        "arch": (_("Architecture"), lambda v, a: _as_said(v)),
        "cpus": (_("CPUs"), lambda v, a: filters.count(v) if is_number(v) else _as_said(v)),
        "cpu_percent": (
            _("CPU in use"),
            lambda v, a: f"{format_decimal(round(v, 1))}%" if is_number(v) else _as_said(v),
        ),
        "load": (_("Load, 1, 5 and 15 min"), lambda v, a: _list_said(v, "   ")),
        "memory_total": (_("Memory"), _memory_said),
        "disk_free": (_("Disk space free"), lambda v, a: filters.size(v) if is_number(v) else _as_said(v)),
        "addresses": (_("Addresses"), lambda v, a: _list_said(v, ", ")),
        "boot_at": (_("Started"), lambda v, a: _time_said(v)),
        "clock_skew": (_("Clock"), lambda v, a: _skew_said(v)),
        "version": (_("muster"), lambda v, a: _as_said(v)),
    }


def _as_said(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _FACT_MOST else text[:_FACT_MOST] + "…"


def _list_said(value: Any, between: str) -> str:
    if not isinstance(value, list | tuple):
        return _as_said(value)
    said = between.join(format_decimal(each) if is_number(each) else _as_said(each) for each in value[:_LISTED_MOST])
    rest = len(value) - _LISTED_MOST
    return _("%(list)s and %(n)s more", list=said, n=rest) if rest > 0 else said


def _memory_said(total: Any, facts: Mapping[str, Any]) -> str:
    if not is_number(total):
        return _as_said(total)
    share = percent(facts.get("memory_used"), total)
    if share is None:
        return filters.size(total)
    used = filters.size(facts["memory_used"])
    return _("%(used)s of %(total)s in use (%(n)s%%)", used=used, total=filters.size(total), n=round(share))


def _time_said(value: Any) -> Any:
    try:
        return filters.time_tag(wall_ms(value, field="boot_at"), "full")
    except (InvalidRequest, TypeError, ValueError, OverflowError):
        return _as_said(value)


def _skew_said(skew_s: Any) -> str:
    if not is_number(skew_s):
        return _as_said(skew_s)
    if abs(skew_s) < 1:
        return _("in sync (±1 s)")
    said = filters.duration(abs(skew_s))
    return _("%(time)s ahead", time=said) if skew_s > 0 else _("%(time)s behind", time=said)


def _runs(visit: Visit, agent_id: str) -> dict[str, Any]:
    """The runs of this agent: those it holds, those that wait for it, and those that ended last."""
    read = visit.web.master.read
    unended = read("agent_runs", agent_id, _OPEN_MOST, None, False)["items"]
    held = [run for run in unended if run["state"] in ("running", "leased")]
    waiting = [run for run in unended if run not in held]
    recent = read("agent_runs", agent_id, _SHOWN_MOST, None, True)["items"]
    recent.sort(key=lambda run: run["ended_at_ms"] or 0, reverse=True)
    return {
        "running": held,
        "waiting": waiting[:_SHOWN_MOST],
        "waiting_count": f"{len(waiting)}{'+' if len(unended) >= _OPEN_MOST else ''}",
        "recent": recent,
    }


def _label_fault(text: str) -> str | None:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        return _("Write it as name=value.")
    if not text.isprintable() or max(len(name.strip()), len(value.strip())) > _LABEL_MOST:
        return _("Name and value are printable texts of at most %(most)s characters.", most=_LABEL_MOST)
    return None


def _back(visit: Visit, agent: Mapping[str, Any], notice: str) -> flask.Response:
    return visit.redirect(f"/agents/{agent['id']}", notice=notice)
