"""Tasks: submit, cancel, pause, resume, retry. What is refused is refused whole, and then nothing is stored.

A submit resolves its targets once; they stay what they are. A decision about a whole task (cancel, stop, retry) is
one transaction that sets flags under which nothing can start; its runs follow in slices (`master.runs.sweep`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256

from common import faults, requests, wire
from common.config import Settings
from common.errors import Conflict, FieldError, InvalidRequest, KeyReused, MusterError, NotFound
from common.ids import uuid7
from common.model import (
    FINAL_STATES,
    TASK_FINAL_STATES,
    Record,
    Run,
    RunKind,
    RunState,
    Task,
    TaskSpec,
    TaskState,
)
from common.requests import TaskRequest
from master import sentences
from master.blobs import Submission, Submissions, pack_targets, store_submission
from master.ledger import Ledger
from master.lifecycle import Cancel
from master.presence import Fleet
from master.runs import RETRIES, Change, retrying, sweep
from master.waiting import Audience, Pulls


class SubmitMeta(Record, frozen=True, kw_only=True):
    """What comes beside a request: who sent it, and how a repeat of it is recognised."""

    body_sha256: str = ""
    idempotency_key: str | None = None
    submitted_by: str = ""
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a task's runs go: one each to `addressed`, or `total` to any of `candidates` (None: all of its queue)."""

    total: int
    addressed: list[str] | None
    candidates: list[str] | None

    @property
    def audience(self) -> list[str] | None:
        """The agents that may take its runs; None: all that serve its queue."""
        return self.candidates if self.addressed is None else self.addressed


