"""The signal kernel equals a plain Python account of the same definitions."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.stages.heuristics import Heuristics
from gristmill.stages.kernels import heuristics as kernel
from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels.bits import text_hash

BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
PIECES = st.sampled_from(
    ["the", "a", "mill", "to", "…", "...", ".", "\n", "\n\n", "\r\n", "\r", " ", "\t", "- ", "• ", "中文", "#", "😀", "é",
     "e\u0301", "{", "A", "READ", "12", "\u2028", "שלום", "\u00a0", "?", "x" * 31, "\x00", "”"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=40).map("".join)


def measure(texts, preset="gopher", **options):
    batch = pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.large_string())})
    out = Heuristics.build(preset=preset, **options).transform(batch)
    return [{key[2:]: value for key, value in row.items() if key.startswith("h_")} for row in out.to_pylist()]


def share(a, b):
    return a / b if b else 0.0


def categories(text):
    return [u.CATEGORY_NAMES[u.CATEGORY[ord(c)]] for c in text]


def grams(words, n):
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def top_gram(words, n, text, quirks):
    counts = Counter(grams(words, n))
    if not counts:
        return 0.0
    gram, count = counts.most_common(1)[0]
    if count == 1 and not quirks:
        return 0.0
    return len(" ".join(gram)) * count / len(text)


def dup_grams(words, n, text):
    seen, i, chars = set(), 0, 0
    while i <= len(words) - n:
        gram = tuple(words[i : i + n])
        if gram in seen:
            chars += len("".join(gram))
            i += n
        else:
            seen.add(gram)
            i += 1
    return share(chars, len(text))


def copies(items):
    seen, n, chars = set(), 0, 0
    for item in items:
        if item in seen:
            n += 1
            chars += len(item)
        seen.add(item)
    return n, chars


def oracle(text):
    """Signals over white-space words and plain lines (the dolma preset's conventions)."""
    words = text.split()
    lines = [line.strip() for line in text.splitlines()]
    real = [line for line in lines if line]
    paragraphs, current = [], []
    for line in [*lines, ""]:
        if line:
            current.append(line)
        elif current:
            paragraphs.append("\n".join(current))
            current = []
    kinds = categories(text)
    letters = sum(kind[0] == "L" for kind in kinds)
    n_copies, copied = copies(real)
    p_copies, p_copied = copies(paragraphs)
    counts = Counter(words)
    repeated = [line for line in real if Counter(real)[line] > 1]
    out = {
        "n_chars": len(text),
        "whitespace_share": share(sum(c.isspace() for c in text), len(text)),
        "alpha_share": share(letters, len(text)),
        "digit_share": share(kinds.count("Nd"), len(text)),
        "mark_share": share(sum(kind[0] == "M" for kind in kinds), len(text)),
        "upper_share": share(kinds.count("Lu") + kinds.count("Lt"), letters),
        "punctuation_share": share(sum(kind[0] == "P" for kind in kinds), len(text)),
        "han_share": share(sum("中" <= c <= "文" and c in "中文" for c in text), len(text)),
        "emoji_share": share(text.count("😀"), len(text)),
        "n_words": len(words),
        "n_space_words": len(words),
        "mean_word_chars": share(sum(map(len, words)), len(words)),
        "longest_word_chars": max(map(len, words), default=0),
        "alpha_word_share": share(sum(any(k[0] == "L" for k in categories(word)) for word in words), len(words)),
        "unique_word_share": share(len(counts), len(words)) if words else 1.0,
        "word_entropy_bits": -sum(c / len(words) * np.log2(c / len(words)) for c in counts.values()),
        "stop_words_distinct": len({"the", "be", "to", "of", "and", "that", "have", "with"} & set(words)),
        "hash_word_ratio": share(text.count("#"), len(words)) if words else text.count("#"),
        "ellipsis_word_ratio": (text.count("...") + text.count("…")) / max(len(words), 1),
        "n_lines": len(real),
        "blank_line_share": share(len(lines) - len(real), len(lines)),
        "mean_line_chars": share(sum(map(len, real)), len(real)),
        "longest_line_chars": max(map(len, real), default=0),
        "bullet_line_share": share(sum(line.startswith(("*", "-")) for line in real), len(real)),
        "ellipsis_line_share": share(sum(line.endswith(("...", "…")) for line in real), len(real)),
        "short_line_share": share(sum(len(line) <= 30 for line in real), len(real)),
        "dup_line_share": share(n_copies, len(real)),
        "dup_line_char_share": share(copied, len(text)),
        "dup_nonblank_char_share": share(copied, sum(map(len, real))),
        "repeated_line_share": share(len(repeated), len(real)),
        "repeated_line_char_share": share(sum(map(len, repeated)), len(text)),
        "n_paragraphs": len(paragraphs),
        "dup_paragraph_share": share(p_copies, len(paragraphs)),
        "dup_paragraph_char_share": share(p_copied, len(text)),
        "one_word_line_share": share(sum(len(line.split()) == 1 for line in real), len(real)),
        "newline_word_ratio": max(len(real) - 1, 0) / max(len(words), 1),
    }
    for n in (2, 3, 4):
        out[f"top_{n}_gram_char_share"] = top_gram(words, n, text, quirks=False)
    for n in range(5, 11):
        out[f"dup_{n}_gram_char_share"] = dup_grams(words, n, text)
    return out


@settings(deadline=None, max_examples=60)
@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_signals_equal_the_plain_account(texts):
    for text, row in zip(texts, measure(texts, "dolma"), strict=True):
        expected = oracle(text)
        assert {key: row[key] for key in expected} == pytest.approx(expected, abs=1e-12), text


@settings(deadline=None, max_examples=60)
@given(TEXTS)
def test_quirk_signals_equal_datatroves_formulas(text):
    (row,) = measure([text], "datatrove-0.10")
    lines = re.compile("\n+").split(text)
    paragraphs = re.compile("\n{2,}").split(text.strip())
    n_copies, copied = copies(lines)
    p_copies, p_copied = copies(paragraphs)
    bullet_lines = text.splitlines()
    expected = {
        "dup_line_share": n_copies / len(lines) if text else 0.0,
        "dup_line_char_share": share(copied, len(text)),
        "dup_paragraph_share": p_copies / len(paragraphs),
        "dup_paragraph_char_share": share(p_copied, len(text)),
        "bullet_line_share": share(sum(x.lstrip().startswith(("•", "-")) for x in bullet_lines), len(bullet_lines)),
        "ellipsis_line_share": share(sum(x.rstrip().endswith(("...", "…")) for x in bullet_lines), len(bullet_lines)),
    }
    assert {key: row[key] for key in expected} == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from("abc"), max_size=60), st.booleans())
