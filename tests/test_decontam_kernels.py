"""The n-gram kernels against a plain Python tokeniser and matcher, on hostile text, and planted copies."""

from __future__ import annotations

import json
import time
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import stages
from gristmill.decontam.index import IndexConfig, load_index
from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels.ngrams import Tokens, build_table, fold_table, match, tokenise, window_keys
from gristmill.stages.kernels.views import text_view

MANY = settings(deadline=None, max_examples=100)
WORDS = ["aa", "Bb", "c", "дд", "é", "中", "文", "字", "ก", "１２", "ﬁ", "x'y"]
EVALS = Path(__file__).parents[2] / "shared" / "data" / "evals"


def tokens_of(*texts: str) -> Tokens:
    return tokenise(*text_view(pa.array(texts, pa.large_string())))


def oracle_tokens(text: str) -> list[str]:
    """Fold each character with the standard library and split, in plain Python."""
    unspaced = {"Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar", "Bopomofo", "Tibetan", "Yi"}
    tokens: list[str] = [""]
    for character in text:
        category = unicodedata.category(character)
        code = ord(character)
        if category == "Cf" or character in "'’ʼ＇ـ" or 0x300 <= code < 0x370 or 0xFE00 <= code < 0xFE10:
            continue
        folded = "".join(
            unicodedata.normalize("NFD", part)[0] if ord(part) < 0x530 or 0x1E00 <= ord(part) < 0x2000 else part
            for part in unicodedata.normalize("NFKC", character).lower()
        )
        folded = "".join(part for part in folded if unicodedata.category(part)[0] in "LMN")
        if not folded:
            tokens.append("")
        elif len(folded) == 1 and u.SCRIPT_NAMES[u.SCRIPT[ord(folded)]] in unspaced:
            tokens += [folded, ""]
        else:
            tokens[-1] += folded
    return [token for token in tokens if token]


def test_folding_examples() -> None:
    text = "Ｄｏｎ’t CAFÉ e\u0301t\u00adé 中文abc字 ﬁne ½ x\u200by カﾞ ภาษา naïve—Ünïcode №5 ①"
    assert tokens_of(text).words(0)[:4] == ["dont", "cafe", "ete", "中"]
    assert tokens_of("中文abc字").words(0) == ["中", "文", "abc", "字"]
    assert tokens_of("").words(0) == [] and tokens_of("-- \n").words(0) == []


@MANY
@given(st.text(alphabet=st.sampled_from("aZé'’-. 中字かก１ﬁя́ß\u200b\n_½Ω5"), max_size=40))
def test_tokens_equal_plain_python(text: str) -> None:
    assert tokens_of("x", text, "y").words(1) == oracle_tokens(text)


@MANY
@given(st.text(max_size=60))
def test_any_text_keeps_its_token_boundaries(text: str) -> None:
    tokens = tokens_of(text)
    assert tokens.spell_N1[-1] == len(tokens.code_C)
    assert tokens_of(text + " ", text).words(1) == tokens_of(text).words(0)


def oracle_runs(document: list[str], entry: list[str], n: int) -> int:
    """Return the longest common contiguous run of at least `n` tokens, 0 if there is none."""
    best = 0
    for i in range(len(document)):
        for j in range(len(entry)):
            k = 0
            while i + k < len(document) and j + k < len(entry) and document[i + k] == entry[j + k]:
                k += 1
            best = max(best, k)
    return best if best >= n else 0


@MANY
@given(
    st.lists(st.sampled_from(WORDS[:6]), max_size=40),
    st.lists(st.sampled_from(WORDS[:6]), max_size=12),
    st.integers(2, 5),
)
def test_match_finds_exactly_the_documents_that_share_a_run(document: list[str], entry: list[str], n: int) -> None:
    tokens = tokens_of(" ".join(entry))
    table = build_table(tokens, [window_keys(tokens, n, lone, lone) for lone in (0, 1)], ((n, 0, 0), (n, 1, 0)))
    offsets, data = text_view(pa.array(["zz", ", ".join(document), " ".join(entry)], pa.large_string()))
    rows = match(offsets, data, table)
    words, own = oracle_tokens(", ".join(document)), oracle_tokens(" ".join(entry))
    expected = oracle_runs(words, own, n)
    found = rows[rows[:, 0] == 1]
    assert (len(found) > 0) == (expected > 0)
    for _, _, position, size, start, end, first in found.tolist():
        assert own[position : position + size] == words[first : first + size]
        assert oracle_tokens(data[start:end].tobytes().decode()) == words[first : first + size]
    assert (len(rows[rows[:, 0] == 2]) > 0) == (len(own) >= n)


