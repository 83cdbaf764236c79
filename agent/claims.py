"""A claim as the master sent it, made into what the executor runs; or the sentence why this agent cannot run it.

Pure. Script runs only: this agent has no worker for queue items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from agent.attempt import AttemptSpec
from agent.attempt_files import AttemptFiles
from common.errors import ProtocolError
from common.model import TaskSpec
from common.wire import unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claimed attempt. `spec` is None when it cannot be run here, `refusal` then says why."""

    run_id: str
    attempt: int
    lease: str
    spec: AttemptSpec | None
    refusal: str | None = None
    script_sha256: str | None = None  # the script is not in `spec` yet: to be fetched under this hash
    script_size: int = 0


def read_claim(wire: Any) -> Claim:
    """The claim of one entry of a pull's answer. Raises `ProtocolError` for one that does not even name its run."""
    if not isinstance(wire, dict):
        raise ProtocolError("a claim is not a map")
    run_id, attempt, lease = wire.get("run_id"), wire.get("attempt"), wire.get("lease")
    if not (isinstance(run_id, str) and isinstance(lease, str) and type(attempt) is int):
        raise ProtocolError("a claim has no run_id, attempt and lease")
    try:
        AttemptFiles("", run_id, attempt)
    except ValueError as error:
        raise ProtocolError(f"a claim cannot be kept: {error}") from error
    script, packed = wire.get("script"), wire.get("spec")
    if not isinstance(packed, bytes) or not (script is None or isinstance(script, bytes)):
        return _refused(run_id, attempt, lease, "its claim holds no script")
    try:
        task = unpack(TaskSpec, packed)
    except msgspec.MsgspecError as error:
        return _refused(run_id, attempt, lease, f"its description cannot be read ({error})")
    task_id = wire.get("task_id")
    spec = AttemptSpec(
        run_id=run_id,
        attempt=attempt,
        lease=lease,
        task_id=task_id if isinstance(task_id, str) else None,
        script=script or b"",
        interpreter=tuple(task.interpreter) if task.interpreter else None,
        args=tuple(task.args),
        env=task.env,
        cwd=task.cwd,
        timeout_s=task.timeout_s,
        output_limit=task.output_limit,
    )
    missing = task.script_sha256 if script is None else None
    return Claim(
        run_id=run_id, attempt=attempt, lease=lease, spec=spec, script_sha256=missing, script_size=task.script_size
    )


def _refused(run_id: str, attempt: int, lease: str, why: str) -> Claim:
    return Claim(run_id=run_id, attempt=attempt, lease=lease, spec=None, refusal=f"This agent cannot run it: {why}.")
