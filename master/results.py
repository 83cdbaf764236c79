"""Results: how attempts ended, as agents tell it. Each counts once, whatever is told twice, late or differently.

A result is stored only when the output up to its end is stored. What comes after the run has gone on (lost, retried,
another content for a finished attempt) is kept beside the run as late and changes no state.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from common import faults, log
from common.errors import NotAllowed
from common.model import Attempt, Ending, Outcome, Run, RunState, evolve
from master.asks import ResultTold
from master.leases import Leases
from master.ledger import Ledger
from master.lifecycle import Begin, Finish
from master.outputs import Outputs
from master.runs import Change

logger = logging.getLogger(__name__)

STORED = "stored"
REPEAT = "repeat"
LATE = "late"
NEED_OUTPUT = "need_output"

_DETAIL_MOST = 2_000
_COMMAND_MOST = 300
_LEFTOVERS_MOST = 100
_STEPS_MOST = 50


class Results:
    """The use-case of results."""

    def __init__(self, ledger: Ledger, leases: Leases, outputs: Outputs) -> None:
        self._ledger = ledger
        self._leases = leases
        self._outputs = outputs

    def take(self, agent_id: str, results: Sequence[ResultTold]) -> list[dict[str, Any]]:
        """Store results: for each {run_id, taken, acked?}, in order, after the commit."""
        complete: list[tuple[int, ResultTold]] = []
        answers: list[dict[str, Any]] = []
        for number, told in enumerate(results):
            answers.append({"run_id": told.run_id, "taken": NEED_OUTPUT})
            missing_from = self._missing_from(told)
            if missing_from is None:
                complete.append((number, evolve(told, ending=self._kept(told))))
            else:
                answers[number]["acked"] = missing_from
        if complete:
            faults.at("before-result-commit")
            taken = self._ledger.change(lambda change: [_settle(change, agent_id, told) for _, told in complete])
            faults.at("after-result-commit")
            for (number, told), word in zip(complete, taken, strict=True):
                answers[number]["taken"] = word
                self._outputs.forget(told.run_id, told.attempt)
                if word == LATE:
                    _log_late(agent_id, told)
        return answers

    def _missing_from(self, told: ResultTold) -> int | None:
        """The offset from which output must come first; None when the result may be stored. A stale attempt's output
        is not waited for: its agent sends none any more."""
        if told.ending.output_bytes == 0:
            return None
        lease = self._leases.get(told.run_id)
        if lease is None or lease.token != told.lease:
            return None
        acked = self._outputs.size(told.run_id, told.attempt)
        return acked if acked < told.ending.output_bytes else None

    def _kept(self, told: ResultTold) -> Ending:
        kept = self._outputs.kept(told.run_id, told.attempt, told.ending.output_bytes)
        return _bounded(evolve(told.ending, output_sha256=kept.sha256, output_gaps=kept.gaps))


def _bounded(ending: Ending) -> Ending:
    """An agent may say much; what is only for people is cut to what a view can carry."""
    detail = ending.detail
    if detail is None and not ending.leftovers and not ending.steps:
        return ending
    return evolve(
        ending,
        detail=None if detail is None else detail[:_DETAIL_MOST],
        leftovers=[evolve(left, command=left.command[:_COMMAND_MOST]) for left in ending.leftovers[:_LEFTOVERS_MOST]],
        steps=[(at_ms, text[:_COMMAND_MOST]) for at_ms, text in ending.steps[:_STEPS_MOST]],
    )


def _settle(change: Change, agent_id: str, told: ResultTold) -> str:
    run = change.tx.get_run(told.run_id)
    if run is None:
        return LATE
    current = run.lease == told.lease and run.agent_id == agent_id and run.attempt == told.attempt
    if not current:
        return _late(change, agent_id, run, told)
    if run.state is RunState.LEASED:
        # It ran under this lease, so the begin was answered and its commit is gone (an older store was put back).
        run = change.move(run, Begin(lease=told.lease, fence=change.tx.commit_seq))
    try:
        change.move(run, Finish(lease=told.lease, ending=told.ending))
    except NotAllowed:
        return _late(change, agent_id, run, told)
    return STORED


def _late(change: Change, agent_id: str, run: Run, told: ResultTold) -> str:
    mine = run.agent_id == agent_id
    if mine and run.attempt == told.attempt and _same(run.ending, told.ending):
        return REPEAT
    for former in change.tx.list_attempts(run.id):
        if former.attempt == told.attempt and former.agent_id == agent_id:
            mine = True
            if _same(former.ending, told.ending):
                return LATE if former.late else REPEAT
    if mine:
        change.tx.add_attempt(_late_attempt(run, agent_id, told))
        change.event("run", task_id=run.task_id, run_id=run.id)
    return LATE


def _log_late(agent_id: str, told: ResultTold) -> None:
    logger.warning(
        "late result changes no state",
        extra=log.fields(
            run_id=told.run_id, attempt=told.attempt, agent_id=agent_id, outcome=told.ending.outcome,
            exit_code=told.ending.exit_code,
        ),
    )  # fmt: skip


def _late_attempt(run: Run, agent_id: str, told: ResultTold) -> Attempt:
    ending = told.ending
    succeeded = ending.outcome is Outcome.EXIT and ending.exit_code == 0 and not ending.killed_by_us
    return Attempt(
        run_id=run.id,
        attempt=told.attempt,
        agent_id=agent_id,
        state=RunState.SUCCEEDED if succeeded else RunState.FAILED,
        late=True,
        claimed_at_ms=run.claimed_at_ms if run.attempt == told.attempt else None,
        started_at_ms=ending.started_at_ms,
        ended_at_ms=ending.ended_at_ms,
        ending=ending,
    )


def _same(stored: Ending | None, told: Ending) -> bool:
    # Both hold here: what is kept of the output is ours to say, not the agent's.
    return stored is not None and (
        evolve(stored, output_sha256=told.output_sha256, output_gaps=told.output_gaps) == told
    )
