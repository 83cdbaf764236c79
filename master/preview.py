"""What a submit would do, told beforehand: where the runs would go and whether they could begin there now.

Decided by the same functions as a submit and a claim; nothing is stored.
"""

from __future__ import annotations

from typing import Any

from common.requests import TaskRequest
from master.leases import Leases
from master.matching import agent_verdict
from master.presence import Fleet
from master.tasks import Placement, Tasks

_SHOWN = 500


class Previews:
    """The use-case."""

    def __init__(self, tasks: Tasks, fleet: Fleet, leases: Leases) -> None:
        self._tasks = tasks
        self._fleet = fleet
        self._leases = leases

    def preview(self, request: TaskRequest) -> dict[str, Any]:
        """{targets: [{agent, name, state, verdict}], plan}. Raises what submitting it would raise."""
        self._tasks.check(request)
        placement = self._tasks.place(request)
        targets = []
        able = 0
        agents = self._fleet.ids() if placement.audience is None else placement.audience
        for agent_id in agents:
            presence = self._fleet.get(agent_id)
            if presence is None:
                continue
            standing = self._fleet.standing(presence, held=self._leases.held_by(agent_id))
            verdict = agent_verdict(standing, request.queue, addressed=placement.addressed is not None)
            if placement.audience is None and verdict.code == "queue_not_served":
                continue
            able += verdict.may
            targets.append(
                {"agent": agent_id, "name": standing.name, "state": standing.state.value, "verdict": verdict.text}
            )
        targets.sort(key=lambda target: target["name"])
        return {"targets": targets[:_SHOWN], "plan": _plan(request, placement, len(targets), able)}


def _plan(request: TaskRequest, placement: Placement, candidates: int, able: int) -> str:
    runs = "1 run" if placement.total == 1 else f"{placement.total} runs"
    where = "one on each target" if placement.addressed is not None else f"on any of {candidates} agents"
    window = f", at most {request.parallel} at once" if request.parallel else ""
    return f"{runs}, {where}{window}; {able} of {candidates} agents could begin now"
