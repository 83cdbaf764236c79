"""Figure (a): `POST /tasks` with `Prefer: wait` for `true`, from request to final answer, beside a bare subprocess."""

from __future__ import annotations

import base64
import subprocess
import time
from typing import Any

from bench.system import System, percentile, script_file

ROUNDS = 200


def run() -> list[dict[str, Any]]:
    """Milliseconds p50 and p99 over 200 rounds, one at a time, after 20 to warm up."""
    ours: list[float] = []
    bare: list[float] = []
    with System() as system, script_file("true\n") as file:
        body = {"script": base64.b64encode(b"true\n").decode(), "targets": system.agent_names()[:1]}
        connection = system.connect()
        for number in range(ROUNDS + 20):
            begin = time.perf_counter()
            task = system.call("POST", "/api/v1/tasks", body, connection=connection, headers={"Prefer": "wait=30"})
            middle = time.perf_counter()
            subprocess.run(["sh", file], check=True)
            end = time.perf_counter()
            if task["state"] != "succeeded":
                raise RuntimeError(f"task ended as {task['state']}")
            if number >= 20:
                ours.append((middle - begin) * 1000)
                bare.append((end - middle) * 1000)
    row: dict[str, Any] = {"figure": "a", "what": "POST /tasks, Prefer: wait, true", "unit": "ms"}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        row[name] = round(percentile(ours, share), 2)
        row[f"baseline_{name}"] = round(percentile(bare, share), 2)
    return [{**row, "baseline": "subprocess.run(sh FILE)", "aim": "p50 below 12 ms"}]
