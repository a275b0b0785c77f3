"""Loader metrics for Prometheus: waits, queue depth, steps, rows and restarts of prefetch workers.

Needs `prometheus_client` (the extra `gristmill[metrics]`), which is imported when an exporter is made and not before.

    metrics = PrometheusMetrics(rank=0)
    loader = Loader(..., on_step=metrics)
    metrics.serve(9100)  # or use the registry that your trainer exports already
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gristmill.packing.errors import ArgumentError, problem

if TYPE_CHECKING:
    from gristmill.packing.loader import StepMetrics

BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Upper bounds of the wait histogram, in seconds: from a hidden wait to a stalled store."""


class PrometheusMetrics:
    """An `on_step` callback that keeps these metrics, all with the labels that it was made with.

    `gristmill_loader_wait_seconds` (histogram): what `next()` waited. `gristmill_loader_ready_batches`: batches that
    were ready afterwards; 0 for long means that reading is slower than training. `gristmill_loader_step`: steps since
    the run began. `gristmill_loader_rows_total`, `gristmill_loader_restarts_total`: rows delivered to this rank, and
    times that a crashed prefetch worker was started again.
    """

    def __init__(self, registry: Any = None, **labels: object) -> None:
        """Register the metrics, in the default registry unless another is given.

        Raises:
            ArgumentError: `prometheus_client` is not installed.
        """
        try:
            client: Any = importlib.import_module("prometheus_client")
        except ImportError:
            raise ArgumentError(
                problem("prometheus_client is not installed", where="metrics", then="pip install 'gristmill[metrics]'")
            ) from None
        self._client = client
        self.registry = client.REGISTRY if registry is None else registry
        names = sorted(labels)

        def make(kind: str, name: str, text: str, **options: Any) -> Any:
            made = getattr(client, kind)(f"gristmill_loader_{name}", text, names, registry=self.registry, **options)
            return made.labels(*(str(labels[n]) for n in names)) if names else made

        self._wait = make("Histogram", "wait_seconds", "seconds that next() waited for a batch", buckets=BUCKETS)
        self._ready = make("Gauge", "ready_batches", "batches ready after next()")
        self._step = make("Gauge", "step", "steps since the run began, over all resumes")
        self._rows = make("Counter", "rows", "rows delivered to this rank")
        self._restarts = make("Counter", "restarts", "crashed prefetch workers started again")

    def __call__(self, step: StepMetrics) -> None:
        """Take one step's metrics."""
        self._wait.observe(step.seconds)
        self._ready.set(step.ready)
        self._step.set(step.step + 1)
        self._rows.inc(step.rows)
        self._restarts.inc(step.restarts)

    def serve(self, port: int, address: str = "0.0.0.0") -> Any:
        """Answer scrapes on a port, in a background thread; returns what `start_http_server` does."""
        return self._client.start_http_server(port, address, registry=self.registry)
