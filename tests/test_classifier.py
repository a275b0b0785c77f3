"""The classifier stage: score, thresholds, sampling by id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fasttext_files import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import stages
from gristmill.stages.classifier.stage import pareto_draws
from gristmill.stages.errors import ConfigError

TEXTS = ["hello the world", "der Hund", "中文", "", "привет\nx", "a a a </s> hidden"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> Path:
    return tiny("word n-grams", labels=["positive", "negative"], seed=4).write(tmp_path_factory.mktemp("m") / "q.bin")


def batch(texts: list[str], ids: list[str] | None = None) -> pa.RecordBatch:
    ids = ids or [f"d{i}" for i in range(len(texts))]
    return pa.RecordBatch.from_pydict({"id": pa.array(ids), "text": pa.array(texts, pa.large_string())})


def run(texts: list[str], ids: list[str] | None = None, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = stages.create("classifier", **options).transform(batch(texts, ids)).to_pylist()
    return rows


@pytest.mark.parametrize("variant", ["word n-grams", "hs", "ova", "pruned norms"])
def test_the_score_is_the_labels_probability(tmp_path: Path, variant: str) -> None:
    written = tiny(variant)
    path = written.write(tmp_path / "m.bin")
    for label in ("de", "ja"):
        for row in run(TEXTS, model_path=path, label=label):
            expected = written.probabilities(row["text"]).get(label, 0.0)
            step = 0.008 if written.loss == "ova" else 1e-4
            assert row["classifier_score"] == pytest.approx(min(expected, 1), abs=step)


def test_documents_are_kept_above_or_below_the_threshold(model: Path) -> None:
    scores = [row["classifier_score"] for row in run(TEXTS, model_path=model)]
    cut = sorted(scores)[3]
    above = run(TEXTS, model_path=model, threshold=cut)
    below = run(TEXTS, model_path=model, threshold=cut, keep="below", column="toxicity")
    assert [row["reason"] for row in above] == [None if s >= cut else "low_classifier_score" for s in scores]
    assert [row["reason"] for row in below] == [None if s < cut else "high_toxicity" for s in scores]
    assert [row["toxicity"] for row in below] == scores
    for row in above:
        assert (row["reason_value"], row["reason_threshold"]) == (
            (None, None) if row["reason"] is None else (row["classifier_score"], cut)
        )


def test_text_that_the_model_knows_nothing_of_scores_zero(tmp_path: Path) -> None:
    path = tiny("no end token", labels=["positive", "b"], maxn=0).write(tmp_path / "m.bin")
    assert [row["classifier_score"] > 0 for row in run(["", "unknown", "hello"], model_path=path)] == [
        False,
        False,
        True,
    ]


def test_sampling_keeps_what_the_draw_says_and_explains_the_rest(model: Path) -> None:
    ids = [f"doc-{i}" for i in range(3000)]
    texts = [TEXTS[i % len(TEXTS)] for i in range(3000)]
    rows = run(texts, ids, model_path=model, threshold=0, pareto_alpha=9.0)
    draws = pareto_draws(pa.array(ids), 9.0, 0)
    for row, draw in zip(rows, draws, strict=True):
        kept = draw > 1 - row["classifier_score"]
        assert (row["reason"] is None) == kept
        if not kept:
            assert row["reason"] == "not_drawn_by_classifier_score"
            assert row["reason_threshold"] == pytest.approx(1 - draw)
    for text in TEXTS[:3]:
        group = [row for row in rows if row["text"] == text]
        share = np.mean([row["reason"] is None for row in group])
        expected = (2 - group[0]["classifier_score"]) ** -9.0
        assert share == pytest.approx(expected, abs=4 * (0.25 / len(group)) ** 0.5)


def test_draws_are_paretos_and_depend_on_id_and_seed_only() -> None:
    ids = pa.array([f"id{i}" for i in range(20_000)])
    draws = pareto_draws(ids, 3.0, 1)
    assert draws.min() >= 0
    for x in (0.1, 0.5, 1.0):
        assert np.mean(draws > x) == pytest.approx((1 + x) ** -3.0, abs=0.015)
    assert np.array_equal(draws[5000:6000], pareto_draws(ids[5000:6000], 3.0, 1))
    assert np.array_equal(draws, pareto_draws(ids.cast(pa.large_string()), 3.0, 1))
    assert abs(np.corrcoef(draws < 0.3, pareto_draws(ids, 3.0, 2) < 0.3)[0, 1]) < 0.03
    golden = pareto_draws(pa.array(["a", "b"]), 9.0, 0)
    assert [round(float(x), 6) for x in golden] == GOLDEN


GOLDEN = [0.011593, 0.1269]


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=9), st.integers(1, 9))
def test_verdicts_do_not_depend_on_the_batch(model: Path, texts: list[str], size: int) -> None:
    stage = stages.create("classifier", model_path=model, pareto_alpha=2.0, threshold=0.1, max_bytes=512, n_windows=2)
    whole = batch(texts)
    parts = [stage.transform(whole.slice(i, size)) for i in range(0, len(texts), size)]
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([stage.transform(whole)]))


def test_id_is_read_only_where_it_decides(model: Path) -> None:
    assert set(stages.create("classifier", model_path=model).reads()) == {"text"}
    assert set(stages.create("classifier", model_path=model, pareto_alpha=9).reads()) == {"text", "id"}


def test_a_wrong_model_or_label_is_refused_when_the_stage_is_built(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.bin: cannot be read"):
        stages.create("classifier", model_path=tmp_path / "gone.bin")
    with pytest.raises(ConfigError, match="'positiv' is no label of .*Did you mean 'positive'.*positive, negative"):
        stages.create("classifier", model_path=model, label="positiv")
    with pytest.raises(ConfigError, match="classifier.model_path: this key is required"):
        stages.create("classifier")
    assert stages.create("classifier", model_path=model).files() == (model,)
