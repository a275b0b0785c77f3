"""MinHash signatures and LSH band keys over Arrow string buffers.

Legend: ``offsets_D1``, ``data_B``, ``norm_C`` as in `shingles`; ``a_K``, ``b_K`` uint64 (K) from `permutations`;
``signatures_DK`` uint32 (D, K); ``keys_DN`` uint64 (D, N), one key a band.

Signature (Broder 1997; multiply-shift of Dietzfelbinger et al. 1997 without the shift), with x over the document's
shingle hashes: ``signature[k] = min over x of (a_k * x + b_k) mod 2^32``, a_k odd, so that only the lower halves of a,
x and b count. This integer specification is the contract: the CUDA kernel and any other implementation must be equal
bit for bit. In simulation (3 to 2,000 shingles, similarities of 0.5 to 0.9) bias, spread and banding are those of ideal
permutations, as with the upper half of the product of 64 bits, which costs three times as much.

Four shingles at a time go through the permutations, in vectors of 32-bit numbers: about 10 ns a shingle at K = 112 with
AVX2 on Zen 2, the throughput of the multiplication. A document of no unit has a signature of 2^32 - 1 everywhere and
`n_units` 0: it must not be banded.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels.shingles import (
    BLOCK,
    I32,
    U64,
    mix64,
    next_units,
    shingle_block,
    short_shingle,
)
from gristmill.stages.kernels.views import Bytes, Offsets

U32: TypeAlias = npt.NDArray[np.uint32]

GOLDEN = 0x9E3779B97F4A7C15
EMPTY = np.uint32(0xFFFFFFFF)
BAND_SEED = np.uint64(0xA4093822299F31D0)
BAND_FACTOR = np.uint64(0xD1342543DE82EF9B)


def _splitmix(state: int) -> int:
    mask = (1 << 64) - 1
    z = state & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@cache
def permutations(n_permutations: int, seed: int = 1) -> tuple[U64, U64]:
    """Return ``(a_K, b_K)``, uint64, a_k odd: the splitmix64 stream of `seed`. Pure integers, no library's RNG."""
    words = [_splitmix(seed * 0x632BE59BD9B4E019 + (i + 1) * GOLDEN) for i in range(2 * n_permutations)]
    a_K = np.array([word | 1 for word in words[0::2]], np.uint64)
    b_K = np.array(words[1::2], np.uint64)
    a_K.setflags(write=False)
    b_K.setflags(write=False)
    return a_K, b_K


@njit(nogil=True, cache=True)
def lower_minima(shingles_M: Any, count: int, a_K: Any, b_K: Any, minima_K: Any) -> None:
    """Lower ``minima_K`` by ``shingles_M[:count]``; ``a_K``, ``b_K`` and the minima are uint32."""
    last = count - 1
    for i in range(0, count, 4):  # beyond the end the last one again, which changes nothing
        x = np.uint32(shingles_M[i])
        y = np.uint32(shingles_M[min(i + 1, last)])
        z = np.uint32(shingles_M[min(i + 2, last)])
        w = np.uint32(shingles_M[min(i + 3, last)])
        for k in range(a_K.shape[0]):
            a = a_K[k]
            b = b_K[k]
            least = min(np.uint32(a * x + b), np.uint32(a * y + b), np.uint32(a * z + b), np.uint32(a * w + b))
            minima_K[k] = min(minima_K[k], least)


@njit(nogil=True, cache=True)
def _signatures(
    offsets_D1: Any,
    data_B: Any,
    norm_C: Any,
    n: int,
    a_K: Any,
    b_K: Any,
    units_M: Any,
    shingles_M: Any,
    minima_K: Any,
    signatures_DK: Any,
    n_units_D: Any,
) -> None:
    for d in range(offsets_D1.shape[0] - 1):
        i = offsets_D1[d]
        end = offsets_D1[d + 1]
        minima_K[:] = EMPTY
        have = 0
        total = 0
        while True:
            before = have
            i, have = next_units(data_B, i, end, norm_C, units_M, have)
            total += have - before
            if have >= n:
                count = shingle_block(units_M, have, n, shingles_M)
                lower_minima(shingles_M, count, a_K, b_K, minima_K)
                keep = n - 1
                for j in range(keep):
                    units_M[j] = units_M[have - keep + j]
                have = keep
            if i >= end:
                break
        if 0 < total < n:
            shingles_M[0] = short_shingle(units_M, total)
            lower_minima(shingles_M, 1, a_K, b_K, minima_K)
        n_units_D[d] = total
        for k in range(a_K.shape[0]):
            signatures_DK[d, k] = minima_K[k]


@njit(nogil=True, cache=True)
def _minima_of_sets(
    ends_D1: Any, sets_S: Any, a_K: Any, b_K: Any, shingles_M: Any, minima_K: Any, signatures_DK: Any
) -> None:
    for d in range(ends_D1.shape[0] - 1):
        minima_K[:] = EMPTY
        start = ends_D1[d]
        while start < ends_D1[d + 1]:
            count = min(shingles_M.shape[0], ends_D1[d + 1] - start)
            shingles_M[:count] = sets_S[start : start + count]
            lower_minima(shingles_M, count, a_K, b_K, minima_K)
            start += count
        for k in range(a_K.shape[0]):
            signatures_DK[d, k] = minima_K[k]


@njit(nogil=True, cache=True)
def _band_keys(signatures_DK: Any, rows: int, keys_DN: Any) -> None:
    for d in range(keys_DN.shape[0]):
        for band in range(keys_DN.shape[1]):
            h = BAND_SEED + np.uint64(band)
            for r in range(rows):
                h = (h ^ np.uint64(signatures_DK[d, band * rows + r])) * BAND_FACTOR
                h ^= h >> np.uint64(32)
            keys_DN[d, band] = mix64(h)


