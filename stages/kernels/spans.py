"""Repeated spans of text: windows of units sampled by winnowing, and text without the windows that are copies.

Legend: ``offsets_D1``, ``data_B``, ``norm_C`` as in `shingles`; ``units_U`` uint64 and ``starts_U1`` int64, the hash
and first byte of each unit of one document (the end of the text last); an anchor is a window of `n` units that
winnowing picks: ``keys_A`` uint64 its hash, ``document_A`` int64, ``first_A`` int64 its first byte, ``next_A`` int64
the byte where the unit after it starts.

Winnowing (Schleimer, Wilkerson & Aiken 2003) picks the smallest hash of every `w` windows in a row. So two documents
that share n + w - 1 units in a row share an anchor there, and the picked windows of a shared span overlap or touch as
long as w <= n: their union is the span but for at most w - 1 units at either end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels.shingles import (
    DIGIT,
    DROP,
    I32,
    SEPARATOR,
    SHINGLE_FACTOR,
    U64,
    UNIT,
    UNIT_FACTOR,
    UNIT_SEED,
    mix64,
)
from gristmill.stages.kernels.unicode import decode
from gristmill.stages.kernels.views import Bytes, Offsets

I64 = npt.NDArray[np.int64]


@njit(nogil=True, cache=True)
def units_at(data_B: Any, i: int, end: int, norm_C: Any, units_U: Any, starts_U1: Any) -> int:
    """Write the units of one document and the byte where each starts; return how many. As `next_units`."""
    h = UNIT_SEED
    in_word = False
    was_digit = False
    at = 0
    while i < end:
        code_point, step = decode(data_B, i)
        value = norm_C[code_point]
        if value == DROP:
            i += step
            continue
        if value == SEPARATOR or (value & UNIT) != 0:
            if in_word:
                units_U[at] = mix64(h)
                at += 1
                in_word = False
                was_digit = False
                h = UNIT_SEED
            if value != SEPARATOR:
                units_U[at] = mix64((UNIT_SEED ^ np.uint64(value)) * UNIT_FACTOR)
                starts_U1[at] = i
                at += 1
            i += step
            continue
        if not in_word:
            starts_U1[at] = i
        digit = (value & DIGIT) != 0
        if not (digit and was_digit):
            h = (h ^ np.uint64(value)) * UNIT_FACTOR
        was_digit = digit
        in_word = True
        i += step
    if in_word:
        units_U[at] = mix64(h)
        at += 1
    starts_U1[at] = end
    return at


@njit(nogil=True, cache=True)
def _anchors(
    offsets_D1: Any,
    data_B: Any,
    norm_C: Any,
    n: int,
    w: int,
    units_U: Any,
    starts_U1: Any,
    keys_A: Any,
    document_A: Any,
    first_A: Any,
    next_A: Any,
) -> int:
    found = 0
    power = np.uint64(1)
    for _ in range(n):
        power *= SHINGLE_FACTOR
    for d in range(offsets_D1.shape[0] - 1):
        count = units_at(data_B, offsets_D1[d], offsets_D1[d + 1], norm_C, units_U, starts_U1)
        windows = count - n + 1
        if windows < 1:
            continue
        # units_U[i] becomes the hash of the window that starts at unit i; each is read before it is overwritten.
        h = np.uint64(0)
        for i in range(n):
            h = h * SHINGLE_FACTOR + units_U[i]
        for i in range(windows):
            leaving = units_U[i]
            units_U[i] = mix64(h)
            if i + n < count:
                h = h * SHINGLE_FACTOR + units_U[i + n] - leaving * power
        picked = -1
        for stop in range(min(w, windows), windows + 1):
            start = max(0, stop - w)
            best = picked
            if picked < start:
                best = start
                for i in range(start + 1, stop):
                    if units_U[i] <= units_U[best]:
                        best = i
            elif units_U[stop - 1] <= units_U[picked]:
                best = stop - 1
            if best != picked:
                picked = best
                keys_A[found] = units_U[best] | np.uint64(1)
                document_A[found] = d
                first_A[found] = starts_U1[best]
                next_A[found] = starts_U1[best + n]
                found += 1
    return found


@njit(nogil=True, cache=True)
def _is_boundary(data_B: Any, i: int, terminal_C: Any) -> int:
    """Return the length of a sentence end at byte i (a line feed or a terminal character), or 0."""
    if data_B[i] == 10:
        return 1
    if (data_B[i] & 0xC0) == 0x80:
        return 0
    code_point, step = decode(data_B, i)
    return step if terminal_C[code_point] else 0


@njit(nogil=True, cache=True)
def _cut(
    offsets_D1: Any,
    data_B: Any,
    document_A: Any,
    first_A: Any,
    next_A: Any,
    copy_A: Any,
    sentences: bool,
    terminal_C: Any,
    out_D1: Any,
    out_B: Any,
    spans_D: Any,
) -> None:
    at = 0
    out_D1[0] = 0
    a = 0
    n_anchors = document_A.shape[0]
    for d in range(offsets_D1.shape[0] - 1):
        i = offsets_D1[d]
        end = offsets_D1[d + 1]
        spans = 0
        protected = i
        while a < n_anchors and document_A[a] == d:
            if not copy_A[a]:
                protected = max(protected, next_A[a])
                a += 1
                continue
            start = max(first_A[a], protected)
            stop = next_A[a]
            a += 1
            while a < n_anchors and document_A[a] == d and copy_A[a] and first_A[a] <= stop:
                stop = max(stop, next_A[a])
                a += 1
            if a < n_anchors and document_A[a] == d and not copy_A[a]:
                stop = min(stop, first_A[a])
            if sentences and start < stop:
                if not (start == offsets_D1[d] or _ends_sentence(data_B, offsets_D1[d], start, terminal_C)):
                    while start < stop:
                        length = _is_boundary(data_B, start, terminal_C)
                        start += max(1, length)
                        if length > 0:
                            break
                k = stop
                while (
                    k > start
                    and k < end
                    and not ((data_B[k] & 0xC0) != 0x80 and _ends_sentence(data_B, start, k, terminal_C))
                ):
                    k -= 1
                stop = k
            if start < stop and start >= i:
                out_B[at : at + start - i] = data_B[i:start]
                at += start - i
                i = stop
                spans += 1
        out_B[at : at + end - i] = data_B[i:end]
        at += end - i
        out_D1[d + 1] = at
        spans_D[d] = spans


@njit(nogil=True, cache=True)
def _ends_sentence(data_B: Any, start: int, k: int, terminal_C: Any) -> bool:
    """Return whether the character before byte k, white space skipped, ends a sentence."""
    j = k - 1
    while j >= start:
        if data_B[j] == 10:
            return True
        if data_B[j] == 32 or (data_B[j] & 0xC0) == 0x80:
            j -= 1
            continue
        return _is_boundary(data_B, j, terminal_C) > 0
    return False


def anchors(offsets_D1: Offsets, data_B: Bytes, norm_C: I32, n: int, w: int) -> tuple[U64, I64, I64, I64]:
    """Return ``(keys_A, document_A, first_A, next_A)`` in text order; see the module's text. 1 <= w <= n."""
    longest = int(np.diff(offsets_D1).max(initial=0))
    most = int(offsets_D1[-1] - offsets_D1[0]) + len(offsets_D1)
    arrays = np.empty(most, np.uint64), np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    scratch = np.empty(longest + 1, np.uint64), np.empty(longest + 2, np.int64)
    found = _anchors(offsets_D1, data_B, norm_C, n, w, *scratch, *arrays)
    keys_A, document_A, first_A, next_A = arrays
    return keys_A[:found].copy(), document_A[:found].copy(), first_A[:found].copy(), next_A[:found].copy()


def cut_spans(
    offsets_D1: Offsets,
    data_B: Bytes,
    document_A: I64,
    first_A: I64,
    next_A: I64,
    copy_A: npt.NDArray[np.bool_],
    sentences: bool,
    terminal_C: npt.NDArray[np.bool_],
) -> tuple[Offsets, Bytes, I64]:
    """Return ``(offsets_D1, data_B, spans_D)``: the text without the windows that are copies.

    Anchors in text order; those with `copy_A` false are originals, which no cut touches. With `sentences` a cut
    shrinks to whole sentences. Cuts start and end where units start, so never inside a character.
    """
    out_D1 = np.empty(len(offsets_D1), np.int64)
    out_B = np.empty(int(offsets_D1[-1] - offsets_D1[0]), np.uint8)
    spans_D = np.empty(len(offsets_D1) - 1, np.int64)
    _cut(offsets_D1, data_B, document_A, first_A, next_A, copy_A, sentences, terminal_C, out_D1, out_B, spans_D)
    return out_D1, out_B[: out_D1[-1]], spans_D
