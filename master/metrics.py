"""The master's numbers as Prometheus text, and whether it is ready. Read when asked for; nothing is counted twice.

A registry of its own for each text: what the process-wide default one holds is nobody's business here.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
from gevent.event import AsyncResult
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.errors import MusterError
from common.loop import LoopLag
from common.model import AgentState, RunState
from common.rpc import RpcMetrics
from common.version import VERSION
from master.leases import Leases
from master.ledger import Ledger
from master.output import OutputChunk, OutputStore
from master.presence import Fleet
from master.store.base import ReadTx
from master.waiting import Pulls

DISK_LEAST = 32 * 1024 * 1024
"""Free bytes below which the master is not ready: a commit may need that much."""
_ANSWER_S = 5.0
_PROBE = "readiness-probe"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the numbers come from. `doors`: RPC counters by the name of the door."""

    ledger: Ledger
    output: OutputStore
    fleet: Fleet
    leases: Leases
    pulls: Pulls
    lag: LoopLag
    doors: Mapping[str, RpcMetrics]
    data_dir: Path


class Metrics(Collector):
    """`text()` is what a scrape gets."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources
        self._counts: dict[RunState, int] = {}
        self._oldest_ms: dict[str, int] = {}

    def text(self) -> str:
        """All metrics in Prometheus' text format."""

        def look(tx: ReadTx) -> tuple[dict[RunState, int], dict[str, int]]:
            return tx.count_runs(), tx.oldest_ready_ms()

        self._counts, self._oldest_ms = self._from.ledger.read(look)
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: everything is read when collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._work()
        yield from self._rpc()
        yield from self._stores()
        yield from self._process()

    def _work(self) -> Iterator[Metric]:
        runs = {state.value: self._counts.get(state, 0) for state in RunState}
        yield _gauge("muster_runs", "Runs by state.", "state", runs)
        now_ms = self._from.ledger.clock.now().wall_ms
        ages = {queue: max(0.0, (now_ms - at_ms) / 1000) for queue, at_ms in self._oldest_ms.items()}
        yield _gauge("muster_queue_oldest_seconds", "Age of each queue's oldest ready run.", "queue", ages)
        states = dict.fromkeys((state.value for state in AgentState), 0)
        for presence in self._from.fleet:
            states[presence.state.value] += 1
        yield _gauge("muster_agents", "Agents by state.", "state", states)
        yield GaugeMetricFamily("muster_held_runs", "Runs under a lease.", value=len(self._from.leases))
        yield GaugeMetricFamily("muster_parked_pulls", "Pulls that wait for work.", value=self._from.pulls.parked)
        yield GaugeMetricFamily(
            "muster_output_pending_bytes", "Output that waits for its commit.", value=self._from.output.pending_bytes
        )

    def _rpc(self) -> Iterator[Metric]:
        calls = CounterMetricFamily("muster_rpc_calls", "Calls carried out.", labels=["door", "method"])
        seconds = CounterMetricFamily(
            "muster_rpc_seconds", "Seconds in calls, waiting included.", labels=["door", "method"]
        )
        errors = CounterMetricFamily("muster_rpc_errors", "Calls answered with an error.", labels=["door", "code"])
        lost = CounterMetricFamily("muster_rpc_unroutable", "Answers that reached nobody.", labels=["door"])
        pending = GaugeMetricFamily("muster_rpc_pending", "Calls being carried out.", labels=["door"])
        for door, metrics in self._from.doors.items():
            for method, number in metrics.calls.items():
                calls.add_metric([door, method], number)
            for method, spent_s in metrics.seconds.items():
                seconds.add_metric([door, method], spent_s)
            for code, number in metrics.errors.items():
                errors.add_metric([door, code], number)
            lost.add_metric([door], metrics.unroutable)
            pending.add_metric([door], metrics.pending)
        yield from (calls, seconds, errors, lost, pending)

    def _stores(self) -> Iterator[Metric]:
        commits = CounterMetricFamily("muster_store_commits", "Commits.", labels=["store"])
        closures = CounterMetricFamily("muster_store_closures", "Transactions carried by commits.", labels=["store"])
        batch = GaugeMetricFamily("muster_store_batch_size", "Transactions per commit.", labels=["store", "stat"])
        took = GaugeMetricFamily("muster_store_commit_seconds", "Time of recent commits.", labels=["store", "stat"])
        queue = GaugeMetricFamily("muster_store_queue", "Transactions that wait.", labels=["store"])
        for name, stats in (("store", self._from.ledger.store.stats()), ("output", self._from.output.stats())):
            commits.add_metric([name], stats["commits"])
            closures.add_metric([name], stats["closures"])
            queue.add_metric([name], stats["queue"])
            for family, values in ((batch, stats["batch_sizes"]), (took, stats["commit_s"])):
                for stat, value in _spread(values):
                    family.add_metric([name, stat], value)
        yield from (commits, closures, batch, took, queue)

    def _process(self) -> Iterator[Metric]:
        lag = self._from.lag
        yield GaugeMetricFamily("muster_loop_lag_seconds", "Latest lateness of the event loop.", value=lag.last_s)
        yield GaugeMetricFamily(
            "muster_loop_lag_worst_seconds", "Worst lateness since the last scrape.", value=lag.take_worst_s()
        )
        yield GaugeMetricFamily(
            "muster_open_descriptors", "Open file descriptors.", value=len(os.listdir("/proc/self/fd"))
        )
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield GaugeMetricFamily("muster_descriptor_limit", "File descriptors allowed.", value=limit)
        yield GaugeMetricFamily("muster_resident_bytes", "Memory in use.", value=_resident_bytes())
        yield _gauge("muster_version", "1, with the version as label.", "version", {VERSION: 1})


