"""One Spark session for the whole suite, and small helpers that many tests need."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("default")

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The suite's only SparkSession: two local cores."""
    from gristmill.stages import runtime

    session = runtime.session("tests", "local[2]", {"spark.sql.shuffle.partitions": "4", "spark.driver.memory": "1g"})
    yield session
    session.stop()


@pytest.fixture
def scattered(spark: Any) -> Iterator[Any]:
    """The session, in which every shuffle keeps its four partitions, however small: components cross them."""
    name = "spark.sql.adaptive.coalescePartitions.enabled"
    spark.conf.set(name, "false")
    yield spark
    spark.conf.unset(name)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of optional real data; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"optional test data is not there: {SHARED}")
    return SHARED


@pytest.fixture
def run_pipeline(spark: Any, tmp_path: Path) -> Callable[..., Any]:
    """Run a pipeline given as plain data and return {node name: artifact}."""
    from gristmill.pipelines import config
    from gristmill.pipelines.plan import plan
    from gristmill.pipelines.run import run

    class Quiet:
        def begin(self, unit: Any, counters: Any) -> None: ...
        def compiling(self, unit: Any) -> None: ...

        def end(self, unit: Any, artifact: Any, seconds: float, fresh: bool) -> None: ...

    def go(stages: dict[str, Any], output: str | Path | None = None, **top: Any) -> dict[str, Any]:
        data = {"name": "test", "output": str(output or tmp_path / "out"), "stages": stages, **top}
        result = run(plan(config.build(data)), Quiet())
        return {done.unit.name: done.artifact for done in result.units}

    return go


@pytest.fixture(autouse=True)
def _no_leftover_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not depend on the caller's Spark settings."""
    for name in ("SPARK_HOME", "PYSPARK_SUBMIT_ARGS"):
        if name in os.environ and name == "SPARK_HOME":
            monkeypatch.delenv(name)


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def documents(artifact: Any) -> list[dict[str, Any]]:
    """Return the documents of an artifact as rows, sorted by id."""
    from gristmill.stages.documents import plan_splits, read_split

    rows = [r for s in plan_splits([artifact], 1) for b in read_split(s, artifact.schema) for r in b.to_pylist()]
    return sorted(rows, key=lambda row: (row["id"], row["text"]))


def table_rows(artifact: Any, kind: str) -> list[dict[str, Any]]:
    """Return the ``rejected`` or ``quarantined`` rows of an artifact."""
    import pyarrow.parquet as pq

    files = getattr(artifact.manifest, kind)
    return [row for f in files for row in pq.read_table(f"{artifact.root}/{f.path}").to_pylist()]
