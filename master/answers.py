"""What the web door answers about tasks, runs and agents: records read in one snapshot each, put into views.

Ids may be unambiguous prefixes. Why something waits is told by `master.matching`, the code that hands out work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from common.errors import Conflict, InvalidRequest, NotFound
from common.model import (
    FINAL_STATES,
    TASK_FINAL_STATES,
    Agent,
    AgentState,
    Outcome,
    Run,
    RunState,
    Stream,
    Task,
    TaskState,
)
from master import views
from master.blobs import Submission, Submissions, read_submission
from master.leases import Leases
from master.ledger import Ledger
from master.matching import Standing, Verdict, Waiting, run_verdicts, task_verdict, waiting
from master.outputs import Outputs
from master.presence import Fleet
from master.runs import NOT_BEGUN
from master.store.base import ReadTx, TaskFilter

T = TypeVar("T")

ID_LENGTH = 36
PREFIX_LEAST = 6
LIMIT_MOST = 500
OUTPUT_MOST = 1024 * 1024
_SAMPLE = 20
_SAMPLE_IN_LIST = 3
_TARGETS_IN_LIST = 100
_SPEC_IN_LIST = 8 * 1024


@dataclass(frozen=True, slots=True)
class Look:
    """A task as one snapshot shows it. `waiting`: some of its runs that have not begun; `candidates`: of a `count`
    task, the agents it was fixed to (None: all of its queue)."""

    task: Task
    submission: Submission
    waiting: Sequence[Run]
    candidates: list[str] | None


Told = dict[tuple[str, tuple[str, ...] | None], list[Verdict]]
"""Verdicts of one list, by queue and candidates."""


class Answers:
    """Reads for the web door."""

    def __init__(
        self, ledger: Ledger, fleet: Fleet, leases: Leases, submissions: Submissions, outputs: Outputs
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._leases = leases
        self._submissions = submissions
        self._outputs = outputs

    # -- ids -----------------------------------------------------------------------------------------------------------

    def task_id(self, text: str) -> str:
        """The id of the one task whose id begins with `text`. Raises `NotFound`, or `Conflict` for several."""
        return self._whole_id(text, "task", lambda tx: tx.find_task_ids(text.lower(), limit=2))

    def run_id(self, text: str) -> str:
        """The id of the one run whose id begins with `text`. Raises `NotFound`, or `Conflict` for several."""
        return self._whole_id(text, "run", lambda tx: tx.find_run_ids(text.lower(), limit=2))

    def _whole_id(self, text: str, what: str, find: Callable[[ReadTx], list[str]]) -> str:
        if len(text) == ID_LENGTH:
            return text.lower()
        found = self._ledger.read(find) if len(text) >= PREFIX_LEAST else []
        if not found:
            raise NotFound(f"There is no {what} {text[:100]!r} (ids may be shortened to {PREFIX_LEAST} characters).")
        if len(found) > 1:
            raise Conflict(f"{text!r} begins the ids of several {what}s: write more of it.")
        return found[0]

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def task(self, task_id: str) -> tuple[Task, dict[str, Any]]:
        """A task and its view. Raises `NotFound`."""
        known = self._submissions.cached(task_id)
        look = self._ledger.read(lambda tx: self._look(tx, tx.get_task(task_id), sample=_SAMPLE, known=known))
        if look is None:
            raise NotFound(f"There is no task {task_id}.")
        return look.task, self._task_view(look)

    def fresh_task(self, task: Task, runs: Sequence[Run]) -> dict[str, Any]:
        """The view of a task that was stored a moment ago, without another look into the store."""
        submission = self._submissions.of(task.id)
        return self._task_view(Look(task, submission, runs, None))

    def tasks(self, where: dict[str, Any], *, limit: int, cursor: str | None) -> dict[str, Any]:
        """A page of tasks, the newest first. `previous` is the cursor of the page before; a first page has none."""
        wanted = self._filter(where)
        if wanted is None:
            return {"items": [], "next": None, "previous": None}

        def page(tx: ReadTx) -> tuple[list[Look], str | None, str | None]:
            found = tx.list_tasks(wanted, limit=_limited(limit), cursor=cursor)
            return self.looks(tx, found.items), found.next_cursor, found.previous_cursor

        looks, next_cursor, previous_cursor = self._ledger.read(page)
        return {"items": self.listed(looks), "next": next_cursor, "previous": previous_cursor}

    def looks(self, tx: ReadTx, tasks: Iterable[Task]) -> list[Look]:
        """What a list shows of these tasks. Runs on a reader thread."""
        found = (self._look(tx, task, sample=_SAMPLE_IN_LIST) for task in tasks)
        return [look for look in found if look is not None]

    def listed(self, looks: Iterable[Look]) -> list[dict[str, Any]]:
        """Tasks' views for a list: what may be large there is left out, so that a page fits into one message."""
        told: Told = {}
        return [_shortened(self._task_view(look, told), look.submission) for look in looks]

    def _look(self, tx: ReadTx, task: Task | None, *, sample: int, known: Submission | None = None) -> Look | None:
        # Runs on a reader thread, so it must not touch the loop's caches.
        if task is None:
            return None
        submission = known or read_submission(tx, task.id)
        if submission is None:
            return None
        waiting: Sequence[Run] = ()
        candidates = None
        if any(task.counts.get(state) for state in NOT_BEGUN):
            waiting = tx.list_runs(task.id, states=NOT_BEGUN, limit=sample, cursor=None).items
            candidates = tx.task_candidates(task.id) if task.count is not None and waiting else None
        return Look(task, submission, waiting, candidates)

    def _task_view(self, look: Look, told: Told | None = None) -> dict[str, Any]:
        reasons: list[Waiting] = []
        if look.task.state not in TASK_FINAL_STATES:
            reasons = waiting(look.task, self._verdicts_of(look, {} if told is None else told))
        return views.task_view(look.task, look.submission, waiting=reasons)

    def _verdicts_of(self, look: Look, told: Told) -> list[list[Verdict]]:
        found = []
        shared_told = False
        for run in look.waiting:
            if run.addressed or run.state is not RunState.READY:
                found.append(run_verdicts(run, look.task, self._candidates(run, look.task, look.candidates)))
            elif not shared_told:  # the runs of a `count` task all wait for the same
                shared_told = True
                found.append(self._shared_verdicts(run, look, told))
        return found

    def _shared_verdicts(self, run: Run, look: Look, told: Told) -> list[Verdict]:
        """What a run of a `count` task waits for. Asking a whole fleet takes long, so it is asked once for all tasks of
        a list that any of the same agents may take."""
        of_task = task_verdict(look.task)
        if not of_task.may:
            return [of_task]
        among = (look.task.queue, None if look.candidates is None else tuple(look.candidates))
        if among not in told:
            told[among] = run_verdicts(run, look.task, self._candidates(run, look.task, look.candidates))
        return told[among]

    def _candidates(self, run: Run, task: Task, candidates: list[str] | None) -> list[Standing]:
        if run.addressed:
            wanted: Collection[str] = [run.agent_id] if run.agent_id is not None else []
        else:
            wanted = self._fleet.ids() if candidates is None else candidates
        standings = []
        for agent_id in wanted:
            presence = self._fleet.get(agent_id)
            if presence is not None:
                standing = self._fleet.standing(presence, held=self._leases.held_by(agent_id))
                if run.addressed or candidates is not None or standing.serves(task.queue):
                    standings.append(standing)
        return standings

    def _filter(self, where: dict[str, Any]) -> TaskFilter | None:
        """What a list of tasks is asked for; None when it can hold nothing."""
        agent_id = None
        if where.get("agent"):
            agent_id = self._agent_ever(str(where["agent"]))
            if agent_id is None:
                return None
        prefix = where.get("id_prefix")
        return TaskFilter(
            states=_states(TaskState, where.get("state")),
            agent_id=agent_id,
            name=where.get("name"),
            since_ms=where.get("since_ms"),
            until_ms=where.get("until_ms"),
            id_prefix=prefix.lower() if prefix else None,
        )

    def _agent_ever(self, text: str) -> str | None:
        """The agent with this id or name, or one that once had it; an id of a forgotten one stays itself."""
        found = self._fleet.find(text)
        if len(found) == 1:
            return found[0].agent.id
        former = self._ledger.read(lambda tx: tx.agents_by_former_name(text))
        if former:
            return max(former, key=lambda agent: agent.last_seen_at_ms or 0).id
        return text.lower() if len(text) == ID_LENGTH and not found else None

    # -- runs ----------------------------------------------------------------------------------------------------------

    def runs(
        self, task_id: str, state: Any, *, limit: int, cursor: str | None, agent: str | None = None
    ) -> dict[str, Any]:
        """A page of a task's runs; `agent`: only those of agents with this in their name."""
        states = _states(RunState, state)
        agents = None if agent is None else self._fleet.named(agent)

        def page(tx: ReadTx) -> tuple[Task, list[tuple[Run, bool]], list[str] | None, str | None]:
            task = _existing(tx.get_task(task_id), task_id)
            found = tx.list_runs(task_id, states=states, limit=_limited(limit), cursor=cursor, agents=agents)
            candidates = tx.task_candidates(task_id) if task.count is not None else None
            return task, [(run, _has_late(tx, run)) for run in found.items], candidates, found.next_cursor

        task, runs, candidates, next_cursor = self._ledger.read(page)
        items = [self._run_view(run, task, candidates, late=late) for run, late in runs]
        return {"items": items, "next": next_cursor}

    def agent_runs(
        self, agent_id: str, *, limit: int, cursor: str | None = None, ended: bool | None = None
    ) -> dict[str, Any]:
        """A page of an agent's runs with the names of their tasks, those of the newest task first. `ended`: only such;
        if false, only those that have not, without further pages."""

        def page(tx: ReadTx) -> tuple[list[tuple[Run, Task, list[str] | None, bool]], str | None]:
            if ended is False:
                runs: list[Run] = list(reversed(tx.open_runs_of_agent(agent_id, limit=_limited(limit))))
                following = None
            else:
                states = FINAL_STATES if ended else None
                found = tx.runs_of_agent(agent_id, states=states, limit=_limited(limit), cursor=cursor)
                runs, following = list(found.items), found.next_cursor
            tasks = {run.task_id: tx.get_task(run.task_id) for run in runs if run.task_id is not None}
            items = []
            for run in runs:
                task = None if run.task_id is None else tasks[run.task_id]
                if task is not None:
                    free = task.count is not None and run.state in NOT_BEGUN
                    items.append((run, task, tx.task_candidates(task.id) if free else None, _has_late(tx, run)))
            return items, following

        items, next_cursor = self._ledger.read(page)
        views_of = [
            {**self._run_view(run, task, candidates, late=late), "task_name": task.name}
            for run, task, candidates, late in items
        ]
        return {"items": views_of, "next": next_cursor}

    def run(self, run_id: str) -> dict[str, Any]:
        """A run's view. Raises `NotFound`."""
        run, task, candidates, late = self._ledger.read(lambda tx: _whole_run(tx, run_id))
        return self._run_view(run, task, candidates, late=late)

    def explain(self, run_id: str) -> dict[str, Any]:
        """Why a run is where it is: {run, verdicts}."""
        run, task, candidates, late = self._ledger.read(lambda tx: _whole_run(tx, run_id))
        verdicts = run_verdicts(run, task, self._candidates(run, task, candidates))
        return {
            "run": self._run_view(run, task, candidates, late=late),
            "verdicts": [
                {"code": v.code, "args": dict(v.args), "text": v.text, "since_ms": v.since_ms} for v in verdicts
            ],
        }

    def _run_view(self, run: Run, task: Task, candidates: list[str] | None, *, late: bool) -> dict[str, Any]:
        verdicts: list[Verdict] = []
        if run.state in NOT_BEGUN:
            verdicts = run_verdicts(run, task, self._candidates(run, task, candidates))
        size = 0 if run.ending is not None else self._outputs.size_at_hand(run.id, run.attempt)
        return views.run_view(run, agent_of=self.agent_of, waiting=verdicts, output_bytes=size, late=late)

    def attempts(self, run_id: str) -> dict[str, Any]:
        """All attempts of a run, the first first, the current one among them."""

        def attempts(tx: ReadTx) -> list[Any]:
            run = tx.get_run(run_id)
            if run is None:
                raise NotFound(f"There is no run {run_id}.")
            current = views.current_attempt(run)
            every = [*tx.list_attempts(run_id), *([] if current is None else [current])]
            return sorted(every, key=lambda attempt: (attempt.attempt, attempt.late))

        found = self._ledger.read(attempts)
        return {"items": [views.attempt_view(attempt, agent_of=self.agent_of) for attempt in found], "next": None}

    def groups(self, task_id: str) -> dict[str, Any]:
        """The task's runs by identical outcome."""

        def runs(tx: ReadTx) -> list[Run]:
            _existing(tx.get_task(task_id), task_id)
            return tx.runs_in(task_id, frozenset(RunState))

        return {"items": views.groups(self._ledger.read(runs), agent_of=self.agent_of), "next": None}

    def output(self, run_id: str, attempt: int | None, stream: str, *, offset: int, limit: int) -> dict[str, Any]:
        """Output of an attempt (None: the current) from `offset` on, with what is known of the whole."""
        try:
            wanted = Stream(stream)
        except ValueError:
            raise InvalidRequest.of("stream", "must be stdout, stderr or all") from None

        def state(tx: ReadTx) -> tuple[int, bool]:
            run = tx.get_run(run_id)
            if run is None:
                raise NotFound(f"There is no run {run_id}.")
            number = run.attempt if attempt is None else attempt
            return number, number < run.attempt or (run.state is not RunState.RUNNING and run.state not in NOT_BEGUN)

        number, ended = self._ledger.read(state)
        limit = max(0, min(limit, OUTPUT_MOST))
        piece = self._outputs.store.read(run_id, number, stream=wanted, offset=offset, limit=limit)
        return {
            "data": piece.data,
            "next_offset": piece.next_offset,
            "size": piece.size,
            "gaps": [list(gap) for gap in piece.gaps],
            "attempt": number,
            "segments": [list(segment) for segment in piece.segments],
            "ended": ended,
        }

    # -- agents --------------------------------------------------------------------------------------------------------

    def agent_of(self, agent_id: str) -> Agent | None:
        """The record of an agent; None when it was forgotten."""
        presence = self._fleet.get(agent_id)
        return None if presence is None else presence.agent

    def agent(self, agent_id: str) -> dict[str, Any]:
        """An agent's view. Raises `NotFound`."""
        presence = self._fleet.get(agent_id)
        if presence is None:
            raise NotFound(f"There is no agent {agent_id}.")
        return views.agent_view(presence, held=self._leases.held_by(agent_id))

    def known_agents(self, agent_ids: Sequence[str]) -> list[dict[str, Any]]:
        """Views of those of these agents that are known, `LIMIT_MOST` at most."""
        return [self.agent(each) for each in agent_ids[:LIMIT_MOST] if self._fleet.get(each) is not None]

    def agents(self, *, limit: int, cursor: str | None, where: dict[str, Any] | None = None) -> dict[str, Any]:
        """A page of agents, by name. The cursor is the last name of the page before."""
        wanted = where or {}
        found = self._fleet.matching(_states(AgentState, wanted.get("state")), str(wanted.get("q") or ""), after=cursor)
        page = found[: _limited(limit)]
        items = [views.agent_view(presence, held=self._leases.held_by(presence.agent.id)) for presence in page]
        return {"items": items, "next": page[-1].agent.name if len(page) < len(found) else None}


