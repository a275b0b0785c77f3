"""Perplexity under a KenLM model whose numbers can be checked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill import stages
from gristmill.stages.errors import ConfigError
from gristmill.stages.perplexity import Perplexity, _bucket

ARPA = r"""\data\
ngram 1=5
ngram 2=3

\1-grams:
-1.0	<unk>	0
0	<s>	-0.3
-1.2	</s>	0
-0.7	mill	-0.2
-0.9	flour	-0.1

\2-grams:
-0.3	<s> mill
-0.4	mill flour
-0.5	flour </s>

\end\
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    pytest.importorskip("kenlm", reason="KenLM is optional: pip install ufal-kenlm")
    path = tmp_path / "en.arpa"
    path.write_text(ARPA)
    return path


def run(texts: list[str], langs: list[str | None] | None = None, **options: Any) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pydict(
        {"text": pa.array(texts, pa.large_string()), "lang": pa.array(langs or ["en"] * len(texts))}
    )
    rows: list[dict[str, Any]] = Perplexity.build(**options).transform(batch).to_pylist()
    return rows


@pytest.mark.peer
def test_perplexity_counts_tokens_and_line_ends(model: Path) -> None:
    one, two, unknown, empty = run(
        ["Mill FLOUR", "mill flour\n\nmill flour\n", "mill x9", " \n"], model_path=str(model)
    )
    assert one["perplexity"] == pytest.approx(10 ** (1.2 / 3), rel=1e-5)
    assert two["perplexity"] == pytest.approx(10 ** (2.4 / 6), rel=1e-5)
    assert unknown["perplexity"] == pytest.approx(10 ** ((0.3 + 0.2 + 1.0 + 1.2) / 3), rel=1e-5)
    assert empty["perplexity"] is None
    assert {row["perplexity_bucket"] for row in (one, two, empty)} == {"unknown"}
    assert all(row["reason"] is None for row in (one, two, unknown, empty))


@pytest.mark.peer
def test_buckets_and_maximum_decide(model: Path) -> None:
    texts = ["mill flour", "mill mill", "zzz zzz", "mill flour"]
    rows = run(
        texts, ["en", "en", "en", "xx"], model_path=str(model.with_name("{lang}.arpa")), cutoffs={"en": (3.0, 8.0)},
        keep=("head", "unknown"),
    )  # fmt: skip
    assert [row["perplexity_bucket"] for row in rows] == ["head", "middle", "tail", "unknown"]
    assert [row["reason"] for row in rows] == [None, "perplexity_middle", "perplexity_tail", None]
    assert [row["reason_threshold"] for row in rows] == [None, 3.0, 8.0, None]
    high = run(texts[:3], model_path=str(model), max_perplexity=4)
    assert [row["reason"] for row in high] == [None, "high_perplexity", "high_perplexity"]


@pytest.mark.peer
def test_model_files_enter_the_fingerprint_and_must_exist(model: Path) -> None:
    assert Perplexity.build(model_path=str(model.with_name("{lang}.arpa"))).files() == (model,)
    with pytest.raises(ConfigError, match=r"no file .*gone\.arpa"):
        Perplexity.build(model_path=str(model.with_name("gone.arpa")))
    with pytest.raises(ConfigError, match="head 5.0 must be above 0 and at most middle 2.0"):
        Perplexity.build(model_path=str(model), cutoffs={"en": (5, 2)})


def test_without_kenlm_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install ufal-kenlm"):
        Perplexity.build(model_path="x.arpa")


def test_bucket_edges_belong_to_the_better_bucket() -> None:
    assert [_bucket(x, (10.0, 20.0)) for x in (10.0, 10.1, 20.0, 20.1, float("nan"))] == [
        "head", "middle", "middle", "tail", "unknown",
    ]  # fmt: skip


def test_it_is_a_stage() -> None:
    assert issubclass(Perplexity, stages.BatchStage)
