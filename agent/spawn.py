"""Starts a script's main process: its environment, its descriptors, and a sentence for each way this can fail.

`posix_spawn` (a vfork inside the C library) costs the same whatever the size of the caller, and tells by errno why an
exec failed. Standard library only, and small: the shepherd imports it.
"""

from __future__ import annotations

import errno
import os
import pwd
import signal

TYPE_CHECKING = False  # the module typing is left out of the shepherd
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

# What a script finds in its environment wherever its agent was started from; docs/host.md lists it.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ALL_SIGNALS = tuple(signal.valid_signals())


class SpawnError(Exception):
    """The script could not be started; the text is a sentence that says why."""


def base_environment() -> dict[str, str]:
    """What every script of this user gets, before the task's own variables."""
    try:
        entry = pwd.getpwuid(os.geteuid())
        user, home = entry.pw_name, entry.pw_dir
    except KeyError:
        user, home = str(os.geteuid()), "/"
    return {
        "PATH": PATH,
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
    }


def environment(base: Mapping[str, str], spec: Mapping[str, Any]) -> dict[str, str]:
    """The whole environment of an attempt: the base, the task's variables, then what names the attempt.

    The last part cannot be overridden by a task: its processes are found by it.
    """
    return {
        **base,
        **spec["env"],
        "MUSTER_TASK_ID": spec["task_id"] or "",
        "MUSTER_RUN_ID": spec["run_id"],
        "MUSTER_ATTEMPT": str(spec["attempt"]),
        "MUSTER_FENCE": str(spec["fence"]),
    }


def find_program(name: str, path: str) -> str:
    """The file of the interpreter `name`; one without a slash is looked for in `path`. Raises SpawnError."""
    if "/" in name:
        return name
    if not name:
        raise SpawnError("The interpreter is an empty word.")
    denied = False
    for directory in path.split(":"):
        candidate = f"{directory or '.'}/{name}"
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            denied = True
    if denied:
        raise SpawnError(f"The interpreter {name} is in {path}, but it is not executable for this user.")
    raise SpawnError(f"The interpreter {name} was not found on this host; looked in {path}.")


def spawn(
    command: Sequence[str], *, env: Mapping[str, str], cwd: str | None, stdio: tuple[int, int, int], home_fd: int
) -> int:
    """Start `command` in its own session with these three descriptors and no others; returns its pid.

    `cwd` None is the HOME of `env`, or / if that cannot be entered; a relative one begins there. The caller's own
    directory is changed for a moment and put back to `home_fd`, so it must have one thread only. Raises SpawnError.
    """
    program = find_program(command[0], env.get("PATH", PATH))
    _enter(cwd, env)
    try:
        return os.posix_spawn(
            program,
            list(command),
            env,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(stdio)],
            setsid=True,
            setsigmask=(),
            setsigdef=_ALL_SIGNALS,
        )
    except OSError as error:
        raise SpawnError(_sentence(error, program)) from error
    except ValueError as error:
        raise SpawnError(
            f"The script could not be started: an argument or a variable of its environment is not allowed ({error})."
        ) from error
    finally:
        os.fchdir(home_fd)


def _enter(cwd: str | None, env: Mapping[str, str]) -> None:
    try:
        os.chdir(env["HOME"] if cwd is None else os.path.join(env["HOME"], cwd))
    except (OSError, ValueError) as error:
        if cwd is None:
            os.chdir("/")
            return
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise SpawnError(f"The working directory {cwd!r} cannot be entered: {why}.") from error


def _sentence(error: OSError, program: str) -> str:
    number = error.errno
    if number == errno.ENOENT and os.path.exists(program):
        return f"The interpreter {program} exists, but the program that would load it does not."
    if number in (errno.ENOENT, errno.ENOTDIR):
        return f"The interpreter {program} does not exist on this host."
    if number == errno.EACCES:
        return f"The interpreter {program} may not be executed by this user: permission denied."
    if number == errno.ENOEXEC:
        return f"The interpreter {program} is not a program this host can execute."
    if number == errno.E2BIG:
        return "The arguments and the environment together (or one of them) are too large to start a process with."
    if number == errno.EAGAIN:
        return "This user has as many processes as it may have, so no more could be started."
    return f"The interpreter {program} could not be started: {error.strerror}."
