"""Lines and paragraphs that many documents share are cut, and only those."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dedup_corpus import make_artifact, rejected, run_stage
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.stages.kernels.lines import split_pieces, strip_pieces
from gristmill.stages.kernels.shingles import normal_table
from gristmill.stages.kernels.views import text_array, text_view
from gristmill.stages.line_dedup import LineDedup


def texts_of(outcome):
    tables = [pq.read_table(part.path, columns=["id", "text", "line_dedup_bytes"]) for part in outcome.parts]
    return {row["id"]: row["text"] for table in tables for row in table.to_pylist()}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.sampled_from(list("ab \n\r中")), max_size=30), max_size=5), st.booleans())
def test_pieces_are_the_text_and_dropping_some_leaves_the_rest(texts, paragraphs):
    view = text_view(pa.array(["skip me\n", *texts], pa.large_string()).slice(1))
    pieces_D1, starts_L1, keys_L = split_pieces(*view, paragraphs, normal_table(), 1)
    raw = view[1].tobytes()
    pieces = [raw[a:b].decode() for a, b in itertools.pairwise(starts_L1)]
    for d, text in enumerate(texts):
        mine = pieces[pieces_D1[d] : pieces_D1[d + 1]]
        assert "".join(mine) == text
        if not paragraphs:
            assert mine == _lines(text)
        for piece, key in zip(mine, keys_L[pieces_D1[d] :], strict=False):
            assert (key == 0) == (not piece.strip())
    drop = keys_L % 4 == 3
    offsets_D1, data_B, dropped_D = strip_pieces(view[1], pieces_D1, starts_L1, drop)
    kept = ["".join(p for p, gone in zip(pieces[a:b], drop[a:b], strict=True) if not gone)
            for a, b in itertools.pairwise(pieces_D1)]  # fmt: skip
    assert text_array(offsets_D1, data_B).to_pylist() == kept
    assert dropped_D.sum() == drop.sum()


def _lines(text):
    return [line + "\n" for line in text.split("\n")[:-1]] + ([text.split("\n")[-1]] if text.split("\n")[-1] else [])


def test_paragraphs_end_at_blank_lines():
    view = text_view(pa.array(["a\nb\n\n \nc\n\nd"], pa.large_string()))
    _, starts_L1, _ = split_pieces(*view, True, normal_table(), 1)
    assert starts_L1.tolist() == [0, 7, 10, 11]


def documents():
    menu = "Home | About us | Contact page\n"
    return [
        {"id": f"d{i}", "text": f"{menu}This is document number{chr(97 + i)} of ten\nshort\n", "source": "ab"[i % 2]}
        for i in range(8)
    ] + [{"id": "only", "text": menu}]


def test_shared_lines_are_cut_and_counted(spark, tmp_path):
    outcome = run_stage(spark, LineDedup.build(), make_artifact(tmp_path, documents(), 3))
    texts = texts_of(outcome)
    assert texts["d3"] == "This is document numberd of ten\nshort\n"
    assert [(row["id"], row["reason"]) for row in rejected(outcome)] == [("only", "nothing_left")]
    entry = outcome.ledger[0]
    assert entry.edited["repeated_line"].docs == 8
    assert entry.edited["repeated_line"].n_bytes == 8 * len("Home | About us | Contact page\n")
    assert outcome.report["distinct_pieces_cut"] == 1


@pytest.mark.slow
def test_first_copy_stays_in_the_best_document_for_any_layout(spark, tmp_path):
    stage = LineDedup.build(max_documents=1, keep="first", prefer=())
    for n_parts in (1, 5):
        outcome = run_stage(spark, stage, make_artifact(tmp_path, documents(), n_parts, f"in-{n_parts}"), f"o{n_parts}")
        texts = texts_of(outcome)
        assert texts["d0"].startswith("Home") and not any(texts[f"d{i}"].startswith("Home") for i in range(1, 8))


@pytest.mark.slow
def test_buckets_are_counted_apart(spark, tmp_path):
    artifact = make_artifact(tmp_path, documents()[:8])
    outcome = run_stage(spark, LineDedup.build(bucket_column="source"), artifact)
    assert all(text.startswith("Home") for text in texts_of(outcome).values())
    outcome = run_stage(spark, LineDedup.build(bucket_column="source", max_documents=3), artifact, "o2")
    assert not any(text.startswith("Home") for text in texts_of(outcome).values())
