"""Chinese words by dictionary: the segmentation of highest unigram probability over a trie.

The dictionary is jieba's ``dict.txt`` (MIT licence, Sun Junyi and contributors), stored by `generate_chinese`
as ``words_chinese.npz``. For a run of Han characters, ``best[k] = max over words k..j of log p(word) + best[j]``
is filled from the right, the longest word winning a tie, as ``jieba.cut(HMM=False)`` does within one run. Characters
that no word covers stand alone. Time O(characters x longest match); runs are cut at 1,024 characters, so that the
scratch is bounded. The trie is one hash table over (node, character), 12 MB a process, loaded on first use (70 ms).

Legend: ``trie_edge_K`` uint64 ``child << 40 | node << 16 | character - 0x2E80`` (0: free), the first level apart in
``trie_first_F`` int32 by character; ``trie_score_N`` float64 log probability of the word that ends at a node (-inf:
none), the last entry that of an unknown character; ``han_S`` int32, ``han_best_S``, ``han_next_S`` scratch of a run.
"""

# ruff: noqa: N815 (array names carry their shapes)

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels.bits import inner
from gristmill.stages.kernels.unicode import decode

DICTIONARY_PATH = Path(__file__).with_name("words_chinese.npz")
MAX_RUN = 1024
_MIX = np.uint64(0x9E3779B97F4A7C15)
_KEY = np.uint64((1 << 40) - 1)
_HAN = 19  # words.WC_HAN


class Trie(NamedTuple):
    """The dictionary as kernels take it."""

    edge_K: npt.NDArray[np.uint64]
    first_F: npt.NDArray[np.int32]
    score_N: npt.NDArray[np.float64]


@inner
def _find(edge_K: Any, node: Any, cp: Any) -> Any:
    """Return the child of `node` (not the root) over `cp`, or -1."""
    if cp < 0x2E80 or cp > 0x2E80 + 0xFFFF:
        return np.int64(-1)
    key = (np.uint64(node) << np.uint64(16)) | np.uint64(cp - 0x2E80)
    mask = np.int64(len(edge_K) - 1)
    slot = np.int64((key * _MIX) >> np.uint64(40)) & mask
    while True:
        found = edge_K[slot]
        if found & _KEY == key:
            return np.int64(found >> np.uint64(40))
        if found == 0:
            return np.int64(-1)
        slot = (slot + 1) & mask


@njit(nogil=True, cache=True)
def _build(shared_W: Any, n_new_W: Any, chars_N: Any, log_p_W: Any, edge_K: Any, first_F: Any, score_N: Any) -> None:
    """Insert the sorted words, each given as characters shared with the word before and new ones."""
    n_nodes = 1
    mask = np.int64(len(edge_K) - 1)
    path = np.zeros(256, np.int32)
    for w in range(len(shared_W)):
        depth = np.int64(shared_W[w])
        for _ in range(n_new_W[w]):
            cp = chars_N[n_nodes - 1]
            if depth == 0:
                first_F[cp - 0x2E80] = n_nodes
            else:
                key = (np.uint64(path[depth]) << np.uint64(16)) | np.uint64(cp - 0x2E80)
                slot = np.int64((key * _MIX) >> np.uint64(40)) & mask
                while edge_K[slot] != 0:
                    slot = (slot + 1) & mask
                edge_K[slot] = (np.uint64(n_nodes) << np.uint64(40)) | key
            depth += 1
            path[depth] = n_nodes
            n_nodes += 1
        score_N[path[depth]] = log_p_W[w]


@cache
def load_trie() -> Trie:
    """Return the dictionary, loaded once a process."""
    with np.load(DICTIONARY_PATH, allow_pickle=False) as stored:
        shared, n_new, counts = stored["shared"], stored["n_new"], stored["counts"].astype(np.float64)
        chars = stored["chars"].astype(np.int32)
    n_nodes = len(chars) + 1
    total = counts.sum()
    bits = int(n_nodes * 1.6).bit_length()
    edge_K = np.zeros(1 << bits, np.uint64)
    first_F = np.full(1 << 16, -1, np.int32)
    score_N = np.full(n_nodes + 1, -np.inf)
    log_p = np.log(np.maximum(counts, 1)) - math.log(total)
    _build(shared, n_new, chars, log_p, edge_K, first_F, score_N)
    score_N[n_nodes] = -math.log(total)  # a character that is in no word: count 1
    return Trie(edge_K, first_F, score_N)


def empty_trie() -> Trie:
    """Return a trie without words: every Han character stands alone."""
    return Trie(np.zeros(2, np.uint64), np.full(1 << 16, -1, np.int32), np.zeros(1))


@inner
def segment_han(
    data_B: Any, start: Any, end: Any, word_class_U: Any, edge_K: Any, first_F: Any, score_N: Any,
    han_S: Any, han_best_S: Any, han_next_S: Any,
) -> Any:  # fmt: skip
    """Cut the Han run at byte `start`; return the byte after it.

    ``han_S[:r]`` becomes its characters, ``han_next_S[k]`` the end of the word that starts at character k and
    ``han_next_S[-1]`` the run's length r. Combining marks and selectors inside the run are dropped.
    """
    i = start
    r = 0
    room = len(han_S)
    while i < end:
        cp, n = decode(data_B, i)
        c = word_class_U[cp]
        if c == _HAN:
            if r == room:
                break
            han_S[r] = cp
            r += 1
        elif not 4 <= c <= 6:
            break
        i += n
    unknown = score_N[len(score_N) - 1]
    han_best_S[r] = 0.0
    for k in range(r - 1, -1, -1):
        best = -np.inf
        stop = k + 1
        at = han_S[k] - 0x2E80
        node = np.int64(first_F[at]) if 0 <= at <= 0xFFFF else np.int64(-1)
        first = score_N[node] if node >= 0 else -np.inf
        if first == -np.inf:
            first = unknown
        best = first + han_best_S[k + 1]
        j = k + 1
        while node >= 0 and j < r:
            node = _find(edge_K, node, han_S[j])
            j += 1
            if node >= 0:
                score = score_N[node]
                if score != -np.inf:
                    score += han_best_S[j]
                    if score >= best:
                        best = score
                        stop = j
        han_best_S[k] = best
        han_next_S[k] = stop
    han_next_S[room] = r
    return i
