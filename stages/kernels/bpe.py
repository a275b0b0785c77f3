"""Byte-pair encoding: training from word counts, exactly, on one core.

Legend: ``data_B`` uint8 and ``offsets_W1`` int64 (W+1) are the distinct words, ``counts_W`` int64 how often each
occurs; ``words_S`` int32 holds them as `HEAD` numbers (symbols now, count in two halves) and the symbols, one word
after another, those that begin alike together: a word that is visited costs one place in memory, not one in each
of several arrays, and its neighbours are likely to be visited next; ``pairs_H4`` int64 (H, 4), one adjacent pair
of symbols a row: ``left << 32 | right`` (-1: empty), its count, and where its posting list is in ``postings_P``
(uint32 places of words that hold the pair, or held it); ``heap_N2`` int64 (N, 2), count and pair.

What is computed: start from bytes; while the vocabulary is short, take the pair with the largest count (the
sum of its words' counts over all adjacent positions), of equal ones the smallest left id, then the smallest
right id; give it the next id; replace it everywhere, left to right. Base ids follow GPT-2's order of bytes
(`BYTE_ORDER`), so ties fall as in Hugging Face's trainer. No two merges spell the same token: how a stretch of
bytes between two token boundaries is split depends on the stretch alone, so once a merge has spelled it, it is
whole wherever it stands. Sennrich et al. 2016 (arXiv:1508.07909), over bytes as in Radford et al. 2019.

How: a merge visits only the words on the pair's posting list and changes only the counts beside it, gathered
in dense arrays by neighbour, so that the hash table is touched once a distinct neighbour. Every pair that
comes holds the new token; after the merge that made it a pair's count can only fall. Hence a heap whose
entries are checked when popped is exact, and pairs below `min_count` need never be stored. Cost: O(words
touched) a merge; memory 4 bytes a byte of words, 4 a posting (one or two a byte), 32 a pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels.prefetch import prefetch
from gristmill.stages.kernels.pretoken_table import mix
from gristmill.stages.kernels.views import Bytes, Offsets

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
BYTE_ORDER = np.array([*_PRINTABLE, *(b for b in range(256) if b not in _PRINTABLE)], np.uint8)
"""The byte of each base id: printable Latin-1 first, as GPT-2's vocabulary has them."""
BYTE_ID = np.argsort(BYTE_ORDER).astype(np.int32)
"""The base id of each byte."""
HEAD = 3
"""Numbers before the symbols of a word."""
AHEAD = 6
"""A word is fetched from memory while this many before it are merged."""


@njit(nogil=True, cache=True)
def _find(pairs_H4: Any, pair: int) -> Any:
    """Row of `pair`, or the empty row where it belongs."""
    mask = np.uint64(len(pairs_H4) - 1)
    row = mix(np.uint64(pair)) & mask
    while pairs_H4[row, 0] != pair and pairs_H4[row, 0] != -1:
        row = (row + np.uint64(1)) & mask
    return row


@njit(nogil=True, cache=True)
def _new_pairs(n: int) -> Any:
    pairs_H4 = np.zeros((n, 4), np.int64)
    for row in range(n):
        pairs_H4[row, 0] = -1
    return pairs_H4


@njit(nogil=True, cache=True)
def _set_pair(pairs_H4: Any, pair: int, count: int, first: int, n_words: int) -> None:
    row = _find(pairs_H4, pair)
    pairs_H4[row, 0] = pair
    pairs_H4[row, 1] = count
    pairs_H4[row, 2] = first
    pairs_H4[row, 3] = n_words


@njit(nogil=True, cache=True)
def _copy_pairs(pairs_H4: Any, larger_H4: Any) -> int:
    """Copy the pairs that still occur; returns how many they are."""
    n = 0
    for row in range(len(pairs_H4)):
        if pairs_H4[row, 1] > 0:
            _set_pair(larger_H4, pairs_H4[row, 0], pairs_H4[row, 1], pairs_H4[row, 2], pairs_H4[row, 3])
            n += 1
    return n


@njit(nogil=True, cache=True)
def _before(a_count: int, a_pair: int, b_count: int, b_pair: int) -> bool:
    return a_count > b_count or (a_count == b_count and a_pair < b_pair)


