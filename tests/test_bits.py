"""Kernels on eight bytes at a time: equal to what Python says of the bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from gristmill.stages.kernels import bits
from gristmill.stages.kernels import heuristics_bytes as hb
from gristmill.stages.kernels import heuristics_layout as k

PHRASES = [(text, bit) for bit, texts in k.PHRASES for text in texts]


@njit
def _facts(data_B, i):
    chunk = bits.load8(data_B, i)
    return (
        bits.letters_of(chunk) & ~chunk & bits.H80, bits.digits_of(chunk) & ~chunk & bits.H80, bits.load4(data_B, i),
        bits.ones(chunk), bits.trailing(chunk), bits.leading(chunk),
    )  # fmt: skip


@njit
def _span(data_B, start, end):
    return bits.span_hash(data_B, start, end)


@njit
def _copy(to_B, at, data_B, start, n):
    bits.copy_bytes(to_B, at, bits.read_only(data_B), start, n)


@njit
def _phrases(data_B, start, stop, gram_G, place_E3, phrase_PW, fact_P2):
    urls = 0
    for i in range(start, stop):
        if data_B[i] == 46 or data_B[i] == 47:
            urls += hb.is_url(data_B, start, i)
    return hb.find_phrases(data_B, start, stop, gram_G, place_E3, phrase_PW, fact_P2), urls


@settings(deadline=None, max_examples=100)
@given(st.binary(min_size=8, max_size=8), st.integers(0, 8))
def test_chunks_are_classified_as_python_does(chunk, at):
    data_B = np.frombuffer(b"x" * at + chunk + b"xy", np.uint8)
    letters, digits, low, ones, trailing, leading = (int(value) for value in _facts(data_B, at))
    number = int.from_bytes(chunk, "little")
    assert [bool(letters >> (8 * j + 7) & 1) for j in range(8)] == [chr(b).isalpha() and b < 128 for b in chunk]
    assert [bool(digits >> (8 * j + 7) & 1) for j in range(8)] == [48 <= b <= 57 for b in chunk]
    assert low == number & 0xFFFFFFFF
    assert ones == number.bit_count()
    assert leading == 64 - number.bit_length()
    assert trailing == ((number & -number).bit_length() - 1 if number else 64)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=40), st.integers(0, 9), st.integers(0, 9))
def test_span_hash_is_the_hash_of_the_bytes_wherever_they_stand(text, before, after):
    data_B = np.frombuffer(b"a" * before + text + b"b" * after, np.uint8)
    assert int(_span(data_B, before, before + len(text))) == bits.text_hash(text)


def test_a_trailing_nul_changes_the_hash():
    assert len({bits.text_hash(b"ab" + b"\0" * n) for n in range(20)}) == 20


def test_copy_moves_exactly_the_bytes_asked_for():
    to_B = np.zeros(8, np.uint8)
    _copy(to_B, 2, np.frombuffer(b"abcdefgh", np.uint8).copy(), 3, 4)
    assert to_B.tobytes() == b"\0\0defg\0\0"


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.sampled_from([*(text for text, _ in PHRASES), " ", "a", "LI", "http:/", "ww", "中", "é", "."]), max_size=6),
    st.booleans(), st.integers(0, 3), st.integers(0, 3),
)  # fmt: skip
def test_every_phrase_is_found_at_any_place_and_in_any_ascii_case(parts, upper, cut_start, cut_end):
    text = "".join(parts).encode()
    text = text.upper() if upper else text
    start, stop = min(cut_start, len(text)), max(len(text) - cut_end, min(cut_start, len(text)))
    found, urls = _phrases(np.frombuffer(text or b" ", np.uint8), start, stop, *k.phrase_tables())
    inside = text[start:stop].lower()
    known = [(phrase.encode(), bit) for phrase, bit in PHRASES if bit not in {k.P_URL, k.P_CURLY, k.P_BRACKET}]
    expected = 0
    for phrase, bit in known:
        expected |= bit if phrase in inside else 0
    assert found == expected
    assert urls == inside.count(b"http://") + inside.count(b"https://") + inside.count(b"www.")
