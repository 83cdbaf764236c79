"""The list of agents, and how another host becomes one.

Promises that the list is complete without scripts, and that a join token is on one answer and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import flask
from flask_babel import gettext as _

from common.auth import decode_join_token
from common.errors import InvalidRequest
from common.model import AgentState
from common.version import VERSION
from webserver.cursors import seal, unseal
from webserver.pages.door import PageDoor, Visit

_PAGE = 100
_FIELDS = ("state", "q")
_TEXT_MOST = 200
_LOOPBACK = ("127.", "localhost", "[::1]", "::1")
_PROGRAM = "/opt/muster/bin/muster"  # where the page has it installed
_STATE_DIR = "/var/lib/muster-agent"
CHIPS_MOST = 4
"""Labels that a row shows; static/js/agent_rows.js has the same number."""


def add(door: PageDoor) -> None:
    """Add the routes."""
    door.get("/agents")(show)
    door.post("/join-tokens")(add_join_token)


def show(visit: Visit, *, status: int = 200, join: Mapping[str, Any] | None = None) -> flask.Response:
    """A page of the list. `join`: the join token that was just made."""
    # The button that was pressed comes behind the field that holds the present state.
    asked = {name: (flask.request.args.getlist(name) or [""])[-1].strip() for name in _FIELDS}
    after = visit.web.streams.mark(runs=False)
    faults: dict[str, str] = {}
    where = _where(asked, faults)
    cursor = flask.request.args.get("cursor")
    found: Mapping[str, Any] = {"items": [], "next": None}
    if not faults:
        found = visit.web.master.read("list_agents", _PAGE, unseal("agents", cursor) if cursor else None, where)
    given = {name: value for name, value in asked.items() if value}
    return visit.render(
        "agents.html",
        status=422 if faults else status,
        agents=found["items"],
        fleet=visit.web.master.read("fleet"),
        asked=asked,
        faults=faults,
        after=after,
        narrowed=bool(given),
        first=not cursor,
        here=_address(given, cursor),
        start=_address(given),
        more=_address(given, seal("agents", found["next"])) if found["next"] else None,
        join=join,
        program=_PROGRAM,
        state_dir=_STATE_DIR,
        load_of=load_of,
        chips_most=CHIPS_MOST,
        version=VERSION,
    )


def add_join_token(visit: Visit) -> flask.Response:
    """Make a join token; it is on this answer and nowhere else."""
    made = visit.web.master.act("add_agent_token")
    endpoint = _endpoint(made["token"])
    join = {**made, "endpoint": endpoint, "near": endpoint is not None and endpoint.startswith(_LOOPBACK)}
    if visit.partial:
        return visit.render("agent_join.html", status=201, join=join, program=_PROGRAM, state_dir=_STATE_DIR)
    return show(visit, status=201, join=join)


def load_of(agent: Mapping[str, Any]) -> dict[str, float | None]:
    """CPU and memory in percent of what there is; None where the agent did not say, or has not spoken for a while."""
    if agent["state"] == "offline":
        return {"cpu": None, "memory": None}
    facts = agent.get("facts") or {}
    return {
        "cpu": percent(facts.get("cpu_percent"), 100),
        "memory": percent(facts.get("memory_used"), facts.get("memory_total")),
    }


def percent(part: Any, whole: Any) -> float | None:
    """The share in percent, between 0 and 100; None if one of the two is no number."""
    if not is_number(part) or not is_number(whole) or whole <= 0:
        return None
    return float(round(min(100.0, max(0.0, 100 * part / whole)), 1))


def is_number(value: Any) -> bool:
    """Whether an agent's word is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _where(asked: Mapping[str, str], faults: dict[str, str]) -> dict[str, Any]:
    """What the master is asked for; what cannot be asked is told in `faults`."""
    where: dict[str, Any] = {}
    states = [state for state in asked["state"].split(",") if state]
    if not set(states) <= {state.value for state in AgentState}:
        faults["state"] = _("There is no such state.")
    elif states:
        where["state"] = states
    if len(asked["q"]) > _TEXT_MOST:
        faults["q"] = _("At most 200 characters.")
    elif asked["q"]:
        where["q"] = asked["q"]
    return where


def _address(given: Mapping[str, str], cursor: str | None = None) -> str:
    query = {**given, **({"cursor": cursor} if cursor else {})}
    return "/agents" + (f"?{urlencode(query)}" if query else "")


def _endpoint(token: str) -> str | None:
    """HOST:PORT of the master in a join token; None if it cannot be read here."""
    try:
        return decode_join_token(token).endpoint.removeprefix("tcp://")
    except InvalidRequest:
        return None
