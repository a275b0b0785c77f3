"""Semantic deduplication: vectors in integers, k-means, and the whole stage against a sequential oracle."""

from __future__ import annotations

import json
import random
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dedup_corpus import kept_ids, make_artifact, removed, run_stage
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.stages import semantic_dedup
from gristmill.stages.dedup import embed, kmeans
from gristmill.stages.dedup.order import order_keys
from gristmill.stages.errors import ConfigError
from gristmill.stages.kernels.embedding import MAX_NORM, SCALE, WEIGHT_BITS, norms, pool_tokens, project_units
from gristmill.stages.semantic_dedup import SemanticDedup

MASK = (1 << 64) - 1
WORDS = [f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in "rstv"]


def mix64(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def rounded(sums):
    length = sum(float(x) * float(x) for x in sums) ** 0.5
    return [round(x * (SCALE / length)) if length else 0 for x in sums]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, MASK), max_size=6, unique=True), min_size=1, max_size=5), st.integers(0, 9))
def test_projection_equals_the_sum_of_signs(documents, seed):
    weights = (np.arange(1 << WEIGHT_BITS) % 7).astype(np.int32)
    ends = np.cumsum([0, *map(len, documents)])
    got = project_units(ends, np.array([h for d in documents for h in d], np.uint64), weights, 128, seed)
    for document, vector in zip(documents, got, strict=True):
        sums = [0] * 128
        for unit in document:
            word = unit ^ ((seed * 0xD1342543DE82EF9B) & MASK)
            for first in (0, 64):
                word = (word + 0x9E3779B97F4A7C15) & MASK
                for j in range(64):
                    sign = -1 if mix64(word) >> j & 1 else 1
                    sums[first + j] += sign * int(weights[unit >> (64 - WEIGHT_BITS)])
        assert vector.tolist() == rounded(sums)
    assert norms(got).max() <= MAX_NORM


def test_token_vectors_are_added_in_whole_numbers():
    table = np.array([[3, 0], [0, 4], [-3, -4]], np.int32)
    got = pool_tokens(np.array([0, 1, 3, 3, 6]), np.array([0, 0, 1, 0, 1, 2], np.int32), table)
    assert got.tolist() == [[4000, 0], [2400, 3200], [0, 0], [0, 0]]


def test_products_of_vectors_are_exact_in_float32():
    rng = np.random.default_rng(1)
    for columns in (64, 1024, 4096):
        sums = rng.integers(-9, 10, (40, columns)).astype(np.int64)
        vectors = np.array([rounded(row) for row in sums.tolist()], np.int16)
        exact = vectors.astype(np.int64) @ vectors.astype(np.int64).T
        single = vectors.astype(np.float32)
        assert np.array_equal(single @ single.T, exact.astype(np.float32)) and exact.max() <= 1 << 24


def test_kmeans_equals_plain_loops_and_ignores_the_block_size(monkeypatch):
    rng = np.random.default_rng(2)
    sample = np.array([rounded(row) for row in rng.integers(-5, 6, (90, 64)).tolist()], np.int16)
    sample[40] = sample[3]
    got = kmeans.train(sample, 6, 4)
    monkeypatch.setattr(kmeans, "BLOCK_SCORES", 7)
    assert np.array_equal(kmeans.train(sample, 6, 4), got)
    centroids = [row.tolist() for row in sample[:6]]
    for _ in range(4):
        members = [[] for _ in centroids]
        for row in sample.tolist():
            scores = [sum(a * b for a, b in zip(row, c, strict=True)) for c in centroids]
            members[scores.index(max(scores))].append(row)
        centroids = [
            rounded([sum(column) for column in zip(*rows, strict=True)]) if rows else c
            for rows, c in zip(members, centroids, strict=True)
        ]
    assert got.tolist() == centroids


def designed(seed=0):
    """Reworded and reordered copies among documents of their own, Chinese ones, and some without units."""
    rng = random.Random(seed)
    documents = []
    for number in range(60):
        words = [rng.choice(WORDS) for _ in range(rng.randint(40, 90))]
        documents.append({"id": f"d{number:03d}", "text": " ".join(words), "source": rng.choice(["web", "wiki"])})
        for copy in range(rng.choice([0, 0, 1, 2])):
            changed = list(words)
            rng.shuffle(changed)
            changed[0] = rng.choice(WORDS)
            documents.append({"id": f"d{number:03d}-{copy}", "text": "\n".join(changed).upper(), "source": "web"})
    chinese = [chr(rng.randint(0x4E00, 0x5200)) for _ in range(200)]
    documents.append({"id": "zh1", "text": "".join(chinese), "source": "web"})
    documents.append({"id": "zh2", "text": "".join(chinese[100:] + chinese[:100]) + "。", "source": "web"})
    documents += [{"id": f"empty{i}", "text": text, "source": "web"} for i, text in enumerate(["", "", " ... "])]
    return documents