@njit(nogil=True, cache=True)
def _push(heap_N2: Any, n: int, count: int, pair: int) -> None:
    """Add an entry to a heap of `n` entries, which has room."""
    while n > 0:
        parent = (n - 1) >> 1
        if not _before(count, pair, heap_N2[parent, 0], heap_N2[parent, 1]):
            break
        heap_N2[n, 0] = heap_N2[parent, 0]
        heap_N2[n, 1] = heap_N2[parent, 1]
        n = parent
    heap_N2[n, 0] = count
    heap_N2[n, 1] = pair


@njit(nogil=True, cache=True)
def _sink(heap_N2: Any, n: int, count: int, pair: int) -> None:
    """Replace the first of `n` entries."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and _before(
            heap_N2[child + 1, 0], heap_N2[child + 1, 1], heap_N2[child, 0], heap_N2[child, 1]
        ):
            child += 1
        if not _before(heap_N2[child, 0], heap_N2[child, 1], count, pair):
            break
        heap_N2[at, 0] = heap_N2[child, 0]
        heap_N2[at, 1] = heap_N2[child, 1]
        at = child
    heap_N2[at, 0] = count
    heap_N2[at, 1] = pair


@njit(nogil=True, cache=True)
def _longer(rows_N2: Any, n: int) -> Any:
    """Return an array of pairs with room for at least `n` rows and the same content."""
    if n <= len(rows_N2):
        return rows_N2
    larger = np.empty((n * 3 // 2, 2), np.int64)
    for k in range(len(rows_N2)):
        larger[k, 0] = rows_N2[k, 0]
        larger[k, 1] = rows_N2[k, 1]
    return larger


@njit(nogil=True, cache=True)
def _prefixes(offsets_W1: Any, data_B: Any) -> Any:
    """Return the first eight bytes of each word as a big-endian number, uint64 (W)."""
    prefix_W = np.zeros(len(offsets_W1) - 1, np.uint64)
    for w in range(len(prefix_W)):
        n = min(8, offsets_W1[w + 1] - offsets_W1[w])
        for k in range(n):
            prefix_W[w] |= np.uint64(data_B[offsets_W1[w] + k]) << np.uint64(56 - 8 * k)
    return prefix_W


@njit(nogil=True, cache=True)
def _lay_out(offsets_W1: Any, data_B: Any, counts_W: Any, order_W: Any, ids_256: Any, words_S: Any) -> None:
    """Write the words in the given order, in the symbols of single bytes."""
    at = 0
    for w in order_W:
        start, n = offsets_W1[w], offsets_W1[w + 1] - offsets_W1[w]
        words_S[at] = n
        words_S[at + 1] = counts_W[w] & 0xFFFFFFFF
        words_S[at + 2] = counts_W[w] >> 32
        for k in range(n):
            words_S[at + HEAD + k] = ids_256[data_B[start + k]]
        at += HEAD + n


@njit(nogil=True, cache=True)
def _count_of(words_S: Any, at: int) -> Any:
    return np.int64(np.uint32(words_S[at + 1])) | np.int64(words_S[at + 2]) << 32


@njit(nogil=True, cache=True)
def _first_pairs(words_S: Any, min_count: int, sums_P: Any, starts_P1: Any) -> Any:
    """Count the pairs of base ids and return posting lists of those that reach `min_count`."""
    last_P = np.full(65536, -1, np.int64)
    size_P = np.zeros(65536, np.int64)
    at = 0
    while at < len(words_S):
        count = _count_of(words_S, at)
        first, last = at + HEAD, at + HEAD + words_S[at]
        for i in range(first, last - 1):
            p = words_S[i] << 8 | words_S[i + 1]
            sums_P[p] += count
            if last_P[p] != at:
                last_P[p] = at
                size_P[p] += 1
        at = last
    for p in range(65536):
        starts_P1[p + 1] = starts_P1[p] + (size_P[p] if sums_P[p] >= min_count else 0)
    postings_P = np.empty(max(1, starts_P1[65536] * 3 // 2), np.uint32)
    last_P[:] = -1
    size_P[:] = 0
    at = 0
    while at < len(words_S):
        first, last = at + HEAD, at + HEAD + words_S[at]
        for i in range(first, last - 1):
            p = words_S[i] << 8 | words_S[i + 1]
            if last_P[p] != at and sums_P[p] >= min_count:
                last_P[p] = at
                postings_P[starts_P1[p] + size_P[p]] = at
                size_P[p] += 1
        at = last
    return postings_P


@njit(nogil=True, cache=True)
def _merge_word(
    words_S: Any, at: int, a: int, b: int, c: int,
    sums_K: Any, cursors_K: Any, touched_K: Any, events_E2: Any, lost_K: Any, lost_list_K: Any, n_3: Any,
) -> None:  # fmt: skip
    """Replace (a, b) by c in the word at `at`.

    Notes what changes beside c, by neighbour ``symbol * 2 + side`` (side 0: to the left of c): counts of pairs
    that go (``lost_K``) and come (``sums_K``), and an event (neighbour, word) for each that comes. ``n_3``:
    neighbours of pairs that come, events, neighbours of pairs that go.
    """
    n, start, count = np.int64(words_S[at]), at + HEAD, _count_of(words_S, at)
    out = 0
    i = 0
    merged = False
    while i < n:
        x = np.int64(words_S[start + i])
        here = x == a and i + 1 < n and words_S[start + i + 1] == b
        come = np.int64(-1)
        if merged:
            come = 2 * c + 1 if here else 2 * x + 1
        elif here and out > 0:
            come = 2 * np.int64(words_S[start + out - 1])
            if lost_K[come] == 0:
                lost_list_K[n_3[2]] = come
                n_3[2] += 1
            lost_K[come] += count
        if come >= 0:
            if cursors_K[come] == 0:
                touched_K[n_3[0]] = come
                n_3[0] += 1
            sums_K[come] += count
            cursors_K[come] += 1
            events_E2[n_3[1], 0] = come
            events_E2[n_3[1], 1] = at
            n_3[1] += 1
        if here and i + 2 < n:
            go = 2 * np.int64(words_S[start + i + 2]) + 1
            if lost_K[go] == 0:
                lost_list_K[n_3[2]] = go
                n_3[2] += 1
            lost_K[go] += count
        words_S[start + out] = c if here else x
        i += 2 if here else 1
        out += 1
        merged = here
    words_S[at] = out


@njit(nogil=True, cache=True)
def _train(
    words_S: Any, n_ids: int, min_count: int, max_bytes: int, merges_M2: Any, sizes_V: Any
) -> Any:  # fmt: skip
    """Fill ``merges_M2`` and the length of each token in bytes; returns the number of merges."""
    sums_P = np.zeros(65536, np.int64)
    starts_P1 = np.zeros(65537, np.int64)
    postings_P = _first_pairs(words_S, min_count, sums_P, starts_P1)
    n_postings = starts_P1[65536]
    pairs_H4 = _new_pairs(1 << 18)
    heap_N2 = np.empty((1 << 17, 2), np.int64)
    n_heap = 0
    n_pairs = 0
    for p in range(65536):
        if sums_P[p] >= min_count and max_bytes >= 2:
            pair = np.int64(p >> 8) << 32 | np.int64(p & 255)
            _set_pair(pairs_H4, pair, sums_P[p], starts_P1[p], starts_P1[p + 1] - starts_P1[p])
            _push(heap_N2, n_heap, sums_P[p], pair)
            n_heap += 1
            n_pairs += 1
    sizes_V[:256] = 1
    n_tokens = 256
    sums_K = np.zeros(2 * n_ids, np.int64)
    cursors_K = np.zeros(2 * n_ids, np.int64)
    touched_K = np.empty(2 * n_ids, np.int64)
    lost_K = np.zeros(2 * n_ids, np.int64)
    lost_list_K = np.empty(2 * n_ids, np.int64)
    events_E2 = np.empty((1 << 16, 2), np.int64)
    n_3 = np.zeros(3, np.int64)
    while n_tokens < n_ids and n_heap > 0:
        count, pair = heap_N2[0, 0], heap_N2[0, 1]
        row = _find(pairs_H4, pair)
        current = pairs_H4[row, 1]
        if min_count <= current < count:
            _sink(heap_N2, n_heap, current, pair)
            continue
        n_heap -= 1
        _sink(heap_N2, n_heap, heap_N2[n_heap, 0], heap_N2[n_heap, 1])
        if current < min_count:
            continue
        first, n_words = pairs_H4[row, 2], pairs_H4[row, 3]
        pairs_H4[row, 1] = 0
        a, b, c = pair >> 32, pair & 0xFFFFFFFF, np.int64(n_tokens)
        merges_M2[n_tokens - 256, 0] = a
        merges_M2[n_tokens - 256, 1] = b
        sizes_V[c] = sizes_V[a] + sizes_V[b]
        n_tokens += 1
        n_3[:] = 0
        for k in range(first, first + n_words):
            ahead = np.int64(postings_P[min(k + AHEAD, first + n_words - 1)])
            prefetch(words_S, ahead)
            prefetch(words_S, ahead + 16)
            at = np.int64(postings_P[k])
            events_E2 = _longer(events_E2, n_3[1] + 2 * words_S[at])
            _merge_word(words_S, at, a, b, c, sums_K, cursors_K, touched_K, events_E2, lost_K, lost_list_K, n_3)
        for k in range(n_3[2]):
            key = lost_list_K[k]
            old = b << 32 | key >> 1 if key & 1 else (key >> 1) << 32 | a
            row = _find(pairs_H4, old)
            if pairs_H4[row, 0] == old and old != pair:
                pairs_H4[row, 1] -= lost_K[key]
            lost_K[key] = 0
        if (n_pairs + n_3[0]) * 2 >= len(pairs_H4):
            larger = _new_pairs(len(pairs_H4) * 2)
            n_pairs = _copy_pairs(pairs_H4, larger)
            pairs_H4 = larger
        heap_N2 = _longer(heap_N2, n_heap + n_3[0])
        n_new = 0
        for k in range(n_3[0]):
            key = touched_K[k]
            n_here, total = cursors_K[key], sums_K[key]
            sums_K[key] = 0
            cursors_K[key] = -1
            if total < min_count or sizes_V[c] + sizes_V[key >> 1] > max_bytes:
                continue
            new = c << 32 | key >> 1 if key & 1 else (key >> 1) << 32 | c
            cursors_K[key] = n_postings + n_new
            _set_pair(pairs_H4, new, total, n_postings + n_new, n_here)
            _push(heap_N2, n_heap, total, new)
            n_new += n_here
            n_heap += 1
            n_pairs += 1
        if n_postings + n_new > len(postings_P):
            old_P = postings_P
            postings_P = np.empty((n_postings + n_new) * 3 // 2, np.uint32)
            for k in range(n_postings):
                postings_P[k] = old_P[k]
        n_postings += n_new
        for e in range(n_3[1]):
            key = events_E2[e, 0]
            if cursors_K[key] >= 0:
                postings_P[cursors_K[key]] = events_E2[e, 1]
                cursors_K[key] += 1
        for k in range(n_3[0]):
            cursors_K[touched_K[k]] = 0
    return n_tokens - 256


def train(
    offsets_W1: Offsets,
    data_B: Bytes,
    counts_W: I64,
    n_tokens: int,
    min_count: int = 2,
    max_token_bytes: int = 1 << 30,
) -> I32:
    """Train byte-level BPE on distinct words and their counts.

    Returns ``merges_M2`` int32 (M, 2): the ids that merge r joins to id ``256 + r``; ids 0..255 are the bytes
    `BYTE_ORDER`. At most ``n_tokens - 256`` merges; fewer where no pair occurs `min_count` times. No token gets
    longer than `max_token_bytes`. The order of the words does not matter.

    Raises:
        ValueError: fewer than 256 tokens, or a count that is not positive, or more than 2**32 bytes of words
            (each with 3 more).
    """
    if n_tokens < 256:
        raise ValueError(f"a byte-level vocabulary has at least 256 tokens, got {n_tokens:,}")
    size = int(offsets_W1[-1] - offsets_W1[0]) + HEAD * len(counts_W)
    if size > 2**32 or (len(counts_W) and int(counts_W.min()) < 1):
        raise ValueError(f"counts must be positive, and words at most 2**32 bytes with 3 more each, got {size:,}")
    words = np.empty(size, np.int32)
    order = np.argsort(_prefixes(offsets_W1, data_B), kind="stable")
    _lay_out(offsets_W1, data_B, counts_W, order, BYTE_ID, words)
    merges = np.empty((n_tokens - 256, 2), np.int32)
    sizes = np.zeros(n_tokens, np.int64)
    n = _train(words, n_tokens, max(1, min_count), max_token_bytes, merges, sizes)
    return merges[:n].copy()


def spell(merges_M2: I32) -> list[bytes]:
    """Return the bytes of each token of a trained vocabulary, by id."""
    tokens = [bytes([b]) for b in BYTE_ORDER.tolist()]
    for left, right in merges_M2.tolist():
        tokens.append(tokens[left] + tokens[right])
    return tokens
