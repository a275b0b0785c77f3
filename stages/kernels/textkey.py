"""128-bit keys of documents that are the same up to white space, or up to case, punctuation, digits and marks.

Legend: ``offsets_D1`` int64 (D+1), ``data_B`` uint8 as in `views`; ``is_space_C`` bool (0x110000); ``norm_C`` int32
from `shingles.normal_table`; ``keys_D2`` uint64 (D, 2).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels.hashing import U64, xxh3_128
from gristmill.stages.kernels.shingles import BLOCK, I32, SHINGLE_FACTOR, mix64, next_units
from gristmill.stages.kernels.unicode import decode
from gristmill.stages.kernels.views import Bytes, Offsets

_FIRST = np.uint64(0x082EFA98EC4E6C89)
_SECOND = np.uint64(0x452821E638D01377)
_SECOND_FACTOR = np.uint64(0x9FB21C651E98DF25)


@njit(nogil=True, cache=True)
def _squeeze(offsets_D1: Any, data_B: Any, is_space_C: Any, out_D1: Any, out_B: Any) -> None:
    at = 0
    out_D1[0] = 0
    for d in range(offsets_D1.shape[0] - 1):
        i = offsets_D1[d]
        end = offsets_D1[d + 1]
        start = at
        pending = False
        while i < end:
            code_point, step = decode(data_B, i)
            if is_space_C[code_point]:
                pending = at > start
                i += step
                continue
            if pending:
                out_B[at] = 32
                at += 1
                pending = False
            for j in range(step):
                out_B[at + j] = data_B[i + j]
            at += step
            i += step
        out_D1[d + 1] = at


@njit(nogil=True, cache=True)
def _unit_keys(offsets_D1: Any, data_B: Any, norm_C: Any, units_M: Any, keys_D2: Any, n_units_D: Any) -> None:
    for d in range(offsets_D1.shape[0] - 1):
        i = offsets_D1[d]
        end = offsets_D1[d + 1]
        h1 = _FIRST
        h2 = _SECOND
        total = 0
        while i < end:
            i, got = next_units(data_B, i, end, norm_C, units_M, 0)
            total += got
            for u in range(got):
                h1 = h1 * SHINGLE_FACTOR + units_M[u]
                h2 = (h2 ^ units_M[u]) * _SECOND_FACTOR
                h2 ^= h2 >> np.uint64(32)
        keys_D2[d, 0] = mix64(h1 + np.uint64(total))
        keys_D2[d, 1] = mix64(h2 ^ np.uint64(total))
        n_units_D[d] = total


def squeeze_spaces(offsets_D1: Offsets, data_B: Bytes, is_space_C: npt.NDArray[np.bool_]) -> tuple[Offsets, Bytes]:
    """Return the documents with each run of white space as one space and none at the ends, offsets from 0."""
    out_D1 = np.empty(len(offsets_D1), np.int64)
    out_B = np.empty(int(offsets_D1[-1] - offsets_D1[0]), np.uint8)
    _squeeze(offsets_D1, data_B, is_space_C, out_D1, out_B)
    return out_D1, out_B[: out_D1[-1]]


def unit_keys(offsets_D1: Offsets, data_B: Bytes, norm_C: I32) -> tuple[U64, npt.NDArray[np.int64]]:
    """Return ``(keys_D2, n_units_D)``: a key over the sequence of normalised units of each document.

    Documents without any unit all have the same key; tell them apart by their bytes.
    """
    keys_D2 = np.empty((len(offsets_D1) - 1, 2), np.uint64)
    n_units_D = np.empty(len(offsets_D1) - 1, np.int64)
    _unit_keys(offsets_D1, data_B, norm_C, np.empty(BLOCK, np.uint64), keys_D2, n_units_D)
    return keys_D2, n_units_D


def exact_keys(
    offsets_D1: Offsets,
    data_B: Bytes,
    normalize: str,
    is_space_C: npt.NDArray[np.bool_],
    norm_C: I32,
) -> U64:
    """Return the key that exact deduplication compares, uint64 (D, 2).

    `normalize`: ``none`` (the bytes), ``spaces`` (see `squeeze_spaces`) or ``units`` (see `unit_keys`; a document
    without units is compared by its bytes).
    """
    if normalize == "spaces":
        return xxh3_128(*squeeze_spaces(offsets_D1, data_B, is_space_C))
    keys_D2 = xxh3_128(offsets_D1, data_B)
    if normalize == "units":
        by_units_D2, n_units_D = unit_keys(offsets_D1, data_B, norm_C)
        return np.where((n_units_D > 0)[:, None], by_units_D2, keys_D2)
    return keys_D2
