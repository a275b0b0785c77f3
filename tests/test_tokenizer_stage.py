"""The tokenizer stage: the same file for any layout, and a report that says true things."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill.stages.errors import ConfigError
from gristmill.stages.kernels.hashing import hash64
from gristmill.stages.kernels.views import text_view
from gristmill.tokenizer import count as counting
from gristmill.tokenizer.count import Counted, Words, count_batches, gather, make_plan, merge_batches
from gristmill.tokenizer.encode import Encoder
from gristmill.tokenizer.model import EOS, parse
from gristmill.tokenizer.report import as_html, as_text, make_report, show
from gristmill.tokenizer.stage import Tokenizer, thinned

SENTENCES = {
    "en": "The miller's daughter carried {k} sacks of flour to the market, and sold them for {n} pounds.",
    "zh": "磨坊主的女儿把第{k}袋面粉带到市场，卖了{n}元。中文分词很重要。",
    "de": "Die Tochter des Müllers trug {k} Säcke Mehl zum Markt und verkaufte sie für {n} Euro.",
}


def documents(n: int = 240) -> pa.RecordBatch:
    rows = []
    for k in range(n):
        lang = sorted(SENTENCES)[k % 3]
        text = " ".join(SENTENCES[lang].format(k=k * j % 17, n=k % 7) for j in range(1, 9))
        rows.append({"id": f"doc-{k}", "text": text + ("\n<|endoftext|>" if k % 50 == 0 else ""), "lang": lang})
    return pa.RecordBatch.from_pylist(
        rows, schema=pa.schema([("id", pa.string()), ("text", pa.large_string()), ("lang", pa.string())])
    )


def plan_for(batch: pa.RecordBatch, **options: Any) -> counting.Plan:
    total = sum(len(text.encode()) for text in batch.column("text").to_pylist())
    defaults: dict[str, Any] = {
        "pattern": "llama3", "seed": 7, "total_bytes": total, "sample_bytes": total, "held_out_bytes": total // 25,
        "max_piece": 128, "has_language": True, "compare": (),
    }  # fmt: skip
    return make_plan(**defaults | options)


def run_tasks(batch: pa.RecordBatch, plan: counting.Plan, parts: int, reverse: bool = False) -> Counted:
    """What Spark does, without Spark: tasks, then rows of one bucket together, in any order."""
    rows: list[pa.RecordBatch] = []
    for p in range(parts):
        part = batch.take(pa.array(np.arange(p, batch.num_rows, parts)))
        rows += count_batches(plan, iter([part.slice(0, 3), part.slice(3)]))
    table = pa.Table.from_batches(rows[::-1] if reverse else rows, schema=counting.SCHEMA)
    out = []
    for odd in (0, 1):
        mask = pa.array([(r["bucket"] + len(r["language"])) % 2 == odd for r in table.to_pylist()])
        out += merge_batches(iter(table.filter(mask).to_batches()))
    return gather(pa.Table.from_batches(out, schema=counting.SCHEMA))


def as_dict(words: Words) -> dict[bytes, int]:
    bounds = words.offsets_W1.tolist()
    data = words.data_B.tobytes()
    return {data[a:b]: n for a, b, n in zip(bounds[:-1], bounds[1:], words.counts_W.tolist(), strict=True)}


@pytest.mark.parametrize(("parts", "reverse"), [(7, False), (64, True)])
def test_file_and_report_are_the_same_for_any_number_of_splits(parts: int, reverse: bool) -> None:
    batch = documents()
    plan = plan_for(batch)
    stage = Tokenizer.build(vocab_size=500)
    one, many = run_tasks(batch, plan, 1), run_tasks(batch, plan, parts, reverse)
    assert as_dict(one.train) == as_dict(many.train)
    data, encoder = stage._train(one)
    again, _ = stage._train(many)
    assert data == again
    assert make_report(encoder, one, "llama3") == make_report(encoder, many, "llama3")


def test_held_out_documents_are_not_trained_on() -> None:
    batch = documents()
    counted = run_tasks(batch, plan_for(batch), 3)
    assert 0 < sum(sums[0] for sums in counted.held_out_totals.values()) < batch.num_rows / 5
    assert counted.train_totals[0] + sum(sums[0] for sums in counted.held_out_totals.values()) == batch.num_rows
    total = sum(len(text.encode()) for text in batch.column("text").to_pylist())
    assert counted.train_totals[1] + sum(sums[1] for sums in counted.held_out_totals.values()) == total
    for language, words in counted.held_out.items():
        assert words.n_bytes == counted.held_out_totals[language][1]


def test_a_smaller_sample_is_part_of_a_larger_one() -> None:
    batch = documents()
    total = plan_for(batch).train_below
    small = run_tasks(batch, plan_for(batch, sample_bytes=15_000), 4)
    large = run_tasks(batch, plan_for(batch, sample_bytes=60_000), 4)
    assert total == 1 << 64
    assert 0.5 < small.train_totals[1] / 15_000 < 1.5
    assert 0.7 < large.train_totals[1] / 60_000 < 1.3
    assert all(as_dict(large.train).get(word, 0) >= n for word, n in as_dict(small.train).items())


def test_repeated_ids_and_empty_documents_break_nothing() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"id": ["a", "a", "b"], "text": pa.array(["x y", "x y", ""], pa.large_string()), "lang": [None, "en", None]}
    )
    counted = run_tasks(batch, plan_for(batch, held_out_bytes=0), 2)
    assert as_dict(counted.train) == {b"x": 2, b" y": 2}
    assert counted.train_totals == [3, 6]


def test_thinning_keeps_what_is_frequent_and_the_expected_count() -> None:
    keys = [f"word-{k:06d}".encode() for k in range(20_000)]
    counts = np.array([1 if k % 4 else 5 for k in range(len(keys))], np.int64)
    offsets = np.arange(0, 11 * len(keys) + 1, 11, dtype=np.int64)
    words = Words(offsets, np.frombuffer(b"".join(keys), np.uint8), counts)
    assert thinned(words, 11 * len(keys)) is words
    few = as_dict(thinned(words, 100_000))
    assert sum(map(len, few)) < 115_000
    assert sum(1 for n in few.values() if n == 5) >= 5_000
    assert 0.9 < sum(few.values()) / counts.sum() < 1.1
    backwards = Words(offsets, np.frombuffer(b"".join(keys[::-1]), np.uint8), counts[::-1].copy())
    assert as_dict(thinned(backwards, 100_000)) == few


def test_report_counts_are_those_of_the_encoder() -> None:
    batch = documents()
    counted = run_tasks(batch, plan_for(batch), 5)
    _, encoder = Tokenizer.build(vocab_size=500)._train(counted)
    report = make_report(encoder, counted, "llama3")
    plan = plan_for(batch)
    hashes = hash64(*text_view(batch.column("id")), seed=plan.seed ^ counting._ID_SEED).tolist()
    rows = zip(batch.to_pylist(), hashes, strict=True)
    held = [(row["lang"], row["text"]) for row, h in rows if h < plan.held_out_below]
    for row in report["languages"]:
        texts = [text for lang, text in held if lang == row["language"]]
        tokens = sum(len(encoder.encode(text)) for text in texts)
        assert (row["documents"], row["tokens"]) == (len(texts), tokens)
        assert row["chars"] == sum(map(len, texts))
        assert row["bytes_per_token"] == round(sum(len(t.encode()) for t in texts) / tokens, 4)
    assert report["held_out"]["tokens"] == sum(row["tokens"] for row in report["languages"])
    assert {row["script"] for row in report["scripts"]} >= {"Latin", "Han", "Common"}
    assert sum(row["tokens"] for row in report["scripts"]) == report["held_out"]["tokens"]
    assert report["chinese"]["common_characters"] == 3755
    expected = sum(
        f"{c}".encode() in set(encoder.model.tokens) for c in {c for c in SENTENCES["zh"] if "\u4e00" <= c <= "\u9fff"}
    )
    assert report["chinese"]["single_tokens"] == expected
    used = {i for row in batch.to_pylist() for i in encoder.encode(row["text"]).tolist()}
    assert report["unused"]["tokens"] == len(encoder.model.tokens) - 2 - len(used)
    assert report["longest"][0]["n_bytes"] == max(len(t) for t in encoder.model.tokens[:-2])
    assert json.loads(json.dumps(report)) == report


def test_report_reads_well_and_escapes_what_the_corpus_says() -> None:
    batch = documents(60)
    counted = run_tasks(batch, plan_for(batch, held_out_bytes=5000), 1)
    _, encoder = Tokenizer.build(vocab_size=400)._train(counted)
    report = make_report(encoder, counted, "llama3")
    report["longest"][0]["text"] = "<script>"
    text, html = as_text(report), as_html(report)
    assert "tokens/word" in text
    assert "common characters are one token" in text
    assert "<script>" in text
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert show(b"\xff\n a") == "\\xff\\n a"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"vocab_size": 100}, "vocab_size"),
        ({"vocab_size": 257, "special_tokens": ("a", "b")}, "258"),
        ({"special_tokens": ("a", "a")}, "differ"),
        ({"pattern": "lama3"}, "llama3"),
        ({"vocabsize": 5}, "vocab_size"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Tokenizer.build(**options)


def write(folder: Path, files: int, n: int = 150) -> None:
    folder.mkdir(parents=True)
    rows = documents(n).to_pylist()
    for k in range(files):
        text = "".join(json.dumps(row) + "\n" for row in rows[k::files])
        (folder / f"{k:03d}.jsonl").write_text(text, "utf-8")


@pytest.fixture
def trained(run_pipeline: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    def go(files: int, **options: Any) -> Any:
        folder = tmp_path / f"in{files}"
        if not folder.exists():
            write(folder, files)
        stages = {"docs": {"stage": "ingest", "path": str(folder)}, "tokenizer": {"vocab_size": 450, **options}}
        return run_pipeline(stages, tmp_path / f"out{files}")["tokenizer"]

    yield go


def test_stage_on_spark_gives_the_same_file_for_any_layout_and_takes_it_back(
    trained: Callable[..., Any], tmp_path: Path
) -> None:
    first = trained(1, held_out_bytes=2000)
    data = first.read_bytes("tokenizer.json")
    second = trained(7, held_out_bytes=2000)
    assert second.read_bytes("tokenizer.json") == data
    assert second.manifest.report == first.manifest.report
    report = first.manifest.report
    assert report["vocab_size"] == parse(data, "").vocab_size <= 450
    assert Encoder.load(first.path_of("tokenizer.json")).eos_id == report["eos_id"]
    path = tmp_path / "given.json"
    path.write_bytes(data)
    given = trained(1, path=str(path), compare=[str(path)], held_out_bytes=10**6)
    assert given.read_bytes("tokenizer.json") == data
    again = given.manifest.report
    assert again["given"] == str(path)
    assert again["training"] is None
    assert again["held_out"]["documents"] == 150
    assert again["compare"][0]["tokens"] == again["held_out"]["tokens"]
    assert sum(row["tokens"] for row in again["scripts"]) == again["held_out"]["tokens"]
    assert EOS in again["special_tokens"]


WARM = """
import pyarrow as pa
from gristmill.stages.kernels import bpe, bpe_encode, pretoken_table
from gristmill.tokenizer.count import count_batches, gather, make_plan, merge_batches
from gristmill.tokenizer.stage import Tokenizer
from gristmill.stages.kernels.views import text_view

schema = pa.schema([("id", pa.string()), ("text", pa.large_string()), ("lang", pa.string())])
stage = Tokenizer(vocab_size=300)
stage.warm(schema)
kernels = (pretoken_table._count, pretoken_table._add_keys, pretoken_table._dump, bpe._train, bpe_encode._encode)
warmed = [len(kernel.signatures) for kernel in kernels]
assert all(warmed), warmed
text = pa.array(["one two three two one " * 50] * 20, pa.large_string())
batch = pa.RecordBatch.from_arrays([pa.array([str(i) for i in range(20)]), text, pa.array(["en"] * 20)], schema=schema)
plan = make_plan("llama3", 1, 20_000, 20_000, 1000, 128, True, ())
counted = gather(pa.Table.from_batches(merge_batches(count_batches(plan, iter([batch])))))
stage._train(counted)[1].encode_batch(*text_view(text))
assert [len(kernel.signatures) for kernel in kernels] == warmed
"""


def test_warming_compiles_all_that_training_and_encoding_run() -> None:
    """What it misses is compiled by every worker at the same time."""
    subprocess.run([sys.executable, "-c", WARM], check=True, timeout=300)
