"""What the webserver counts about itself, as Prometheus text to be put behind the master's.

Names begin with `muster_web_`. A request is counted under its route, never under its address, so the number of series
does not grow with the number of tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

_BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class WebMetrics:
    """Counters and gauges of one webserver, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more for each, which nobody reads
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "muster_web_requests", "Requests answered.", ["route", "method", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "muster_web_request_seconds",
            "Time to an answer's end, without streams and requested waits.",
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._gauges: list[Gauge] = []
        self.gauge("muster_web_open_descriptors", "File descriptors in use.", _open_descriptors)

    def gauge(self, name: str, about: str, read: Callable[[], float]) -> None:
        """Report what `read` answers under `name`, when asked."""
        gauge = Gauge(name, about, registry=self._registry)
        gauge.set_function(read)
        self._gauges.append(gauge)

    def request(self, route: str, method: str, status: int, seconds: float | None) -> None:
        """Count one answered request; `seconds` None when it was a stream or waited on request."""
        self._requests.labels(route, method, str(status)).inc()
        if seconds is not None:
            self._seconds.observe(seconds)

    def text(self) -> str:
        """All of it as Prometheus text."""
        return generate_latest(self._registry).decode()


def _open_descriptors() -> float:
    try:
        return float(len(os.listdir("/proc/self/fd")))
    except OSError:
        return -1.0
