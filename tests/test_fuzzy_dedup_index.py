"""Incremental runs against an index equal one run over everything."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from conftest import write_jsonl
from dedup_corpus import kept_ids, make_artifact, removed, run_stage
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.pipelines import config
from gristmill.pipelines.plan import plan
from gristmill.stages import store
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


COPIES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("AB"), st.lists(st.integers(0, 39), max_size=4)), max_size=14
)
"""Documents: which text, which crawl, which of its words are changed."""


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(copies=COPIES)
def test_any_crawl_after_another_equals_one_run_that_prefers_the_first(spark, copies):
    crawls = {"A": [], "B": []}
    for number, (base, crawl, changes) in enumerate(copies):
        words = [WORDS[(base * 37 + i) % len(WORDS)] for i in range(40)]
        for change in changes:
            words[change] = f"new{number % 3}"
        crawls[crawl].append({"id": f"{number:02d}", "text": " ".join(words), "source": crawl})
    options = {"source_priority": ("A", "B"), "threshold": 0.7}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        both = make_artifact(root, [*crawls["A"], *crawls["B"]], 2, "both")
        expected = removed(run_stage(spark, FuzzyDedup.build(**options), both, "out-both"))
        first = FuzzyDedup.build(**options, write_index=True)
        got = removed(run_stage(spark, first, make_artifact(root, crawls["A"], 2, "a"), "out-a"))
        second = FuzzyDedup.build(**options, against=(str(root / "out-a"),))
        got |= removed(run_stage(spark, second, make_artifact(root, crawls["B"], 3, "b"), "out-b"))
    assert got == expected


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_forgetting_a_document_equals_a_crawl_without_it_and_its_copies(spark, tmp_path, seed):
    old, new, _ = crawls(seed)
    first = FuzzyDedup.build(write_index=True)
    gone = removed(run_stage(spark, first, make_artifact(tmp_path, old, 2, "old"), "out-old"))
    to_new = run_stage(
        spark, FuzzyDedup.build(against=(str(tmp_path / "out-old"),)), make_artifact(tmp_path, new, 2, "new")
    )
    victims = sorted({kept for kept, _ in removed(to_new).values() if kept[0] == "A"})[:4]
    assert victims
    (tmp_path / "forget.txt").write_text("\n".join(victims))
    left = [d for d in old if d["id"] not in victims and gone.get(d["id"], ("",))[0] not in victims]
    run_stage(spark, first, make_artifact(tmp_path, left, 2, "left"), "out-left")
    artifact = make_artifact(tmp_path, new, 2, "new")
    stage = FuzzyDedup.build(against=(str(tmp_path / "out-old"),), forget=str(tmp_path / "forget.txt"))
    got = removed(run_stage(spark, stage, artifact, "out-forgot"))
    stage = FuzzyDedup.build(against=(str(tmp_path / "out-left"),))
    assert got == removed(run_stage(spark, stage, artifact, "out-without"))
    assert got != removed(to_new)


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


def _planned(tmp_path, **options):
    data = {"web": {"stage": "ingest", "path": str(tmp_path / "in")}, "fuzzy_dedup": options}
    made = plan(config.build({"name": "t", "output": str(tmp_path / "out"), "stages": data}))
    return next(unit for unit in made.units if unit.name == "fuzzy_dedup").records[-1].fingerprint


def test_the_index_is_part_of_the_fingerprint_also_in_a_remote_store(spark, tmp_path, monkeypatch):
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": "x", "text": "a b c d e f"}])
    old = make_artifact(tmp_path, [{"id": "old", "text": "a b c d e f"}], 1, "old")
    run_stage(spark, FuzzyDedup.build(write_index=True), old, "out-old")
    index = tmp_path / "out-old" / "index" / "index.json"
    for _ in ("local", "remote"):
        before = _planned(tmp_path, against=[str(tmp_path / "out-old")])
        assert before == _planned(tmp_path, against=[str(tmp_path / "out-old")])
        index.write_text(index.read_text() + " ")
        assert before != _planned(tmp_path, against=[str(tmp_path / "out-old")])
        monkeypatch.setattr(store, "is_local", lambda path: "out-old" not in path)
    index.unlink()
    with pytest.raises(ConfigError, match="fuzzy_dedup"):
        _planned(tmp_path, against=[str(tmp_path / "out-old")])


def test_mistakes_about_indexes_are_named_while_planning(tmp_path):
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": "x", "text": "a b c d e f"}])
    (tmp_path / "bad" / "index").mkdir(parents=True)
    (tmp_path / "bad" / "index" / "index.json").write_text("{}")
    (tmp_path / "ids.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="fuzzy_dedup.against: .*not a gristmill-dedup-index"):
        _planned(tmp_path, against=[str(tmp_path / "bad")])
    with pytest.raises(ConfigError, match="none is given"):
        _planned(tmp_path, forget=str(tmp_path / "ids.txt"))
    with pytest.raises(ConfigError, match="names .*bad twice"):
        _planned(tmp_path, against=[str(tmp_path / "bad"), str(tmp_path / "bad") + "/"])
    with pytest.raises(ConfigError, match="cannot be read as a list of ids"):
        _planned(tmp_path, against=[str(tmp_path / "bad")], forget=str(tmp_path / "ids.txt"))
