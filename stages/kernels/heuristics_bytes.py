"""What the line pass asks of bytes: line ends, words, sentences, hash tables, paragraphs. All O(bytes), no allocation.

Legend: ``data_B`` uint8 valid UTF-8; ``marks_U`` and ``class_U`` uint8 by code point (`heuristics_layout`);
``key_K`` uint64 and ``state_K`` uint8 (0 free, 1 seen once, 2 seen again) hash table.
"""

# ruff: noqa: SIM110 (array names carry shapes; kernels are written as they compile)

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.stages.kernels import heuristics_layout as k
from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels.bits import copy_bytes, inner, load4, span_hash

BASE = np.uint64(0x9E3779B97F4A7C15)
PARAGRAPH = np.uint64(0xD1B54A32D192ED03)
LONG_WORD_CHARS = 1000
_LOWER = np.uint64(0x20202020)
_GRAM_FACTOR, _GRAM_SHIFT = np.uint64(k.GRAM_FACTOR), np.uint64(64 - k.GRAM_BITS)


@inner
def clear(array: Any, n: Any) -> None:
    """Set the first `n` entries to 0 (a loop: slice assignment compiles far more code)."""
    for j in range(n):
        array[j] = 0


@inner
def remember(key_K: Any, state_K: Any, mask: Any, room: Any, key: Any) -> Any:
    """Return how often `key` was seen before, up to 2, and note it: (times seen, slots newly used)."""
    slot = np.int64((key * BASE) >> np.uint64(32)) & mask
    while state_K[slot] != 0:
        if key_K[slot] == key:
            seen = state_K[slot]
            state_K[slot] = 2
            return np.int64(seen), 0
        slot = (slot + 1) & mask
    if room <= 0:
        return np.int64(0), 0
    key_K[slot] = key
    state_K[slot] = 1
    return np.int64(0), 1


@inner
def table_mask(data_B: Any, start: Any, end: Any, n_slots: Any) -> Any:
    """Return the mask of a table wide enough for the lines and paragraphs of the document, if `n_slots` allow."""
    breaks = 1
    for i in range(start, end):
        b = data_B[i]
        breaks += (b < 32) & (b >= 10) | (b == 0x85) | (b == 0xA8) | (b == 0xA9)
    size = 16
    while size < 4 * breaks and size < n_slots:
        size *= 2
    return size - 1


@inner
def ends_with_ellipsis(data_B: Any, start: Any, stop: Any) -> Any:
    """Return whether the bytes end in ``...`` or U+2026."""
    if stop - start < 3:
        return False
    a, b, c = data_B[stop - 3], data_B[stop - 2], data_B[stop - 1]
    return (a == 46 and b == 46 and c == 46) or (a == 0xE2 and b == 0x80 and c == 0xA6)


@inner
def last_character(data_B: Any, start: Any, stop: Any) -> Any:
    """Return the byte position of the last character before `stop`."""
    i = stop - 1
    while i > start and data_B[i] & 0xC0 == 0x80:
        i -= 1
    return i


@inner
def line_is_terminal(data_B: Any, start: Any, stop: Any, marks_U: Any, through_closers: Any) -> Any:
    """Return whether the line ends in a terminal mark, possibly inside up to three closing quotes or brackets."""
    for _ in range(4):
        if stop <= start:
            return False
        i = last_character(data_B, start, stop)
        cp, _n = u.decode(data_B, i)
        if marks_U[cp] & k.M_TERMINAL:
            return True
        if not through_closers or not marks_U[cp] & k.M_CLOSER:
            return False
        stop = i
    return False


@inner
def has_long_word(data_B: Any, start: Any, stop: Any, marks_U: Any) -> Any:
    """Return whether a piece between white space is longer than `LONG_WORD_CHARS` characters."""
    i = start
    run = 0
    while i < stop:
        cp, n = u.decode(data_B, i)
        i += n
        run = 0 if marks_U[cp] & k.M_SPACE else run + 1
        if run > LONG_WORD_CHARS:
            return True
    return False


@inner
def count_words(data_B: Any, start: Any, stop: Any, marks_U: Any) -> Any:
    """Return the number of pieces between white space."""
    i = start
    words = 0
    inside = False
    while i < stop:
        cp, n = u.decode(data_B, i)
        i += n
        space = marks_U[cp] & k.M_SPACE != 0
        words += not space and not inside
        inside = not space
    return words


@inner
def characters(data_B: Any, start: Any, stop: Any) -> Any:
    """Return the number of characters in ``[start, stop)``."""
    n = 0
    for i in range(start, stop):
        n += data_B[i] & 0xC0 != 0x80
    return n


@inner
def matches(data_B: Any, i: Any, stop: Any, text: Any) -> Any:
    """Return whether the ASCII bytes `text` stand at `i`."""
    if i + len(text) > stop:
        return False
    for j in range(len(text)):
        if data_B[i + j] != text[j]:
            return False
    return True


