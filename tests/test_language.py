"""The language stage: verdicts, windows, scripts, paragraphs, and independence from the batch."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fasttext_files import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import stages
from gristmill.stages.base import REASON_FIELDS
from gristmill.stages.errors import ConfigError
from gristmill.stages.kernels import language as kernel
from gristmill.stages.kernels.unicode import SCRIPT_NAMES
from gristmill.stages.kernels.views import text_view
from gristmill.stages.language.scripts import SCRIPT_CODES

SAMPLES = {
    "en": "All human beings are born free and equal in dignity and rights.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。",
    "ja": "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "ar": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق.",
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "el": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
}
SCRIPTS = {
    "en": "Latn", "de": "Latn", "fr": "Latn", "ru": "Cyrl", "zh": "Hani", "ja": "Jpan", "ko": "Hang", "ar": "Arab",
    "hi": "Deva", "th": "Thai", "el": "Grek",
}  # fmt: skip
HOSTILE = [
    "", " ", "\r\n\r\n", "\u200b\u200d\ufeff", "1234567890", "\0\0\0", "🙂" * 50, "a", "中", "e\u0301" * 30, "﷽",
    "\u202eabc\u202c", "½ ⅷ ①", "x" * 5000, "\U0010ffff\ue000", "__label__en", "</s>",
]  # fmt: skip


def batch(texts: list[str], **columns: Any) -> pa.RecordBatch:
    arrays = {"id": pa.array([f"d{i}" for i in range(len(texts))]), "text": pa.array(texts, pa.large_string())}
    return pa.RecordBatch.from_pydict({**arrays, **columns})


def run(texts: list[str], **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = stages.create("language", **options).transform(batch(texts)).to_pylist()
    return rows


def test_languages_and_scripts_are_named() -> None:
    rows = run(list(SAMPLES.values()))
    assert [row["lang"] for row in rows] == list(SAMPLES)
    assert [row["lang_script"] for row in rows] == list(SCRIPTS.values())
    assert all(row["lang_score"] > 0.8 and row["lang_script_share"] == 1 for row in rows)
    assert all(row["reason"] is None and row["reason_value"] is None for row in rows)


def test_other_columns_pass_and_declared_ones_are_added_with_their_types() -> None:
    for options in ({}, {"top_k": 3, "paragraphs": True}):
        stage = stages.create("language", **options)
        out = stage.transform(batch(["hello world"], lang=pa.array(["hint"]), mine=pa.array([7])))
        added = [field for field in stage.writes() if field.name != "lang"] + list(REASON_FIELDS)
        assert out.schema.names == ["id", "text", "lang", "mine", *(field.name for field in added)]
        assert all(out.schema.field(field.name).type == field.type for field in stage.writes())
        assert out.column("mine").to_pylist() == [7]
        assert stage.transform(batch([])).num_rows == 0


def test_only_wanted_languages_are_kept() -> None:
    rows = run(list(SAMPLES.values()), keep=["de", "zh"])
    assert [row["lang"] for row in rows if row["reason"] is None] == ["de", "zh"]
    assert {row["reason"] for row in rows} == {None, "language_not_wanted"}
    assert all(row["reason_threshold"] is None for row in rows)
    assert all(row["reason_value"] == row["lang_score"] for row in rows if row["reason"])


def test_thresholds_can_be_set_by_language() -> None:
    rows = run([SAMPLES["en"], SAMPLES["de"]], min_score=0.2, min_scores={"de": 1.0})
    assert [row["reason"] for row in rows] == [None, "low_language_score"]
    assert rows[1]["reason_threshold"] == 1.0
    assert rows[1]["reason_value"] == rows[1]["lang_score"]


def test_text_without_letters_has_no_language() -> None:
    rows = run(["1234 5678", "", "!?!?", "🙂🙂", "①②"])
    assert [row["reason"] for row in rows] == ["no_letters"] * 5
    assert {(row["lang"], row["lang_score"], row["lang_script"]) for row in rows} == {("und", 0.0, "Zyyy")}
    assert {(row["reason_value"], row["reason_threshold"]) for row in rows} == {(0.0, 1.0)}


def test_hostile_text_has_a_defined_verdict() -> None:
    rows = run(HOSTILE, top_k=5, paragraphs=True, min_score=0)
    assert [row["reason"] for row in rows] == ["no_letters" if row["lang_n_letters"] == 0 else None for row in rows]
    assert [row["lang_n_letters"] for row in rows] == [
        0, 0, 0, 0, 0, 0, 0, 1, 1, 30, 0, 3, 0, 5000, 0, 7, 1,
    ]  # fmt: skip
    assert all(0 <= row["lang_score"] <= 1 for row in rows)


def test_line_ends_do_not_change_the_answer() -> None:
    text = "\n".join([SAMPLES["en"]] * 3)
    rows = run([text, text.replace("\n", "\r\n"), text.replace("\n", " ")])
    assert len({(row["lang"], row["lang_score"]) for row in rows}) == 1


def test_the_best_languages_are_listed_in_falling_order() -> None:
    row = run([SAMPLES["en"] * 3 + " " + SAMPLES["ru"]], top_k=4)[0]
    assert {"en", "ru"} <= set(row["lang_top"])
    assert row["lang_top"][0] == row["lang"]
    assert row["lang_top_score"] == sorted(row["lang_top_score"], reverse=True)
    assert len(row["lang_top"]) == 4


def test_paragraphs_show_a_mixture_of_languages() -> None:
    english, german = SAMPLES["en"] * 3, SAMPLES["de"] * 3
    pure, mixed, short = run(
        ["\n".join([english] * 4), "\n".join([english] * 3 + [german]), "hi\nho"], paragraphs=True, max_mixed_share=0.2
    )
    assert (pure["lang_paragraphs"], pure["lang_mixed_share"], pure["reason"]) == (4, 0.0, None)
    share = len(german.encode()) / (len(german.encode()) + 3 * len(english))
    assert mixed["lang_mixed_share"] == pytest.approx(share)
    assert (mixed["reason"], mixed["reason_threshold"]) == ("mixed_language", 0.2)
    assert (short["lang_paragraphs"], short["lang_mixed_share"]) == (0, 0.0)


def test_chinese_is_not_called_japanese_for_want_of_better() -> None:
    text = "大家有为维护其利益而组织告参加工会的权利。"
    plain, checked = (run([text], kana_check=check, top_k=3)[0] for check in (False, True))
    assert plain["lang"] == "ja"
    assert checked["lang"] == "zh"
    given_not_japanese = plain["lang_top_score"][1] / (1 - plain["lang_top_score"][0])
    assert checked["lang_score"] == pytest.approx(given_not_japanese, rel=1e-5)
    assert "ja" not in checked["lang_top"]
    assert len(checked["lang_top"]) == 3
    short, kana = run(["東京都庁舎", "東京都庁舎の展望室は無料で入場できる。"], min_score=0)
    assert (short["lang_n_letters"], kana["lang"]) == (5, "ja")


def test_labels_with_a_script_are_kept_by_language_or_whole(tmp_path: Path) -> None:
    path = tiny("hs", labels=["eng_Latn", "srp_Cyrl", "srp_Latn", "zho_Hans"]).write(tmp_path / "glot.bin")
    texts = ["hello the world", "привет x", "中文 a a a", "der der"]
    labels = [row["lang"] for row in run(texts, model_path=path, min_score=0)]
    by_language = run(texts, model_path=path, min_score=0, keep=["srp"])
    assert [row["reason"] is None for row in by_language] == [label.startswith("srp") for label in labels]
    whole = run(texts, model_path=path, min_score=0, keep=[labels[0]], min_scores={labels[0].partition("_")[0]: 0.0})
    assert [row["reason"] is None for row in whole] == [label == labels[0] for label in labels]


def test_the_model_enters_the_fingerprint(tmp_path: Path) -> None:
    assert stages.create("language").files()[0].name == "lid.176.ftz"
    path = tiny("hs").write(tmp_path / "mine.bin")
    assert stages.create("language", model_path=path).files() == (path,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ["eng"]}, "'eng' is no language of lid.176.ftz. Did you mean 'en'"),
        ({"min_scores": {"xx": 0.5}}, "'xx' is no language"),
        ({"min_scores": {"en": 1.5}}, r"outside \[0, 1\]"),
        ({"min_score": 2}, "min_score"),
        ({"model_path": "/no/such.bin"}, "/no/such.bin: cannot be read"),
        ({"kep": []}, "Did you mean 'keep'"),
        ({"max_bytes": 100}, "max_bytes must be 0 or at least 256 x n_windows"),
        ({"max_mixed_share": 0.5}, "needs paragraphs"),
    ],
)
def test_wrong_configurations_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stages.create("language", **options)


def test_a_stage_survives_pickling() -> None:
    stage = pickle.loads(pickle.dumps(stages.create("language", keep=["en"])))
    assert stage.transform(batch([SAMPLES["en"]])).column("lang").to_pylist() == ["en"]


mixed_text = st.lists(st.sampled_from([*SAMPLES.values(), *HOSTILE, "\n", " "]), max_size=6).map("".join)


@settings(deadline=None, max_examples=25)
@given(st.lists(mixed_text, min_size=1, max_size=8), st.integers(1, 8))
def test_verdicts_do_not_depend_on_the_batch(texts: list[str], size: int) -> None:
    stage = stages.create("language", max_bytes=512, n_windows=2, top_k=2, paragraphs=True, min_paragraph_bytes=20)
    whole = batch(texts)
    parts = [stage.transform(whole.slice(i, size)) for i in range(0, len(texts), size)]
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([stage.transform(whole)]))


@settings(deadline=None, max_examples=60)
@given(st.lists(mixed_text, min_size=1, max_size=5), st.integers(2, 5), st.integers(256, 400))
def test_windows_are_bounded_ordered_and_never_cut_a_character(texts: list[str], n: int, width: int) -> None:
    offsets, data = text_view(pa.array(["skip", *texts], pa.large_string())[1:])
    span_of, starts, ends = kernel.windows(offsets, data, n * width, n)
    for d, text in enumerate(texts):
        spans = list(range(span_of[d], span_of[d + 1]))
        pieces = [bytes(data[starts[s] : ends[s]]).decode() for s in spans]
        raw = text.encode()
        if len(raw) <= n * width:
            assert pieces == [text]
            continue
        assert len(spans) == n
        assert starts[spans[0]] == offsets[d]
        assert ends[spans[-1]] == offsets[d + 1]
        assert all(ends[s] - starts[s] <= width for s in spans)
        assert all(ends[s] - starts[s] >= width - 2 * kernel.SNAP for s in spans)
        assert all(ends[s] <= starts[s + 1] for s in spans[:-1])


def test_windows_start_and_end_between_words() -> None:
    words = [f"word{i}" for i in range(1000)]
    offsets, data = text_view(pa.array([" ".join(words)], pa.large_string()))
    _, starts, ends = kernel.windows(offsets, data, 1024, 4)
    for start, end in zip(starts, ends, strict=True):
        assert set(bytes(data[start:end]).decode().split()) <= set(words)


def test_a_long_document_costs_its_windows_only() -> None:
    text = SAMPLES["en"] * 200_000
    offsets, data = text_view(pa.array([text], pa.large_string()))
    _, starts, ends = kernel.windows(offsets, data, 8192, 8)
    assert (ends - starts).sum() <= 8192
    row = run([text + SAMPLES["ru"]])[0]
    assert (row["lang"], row["reason"]) == ("en", None)
    assert row["lang_n_letters"] < 8192


def oracle_script(text: str) -> tuple[str, int, int]:
    import unicodedata

    counts: dict[str, int] = {}
    for character in text:
        if not unicodedata.category(character).startswith("L"):
            continue
        name = unicodedata.name(character, "")
        for script, code in (("HIRAGANA", "kana"), ("KATAKANA", "kana"), ("CJK", "Hani"), ("LATIN", "Latn"), ("THAI", "Thai"),
                             ("CYRILLIC", "Cyrl"), ("HANGUL", "Hang"), ("ARABIC", "Arab"), ("DEVANAGARI", "Deva")):  # fmt: skip
            if name.startswith(script):
                counts[code] = counts.get(code, 0) + 1
    kana = counts.get("kana", 0)
    if kana and kana * 20 >= kana + counts.get("Hani", 0):
        counts["Jpan"] = counts.pop("kana") + counts.pop("Hani", 0)
    best = max(counts, key=lambda code: counts[code], default="Zyyy")
    return best, counts.get(best, 0), sum(counts.values())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.sampled_from("abcÉжяなカ中文字한국กขعربहिन्दी 1,\n🙂"), max_size=40), min_size=1, max_size=5))
def test_scripts_equal_the_oracle(texts: list[str]) -> None:
    offsets, data = text_view(pa.array(texts, pa.large_string()))
    spans = (np.arange(len(texts) + 1), offsets[:-1], offsets[1:])
    script, n_script, n_letters = kernel.script_profile(spans, data)
    for i, text in enumerate(texts):
        best, most, total = oracle_script(text)
        assert (n_script[i], n_letters[i]) == (most, total)
        if most > total - most:
            assert SCRIPT_CODES[script[i]] == best


def test_every_script_of_the_tables_has_a_code() -> None:
    named = SCRIPT_CODES[3 : len(SCRIPT_NAMES)]
    assert "Zyyy" not in named
    assert len(set(named)) == len(named)
    assert all(len(code) == 4 for code in SCRIPT_CODES)


def test_paragraph_spans_are_the_long_lines() -> None:
    text = "short\nlonger line here\n\nanother long line"
    offsets, data = text_view(pa.array(["x", text], pa.large_string()))
    document, starts, ends = kernel.paragraphs((np.arange(3), offsets[:-1], offsets[1:]), data, 10)
    assert document.tolist() == [1, 1]
    assert [bytes(data[a:b]).decode() for a, b in zip(starts, ends, strict=True)] == [
        "longer line here", "another long line",
    ]  # fmt: skip
