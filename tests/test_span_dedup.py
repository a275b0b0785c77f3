"""Repeated spans are cut but for one copy, and nothing else is."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dedup_corpus import make_artifact, run_stage
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.stages.kernels import unicode
from gristmill.stages.kernels.shingles import normal_table
from gristmill.stages.kernels.spans import anchors, cut_spans
from gristmill.stages.kernels.views import text_array, text_view
from gristmill.stages.span_dedup import SpanDedup

NORM = normal_table(digits_alike=False)


def words(seed: int, n: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choice("abcdefgh") for _ in range(6)) for _ in range(n)]


def texts_of(outcome):
    tables = [pq.read_table(part.path, columns=["id", "text"]) for part in outcome.parts]
    return {row["id"]: row["text"] for table in tables for row in table.to_pylist()}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1000), st.integers(0, 40), st.integers(1, 8), st.integers(0, 30))
def test_shared_spans_share_anchors(seed, before, w, after):
    n = 8
    shared = words(seed, n + w - 1)
    left = " ".join(words(seed + 1, before) + shared + words(seed + 2, after))
    right = " ".join(words(seed + 3, after) + shared + words(seed + 4, before))
    keys_A, document_A, first_A, next_A = anchors(*text_view(pa.array([left, right], pa.large_string())), NORM, n, w)
    assert set(keys_A[document_A == 0]) & set(keys_A[document_A == 1])
    assert (np.diff(first_A[document_A == 0]) > 0).all() and (next_A > first_A).all()


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.text(st.sampled_from(list("ab 。.\n中é")), max_size=60), max_size=4), st.integers(0, 99), st.booleans()
)
def test_cutting_leaves_valid_text_and_touches_no_original(texts, salt, sentences):
    view = text_view(pa.array(["skip", *texts], pa.large_string()).slice(1))
    keys_A, document_A, first_A, next_A = anchors(*view, NORM, 4, 2)
    copy_A = (keys_A >> np.uint64(7)) % np.uint64(3) != salt % 3
    out = cut_spans(*view, document_A, first_A, next_A, copy_A, sentences, unicode.SENTENCE_TERMINAL)
    got = text_array(*out[:2]).cast(pa.large_binary()).to_pylist()
    raw = view[1].tobytes()
    for d, text in enumerate(texts):
        assert len(got[d].decode()) <= len(text)
        covered = np.zeros(len(raw) + 1, bool)
        for a in np.flatnonzero(document_A == d):
            if copy_A[a]:
                covered[first_A[a] : next_A[a]] = True
        for a in np.flatnonzero(document_A == d):
            if not copy_A[a]:
                covered[first_A[a] : next_A[a]] = False
        start, end = view[0][d], view[0][d + 1]
        kept = bytes(b for i, b in zip(range(start, end), raw[start:end], strict=True) if not covered[i])
        assert got[d] == kept if not sentences else len(got[d]) >= len(kept)


@pytest.mark.parametrize("n_parts", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_one_copy_of_a_span_stays(spark, tmp_path, n_parts):
    shared = words(1, 120)
    documents = [
        {"id": "a", "text": " ".join(words(2, 30) + shared + words(3, 30))},
        {"id": "b", "text": " ".join(words(4, 40) + shared + words(5, 10))},
        {"id": "c", "text": " ".join(words(6, 80))},
        {"id": "d", "text": " ".join(shared[:40])},
        {"id": "e", "text": " ".join(words(7, 20) + words(8, 70) + words(9, 20) + words(8, 70))},
    ]
    stage = SpanDedup.build(prefer=())
    outcome = run_stage(spark, stage, make_artifact(tmp_path, documents, n_parts))
    texts = texts_of(outcome)
    assert texts["a"] == documents[0]["text"] and texts["c"] == documents[2]["text"]
    assert texts["d"] == documents[3]["text"], "shorter than a window"
    left = texts["b"].split()
    assert left[:40] == words(4, 40) and left[-10:] == words(5, 10)
    assert len(left) - 50 <= 2 * (stage.slack_units - 1)
    assert texts["e"].split()[:110] == documents[4]["text"].split()[:110]
    assert len(texts["e"].split()) - 110 <= 2 * (stage.slack_units - 1)
    assert outcome.ledger[0].edited["repeated_span"].docs == 2