@inner
def find_phrases(data_B: Any, start: Any, stop: Any, gram_G: Any, place_E3: Any, phrase_PW: Any, fact_P2: Any) -> Any:
    """Return the bits of the phrases in ``[start, stop)``; see `heuristics_layout.Phrases`."""
    found = np.int64(0)
    for i in range(start, stop - 3, 2):
        row = np.int64(gram_G[np.int64(((load4(data_B, i) | _LOWER) * _GRAM_FACTOR) >> _GRAM_SHIFT)])
        while row > 0:
            number = place_E3[row - 1, 1]
            at = i - place_E3[row - 1, 2]
            row = np.int64(place_E3[row - 1, 0])
            length = fact_P2[number, 0]
            if at < start or at + length > stop:
                continue
            same = True
            for j in range(length):
                b = phrase_PW[number, j]
                other = data_B[at + j]
                if other != b and (b < 97 or b > 122 or other != b - 32):
                    same = False
                    break
            if same:
                found |= np.int64(fact_P2[number, 1])
    return found


@inner
def is_url(data_B: Any, start: Any, i: Any) -> Any:
    """Return whether the slash or full stop at `i` ends ``http://``, ``https://`` or ``www.``, in any case."""
    if i - start < 3:
        return False
    if data_B[i] == 46:
        return data_B[i - 1] | 32 == 119 and data_B[i - 2] | 32 == 119 and data_B[i - 3] | 32 == 119
    if data_B[i - 1] != 47 or data_B[i - 2] != 58:
        return False
    j = i - 3
    if data_B[j] | 32 == 115:
        j -= 1
    return (
        j - start >= 3
        and data_B[j] | 32 == 112
        and data_B[j - 1] | 32 == 116
        and data_B[j - 2] | 32 == 116
        and data_B[j - 3] | 32 == 104
    )


@inner
def copy_line(data_B: Any, start: Any, stop: Any, class_U: Any, edited_B: Any, at: Any, citations: Any) -> Any:
    """Copy a line, without ``[12]``, ``[]``, ``[edit]`` and ``[citation needed]`` if `citations`; return the end."""
    if not citations:
        copy_bytes(edited_B, at, data_B, start, stop - start)
        return at + stop - start
    i = start
    while i < stop:
        b = data_B[i]
        if b == 91:
            j = i + 1
            while j < stop:
                cp, n = u.decode(data_B, j)
                if class_U[cp] != k.C_DIGIT:
                    break
                j += n
            if j < stop and data_B[j] == 93:
                i = j + 1
                continue
            if matches(data_B, i, stop, b"[edit]"):
                i += 6
                continue
            if matches(data_B, i, stop, b"[citation needed]"):
                i += 17
                continue
        edited_B[at] = b
        at += 1
        i += 1
    return at


@inner
def sentence_ends(data_B: Any, i: Any, n: Any, cp: Any, start: Any, end: Any, marks_U: Any) -> Any:
    """Return the byte after a sentence that ends with the mark at `i` and its closers, or 0 if it does not end."""
    j = i + n
    for _ in range(4):
        if j >= end:
            return j
        after, m = u.decode(data_B, j)
        bits = marks_U[after]
        if bits & k.M_SENTENCE:
            return 0
        if bits & (k.M_SPACE | k.M_BREAK):
            if cp != 46:
                return j
            if j + m < end and not bits & k.M_BREAK:
                following, _ = u.decode(data_B, j + m)
                if marks_U[following] & k.M_LOWER:
                    return 0
            # An initial: a single letter before the full stop.
            alone = i - start >= 2 and data_B[i - 2] == 32 and 65 <= data_B[i - 1] <= 90
            return 0 if alone else j
        if not bits & k.M_CLOSER:
            return j if cp >= 0x3000 else 0
        j += m
    return j


@inner
def quirk_paragraphs(data_B: Any, start: Any, end: Any, marks_U: Any, key_K: Any, state_K: Any, mask: Any) -> Any:
    """Return (paragraphs, extra copies, their characters) of the stripped text split at runs of two or more LF."""
    while start < end:
        cp, n = u.decode(data_B, start)
        if not marks_U[cp] & k.M_SPACE:
            break
        start += n
    while start < end:
        i = last_character(data_B, start, end)
        cp, _n = u.decode(data_B, i)
        if not marks_U[cp] & k.M_SPACE:
            break
        end = i
    clear(state_K, mask + 1)
    room = (mask + 1) * 7 // 10
    paragraphs = copies = copied_chars = 0
    n_chars = 0
    piece_from = i = start
    while i <= end:
        breaks = 0
        while i + breaks < end and data_B[i + breaks] == 10:
            breaks += 1
        if i == end or breaks > 1:
            seen, used = remember(key_K, state_K, mask, room, span_hash(data_B, piece_from, i) ^ PARAGRAPH)
            room -= used
            paragraphs += 1
            if seen:
                copies += 1
                copied_chars += n_chars
            n_chars = 0
            if i == end:
                break
            i += breaks
            piece_from = i
            continue
        n_chars += data_B[i] & 0xC0 != 0x80
        i += 1
    return paragraphs, copies, copied_chars


@inner
def count_words_spaces(data_B: Any, begin: Any, first: Any, last: Any, stop: Any) -> Any:
    """Return the number of characters in ``[begin, first)`` and ``[last, stop)``: the white space around a line."""
    spaces = 0
    for i in range(begin, first):
        spaces += data_B[i] & 0xC0 != 0x80
    for i in range(last, stop):
        spaces += data_B[i] & 0xC0 != 0x80
    return spaces
