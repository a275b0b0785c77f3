"""Exact similarity of shingle sets, and the greedy resolver that verifies LSH candidates with it.

Legend: ``ends_D1`` int64 (D+1) and ``sets_S`` uint64, sorted and distinct within a document, as `shingles`
makes them; ``keys_T`` uint64 band keys of all documents one after the other, ``bands_T`` uint8 their bands,
``tags_D1`` int64 (D+1) the bounds of each document; ``L`` leaders (kept documents) so far; ``slots_H``,
``heads_H``, ``length_H`` an open-addressing hash table of buckets; ``next_P``, ``owner_P`` a pool of list nodes.

The resolver walks documents from best to worst. A document's candidates are the leaders of all documents seen
before it that share a bucket with it. The first candidate (best first) that is similar enough removes it;
otherwise it becomes a leader itself. Either way its buckets then know its leader. So whether a document stays
depends only on better documents: worse ones, other clusters, file layout and partitions cannot change it, which
makes incremental runs equal to one run.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels.shingles import U64, mix64
from gristmill.stages.kernels.views import Offsets

I64: TypeAlias = npt.NDArray[np.int64]
F64: TypeAlias = npt.NDArray[np.float64]

JACCARD = 0
CONTAINMENT = 1
BAND_SALT = np.uint64(0x9E3779B97F4A7C15)


@njit(nogil=True, cache=True)
def ratio(n_shared: int, n_left: int, n_right: int, measure: int) -> float:
    """Return the similarity that `n_shared` common shingles make, in [0, 1]; `right` is the one to be removed."""
    whole = n_right if measure == CONTAINMENT else n_left + n_right - n_shared
    return n_shared / whole if whole > 0 else 0.0


@njit(nogil=True, cache=True)
def similarity_if(
    left_S: Any, i: int, i_end: int, right_S: Any, j: int, j_end: int, measure: int, threshold: float
) -> float:
    """Return the exact similarity of two sorted sets, or -1 where it is below `threshold` (then stopping early)."""
    n_left = i_end - i
    n_right = j_end - j
    most = min(n_left, n_right)
    if ratio(most, n_left, n_right, measure) < threshold:
        return -1.0
    if measure == CONTAINMENT:
        needed = int(threshold * n_right)
    else:
        needed = int(threshold * (n_left + n_right) / (1.0 + threshold))
    needed = max(0, needed - 1)
    while needed < most and ratio(needed, n_left, n_right, measure) < threshold:
        needed += 1
    shared = 0
    while i < i_end and j < j_end:
        if shared + min(i_end - i, j_end - j) < needed:
            return -1.0
        for _ in range(min(64, i_end - i, j_end - j)):
            x = left_S[i]
            y = right_S[j]
            shared += x == y
            i += x <= y
            j += y <= x
    value = ratio(shared, n_left, n_right, measure)
    return value if value >= threshold else -1.0


@njit(nogil=True, cache=True)
def _similarities(
    left_D1: Any, left_S: Any, right_D1: Any, right_S: Any, left_P: Any, right_P: Any, measure: int, out_P: Any
) -> None:
    for p in range(out_P.shape[0]):
        a = left_P[p]
        b = right_P[p]
        out_P[p] = similarity_if(
            left_S, left_D1[a], left_D1[a + 1], right_S, right_D1[b], right_D1[b + 1], measure, 0.0
        )


def similarities(ends_D1: Offsets, sets_S: U64, left_P: I64, right_P: I64, measure: int = JACCARD) -> F64:
    """Return the exact similarity of pairs of documents, float64 (P) in [0, 1]. Two empty sets have 0."""
    out_P = np.empty(len(left_P), np.float64)
    _similarities(ends_D1, sets_S, ends_D1, sets_S, left_P, right_P, measure, out_P)
    return out_P


@njit(nogil=True, cache=True)
def _bucket(slots_H: Any, heads_H: Any, key: Any, band: Any, add: bool) -> int:
    """Return the slot of a bucket, or -1 where it is unknown and not to be added. 0 marks a free slot."""
    wanted = mix64(key ^ (np.uint64(band + 1) * BAND_SALT)) | np.uint64(1)
    mask = slots_H.shape[0] - 1
    at = np.int64(wanted >> np.uint64(1)) & mask
    while slots_H[at] != np.uint64(0):
        if slots_H[at] == wanted:
            return at
        at = (at + 1) & mask
    if not add:
        return -1
    slots_H[at] = wanted
    heads_H[at] = -1
    return at


@njit(nogil=True, cache=True)
def rehash(old_slots_H: Any, old_heads_H: Any, slots_H: Any, heads_H: Any) -> None:
    """Move all buckets to a larger table."""
    mask = slots_H.shape[0] - 1
    for old in range(old_slots_H.shape[0]):
        wanted = old_slots_H[old]
        if wanted != np.uint64(0):
            at = np.int64(wanted >> np.uint64(1)) & mask
            while slots_H[at] != np.uint64(0):
                at = (at + 1) & mask
            slots_H[at] = wanted
            heads_H[at] = old_heads_H[old]


@njit(nogil=True, cache=True)
def resolve(
    forced_D: Any,
    tags_D1: Any,
    keys_T: Any,
    bands_T: Any,
    ends_D1: Any,
    sets_S: Any,
    measure: int,
    threshold: float,
    verify: bool,
    max_bucket: int,
    slots_H: Any,
    heads_H: Any,
    next_P: Any,
    owner_P: Any,
    length_H: Any,
    leader_ends_L1: Any,
    leader_sets_S: Any,
    seen_L: Any,
    counts_4: Any,
    leader_D: Any,
    similarity_D: Any,
) -> None:
    """Resolve documents in order; see the module's text.

    `forced_D` bool: the document is a leader without comparison (it comes from an index). ``counts_4`` int64 is
    state: buckets, list nodes, leaders, tags refused by `max_bucket`. `leader_D` int64 receives the number of
    each document's leader, `similarity_D` the measured similarity (1 for a leader itself). Arrays of the state
    must have room for the whole batch; `seen_L` is -1 at each call. Without `verify` the best candidate removes
    unmeasured (NaN).
    """
    candidates = np.empty(64, np.int64)
    for d in range(forced_D.shape[0]):
        n_candidates = 0
        if not forced_D[d]:
            for t in range(tags_D1[d], tags_D1[d + 1]):
                slot = _bucket(slots_H, heads_H, keys_T[t], bands_T[t], False)
                if slot < 0:
                    continue
                node = heads_H[slot]
                while node >= 0:
                    owner = owner_P[node]
                    if seen_L[owner] != d:
                        seen_L[owner] = d
                        if n_candidates == candidates.shape[0]:
                            wider = np.empty(2 * n_candidates, np.int64)
                            wider[:n_candidates] = candidates
                            candidates = wider
                        candidates[n_candidates] = owner
                        n_candidates += 1
                    node = next_P[node]
            if n_candidates > 1:
                candidates[:n_candidates].sort()
        leader = -1
        similarity = 1.0
        for c in range(n_candidates):
            if not verify:
                leader = candidates[c]
                similarity = np.nan
                break
            owner = candidates[c]
            similarity = similarity_if(
                leader_sets_S,
                leader_ends_L1[owner],
                leader_ends_L1[owner + 1],
                sets_S,
                ends_D1[d],
                ends_D1[d + 1],
                measure,
                threshold,
            )
            if similarity >= 0.0:
                leader = owner
                break
        if leader < 0:
            leader = counts_4[2]
            similarity = 1.0
            counts_4[2] += 1
            start = leader_ends_L1[leader]
            length = ends_D1[d + 1] - ends_D1[d]
            leader_sets_S[start : start + length] = sets_S[ends_D1[d] : ends_D1[d + 1]]
            leader_ends_L1[leader + 1] = start + length
        leader_D[d] = leader
        similarity_D[d] = similarity
        for t in range(tags_D1[d], tags_D1[d + 1]):
            slot = _bucket(slots_H, heads_H, keys_T[t], bands_T[t], True)
            if heads_H[slot] < 0:
                counts_4[0] += 1
                length_H[slot] = 0
            node = heads_H[slot]
            while node >= 0 and owner_P[node] != leader:
                node = next_P[node]
            if node >= 0:
                continue
            if length_H[slot] >= max_bucket:
                counts_4[3] += 1
                continue
            at = counts_4[1]
            counts_4[1] += 1
            owner_P[at] = leader
            next_P[at] = heads_H[slot]
            heads_H[slot] = at
            length_H[slot] += 1
