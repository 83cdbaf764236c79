"""The limit of open files: raised for a daemon, which holds one for each peer or pipe, and put back for its children.

Only the soft limit moves, up to the hard one that the system grants. Standard library only: the shepherd uses it.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


def raise_limit() -> int:
    """Allow this process as many open files as it may have; answers the soft limit that was before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a system that grants less leaves the limit as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


@contextlib.contextmanager
def limited(soft: int | None) -> Iterator[None]:
    """Inside, a process that is started gets the soft limit `soft`; what is open stays open. None changes nothing."""
    raised, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft is None or soft == raised:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
