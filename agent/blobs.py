"""Scripts too large for their claim: fetched from the master in pieces, checked by their SHA-256, kept for the next.

The folder is a cache: a file is checked when it is read, so a damaged one is fetched again, and the oldest ones go
when there are more than `most_bytes`. A cache that cannot be written is no obstacle.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from pathlib import Path
from typing import Any

import gevent
from gevent.lock import BoundedSemaphore

from agent.link import MasterLink
from common import log
from common.backoff import Backoff
from common.errors import Busy, PeerUnreachable, ProtocolError, RateLimited, Unavailable

logger = logging.getLogger(__name__)

_PIECE_TIMEOUT_S = 30.0
_PASSING = (Unavailable, Busy, RateLimited)  # worth asking again: no answer, too much to do
_sha256 = re.compile(r"[0-9a-f]{64}").fullmatch


class ScriptCache:
    """Scripts by their SHA-256, in `folder`; `largest` bounds one of them, in bytes."""

    def __init__(self, folder: Path, *, link: MasterLink, largest: int, most_bytes: int = 64 * 1024 * 1024) -> None:
        self._folder = folder
        self._link = link
        self._largest = largest
        self._most_bytes = most_bytes
        self._one_at_a_time = BoundedSemaphore(1)

    def get(self, sha256: str, size: int) -> bytes:
        """The script; waits for the master as long as it takes.

        Raises `NotFound` if the master has no such script for us, `ProtocolError` if what it sends is not it.
        """
        if not _sha256(sha256) or not 0 <= size <= self._largest:
            raise ProtocolError(f"A script of {size} bytes named {sha256[:80]!r} is not one this agent would run.")
        with self._one_at_a_time:
            script = self._read(sha256)
            if script is None:
                script = self._fetch(sha256, size)
                self._keep(sha256, script)
            return script

    # -- the folder --------------------------------------------------------------------------------------------------

    def _read(self, sha256: str) -> bytes | None:
        path = self._folder / sha256
        try:
            script = path.read_bytes()
            if hashlib.sha256(script).hexdigest() == sha256:
                os.utime(path)
                return script
            logger.warning("a kept script is damaged", extra=log.fields(sha256=sha256))
            path.unlink()
        except OSError:
            pass  # not here, or not readable: it is fetched
        return None

    def _keep(self, sha256: str, script: bytes) -> None:
        temporary = self._folder / f".{sha256}.new"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._make_room(len(script))
            # Not synced: a file that a loss of power left incomplete is found out when it is read.
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(script)
            temporary.rename(self._folder / sha256)
        except OSError as error:
            logger.warning("a script cannot be kept", extra=log.fields(sha256=sha256, reason=str(error)))
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _make_room(self, size: int) -> None:
        kept = sorted((entry.stat().st_mtime, entry.stat().st_size, entry) for entry in self._folder.iterdir())
        total = sum(entry_size for _, entry_size, _ in kept) + size
        for _, entry_size, entry in kept:
            if total <= self._most_bytes:
                break
            entry.unlink()
            total -= entry_size

    # -- the master --------------------------------------------------------------------------------------------------

    def _fetch(self, sha256: str, size: int) -> bytes:
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        script = bytearray()
        while len(script) < size:
            try:
                answer = self._link.call("blob", sha256, len(script), timeout_s=_PIECE_TIMEOUT_S)
                script += _piece(answer, size, len(script))
                backoff.reset()
            except PeerUnreachable:
                self._link.wait_registered()
                gevent.sleep(backoff.next_s())
            except _PASSING as error:
                delay_s = backoff.next_s()
                logger.warning("script piece not fetched", extra=log.fields(sha256=sha256, reason=error.message))
                gevent.sleep(delay_s)
        if hashlib.sha256(script).hexdigest() != sha256:
            raise ProtocolError(f"What the master sent as script {sha256} is something else.")
        logger.info("script fetched", extra=log.fields(sha256=sha256, size=size))
        return bytes(script)


def _piece(answer: Any, size: int, offset: int) -> bytes:
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, bytes) or not data or answer.get("size") != size or offset + len(data) > size:
        raise ProtocolError("The master's answer to blob is not a piece of the script.")
    return data
