"""Submitting a task, for the REST API and the pages alike: what is checked, and what the master is told.

Promises that both doors refuse the same requests, and that a repeat under one key is known by the same body.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from common.requests import TaskRequest, check
from webserver.services import Services

# Equal requests have equal bytes whatever the order of keys and the white space were.
_canonical = msgspec.msgpack.Encoder(order="deterministic").encode


def submit(
    web: Services, request: TaskRequest, *, by: str, key: str | None = None, wait_s: float = 0.0
) -> tuple[Any, bool]:
    """(task view, whether this call stored it). Raises `InvalidRequest` and whatever the master refuses."""
    check(request, max_script=web.settings.max_script, max_targets=web.settings.max_targets)
    meta = {
        "idempotency_key": key,
        "body_sha256": hashlib.sha256(_canonical(request)).hexdigest(),
        "submitted_by": by,
    }
    return web.master.add_task(_plain(request), meta, wait_s=wait_s)


def preview(web: Services, request: TaskRequest) -> Any:
    """What submitting would do, as the master's view. Raises the same; nothing is stored."""
    check(request, max_script=web.settings.max_script, max_targets=web.settings.max_targets)
    return web.master.read("preview_task", _plain(request))


def _plain(request: TaskRequest) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(request, builtin_types=(bytes,))
    return plain
