"""The pre-tokenisation scanner is equal to the regular expressions it stands for."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.stages.kernels import unicode as tables
from gristmill.stages.kernels.pretokenize import NO_SPLIT, PATTERNS, Pattern, flags, pretokenize

regex = pytest.importorskip("regex")

NAMES = sorted(PATTERNS)


def split(texts: list[str | bytes], pattern: Pattern) -> list[list[bytes]]:
    raw = [t.encode() if isinstance(t, str) else t for t in texts]
    data = np.frombuffer(b"".join(raw) or b"", np.uint8)
    offsets = np.cumsum([0, *map(len, raw)]).astype(np.int64)
    ends, firsts = pretokenize(offsets, data, pattern)
    out = []
    for d in range(len(raw)):
        bounds = [int(offsets[d]), *ends[firsts[d] : firsts[d + 1]].tolist()]
        out.append([data[a:b].tobytes() for a, b in itertools.pairwise(bounds)])
    return out


def oracle(text: str, pattern: Pattern) -> list[bytes]:
    return [m.group().encode() for m in regex.finditer(pattern.regex, text)]


def known(text: str) -> bool:
    """Only characters that the pinned Unicode version knows; the regex package follows a newer one."""
    return all(tables.CATEGORY[ord(c)] not in (tables.CN, tables.CS) for c in text)


SEEDS = [
    "'", "'s", "'S", "'LL", "'ve", "'ſ", "'r", "'l", "don't", "WE'RE",
    " ", "  ", "\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000",
    "\u2028", "\x1c", "\x85", "a", "B", "é", "ẞ", "ß", "中文", "日本語",
    "ひら", "नमस्ते", "ไทย", "العربيّة", "한국어", "1", "12", "1234", "٣٤",
    "Ⅷ", "½", "१२३४", "!", "...", "//", "/\n", "-", "_", "😀", "👨‍👩‍👧",
    "\u0301", "\u200d", "\u200b", "\ufeff", "\ufffd", "\x00", "ǅ",
    "ʰ", "ª", "𝔸", "🇨🇳", "<|endoftext|>", "A\u0301b", "CamelCase",
    "HTTPServer", "\U0010ffff", "\ue000",
]  # fmt: skip
texts = st.one_of(
    st.lists(st.sampled_from(SEEDS), max_size=20).map("".join),
    st.text(max_size=40),
    st.text(alphabet=" \n\r\tabAB1'/!.中é\u0301", max_size=30),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(texts, max_size=4))
@example(["", "a  b", "a \n b \n", "  ", "x  ", "'s's", "日A日A", "\u0301AB", "!\u0301a"])
def test_scanner_equals_every_expression(batch: list[str]) -> None:
    batch = [text for text in batch if known(text)]
    for name in NAMES:
        pattern = PATTERNS[name]
        assert split(list(batch), pattern) == [oracle(text, pattern) for text in batch], name


@pytest.mark.parametrize("name", NAMES)
def test_every_known_character_in_context_equals_the_expression(name: str) -> None:
    pattern = PATTERNS[name]
    categories = tables.CATEGORY
    chosen = [c for c in range(0x110000) if categories[c] not in (tables.CN, tables.CS, tables.CO)]
    chosen = [c for c in chosen if c < 0x3000 or c % 97 == 0]
    text = "".join(f"'{chr(c)}a {chr(c)}{chr(c)}! A{chr(c)}\n1{chr(c)} " for c in chosen)
    assert split([text], pattern)[0] == oracle(text, pattern)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I'll pay 12345.60!\n\n  ok", ["I", "'ll", " pay", " ", "123", "45", ".", "60", "!\n\n", " ", " ok"]),
        ("中文，很好", ["中文", "，很好"]),
        ("\t\tx = 1", ["\t", "\tx", " =", " ", "1"]),
    ],
)
def test_llama3_splits_read_as_expected(text: str, expected: list[str]) -> None:
    assert split([text], PATTERNS["llama3"]) == [[piece.encode() for piece in expected]]


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=60))
def test_invalid_utf8_is_tiled_without_loss(raw: bytes) -> None:
    for name in NAMES:
        pieces = split([raw], PATTERNS[name])[0]
        assert b"".join(pieces) == raw
        assert all(pieces)


def test_a_slice_starts_where_its_offsets_say() -> None:
    data = np.frombuffer(b"xx hello world yy", np.uint8)
    ends, firsts = pretokenize(np.array([2, 8, 14], np.int64), data, PATTERNS["llama3"])
    assert ends.tolist() == [8, 14]
    assert firsts.tolist() == [0, 1, 2]


def test_text_that_has_been_split_stays_whole() -> None:
    assert split(["a b  c\n", "中。"], NO_SPLIT) == [[b"a b  c\n"], ["中。".encode()]]


def test_flags_are_shared_and_read_only() -> None:
    table = flags(PATTERNS["llama3"])
    assert table is flags(PATTERNS["llama3"])
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 0


@pytest.mark.parametrize("name", NAMES)
def test_scanner_equals_the_splitter_of_tokenizers(name: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    pattern = PATTERNS[name]
    splitter = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern.regex), behavior="isolated")
    rng = np.random.default_rng(7)
    for _ in range(200):
        text = "".join(SEEDS[k] for k in rng.integers(0, len(SEEDS), 30))
        expected = [piece.encode() for piece, _ in splitter.pre_tokenize_str(text)]
        assert split([text], pattern)[0] == expected


def shared_text() -> list[str]:
    path = Path(__file__).parent.parent.parent / "shared" / "data" / "evals" / "gaokao-history.jsonl"
    if not path.exists():
        pytest.skip("no ../shared/data/evals")
    rows: list[Any] = [json.loads(line) for line in path.read_text("utf-8").splitlines()[:200]]
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def test_scanner_equals_every_expression_on_chinese_exams() -> None:
    batch = shared_text()
    for name in NAMES:
        assert split(list(batch), PATTERNS[name]) == [oracle(text, PATTERNS[name]) for text in batch]
