"""Step metrics, and their export to Prometheus."""

from __future__ import annotations

import pickle
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gristmill.packing import ArgumentError, Loader, StepMetrics, TokenSpec, write_shards
from gristmill.packing.metrics import PrometheusMetrics


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_shards(tmp_path, [[i % 900 + 1] * 40 for i in range(60)], TokenSpec(1000, 0, "t"))


def test_each_step_reports_its_rows_wait_and_queue(root: Path) -> None:
    for prefetch in (0, 3):
        seen: list[StepMetrics] = []
        with Loader(root, sequence_length=16, batch_size=4, prefetch=prefetch, on_step=seen.append) as loader:
            n_steps = sum(1 for _ in loader)
        assert [m.step for m in seen] == list(range(n_steps))
        assert {m.rows for m in seen} == {4}
        assert {m.restarts for m in seen} == {0}
        assert all(m.seconds >= 0 and 0 <= m.ready <= prefetch for m in seen)


def test_restarts_are_reported_once_each(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[StepMetrics] = []
    loader = Loader(root, sequence_length=16, batch_size=4, prefetch=2, on_step=seen.append)
    real, failed = loader._make, set()

    def flaky(made: int, n: int) -> Any:
        if made in (3, 5) and made not in failed:
            failed.add(made)
            raise RuntimeError("lost")
        return real(made, n)

    monkeypatch.setattr(loader, "_make", flaky)
    for _ in loader:
        pass
    assert sum(m.restarts for m in seen) == 2


def test_a_callback_does_not_travel_to_worker_processes(root: Path) -> None:
    loader = Loader(root, sequence_length=16, batch_size=4, on_step=lambda metrics: None)
    assert pickle.loads(pickle.dumps(loader))._on_step is None


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ArgumentError, match=r"pip install 'gristmill\[metrics\]'"):
        PrometheusMetrics()


@pytest.mark.peer
def test_a_scrape_shows_what_the_loader_did(root: Path) -> None:
    client = pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    registry = client.CollectorRegistry()
    metrics = PrometheusMetrics(registry, rank=3, run="a")
    with Loader(root, sequence_length=16, batch_size=4, on_step=metrics) as loader:
        n_steps = sum(1 for _ in loader)
    server, thread = metrics.serve(0, "127.0.0.1")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    labels = '{rank="3",run="a"}'
    assert f"gristmill_loader_wait_seconds_count{labels} {float(n_steps)}" in text
    assert f"gristmill_loader_rows_total{labels} {4.0 * n_steps}" in text
    assert f"gristmill_loader_step{labels} {float(n_steps)}" in text
    assert f"gristmill_loader_restarts_total{labels} 0.0" in text
    assert f"gristmill_loader_ready_batches{labels}" in text
