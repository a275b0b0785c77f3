"""Normalised units of text and their shingle hashes, in one pass over the UTF-8 bytes.

Legend: ``offsets_D1`` int64 (D+1) and ``data_B`` uint8 as in `views`; ``norm_C`` int32 (0x110000) from
`normal_table`; ``units_M`` uint64 scratch, one 64-bit hash a unit; ``shingles_M`` uint64 scratch.

A unit is a word (a maximal run of letters, digits and spacing marks) or, in scripts written without spaces (Han,
Hiragana, Katakana, Thai, Lao, Khmer, Myanmar), one character. The choice is made character by character, so a
mixed document needs no language and a small edit cannot switch the whole document to another mode. Normalisation
follows FineWeb (Penedo et al. 2024, arXiv:2406.17557): lower case, a run of decimal digits is ``0``, punctuation
and symbols separate, non-spacing marks are stripped after canonical decomposition; compatibility forms (full-width
letters) are folded and invisible format characters dropped besides.

A shingle is the hash of `n` consecutive units. A document of 1 to n-1 units has one shingle over all of them; a
document of no unit has none.

Costs about 1.5 ns a byte and no memory per document: units are produced in blocks of fixed length.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels import unicode
from gristmill.stages.kernels.unicode import decode
from gristmill.stages.kernels.views import Bytes, Offsets

U64: TypeAlias = npt.NDArray[np.uint64]
I32: TypeAlias = npt.NDArray[np.int32]

DROP = 0
SEPARATOR = 1
UNIT = 1 << 24
"""Flag: the character is a unit by itself."""
DIGIT = 1 << 25
"""Flag: a run of such characters counts as one."""

BLOCK = 2048
"""Units produced at a time: units and shingles of a block stay in the first-level cache."""

MAX_N = 64
UNIT_SEED = np.uint64(0x243F6A8885A308D3)
UNIT_FACTOR = np.uint64(0x9E3779B97F4A7C15)
SHINGLE_FACTOR = np.uint64(0xD1342543DE82EF9B)
SHORT_SEED = np.uint64(0x13198A2E03707344)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)

_UNSEGMENTED = (
    unicode.SCRIPT_HAN,
    unicode.SCRIPT_HIRAGANA,
    unicode.SCRIPT_KATAKANA,
    unicode.SCRIPT_THAI,
    unicode.SCRIPT_LAO,
    unicode.SCRIPT_KHMER,
    unicode.SCRIPT_MYANMAR,
)
_DECOMPOSABLE = ((0xC0, 0x3100), (0xFB1D, 0xFB50), (0x11000, 0x12000))
"""Ranges that hold every letter with a canonical decomposition into a letter and non-spacing marks."""


@cache
def normal_table(digits_alike: bool = True, strip_marks: bool = True) -> I32:
    """Return the normalisation table ``norm_C``, int32 (0x110000), read-only.

    Each entry is DROP, SEPARATOR, or the code point to hash with the flags UNIT and DIGIT. With `digits_alike`
    every decimal digit is ``0`` and a run of them is one; without it each digit counts (Arabic-Indic and
    full-width ones as their ASCII value). Stable across Python versions: categories are of the pinned Unicode
    version, and decompositions of assigned characters never change.
    """
    category = unicode.CATEGORY
    folded = unicode.FOLD.astype(np.int32).copy()
    if strip_marks:
        mark = category == unicode.MN
        base = np.arange(unicode.N_CODE_POINTS, dtype=np.int32)
        for start, end in _DECOMPOSABLE:
            for code_point in range(start, end):
                if category[code_point] >= unicode.CN:
                    continue
                parts = unicodedata.normalize("NFD", chr(code_point))
                if len(parts) > 1 and all(mark[ord(part)] for part in parts[1:]):
                    base[code_point] = ord(parts[0])
        folded = base[folded]
    norm_C = folded.copy()
    after = category[folded]
    digit = after == unicode.ND
    separators = np.zeros(256, np.bool_)
    separators[
        [
            *(unicode.PC, unicode.PD, unicode.PS, unicode.PE, unicode.PI, unicode.PF, unicode.PO, unicode.SM),
            *(unicode.SC, unicode.SK, unicode.SO, unicode.ZS, unicode.ZL, unicode.ZP, unicode.CC),
        ]
    ] = True
    if digits_alike:
        norm_C[digit] = DIGIT | ord("0")
    else:
        for code_point in np.flatnonzero(category == unicode.ND):
            norm_C[code_point] = ord("0") + unicodedata.digit(chr(code_point), 0)
    unit = np.isin(unicode.SCRIPT[folded], _UNSEGMENTED) & ~digit
    norm_C[unit] |= UNIT
    norm_C[separators[category] | separators[after]] = SEPARATOR
    dropped = [unicode.CF, unicode.ME] + ([unicode.MN] if strip_marks else [])
    norm_C[np.isin(category, dropped)] = DROP
    norm_C[0x200B] = SEPARATOR  # zero-width space: a word boundary in Thai and Khmer, though category Cf
    norm_C.setflags(write=False)
    return norm_C


@njit(inline="always")
def mix64(x: Any) -> Any:
    """Finalise a 64-bit hash (splitmix64, Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)
