"""Incremental runs against an index equal one run over everything."""

from __future__ import annotations

import random

import pytest
from dedup_corpus import kept_ids, make_artifact, removed, run_stage

from gristmill.stages.errors import ConfigError
from gristmill.stages.fuzzy_dedup import FuzzyDedup

WORDS = [f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in "rstv"]


def crawls(seed: int, n_crawls: int = 3):
    """Return lists of documents: edited copies of the same texts spread over crawls."""
    rng = random.Random(seed)
    crawls = [[] for _ in range(n_crawls)]
    for base_number in range(25):
        base = [rng.choice(WORDS) for _ in range(rng.randint(30, 120))]
        for copy_number in range(rng.randint(1, 6)):
            words = list(base)
            for _ in range(rng.randint(0, max(1, len(words) // 30))):
                words[rng.randrange(len(words))] = rng.choice(WORDS)
            crawl = rng.randrange(n_crawls)
            id_ = f"{'ABC'[crawl]}-{base_number}-{copy_number}"
            crawls[crawl].append({"id": id_, "text": " ".join(words), "source": "ABC"[crawl]})
    return crawls


@pytest.mark.parametrize(
    ("seed", "options"),
    [(1, {}), pytest.param(2, {"driver_keys": 0, "driver_edges": 0}, marks=pytest.mark.slow)],
)
def test_crawl_after_crawl_equals_one_run(spark, tmp_path, seed, options):
    parts = crawls(seed)
    together = make_artifact(tmp_path, [d for part in parts for d in part], 3, "all")
    stage = FuzzyDedup.build(source_priority=("A", "B", "C"), **options)
    expected = removed(run_stage(spark, stage, together, "together"))
    got = {}
    against: list[str] = []
    for letter, documents in zip("ABC", parts, strict=True):
        artifact = make_artifact(tmp_path, documents, 2, f"in-{letter}")
        step = FuzzyDedup.build(source_priority=("A", "B", "C"), write_index=True, against=tuple(against), **options)
        got |= removed(run_stage(spark, step, artifact, f"out-{letter}"))
        against.append(str(tmp_path / f"out-{letter}"))
    assert got == expected
    across = [id_ for id_, (kept, _) in got.items() if id_[0] != kept[0]]
    assert len(across) > 5


def test_forgotten_documents_no_longer_remove(spark, tmp_path):
    text = " ".join(WORDS[:40])
    old = make_artifact(tmp_path, [{"id": "old", "text": text}], 1, "old")
    run_stage(spark, FuzzyDedup.build(write_index=True), old, "out-old")
    new = make_artifact(tmp_path, [{"id": "new", "text": text + " more"}], 1, "new")
    against = (str(tmp_path / "out-old"),)
    first = run_stage(spark, FuzzyDedup.build(against=against), new, "out-1")
    assert {id_: kept for id_, (kept, _) in removed(first).items()} == {"new": "old"}
    (tmp_path / "forget.txt").write_text("other\nold\n")
    stage = FuzzyDedup.build(against=against, forget=str(tmp_path / "forget.txt"))
    assert kept_ids(tmp_path, run_stage(spark, stage, new, "out-2")) == ["new"]


def test_index_of_another_sketch_is_refused(spark, tmp_path):
    old = make_artifact(tmp_path, [{"id": "old", "text": "a b c d e f"}], 1, "old")
    run_stage(spark, FuzzyDedup.build(write_index=True), old, "out-old")
    stage = FuzzyDedup.build(against=(str(tmp_path / "out-old"),), seed=2)
    with pytest.raises(ConfigError, match="they must be the same"):
        run_stage(spark, stage, old, "out-2")
    with pytest.raises(ConfigError, match="no dedup index there"):
        run_stage(spark, FuzzyDedup.build(against=(str(tmp_path / "none"),)), old, "out-3")
