"""A lock file that says who has it: one process at a time, and its process id inside for whoever comes second.

The lock goes with the process, whatever ends it, and no child inherits it. Standard library only; the module typing is
left out, because the shepherd may import this.
"""

from __future__ import annotations

import fcntl
import os


class Held(Exception):
    """Another process has the lock. `who` names it for a sentence: `process 12`, or `another process`."""

    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self.who = "another process" if pid is None else f"process {pid}"
        super().__init__(f"the lock is held by {self.who}")


def take(path: str | os.PathLike[str], *, dir_fd: int | None = None) -> int:
    """The descriptor that holds the lock on `path` until it is closed; the file is made where it is missing.

    `dir_fd`: the directory that a relative `path` begins at. A symbolic link is refused. Raises `Held`, `OSError`.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=dir_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).strip()
        os.close(fd)
        raise Held(int(holder) if holder.isdigit() else None) from None
    except BaseException:
        os.close(fd)
        raise
    return fd
