"""Named fault points: places where a test makes the process die, stand still or fail.

Production code passes `faults.at("after-claim-commit")`, which costs one comparison while nothing is armed. Faults are
armed by the environment variable MUSTER_FAULTS when a process starts, or by `arm` inside a test:

    MUSTER_FAULTS="after-claim-commit=kill@3,before-result=delay:0.5,spool-write=fail:ENOSPC"

`kill` ends the process by SIGKILL, `freeze` stops it by SIGSTOP, `delay:S` holds up the passing thread for S seconds,
`fail` raises InjectedFault, `fail:ERRNO` an OSError. `@N` acts at the N-th passage only, otherwise at each. With
MUSTER_FAULTS_ONCE=DIR a fault acts once over all processes and restarts that share DIR, which must exist.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from common import log

logger = logging.getLogger(__name__)


class InjectedFault(Exception):
    """A fault point was armed to fail here."""


@dataclass(slots=True)
class _Fault:
    name: str
    action: str
    argument: str
    passage: int  # acts at this passage only; 0 = at each
    passed: int = 0


_ACTIONS = ("kill", "freeze", "delay", "fail")
_lock = threading.Lock()
# The one state of this module; it belongs to the process, as the environment that fills it does.
_armed: dict[str, _Fault] = {}
_once: Path | None = None


def at(name: str) -> None:
    """Pass the point `name`: nothing happens unless a fault is armed for it."""
    if _armed:
        _pass(name)


def arm(spec: str, *, once: Path | None = None) -> None:
    """Arm the faults of `spec` (see above) in place of those armed before; an empty text disarms all.

    Raises ValueError for a text that cannot be read.
    """
    global _once
    faults = [_parse(part) for part in spec.split(",") if part.strip()]
    with _lock:
        _once = once
        _armed.clear()
        _armed.update({fault.name: fault for fault in faults})


def _parse(text: str) -> _Fault:
    name, equals, action = text.strip().partition("=")
    action, _, passage = action.partition("@")
    action, _, argument = action.partition(":")
    try:
        if not name or not equals or action not in _ACTIONS or (passage and int(passage) < 1):
            raise ValueError(text)
        if action == "delay":
            float(argument)
        elif action == "fail" and argument:
            getattr(errno, argument)
        elif argument:
            raise ValueError(text)
    except (ValueError, AttributeError):
        raise ValueError(
            f"fault {text.strip()!r} cannot be read: write NAME=kill, NAME=freeze, NAME=delay:SECONDS, NAME=fail or "
            "NAME=fail:ERRNO, with @N after it for the N-th passage only"
        ) from None
    return _Fault(name, action, argument, int(passage or 0))


def _pass(name: str) -> None:
    with _lock:
        fault = _armed.get(name)
        if fault is None:
            return
        fault.passed += 1
        if fault.passage not in (0, fault.passed) or not _first_time(name):
            return
    logger.warning("fault", extra=log.fields(point=name, action=fault.action, argument=fault.argument or None))
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.action == "delay":
        time.sleep(float(fault.argument))
    elif fault.argument:
        number = getattr(errno, fault.argument)
        raise OSError(number, os.strerror(number), name)
    else:
        raise InjectedFault(f"the fault point {name} was armed to fail")


def _first_time(name: str) -> bool:
    if _once is None:
        return True
    try:
        # Exclusive creation is the memory that survives the process.
        os.close(os.open(_once / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _arm_from_environment() -> None:
    once = os.environ.get("MUSTER_FAULTS_ONCE")
    arm(os.environ.get("MUSTER_FAULTS", ""), once=Path(once) if once else None)


_arm_from_environment()
