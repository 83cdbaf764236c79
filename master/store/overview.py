"""What an overview shows of the tasks: how many there are in each state, and the few that matter of each kind.

Each read costs the same however many tasks have ended; of those that have not, it looks at a bounded number.
"""

from __future__ import annotations

from typing import Any, Final

from common.model import Task, TaskState
from master.store import rows, statements
from master.store.reads import Tx, marks
from master.store.schema import HALTED

_LOOKED_AT: Final = 2_000
"""Running tasks among which the latest begun ones are looked for: the newest so many."""


class OverviewReads(Tx):
    """The reads of an overview."""

    __slots__ = ()

    def count_tasks(self) -> dict[TaskState, int]:
        """See `ReadTx.count_tasks`."""
        found = self.all("SELECT state, number FROM task_counts WHERE number > 0")
        return {TaskState(state): number for state, number in found}

    def running_tasks(self, *, limit: int) -> list[Task]:
        """See `ReadTx.running_tasks`."""
        return self._tasks_by("SELECT seq FROM ({}) ORDER BY started_at_ms DESC, seq DESC LIMIT ?", [_LOOKED_AT, limit])

    def waiting_tasks(self, *, limit: int) -> list[Task]:
        """See `ReadTx.waiting_tasks`."""
        sql = (
            "SELECT seq FROM (SELECT seq FROM tasks WHERE state = 'waiting' ORDER BY seq DESC LIMIT ?)"
            " UNION ALL SELECT seq FROM ({}) WHERE n_ready > 0"
            " AND (paused = 1 OR parallel = 0 OR n_leased + n_running < parallel) ORDER BY seq DESC LIMIT ?"
        )
        return self._tasks_by(sql, [limit, _LOOKED_AT, limit])

    def ended_tasks(self, *, limit: int) -> list[Task]:
        """See `ReadTx.ended_tasks`."""
        sql = (
            "SELECT seq FROM tasks INDEXED BY tasks_ended WHERE ended_at_ms IS NOT NULL"
            " ORDER BY ended_at_ms DESC, seq DESC LIMIT ?"
        )
        return self._tasks_by(sql, [limit])

    def failed_tasks(self, *, since_ms: int, limit: int) -> list[Task]:
        """See `ReadTx.failed_tasks`."""
        sql = (
            "SELECT seq FROM tasks INDEXED BY tasks_failed WHERE state = 'failed' AND ended_at_ms >= ?"
            " ORDER BY ended_at_ms DESC, seq DESC LIMIT ?"
        )
        return self._tasks_by(sql, [since_ms, limit])

    def halted_tasks(self, *, limit: int) -> list[Task]:
        """See `ReadTx.halted_tasks`."""
        sql = (
            f"SELECT seq FROM tasks INDEXED BY tasks_halted WHERE {HALTED} AND (n_ready > 0 OR stopped = 1)"
            " ORDER BY created_at_ms DESC, seq DESC LIMIT ?"
        )
        return self._tasks_by(sql, [limit])

    def count_offered(self, agent_id: str, *, most: int) -> int:
        """See `ReadTx.count_offered`."""
        sql = "SELECT count(*) FROM (SELECT 1 FROM offers WHERE scope = ? LIMIT ?)"
        number: int = self.all(sql, f"a:{agent_id}", most)[0][0]
        return number

    def _tasks_by(self, sql: str, values: list[Any]) -> list[Task]:
        """The tasks whose numbers `sql` finds, in its order; `{}` in it stands for the newest running tasks."""
        seqs = [row[0] for row in self.all(sql.format(_RUNNING), *values)]
        found = self.all(f"{statements.TASK_SELECT} WHERE seq IN ({marks(len(seqs))})", *seqs)
        tasks = {task.seq: task for task in map(rows.task_from_row, found)}
        return [tasks[seq] for seq in seqs]


_RUNNING: Final = (
    "SELECT seq, started_at_ms, n_ready, paused, parallel, n_leased, n_running FROM tasks WHERE state = 'running'"
    " ORDER BY seq DESC LIMIT ?"
)
