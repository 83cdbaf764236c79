"""Finds and signals the processes of an attempt, by /proc alone.

A process belongs to an attempt if it is, or descends from, its main process; if `MUSTER_RUN_ID` and `MUSTER_ATTEMPT`
stand in the environment it was started with; or if it is in the main process's session. So neither `setsid` nor a
double fork escapes. Signals go through a pidfd after a second look, never to a number that has changed hands.
Standard library only, and small: the shepherd imports it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator

Mark = tuple[str, int]  # (run id, attempt)

COMMAND_MAX = 200  # characters of a command line that are told
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ENVIRON_MAX = 4 * 1024 * 1024


class Process:
    """One line of the process table, as /proc/PID/stat told it."""

    __slots__ = ("alive", "parent", "pid", "session", "start_ticks")

    def __init__(self, pid: int, parent: int, session: int, start_ticks: int, alive: bool) -> None:
        self.pid = pid
        self.parent = parent
        self.session = session
        self.start_ticks = start_ticks  # since boot: with the pid it names a process for good
        self.alive = alive  # False: a zombie, which no signal reaches

    @property
    def identity(self) -> tuple[int, int]:
        """What no other process of this boot has: (pid, start)."""
        return (self.pid, self.start_ticks)

    @property
    def started_s(self) -> float:
        """When it was started, in seconds of CLOCK_BOOTTIME (to 1/100 s)."""
        return self.start_ticks / _TICKS_PER_S


def _read(path: str, limit: int = 65536) -> bytes | None:
    # One read is enough for what the kernel makes in one piece; None for a process that is gone or not ours to see.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while limit > 0 and (part := os.read(fd, limit)):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


def parse_stat(raw: bytes) -> Process:
    """The process of one /proc/PID/stat. The command in it may hold blanks and brackets, so it is cut out first."""
    pid = int(raw[: raw.index(b" ")])
    state, parent, _group, session, *rest = raw[raw.rindex(b")") + 2 :].split()
    threads, start_ticks = int(rest[13]), int(rest[15])
    # A dead first thread shows as a zombie although others of the process still run.
    return Process(pid, int(parent), int(session), start_ticks, state not in b"ZX" or threads > 1)


def process(pid: int) -> Process | None:
    """The process `pid` as it is now; None if there is none."""
    raw = _read(f"/proc/{pid}/stat")
    return parse_stat(raw) if raw else None


def all_pids() -> Iterator[int]:
    """The pids of all processes that /proc shows."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def children(pid: int) -> list[int]:
    """The direct children of a process, zombies included. Empty if it is gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        raw = _read(f"/proc/{pid}/task/{thread}/children")
        if raw is None and not _has_children_files():
            return [one.pid for one in map(process, all_pids()) if one and one.parent == pid]
        found += map(int, (raw or b"").split())
    return found


def own_children() -> list[int]:
    """The direct children of this process, which must have one thread only. What `children` says, in one read."""
    pid = os.getpid()
    raw = _read(f"/proc/{pid}/task/{pid}/children")
    return children(pid) if raw is None else [int(word) for word in raw.split()]


def _has_children_files() -> bool:
    # Kernels built without CONFIG_PROC_CHILDREN lack these files.
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def family(processes: Iterable[Process]) -> list[Process]:
    """These and all that descends from them, parents first and living ones only, by the children files: cheap where
    there are few.
    """
    found = {one.pid: one for one in processes}
    queue = list(found.values())
    for one in queue:  # it grows meanwhile
        for pid in children(one.pid):
            child = process(pid)
            if child is not None and pid not in found:
                found[pid] = child
                queue.append(child)
    return [one for one in queue if one.alive]


def command_of(pid: int) -> str:
    """The command line of a process for people: blanks between words, cut; its bare name if it has none."""
    raw = _read(f"/proc/{pid}/cmdline", 4096)
    if raw:
        text = raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    else:
        text = (_read(f"/proc/{pid}/comm") or b"?").decode("utf-8", "replace").strip()
    return text[:COMMAND_MAX]


def mark_of(pid: int) -> Mark | None:
    """Which attempt stands in the environment that `pid` was started with; None if none, or not ours to see."""
    raw = _read(f"/proc/{pid}/environ", _ENVIRON_MAX)
    if not raw or b"MUSTER_RUN_ID=" not in raw:
        return None
    run_id = attempt = None
    for entry in raw.split(b"\0"):
        if entry.startswith(b"MUSTER_RUN_ID="):
            run_id = entry[14:].decode("ascii", "replace")
        elif entry.startswith(b"MUSTER_ATTEMPT=") and entry[15:].isdigit():
            attempt = int(entry[15:])
    return (run_id, attempt) if run_id and attempt else None


class ProcessTable:
    """All processes at one moment. Marks are remembered from one look to the next, as reading them costs most."""

    def __init__(self) -> None:
        self._processes: dict[int, Process] = {}
        self._marks: dict[int, tuple[int, Mark | None]] = {}  # pid -> (start, mark)
        self._by_parent: dict[int, list[Process]] = {}
        self._by_session: dict[int, list[Process]] = {}
        self._by_mark: dict[Mark, list[Process]] = {}

    def refresh(self) -> None:
        """Look at /proc anew."""
        found = [one for one in map(process, all_pids()) if one is not None]
        self._processes = {one.pid: one for one in found}
        self._by_parent, self._by_session, self._by_mark = {}, {}, {}
        marks = {}
        for one in found:
            self._by_parent.setdefault(one.parent, []).append(one)
            self._by_session.setdefault(one.session, []).append(one)
            # A mark once seen stays true: a process may only lose it from view, by clearing its environment.
            known = self._marks.get(one.pid)
            if known is None or known[0] != one.start_ticks:
                known = (one.start_ticks, mark_of(one.pid))
            marks[one.pid] = known
            if known[1] is not None:
                self._by_mark.setdefault(known[1], []).append(one)
        self._marks = marks

    def get(self, pid: int) -> Process | None:
        """The process `pid` at the moment of the last look."""
        return self._processes.get(pid)

    def members(self, mark: Mark, *, roots: Iterable[int] = (), session: int | None = None) -> list[Process]:
        """The living processes of the attempt `mark`, with all that descends from them, parents before children.

        `roots` are pids that belong to it for sure, `session` is its session if that is sure to be its own. This
        process and the first one never belong to it.
        """
        tops = [*self._by_mark.get(mark, ())]
        tops += [self._processes[pid] for pid in roots if pid in self._processes]
        if session is not None:
            tops += self._by_session.get(session, ())
        never = (0, 1, os.getpid())
        chosen: dict[int, Process] = {}
        queue = tops
        while queue:
            one = queue.pop()
            if one.pid not in chosen and one.pid not in never:
                chosen[one.pid] = one
                queue += self._by_parent.get(one.pid, ())
        return _parents_first(chosen)


def _parents_first(chosen: dict[int, Process]) -> list[Process]:
    """The living ones in an order fit for signals: a shell whose child dies before it would go on to its next line."""
    children: dict[int, list[Process]] = {}
    row = []
    for one in chosen.values():
        if one.parent in chosen:
            children.setdefault(one.parent, []).append(one)
        else:
            row.append(one)
    for one in row:  # it grows meanwhile
        row += children.get(one.pid, ())
    return [one for one in row if one.alive]


def send(one: Process, *numbers: int) -> bool:
    """Send the signals to exactly this process; False if it has ended (its number may be another's by now).

    Raises PermissionError for a process that has become another user's.
    """
    try:
        pidfd = os.pidfd_open(one.pid)
    except OSError:
        return False
    try:
        # The pidfd holds whoever has the number now; if the start still fits, it is the one we chose.
        now = process(one.pid)
        if now is None or now.start_ticks != one.start_ticks or not now.alive:
            return False
        signal.pidfd_send_signal(pidfd, numbers[0])
        for number in numbers[1:]:
            try:
                signal.pidfd_send_signal(pidfd, number)
            except ProcessLookupError:
                break  # the first one was enough
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
