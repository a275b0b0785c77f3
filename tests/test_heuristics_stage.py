"""The heuristics stage: columns, language routing, overrides, edits, batch independence."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.stages.errors import ConfigError
from gristmill.stages.heuristics import PRESET_NAMES, Heuristics, preset, presets
from gristmill.stages.heuristics.signals import SIGNALS, markdown
from gristmill.stages.kernels import heuristics_layout as layout

GOOD = (
    "The mill stands at the end of the village, where the river turns to the south. "
    "Every autumn the farmers bring their grain to it and wait for the flour with patience. "
    "It was built in 1840, and it has worked without a pause that anyone can remember.\n\n"
    "Inside, a wheel of oak drives two stones that lie on each other. The upper one turns, the lower one rests. "
    "Between them the grain is broken, then ground, then sifted through cloth by hand. "
    "What the cloth holds back is weighed too, because the miller has to account for every pound.\n\n"
    "Children like to watch the water, but their parents have told them to be careful near the sluice. "
    "On most days nothing happens there, and the herons fish in peace."
)


def batch(texts, lang=None):
    columns = {"id": [str(i) for i in range(len(texts))], "text": pa.array(texts, pa.large_string())}
    if lang is not None:
        columns["lang"] = pa.array(lang, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def test_signal_descriptions_and_kernel_rows_are_the_same_list():
    assert [signal.name for signal in SIGNALS] == list(layout.SIGNALS)


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_every_preset_reads_known_signals_and_returns_the_declared_columns(name):
    stage = Heuristics.build(preset=name)
    assert {rule.signal for rule in stage.rules()} <= set(layout.SIGNALS)
    reasons = [rule.reason for rule in stage.rules() if rule.reason != "empty"]
    assert len(set(reasons)) == len(reasons)
    source = batch([GOOD, "", "hello"], ["en", None, "xx"])
    out = pickle.loads(pickle.dumps(stage)).transform(source)
    declared = [field for field in stage.writes() if field.name != "text"]
    assert out.schema.names == [*source.schema.names, *(f.name for f in declared), "reason", "reason_value",
                                "reason_threshold"]  # fmt: skip
    for field in declared:
        assert out.schema.field(field.name).type == field.type
    assert out.column("reason")[1].as_py() is not None
    assert out.num_rows == 3


def test_web_keeps_good_prose_and_names_why_it_rejects():
    out = Heuristics.build().transform(batch([GOOD, "buy now " * 60, "short text"], ["en"] * 3))
    assert out.column("reason").to_pylist() == [None, "few_function_words", "too_few_words"]
    assert out.column("reason_value").to_pylist() == [None, 0.0, 2.0]
    assert out.column("reason_threshold").to_pylist() == [None, 2.0, 50.0]


def test_rules_follow_the_language_column_and_say_where_the_language_came_from():
    chinese = "中华人民共和国公民在法律面前一律平等。国家尊重和保障人权。" * 3
    out = Heuristics.build().transform(
        batch([chinese, chinese, GOOD, GOOD, GOOD], ["zh", None, "eng_Latn", None, "xx"])
    )
    assert out.column("h_rule_language").to_pylist() == ["zh", "zh", "en", "default", "default"]
    assert out.column("h_rule_language_from").to_pylist() == ["column", "script", "column", "script", "default"]
    assert out.column("h_stop_words_distinct").to_pylist()[3:] == [None, None]
    without = Heuristics.build().transform(batch([chinese]))
    assert without.column("h_rule_language").to_pylist() == ["zh"]


def test_thresholds_can_be_changed_switched_off_and_set_by_language():
    text = batch(["The cat sat on the mat and it was happy to be there."], ["en"])
    assert Heuristics.build().transform(text).column("reason")[0].as_py() == "too_few_words"
    off = Heuristics.build(thresholds={"too_few_words": None}).transform(text)
    assert off.column("reason")[0].as_py() != "too_few_words"
    other = Heuristics.build(thresholds={"too_few_words": {"en": 5}}).transform(text)
    assert other.column("reason")[0].as_py() != "too_few_words"
    still = Heuristics.build(thresholds={"too_few_words": {"de": 5}}).transform(text)
    assert still.column("reason")[0].as_py() == "too_few_words"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "finweb"}, "fineweb"),
        ({"thresholds": {"too_few_wrods": 3}}, "too_few_words"),
        ({"filters": ("qualty",)}, "quality"),
        ({"language": "klingon"}, "no rules"),
        ({"presett": "web"}, "preset"),
    ],
)
def test_a_misspelt_option_names_the_nearest_right_one(options, message):
    with pytest.raises(ConfigError, match=message):
        Heuristics.build(**options)


def test_line_filters_edit_kept_text_and_account_for_every_byte():
    text = "\n".join(
        [
            *(f"This is sentence number {i} of the page and it has quite a few different words. " for i in range(12)),
            "Menu",
            "We use cookies to improve this site.",
            "Please enable JavaScript to continue reading.",
            "The end is here, with a note.[12]",
            GOOD,
        ]
    )
    stage = Heuristics.build(preset="c4")
    out = stage.transform(batch([text, "nothing"]))
    assert out.column("reason").to_pylist() == [None, "c4_too_few_sentences"]
    edited = out.column("text")[0].as_py()
    assert "Menu" not in edited and "cookies" not in edited and "JavaScript" not in edited and "[12]" not in edited
    assert out.column("text")[1].as_py() == "nothing"
    removed = {reason: out.column(column)[0].as_py() for reason, column in stage.edits().items()}
    assert sum(removed.values()) == len(text.encode()) - len(edited.encode())
    assert removed["c4_lines:policy"] == len("We use cookies to improve this site.")
    assert removed["c4_lines:javascript"] == len("Please enable JavaScript to continue reading.")
    assert removed["c4_lines:citation"] == len("[12]")
    assert removed["c4_lines:no_terminal_mark"] == len("Menu")


def test_only_presets_with_a_line_filter_edit():
    assert {name for name in PRESET_NAMES if Heuristics.build(preset=name).edits()} == {
        "c4", "c4-datatrove", "fineweb", "datatrove-0.10", "refinedweb", "dclm",
    }  # fmt: skip
    assert Heuristics.build(preset="fineweb", filters=("gopher_quality",)).edits() == {}


def test_preset_groups_are_in_source_order():
    assert preset("fineweb").groups() == ("empty", "gopher_repetition", "gopher_quality", "c4", "fineweb_quality")


def test_the_documented_tables_are_the_code():
    docs = Path(__file__).parents[1] / "docs"
    assert (docs / "signals.md").read_text("utf-8") == markdown()
    assert (docs / "presets.md").read_text("utf-8") == presets.markdown()
