"""Figures (b) and (d): scripts per second through one agent beside `xargs`, and durable submissions per second."""

from __future__ import annotations

import base64
import json
import resource
import subprocess
import time
from typing import Any

from bench import load
from bench.system import System, cpu_s_of, script_file

TASKS = 2000
SUBMISSIONS = 6000
TRUE = base64.b64encode(b"true\n").decode()


def run() -> list[dict[str, Any]]:
    """Scripts per second and CPU ms per script over all our processes, and the same for `xargs -P8 -n1 sh`."""
    rate, cpu_ms, by_role = _muster()
    xargs_rate, xargs_cpu_ms = _xargs()
    return [
        {"figure": "b", "what": f"{TASKS} tasks of true, 8 connections, 8 slots", "unit": "scripts/s",
         "value": round(rate, 1), "baseline": "xargs -P8 -n1 sh", "baseline_value": round(xargs_rate, 1),
         "ratio": round(rate / xargs_rate, 3), "aim": "ratio 0.4"},
        {"figure": "b", "what": "CPU per script over all our processes", "unit": "ms", "value": round(cpu_ms, 2),
         "baseline": "xargs -P8 -n1 sh", "baseline_value": round(xargs_cpu_ms, 2), "aim": "4 ms",
         "by_role": {role: round(ms, 2) for role, ms in by_role.items()}},
    ]  # fmt: skip


def run_submissions() -> list[dict[str, Any]]:
    """Durable submissions per second from 50 clients, to an agent that has no room; baseline: one client."""
    with System() as system:
        body = {"script": base64.b64encode(b"sleep 1000\n").decode(), "targets": system.agent_names()}
        many = SUBMISSIONS / _submit(system, body, total=SUBMISSIONS, clients=50)
        one = SUBMISSIONS // 10 / _submit(system, body, total=SUBMISSIONS // 10, clients=1)
    return [
        {"figure": "d", "what": "durable submissions, 50 clients", "unit": "tasks/s", "value": round(many, 1),
         "baseline": "1 client", "baseline_value": round(one, 1), "aim": "2000 tasks/s"},
    ]  # fmt: skip


def _submit(system: System, body: dict[str, Any], *, total: int, clients: int) -> float:
    """Seconds that it took to have `total` tasks accepted."""
    raw = json.dumps(body).encode()
    return load.post(system.address, "/api/v1/tasks", raw, token=system.token, total=total, connections=clients)


def _muster() -> tuple[float, float, dict[str, float]]:
    with System(slots=8) as system:
        body = {"script": TRUE, "targets": system.agent_names()}
        before = {pid: cpu_s_of(pid) for pid in system.pids()}
        begin = time.perf_counter()
        _submit(system, body, total=TASKS, clients=8)
        while any(system.call("GET", f"/api/v1/tasks?state={s}&limit=1")["items"] for s in ("waiting", "running")):
            time.sleep(0.1)  # looking is work of theirs too
        elapsed = time.perf_counter() - begin
        done = len(_all(system))
        if done != TASKS:
            raise RuntimeError(f"{done} of {TASKS} tasks succeeded")
        roles: dict[str, float] = {}
        for pid, role in system.pids().items():
            roles[role] = roles.get(role, 0.0) + (cpu_s_of(pid) - before.get(pid, 0.0)) * 1000 / TASKS
    return TASKS / elapsed, sum(roles.values()), roles


def _all(system: System) -> list[Any]:
    items: list[Any] = []
    cursor = ""
    while True:
        page = system.call("GET", f"/api/v1/tasks?state=succeeded&limit=500{cursor}")
        items += page["items"]
        if page["next"] is None:
            return items
        cursor = f"&cursor={page['next']}"


def _xargs() -> tuple[float, float]:
    with script_file("true\n") as file:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        subprocess.run(["xargs", "-P8", "-n1", "sh"], input=f"{file}\n" * TASKS, text=True, check=True)
        elapsed = time.perf_counter() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return TASKS / elapsed, cpu * 1000 / TASKS