def next_units(data_B: Any, i: int, end: int, norm_C: Any, units_M: Any, at: int) -> Any:
    """Fill ``units_M[at:]`` with the units from byte `i` on; return ``(next byte, units in units_M)``.

    Stops at `end` or when the array is full; `i` must lie between two units.
    """
    capacity = units_M.shape[0]
    h = UNIT_SEED
    in_word = False
    was_digit = False
    while i < end:
        byte = data_B[i]
        if byte < 0x80:
            step = 1
            value = norm_C[byte]
        else:
            code_point, step = decode(data_B, i)
            value = norm_C[code_point]
        if value == DROP:
            i += step
            continue
        if value == SEPARATOR or (value & UNIT) != 0:
            if in_word:
                units_M[at] = mix64(h)
                at += 1
                in_word = False
                was_digit = False
                h = UNIT_SEED
                if at == capacity:
                    return i, at
            i += step
            if value != SEPARATOR:
                units_M[at] = mix64((UNIT_SEED ^ np.uint64(value)) * UNIT_FACTOR)
                at += 1
                if at == capacity:
                    return i, at
            continue
        if at == capacity:
            return i, at
        digit = (value & DIGIT) != 0
        if not (digit and was_digit):
            h = (h ^ np.uint64(value)) * UNIT_FACTOR
        was_digit = digit
        in_word = True
        i += step
    if in_word:
        units_M[at] = mix64(h)
        at += 1
    return i, at


@njit(nogil=True, cache=True)
def shingle_block(units_M: Any, n_units: int, n: int, shingles_M: Any) -> int:
    """Hash the ``n_units - n + 1`` shingles of a block into `shingles_M`; return how many. n_units >= n."""
    count = n_units - n + 1
    for i in range(count):
        shingles_M[i] = units_M[i]
    for j in range(1, n):
        for i in range(count):
            shingles_M[i] = shingles_M[i] * SHINGLE_FACTOR + units_M[i + j]
    for i in range(count):
        shingles_M[i] = mix64(shingles_M[i])
    return count


@njit(nogil=True, cache=True)
def short_shingle(units_M: Any, n_units: int) -> Any:
    """Hash all units of a document that has fewer than n; apart from every full shingle."""
    h = SHORT_SEED + np.uint64(n_units)
    for i in range(n_units):
        h = h * SHINGLE_FACTOR + units_M[i]
    return mix64(h)


@njit(nogil=True, cache=True)
def _count_units(offsets_D1: Any, data_B: Any, norm_C: Any, units_M: Any, out_D: Any) -> None:
    for d in range(out_D.shape[0]):
        i = offsets_D1[d]
        end = offsets_D1[d + 1]
        total = 0
        while i < end:
            i, got = next_units(data_B, i, end, norm_C, units_M, 0)
            total += got
        out_D[d] = total


@njit(nogil=True, cache=True)
def document_shingles(
    data_B: Any, i: int, end: int, norm_C: Any, n: int, units_M: Any, shingles_M: Any, out_S: Any, at: int
) -> int:
    """Write all shingles of one document to ``out_S[at:]`` in text order; return the new end."""
    have = 0
    first = True
    while True:
        i, have = next_units(data_B, i, end, norm_C, units_M, have)
        if have >= n:
            count = shingle_block(units_M, have, n, shingles_M)
            out_S[at : at + count] = shingles_M[:count]
            at += count
            keep = n - 1
            for j in range(keep):
                units_M[j] = units_M[have - keep + j]
            have = keep
            first = False
        if i >= end:
            break
    if first and have > 0:
        out_S[at] = short_shingle(units_M, have)
        at += 1
    return at


