"""Rules over stored signals: the same verdicts without the text, and what a change would keep."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gristmill.stages.errors import ConfigError
from gristmill.stages.heuristics import Heuristics, Rule, apply_rules, change_rules, histogram, what_if
from gristmill.stages.heuristics.languages import class_of, profiles, rule_language
from gristmill.stages.kernels.heuristics import stop_table

TEXTS = [
    "The cat sat on the mat and it was happy to be there. " * n + f"A {n} of the rest." for n in (1, 2, 3, 4, 5, 6)
] + ["中国人民的权利是平等的，国家在法律上尊重和保障人权。" * 3, "", "buy now " * 70]
LANGS = ["en"] * 6 + ["zh", "en", None]


def stored(**options):
    batch = pa.RecordBatch.from_pydict({"text": pa.array(TEXTS, pa.large_string()), "lang": LANGS})
    stage = Heuristics.build(**options)
    out = stage.transform(batch)
    return stage, pa.table(out.drop_columns(["text"]) if hasattr(out, "drop_columns") else out)


@pytest.mark.parametrize("preset", ["web", "gopher", "dolma", "chinese-web", "datatrove-0.10", "dclm"])
def test_rules_over_stored_signals_give_the_verdicts_of_the_stage(preset):
    stage, table = stored(preset=preset)
    again = apply_rules(table, stage.rules())
    for name in ("reason", "reason_value", "reason_threshold"):
        assert again.column(name).to_pylist() == table.column(name).to_pylist()


def test_a_changed_threshold_equals_a_run_with_it():
    stage, table = stored()
    change = {"too_few_words": {"en": 20}, "repeated_5_grams": None}
    _, expected = stored(thresholds=change)
    again = apply_rules(table, change_rules(stage.rules(), change))
    assert again.column("reason").to_pylist() == expected.column("reason").to_pylist()
    assert again.column("reason").to_pylist() != table.column("reason").to_pylist()


def test_what_if_counts_by_language():
    stage, table = stored()
    table = table.append_column("n_bytes", pa.array([len(text.encode()) for text in TEXTS]))
    off = {rule.reason: None for rule in stage.rules()}
    rows = {row["language"]: row for row in what_if(table, stage.rules(), off).to_pylist()}
    assert rows["en"]["docs"] == rows["en"]["kept_after"] == 7
    assert rows["zh"]["kept_after"] == rows["zh"]["docs"] == 1
    kept = sum(reason is None for reason in table.column("reason").to_pylist())
    assert sum(row["kept_before"] for row in rows.values()) == kept
    assert sum(row["bytes_after"] for row in rows.values()) == sum(len(text.encode()) for text in TEXTS)


def test_histogram_counts_every_document_once():
    _, table = stored()
    found = histogram(table, "n_words", bins=5)
    assert found.docs.sum() + found.n_null == len(TEXTS)
    assert histogram(table, "stop_words_distinct").n_null == 1
    assert list(found.edges) == sorted(found.edges)


def test_a_missing_signal_is_named_with_the_nearest_column():
    table = pa.table({"h_n_words": [1.0]})
    with pytest.raises(ConfigError, match="h_n_word.*Did you mean 'h_n_words'"):
        apply_rules(table, [Rule(reason="r", signal="n_word", op="<", threshold=1)])


def test_a_threshold_is_strict_and_nulls_pass():
    table = pa.table({"h_x": pa.array([1.0, 2.0, 3.0, None])})
    rule = Rule(reason="small", signal="x", op="<", threshold=2)
    assert apply_rules(table, [rule]).column("reason").to_pylist() == ["small", None, None, None]


def test_the_language_wins_over_its_class():
    rule = Rule(reason="r", signal="x", op="<", threshold=1, languages={"zh": 2, "unspaced": 3, "ko": None})
    assert [rule.threshold_for(name) for name in ("zh", "ja", "en")] == [2, 3, 1]
    assert np.isnan(rule.threshold_for("ko"))


@pytest.mark.parametrize(
    ("code", "language"),
    [("en", "en"), ("eng_Latn", "en"), ("zho_Hans", "zh"), ("yue", "zh"), ("ZH-tw", "zh"), ("jpn", "ja"), ("xx", "default"),
     ("azj_Cyrl", "default"), ("azj_Latn", "az"), ("srp_Cyrl", "sr"), ("srp_Latn", "sr"), ("", "default")],
)  # fmt: skip
def test_codes_of_any_style_find_their_rules(code, language):
    assert rule_language(code) == language


def test_every_language_has_enough_function_words_that_fit_the_tables():
    stop_table(profiles().stop_words)
    for name, words in zip(profiles().names[1:], profiles().stop_words[1:], strict=True):
        assert len(words) >= 10, name
    assert {name for name in profiles().names if class_of(name) == "unspaced"} == {"zh", "ja", "th", "lo", "km", "my"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"too_few_words": float("nan")}, r"thresholds\.too_few_words: a finite number"),
        ({"too_few_words": float("inf")}, "a finite number"),
        ({"too_few_words": True}, "a finite number"),
        ({"too_few_words": {"en": False}}, r"too_few_words\.en: a finite number"),
        ({"too_few_words": {"zn": 3}}, r"too_few_words\.zn: no rules for this language.*Did you mean"),
        ({"too_few_words": {"unspacd": 3}}, "Did you mean 'unspaced'"),
    ],
)
def test_thresholds_that_are_no_numbers_or_languages_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        Heuristics.build(thresholds=change)
    stage, table = stored()
    with pytest.raises(ConfigError, match=message):
        what_if(table, stage.rules(), change)


def test_a_histogram_of_text_is_refused():
    _, table = stored()
    with pytest.raises(ConfigError, match="needs numbers"):
        histogram(table, "rule_language")


@pytest.mark.parametrize("setting", ["too_few_words", "=3", "too_few_words=", "too_few_words=[1"])
def test_a_setting_without_rule_or_number_is_refused(setting):
    from gristmill.jobs.analysis import _threshold

    with pytest.raises(ConfigError, match="--set"):
        _threshold(setting)
    assert _threshold("too_few_words=null") == ("too_few_words", None)
