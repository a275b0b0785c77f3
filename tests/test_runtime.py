"""Spark's workers: forked from a process that has imported what they need, from the pyspark that is installed."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from gristmill.pipelines import config, run
from gristmill.pipelines.plan import Unit, plan
from gristmill.stages import runtime
from gristmill.stages.errors import ConfigError
from gristmill.stages.worker_daemon import installed_first


def test_archives_of_the_installed_pyspark_leave_the_import_path(tmp_path: Path) -> None:
    own = str(Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip")
    assert installed_first([own, *sys.path]) == installed_first(sys.path)
    other = str(tmp_path / "python" / "lib" / "pyspark.zip")  # a cluster's own Spark, perhaps of another version
    assert installed_first([other, *sys.path]) == [other, *sys.path]
    assert installed_first([own]) == [own]


def test_workers_have_it_all_imported_before_their_first_task(spark: Any) -> None:
    def look(rows: Iterator[int]) -> Iterator[tuple[bool, str]]:
        loaded = "gristmill.stages.passes" in sys.modules
        import pyspark as theirs

        for _ in rows:
            yield loaded, theirs.__file__

    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(look).collect()
    assert found == [(True, pyspark.__file__)] * 2


def test_the_collector_of_a_worker_leaves_what_was_there_before_its_task_alone(spark: Any) -> None:
    def look(rows: Iterator[int]) -> Iterator[tuple[int, int]]:
        list(rows)
        yield gc.get_freeze_count(), len(gc.get_objects())

    for frozen, tracked in spark.sparkContext.parallelize(range(6), 6).mapPartitions(look).collect():
        assert frozen > 20_000 > tracked


def test_worker_sockets_are_where_they_go_with_this_process(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Path(spark.conf.get("spark.python.unix.domain.socket.dir"))
    assert any(path.suffix == ".sock" for path in directory.iterdir())
    assert directory.stat().st_mode & 0o077 == 0
    runtime._remove_sockets(str(directory), os.getpid() + 1)  # as a fork that ends
    assert directory.is_dir()
    monkeypatch.setattr(runtime, "MAX_SOCKET_PATH", 40)
    assert runtime._socket_settings.__wrapped__() == {}


def test_a_killed_worker_is_tried_again_by_default(spark: Any) -> None:
    assert runtime._n_local(runtime.LOCAL_MASTER) == os.cpu_count()
    scheduler = spark._jvm.org.apache.spark.SparkMasterRegex.LOCAL_N_FAILURES_REGEX()
    assert scheduler.findFirstMatchIn(runtime.LOCAL_MASTER).get().group(2) == "2"


def test_a_unit_waits_for_its_own_kernels_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, told = threading.Event(), []
    (tmp_path / "a.txt").write_text("text")
    stages = {"docs": {"stage": "ingest", "path": str(tmp_path / "a.txt")}, "exact_dedup": {"inputs": "docs"}}
    planned = plan(config.build({"name": "t", "output": str(tmp_path / "out"), "stages": stages}))
    monkeypatch.setattr(type(planned.units[1].nodes[0].stage), "warm", lambda *_: go.wait(30))
    monkeypatch.setattr(run, "PATIENCE_SECONDS", 0.01)

    def tell(unit: Unit) -> None:
        told.append(unit.name)
        go.set()

    warming = run.Warming(planned)
    warming.start()
    warming._compiled["docs"].wait(30)
    warming.finish(planned.units[0], tell)
    assert not told
    warming.finish(planned.units[1], tell)
    assert told == ["exact_dedup"]


def test_a_mistake_found_while_warming_is_told_at_the_next_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("text")
    stages = {"docs": {"stage": "ingest", "path": str(tmp_path / "a.txt")}, "exact_dedup": {"inputs": "docs"}}
    planned = plan(config.build({"name": "t", "output": str(tmp_path / "out"), "stages": stages}))

    def mistake(*_: Any) -> None:
        raise ConfigError("no such model")

    monkeypatch.setattr(type(planned.units[0].nodes[0].stage), "warm", mistake)
    warming = run.Warming(planned)
    warming.start()
    with pytest.raises(ConfigError, match="docs: no such model"):
        warming.finish(planned.units[1], print)
