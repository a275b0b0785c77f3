"""Fuzzy deduplication through Spark on designed documents, against a small sequential oracle."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dedup_corpus import kept_ids, make_artifact, rejected, removed, run_stage

from gristmill.stages.dedup import checkpoint
from gristmill.stages.dedup.order import order_keys
from gristmill.stages.errors import ConfigError
from gristmill.stages.fuzzy_dedup import FuzzyDedup
from gristmill.stages.kernels.jaccard import similarities
from gristmill.stages.kernels.views import text_view

WORDS = [f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in "rstv"]


def _sentence(rng, n):
    return [rng.choice(WORDS) for _ in range(n)]


def designed(seed=0):
    """Clusters of edited copies, templates with other facts, short, empty and repeated documents."""
    rng = random.Random(seed)
    documents = []

    def add(words, **more):
        documents.append({"id": f"doc{len(documents):04d}", "text": " ".join(words), **more})

    for _ in range(20):
        base = _sentence(rng, rng.randint(60, 300))
        add(base, source=rng.choice(["web", "wiki"]))
        for _ in range(rng.randint(0, 5)):
            copy = list(base)
            for _ in range(rng.randint(0, len(copy) // 20)):
                copy[rng.randrange(len(copy))] = rng.choice(WORDS)
            add(copy, source=rng.choice(["web", "wiki"]))
    boilerplate = _sentence(rng, 120)
    for _ in range(30):
        add(boilerplate[:60] + _sentence(rng, 45) + boilerplate[60:], source="template")
    for text in ("", " . ", "one", "one", "ONE!", "one two", "a " * 500, "a " * 700, "中" * 50, "中" * 80):
        documents.append({"id": f"doc{len(documents):04d}", "text": text, "source": "odd"})
    chinese = "".join(chr(rng.randint(0x4E00, 0x4F00)) for _ in range(300))
    documents.append({"id": "zh1", "text": chinese, "source": "zh"})
    documents.append({"id": "zh2", "text": chinese[:150] + "新" + chinese[150:], "source": "zh"})
    return documents


def oracle(documents, stage):
    """Greedy resolution in plain Python: documents from best to worst, leaders by shared buckets."""
    sketch = stage.sketch()
    texts = pa.array([d["text"] for d in documents], pa.large_string())
    keys, n_units = sketch.keys(texts)
    ends, sets = text_view(sketch.sets(texts))
    words = np.frombuffer(sets.tobytes(), np.uint64)
    batch = pa.RecordBatch.from_pydict(
        {
            "id": [d["id"] for d in documents],
            "source": pa.array([d["source"] for d in documents], pa.string()),
            "content_hash": pa.array([bytes(16)] * len(documents), pa.binary(16)),
            "n_bytes": [len(d["text"].encode()) for d in documents],
        }
    )
    order_key = order_keys(batch, stage.source_priority, stage.prefer).to_pylist()
    buckets = {}
    gone = {}
    for d in sorted(range(len(documents)), key=lambda i: order_key[i]):
        if n_units[d] == 0:
            continue
        mine = [(band, int(key)) for band, key in enumerate(keys[d])]
        leader = d
        for other in sorted({x for b in mine for x in buckets.get(b, ())}, key=lambda i: order_key[i]):
            pair = np.array([other]), np.array([d])
            value = similarities(ends // 8, words, *pair)[0]
            if value >= stage.threshold:
                gone[documents[d]["id"]] = (documents[other]["id"], value)
                leader = other
                break
        for b in mine:
            buckets.setdefault(b, set()).add(leader)
    return gone


OPTIONS = {"source_priority": ("wiki", "web")}


@pytest.fixture(scope="module")
def expected():
    return oracle(designed(), FuzzyDedup.build(**OPTIONS))


def test_removals_equal_the_sequential_oracle(spark, tmp_path, expected):
    documents = designed()
    outcome = run_stage(spark, FuzzyDedup.build(**OPTIONS), make_artifact(tmp_path, documents, 3))
    assert removed(outcome) == expected
    assert kept_ids(tmp_path, outcome) == sorted({d["id"] for d in documents} - set(expected))
    assert expected["zh1"][0] == "zh2", "the longer one is kept"
    odd = {d["id"]: d["text"] for d in documents if d["source"] == "odd"}
    assert sorted(odd[id_] for id_ in expected if id_ in odd) == ["a " * 500, "one", "one", "中" * 50]
    assert {row["reason_threshold"] for row in rejected(outcome)} == {0.8}


@pytest.mark.parametrize(
    "n_parts", [pytest.param(1, marks=pytest.mark.slow), 7, pytest.param(64, marks=pytest.mark.slow)]
)
def test_rounds_on_spark_and_file_layout_change_nothing(scattered, tmp_path, expected, n_parts):
    documents = designed()
    random.Random(n_parts).shuffle(documents)
    stage = FuzzyDedup.build(**OPTIONS, driver_keys=0, driver_edges=0)
    outcome = run_stage(scattered, stage, make_artifact(tmp_path, documents, n_parts))
    assert removed(outcome) == expected
    assert outcome.report["rounds"][-1]["core_edges"] == 0


def test_templates_stay_when_verified_and_are_lost_when_not(spark, tmp_path):
    documents = [d for d in designed() if d["source"] == "template"]
    artifact = make_artifact(tmp_path, documents)
    options = {"bands": 28, "rows": 4}
    verified = run_stage(spark, FuzzyDedup.build(**options), artifact, "verified")
    assert removed(verified) == {}
    unverified = run_stage(spark, FuzzyDedup.build(**options, verify=False), artifact, "unverified")
    assert len(removed(unverified)) == len(documents) - 1
    assert {value for _, value in removed(unverified).values()} == {None}


def test_annotate_only_removes_nothing_and_lists_the_same(spark, tmp_path, expected):
    documents = designed()
    stage = FuzzyDedup.build(**OPTIONS, annotate_only=True)
    outcome = run_stage(spark, stage, make_artifact(tmp_path, documents, 2))
    assert removed(outcome) == {}
    table = pq.read_table(tmp_path / "out" / "duplicates.parquet").to_pylist()
    assert {row["id"]: (row["kept_id"], row["similarity"]) for row in table} == expected


@pytest.mark.slow
def test_interrupted_after_every_single_commit_resumes_with_the_same_result(scattered, tmp_path, expected, monkeypatch):
    artifact = make_artifact(tmp_path, designed(), 2)
    stage = FuzzyDedup.build(**OPTIONS, driver_keys=0, driver_edges=0)
    real = checkpoint.commit
    finished = []

    def commit_then_die(directory, name, pieces, schema):
        real(directory, name, pieces, schema)
        finished.append(name)
        raise KeyboardInterrupt(name)

    monkeypatch.setattr(checkpoint, "commit", commit_then_die)
    outcome = None
    for _ in range(60):
        try:
            outcome = run_stage(scattered, stage, artifact)
            break
        except KeyboardInterrupt:
            continue
    assert outcome is not None and removed(outcome) == expected
    assert len(finished) == len(set(finished)) >= 5


def test_wrong_band_options_are_refused():
    with pytest.raises(ConfigError, match="both bands and rows"):
        FuzzyDedup.build(bands=14)
    assert FuzzyDedup.build(bands=14, rows=8).sketch().bands == 14
    assert (FuzzyDedup.build().sketch().bands, FuzzyDedup.build().sketch().rows) == (16, 7)
