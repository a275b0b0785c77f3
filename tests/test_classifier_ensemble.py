"""Quality levels from several scores."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from gristmill.stages.classifier.ensemble import ensemble_sql
from gristmill.stages.errors import ConfigError


def scores() -> list[tuple[str, str, float, float]]:
    return [(f"d{i:03d}", "en" if i % 2 else "zh", i / 100, (i * 37 % 100) / 100) for i in range(100)]


def expected(
    rows: list[tuple[str, str, float, float]], edges: tuple[int, ...], levels: tuple[str, ...]
) -> dict[str, Any]:
    buckets: dict[str, int] = {}
    for column in (2, 3):
        for rank, row in enumerate(sorted(rows, key=lambda row: (row[column], row[0]))):
            buckets[row[0]] = max(buckets.get(row[0], 0), rank * 20 // len(rows))
    return {name: (b, levels[sum(b >= edge for edge in edges)]) for name, b in buckets.items()}


def test_levels_come_from_the_best_rank_bucket() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE scores (id TEXT, lang TEXT, edu REAL, dclm REAL)")
    database.executemany("INSERT INTO scores VALUES (?, ?, ?, ?)", scores())
    query = ensemble_sql(["edu", "dclm"]).replace("GREATEST", "MAX")  # SQLite's name for it
    got = {row[0]: (row[-2], row[-1]) for row in database.execute(query)}
    database.close()
    assert got == expected(scores(), (7, 12, 18, 19), ("low", "medium_low", "medium", "medium_high", "high"))
    assert {level for _, level in got.values()} == {"low", "medium_low", "medium", "medium_high", "high"}


def test_ranks_can_be_taken_within_a_language() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE scores (id TEXT, lang TEXT, edu REAL, dclm REAL)")
    database.executemany("INSERT INTO scores VALUES (?, ?, ?, ?)", scores())
    rows = list(database.execute(ensemble_sql(["edu"], n_buckets=2, edges=[1], levels=["no", "yes"], by=["lang"])))
    database.close()
    assert sorted(row[0] for row in rows if row[-1] == "yes") == [f"d{i:03d}" for i in range(50, 100)]


@pytest.mark.slow
def test_the_query_runs_on_spark(spark: Any) -> None:
    spark.createDataFrame(scores(), "id string, lang string, edu double, dclm double").createOrReplaceTempView("scores")
    got = {row["id"]: row["quality_bucket"] for row in spark.sql(ensemble_sql(["edu", "dclm"])).collect()}
    assert got == {name: bucket for name, (bucket, _) in expected(scores(), (), ("",)).items()}


@pytest.mark.parametrize(
    "options",
    [
        {"columns": []},
        {"columns": ["a; DROP"]},
        {"columns": ["a"], "edges": (3, 2, 5, 6)},
        {"columns": ["a"], "edges": (5,)},
    ],
)
def test_wrong_ensembles_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="ensemble"):
        ensemble_sql(**options)
