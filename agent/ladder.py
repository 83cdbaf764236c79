"""The kill ladder: TERM to every process of an attempt, a grace, then KILL until none is left.

Each step looks for the processes anew, so one that was forked meanwhile is not missed. Standard library only.
"""

from __future__ import annotations

import os
import signal

from agent.processes import Process, send

TYPE_CHECKING = False  # the module typing is left out of the shepherd
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_POLL_FIRST_S = 0.02
_POLL_MOST_S = 0.5
_KILL_POLL_S = 0.02
_KILL_ROUNDS = 50  # in a row, where new processes appear between two of them, before others have their turn
_GIVE_UP_S = 10.0  # after the first KILL: what is still there then, no signal ends


class KillLadder:
    """One ascent. Call `step` whenever `wake_at` is due or a process of the attempt may have ended."""

    def __init__(self, members: Callable[[bool], list[Process]], *, grace_s: float, now: float) -> None:
        """`members(fresh)` finds the living processes of the attempt, `fresh`: not by an earlier look."""
        self.wake_at = now
        self.steps: list[dict[str, Any]] = []
        self.survivors: list[Process] = []  # after giving up
        self.reached: set[int] = set()  # pids that a signal was sent to
        self._members = members
        self._kill_at = now + grace_s
        self._poll_s = _POLL_FIRST_S
        self._asked: set[tuple[int, int]] = set()  # identities that got their TERM
        self._killed: set[tuple[int, int]] = set()
        self._not_ours: set[tuple[int, int]] = set()

    def hasten(self, now: float, grace_s: float) -> None:
        """Somebody asks again, perhaps with less patience."""
        self._kill_at = min(self._kill_at, now + grace_s)
        self.wake_at = now

    def step(self, now: float, wall_ms: int) -> bool:
        """Look, signal whoever has to be signalled, set `wake_at`. True: nobody is left (or no signal helps)."""
        if now >= self._kill_at:
            return self._kill(now, wall_ms)
        members = self._members(False)
        if not members:
            return True
        fresh = [one for one in members if one.identity not in self._asked]
        if fresh:
            # A stopped process gets no TERM until it goes on.
            reached = [one for one in fresh if self._send(one, signal.SIGTERM, signal.SIGCONT)]
            self._asked.update(one.identity for one in fresh)
            self._note("SIGTERM", wall_ms, len(reached))
        self._poll_s = _POLL_FIRST_S if fresh else min(self._poll_s * 1.5, _POLL_MOST_S)
        self.wake_at = min(now + self._poll_s, self._kill_at)
        return False

    def _kill(self, now: float, wall_ms: int) -> bool:
        for number in range(_KILL_ROUNDS):
            members = self._members(number > 0)
            if not members:
                return True
            breeding = bool(self._killed) and any(one.identity not in self._killed for one in members)
            reached = {one.identity for one in members if self._send(one, signal.SIGKILL)}
            self._note("SIGKILL", wall_ms, len(reached - self._killed))
            self._killed |= reached
            if self._not_ours.issuperset(one.identity for one in members) or now - self._kill_at >= _GIVE_UP_S:
                self.survivors = members
                return True
            if not breeding:
                break
        self.wake_at = now + _KILL_POLL_S
        return False

    def _note(self, name: str, wall_ms: int, processes: int) -> None:
        if self.steps and self.steps[-1]["signal"] == name:
            self.steps[-1]["processes"] += processes
        elif processes:
            self.steps.append({"at_ms": wall_ms, "signal": name, "processes": processes})

    def _send(self, one: Process, *numbers: int) -> bool:
        try:
            if not send(one, *numbers):
                return False
        except PermissionError:
            self._not_ours.add(one.identity)  # another user's by now (sudo): no signal of ours reaches it
            return False
        self.reached.add(one.pid)
        return True


def signal_name(number: int) -> str:
    """The name of a signal, also of one that has none of its own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        first = int(signal.SIGRTMIN)
        return f"SIGRTMIN+{number - first}" if first < number <= signal.SIGRTMAX else f"signal {number}"


def split_status(status: int) -> tuple[int | None, str | None]:
    """(exit code, signal name) of a wait status; one of them is None."""
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, signal_name(-code))