def _shortened(view: dict[str, Any], submission: Submission) -> dict[str, Any]:
    if submission.targets is not None and len(submission.targets) > _TARGETS_IN_LIST:
        view["targets"] = None
    if len(submission.raw) > _SPEC_IN_LIST:  # `args` is null in no other case, which tells the one of `interpreter`
        view.update(args=None, env=None, interpreter=None)
    return view


def _limited(limit: int) -> int:
    return max(1, min(limit, LIMIT_MOST))


def _existing(task: Task | None, task_id: str) -> Task:
    if task is None:
        raise NotFound(f"There is no task {task_id}.")
    return task


def _whole_run(tx: ReadTx, run_id: str) -> tuple[Run, Task, list[str] | None, bool]:
    run = tx.get_run(run_id)
    task = tx.get_task(run.task_id) if run is not None and run.task_id is not None else None
    if run is None or task is None:
        raise NotFound(f"There is no run {run_id}.")
    candidates = tx.task_candidates(task.id) if task.count is not None else None
    late = any(attempt.late for attempt in tx.list_attempts(run_id))
    return run, task, candidates, late


def _has_late(tx: ReadTx, run: Run) -> bool:
    """Whether a late outcome came; looked up only where one is likely, a page has many runs."""
    lost = run.ending is not None and run.ending.outcome is Outcome.LOST
    return (lost or run.attempt > 1) and any(attempt.late for attempt in tx.list_attempts(run.id))


S = TypeVar("S", RunState, TaskState, AgentState)


def _states(kind: type[S], value: Any) -> frozenset[S] | None:
    if value is None or value == "":
        return None
    texts = [value] if isinstance(value, str) else value
    try:
        return frozenset(kind(text) for text in texts)
    except (ValueError, TypeError):
        raise InvalidRequest.of("state", f"must be one of {', '.join(kind)}") from None
