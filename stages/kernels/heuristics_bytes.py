"""What the line pass asks of bytes: line ends, words, sentences, hash tables, paragraphs. All O(bytes), no allocation.

Legend: ``data_B`` uint8 valid UTF-8; ``marks_U`` and ``class_U`` uint8 by code point (`heuristics_layout`);
``key_K`` uint64 and ``state_K`` uint8 (0 free, 1 seen once, 2 seen again) hash table.
"""

# ruff: noqa: SIM110 (array names carry shapes; kernels are written as they compile)

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gristmill.stages.kernels import heuristics_layout as k
from gristmill.stages.kernels import unicode as u

BASE = np.uint64(0x9E3779B97F4A7C15)
PARAGRAPH = np.uint64(0xD1B54A32D192ED03)
LONG_WORD_CHARS = 1000


@njit(nogil=True, cache=True)
def clear(array: Any, n: Any) -> None:
    """Set the first `n` entries to 0 (a loop: slice assignment compiles far more code)."""
    for j in range(n):
        array[j] = 0


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def ends_with_ellipsis(data_B: Any, start: Any, stop: Any) -> Any:
    """Return whether the bytes end in ``...`` or U+2026."""
    if stop - start < 3:
        return False
    a, b, c = data_B[stop - 3], data_B[stop - 2], data_B[stop - 1]
    return (a == 46 and b == 46 and c == 46) or (a == 0xE2 and b == 0x80 and c == 0xA6)


@njit(nogil=True, cache=True)
def last_character(data_B: Any, start: Any, stop: Any) -> Any:
    """Return the byte position of the last character before `stop`."""
    i = stop - 1
    while i > start and data_B[i] & 0xC0 == 0x80:
        i -= 1
    return i


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def characters(data_B: Any, start: Any, stop: Any) -> Any:
    """Return the number of characters in ``[start, stop)``."""
    n = 0
    for i in range(start, stop):
        n += data_B[i] & 0xC0 != 0x80
    return n


@njit(nogil=True, cache=True)
def matches(data_B: Any, i: Any, stop: Any, text: Any) -> Any:
    """Return whether the ASCII bytes `text` stand at `i`."""
    if i + len(text) > stop:
        return False
    for j in range(len(text)):
        if data_B[i + j] != text[j]:
            return False
    return True


@njit(nogil=True, cache=True)
def copy_line(data_B: Any, start: Any, stop: Any, class_U: Any, edited_B: Any, at: Any, citations: Any) -> Any:
    """Copy a line, without ``[12]``, ``[]``, ``[edit]`` and ``[citation needed]`` if `citations`; return the end."""
    i = start
    while i < stop:
        b = data_B[i]
        if b == 91 and citations:
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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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
    h = np.uint64(0)
    n_chars = 0
    i = start
    while i <= end:
        breaks = 0
        while i + breaks < end and data_B[i + breaks] == 10:
            breaks += 1
        if i == end or breaks > 1:
            seen, used = remember(key_K, state_K, mask, room, h ^ PARAGRAPH)
            room -= used
            paragraphs += 1
            if seen:
                copies += 1
                copied_chars += n_chars
            h = np.uint64(0)
            n_chars = 0
            if i == end:
                break
            i += breaks
            continue
        b = data_B[i]
        h = h * BASE + np.uint64(b) + np.uint64(1)
        n_chars += b & 0xC0 != 0x80
        i += 1
    return paragraphs, copies, copied_chars


@njit(nogil=True, cache=True)
def count_words_spaces(data_B: Any, begin: Any, first: Any, last: Any, stop: Any) -> Any:
    """Return the number of characters in ``[begin, first)`` and ``[last, stop)``: the white space around a line."""
    spaces = 0
    for i in range(begin, first):
        spaces += data_B[i] & 0xC0 != 0x80
    for i in range(last, stop):
        spaces += data_B[i] & 0xC0 != 0x80
    return spaces
