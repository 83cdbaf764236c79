"""Records as the web door answers them: maps ready for JSON, times as `*_at_ms`. Pure, no look-ups.

Whoever calls hands in what a view needs beside its record (the submission, the agents, why something waits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from common.model import FINAL_STATES, Agent, Attempt, Course, Ending, Reason, Run, Task, evolve
from master.blobs import Submission
from master.lifecycle import SILENCES_MOST
from master.matching import Verdict, Waiting, waiting_because
from master.presence import Presence

AgentOf = Callable[[str], Agent | None]
"""Looks up the record of an agent; None when it was forgotten."""

NAMES_MOST = 100
_WAITING_MOST = 10
_FORGOTTEN = "its agent was forgotten while the run waited for it"


def task_view(task: Task, submission: Submission, *, waiting: Sequence[Waiting]) -> dict[str, Any]:
    """A task with the request's fields."""
    spec = submission.spec
    return {
        "id": task.id,
        "name": task.name,
        "state": task.state.value,
        "paused": task.paused,
        "counts": dict(task.counts),
        "total": task.total,
        "reason": _reason_view(task.reason),
        "waiting_because": waiting_because(waiting),
        "waiting": [{"code": each.code, "args": dict(each.args), "count": each.count} for each in waiting],
        "created_at_ms": task.created_at_ms,
        "started_at_ms": task.started_at_ms,
        "ended_at_ms": task.ended_at_ms,
        "submitted_by": task.submitted_by,
        "script_sha256": spec.script_sha256,
        "script_size": spec.script_size,
        "interpreter": spec.interpreter,
        "args": spec.args,
        "env": spec.env,
        "cwd": spec.cwd,
        "timeout": spec.timeout_s,
        "parallel": task.parallel,
        "fail_count": task.fail_count,
        "fail_rate": task.fail_rate,
        "on_stop": task.on_stop.value,
        "targets": submission.targets,
        "count": task.count,
        "queue": task.queue,
        "priority": task.priority,
        "expires": spec.expires_s,
        "lost_after": task.lost_after_s,
        "output_limit": spec.output_limit,
    }


def _reason_view(reason: Reason | None) -> dict[str, Any] | None:
    if reason is None:
        return None
    return {"code": reason.code, "args": dict(reason.args), "detail": reason.detail, "run_id": reason.run_id}


def _agent_ref(agent_id: str | None, agent_of: AgentOf) -> dict[str, Any] | None:
    if agent_id is None:
        return None
    agent = agent_of(agent_id)
    if agent is None:
        return {"id": agent_id, "name": agent_id[:13], "hostname": ""}
    return {"id": agent_id, "name": agent.name, "hostname": agent.hostname}


def _ending_fields(ending: Ending | None) -> dict[str, Any]:
    if ending is None:
        ending = _NONE
        outcome = None
    else:
        outcome = ending.outcome.value
    return {
        "outcome": outcome,
        "exit_code": ending.exit_code,
        "signal": ending.signal,
        "killed_by_us": ending.killed_by_us,
        "duration": ending.duration_s,
        "output_bytes": ending.output_bytes,
        "output_gaps": [list(gap) for gap in ending.output_gaps],
        "leftovers": [{"pid": left.pid, "command": left.command} for left in ending.leftovers],
        "detail": ending.detail,
        "steps": [list(step) for step in ending.steps],
    }


def run_view(
    run: Run, *, agent_of: AgentOf, waiting: Sequence[Verdict] = (), output_bytes: int = 0, late: bool = False
) -> dict[str, Any]:
    """A run. `waiting`: the verdicts on one that has not begun; `output_bytes`: what is known so far of a running one;
    `late`: an outcome came after it had gone on."""
    view = {
        "id": run.id,
        "task_id": run.task_id,
        "agent": _agent_ref(run.agent_id, agent_of),
        "state": run.state.value,
        "attempt": run.attempt,
        "silent_since_ms": run.silent_since_ms,
        "claimed_at_ms": run.claimed_at_ms,
        "started_at_ms": run.started_at_ms,
        "ended_at_ms": run.ended_at_ms,
        "waiting_because": waiting[0].text if waiting else None,
        "waiting": [{"code": verdict.code, "args": dict(verdict.args)} for verdict in waiting[:_WAITING_MOST]],
        "late": late,
        "output_sha256": run.ending.output_sha256 if run.ending is not None and run.state in FINAL_STATES else None,
        **_ending_fields(run.ending),
    }
    if run.ending is None:
        view["output_bytes"] = output_bytes
        if run.cancel_reason == "agent_forgotten":
            view["detail"] = _FORGOTTEN
    return view