class Readiness:
    """Whether work can be accepted: the disk has room, both stores write, reading works."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources

    def look(self) -> dict[str, Any]:
        """{ready, problems, version}. Writes a little to find out; notices by itself when a trouble is over."""
        problems = [*self._disk(), *_within("the store", self._store), *_within("the output store", self._output)]
        return {"ready": not problems, "problems": problems, "version": VERSION}

    def known(self) -> list[tuple[str, str]]:
        """What is known to be in the way, as (`disk`, `store` or `output`, a sentence); nothing is tried for it."""
        found = [("disk", problem) for problem in self._disk()]
        for what, problem in (("store", self._from.ledger.store.problem()), ("output", self._from.output.problem())):
            if problem is not None:
                found.append((what, problem))
        return found

    def _disk(self) -> list[str]:
        try:
            room = os.statvfs(self._from.data_dir)
        except OSError as error:
            return [f"the data directory {self._from.data_dir} cannot be used: {error.strerror}"]
        free = room.f_bavail * room.f_frsize
        if free >= DISK_LEAST:
            return []
        return [f"the disk of {self._from.data_dir} is full: {free // (1024 * 1024)} MiB free"]

    def _store(self) -> None:
        ledger = self._from.ledger
        now = ledger.clock.now()
        ledger.store.write(lambda tx: tx.set_engine_mark(now.engine_s, now.wall_ms))
        ledger.store.read(lambda tx: tx.event_bounds())

    def _output(self) -> None:
        if self._from.output.problem() is not None:
            # Nobody may be sending output just now; a trial shows whether the trouble is over.
            self._from.output.append([OutputChunk(run_id=_PROBE, attempt=0, offset=0, content=b".", segments=[(1, 1)])])
            self._from.output.delete([_PROBE])


def _within(what: str, probe: Any) -> list[str]:
    """The problem that `probe` finds, if any; one that does not come back in time is a problem, too."""
    answer: AsyncResult[str | None] = AsyncResult()

    def run() -> None:
        try:
            probe()
        except MusterError as error:
            answer.set(error.message)
        else:
            answer.set(None)

    gevent.spawn(run)
    try:
        problem = answer.get(timeout=_ANSWER_S)
    except gevent.Timeout:
        problem = f"{what} has not answered for {_ANSWER_S:g} s"
    return [] if problem is None else [problem]


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _spread(values: list[float]) -> Iterator[tuple[str, float]]:
    if values:
        ordered = sorted(values)
        yield "median", ordered[len(ordered) // 2]
        yield "p99", ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        yield "max", ordered[-1]


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