def test_windows_of_words_and_characters_do_not_mix() -> None:
    tokens = tokens_of("one two three 中文字 four", "中文字的数据 one")
    words, characters = window_keys(tokens, 4, 0, 0), window_keys(tokens, 4, 1, 1)
    assert list(zip(words.entry.tolist(), words.position.tolist(), strict=True)) == [(0, 0), (0, 1)]
    assert characters.entry.tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("unit", ["a ", "中", "a", " ", "’", "a b c d e f g h i j k l m n o ", "\u0301"])
def test_repetitive_text_takes_linear_time(unit: str) -> None:
    entry = unit * 3000
    tokens = tokens_of(entry, "one two three four five six seven")
    windows = ((5, 0, 0), (5, 1, 0))
    table = build_table(
        tokens, [_first(window_keys(tokens, n, lone, w)) for w, (n, lone, _) in enumerate(windows)], windows
    )

    def seconds(n: int) -> float:
        offsets, data = text_view(pa.array([unit * n], pa.large_string()))
        began = time.process_time()
        match(offsets, data, table)
        return time.process_time() - began

    seconds(1000)
    assert seconds(400_000) < 8 * 4 * min(seconds(50_000) for _ in range(3)) + 0.05


def _first(postings: object) -> object:
    from gristmill.decontam.index import _first_in_entry

    return _first_in_entry(postings)  # type: ignore[arg-type]


def test_fold_table_is_read_only_and_covers_all_code_points() -> None:
    table, parts = fold_table()
    assert table.shape == (0x110000,) and not table.flags.writeable and not parts.flags.writeable
    assert table[ord("A")] == ord("a") and table[ord("_")] == 0 and table[ord("'")] == -1


def test_planted_items_are_found_in_long_documents(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    vocabulary = np.array([f"w{i}" for i in range(5000)])
    han = [chr(0x4E00 + i) for i in range(3000)]
    rows = []
    for number in range(60):
        text = " ".join(rng.choice(vocabulary, 24)) if number % 2 else "".join(rng.choice(han, 40))
        rows.append({"id": str(number), "question": text})
    path = tmp_path / "planted.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents, expected = [], []
    for number, row in enumerate(rows):
        spaced, words = number % 2, row["question"].split() if number % 2 else list(row["question"])
        size = [13, 20, 24] if spaced else [20, 30, 40]
        piece = words[2 : 2 + size[number % 3]] if size[number % 3] < len(words) else words
        copy = ("\n- " if number % 4 == 1 else " ").join(piece).upper() if spaced else "，".join(piece)
        documents.append(" ".join(rng.choice(vocabulary, 4000)) + " " + copy + "".join(rng.choice(han, 500)))
        expected.append(row["id"])
    stage = stages.create("decontaminate", evals=str(path))
    out = stage.transform(pa.record_batch({"text": pa.array(documents, pa.large_string())}))
    assert out.column("contam_item").to_pylist() == expected
    clean = [" ".join(rng.choice(vocabulary, 4000)) + "".join(rng.choice(han, 4000)) for _ in range(20)]
    out = stage.transform(pa.record_batch({"text": pa.array(clean, pa.large_string())}))
    assert out.column("contam_set").null_count == 20


def test_real_evaluation_sets_are_read_whole_and_find_themselves() -> None:
    if not EVALS.exists():
        pytest.skip(f"no evaluation sets at {EVALS}")
    counts = {"gsm8k_test.jsonl": 1319, "human_eval.jsonl.gz": 164, "gaokao-physics.jsonl": 200, "logiqa-zh.jsonl": 651}
    stage = stages.create("decontaminate", evals=[str(EVALS / name) for name in counts])
    index = stage.index()
    assert isinstance(index.config, IndexConfig) and load_index(index.config) is index
    for name, most in counts.items():
        assert 0.9 * most <= index.report["sets"][name.split(".")[0]]["items"] <= most
    chosen = [item for item in index.items if len(tokens_of(item.question).hash_N) >= 20][::17]
    texts = [f"前文。Some text before.\n{item.question}\nand after" for item in chosen]
    out = stage.transform(pa.record_batch({"text": pa.array(texts, pa.large_string())}))
    wrong = [
        item.item_id for item, name in zip(chosen, out.column("contam_item").to_pylist(), strict=True) if name is None
    ]
    assert len(wrong) <= len(chosen) // 50, wrong
