"""Odd documents through the whole fuzzy stage: empty, short, repeated, equal in great numbers, almost equal."""

from __future__ import annotations

import pytest
from dedup_corpus import kept_ids, make_artifact, removed, run_stage

from gristmill.stages.exact_dedup import ExactDedup
from gristmill.stages.fuzzy_dedup import FuzzyDedup

LONG = " ".join(f"word{'abcdefghij'[i % 10] * (1 + i // 10)}" for i in range(200))
"""200 different words: 196 shingles, and a change in the last word costs one of them."""

ODD = {
    "empty-1": "",
    "empty-2": "",
    "space": " \n\t",
    "signs-1": "...!?",
    "signs-2": "--- ---",
    "mark": "\u0301",
    "word-1": "word",
    "word-2": "Word!",
    "word-3": "words",
    "two-1": "two words",
    "two-2": "two  words.",
    "two-3": "words two",
    "one-character-1": "a" * 100_000,
    "one-character-2": "a" * 100_000,
    "one-character-3": "a" * 100_001,
    "han-1": "\u4e2d" * 50_000,
    "han-2": "\u4e2d" * 70_000,
    "han-3": "\u4e2d" * 4,
    "han-4": "\u4e2d" * 4,
    "spaced-1": "a " * 30_000,
    "spaced-2": "a " * 40_000,
    "last-byte-1": LONG + "x",
    "last-byte-2": LONG + "y",
    "last-byte-3": LONG,
    "long-word-1": "z" * 3_000_000,
    "long-word-2": "z" * 3_000_000 + "y",
}
EXPECTED = {
    # Without any unit: never compared, always kept.
    # Fewer than five units: one shingle over all of them, so only equal ones match.
    "word-1": "word-2",
    "two-1": "two-2",
    "one-character-2": "one-character-1",
    "han-4": "han-3",
    # One distinct shingle, five times the same unit: equal sets, the longer one stays.
    "han-1": "han-2",
    "spaced-1": "spaced-2",
    # 195 shared shingles of 197.
    "last-byte-2": "last-byte-1",
    "last-byte-3": "last-byte-1",
}


@pytest.mark.parametrize("options", [{}, {"driver_keys": 0, "driver_edges": 0}], ids=["driver", "rounds"])
def test_odd_documents_have_defined_results(spark, tmp_path, options):
    documents = [{"id": id_, "text": text} for id_, text in ODD.items()]
    outcome = run_stage(spark, FuzzyDedup.build(**options), make_artifact(tmp_path, documents, 3))
    got = removed(outcome)
    assert {id_: kept for id_, (kept, _) in got.items()} == EXPECTED
    assert got["last-byte-2"][1] == pytest.approx(195 / 197)
    assert kept_ids(tmp_path, outcome) == sorted(ODD.keys() - EXPECTED.keys())


def test_odd_documents_are_equal_to_the_byte_for_exact_deduplication(spark, tmp_path):
    documents = [{"id": id_, "text": text} for id_, text in ODD.items()]
    outcome = run_stage(spark, ExactDedup.build(), make_artifact(tmp_path, documents, 3))
    assert {id_: kept for id_, (kept, _) in removed(outcome).items()} == {
        "empty-2": "empty-1",
        "one-character-2": "one-character-1",
        "han-4": "han-3",
    }


def test_a_hundred_thousand_equal_documents_leave_one(spark, tmp_path):
    text = "the same five words again here"
    documents = [{"id": f"{i:06d}", "text": text} for i in range(100_000)]
    documents.append({"id": "other", "text": "the same five words again there"})
    artifact = make_artifact(tmp_path, documents, 2)
    fuzzy = run_stage(spark, FuzzyDedup.build(max_removed=1), artifact, "fuzzy")
    assert kept_ids(tmp_path, fuzzy) == ["000000", "other"]
    assert fuzzy.report["clusters_by_size"] == {"100000": 1}
    assert fuzzy.report["largest_clusters"][0] == {
        "kept_id": "000000",
        "documents": 100_000,
        "mean_similarity": 1.0,
        "text": text,
    }
    exact = run_stage(spark, ExactDedup.build(max_removed=1), artifact, "exact")
    assert kept_ids(tmp_path, exact) == ["000000", "other"]
    assert exact.report["groups_by_size"] == {"100000": 1}
