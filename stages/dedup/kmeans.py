"""Spherical k-means in integers: the clusters that semantic deduplication looks into.

Trained on the driver on a sample, N x J int16 vectors as `kernels.embedding` makes them. Dot products are exact in
float32, sums of members are integers, ties go to the lower cluster, and the first centroids are the first vectors of
the sample: equal samples make equal centroids, whatever the block size, BLAS or machine.

Costs N k J multiplications an iteration, and N (2 J + 8) + 12 k J bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.stages.kernels.embedding import F32, I16, I64, SCALE

BLOCK_SCORES = 1 << 22
"""Scores held at a time (float32)."""


def assign(vectors_NJ: I16, centroids_KJ: F32) -> I64:
    """Return the centroid with the greatest dot product of each vector, the lowest of equal ones, int64 (N)."""
    out_N = np.empty(len(vectors_NJ), np.int64)
    step = max(1, BLOCK_SCORES // len(centroids_KJ))
    for start in range(0, len(vectors_NJ), step):
        block = vectors_NJ[start : start + step].astype(np.float32)
        out_N[start : start + step] = (block @ centroids_KJ.T).argmax(axis=1)
    return out_N


def train(sample_NJ: I16, n_clusters: int, n_iterations: int) -> F32:
    """Return centroids, float32 (K, J) with whole numbers, K at most `n_clusters` and the distinct vectors.

    The order of the sample matters: its first distinct vectors are the first centroids. An emptied cluster keeps
    its centroid. Stops early when nothing moves.
    """
    _, first = np.unique(sample_NJ, axis=0, return_index=True)
    first.sort()
    centroids: F32 = sample_NJ[first[:n_clusters]].astype(np.float32)
    before: npt.NDArray[np.int64] | None = None
    for _ in range(n_iterations):
        cluster = assign(sample_NJ, centroids)
        if before is not None and np.array_equal(cluster, before):
            break
        before = cluster
        centroids = _means(sample_NJ, cluster, centroids)
    return centroids


def _means(sample_NJ: I16, cluster_N: I64, centroids_KJ: F32) -> F32:
    order = np.argsort(cluster_N, kind="stable")
    ids, starts = np.unique(cluster_N[order], return_index=True)
    moved: Any = centroids_KJ.copy()
    ends = np.append(starts[1:], len(order))
    for cluster, start, end in zip(ids, starts, ends, strict=True):
        total = sample_NJ[order[start:end]].sum(axis=0, dtype=np.int64).astype(np.float64)
        length = np.sqrt((total * total).sum())
        if length > 0:
            moved[cluster] = np.rint(total * (SCALE / length)).astype(np.float32)
    return moved  # type: ignore[no-any-return]
