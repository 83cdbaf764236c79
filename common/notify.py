"""Telling whoever started a daemon that it is ready: systemd's notification protocol (`Type=notify`), and `muster up`.

Each daemon calls `ready()` once, when it can serve: the master when both doors answer, the webserver when it listens,
an agent when it is registered. Without NOTIFY_SOCKET in the environment nothing happens.
"""

from __future__ import annotations

import os
import socket


def ready() -> None:
    """Say that this daemon serves now. Never raises: a deaf starter is no reason to stop."""
    send("READY=1")


def send(message: str) -> None:
    """Send one notification, such as `STATUS=draining`."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    name = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(message.encode(), name)
    except OSError:
        return
