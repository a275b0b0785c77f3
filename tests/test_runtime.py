"""Spark's workers: forked from a process that has imported what they need, from the pyspark that is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark

from gristmill.stages import runtime
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


def test_a_killed_worker_is_tried_again_by_default(spark: Any) -> None:
    assert runtime._n_local(runtime.LOCAL_MASTER) == os.cpu_count()
    scheduler = spark._jvm.org.apache.spark.SparkMasterRegex.LOCAL_N_FAILURES_REGEX()
    assert scheduler.findFirstMatchIn(runtime.LOCAL_MASTER).get().group(2) == "2"
