"""Lists of tasks: filters that may be combined, pages in both directions, quick at 200,000 tasks whatever is asked.

Tasks come newest first. A cursor is the number of a task: `N` asks for those before it in time, `+N` for those after
it, so a page stays right while tasks come in. Which index is walked depends on which filter leaves least.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from common.model import Task
from master.store import rows, statements
from master.store.base import Page, TaskFilter
from master.store.reads import AFTER_PREFIX, Tx, marks, number_of

_NEWEST: Final = 1 << 62
_FEW: Final = 10_000  # rows that are gone through in a few milliseconds
_COUNTED: Final = 50_000  # rows of an index that are counted in a few milliseconds
_OF_AGENT: Final = "EXISTS (SELECT 1 FROM runs r WHERE r.agent_id = ? AND r.seq = t.seq)"


@dataclass(frozen=True, slots=True)
class _Span:
    """Numbers of tasks, above `low` and below `high`; walked from its new end to its old one, or `upward`."""

    low: int
    high: int
    upward: bool

    def first(self, number: int) -> tuple[_Span, _Span]:
        """The first so many numbers of the walk, and the rest."""
        border = self.low + number if self.upward else self.high - number
        below, above = replace(self, high=min(border, self.high)), replace(self, low=max(border - 1, self.low))
        return (below, above) if self.upward else (above, below)


@dataclass(frozen=True, slots=True)
class _Walk:
    """A way through the tasks; `rows`: how many it meets at most, as far as counted."""

    source: str
    seq: str
    clauses: list[str]
    values: list[Any]
    rows: int


class TaskLists(Tx):
    """`list_tasks`."""

    __slots__ = ()

    def list_tasks(self, where: TaskFilter, *, limit: int, cursor: str | None) -> Page[Task]:
        """See `ReadTx.list_tasks`; newest first."""
        upward = cursor is not None and cursor.startswith("+")
        at = number_of(cursor[1:] if cursor is not None and upward else cursor, missing=_NEWEST)
        seqs = self._seqs(where, self._span(where, at, upward=upward), limit + 1)
        if upward and len(seqs) <= limit:  # the newest is among them: this is the first page
            return self.list_tasks(where, limit=limit, cursor=None)
        page = sorted(seqs[:limit], reverse=True)
        older = page and (upward or len(seqs) > limit)
        return Page(
            items=self._tasks_of(page),
            next_cursor=str(page[-1]) if older else None,
            previous_cursor=f"+{page[0]}" if page and cursor is not None else None,
        )

    def _tasks_of(self, seqs: list[int]) -> list[Task]:
        sql = f"{statements.TASK_SELECT} WHERE seq IN ({marks(len(seqs))}) ORDER BY seq DESC"
        return [rows.task_from_row(row) for row in self.all(sql, *seqs)]

    def _span(self, where: TaskFilter, at: int, *, upward: bool) -> _Span:
        """Where what is wanted can lie at all. Tasks are numbered as they came in, so times bound numbers, too."""
        low, high = (at, _NEWEST) if upward else (-1, at)
        newest = self.one("SELECT max(seq) FROM tasks")
        high = min(high, (newest[0] if newest is not None and newest[0] is not None else -1) + 1)
        if where.since_ms is not None:
            # The `+` keeps the planner from walking the whole rows by their number.
            first = self.all("SELECT min(+seq) FROM tasks WHERE created_at_ms >= ?", where.since_ms)[0][0]
            low = high if first is None else max(low, first - 1)
        if where.until_ms is not None:
            last = self.all("SELECT max(+seq) FROM tasks WHERE created_at_ms < ?", where.until_ms)[0][0]
            high = low if last is None else min(high, last + 1)
        return _Span(low, high, upward)

    def _seqs(self, where: TaskFilter, span: _Span, limit: int) -> list[int]:
        """Numbers of what is wanted, in the order of the walk."""
        if span.high - span.low <= 1:
            return []
        near, far = span.first(_FEW)
        found: list[int] = []
        rest: list[str | None] = []
        # One query per state, so that each walks the index of its state.
        for state in [None] if where.states is None else [state.value for state in where.states]:
            walk = self._leader(where, state)
            if walk.rows < _FEW or where.name is None:
                found += self._walk(walk, span, limit)
            else:  # a usual name is soon found
                found += self._walk(walk, near, limit)
                rest.append(state)
        if rest and sum(near.low < seq < near.high for seq in found) < limit:
            found += self._walk(self._by_name(where, [state for state in rest if state is not None]), far, limit)
        return sorted(found, reverse=not span.upward)[:limit]

    def _leader(self, where: TaskFilter, state: str | None) -> _Walk:
        """The walk over what leaves least: the tasks of the state, or the agent's runs and their tasks."""
        clauses, values = _conditions(where, [] if state is None else [state])
        choice = state is not None or where.name is not None
        fewest = _COUNTED
        if state is not None and (where.agent_id is not None or where.name is not None):
            fewest = self._count("tasks t WHERE t.state = ?", state)
        if where.agent_id is None:
            return _Walk("tasks t", "t.seq", clauses, values, fewest)
        of_agent = self._count("runs r WHERE r.agent_id = ?", where.agent_id) if choice else 0
        values.append(where.agent_id)
        if of_agent <= fewest:  # the runs come in order by their index; the tasks follow by key
            source = "runs r CROSS JOIN tasks t ON t.seq = r.seq"
            return _Walk(source, "r.seq", [*clauses, "r.agent_id = ?"], values, of_agent)
        return _Walk("tasks t", "t.seq", [*clauses, _OF_AGENT], values, fewest)

    def _by_name(self, where: TaskFilter, states: list[str]) -> _Walk:
        """The walk over the names alone, not the whole rows: for names that are rare."""
        clauses, values = _conditions(where, states)
        if where.agent_id is not None:
            clauses.append(_OF_AGENT)
            values.append(where.agent_id)
        return _Walk("tasks t INDEXED BY tasks_name", "t.seq", clauses, values, _COUNTED)

    def _walk(self, walk: _Walk, span: _Span, limit: int) -> list[int]:
        where = " AND ".join([*walk.clauses, f"{walk.seq} > ?", f"{walk.seq} < ?"])
        order = f"{walk.seq} {'ASC' if span.upward else 'DESC'}"
        sql = f"SELECT {walk.seq} FROM {walk.source} WHERE {where} GROUP BY {walk.seq} ORDER BY {order} LIMIT ?"
        return [row[0] for row in self.all(sql, *walk.values, span.low, span.high, limit)]

    def _count(self, source: str, value: str) -> int:
        """How many rows there are, counted up to a bound only."""
        number: int = self.all(f"SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT {_COUNTED})", value)[0][0]
        return number


def _conditions(where: TaskFilter, states: list[str]) -> tuple[list[str], list[Any]]:
    """What a task `t` must fulfil, but for its agent and its place, as SQL and values."""
    clauses: list[str] = []
    values: list[Any] = []
    if states:
        clauses.append(f"t.state IN ({marks(len(states))})")
        values += states
    if where.since_ms is not None:
        clauses.append("t.created_at_ms >= ?")
        values.append(where.since_ms)
    if where.until_ms is not None:
        clauses.append("t.created_at_ms < ?")
        values.append(where.until_ms)
    if where.id_prefix is not None:
        clauses.append("t.id >= ? AND t.id < ?")
        values += [where.id_prefix, where.id_prefix + AFTER_PREFIX]
    if where.name is not None:
        clauses.append("instr(t.name_folded, ?) > 0")
        values.append(where.name.casefold())
    return clauses, values
