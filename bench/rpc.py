"""Figure (c): RPC calls per second and CPU per call, ours beside stock zerorpc, with 1 and 50 callers.

The server runs in a process of its own both times, the callers are greenlets on one client. Ours runs encrypted, with
an authoriser that looks the key up; stock zerorpc as it comes: in the clear. Rounds of all variants alternate, so that
a busy machine disturbs them alike; each figure is the median of its rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import zerorpc

from common import auth
from common.rpc import Method, Peer, RpcClient, RpcServer

CALLERS = (1, 50)
ROUND_S = 1.5
ROUNDS = 3
_MESSAGE = 2 * 1024 * 1024
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def run(*, rounds: int = ROUNDS, round_s: float = ROUND_S) -> list[dict[str, Any]]:
    """Measure; one entry per variant and number of callers, `ratio` being ours divided by stock zerorpc."""
    variants: dict[str, Callable[[], Any]] = {"stock": _stock, "ours": _ours, "ours_inline": _ours_inline}
    measured: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for _ in range(rounds):
        for name, connected in variants.items():
            with connected() as (call, server_pid):
                for callers in CALLERS:
                    measured.setdefault((name, callers), []).append(_round(call, server_pid, callers, round_s))
    median = {key: tuple(map(statistics.median, zip(*values, strict=True))) for key, values in measured.items()}
    return [_entry(name, callers, median) for callers in CALLERS for name in ("ours", "ours_inline")]


def _entry(name: str, callers: int, median: dict[tuple[str, int], tuple[Any, ...]]) -> dict[str, Any]:
    rate, server_ms, client_ms = median[name, callers]
    stock_rate, stock_server_ms, stock_client_ms = median["stock", callers]
    return {
        "figure": "c",
        "name": f"rpc_{name}_{callers}",
        "unit": "calls/s",
        "value": round(rate),
        "baseline": round(stock_rate),
        "baseline_name": "stock zerorpc",
        "ratio": round(rate / stock_rate, 2),
        "server_cpu_ms": round(server_ms, 4),
        "baseline_server_cpu_ms": round(stock_server_ms, 4),
        "server_cpu_ratio": round(server_ms / stock_server_ms, 2),
        "client_cpu_ms": round(client_ms, 4),
        "baseline_client_cpu_ms": round(stock_client_ms, 4),
    }


def _round(call: Callable[[], Any], server_pid: int, callers: int, round_s: float) -> tuple[float, float, float]:
    """(calls per second, server CPU in ms per call, client CPU in ms per call) over one round."""
    call()
    done = [0] * callers
    began, server_began, client_began = time.monotonic(), _cpu_s(server_pid), time.process_time()
    ends_at = began + round_s

    def caller(number: int) -> None:
        while time.monotonic() < ends_at:
            call()
            done[number] += 1

    gevent.joinall([gevent.spawn(caller, number) for number in range(callers)], raise_error=True)
    took_s = time.monotonic() - began
    calls = sum(done)
    server_s, client_s = _cpu_s(server_pid) - server_began, time.process_time() - client_began
    return calls / took_s, 1000 * server_s / calls, 1000 * client_s / calls


def _cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


@contextmanager
def _server(kind: str, *words: str) -> Iterator[tuple[str, int]]:
    """A serving process of its own; gives what it printed (its endpoint) and its pid."""
    command = [sys.executable, "-m", "bench.rpc", kind, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def _stock() -> Iterator[tuple[Callable[[], Any], int]]:
    with _server("serve-stock") as (endpoint, pid):
        client = zerorpc.Client(endpoint)
        try:
            yield lambda: client("add", 1, 2), pid
        finally:
            client.close()


@contextmanager
def _ours(method: str = "add") -> Iterator[tuple[Callable[[], Any], int]]:
    own = auth.new_key_pair()
    with _server("serve-ours", own.public_text) as (line, pid):
        endpoint, server_key = line.split()
        client = RpcClient(
            endpoint,
            server_key=server_key.encode(),
            public_key=own.public,
            secret_key=own.secret,
            max_message_bytes=_MESSAGE,
        )
        client.start()
        try:
            yield lambda: client.call(method, 1, 2, timeout_s=10), pid
        finally:
            client.stop()


def _ours_inline() -> Any:
    return _ours("add_inline")


def _serve_stock() -> None:
    server = zerorpc.Server({"add": lambda a, b: a + b})
    server.bind("tcp://127.0.0.1:0")
    print(server._events._socket.last_endpoint.decode(), flush=True)
    server.run()


def _serve_ours(known_key: str) -> None:
    keys = auth.new_key_pair()
    known = {known_key}

    def authorize(peer: Peer, method: str) -> None:
        if peer.key not in known:
            raise PermissionError(method)

    def add(_: Peer, a: int, b: int) -> int:
        return a + b

    server = RpcServer(
        "tcp://127.0.0.1:0",
        {"add": Method(add), "add_inline": Method(add, inline=True)},
        secret_key=keys.secret,
        public_key=keys.public,
        authorize=authorize,
        max_message_bytes=_MESSAGE,
    )
    server.start()
    print(server.endpoint, keys.public_text, flush=True)
    gevent.get_hub().join()
    gevent.event.Event().wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve-stock"]:
            _serve_stock()
        case ["serve-ours", key]:
            _serve_ours(key)
        case _:
            for entry in run():
                print(json.dumps(entry))
