"""Connected components in one process: union-find over arrays.

Legend: ``parent_R`` int64 (R), a forest over 0..R-1 whose roots point at themselves; ``a_E``, ``b_E`` int64 (E)
edges. The smaller root always wins, so the root of a component is its smallest member whatever the order of
edges. Path halving (Tarjan & van Leeuwen 1984); about 20 ns an edge while the forest fits in the cache.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

I64: TypeAlias = npt.NDArray[np.int64]


@njit(nogil=True, cache=True)
def find(parent_R: Any, x: int) -> int:
    """Return the root of `x`, halving the path."""
    while parent_R[x] != x:
        parent_R[x] = parent_R[parent_R[x]]
        x = parent_R[x]
    return x


@njit(nogil=True, cache=True)
def union_edges(parent_R: Any, a_E: Any, b_E: Any) -> int:
    """Join the ends of each edge; return how many edges joined two trees."""
    joined = 0
    for e in range(a_E.shape[0]):
        a = find(parent_R, a_E[e])
        b = find(parent_R, b_E[e])
        if a != b:
            joined += 1
            if a < b:
                parent_R[b] = a
            else:
                parent_R[a] = b
    return joined


@njit(nogil=True, cache=True)
def _union_equal(parent_R: Any, order_R: Any, keys_R: Any) -> None:
    for i in range(1, order_R.shape[0]):
        if keys_R[order_R[i]] == keys_R[order_R[i - 1]]:
            a = find(parent_R, order_R[i])
            b = find(parent_R, order_R[i - 1])
            if a < b:
                parent_R[b] = a
            elif b < a:
                parent_R[a] = b


@njit(nogil=True, cache=True)
def _flatten(parent_R: Any) -> None:
    for x in range(parent_R.shape[0]):
        parent_R[x] = find(parent_R, x)


def components(n_nodes: int, a_E: I64, b_E: I64) -> I64:
    """Return the smallest member of each node's component, int64 (n_nodes), of edges over 0..n_nodes-1."""
    parent_R = np.arange(n_nodes, dtype=np.int64)
    union_edges(parent_R, np.ascontiguousarray(a_E, np.int64), np.ascontiguousarray(b_E, np.int64))
    _flatten(parent_R)
    return parent_R


def contract(a_E: I64, b_E: I64) -> tuple[I64, I64]:
    """Return a star forest with the same components: ``(node, smallest node of its component)``, roots left out.

    Node numbers are any int64. At most one edge a node comes back, sorted by node.
    """
    nodes, inverse = np.unique(np.concatenate([a_E, b_E]), return_inverse=True)
    root = components(len(nodes), inverse[: len(a_E)], inverse[len(a_E) :])
    other = np.flatnonzero(root != np.arange(len(nodes)))
    return nodes[other], nodes[root[other]]


def components_of_buckets(keys_RN: npt.NDArray[np.uint64]) -> I64:
    """Return the smallest row of each row's component, rows joined where they share a key in a column.

    `keys_RN` uint64 (R, N), one column a band. Needs 16 bytes a row beyond the input.
    """
    parent_R = np.arange(len(keys_RN), dtype=np.int64)
    for band in range(keys_RN.shape[1]):
        column = np.ascontiguousarray(keys_RN[:, band])
        _union_equal(parent_R, np.argsort(column, kind="stable"), column)
    _flatten(parent_R)
    return parent_R


@njit(nogil=True, cache=True)
def star_step(u_E: Any, v_E: Any, large: bool, state_2: Any, a_E: Any, b_E: Any) -> int:
    """Make one streaming step of large-star or small-star; return the number of edges written.

    Edges come sorted by (u, v), over several calls; ``state_2`` int64 keeps the current u and its smallest
    neighbour m (start with -1 - 2^62, which is no node). Large-star (`large`, both directions of each edge): each
    v > u is linked to min(u, m). Small-star (u > v only): u and each other v are linked to m. From Kiveris et al.
    2014, "Connected Components in MapReduce and Beyond". `a_E`, `b_E` need room for 2 E edges.
    """
    at = 0
    for e in range(u_E.shape[0]):
        u = u_E[e]
        v = v_E[e]
        if u != state_2[0]:
            state_2[0] = u
            state_2[1] = min(u, v)
            if not large:
                a_E[at] = u
                b_E[at] = v
                at += 1
                continue
        m = state_2[1]
        if v != m and (v > u or not large):
            a_E[at] = v
            b_E[at] = m
            at += 1
    return at


@njit(nogil=True, cache=True)
def strip_leaves(u_E: Any, v_E: Any, state_3: Any, a_E: Any, b_E: Any, kind_E: Any) -> Any:
    """Part the leaves of a graph from its core; return ``(rows written, nodes begun)``.

    Edges come both ways, sorted by u, over several calls. A node u whose only neighbour is a smaller v is a leaf:
    (u, v, kind 1). Of any other node, each edge to a smaller one is of the core: (u, v, kind 0). ``state_3`` int64
    keeps the current u, its first neighbour and whether it has been decided (start with no node, 0 and 1); the
    last node is left in it. `a_E`, `b_E`, `kind_E` (int8) need room for E + 1 rows.
    """
    at = 0
    begun = 0
    for e in range(u_E.shape[0]):
        u = u_E[e]
        v = v_E[e]
        if u != state_3[0]:
            if state_3[2] == 0 and state_3[1] < state_3[0]:
                a_E[at] = state_3[0]
                b_E[at] = state_3[1]
                kind_E[at] = 1
                at += 1
            state_3[0] = u
            state_3[1] = v
            state_3[2] = 0
            begun += 1
            continue
        if state_3[2] == 0:
            if v == state_3[1]:
                continue
            state_3[2] = 1
            if state_3[1] < u:
                a_E[at] = u
                b_E[at] = state_3[1]
                kind_E[at] = 0
                at += 1
        if v < u:
            a_E[at] = u
            b_E[at] = v
            kind_E[at] = 0
            at += 1
    return at, begun


@njit(nogil=True, cache=True)
def bucket_stars(
    row_R: Any, band_R: Any, key_R: Any, state_1: Any, least_N: Any, seen_N: Any, a_R: Any, b_R: Any
) -> int:
    """Join the rows of each bucket (band, key) to the smallest one seen so far; return the number of edges.

    Rows come sorted by key, over several calls; bands of one key in any order. ``state_1`` int64 is the current
    key, ``least_N`` int64 and ``seen_N`` bool (256) its smallest row a band; all start as zeros.
    """
    at = 0
    for r in range(row_R.shape[0]):
        if key_R[r] != state_1[0]:
            state_1[0] = key_R[r]
            seen_N[:] = False
        band = band_R[r]
        row = row_R[r]
        if not seen_N[band]:
            seen_N[band] = True
            least_N[band] = row
        elif row != least_N[band]:
            a_R[at] = max(row, least_N[band])
            b_R[at] = min(row, least_N[band])
            least_N[band] = b_R[at]
            at += 1
    return at
