"""Where to look in a document, in which script it is written, and where its paragraphs lie.

Legend: D documents; S spans, document d is the spans ``span_of_D1[d]:span_of_D1[d+1]`` and span s the bytes
``[starts_S[s], ends_S[s])`` of ``data_B`` (uint8, valid UTF-8). All loops are linear in the bytes looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels import unicode
from gristmill.stages.kernels.views import Bytes, Offsets

I64 = npt.NDArray[np.int64]
Spans = tuple[I64, I64, I64]
"""``(span_of_D1, starts_S, ends_S)``."""

JAPANESE = 255
"""Script number for Han and kana together; the others are those of the Unicode tables."""
KANA_SHARE = 20
"""Han text counts as Japanese from one kana in this many Han and kana letters."""
SNAP = 64
"""A window starts behind, and ends before, the white space nearest to its edge within this many bytes."""


@njit(nogil=True, cache=True, error_model="numpy")
def _fill_windows(offsets_D1: Any, data_B: Any, max_bytes: int, span_of_D1: Any, starts_S: Any, ends_S: Any) -> None:
    for d in range(offsets_D1.shape[0] - 1):
        low, high = offsets_D1[d], offsets_D1[d + 1]
        first = span_of_D1[d]
        n = span_of_D1[d + 1] - first
        width = max_bytes // n
        for w in range(n):
            start, end = low, high
            if n > 1:
                start = low + (high - low - width) * w // (n - 1)
                end = start + width
                if start > low:
                    at = start
                    while at < start + SNAP and data_B[at - 1] > 32:
                        at += 1
                    if data_B[at - 1] > 32:
                        at = start
                        while at < end and (data_B[at] & 0xC0) == 0x80:
                            at += 1
                    start = at
                if end < high:
                    at = end
                    while at > end - SNAP and at > start and data_B[at] > 32:
                        at -= 1
                    if data_B[at] > 32:
                        at = end
                        while at > start and (data_B[at] & 0xC0) == 0x80:
                            at -= 1
                    end = at
            starts_S[first + w] = start
            ends_S[first + w] = end


def windows(offsets_D1: Offsets, data_B: Bytes, max_bytes: int, n_windows: int) -> Spans:
    """Return whole documents, or for those over `max_bytes` bytes `n_windows` windows of equal width.

    The first window starts with the document, the last ends with it, the others are evenly spaced; their edges
    snap to white space within 64 bytes, else to a character. max_bytes 0 means everything; otherwise it must
    be at least 256 x n_windows, n_windows at least 2. Depends on nothing but the document's bytes.
    """
    lengths = np.diff(offsets_D1)
    if max_bytes <= 0:
        return np.arange(len(offsets_D1), dtype=np.int64), offsets_D1[:-1], offsets_D1[1:]
    span_of_D1 = np.zeros(len(offsets_D1), np.int64)
    np.cumsum(np.where(lengths > max_bytes, n_windows, 1), out=span_of_D1[1:])
    starts, ends = np.empty(span_of_D1[-1], np.int64), np.empty(span_of_D1[-1], np.int64)
    _fill_windows(offsets_D1, data_B, max_bytes, span_of_D1, starts, ends)
    return span_of_D1, starts, ends


@njit(nogil=True, cache=True, error_model="numpy")
def _script_profile(
    span_of_D1: Any, starts_S: Any, ends_S: Any, data_B: Any, SCRIPT: Any, IS_ALPHA: Any, count_256: Any,
    script_D: Any, n_script_D: Any, n_letters_D: Any,
) -> None:  # fmt: skip
    for d in range(span_of_D1.shape[0] - 1):
        for k in range(256):
            count_256[k] = 0
        n_ascii: Any = 0
        for s in range(span_of_D1[d], span_of_D1[d + 1]):
            i, end = starts_S[s], ends_S[s]
            while i < end:
                byte = np.int32(data_B[i])
                if byte < 0x80:
                    n_ascii += np.int64(((byte | 32) >= 97) & ((byte | 32) <= 122))
                    i += 1
                    continue
                width = 2 + np.int64(byte >= 0xE0) + np.int64(byte >= 0xF0)
                code = byte & (0x7F >> width)
                for k in range(1, width):
                    code = (code << 6) | np.int32(data_B[i + k] & 0x3F)
                i += width
                # Letters of no one script (Common, Inherited) say nothing: number 0 to 2 are not counted.
                script = SCRIPT[code]
                count_256[script] += np.int64(IS_ALPHA[code] & (script > 2))
        count_256[unicode.SCRIPT_LATIN] += n_ascii
        han = count_256[unicode.SCRIPT_HAN]
        kana = count_256[unicode.SCRIPT_HIRAGANA] + count_256[unicode.SCRIPT_KATAKANA]
        if kana > 0 and kana * KANA_SHARE >= han + kana:
            count_256[unicode.SCRIPT_HAN] = 0
            count_256[unicode.SCRIPT_HIRAGANA] = 0
            count_256[unicode.SCRIPT_KATAKANA] = 0
            count_256[JAPANESE] = han + kana
        best = 0
        total = 0
        for k in range(256):
            total += count_256[k]
            if count_256[k] > count_256[best]:
                best = k
        script_D[d] = best
        n_script_D[d] = count_256[best]
        n_letters_D[d] = total


def script_profile(spans: Spans, data_B: Bytes) -> tuple[npt.NDArray[np.uint8], I64, I64]:
    """Return the commonest script of each document, its letters and all letters: uint8, int64, int64 (D).

    Letters are L* with a script of their own; script 0 where there is none.
    """
    n = len(spans[0]) - 1
    script, n_script, n_letters = np.empty(n, np.uint8), np.empty(n, np.int64), np.empty(n, np.int64)
    _script_profile(
        *spans, data_B, unicode.SCRIPT, unicode.IS_ALPHA, np.empty(256, np.int64), script, n_script, n_letters
    )
    return script, n_script, n_letters


@njit(nogil=True, cache=True, error_model="numpy")
def _fill_paragraphs(
    span_of_D1: Any, starts_S: Any, ends_S: Any, data_B: Any, min_bytes: int, document_Q: Any, starts_Q: Any,
    ends_Q: Any,
) -> int:  # fmt: skip
    """Write the lines of at least `min_bytes` bytes; return their number, also where the arrays are too short."""
    n = 0
    room = document_Q.shape[0]
    for d in range(span_of_D1.shape[0] - 1):
        for s in range(span_of_D1[d], span_of_D1[d + 1]):
            start = starts_S[s]
            end = ends_S[s]
            i = start
            while i <= end:
                if i == end or data_B[i] == 10:
                    if i - start >= min_bytes:
                        if n < room:
                            document_Q[n] = d
                            starts_Q[n] = start
                            ends_Q[n] = i
                        n += 1
                    start = i + 1
                i += 1
    return n


def paragraphs(spans: Spans, data_B: Bytes, min_bytes: int) -> tuple[I64, I64, I64]:
    """Return ``(document_Q, starts_Q, ends_Q)``: lines of at least `min_bytes` bytes inside the spans."""
    empty = np.empty(0, np.int64)
    n = _fill_paragraphs(*spans, data_B, min_bytes, empty, empty, empty)
    document, starts, ends = (np.empty(n, np.int64) for _ in range(3))
    _fill_paragraphs(*spans, data_B, min_bytes, document, starts, ends)
    return document, starts, ends
