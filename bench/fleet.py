"""Figure (f): 1,000 simulated agents over the real protocol: idle CPU of the master, and one task to all of them.

Each agent has its own CURVE key, connection, session, heartbeats and parked `pull_task`; they live in two processes.
Baseline of the fan-out: a bare TCP server that sends 200 bytes to as many connections, from the same kind of process.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import time
from typing import Any

from bench.system import System, cpu_s_of, percentile, rss_mb

AGENTS = 1000
PROCESSES = 2
IDLE_S = 20.0
SIMULATOR = [sys.executable, "-m", "bench.fleet_agents"]


def run() -> list[dict[str, Any]]:
    """Idle CPU in percent of a core, and seconds until the last agent has its run (three rounds, the median)."""
    with System(agents=0) as system:
        processes = [_simulator(system, number) for number in range(PROCESSES)]
        try:
            for process in processes:
                _line(process, "online")
            names = _names(system)
            master = system.pid_of("master")
            idle = _idle_percent(master)
            rounds = [_fan_out(system, processes, names) for _ in range(3)]
            memory = rss_mb(master)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    bare = asyncio.run(_bare_fan_out(AGENTS))
    last = percentile([r[1] for r in rounds], 0.5)
    middle = percentile([r[0] for r in rounds], 0.5)
    return [
        {"figure": "f", "what": f"idle master, {AGENTS} agents", "unit": "% of a core", "value": round(idle, 1),
         "rss_mb": round(memory, 1), "aim": "below 15"},
        {"figure": "f", "what": f"one task to {AGENTS} agents: last has it", "unit": "s", "value": round(last, 3),
         "median_agent": round(middle, 3), "baseline": "bare TCP fan-out", "baseline_value": round(bare, 3),
         "aim": "below 1.5 s"},
    ]  # fmt: skip


def _simulator(system: System, number: int) -> subprocess.Popen[str]:
    tokens = [system.call("POST", "/api/v1/agent-tokens")["token"] for _ in range(AGENTS // PROCESSES)]
    process = subprocess.Popen([*SIMULATOR, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps(tokens) + "\n")
    process.stdin.flush()
    return process


def _line(process: subprocess.Popen[str], word: str) -> dict[str, Any]:
    assert process.stdout is not None
    while line := process.stdout.readline():
        found: dict[str, Any] = json.loads(line)
        if found["word"] == word:
            return found
    raise RuntimeError(f"a simulator ended before it said {word}")


def _names(system: System) -> list[str]:
    names: list[str] = []
    cursor = ""
    while True:
        page = system.call("GET", f"/api/v1/agents?limit=500{cursor}")
        names += [agent["name"] for agent in page["items"]]
        if page["next"] is None:
            return names
        cursor = f"&cursor={page['next']}"


def _idle_percent(pid: int) -> float:
    before = cpu_s_of(pid)
    time.sleep(IDLE_S)
    return (cpu_s_of(pid) - before) / IDLE_S * 100


def _fan_out(system: System, processes: list[subprocess.Popen[str]], names: list[str]) -> tuple[float, float]:
    body = {"script": base64.b64encode(b"true\n").decode(), "targets": names}
    begin = time.monotonic()
    task = system.call("POST", "/api/v1/tasks", body)
    times = [at - begin for process in processes for at in _line(process, "round")["claimed_at"]]
    final = system.call("GET", f"/api/v1/tasks/{task['id']}?wait=60")
    if len(times) != len(names) or final["state"] != "succeeded":
        raise RuntimeError(f"{len(times)} of {len(names)} agents had their run; the task is {final['state']}")
    return percentile(times, 0.5), max(times)


async def _bare_fan_out(count: int) -> float:
    writers: list[asyncio.StreamWriter] = []
    arrived: list[float] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    async def receive(reader: asyncio.StreamReader) -> None:
        await reader.readexactly(200)
        arrived.append(time.monotonic())

    server = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=count)
    port = server.sockets[0].getsockname()[1]
    ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    readers = [asyncio.create_task(receive(reader)) for reader, _ in ends]
    while len(writers) < count:
        await asyncio.sleep(0.01)
    begin = time.monotonic()
    for writer in writers:
        writer.write(b"x" * 200)
    await asyncio.gather(*readers)
    for _, end in ends:
        end.close()
    server.close()
    return max(arrived) - begin
