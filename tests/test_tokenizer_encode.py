"""Encoding is equal to the definition and to the tokenizers library, and any tokenizer.json finds a way."""

from __future__ import annotations

import json
import logging
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.stages.errors import ConfigError
from gristmill.stages.kernels.bpe import train
from gristmill.stages.kernels.pretoken_table import PretokenTable, unpack
from gristmill.stages.kernels.pretokenize import PATTERNS
from gristmill.tokenizer.encode import Encoder, LibraryEncoder, load_encoder
from gristmill.tokenizer.model import EOS, BpeModel, UnsupportedTokenizerError, letters, parse

tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "The quick brown fox's den; we'll see 12345 foxes!\n\n  They are quick, quick, quick, the quickest.",
    "中文文本很重要，中文分词也很重要。中文！中文文本",
    "日本語のテキスト、日本語。ひらがなとカタカナ",
    "def f(x):\n    return x ** 2\n\n\ndef g(y):\n\treturn f(y) + 1  # done\n",
    "Größe, größer, am größten — naïve café, 'quoted' and “quoted”",
    "Съешь же ещё этих мягких французских булок, да выпей чаю",
    "नमस्ते दुनिया। यह एक परीक्षा है।",
    "مرحبا بالعالم، هذا اختبار",
    "============ ---------- ........ aaaaaaaaaaaaaaaaaaaaaaaa abababababababab",
    "😀👨‍👩‍👧🇨🇳 \x00\x1f\u200b\ufeff \u3000\u00a0  \r\n\r\n end",
]
HOSTILE = ["", " ", "\n", "\x00" * 9, EOS, f"a{EOS}{EOS}b", "a" * 3000, "ab" * 2000, "中" * 1500, "\u0301" * 300,
           " " * 1000, "\n" * 1000, "=" * 700, "1" * 1000, "a\u0301" * 400, "Ġ Ċ Ā", "😀" * 300]  # fmt: skip


def batch(texts: list[str]) -> tuple[Any, Any]:
    raw = [t.encode() for t in texts]
    return np.cumsum([0, *map(len, raw)]).astype(np.int64), np.frombuffer(b"".join(raw), np.uint8)


@cache
def model(name: str = "llama3", n_tokens: int = 700) -> BpeModel:
    table = PretokenTable()
    list(table.add_documents(*batch(TEXTS * 3), PATTERNS[name], 64))
    ((_, payload),) = table.drain()
    lengths, counts, data = unpack(payload)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return BpeModel.trained(PATTERNS[name], train(offsets, data, counts.copy(), n_tokens), (EOS, "<|pad|>"))


def library(data: bytes) -> Any:
    tokenizer = tokenizers.Tokenizer.from_str(data.decode())
    tokenizer.encode_special_tokens = True
    return tokenizer


def rows(encoder: Any, texts: list[str]) -> list[list[int]]:
    tokens, offsets = encoder.encode_batch(*batch(texts))
    assert offsets[0] == 0
    assert offsets[-1] == len(tokens)
    return [tokens[a:b].tolist() for a, b in pairwise(offsets)]


def by_definition(word: bytes, bpe: BpeModel) -> list[int]:
    """Join the leftmost of the pairs of lowest rank until none is left."""
    ranks = {tuple(pair): r for r, pair in reversed(list(enumerate(bpe.merges_M2.tolist())))}
    single = {token: i for i, token in enumerate(bpe.tokens) if len(token) == 1}
    ids = [single[bytes([b])] for b in word]
    while True:
        able = [(ranks[pair], k) for k, pair in enumerate(pairwise(ids)) if pair in ranks]
        if not able:
            return ids
        rank, k = min(able)
        ids[k : k + 2] = [int(bpe.merged_M[rank])]


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_tokens_equal_the_library_on_many_scripts_and_hostile_text(name: str) -> None:
    bpe = model(name)
    texts = TEXTS + HOSTILE
    expected = [e.ids for e in library(bpe.to_json()).encode_batch(texts)]
    assert rows(Encoder(bpe), texts) == expected
    assert rows(Encoder(bpe, window=64), texts) == expected


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text("ab the中文文本\n .", max_size=40), max_size=5), st.sampled_from([2, 4, 1 << 18]))
def test_tokens_do_not_depend_on_the_cache(texts: list[str], slots: int) -> None:
    encoder = Encoder(model(), cache_slots=slots)
    expected = [e.ids for e in library(model().to_json()).encode_batch(texts)]
    for _ in range(2):
        assert rows(encoder, texts) == expected


@settings(deadline=None, max_examples=60)
@given(
    st.text("ab", min_size=1, max_size=400) | st.text("abq中文", min_size=1, max_size=300), st.sampled_from([1, 8, 100])
)
@example("a" * 400, 8)
def test_long_words_in_windows_equal_the_definition(word: str, window: int) -> None:
    bpe = model()
    assert rows(Encoder(bpe, window=window), [word]) == [by_definition(word.encode(), bpe)]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text(max_size=60), max_size=5))
def test_decoding_gives_the_text_back(texts: list[str]) -> None:
    encoder = Encoder(model())
    tokens, offsets = encoder.encode_batch(*batch(texts))
    for text, a, b in zip(texts, offsets[:-1], offsets[1:], strict=True):
        assert encoder.decode(tokens[a:b]) == text.encode()


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=80))
def test_invalid_utf8_comes_back_too(raw: bytes) -> None:
    encoder = Encoder(model())
    assert encoder.decode(encoder.encode(raw)) == raw


def test_a_slice_of_a_batch_encodes_as_its_documents() -> None:
    offsets, data = batch(TEXTS)
    tokens, token_offsets = Encoder(model()).encode_batch(offsets[3:7], data)
    assert [tokens[a:b].tolist() for a, b in pairwise(token_offsets)] == rows(Encoder(model()), TEXTS[3:6])