@njit(nogil=True, cache=True)
def sort_hashes(hashes_S: Any, start: int, stop: int, scratch_S: Any, counts_K: Any) -> None:
    """Sort ``hashes_S[start:stop]``, uniform 64-bit hashes, in place: linear time.

    One scatter by the leading bits leaves about one hash a bucket; insertion does the rest. Buckets of many (a
    document of few distinct shingles) are sorted by comparison. `scratch_S` is as long as the run, `counts_K`
    uint32 (65,537).
    """
    n = stop - start
    if n < 2:
        return
    bits = 1
    while (1 << bits) < n and bits < 16:
        bits += 1
    shift = np.uint64(64 - bits)
    n_buckets = 1 << bits
    counts_K[: n_buckets + 1] = 0
    for i in range(start, stop):
        counts_K[(hashes_S[i] >> shift) + np.uint64(1)] += np.uint32(1)
    for k in range(n_buckets):
        counts_K[k + 1] += counts_K[k]
    for i in range(start, stop):
        k = hashes_S[i] >> shift
        scratch_S[counts_K[k]] = hashes_S[i]
        counts_K[k] += np.uint32(1)
    first = 0
    for k in range(n_buckets):
        last = np.int64(counts_K[k])
        if last - first > 48:
            scratch_S[first:last].sort()
        else:
            for i in range(first + 1, last):
                value = scratch_S[i]
                j = i
                while j > first and scratch_S[j - 1] > value:
                    scratch_S[j] = scratch_S[j - 1]
                    j -= 1
                scratch_S[j] = value
        first = last
    hashes_S[start:stop] = scratch_S[:n]


@njit(nogil=True, cache=True)
def _shingle_sets(
    offsets_D1: Any,
    data_B: Any,
    norm_C: Any,
    n: int,
    units_M: Any,
    shingles_M: Any,
    scratch_S: Any,
    counts_K: Any,
    sets_S: Any,
    ends_D1: Any,
) -> None:
    at = 0
    ends_D1[0] = 0
    for d in range(offsets_D1.shape[0] - 1):
        stop = document_shingles(data_B, offsets_D1[d], offsets_D1[d + 1], norm_C, n, units_M, shingles_M, sets_S, at)
        sort_hashes(sets_S, at, stop, scratch_S, counts_K)
        kept = at
        for i in range(at, stop):
            if i == at or sets_S[i] != sets_S[i - 1]:
                sets_S[kept] = sets_S[i]
                kept += 1
        at = kept
        ends_D1[d + 1] = at


def count_units(offsets_D1: Offsets, data_B: Bytes, norm_C: I32) -> npt.NDArray[np.int64]:
    """Return the number of units of each document, int64 (D)."""
    out_D = np.empty(len(offsets_D1) - 1, np.int64)
    _count_units(offsets_D1, data_B, norm_C, np.empty(BLOCK, np.uint64), out_D)
    return out_D


def shingle_sets(offsets_D1: Offsets, data_B: Bytes, norm_C: I32, n: int) -> tuple[Offsets, U64]:
    """Return the sorted distinct shingle hashes of each document.

    Returns ``(ends_D1, sets_S)``: int64 (D+1) and uint64; document d has ``sets_S[ends_D1[d]:ends_D1[d+1]]``.
    `n` lies in [1, 64].
    """
    units = count_units(offsets_D1, data_B, norm_C)
    shingles = np.where(units >= n, units - n + 1, np.minimum(units, 1))
    sets_S = np.empty(int(shingles.sum()), np.uint64)
    ends_D1 = np.empty(len(offsets_D1), np.int64)
    scratch = (
        np.empty(BLOCK, np.uint64),
        np.empty(BLOCK, np.uint64),
        np.empty(int(shingles.max(initial=0)), np.uint64),
        np.empty((1 << 16) + 1, np.uint32),
    )
    _shingle_sets(offsets_D1, data_B, norm_C, n, *scratch, sets_S, ends_D1)
    return ends_D1, sets_S[: ends_D1[-1]]
