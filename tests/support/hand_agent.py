"""An agent moved by hand: it speaks the agent door and does what the test says, when the test says it. No processes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from common.auth import KeyPair
from common.rpc import RpcClient
from tests.support.rpc import quick_backoff


@dataclass
class Held:
    """A run this agent holds, and how far its output was sent."""

    run_id: str
    attempt: int
    lease: str
    offset: int = 0
    sent: bytes = b""


class HandAgent:
    """One agent; `start` registers it."""

    def __init__(self, endpoint: str, *, server_key: bytes, keys: KeyPair, name: str, slots: int = 8) -> None:
        self.name = name
        self._slots = slots
        self._pulls = 0
        self._session = f"session-{name}"
        self._held: dict[str, Held] = {}
        self._rpc = RpcClient(
            endpoint,
            server_key=server_key,
            public_key=keys.public,
            secret_key=keys.secret,
            max_message_bytes=2 * 1024 * 1024,
            backoff=quick_backoff(),
        )

    def start(self) -> None:
        """Connect and register."""
        self._rpc.start()
        self.id = self._call(
            "register",
            {
                "name": self.name, "hostname": f"{self.name}.lan", "machine_id": self.name, "boot_id": "boot",
                "version": "0", "slots": self._slots, "queues": None, "labels": {}, "facts": {"cpus": 2},
                "wall_ms": int(time.time() * 1000), "session": self._session, "held": [], "ended": [],
            },
        )["agent_id"]  # fmt: skip

    def stop(self) -> None:
        """Hang up."""
        self._rpc.stop()

    def claim(self, *, wait_s: float = 5.0) -> Held:
        """The next run, leased and not begun."""
        self._pulls += 1
        held = [[each.run_id, each.lease] for each in self._held.values()]
        ask = {"session": self._session, "pull": self._pulls, "free_slots": 1, "held": held, "wait_s": wait_s}
        [claim] = self._call("pull_task", ask)["runs"]
        taken = Held(claim["run_id"], claim["attempt"], claim["lease"])
        self._held[taken.run_id] = taken
        return taken

    def begin(self, run: Held) -> Held:
        """Begin it."""
        [answer] = self._call("begin", [[run.run_id, run.lease]])
        assert answer["ok"], answer
        return run

    def take(self) -> Held:
        """The next run, begun."""
        return self.begin(self.claim())

    def write(self, run: Held, content: bytes, *, stream: int = 1) -> None:
        """Its script writes."""
        self._send(run, {"segments": [[stream, len(content)]], "data": content}, len(content))
        run.sent += content

    def skip(self, run: Held, length: int) -> None:
        """Its script writes what is not kept."""
        self._send(run, {"gap": length}, length)

    def _send(self, run: Held, part: dict[str, Any], length: int) -> None:
        chunk = {"run_id": run.run_id, "attempt": run.attempt, "lease": run.lease, "offset": run.offset, **part}
        run.offset = self._call("output", [chunk])["acked"][run.run_id]

    def end(self, run: Held, *, exit_code: int = 0, gaps: list[tuple[int, int]] | None = None) -> None:
        """Its script ends."""
        now_ms = int(time.time() * 1000)
        ending = {
            "outcome": "exit", "exit_code": exit_code, "started_at_ms": now_ms - 10, "ended_at_ms": now_ms,
            "duration_s": 0.01, "output_bytes": run.offset, "output_gaps": gaps or [],
        }  # fmt: skip
        told = {"run_id": run.run_id, "attempt": run.attempt, "lease": run.lease, "ending": ending}
        [answer] = self._call("result", [told])
        assert answer["taken"] == "stored", answer
        del self._held[run.run_id]

    def _call(self, method: str, argument: Any) -> Any:
        return self._rpc.call(method, argument, timeout_s=20.0)
