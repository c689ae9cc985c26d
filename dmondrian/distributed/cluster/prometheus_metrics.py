"""Prometheus metrics of a run, served over HTTP while it works.

Relies on the package prometheus_client (extra ``prometheus``), and on records of progress and
events. Promises that a scrape waits for no worker, and that nothing is served after `close`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from dmondrian._optional import require
from dmondrian.distributed.cluster.events import Event
from dmondrian.distributed.cluster.progress import Progress
from dmondrian.errors import ParameterError

_log = logging.getLogger("dmondrian")

HOST = "127.0.0.1"
"""Where metrics are served by default: for this machine alone."""

_SPANS = {"metrics": "so_far", "window": "window", "faded": "faded"}
_NO_METRICS = ("rows", "half_life", "position", "best", "best_position")  # of these dicts

_GAUGES = {
    "rows": "Rows that were learned.",
    "n_rows": "Rows of the stream so far.",
    "rows_per_second": "Rows learned per second, of the last minute.",
    "durable": "Position of the last committed checkpoint.",
    "workers": "Living workers.",
    "recoveries": "Shards restored after a loss, in this attempt.",
    "waiting": "Rows that wait for their labels.",
    "memory": "Bytes of memory that the workers use.",
}
_NAMES = {"n_rows": "stream_rows", "durable": "durable_position", "waiting": "waiting_rows",
          "memory": "memory_bytes"}  # fmt: skip


class PrometheusMetrics:
    """Metrics of a run, served at ``/metrics``.

    Parameters
    ----------
    port : int
        0 for any free one.
    host : str
        Address that is listened at.

    Raises
    ------
    MissingPackageError
        The package prometheus_client is not installed.
    ParameterError
        The port cannot be listened at.
    """

    def __init__(self, port: int, host: str = HOST) -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 2**16:
            raise ParameterError(f"metrics_port is {port!r}; expected a port: 0 to 65535")
        require("prometheus_client", "prometheus", "serving metrics")
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

        registry = CollectorRegistry()

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Any:
            return Gauge(f"dmondrian_{name}", text, labels, registry=registry)

        self._gauges = {name: gauge(_NAMES.get(name, name), text) for name, text in _GAUGES.items()}
        self._metric = gauge("metric", "Metrics of forecasts, by name and span.", ("name", "span"))
        self._drifted = gauge("drifted", "1 once the stream has drifted, else 0.")
        self._best = gauge("best_position", "The best checkpoint by held-out data.")
        self._updated = gauge("updated_timestamp_seconds", "When these values were set.")
        self._lag = gauge(
            "lag_seconds", "Age of the newest data that are not learned and saved yet; else 0."
        )
        self._last_lag = gauge(
            "last_lag_seconds",
            "From the last change of the newest learned data to their checkpoint.",
        )
        self._label_delay = {
            unit: gauge(f"label_delay_{unit}", f"Median {unit} between rows and their labels, of "
                        "the last file of labels that was joined.")
            for unit in ("rows", "seconds")
        }  # fmt: skip
        self._events = Counter(
            "dmondrian_events", "Events of the run, by kind.", ("kind",), registry=registry
        )
        self._waiting_since: float | None = None  # change of the newest file that is not learned
        self._lag.set_function(self._lag_now)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise ParameterError(f"metrics cannot be served at {host}:{port}: {error}") from error
        self.port: int = self._server.server_port
        _log.info("metrics are served at http://%s:%d/metrics", host, self.port)

    def follow(self, progress: Progress) -> None:
        """Set the metrics to those of a record."""
        for name, gauge in self._gauges.items():
            gauge.set(getattr(progress, name))
        self._drifted.set(float(progress.has_drifted))
        for attribute, span in _SPANS.items():
            self._set_metrics(getattr(progress, attribute), span)
        self.follow_held_out(progress.held_out)

    def follow_held_out(self, held_out: Mapping[str, float]) -> None:
        """Set the metrics of held-out rows alone, to those of `Progress.held_out`."""
        self._set_metrics(held_out, "held_out")
        if "best_position" in held_out:
            self._best.set(held_out["best_position"])
        self._updated.set(time.time())

    def _set_metrics(self, metrics: Mapping[str, float], span: str) -> None:
        for name, value in metrics.items():
            if name not in _NO_METRICS:
                self._metric.labels(name, span).set(value)

    def count(self, event: Event) -> None:
        """Count an event."""
        self._events.labels(event.kind).inc()

    def data_came(self, changed: float | None) -> None:
        """Note the last change of the newest file, which is not learned yet."""
        self._waiting_since = changed

    def data_learned(self, lag: float | None) -> None:
        """Note that all data are learned, and how many seconds after their last change."""
        self._waiting_since = None
        if lag is not None:
            self._last_lag.set(lag)

    def labels_joined(self, rows_later: float, seconds_later: float | None) -> None:
        """Note how much later labels came than their rows; no seconds where stores note none."""
        self._label_delay["rows"].set(rows_later)
        if seconds_later is not None:
            self._label_delay["seconds"].set(seconds_later)

    def close(self) -> None:
        """Serve no more."""
        stop = threading.Thread(target=self._server.shutdown, daemon=True)
        stop.start()
        stop.join(10.0)
        self._server.server_close()

    def _lag_now(self) -> float:
        since = self._waiting_since
        return 0.0 if since is None else max(0.0, time.time() - since)
