"""Counting and training are equal to their definitions, and to Hugging Face's trainer."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.stages.kernels.bpe import BYTE_ID, BYTE_ORDER, spell, train
from gristmill.stages.kernels.pretoken_table import PretokenTable, pack, unpack
from gristmill.stages.kernels.pretokenize import PATTERNS, pretokenize

LLAMA3 = PATTERNS["llama3"]


def arrays(words: dict[bytes, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, words)]).astype(np.int64)
    return offsets, np.frombuffer(b"".join(words), np.uint8), np.array(list(words.values()), np.int64)


def naive(
    words: dict[bytes, int], n_tokens: int, min_count: int, max_bytes: int = 1 << 30
) -> tuple[list[tuple[int, int]], list[bytes]]:
    """Byte-pair encoding as it is defined: recount everything, merge the best, repeat."""
    split = {word: [int(BYTE_ID[b]) for b in word] for word in words}
    tokens = [bytes([b]) for b in BYTE_ORDER]
    merges: list[tuple[int, int]] = []
    while len(tokens) < n_tokens:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, ids in split.items():
            for pair in pairwise(ids):
                pairs[pair] += words[word]
        able = {p: n for p, n in pairs.items() if n >= min_count and len(tokens[p[0]] + tokens[p[1]]) <= max_bytes}
        if not able:
            break
        left, right = min(able, key=lambda p: (-able[p], p))
        new = len(tokens)
        tokens.append(tokens[left] + tokens[right])
        merges.append((left, right))
        for word, ids in split.items():
            out: list[int] = []
            for x in ids:
                if out and (out[-1], x) == (left, right) and out[-1] != -1:
                    out[-1:] = [new, -1]
                else:
                    out = out[:-1] if out and out[-1] == -1 else out
                    out.append(x)
            split[word] = [x for x in out if x != -1]
    return merges, tokens


def trained(words: dict[bytes, int], *options: int) -> tuple[list[tuple[int, int]], list[bytes]]:
    merges = train(*arrays(words), *options)
    return [tuple(m) for m in merges.tolist()], spell(merges)


@settings(deadline=None, max_examples=100)
@given(
    st.dictionaries(st.text("ab", min_size=1, max_size=14).map(str.encode), st.integers(1, 9), max_size=12)
    | st.dictionaries(st.text("abcé中", min_size=1, max_size=8).map(str.encode), st.integers(1, 9), max_size=12),
    st.integers(256, 290),
    st.integers(1, 4),
    st.sampled_from([2, 4, 1 << 30]),
)
@example({b"aaaa": 1, b"aaaaaaa": 2, b"aaa": 1, b"baaab": 3}, 290, 1, 1 << 30)
@example({}, 300, 1, 1 << 30)
def test_training_equals_the_definition(words: dict[bytes, int], n_tokens: int, min_count: int, max_bytes: int) -> None:
    assert trained(words, n_tokens, min_count, max_bytes) == naive(words, n_tokens, min_count, max_bytes)


def test_no_two_merges_spell_the_same_token() -> None:
    rng = np.random.default_rng(5)
    for letters in (1, 2, 3):
        words = {bytes(rng.integers(97, 97 + letters, rng.integers(2, 40)).tolist()): 1 for _ in range(40)}
        merges, tokens = trained(words, 900, 1)
        assert (merges, tokens) == naive(words, 900, 1)
        assert len(set(tokens)) == len(tokens) == 256 + len(merges) > 260


def test_training_does_not_depend_on_the_order_of_words() -> None:
    rng = np.random.default_rng(1)
    words = {bytes(rng.choice([97, 98, 99, 100], 6).tolist()): int(rng.integers(1, 50)) for _ in range(500)}
    shuffled = dict(sorted(words.items(), reverse=True))
    assert trained(words, 400, 2) == trained(shuffled, 400, 2)


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 256"):
        train(*arrays({b"ab": 1}), 255)


TEXTS = [
    "The quick brown fox's den; we'll see 12345 foxes!\n\n  They are quick, quick, quick.",
    "中文文本很重要，中文分词也很重要。中文！" * 3,
    "日本語のテキスト、日本語。" * 4,
    "def f(x):\n    return x ** 2\n" * 5,
    "ab" * 40 + " " + "a" * 33,
    "Größe, größer, am größten — naïve café",
]


def counted(texts: list[str], max_piece: int = 65535) -> dict[bytes, int]:
    words: Counter[bytes] = Counter()
    for text in texts:
        raw = np.frombuffer(text.encode(), np.uint8)
        ends, _ = pretokenize(np.array([0, len(raw)], np.int64), raw, LLAMA3)
        for a, b in zip([0, *ends.tolist()], ends.tolist(), strict=False):
            piece = raw[a:b].tobytes()
            while len(piece) > max_piece:
                cut = max_piece
                while piece[cut] & 0xC0 == 0x80:
                    cut -= 1
                words[piece[:cut]] += 1
                piece = piece[cut:]
            words[piece] += 1
    return dict(words)


def as_dict(payloads: list[bytes]) -> dict[bytes, int]:
    words: Counter[bytes] = Counter()
    for payload in payloads:
        lengths, counts, data = unpack(payload)
        ends = np.cumsum(lengths, dtype=np.int64)
        for n, end, count in zip(lengths.tolist(), ends.tolist(), counts.tolist(), strict=True):
            words[data[end - n : end].tobytes()] += count
    return dict(words)


@pytest.mark.parametrize("max_piece", [4, 9, 65535])
@pytest.mark.parametrize(("slots", "arena"), [(1 << 22, 1 << 27), (16, 70_000)])
def test_counts_equal_a_dictionary_however_small_the_table(max_piece: int, slots: int, arena: int) -> None:
    raw = [t.encode() for t in TEXTS * 3]
    offsets = np.cumsum([0, *map(len, raw)]).astype(np.int64)
    table = PretokenTable(slots, arena)
    out = list(table.add_documents(offsets, np.frombuffer(b"".join(raw), np.uint8), LLAMA3, max_piece, buckets=5))
    assert (len(out) > 5) == (slots == 16)
    out += table.drain(5)
    assert as_dict([payload for _, payload in out]) == counted(TEXTS * 3, max_piece)
    assert len(table) == 0


@pytest.mark.parametrize("parts", [1, 7, 64])
def test_counts_and_merges_are_the_same_for_any_number_of_parts(parts: int) -> None:
    texts = [f"{TEXTS[k % len(TEXTS)]} {k % 13} word{k % 7}" for k in range(90)]
    merged = [PretokenTable() for _ in range(4)]
    for p in range(parts):
        raw = [t.encode() for t in texts[p::parts]]
        offsets = np.cumsum([0, *map(len, raw)]).astype(np.int64)
        table = PretokenTable(64)
        data = np.frombuffer(b"".join(raw), np.uint8)
        for bucket, payload in [*table.add_documents(offsets, data, LLAMA3, 64, buckets=4), *table.drain(4)]:
            merged[bucket].add_packed(payload)
    tables = [as_dict([payload for _, payload in table.drain()]) for table in merged]
    words = {key: count for table in tables for key, count in table.items()}
    assert sum(map(len, tables)) == len(words)
    assert words == counted(texts, 64)
    assert trained(words, 330, 2) == trained(counted(texts, 64), 330, 2)


def test_only_chosen_documents_are_counted() -> None:
    offsets, data = np.array([0, 2, 4, 6], np.int64), np.frombuffer(b"aabbcc", np.uint8)
    table = PretokenTable()
    assert list(table.add_documents(offsets, data, LLAMA3, 64, np.array([0, 2]))) == []
    assert as_dict([p for _, p in table.drain()]) == {b"aa": 1, b"cc": 1}


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.binary(min_size=1, max_size=40), st.integers(1, 2**40), max_size=30))
def test_packed_counts_come_back(words: dict[bytes, int]) -> None:
    offsets, data, counts = arrays(words)
    payload = pack(np.diff(offsets).astype(np.uint16), counts, data)
    table = PretokenTable(16)
    table.add_packed(payload)
    table.add_packed(payload)
    assert as_dict([p for _, p in table.drain()]) == {word: 2 * n for word, n in words.items()}


def test_training_equals_the_trainer_of_tokenizers() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    texts = [f"{t} {k % 5}" for k in range(4) for t in TEXTS]
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(LLAMA3.regex), behavior="isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=420,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    model.train_from_iterator(texts, trainer)
    vocabulary = sorted(model.get_vocab(), key=model.get_vocab().__getitem__)
    letters = [chr(b) if k < 188 else chr(256 + k - 188) for k, b in enumerate(BYTE_ORDER.tolist())]
    to_byte = {letter: int(b) for letter, b in zip(letters, BYTE_ORDER, strict=True)}
    assert trained(counted(texts), 420, 2)[1] == [bytes(to_byte[c] for c in token) for token in vocabulary]
