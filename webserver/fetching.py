"""What event streams fetch from the master: the views of what has changed, in few calls when much has."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from common.errors import MusterError
from webserver.master_client import MasterClient

logger = logging.getLogger(__name__)

_PAGE = 500
_FEW = 8
_AGENTS_AT_ONCE = 100
View = Mapping[str, Any]


class Key(NamedTuple):
    """What a stream is of: one task, one run, or with neither everything; with or without output.

    Without `runs` (of everything only) no run is told; a task is told again when its counts change.
    """

    task_id: str | None = None
    run_id: str | None = None
    output: bool = False
    runs: bool = True

    @property
    def everything(self) -> bool:
        """Whether it is of all tasks, runs and agents."""
        return self.task_id is None and self.run_id is None


def runs_of(master: MasterClient, key: Key) -> Iterator[View]:
    """The run, or all runs of the task; of everything none."""
    if key.run_id is not None:
        yield master.read("get_run", key.run_id)
    elif key.task_id is not None:
        cursor: str | None = None
        while True:
            page = master.read("list_runs", key.task_id, None, _PAGE, cursor)
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return


def changed_runs(master: MasterClient, key: Key, wanted: Sequence[str], *, total: int) -> dict[str, View]:
    """Views of these runs of about `total`, where one listing is cheaper than asking for each."""
    if key.task_id is None or len(wanted) <= _FEW or len(wanted) * 20 < total:
        return {}
    names = set(wanted)
    return {view["id"]: view for view in runs_of(master, key) if view["id"] in names}


def changed_agents(master: MasterClient, wanted: Sequence[str]) -> dict[str, View]:
    """Views of these agents, where one call is cheaper than one for each. Who is missing has to be asked for."""
    if len(wanted) < 2:
        return {}
    found: dict[str, View] = {}
    for start in range(0, len(wanted), _AGENTS_AT_ONCE):
        try:
            answer = master.read("get_agents", wanted[start : start + _AGENTS_AT_ONCE])
        except MusterError as error:  # such as an answer too large for one message
            logger.debug("agents are asked for one by one: %s", error)
            continue
        found.update((view["id"], view) for view in answer["items"])
    return found