class Tasks:
    """The use-cases of tasks."""

    def __init__(
        self, ledger: Ledger, fleet: Fleet, pulls: Pulls, submissions: Submissions, settings: Settings
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._pulls = pulls
        self._submissions = submissions
        self._settings = settings

    # -- submit --------------------------------------------------------------------------------------------------------

    def check(self, request: TaskRequest) -> None:
        """Raise `InvalidRequest` or `TooLarge` for what is wrong with the request by itself."""
        requests.check(request, max_script=self._settings.max_script, max_targets=self._settings.max_targets)

    def place(self, request: TaskRequest) -> Placement:
        """Where the runs would go now. Raises `InvalidRequest` naming each target that is no agent, or `count`."""
        named = None if request.targets is None else self._resolve(request.targets)
        if request.count is None:
            return Placement(total=len(named or ()), addressed=named or [], candidates=None)
        able = 0
        for agent_id in self._fleet.ids() if named is None else named:
            presence = self._fleet.get(agent_id)
            queues = presence.agent.queues if presence is not None else []
            able += presence is not None and not presence.leaving and (queues is None or request.queue in queues)
        if request.count > able:
            whom = "agents" if named is None else "of the targets"
            message = f"{request.count} runs need as many agents; {able} {whom} serve the queue {request.queue}"
            raise InvalidRequest.of("count", message)
        return Placement(total=request.count, addressed=None, candidates=named)

    def _resolve(self, targets: list[str]) -> list[str]:
        found: dict[str, None] = {}
        faults_found: list[FieldError] = []
        for number, text in enumerate(targets):
            try:
                found[self._fleet.resolve(text, field=f"targets[{number}]").agent.id] = None
            except InvalidRequest as error:
                faults_found += error.fields
        if faults_found:
            raise InvalidRequest("; ".join(f"{f.field}: {f.message}" for f in faults_found), fields=faults_found)
        return list(found)

    def add(self, request: TaskRequest, meta: SubmitMeta) -> tuple[Task, list[Run], bool]:
        """Store a task: (the task, some of its runs, whether it is new). A repeated key answers the first task.

        Raises `InvalidRequest`, `TooLarge`, `KeyReused`, or what the store raises; nothing is stored then.
        """
        self.check(request)
        # From here to the write nothing waits: an agent found now cannot be forgotten before the task is stored.
        try:
            placement: Placement | MusterError = self.place(request)
        except InvalidRequest as error:
            if meta.idempotency_key is None:
                raise
            placement = error  # a repeat has its answer all the same
        spec, packed_targets = self._spec(request)
        task_id = uuid7()

        def add(change: Change) -> tuple[Task, list[Run], bool]:
            first = _first_of_key(change, meta)
            if first is not None:
                return first, [], False
            if isinstance(placement, MusterError):
                raise placement
            task = _new_task(change, task_id, request, placement, meta)
            runs = _new_runs(change, task, request, placement)
            store_submission(change.tx, spec, request.script, packed_targets)
            change.tx.add_task(
                task, spec, runs, candidates=placement.candidates, idempotency_key=meta.idempotency_key,
                body_sha256=meta.body_sha256,
            )  # fmt: skip
            change.added(task)
            return task, runs[:_SHOWN], True

        task, runs, created = self._ledger.change(add)
        if created and isinstance(placement, Placement):
            faults.at("after-task-commit")
            submission = Submission(raw=wire.pack(spec), spec=spec, targets=request.targets)
            self._submissions.put(task.id, submission, request.script)
            self._announce(task, placement)
        return task, runs, created

    def _spec(self, request: TaskRequest) -> tuple[TaskSpec, bytes | None]:
        targets_sha256, packed = pack_targets(request.targets) if request.targets is not None else (None, None)
        limit = self._settings.output_limit if request.output_limit is None else request.output_limit
        spec = TaskSpec(
            script_sha256=sha256(request.script).hexdigest(),
            script_size=len(request.script),
            interpreter=request.interpreter,
            args=request.args,
            env=request.env,
            cwd=request.cwd,
            timeout_s=request.timeout,
            output_limit=limit,
            lost_after_s=request.lost_after,
            expires_s=request.expires,
            targets_sha256=targets_sha256,
        )
        return spec, packed

    def _announce(self, task: Task, placement: Placement) -> None:
        room = None
        if task.parallel or placement.addressed is None:
            room = min(task.total, task.parallel or task.total)
        audience = Audience(placement.audience, queue=task.queue)
        self._pulls.offer(task.id, audience, room=room, now_s=self._ledger.clock.now_s())

    # -- commands of people --------------------------------------------------------------------------------------------

    def cancel(self, task_id: str, *, by: str = "") -> Task:
        """End a task: what has not begun at once, what runs by a signal. A final task stays as it is. `by`: whose wish
        it is, for people."""

        def cancel(change: Change) -> bool:
            task = _task_of(change, task_id)
            if task.state in TASK_FINAL_STATES:
                return True
            if not task.cancel_requested:
                reason = sentences.reason("cancelled", {"by": by} if by else {})
                if task.reason is not None and not retrying(task):
                    reason = task.reason  # what stopped it first
                change.alter(task, cancel_requested=True, reason=reason)
            return sweep(change, task_id).done

        return self._carry_out(task_id, self._ledger.change(cancel))

    def cancel_run(self, run_id: str) -> Run:
        """End one run. A final one stays as it is. Raises `NotFound`."""

        def cancel(change: Change) -> Run:
            run = change.tx.get_run(run_id)
            if run is None:
                raise NotFound(f"There is no run {run_id}.")
            return run if run.state in FINAL_STATES else change.move(run, Cancel())

        return self._ledger.change(cancel)

    def pause(self, task_id: str) -> Task:
        """Start no further run of the task. Raises `Conflict` when it has ended."""
        return self._set_paused(task_id, True)

    def resume(self, task_id: str) -> Task:
        """Let a paused task go on. Raises `Conflict` when it has ended."""
        return self._set_paused(task_id, False)

    def _set_paused(self, task_id: str, paused: bool) -> Task:
        def change_flag(change: Change) -> Task:
            task = _task_of(change, task_id)
            if task.state in TASK_FINAL_STATES:
                raise Conflict(f"The task has ended ({task.state.value}): there is nothing to pause or resume.")
            return task if task.paused is paused else change.alter(task, paused=paused)

        return self._ledger.change(change_flag)

    def retry(self, task_id: str, only: str) -> Task:
        """Reopen a final task's runs: those that did not succeed (`failed`) or all. Raises `Conflict` when it is not
        final, or has no such run."""
        code = f"retry_{only}"
        if code not in RETRIES:
            raise InvalidRequest.of("only", "must be `failed` or `all`")
        known = self._fleet.ids()

        def retry(change: Change) -> bool:
            task = _task_of(change, task_id)
            if task.state not in TASK_FINAL_STATES:
                raise Conflict(f"The task has not ended yet ({task.state.value}): cancel it or wait, then retry.")
            if not _any_reopenable(change, task, code, known):
                raise Conflict("The task has no run to retry whose agent is still enrolled.")
            reason = sentences.reason(code, {})
            # Not offered until all are reopened: the stop rule must not be judged on a part of them.
            change.alter(
                task, stopped=True, cancel_requested=False, paused=False, reason=reason, offered=False
            )  # fmt: skip
            return sweep(change, task_id, known=known).done

        return self._carry_out(task_id, self._ledger.change(retry))

    def _carry_out(self, task_id: str, done: bool) -> Task:
        if not done:
            self._ledger.carry_out(task_id)
        task = self._ledger.read(lambda tx: tx.get_task(task_id))
        if task is None:
            raise NotFound(f"There is no task {task_id}.")
        return task


_SHOWN = 20


def _task_of(change: Change, task_id: str) -> Task:
    task = change.task(task_id)
    if task is None:
        raise NotFound(f"There is no task {task_id}.")
    return task


def _first_of_key(change: Change, meta: SubmitMeta) -> Task | None:
    if meta.idempotency_key is None:
        return None
    known = change.tx.task_by_idempotency_key(meta.idempotency_key)
    if known is None:
        return None
    task_id, body_sha256 = known
    if body_sha256 != meta.body_sha256:
        raise KeyReused()
    return _task_of(change, task_id)


def _new_task(change: Change, task_id: str, request: TaskRequest, placement: Placement, meta: SubmitMeta) -> Task:
    return Task(
        id=task_id,
        name=request.name or requests.default_name(request.script),
        seq=change.tx.next_seq(),
        state=TaskState.WAITING,
        counts={RunState.READY.value: placement.total},
        total=placement.total,
        priority=request.priority,
        parallel=request.parallel,
        fail_count=request.fail_count,
        fail_rate=request.fail_rate,
        on_stop=request.on_stop,
        queue=request.queue,
        count=request.count,
        lost_after_s=request.lost_after,
        created_at_ms=change.now.wall_ms,
        submitted_by=meta.submitted_by,
    )


def _new_runs(change: Change, task: Task, request: TaskRequest, placement: Placement) -> list[Run]:
    addressed = placement.addressed is not None
    holders: Collection[str | None] = placement.addressed or [None] * placement.total
    return [
        Run(
            id=uuid7(),
            task_id=task.id,
            kind=RunKind.SCRIPT,
            state=RunState.READY,
            seq=task.seq,
            priority=task.priority,
            agent_id=agent_id,
            addressed=addressed,
            expires_engine_s=change.now.engine_s + request.expires if request.expires else None,
            created_at_ms=task.created_at_ms,
        )
        for agent_id in holders
    ]


def _any_reopenable(change: Change, task: Task, code: str, known: set[str]) -> bool:
    cursor: str | None = None
    while True:
        page = change.tx.list_runs(task.id, states=RETRIES[code], limit=500, cursor=cursor)
        if any(not run.addressed or run.agent_id in known for run in page.items):
            return True
        cursor = page.next_cursor
        if cursor is None:
            return False
