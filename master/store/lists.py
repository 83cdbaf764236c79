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
        # One query per state, so that each walks the index of its state.
        found: list[int] = []
        for state in [None] if where.states is None else [state.value for state in where.states]:
            found += self._seqs_of_state(where, state, span, limit)
        return sorted(found, reverse=not span.upward)[:limit]

    def _seqs_of_state(self, where: TaskFilter, state: str | None, span: _Span, limit: int) -> list[int]:
        clauses, values = _conditions(where, state)
        source, seq, mine = "tasks t", "t.seq", clauses  # `mine` goes with `source`
        fewest = _COUNTED
        if state is not None and (where.agent_id is not None or where.name is not None):
            fewest = self._count("tasks t WHERE t.state = ?", state)
        if where.agent_id is not None:
            choice = state is not None or where.name is not None
            of_agent = self._count("runs r WHERE r.agent_id = ?", where.agent_id) if choice else 0
            values.append(where.agent_id)
            if of_agent <= fewest:  # the agent's runs lead, in order by their index; the tasks follow by key
                fewest = of_agent
                source, seq, mine = "runs r CROSS JOIN tasks t ON t.seq = r.seq", "r.seq", [*clauses, "r.agent_id = ?"]
            clauses.append("EXISTS (SELECT 1 FROM runs r WHERE r.agent_id = ? AND r.seq = t.seq)")
        if where.name is None or fewest < _FEW:
            return self._walk(source, seq, mine, values, span, limit)
        # A usual name is soon found; for the others the names alone are gone through, not the whole rows.
        near, far = span.first(_FEW)
        found = self._walk(source, seq, mine, values, near, limit)
        if len(found) < limit:
            found += self._walk("tasks t INDEXED BY tasks_name", "t.seq", clauses, values, far, limit - len(found))
        return found

    def _walk(self, source: str, seq: str, clauses: list[str], values: list[Any], span: _Span, limit: int) -> list[int]:
        where = " AND ".join([*clauses, f"{seq} > ?", f"{seq} < ?"])
        order = "ASC" if span.upward else "DESC"
        sql = f"SELECT {seq} FROM {source} WHERE {where} GROUP BY {seq} ORDER BY {seq} {order} LIMIT ?"
        return [row[0] for row in self.all(sql, *values, span.low, span.high, limit)]

    def _count(self, source: str, value: str) -> int:
        """How many rows there are, counted up to a bound only."""
        number: int = self.all(f"SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT {_COUNTED})", value)[0][0]
        return number


def _conditions(where: TaskFilter, state: str | None) -> tuple[list[str], list[Any]]:
    """What a task `t` must fulfil, but for its agent and its place, as SQL and values."""
    clauses: list[str] = []
    values: list[Any] = []
    if state is not None:
        clauses.append("t.state = ?")
        values.append(state)
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