def test_ngram_signals_over_few_words_equal_the_plain_account(letters, quirks):
    text = " ".join(letters)
    (row,) = measure([text], "datatrove-0.10" if quirks else "dolma")
    for n in (2, 3, 4):
        assert row[f"top_{n}_gram_char_share"] == pytest.approx(top_gram(letters, n, text, quirks))
    for n in range(5, 11):
        assert row[f"dup_{n}_gram_char_share"] == pytest.approx(dup_grams(letters, n, text))


@settings(deadline=None, max_examples=30)
@given(st.lists(TEXTS, min_size=2, max_size=8), st.data())
def test_results_do_not_depend_on_the_batch(texts, data):
    for preset in ("web", "fineweb", "datatrove-0.10", "dclm"):
        stage = Heuristics.build(preset=preset)
        batch = pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.large_string())})
        cut = data.draw(st.integers(1, len(texts) - 1))
        whole = stage.transform(batch).to_pylist()
        parts = [*stage.transform(batch.slice(0, cut)).to_pylist(), *stage.transform(batch.slice(cut)).to_pylist()]
        assert repr(whole) == repr(parts)


@settings(deadline=None, max_examples=40)
@given(TEXTS)
def test_c4_edit_accounts_for_every_byte(text):
    body = "\n".join(f"This is a sentence, the {i} of many that are kept here." for i in range(6)) + "\n" + text
    for preset in ("c4", "c4-datatrove", "fineweb", "refinedweb", "dclm"):
        stage = Heuristics.build(preset=preset, thresholds={rule.reason: None for rule in
                                 Heuristics.build(preset=preset).rules()})  # fmt: skip
        out = stage.transform(pa.RecordBatch.from_pydict({"text": pa.array([body], pa.large_string())}))
        edited = out.column("text")[0].as_py()
        removed = [out.column(column)[0].as_py() for column in stage.edits().values()]
        assert sum(removed) == len(body.encode()) - len(edited.encode())
        assert out.column("reason")[0].as_py() is None


def test_stop_words_beyond_a_table_are_refused():
    with pytest.raises(ValueError, match="too many"):
        kernel.stop_table([tuple(f"w{i}" for i in range(200))])


def test_word_hash_is_that_of_the_bytes():
    assert kernel.word_hash("aé") == text_hash(b"a\xc3\xa9") == 0xBFCDFC869B8A7DE0


def test_categories_of_the_test_alphabet_are_stable():
    assert all(unicodedata.category(c) == categories(c)[0] for c in "aA1é中…#\u0301\u00a0\n")
