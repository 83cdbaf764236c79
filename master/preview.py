"""What a submit would do, told beforehand: where the runs would go and whether they could begin there now.

Decided by the same functions as a submit and a claim; nothing is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from common.model import AgentState, OnStop
from common.requests import TaskRequest
from master.leases import Leases
from master.matching import Standing, Verdict, agent_verdict
from master.presence import Fleet
from master.tasks import Placement, Tasks

_SHOWN = 500
_UNITS = (("d", 86_400, 2), ("h", 3_600, 1), ("min", 60, 1))


class Previews:
    """The use-case."""

    def __init__(self, tasks: Tasks, fleet: Fleet, leases: Leases) -> None:
        self._tasks = tasks
        self._fleet = fleet
        self._leases = leases

    def preview(self, request: TaskRequest) -> dict[str, Any]:
        """{targets: [{agent, name, state, verdict, code, args}], plan, summary}. Raises what submitting would raise."""
        self._tasks.check(request)
        placement = self._tasks.place(request)
        judged = sorted(self._judged(request, placement), key=lambda pair: pair[0].name)
        summary = _summary(request, placement, judged)
        targets = [
            {
                "agent": standing.agent_id,
                "name": standing.name,
                "state": standing.state.value,
                "verdict": verdict.text,
                "code": verdict.code,
                "args": dict(verdict.args),
            }
            for standing, verdict in judged[:_SHOWN]
        ]
        return {"targets": targets, "plan": plan(summary), "summary": summary}

    def _judged(self, request: TaskRequest, placement: Placement) -> Iterator[tuple[Standing, Verdict]]:
        for agent_id in self._fleet.ids() if placement.audience is None else placement.audience:
            presence = self._fleet.get(agent_id)
            if presence is None:
                continue
            standing = self._fleet.standing(presence, held=self._leases.held_by(agent_id))
            verdict = agent_verdict(standing, request.queue, addressed=placement.addressed is not None)
            if placement.audience is not None or verdict.code != "queue_not_served":
                yield standing, verdict


def _summary(request: TaskRequest, placement: Placement, judged: list[tuple[Standing, Verdict]]) -> dict[str, Any]:
    states = Counter(standing.state for standing, _ in judged)
    return {
        "total": placement.total,
        "addressed": placement.addressed is not None,
        "candidates": len(judged),
        "able": sum(verdict.may for _, verdict in judged),
        "offline": states[AgentState.OFFLINE],
        "draining": states[AgentState.DRAINING],
        "conflict": states[AgentState.CONFLICT],
        "busy": sum(verdict.code == "agent_busy" for _, verdict in judged),
        "parallel": request.parallel,
        "fail_count": request.fail_count,
        "fail_rate": request.fail_rate,
        "on_stop": request.on_stop.value,
        "expires": request.expires,
        "lost_after": request.lost_after,
    }


def plan(summary: dict[str, Any]) -> str:
    """A summary in words."""
    if summary["addressed"]:
        first = [_number(summary["total"], "host")]
    else:
        first = [f"{_number(summary['total'], 'run')} on any of {_number(summary['candidates'], 'host')}"]
    if 0 < summary["parallel"] < summary["total"]:
        first.append(f"{summary['parallel']} at a time")
    first += _stops(summary)
    return "; ".join([", ".join(first), *_hindrances(summary)])


def _stops(summary: dict[str, Any]) -> list[str]:
    rules = []
    if summary["fail_count"] > 0:
        rules.append(f"after {_number(summary['fail_count'], 'failure')}")
    if summary["fail_rate"] is not None:
        rules.append(f"when more than {summary['fail_rate'] * 100:g}% have failed")
    if not rules:
        return []
    kill = " and ends what still runs" if summary["on_stop"] == OnStop.KILL.value else ""
    return [f"stops {' or '.join(rules)}{kill}"]


def _hindrances(summary: dict[str, Any]) -> list[str]:
    """What keeps hosts from beginning now, and until when they may."""
    found = []
    until = f", for {_span(summary['expires'])}" if summary["expires"] else ""
    thens = (
        ("offline", "offline", f"will run it when back{until}"),
        ("draining", "draining", f"will run it when resumed{until}"),
        ("conflict", "used by two daemons at once", f"will run it when one of them is stopped{until}"),
        ("busy", "busy", "will run it as soon as there is room"),
    )
    for name, how, then in thens:
        number = summary[name]
        if number:
            verb = "is" if number == 1 else "are"
            found.append(f"{_number(number, 'host')} {verb} {how}" + (f" and {then}" if summary["addressed"] else ""))
    return found


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _span(seconds: float) -> str:
    for unit, length_s, least in _UNITS:
        if seconds >= least * length_s and seconds % length_s == 0:
            return f"{seconds / length_s:g} {unit}"
    return f"{seconds:g} s"
