"""Exact deduplication on designed documents."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from dedup_corpus import kept_ids, make_artifact, rejected, removed, run_stage
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.stages.dedup.order import order_keys
from gristmill.stages.errors import ConfigError
from gristmill.stages.exact_dedup import ExactDedup
from gristmill.stages.kernels import unicode
from gristmill.stages.kernels.shingles import normal_table
from gristmill.stages.kernels.textkey import exact_keys, squeeze_spaces
from gristmill.stages.kernels.views import text_array, text_view

DOCUMENTS = [
    {"id": "b", "text": "same text", "source": "web"},
    {"id": "a", "text": "same text", "source": "web"},
    {"id": "c", "text": "same  text\n", "source": "web"},
    {"id": "d", "text": "Same text!", "source": "wiki"},
    {"id": "e", "text": "x" * 1000 + "a"},
    {"id": "f", "text": "x" * 1000 + "b"},
    {"id": "g", "text": ""},
    {"id": "h", "text": ""},
    {"id": "i", "text": "..."},
    {"id": "j", "text": "中文 文本"},
    {"id": "k", "text": "中文，文本"},
]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"b": "a", "h": "g"}),
        pytest.param({"normalize": "spaces", "prefer": ()}, {"b": "a", "c": "a", "h": "g"}, marks=pytest.mark.slow),
        ({"normalize": "units", "prefer": ()}, {"b": "a", "c": "a", "d": "a", "h": "g", "k": "j"}),
        ({"normalize": "units", "source_priority": ("wiki",)}, {"a": "d", "b": "d", "c": "d", "h": "g", "j": "k"}),
    ],
)
def test_keeps_the_best_of_each_group(spark, tmp_path, options, expected):
    artifact = make_artifact(tmp_path, DOCUMENTS, 3)
    outcome = run_stage(spark, ExactDedup.build(**options), artifact)
    assert {id_: kept for id_, (kept, _) in removed(outcome).items()} == expected
    assert kept_ids(tmp_path, outcome) == sorted({d["id"] for d in DOCUMENTS} - set(expected))
    assert {row["reason"] for row in rejected(outcome)} == {"exact_duplicate"}


def test_a_great_group_and_repeated_ids_leave_one(spark, tmp_path):
    documents = [{"id": "same", "text": "t"} for _ in range(3000)]
    outcome = run_stage(spark, ExactDedup.build(), make_artifact(tmp_path, documents, 2))
    assert kept_ids(tmp_path, outcome) == ["same"]
    assert outcome.report["groups_by_size"] == {"3000": 1}


def test_no_documents_at_all(spark, tmp_path):
    outcome = run_stage(spark, ExactDedup.build(), make_artifact(tmp_path, []))
    assert outcome.parts == [] and outcome.rejected == []


def test_unknown_preferred_column_is_named(spark, tmp_path):
    with pytest.raises(ConfigError, match="no column 'qualty'. Did you mean 'quality'"):
        run_stage(spark, ExactDedup.build(prefer=("-qualty",)), make_artifact(tmp_path, DOCUMENTS))


VALUES = st.one_of(st.none(), st.floats(allow_infinity=True, allow_nan=False), st.just(0.0), st.just(-0.0))


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(VALUES, st.one_of(st.none(), st.text(max_size=3)), st.sampled_from(["x", "y", "z"])), min_size=1
    ),
    st.booleans(),
    st.booleans(),
)
def test_order_keys_sort_like_the_values(rows, down_number, down_text):
    n = len(rows)
    batch = pa.RecordBatch.from_pydict(
        {
            "id": [f"{i:03d}" for i in range(n)],
            "content_hash": pa.array([bytes(16)] * n, pa.binary(16)),
            "source": [row[2] for row in rows],
            "q": pa.array([row[0] for row in rows], pa.float64()),
            "s": pa.array([row[1] for row in rows], pa.string()),
        }
    )
    prefer = ("-q" if down_number else "q", "-s" if down_text else "s")
    keys = order_keys(batch, ("y", "x"), prefer).to_pylist()

    def before(i, j):
        if rows[i][2] != rows[j][2]:
            return "yxz".index(rows[i][2]) < "yxz".index(rows[j][2])
        for column, down in ((0, down_number), (1, down_text)):
            a, b = rows[i][column], rows[j][column]
            if a is None or b is None:
                if (a is None) != (b is None):
                    return b is None
                continue
            if isinstance(a, str):
                a, b = a.encode() + b"\0", b.encode() + b"\0"
                if down and (a[:-1].startswith(b[:-1]) or b[:-1].startswith(a[:-1])) and a != b:
                    return len(a) > len(b)
            if a != b:
                return (a > b) if down else (a < b)
        return i < j

    for i in range(n):
        for j in range(n):
            if i != j:
                assert (keys[i] < keys[j]) == before(i, j)


def test_dates_and_integers_are_ordered():
    batch = pa.RecordBatch.from_pydict(
        {
            "id": ["a", "b", "c"],
            "content_hash": pa.array([bytes(16)] * 3, pa.binary(16)),
            "source": pa.array([None, "x", "x"], pa.string()),
            "when": pa.array([datetime.date(2020, 1, 1), None, datetime.date(2024, 1, 1)]),
            "n": pa.array([-5, 3, None], pa.int32()),
        }
    )

    def ranked(*prefer):
        return np.argsort(np.array(order_keys(batch, (), prefer).to_pylist(), object)).tolist()

    assert ranked("when") == [0, 2, 1]
    assert ranked("-when") == [2, 0, 1]
    assert ranked("n") == [0, 1, 2]
    assert ranked("-n") == [1, 0, 2]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text(st.sampled_from(list("ab \n\t\u3000\u2029é中.")), max_size=20)))
def test_squeezed_spaces_equal_split_and_join(texts):
    view = text_view(pa.array(["skip", *texts], pa.large_string()).slice(1))
    assert text_array(*squeeze_spaces(*view, unicode.IS_SPACE)).to_pylist() == [" ".join(t.split()) for t in texts]


def test_unit_keys_differ_where_units_do():
    texts = ["a b", "a  B!", "ab", "b a", "a b c", "!", "?", "1 2", "99 7"]
    keys = exact_keys(*text_view(pa.array(texts, pa.large_string())), "units", unicode.IS_SPACE, normal_table())
    same = [[(keys[i] == keys[j]).all() for j in range(len(texts))] for i in range(len(texts))]
    groups = {tuple(row) for row in same}
    assert len(groups) == 7 and same[0][1] and same[7][8]