def attempt_view(attempt: Attempt, *, agent_of: AgentOf) -> dict[str, Any]:
    """A former, late or current attempt."""
    return {
        "run_id": attempt.run_id,
        "attempt": attempt.attempt,
        "agent": _agent_ref(attempt.agent_id, agent_of),
        "state": attempt.state.value,
        "late": attempt.late,
        "claimed_at_ms": attempt.claimed_at_ms,
        "started_at_ms": attempt.started_at_ms,
        "ended_at_ms": attempt.ended_at_ms,
        **_course_fields(attempt.course),
        **_ending_fields(attempt.ending),
    }


def _course_fields(course: Course | None) -> dict[str, Any]:
    course = course or Course()
    return {
        "silences": [{"since_ms": since_ms, "until_ms": until_ms} for since_ms, until_ms in course.silences],
        "cancel_requested_at_ms": course.cancel_at_ms,
        "cancel_reason": course.cancel_reason,
    }


def current_attempt(run: Run) -> Attempt | None:
    """The attempt a run is in, as one of its attempts; None before the first begin."""
    if run.started_at_ms is None:
        return None
    return Attempt(
        run_id=run.id,
        attempt=run.attempt,
        agent_id=run.agent_id,
        state=run.state,
        late=False,
        claimed_at_ms=run.claimed_at_ms,
        started_at_ms=run.started_at_ms,
        ended_at_ms=run.ended_at_ms,
        ending=run.ending,
        course=_course_now(run),
    )


def _course_now(run: Run) -> Course | None:
    """The course of a run's attempt, with the silence that lasts."""
    if run.silent_since_ms is None:
        return run.course
    course = run.course or Course()
    return evolve(course, silences=[*course.silences, (run.silent_since_ms, None)][-SILENCES_MOST:])


def agent_view(presence: Presence, *, held: int) -> dict[str, Any]:
    """An agent: its record and how it stands."""
    agent = presence.agent
    return {
        "id": agent.id,
        "name": agent.name,
        "hostname": agent.hostname,
        "state": presence.state.value,
        "labels": dict(agent.labels if agent.labels_set is None else agent.labels_set),
        "facts": dict(presence.facts),
        "slots": presence.slots,
        "held": held,
        "queues": agent.queues,
        "last_seen_at_ms": presence.heard_ms,
        "enrolled_at_ms": agent.enrolled_at_ms,
        "former_names": list(agent.former_names),
        "draining": agent.draining,
        "labels_set": agent.labels_set is not None,
        "slots_set": agent.slots_set,
    }


def groups(runs: Iterable[Run], *, agent_of: AgentOf) -> list[dict[str, Any]]:
    """Runs by identical outcome, the largest group first; at most 100 names each."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in runs:
        ending = run.ending if run.state in FINAL_STATES else None
        key = (
            run.state.value,
            None if ending is None else ending.outcome.value,
            None if ending is None else ending.exit_code,
            None if ending is None else ending.signal,
            None if ending is None else ending.output_sha256,
        )
        group = found.get(key)
        if group is None:
            names = ("state", "outcome", "exit_code", "signal", "output_sha256")
            group = found[key] = {**dict(zip(names, key, strict=True)), "count": 0, "names": []}
        group["count"] += 1
        ref = _agent_ref(run.agent_id, agent_of)
        if ref is not None and len(group["names"]) < NAMES_MOST:
            group["names"].append(ref["name"])
    return sorted(found.values(), key=lambda group: (-group["count"], str(list(group.values())[:4])))


_NONE = Ending(outcome="exit")  # type: ignore[arg-type]  # stands in for an end that is not there yet