def signatures(
    offsets_D1: Offsets, data_B: Bytes, norm_C: I32, n: int, a_K: U64, b_K: U64
) -> tuple[U32, npt.NDArray[np.int64]]:
    """Return ``(signatures_DK, n_units_D)`` of each document: uint32 (D, K) and int64 (D).

    `n` units a shingle, in [1, 64]. See the module's text for the specification.
    """
    n_docs = len(offsets_D1) - 1
    signatures_DK = np.empty((n_docs, len(a_K)), np.uint32)
    n_units_D = np.empty(n_docs, np.int64)
    _signatures(
        offsets_D1,
        data_B,
        norm_C,
        n,
        a_K.astype(np.uint32),
        b_K.astype(np.uint32),
        np.empty(BLOCK, np.uint64),
        np.empty(BLOCK, np.uint64),
        np.empty(len(a_K), np.uint32),
        signatures_DK,
        n_units_D,
    )
    return signatures_DK, n_units_D


def signatures_of_sets(ends_D1: Offsets, sets_S: U64, a_K: U64, b_K: U64) -> U32:
    """Return the signatures of given sets of 64-bit hashes, uint32 (D, K); for tests and comparisons."""
    signatures_DK = np.empty((len(ends_D1) - 1, len(a_K)), np.uint32)
    scratch = np.empty(BLOCK, np.uint64), np.empty(len(a_K), np.uint32)
    _minima_of_sets(ends_D1, sets_S, a_K.astype(np.uint32), b_K.astype(np.uint32), *scratch, signatures_DK)
    return signatures_DK


def band_keys(signatures_DK: U32, bands: int, rows: int) -> U64:
    """Return one 64-bit key a band, uint64 (D, bands), from the first ``bands * rows`` values.

    Keys of different bands are hashed apart, yet the band number must stay a column of its own wherever keys of
    several bands meet.
    """
    if bands * rows > signatures_DK.shape[1]:
        raise ValueError(f"{bands} bands of {rows} rows need {bands * rows} permutations")
    keys_DN = np.empty((len(signatures_DK), bands), np.uint64)
    _band_keys(signatures_DK, rows, keys_DN)
    return keys_DN


def estimate(signatures_DK: U32, left_P: npt.NDArray[np.int64], right_P: npt.NDArray[np.int64]) -> Any:
    """Return the estimated Jaccard similarity of pairs of documents, float64 (P) in [0, 1]."""
    return (signatures_DK[left_P] == signatures_DK[right_P]).mean(axis=1)


def candidate_probability(similarity: Any, bands: int, rows: int) -> Any:
    """Return ``1 - (1 - s^rows)^bands``, the chance that a pair of similarity s shares a band."""
    return 1.0 - (1.0 - np.asarray(similarity, np.float64) ** rows) ** bands


def choose_bands(threshold: float, n_permutations: int, false_negative_weight: float = 0.5) -> tuple[int, int]:
    """Return ``(bands, rows)`` with the least weighted area of false positives below and negatives above.

    The areas are the integrals of the S-curve on [0, threshold] and of its complement on [threshold, 1], as in
    `datasketch` (Zhu 2015; Leskovec et al., Mining of Massive Datasets 3.4). Ties go to more bands.

    Raises:
        ValueError: the threshold is not in (0, 1) or there are no permutations.
    """
    if not 0 < threshold < 1 or n_permutations < 1:
        raise ValueError(f"threshold in (0, 1) and permutations >= 1 needed, got {threshold}, {n_permutations}")
    steps = 1000
    below = (np.arange(steps) + 0.5) / steps * threshold
    above = threshold + (np.arange(steps) + 0.5) / steps * (1 - threshold)
    best = (np.inf, 1, 1)
    for bands in range(n_permutations, 0, -1):
        for rows in range(1, n_permutations // bands + 1):
            positives = candidate_probability(below, bands, rows).mean() * threshold
            negatives = (1 - candidate_probability(above, bands, rows)).mean() * (1 - threshold)
            cost = (1 - false_negative_weight) * positives + false_negative_weight * negatives
            if cost < best[0] - 1e-12:
                best = (float(cost), bands, rows)
    return best[1], best[2]


def bands_for_recall(threshold: float, n_permutations: int, min_recall: float) -> tuple[int, int]:
    """Return ``(bands, rows)`` with the most rows for which a pair at `threshold` is found often enough.

    With verification a false candidate costs time and a missed one is lost, so recall at the threshold decides;
    among all ``bands = n_permutations // rows`` the most selective that reaches `min_recall` is taken, else the
    one with the best recall (one row a band).
    """
    for rows in range(n_permutations, 0, -1):
        bands = min(256, n_permutations // rows)
        if float(candidate_probability(threshold, bands, rows)) >= min_recall:
            return bands, rows
    return min(256, n_permutations), 1


def s_curve(bands: int, rows: int, width: int = 40) -> str:
    """Return the S-curve as text, a line each 0.05 of similarity from 0.3 to 1."""
    lines = [
        f"{bands} bands x {rows} rows = {bands * rows} permutations, midpoint {(1 / bands) ** (1 / rows):.3f}",
        "similarity  candidate",
    ]
    for step in range(6, 21):
        probability = float(candidate_probability(step / 20, bands, rows))
        lines.append(f"      {step / 20:.2f}      {probability:.4f}  {'#' * round(probability * width)}".rstrip())
    return "\n".join(lines)