OPTIONS = {"clusters": 5, "threshold": 0.9, "source_priority": ("wiki",), "annotate_only": False}


def oracle(documents, stage):
    """Each document, best first, against the kept ones of its cluster, in plain Python integers."""
    texts = pa.array([d["text"] for d in documents], pa.large_string())
    batch = pa.RecordBatch.from_pydict(
        {
            "id": [d["id"] for d in documents],
            "source": [d["source"] for d in documents],
            "content_hash": pa.array([bytes(16)] * len(documents), pa.binary(16)),
            "n_bytes": [len(d["text"].encode()) for d in documents],
        }
    )
    from gristmill.stages.kernels.hashing import content_hash

    keys = semantic_dedup.sample_keys(content_hash(texts), stage.seed)
    order = sorted({int(k) >> 1: i for i, k in enumerate(keys)}.items())
    data = stage.embedder().sample(texts)
    embedder, sample = stage.embedder().fit([data[i] for _, i in order][: stage.sample_documents])
    sample = sample[np.any(sample != 0, axis=1)]
    vectors = embedder.vectors(texts)
    clusters = kmeans.assign(vectors, kmeans.train(sample, stage.clusters, stage.iterations))
    order_key = order_keys(batch, stage.source_priority, stage.prefer).to_pylist()
    kept, gone = [], {}
    for d in sorted(range(len(documents)), key=lambda i: order_key[i]):
        mine = vectors[d].astype(np.int64)
        for other in kept if mine.any() else []:
            theirs = vectors[other].astype(np.int64)
            value = int(mine @ theirs) / (float(mine @ mine) ** 0.5 * float(theirs @ theirs) ** 0.5)
            if clusters[other] == clusters[d] and value >= stage.threshold:
                gone[documents[d]["id"]] = (documents[other]["id"], pytest.approx(value))
                break
        else:
            if mine.any():
                kept.append(d)
    return gone


@pytest.mark.parametrize("n_parts", [1, 7, pytest.param(64, marks=pytest.mark.slow)])
def test_removals_equal_the_sequential_oracle_for_any_file_layout(spark, tmp_path, monkeypatch, n_parts):
    documents = designed()
    expected = oracle(documents, SemanticDedup.build(**OPTIONS))
    assert len(expected) > 20 and "zh1" in expected, "the longer one is kept"
    random.Random(n_parts).shuffle(documents)
    outcome = run_stage(spark, SemanticDedup.build(**OPTIONS), make_artifact(tmp_path, documents, n_parts))
    assert removed(outcome) == expected
    assert kept_ids(tmp_path, outcome) == sorted({d["id"] for d in documents} - expected.keys())
    assert outcome.report["without_vector"] == 3 and outcome.report["kmeans_clusters"] == 5
    assert outcome.report["flagged"] == len(expected) and outcome.report["leaders_refused"] == 0


def test_flags_only_unless_told_otherwise(spark, tmp_path):
    documents = designed()
    options = {**OPTIONS, "annotate_only": True}
    outcome = run_stage(spark, SemanticDedup.build(**options), make_artifact(tmp_path, documents, 2))
    assert removed(outcome) == {}
    table = pq.read_table(tmp_path / "out" / "duplicates.parquet").to_pylist()
    found = {row["id"]: (row["kept_id"], row["similarity"]) for row in table}
    assert found == oracle(documents, SemanticDedup.build(**OPTIONS))
    assert SemanticDedup.build().annotate_only


def test_blocks_and_full_clusters_are_bounded_and_counted(monkeypatch):
    rng = np.random.default_rng(3)
    base = [rounded(row) for row in rng.integers(-9, 10, (30, 64)).tolist()]
    vectors = np.array(base + base, np.int16)
    rows = [
        {"cluster": 4, "order_key": b"%03d" % i, "row": i, "id": str(i), "vector": v.tobytes()}
        for i, v in enumerate(vectors)
    ]

    def decide(max_leaders):
        batches = pa.Table.from_pylist(rows, semantic_dedup.ASSIGNED_SCHEMA).to_batches(max_chunksize=17)
        out = pa.Table.from_batches(list(semantic_dedup._resolve(0.99, max_leaders, iter(batches)))).to_pylist()
        return {r["row"]: r["kept_row"] for r in out if r["row"] >= 0}, sum(r["refused"] for r in out)

    whole = decide(1000)
    assert whole == ({i + 30: i for i in range(30)}, 0)
    monkeypatch.setattr(semantic_dedup, "BLOCK", 4)
    monkeypatch.setattr(semantic_dedup, "LEADER_BLOCK", 3)
    assert decide(1000) == whole
    assert decide(10) == ({i + 30: i for i in range(10)}, 40)


