"""Keeping the top share by a score: exact, by group, by bytes, whatever the file layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from dedup_corpus import kept_ids, make_artifact, rejected, run_stage
from hypothesis import given
from hypothesis import strategies as st

from gristmill.stages.classifier import percentile
from gristmill.stages.classifier.percentile import ClassifierPercentile, Group, find_cuts, rank_keys
from gristmill.stages.errors import ConfigError


def expected(
    documents: list[dict[str, Any]], share: float, lowest: bool = False, by: str = "", in_bytes: bool = False
) -> list[str]:
    """Sort each group, take the longest prefix within the share."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for document in documents:
        groups.setdefault(document[by] if by else "", []).append(document)
    kept = []
    for group in groups.values():

        def rank(d: dict[str, Any]) -> tuple[Any, ...]:
            tie = xxhash.xxh3_64_intdigest(d["id"].encode())
            tie -= 2**64 if tie >= 2**63 else 0
            score = d["quality"]
            return (score is None, 0 if score is None else score if lowest else -score, tie)

        weight = {d["id"]: len(d["text"].encode()) if in_bytes else 1 for d in group}
        target = int(sum(weight.values()) * share + 0.5)
        total = 0
        for document in sorted(group, key=rank):
            total += weight[document["id"]]
            if total > target:
                break
            kept.append(document["id"])
    return sorted(kept)


def corpus(n: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    return [
        {
            "id": f"d{i}",
            "text": "x" * int(rng.integers(1, 200)),
            "source": ["web", "wiki", "books"][i % 3] if i else "single",
            "quality": None if i % 41 == 7 else round(float(rng.normal()), 1 if i % 2 else 6),
        }
        for i in range(n)
    ]


@pytest.mark.parametrize(
    ("options", "oracle"),
    [
        ({"share": 0.3, "keep": "lowest"}, {"lowest": True}),
        pytest.param({"share": 0.3}, {}, marks=pytest.mark.slow),
        pytest.param({"share": 0.5, "by": ("source",)}, {"by": "source"}, marks=pytest.mark.slow),
        pytest.param({"share": 1.0}, {}, marks=pytest.mark.slow),
        ({"share": 0.25, "unit": "bytes", "by": ("source",)}, {"in_bytes": True, "by": "source"}),
    ],
)
def test_keeps_exactly_the_best(spark: Any, tmp_path: Path, options: dict[str, Any], oracle: dict[str, Any]) -> None:
    documents = corpus(400)
    stage = ClassifierPercentile.build(column="quality", **options)
    outcome = run_stage(spark, stage, make_artifact(tmp_path, documents, 3))
    assert kept_ids(tmp_path, outcome) == expected(documents, options["share"], **oracle)
    assert {row["reason"] for row in rejected(outcome)} <= {"below_top_share"}
    scores = {d["id"]: d["quality"] for d in documents}
    assert all(row["reason_value"] == scores[row["id"]] for row in rejected(outcome))
    groups = outcome.report["groups"].values()
    assert sum(group["documents"] for group in groups) == 400
    if options.get("unit") != "bytes":
        assert sum(group["kept_documents"] for group in groups) == len(kept_ids(tmp_path, outcome))


@pytest.mark.slow
def test_the_file_layout_does_not_matter(spark: Any, tmp_path: Path) -> None:
    documents = corpus(150)
    stage = ClassifierPercentile.build(column="quality", share=0.4)
    kept = [
        kept_ids(tmp_path / str(n), run_stage(spark, stage, make_artifact(tmp_path / str(n), order, n)))
        for n, order in ((1, documents), (7, documents[::-1]))
    ]
    assert kept[0] == kept[1]


def test_equal_scores_are_cut_by_the_id_through_every_level(spark: Any) -> None:
    rows = [(i, "all", 5, (i - 500) << 20, 1, 0.5) for i in range(1000)] + [(1000, "all", -7, 3, 1, 0.9)]
    keys = spark.createDataFrame(rows, "row long, in_group string, key long, tie long, weight long, score double")
    for few in (0, 100_000):
        groups = {"all": Group(1001, 1001, 301)}
        find_cuts(keys, groups, few)
        assert (groups["all"].cut, groups["all"].below) == ((5, (300 - 500) << 20), 301)


def test_a_wrong_column_is_named(spark: Any, tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path, corpus(3))
    with pytest.raises(ConfigError, match="no column 'qualty'. Did you mean 'quality'"):
        run_stage(spark, ClassifierPercentile.build(column="qualty", share=0.5), artifact)
    with pytest.raises(ConfigError, match="'url' is string; a number is needed"):
        run_stage(spark, ClassifierPercentile.build(column="url", share=0.5), artifact)


@given(st.lists(st.floats(width=64), min_size=1, max_size=20), st.booleans())
def test_keys_sort_as_scores_do(scores: list[float], lowest: bool) -> None:
    keys = rank_keys(np.array(scores, np.float64), lowest)
    order = np.argsort(keys, kind="stable")
    ranked = [scores[i] for i in order]
    numbers = [x for x in ranked if x == x]
    assert numbers == sorted(numbers, reverse=not lowest)
    assert all(x != x for x in ranked[len(numbers) :])
    for score, key in zip(scores, keys, strict=True):
        back = percentile._score_of(int(key), lowest)
        assert back == score or (back is None and score != score)
