"""Document vectors in integers, and the greedy choice among them.

Legend: D documents, J columns of a vector, T tokens, V entries of a vocabulary, L leaders (kept documents);
``ends_D1``, ``sets_S`` as in `shingles` with one unit a shingle: the distinct unit hashes of each document.

A document's vector is a sum of integers, divided by its length and rounded to `SCALE`: no order of addition, block
size, BLAS or machine can change it. Its norm is at most `MAX_NORM` = 4,096, so every partial sum of a dot product
of two vectors is at most 2^24 (Cauchy-Schwarz) and float32 matrix products of them are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels.shingles import U64, mix64
from gristmill.stages.kernels.views import Offsets

I16 = npt.NDArray[np.int16]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

SCALE = 4000.0
"""Length of a vector before its columns are rounded; 1 / SCALE is the resolution of a column."""
MAX_NORM = 4096.0
MAX_COLUMNS = 4096
WEIGHT_BITS = 18
"""Units share a weight by the leading bits of their hash."""
_LANE = np.uint64(0x9E3779B97F4A7C15)


@njit(nogil=True, cache=True)
def _rounded(sums_J: Any, out_DJ: Any, d: int) -> None:
    total = 0.0
    for j in range(sums_J.shape[0]):
        total += float(sums_J[j]) * float(sums_J[j])
    if total == 0.0:
        out_DJ[d, :] = 0
        return
    factor = SCALE / np.sqrt(total)
    for j in range(sums_J.shape[0]):
        out_DJ[d, j] = np.int16(np.rint(float(sums_J[j]) * factor))


@njit(nogil=True, cache=True)
def _project(ends_D1: Any, sets_S: Any, weight_W: Any, seed: Any, sums_J: Any, out_DJ: Any) -> None:
    shift = np.uint64(64 - WEIGHT_BITS)
    for d in range(out_DJ.shape[0]):
        sums_J[:] = 0
        for s in range(ends_D1[d], ends_D1[d + 1]):
            weight = np.int64(weight_W[sets_S[s] >> shift])
            word = sets_S[s] ^ seed
            for first in range(0, sums_J.shape[0], 64):
                word += _LANE
                signs = mix64(word)
                for j in range(64):
                    bit = np.int64((signs >> np.uint64(j)) & np.uint64(1))
                    sums_J[first + j] += weight - 2 * weight * bit
        _rounded(sums_J, out_DJ, d)


@njit(nogil=True, cache=True)
def _pool(ends_D1: Any, tokens_T: Any, table_VJ: Any, sums_J: Any, out_DJ: Any) -> None:
    for d in range(out_DJ.shape[0]):
        sums_J[:] = 0
        for t in range(ends_D1[d], ends_D1[d + 1]):
            row = tokens_T[t]
            for j in range(sums_J.shape[0]):
                sums_J[j] += np.int64(table_VJ[row, j])
        _rounded(sums_J, out_DJ, d)


def project_units(ends_D1: Offsets, sets_S: U64, weight_W: I32, n_columns: int, seed: int) -> I16:
    """Return the weighted random projection of each document's distinct units, int16 (D, n_columns).

    A unit is `n_columns` signs from its hash (Achlioptas 2003), times its weight; cosines of the sums estimate
    those of the weighted sets of units. `weight_W` int32 (2^WEIGHT_BITS); `n_columns` a multiple of 64. A document
    without units, or whose weights are all 0, is a row of zeros.
    """
    out_DJ = np.empty((len(ends_D1) - 1, n_columns), np.int16)
    start = np.uint64((seed * 0xD1342543DE82EF9B) & ((1 << 64) - 1))
    _project(ends_D1, sets_S, weight_W, start, np.empty(n_columns, np.int64), out_DJ)
    return out_DJ


def pool_tokens(ends_D1: Offsets, tokens_T: I32, table_VJ: I32) -> I16:
    """Return the sum of each document's token vectors, rounded to unit length, int16 (D, J).

    `tokens_T` int32 in [0, V); `table_VJ` int32, at most 2^20 in size so that 2^43 tokens fit.
    """
    out_DJ = np.empty((len(ends_D1) - 1, table_VJ.shape[1]), np.int16)
    _pool(ends_D1, tokens_T, table_VJ, np.empty(table_VJ.shape[1], np.int64), out_DJ)
    return out_DJ


@njit(nogil=True, cache=True)
def nearest_leader(scores_DL: Any, norm_D: Any, norm_L: Any, threshold: float, leader_D: Any, first: int) -> None:
    """Give each document without a leader (-1) the first column whose cosine reaches `threshold`, plus `first`."""
    for d in range(scores_DL.shape[0]):
        if leader_D[d] < 0:
            for column in range(scores_DL.shape[1]):
                if scores_DL[d, column] >= threshold * norm_D[d] * norm_L[column]:
                    leader_D[d] = first + column
                    break


@njit(nogil=True, cache=True)
def new_leaders(scores_DD: Any, norm_D: Any, threshold: float, room: int, leader_D: Any, mate_D: Any) -> int:
    """Decide the documents of one block that no earlier leader has taken, in order; return how many found no room.

    `mate_D` receives the position in the block of the document that takes this one, or -1. Of those that are kept,
    the first `room` take later ones.
    """
    refused = 0
    made = np.empty(scores_DD.shape[0], np.int64)
    n_made = 0
    for d in range(scores_DD.shape[0]):
        mate_D[d] = -1
        if leader_D[d] >= 0:
            continue
        for m in range(n_made):
            other = made[m]
            if scores_DD[d, other] >= threshold * norm_D[d] * norm_D[other]:
                mate_D[d] = other
                break
        if mate_D[d] < 0:
            if n_made < room:
                made[n_made] = d
                n_made += 1
            else:
                refused += 1
    return refused


def norms(vectors_DJ: I16) -> Any:
    """Return the length of each vector, float64 (D): the root of an exact integer."""
    wide = vectors_DJ.astype(np.int64)
    return np.sqrt((wide * wide).sum(axis=1).astype(np.float64))