def test_no_documents_and_none_with_units(spark, tmp_path):
    outcome = run_stage(spark, SemanticDedup.build(), make_artifact(tmp_path, [], 1, "none"), "out-none")
    assert outcome.parts == [] and outcome.report["flagged"] == 0
    documents = [{"id": str(i), "text": "..."} for i in range(3)]
    outcome = run_stage(spark, SemanticDedup.build(), make_artifact(tmp_path, documents, 2, "signs"), "out-signs")
    assert outcome.report["without_vector"] == 3 and outcome.report["flagged"] == 0


def write_model(folder, tensors, vocabulary, unknown="[UNK]"):
    """Write a folder in the layout of model2vec: safetensors by hand, a word-level tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    header, data = {}, b""
    for name, array in tensors.items():
        kind = {"<f4": "F32", "<f2": "F16", "<f8": "F64", "<i8": "I64"}[array.dtype.newbyteorder("<").str]
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(vocabulary)}, "unk_token": unknown},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(folder)


def test_a_model_finds_documents_that_share_no_word(spark, tmp_path):
    vectors = np.array([[9, 9, 9], [1, 0, 0], [1, 0, 0.1], [0, 1, 0], [0, 1, 0.1], [0, 0, 1]], np.float32)
    vocabulary = ["[UNK]", "big", "large", "cat", "feline", "sea"]
    model = write_model(tmp_path / "model", {"embeddings": vectors}, vocabulary)
    texts = {"a": "big cat unknownword", "b": "large feline", "c": "sea", "d": "nothing known", "e": "sea sea sea sea"}
    documents = [{"id": id_, "text": text} for id_, text in texts.items()]
    stage = SemanticDedup.build(model=model, threshold=0.9, annotate_only=False, clusters=1)
    outcome = run_stage(spark, stage, make_artifact(tmp_path, documents, 2))
    assert {id_: kept for id_, (kept, _) in removed(outcome).items()} == {"b": "a", "c": "e"}
    assert outcome.report["without_vector"] == 1
    assert outcome.report["embedding"] == "model: 6 token vectors of 3 columns"


def test_weights_mapping_and_half_precision_of_a_model_are_read(tmp_path):
    tensors = {
        "embeddings": np.array([[1, 0], [0, 1]], np.float16),
        "mapping": np.array([1, 0, 1], np.int64),
        "weights": np.array([1.0, 0.5, 3.0], np.float64),
    }
    model = embed.load(write_model(tmp_path / "m", tensors, ["[UNK]", "x", "y"]))
    table = model.table_VJ[model.row_V]
    assert (table * 3 // table.max()).tolist() == [[0, 1], [0, 0], [0, 3]] or table[2, 1] == 1 << 20
    assert model.unknown == 0 and table[1, 0] == round((1 << 20) / 6)
    texts = pa.array(["x", "y y", "[UNK]"], pa.large_string())
    assert embed.TokenVectors(str(tmp_path / "m"), 99).vectors(texts).tolist() == [[4000, 0], [0, 4000], [0, 0]]


def test_wrong_models_and_options_are_refused_before_spark(tmp_path):
    def refused(match, **options):
        with pytest.raises(ConfigError, match=match):
            SemanticDedup.build(**options).check("node", {})

    refused("node.model: .*cannot be read", model=str(tmp_path / "nowhere"))
    good = {"embeddings": np.ones((2, 3), np.float32)}
    folder = write_model(tmp_path / "m", {"other": np.ones((2, 3), np.float32)}, ["[UNK]", "x"])
    refused(r"no tensor 'embeddings'.*\['other'\]", model=folder)
    refused("3 tokens, model.safetensors has 2", model=write_model(tmp_path / "n", good, ["[UNK]", "x", "y"]))
    bad = write_model(tmp_path / "o", {"embeddings": np.full((2, 3), np.nan, np.float32)}, ["[UNK]", "x"])
    refused("finite numbers", model=bad)
    (tmp_path / "o" / "model.safetensors").write_bytes(b"\xff" * 20)
    refused("not a safetensors file", model=bad)
    fine = write_model(tmp_path / "p", good, ["[UNK]", "x"])
    SemanticDedup.build(model=fine).check("node", {})
    (tmp_path / "p" / "tokenizer.json").write_text("{}")
    refused("not a tokenizer", model=fine)
    with pytest.raises(ConfigError, match="need as many sample_documents"):
        SemanticDedup.build(clusters=11, sample_documents=10)
    with pytest.raises(ConfigError, match="dimensions"):
        SemanticDedup.build(dimensions=100)
