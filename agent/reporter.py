"""Delivers how attempts ended: each result is told until the master has taken it, in batches, and then forgotten.

The results themselves are on disk already: the executor keeps every exit record in its journal until `forget`. What
is in memory here is filled from there after a restart, so an outage of the master or of this agent loses none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent.attempt import AttemptKey, ExitRecord
from agent.link import MasterLink
from common import faults, log
from common.backoff import Backoff
from common.clock import Clock
from common.errors import MusterError, PeerUnreachable, ProtocolError, TooLarge
from common.model import Ending, Leftover, Outcome
from common.service import Loop
from common.wire import to_wire

logger = logging.getLogger(__name__)

_RESULT_TIMEOUT_S = 30.0
_BATCH = 100
_LEFTOVERS_TOLD = 100
_GAPS_TOLD = 1000
_DETAIL_MOST = 2000


@dataclass(slots=True)
class Result:
    """An attempt's end, to be told."""

    run_id: str
    attempt: int
    lease: str
    ending: Ending

    @property
    def key(self) -> AttemptKey:
        """(run id, attempt)."""
        return (self.run_id, self.attempt)


def ending_of(record: ExitRecord, *, gaps: list[tuple[int, int]], output_sha256: str | None = None) -> Ending:
    """The exit record as the master keeps it, with the gaps and the hash of what it was sent."""
    detail = record.detail
    if detail is None and record.killed_by_us == "stop":
        detail = "The agent was stopped while this script was running."
    return Ending(
        outcome=Outcome(record.outcome),
        exit_code=record.exit_code,
        signal=record.signal,
        killed_by_us=record.killed_by_us is not None,
        started_at_ms=record.started_at_ms,
        ended_at_ms=record.ended_at_ms,
        duration_s=record.duration_s,
        output_bytes=record.output_bytes,
        output_gaps=_merged(gaps)[:_GAPS_TOLD],
        output_sha256=output_sha256,
        leftovers=[Leftover(pid=left.pid, command=_text(left.command)) for left in record.leftovers[:_LEFTOVERS_TOLD]],
        detail=None if detail is None else _text(detail[:_DETAIL_MOST]),
        steps=[(step.at_ms, f"{step.signal} to {step.processes} processes") for step in record.steps],
    )


class Reporter(Loop):
    """See the module. `on_taken(keys)` is called for results that are done with; `on_need_output(key, acked)` when
    the master lacks output, after which the result has to be added again.
    """

    def __init__(self, *, link: MasterLink, clock: Clock) -> None:
        super().__init__("reporter", clock=clock)
        self.on_taken: Callable[[list[AttemptKey]], None] = lambda keys: None
        self.on_need_output: Callable[[AttemptKey, int], None] = lambda key, acked: None
        self._link = link
        self._backoff = Backoff(base_s=0.1, cap_s=5.0)
        self._results: dict[AttemptKey, Result] = {}
        self._lacking: dict[AttemptKey, Result] = {}
        self._told = 0
        self._most = _BATCH  # results in one message; fewer after one that was too large

    @property
    def waiting(self) -> int:
        """Results the master has not taken."""
        return len(self._results) + len(self._lacking)

    def outcome(self, key: AttemptKey) -> Outcome | None:
        """The outcome of a result that waits."""
        result = self._results.get(key) or self._lacking.get(key)
        return None if result is None else result.ending.outcome

    def add(self, result: Result) -> None:
        """Tell this result, until it is taken; never waits."""
        self._lacking.pop(result.key, None)
        self._results[result.key] = result
        self.wake()

    def step(self, now: float) -> float | None:
        """Tell one batch of results."""
        if not self._results:
            self.say(f"{self._told} results delivered since the start, none waiting")
            return None
        if not self._link.registered:
            self.say(f"{len(self._results)} results wait on disk until the master is back")
            return None
        batch = self._next_batch()
        self.say(f"delivering {len(batch)} of {len(self._results)} results")
        faults.at("before-result")
        try:
            wire = [_as_wire(result) for result in batch.values()]
            answers = self._link.call("result", wire, timeout_s=_RESULT_TIMEOUT_S)
            if not isinstance(answers, list) or not all(isinstance(one, dict) for one in answers):
                raise ProtocolError("The master's answer to result is not a list of maps.")
        except MusterError as error:
            return self._not_taken(error, len(batch))
        self._most = min(_BATCH, self._most * 2)
        faults.at("after-result-send")
        return self._settle(batch, answers)

    def _next_batch(self) -> dict[str, Result]:
        """By run id: an answer names the run only, so two attempts of one run are told one after the other."""
        batch: dict[str, Result] = {}
        for result in self._results.values():
            if len(batch) >= self._most:
                break
            batch.setdefault(result.run_id, result)
        return batch

    def _settle(self, batch: dict[str, Result], answers: list[dict[str, Any]]) -> float | None:
        taken: list[AttemptKey] = []
        lacking: list[tuple[AttemptKey, int]] = []
        for answer in answers:
            result, word = batch.get(str(answer.get("run_id"))), answer.get("taken")
            if result is None or word not in ("stored", "repeat", "late", "need_output"):
                continue
            if self._results.get(result.key) is not result:
                continue  # replaced meanwhile: the newer one is told next
            del self._results[result.key]
            if word == "need_output":
                self._lacking[result.key] = result
                acked = answer.get("acked")
                lacking.append((result.key, acked if type(acked) is int else 0))
            else:
                taken.append(result.key)
                _log_taken(result, word)
        self._told += len(taken)
        if taken:
            self.on_taken(taken)
        for key, acked in lacking:
            self.on_need_output(key, acked)
        return self._next(len(taken), len(lacking))

    def _next(self, taken: int, lacking: int) -> float | None:
        self.say(f"{self._told} results delivered since the start, {self.waiting} waiting")
        if taken and not lacking:
            self._backoff.reset()
            return 0.0 if self._results else None
        # Nothing was taken, or output was lacking: whatever the cause is, going round at full speed would not mend it.
        return self._backoff.next_s()

    def _not_taken(self, error: MusterError, count: int) -> float | None:
        if isinstance(error, TooLarge):
            self._most = max(1, count // 2)
        delay_s = self._backoff.next_s()
        self.say(f"{count} results were not taken, they are told again: {error.message}")
        if not isinstance(error, PeerUnreachable):
            logger.warning(
                "results not taken", extra=log.fields(reason=error.message, results=count, next_try_s=round(delay_s, 2))
            )
        return delay_s


def _log_taken(result: Result, word: str) -> None:
    # Every run would have this line beside the one of its end: only what is out of the ordinary is shown to everybody.
    level = logging.DEBUG if word == "stored" else logging.WARNING
    log.change(
        logger, "run", level=level, run_id=result.run_id, attempt=result.attempt,
        from_="ended", to="delivered", outcome=result.ending.outcome, taken=word,
    )  # fmt: skip


def _as_wire(result: Result) -> dict[str, Any]:
    return {
        "run_id": result.run_id,
        "attempt": result.attempt,
        "lease": result.lease,
        "ending": to_wire(result.ending),
    }


def _merged(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for offset, length in sorted(gaps):
        if merged and offset <= merged[-1][0] + merged[-1][1]:
            begin, before = merged[-1]
            merged[-1] = (begin, max(before, offset + length - begin))
        elif length > 0:
            merged.append((offset, length))
    return merged


def _text(text: str) -> str:
    """What can go over the wire: a command line may hold any bytes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