def test_special_text_in_a_document_is_never_the_special_token() -> None:
    encoder = Encoder(model())
    tokens = encoder.encode(f"x{EOS}y")
    assert encoder.eos_id == model().vocab_size - 2
    assert encoder.eos_id not in tokens
    assert encoder.decode(tokens) == f"x{EOS}y".encode()
    assert encoder.decode([encoder.eos_id]) == EOS.encode()


def test_an_id_outside_the_vocabulary_is_named() -> None:
    with pytest.raises(ValueError, match="position 1"):
        Encoder(model()).decode([5, 100_000])


def test_file_is_the_same_every_time_and_reads_back() -> None:
    bpe = model()
    data = bpe.to_json()
    again = parse(data, "here")
    assert again.to_json() == data == model().to_json()
    assert again.tokens == bpe.tokens
    assert again.specials == {EOS: bpe.vocab_size - 2, "<|pad|>": bpe.vocab_size - 1}
    assert again.merged_M.tolist() == bpe.merged_M.tolist()
    loaded = tokenizers.Tokenizer.from_str(data.decode())
    assert loaded.get_vocab_size() == bpe.vocab_size == len(loaded.get_vocab())
    assert loaded.token_to_id(EOS) == bpe.eos_id
    assert loaded.decode(loaded.encode("中文 ok").ids) == "中文 ok"


def foreign(**changes: Any) -> bytes:
    """A file in the manner of GPT-2: other id order, merges as lists, library regex."""
    data = json.loads(model("gpt2").to_json())
    vocabulary = data["model"]["vocab"]
    top = max(vocabulary.values())
    data["model"]["vocab"] = {token: top - i for token, i in vocabulary.items()}
    data["model"]["merges"] = [m.split(" ") for m in data["model"]["merges"]]
    data["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    for key, value in changes.items():
        target, _, leaf = key.rpartition("__")
        (data[target] if target else data)[leaf] = value
    return json.dumps(data).encode()


def test_a_gpt2_like_file_gives_the_librarys_tokens() -> None:
    data = foreign()
    expected = [e.ids for e in library(data).encode_batch(TEXTS + HOSTILE)]
    assert rows(Encoder(parse(data, "gpt2")), TEXTS + HOSTILE) == expected


def test_ignore_merges_gives_the_librarys_tokens() -> None:
    data = json.loads(model().to_json())
    data["model"]["ignore_merges"] = True
    for token in ("Ġquick", "ĠThey", "quickest", letters("中文文本很重要".encode())):
        if token not in data["model"]["vocab"]:
            data["model"]["vocab"][token] = len(data["model"]["vocab"]) + 2
    raw = json.dumps(data).encode()
    texts = [*TEXTS, "quickest", "中文文本很重要，中文文本很重要", *HOSTILE]
    expected = [e.ids for e in library(raw).encode_batch(texts)]
    assert rows(Encoder(parse(raw, "x")), texts) == expected
    assert rows(Encoder(parse(raw, "x")), ["quickest"]) == [[data["model"]["vocab"]["quickest"]]]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"normalizer": {"type": "NFC"}}, "normalizer"),
        ({"model__byte_fallback": True}, "byte_fallback"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "Whitespace"),
        (
            {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
            "ByteLevel",
        ),
        ({"pre_tokenizer": None}, "null"),
    ],
)
def test_what_the_kernels_do_not_follow_is_refused_with_the_reason(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(UnsupportedTokenizerError, match=word):
        parse(foreign(**changes), "x")


def test_other_tokenizers_run_by_the_library_with_a_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(foreign(normalizer={"type": "NFC"}))
    with caplog.at_level(logging.WARNING):
        encoder = load_encoder(str(path))
    assert isinstance(encoder, LibraryEncoder)
    assert "normalizer" in encoder.note
    assert "normalizer" in caplog.text
    reference = library(path.read_bytes())
    texts = [*TEXTS, "", f"a{EOS}"]
    assert rows(encoder, texts) == [e.ids for e in reference.encode_batch(texts)]
    assert encoder.eos_id == reference.token_to_id(EOS)
    assert encoder.eos_id not in rows(encoder, texts)[-1]
    assert encoder.vocab_size == reference.get_vocab_size()
    assert encoder.decode(rows(encoder, ["e\u0301 ok"])[0]) == "é ok".encode()


def test_our_own_file_is_run_by_the_kernels(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(model().to_json())
    encoder = load_encoder(str(path))
    assert isinstance(encoder, Encoder)
    assert encoder.note == ""
    assert load_encoder(str(path)) is encoder


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"model": {"type": "BPE", "vocab": 3}}', b"\xff"])
def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"no\.json"):
        load_encoder(str(path))


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        Encoder.load(str(tmp_path / "absent.json"))


def test_one_huge_word_takes_no_quadratic_time() -> None:
    encoder = Encoder(model())
    encoder.encode("a" * 200)
    seconds = []
    for n in (250_000, 2_000_000):
        start = time.perf_counter()
        tokens = encoder.encode(b"a" * n)
        seconds.append(time.perf_counter() - start)
        assert encoder.decode(tokens) == b"a" * n
    assert seconds[1] < 32 * seconds[0] + 1


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["a", "ab", "中", "=", "9", " ", "\n"])
def test_fifty_megabytes_of_one_thing_are_encoded(unit: str) -> None:
    encoder = Encoder(model())
    raw = unit.encode() * (50_000_000 // len(unit.encode()))
    start = time.perf_counter()
    tokens = encoder.encode(raw)
    assert time.perf_counter() - start < 60
    assert encoder.decode(tokens) == raw
