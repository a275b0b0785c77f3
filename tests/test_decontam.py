"""Evaluation items are found in documents across spelling, and dropped, cut or reported."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import stages
from gristmill.decontam.evals import EvalSet, load_items
from gristmill.decontam.report import contamination_report, to_markdown
from gristmill.stages.errors import ConfigError

QUESTION = (
    "A baker's dozen costs £7.80 at the market in Ely; what does one single bun cost when the baker "
    "gives thirteen buns for the price of twelve?"
)
ANSWER = "Thirteen buns cost 7.80 pounds, so that one bun costs 0.60 pounds. #### 0.60"
CHINESE = "小明有三十五个苹果，他把其中的七分之二送给了邻居家的妹妹，请问他还剩下多少个苹果？"
PASSAGE = (
    "The lighthouse keeper of Skerry wrote down every ship that passed, its colours and the hour, for forty years."
)
FILLER = "Plain words about nothing in particular, only here to stand around what is looked for. " * 6

ROWS: list[dict[str, Any]] = [
    {"id": "bun", "question": QUESTION, "answer": ANSWER},
    {"id": "apple", "question": CHINESE, "answer": "二十五个"},
    {"id": "ship", "question": "What did he write down for so many years?", "passage": PASSAGE, "answer": "ships"},
    {"id": "short", "question": "Which metal melts in a warm hand?", "answer": "gallium"},
    {"id": "nine", "question": "Which of these nine short words is a colour?", "answer": "red"},
    {"id": "option", "question": "Pick the one that is true of all rivers in the north of the shire.",
     "choices": ["They bend", "They carry more silt in the third week of a wet spring than in all of the autumn"], "label": 0},
]  # fmt: skip


@pytest.fixture
def evals(tmp_path: Path) -> str:
    path = tmp_path / "mini.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS), encoding="utf-8")
    return str(path)


def batch(*texts: str) -> pa.RecordBatch:
    return pa.record_batch({"id": [f"d{i}" for i in range(len(texts))], "text": pa.array(texts, pa.large_string())})


def items(out: pa.RecordBatch) -> list[str | None]:
    return out.column("contam_item").to_pylist()


def test_copy_is_found_across_case_punctuation_width_and_lines(evals: str) -> None:
    stage = stages.create("decontaminate", evals=evals)
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" and c != "'" else c for c in QUESTION)
    variants = (
        FILLER + QUESTION + FILLER,
        QUESTION.upper(),
        QUESTION.replace("'", "’").replace(" ", "\n* "),
        wide,
        QUESTION.replace("baker", "bäker").replace("a", "a\u0301"),
        QUESTION.replace("e", "e\u200b"),
    )
    out = stage.transform(batch(*variants, FILLER))
    assert items(out) == ["bun"] * len(variants) + [None]
    assert out.column("reason").to_pylist() == ["contaminated_mini"] * len(variants) + [None]
    assert out.column("contam_tokens").to_pylist()[0] == 28
    assert out.column("reason_threshold").to_pylist()[0] == 13


def test_twelve_words_are_not_enough_and_thirteen_are(evals: str) -> None:
    words = QUESTION.split()
    stage = stages.create("decontaminate", evals=evals)
    out = stage.transform(batch(" ".join(words[:11]), " ".join(words[:12]), " ".join(words[4:15]) + " zzz"))
    assert out.column("contam_tokens").to_pylist() == [0, 13, 0]


def test_chinese_without_spaces_is_found(evals: str) -> None:
    stage = stages.create("decontaminate", evals=evals)
    spaced = " ".join(CHINESE)
    out = stage.transform(batch("前面的话。" * 9 + CHINESE + "后面的话", spaced, CHINESE[:18], CHINESE[5:30]))
    assert items(out) == ["apple", "apple", None, "apple"]


def test_short_question_matches_whole_only(evals: str) -> None:
    stage = stages.create("decontaminate", evals=evals)
    nine = "which of these nine short words is a colour"
    out = stage.transform(batch(f"x {nine} y", nine[:-7], "Which metal melts in a warm hand?"))
    assert items(out) == ["nine", None, None]
    assert out.column("contam_ratio").to_pylist()[0] == 1.0


def test_too_short_questions_are_reported(evals: str) -> None:
    report = stages.create("decontaminate", evals=evals).index().report["sets"]["mini"]
    assert report["items"] == 6
    assert report["too_short_ids"] == ["short"]


def test_passage_alone_never_flags_unless_asked(evals: str) -> None:
    out = stages.create("decontaminate", evals=evals).transform(batch(FILLER + PASSAGE))
    assert items(out) == [None] and out.column("contam_passages_n").to_pylist() == [1]
    assert out.column("reason").null_count == 1
    asked = stages.create("decontaminate", evals=evals, fields=("question", "passage")).transform(batch(PASSAGE))
    assert items(asked) == ["ship"] and asked.column("contam_field").to_pylist() == ["passage"]


def test_answers_and_wrong_options_count(evals: str) -> None:
    stage = stages.create("decontaminate", evals=evals)
    out = stage.transform(batch(ANSWER, ROWS[5]["choices"][1]))
    assert list(zip(items(out), out.column("contam_field").to_pylist(), strict=True)) == [
        ("bun", "answer"),
        ("option", "choice"),
    ]
    only = stages.create("decontaminate", evals=evals, fields=("question",)).transform(batch(ANSWER))
    assert only.column("reason").null_count == 1


def test_common_phrases_are_not_indexed(tmp_path: Path) -> None:
    stem = "the following paragraph describes three objects that stand in a fixed order on one long shelf"
    path = tmp_path / "logic.jsonl"
    path.write_text("".join(json.dumps({"question": f"{stem} {i} {'xyz' * (i + 1)}"}) + "\n" for i in range(12)))
    document = batch(stem)
    assert items(stages.create("decontaminate", evals=str(path)).transform(document)) == [None]
    assert items(stages.create("decontaminate", evals=str(path), max_items=12).transform(document)) != [None]
    ignoring = stages.create("decontaminate", evals=str(path), max_items=12, ignore=(stem,))
    assert items(ignoring.transform(document)) == [None]


def test_rows_of_numbers_are_not_indexed(tmp_path: Path) -> None:
    path = tmp_path / "matrix.jsonl"
    table = "1 0 0 0 1 0 0 0 1 0 0 0 1 0 0 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14"
    path.write_text(
        json.dumps({"question": f"Which of these four matrices has the rank three in the end? {table}"}) + "\n"
    )
    stage = stages.create("decontaminate", evals=str(path))
    out = stage.transform(
        batch(table, "哈" * 40, f"the rank three in the end? {table}", "of these four matrices has " + table)
    )
    assert items(out) == [None, None, "0", None]


def test_allow_list_and_thresholds_of_a_set(evals: str) -> None:
    def reasons(**options: Any) -> list[str | None]:
        stage = stages.create("decontaminate", evals=[{"path": evals, **options}])
        found: list[str | None] = stage.transform(batch(QUESTION)).column("reason").to_pylist()
        return found

    assert reasons(allow=("bun",)) == [None]
    assert reasons(min_ratio=0.9) == [None]
    assert reasons(min_ratio=0.5, name="maths") == ["contaminated_maths"]
    assert reasons(min_tokens=29) == [None]


def test_cut_removes_match_and_window_and_balances(evals: str) -> None:
    stage = stages.create("decontaminate", evals=evals, action="cut", window=30, min_piece=40)
    before, after = "前" * 60 + FILLER, FILLER + "é" * 50
    source = batch(before + QUESTION + after, FILLER, QUESTION)
    out = stage.transform(source)
    text = out.column("text").to_pylist()
    assert text == [before[:-30] + "\n" + after[29:], FILLER, QUESTION]
    assert out.column("reason").to_pylist() == [None, None, "contaminated_mini"]
    sizes = [len(a.encode()) - len(b.encode()) for a, b in zip(source.column("text").to_pylist(), text, strict=True)]
    assert out.column("contam_removed_bytes").to_pylist() == sizes
    many = stages.create("decontaminate", evals=evals, action="cut", window=0, min_piece=1, max_cuts=2)
    assert many.transform(batch((FILLER + QUESTION) * 3)).column("reason").to_pylist() == ["contaminated_mini"]


def test_report_names_sets_items_and_text(evals: str) -> None:
    stage = stages.create("decontaminate", evals=evals)
    out = stage.transform(batch(QUESTION, QUESTION + CHINESE, FILLER))
    report = contamination_report([out], stage.index())["mini"]
    assert (report.n_items, report.n_documents, sorted(report.items)) == (6, 2, ["apple", "bun"])
    assert report.items["bun"].documents == ["d0", "d1"] and report.items["bun"].sample.startswith("A baker")
    assert "| mini | 6 | 2 | 33.33% | 2 | 1 |" in to_markdown({"mini": report})


def test_result_is_independent_of_batches_and_survives_pickling(evals: str) -> None:
    texts = [
        FILLER,
        QUESTION,
        CHINESE + FILLER,
        "",
        PASSAGE,
        ANSWER + QUESTION,
        "\x00",
        "Which of these nine short words is a colour?",
    ]
    stage = pickle.loads(pickle.dumps(stages.create("decontaminate", evals=evals, action="cut")))
    whole = stage.transform(batch(*texts))
    pieces = [stage.transform(batch(*texts).slice(i, 3)) for i in range(0, len(texts), 3)]
    assert pa.Table.from_batches(pieces).to_pylist() == pa.Table.from_batches([whole]).to_pylist()
    declared = {field.name: field.type for field in stage.writes()}
    assert {name: whole.schema.field(name).type for name in declared} == declared


def test_missing_file_is_named_with_the_nearest(evals: str) -> None:
    with pytest.raises(ConfigError, match=r"minni\.jsonl.*Did you mean 'mini\.jsonl'"):
        stages.create("decontaminate", evals=evals.replace("mini", "minni"))
    with pytest.raises(ConfigError, match="nearest folder that exists"):
        stages.create("decontaminate", evals="/nowhere/at/all.jsonl")


def test_unknown_fields_are_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps([{"frage": "Was ist das hier für ein Ding und woher kommt es denn nun eigentlich?"}]))
    with pytest.raises(ConfigError, match="frage"):
        stages.create("decontaminate", evals=str(path)).index()
    named = load_items(EvalSet(path=str(path), question="frage"))
    assert named[0].question.startswith("Was ist das")


def test_formats_give_the_same_items(tmp_path: Path) -> None:
    rows = [{"id": "1", "question": "q one", "answer": "a"}, {"id": "2", "question": "q two", "answer": "b"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "c.json").write_text(json.dumps({"canary": "x", "examples": rows}))
    (tmp_path / "d.csv").write_text("id,question,answer\n1,q one,a\n2,q two,b\n")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "e.parquet")
    for name in ("a.jsonl", "b.jsonl.gz", "c.json", "d.csv", "e.parquet"):
        found = load_items(EvalSet(path=str(tmp_path / name)))
        assert [(item.item_id, item.question, item.answer) for item in found] == [
            ("1", "q one", "a"),
            ("2", "q two", "b"),
        ]


def test_known_schemas_are_mapped(tmp_path: Path) -> None:
    rows = [
        {"query": "Question: why?", "choices": ["because", "no"], "gold": 1},
        {"passage": "P", "question": "什么？", "options": ["(A)甲", "(B)乙"], "label": "B", "answer": None},
        {"task_id": "HumanEval/0", "prompt": "def f():", "canonical_solution": "return 1", "entry_point": "f"},
        {"question": {"stem": "Which?", "choices": [{"text": "x", "label": "A"}, {"text": "y", "label": "B"}]}, "answerKey": "A"},
        {"eval_instance_index": 7, "question": "Same?", "answer": "0", "is_correct": False},
        {"eval_instance_index": 7, "question": "Same?", "answer": "4", "is_correct": True},
    ]  # fmt: skip
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_items(EvalSet(path=str(path)))
    got = [(i.item_id, i.question, i.answer, i.choices, i.passage) for i in found]
    assert got == [
        ("0", "why?", "no", ["because"], ""),
        ("1", "什么？", "乙", ["甲"], "P"),
        ("HumanEval/0", "def f():", "return 1", [], ""),
        ("3", "Which?", "x", ["y"], ""),
        ("7", "Same?", "4", ["0"], ""),
    ]


def test_a_set_without_one_searchable_item_stops_the_run_with_a_word_about_it(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl"
    path.write_text('{"question": "two words"}\n')
    with pytest.raises(ConfigError, match="short: none of its 1 items is long enough to be searched for"):
        stages.registry.get("decontaminate").build("", evals=str(path)).index()
