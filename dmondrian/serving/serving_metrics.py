"""Metrics of a server for Prometheus.

Relies on the package prometheus_client, where it is installed (extra ``prometheus``). Promises that
without it nothing is counted and nothing fails.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from dmondrian.errors import MissingPackageError

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 10_000, 100_000)


class ServingMetrics:
    """Counters of a server, for Prometheus."""

    def __init__(self) -> None:
        self._registry: Any = None
        if importlib.util.find_spec("prometheus_client") is None:
            return
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "dmondrian_requests", "Requests answered.", ("path", "status"), registry=registry
        )
        self._seconds = Histogram(
            "dmondrian_request_seconds", "From a request's head to its answer.", ("path",),
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._batches = Histogram(
            "dmondrian_batch_rows", "Rows forecast in one call.", buckets=_ROWS, registry=registry
        )
        self._learned = Counter("dmondrian_learned_rows", "Rows learned.", registry=registry)
        self._reloads = Counter("dmondrian_reloads", "Newer models taken.", registry=registry)
        self._failed = Counter("dmondrian_failed_reloads", "Models that failed.", registry=registry)
        self._gauges = {
            name: Gauge(f"dmondrian_{name}", text, registry=registry)
            for name, text in (
                ("position", "Rows that the model has learned."),
                ("saved_position", "Position of the last save."),
                ("waiting_rows", "Rows that wait for labels by key."),
                ("given_up_rows", "Rows whose labels came too late to wait for."),
            )
        }

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        if self._registry is not None:
            self._requests.labels(path, str(status)).inc()
            self._seconds.labels(path).observe(seconds)

    def count_batch(self, n: int) -> None:
        """Count a call for n rows."""
        if self._registry is not None:
            self._batches.observe(n)

    def count_learned(self, n: int) -> None:
        """Count rows that were learned."""
        if self._registry is not None:
            self._learned.inc(n)

    def count_reload(self, failed: bool) -> None:
        """Count a newer model."""
        if self._registry is not None:
            (self._failed if failed else self._reloads).inc()

    def page(self, **gauges: int) -> bytes:
        """Return the text that Prometheus reads.

        Parameters
        ----------
        **gauges
            Values by name.

        Raises
        ------
        MissingPackageError
            The package is not installed.
        """
        if self._registry is None:
            raise MissingPackageError(
                'metrics need the package prometheus_client: install dmondrian with its extra "'
                'prometheus" (pip install "dmondrian[prometheus]")'
            )
        from prometheus_client import generate_latest

        for name, value in gauges.items():
            self._gauges[name].set(value)
        data: bytes = generate_latest(self._registry)
        return data
