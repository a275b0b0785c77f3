"""Training a classifier and its held-out report."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import write_jsonl
from hypothesis import given
from hypothesis import strategies as st
from test_classifier import batch

from gristmill import stages
from gristmill.jobs.cli import main
from gristmill.stages.classifier.report import auc, measure
from gristmill.stages.classifier.train import TrainingOptions, _divide, _select, train
from gristmill.stages.errors import ConfigError

SMALL = TrainingOptions(dim=4, bucket=1000, epochs=10, held_out=0.3, min_count=1, learning_rate=0.5)


def documents(kind: str, n: int) -> list[str]:
    rng = random.Random(kind)
    words = {"good": ["mill", "grain", "flour", "面粉", "研磨"], "bad": ["casino", "win", "click", "优惠", "点击"]}[
        kind
    ]
    shared = ["the", "a", "and", "of", "to", "it"]
    return [" ".join(rng.choices(words, k=3) + rng.choices(shared, k=9)) + f" {kind[0]}{i}" for i in range(n)]


def test_a_trained_model_tells_the_labels_apart_and_serves_the_stage(tmp_path: Path) -> None:
    trained = train({"positive": documents("good", 200), "negative": documents("bad", 230)}, tmp_path / "q.bin", SMALL)
    (report,) = trained.reports
    assert report.label == "positive"
    assert report.auc > 0.95
    assert report.n_positive + trained.n_trained["positive"] == 200
    assert report.n_negative + trained.n_trained["negative"] == 200
    again = train(
        {"positive": documents("good", 200)[::-1], "negative": documents("bad", 230)[::-1]}, tmp_path / "r.bin", SMALL
    )
    assert again.model_path.read_bytes() == trained.model_path.read_bytes()
    rows = stages.create("classifier", model_path=trained.model_path).transform(
        batch(["flour of the mill and the grain 面粉", "click to win the casino 点击"])
    )
    assert rows.column("reason").to_pylist() == [None, "low_classifier_score"]
    paths = trained.write_report()
    assert [path.name for path in paths] == ["q.bin.report.json", "q.bin.report.md", "q.bin.calibration.svg"]
    assert json.loads(paths[0].read_text())["auc"] == report.auc
    assert "| 0.50 |" in paths[1].read_text()
    ElementTree.parse(paths[2])


def test_three_labels_and_a_quantised_model(tmp_path: Path) -> None:
    texts = {"good": documents("good", 80), "bad": documents("bad", 80), "none": [f"{i} {i * i}" for i in range(80)]}
    options = SMALL.model_copy(update={"quantise": True, "dim": 8})
    trained = train(texts, tmp_path / "q.ftz", options)
    assert [report.label for report in trained.reports] == ["good", "bad", "none"]
    assert all(report.auc > 0.8 for report in trained.reports)
    assert len(trained.write_report()) == 9


def test_copies_of_a_document_never_lie_on_both_sides_and_are_used_once() -> None:
    texts = [f"text {i % 50}" for i in range(500)]
    chosen = _select(texts, SMALL)
    assert sorted(text for _, text in chosen) == sorted(set(texts))
    trained, held = _divide({"x": chosen}, SMALL)
    assert {text for _, text in trained["x"]} | {text for _, text in held["x"]} == set(texts)
    assert not {text for _, text in trained["x"]} & {text for _, text in held["x"]}


def test_the_chosen_documents_do_not_depend_on_the_order() -> None:
    texts = [f"text {i}" for i in range(900)]
    options = SMALL.model_copy(update={"max_documents": 20})
    chosen = _select(texts, options)
    assert len(chosen) == 20
    assert chosen == _select(texts[::-1], options)


def test_text_cannot_smuggle_in_a_label_or_a_line() -> None:
    rows = _select(["one\n__label__positive two", "", " \n ", "é" * 100], SMALL.model_copy(update={"max_bytes": 65}))
    assert sorted(text for _, text in rows) == sorted(["one  positive two", "é" * 32])


def test_wrong_training_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least two labels"):
        train({"a": ["x"]}, tmp_path / "m.bin")
    with pytest.raises(ConfigError, match="label 'a b'"):
        train({"a b": ["x"], "c": ["y"]}, tmp_path / "m.bin")
    with pytest.raises(ConfigError, match="both need at least one"):
        train({"a": ["x"], "b": ["y"]}, tmp_path / "m.bin")


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_auc_counts_ordered_pairs(pairs: list[tuple[int, bool]]) -> None:
    positives = [score for score, truth in pairs if truth]
    negatives = [score for score, truth in pairs if not truth]
    value = auc(np.array([score for score, _ in pairs]), np.array([truth for _, truth in pairs]))
    if not positives or not negatives:
        assert np.isnan(value)
        return
    wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    assert value == pytest.approx(wins / len(positives) / len(negatives))


def test_a_report_of_four_documents_is_right() -> None:
    report = measure("good", np.array([0.9, 0.8, 0.35, 0.05]), np.array([True, False, True, False]))
    half = next(row for row in report.thresholds if row.threshold == 0.5)
    assert (half.precision, half.recall, half.false_positive_rate, half.kept_share) == (0.5, 0.5, 0.5, 0.5)
    top = next(row for row in report.thresholds if row.threshold == 0.95)
    assert (top.precision, top.recall) == (None, 0.0)
    assert report.auc == 0.75
    assert report.brier == pytest.approx((0.01 + 0.64 + 0.4225 + 0.0025) / 4)
    assert [b.n_docs for b in report.calibration] == [1, 0, 0, 1, 0, 0, 0, 0, 1, 1]
    assert report.calibration_error == pytest.approx((0.05 + 0.65 + 0.8 + 0.1) / 4)


def test_the_command_trains_from_artifacts_and_shows_the_report(
    run_pipeline: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {}
    for kind in ("good", "bad"):
        rows = [{"id": f"{kind}{i}", "text": text} for i, text in enumerate(documents(kind, 150))]
        path = write_jsonl(tmp_path / kind / "a.jsonl", rows)
        made[kind] = run_pipeline({kind: {"stage": "ingest", "path": str(path)}}, tmp_path / "out")[kind].path
    model = tmp_path / "quality.bin"
    options = ["dim=4", "bucket=1000", "epochs=10", "held_out=0.3", "min_count=1", "learning_rate=0.5"]
    settings = [word for option in options for word in ("--set", option)]
    command = ["train-classifier", str(model), f"positive={made['good']}", f"negative={made['bad']}", *settings]
    assert _run(command) == 0
    printed = capsys.readouterr().out
    assert "AUC" in printed
    assert "| 0.50 |" in printed
    assert json.loads((tmp_path / "quality.bin.report.json").read_text())["auc"] > 0.9
    ElementTree.parse(tmp_path / "quality.bin.calibration.svg")
    art = run_pipeline(
        {
            "raw": {"stage": "ingest", "path": str(tmp_path / "good")},
            "classifier": {"model_path": str(model)},
        },
        tmp_path / "out",
    )["classifier"]
    assert art.n_docs > 140


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.bin", "positive"], "written LABEL=DIR"),
        (["m.bin", "positive=nowhere", "negative=nowhere"], "no committed artifact there"),
        (["m.bin", "positive=nowhere"], "at least two labels"),
        (["m.bin", "a=x", "b=y", "--set", "dmi=3"], "--set.dmi: unknown key. Did you mean 'dim'?"),
        (["m.bin", "a=x", "b=y", "--set", "dim"], "it is written KEY=VALUE"),
        (["m.bin", "a=x", "b=y", "--set", "dim=many"], "an integer is needed, got 'many'"),
        (["m.ftz", "a=x", "b=y"], "a quantised model ends in .ftz"),
        (["m.bin", "a/b=x", "b=y"], "letters, digits"),
    ],
)
def test_the_command_names_mistakes_and_exits_with_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run(["train-classifier", *arguments]) == 2
    assert message in capsys.readouterr().err


def _run(arguments: list[str]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["gristmill", *arguments])
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0
