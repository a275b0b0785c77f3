"""Byte-pair encoding of documents: pre-tokens through a cache, then merges by rank.

Legend: ``offsets_D1`` int64 (D+1), ``data_B`` uint8, the documents; ``tokens_T`` uint32 (B + 1);
``merges_H4`` uint64 (H, 4), ``left << 43 | right << 22 | rank`` (all ones: empty), four pairs a row by hash,
the next row where one is full; ``rank_P`` int32 (65536), the rank of a pair of bytes by ``first << 8 | second``
(MAX_MERGES: none); ``ids_R`` int32, the token that merge r makes; ``byte_ids_256`` int32; ``spellings_Q`` uint8
and ``spelling_offsets_V1`` int64, the bytes of each token; ``cache_H4`` uint64 (H, 4): two words of key,
``n_tokens << 48 | length << 32 | place`` (0: empty), and two tokens or the place of a long key; ``tokens_A``
uint32 and ``bytes_A`` uint8 are the cache's arenas.

The result is that of the definition: join, again and again, the leftmost of the adjacent pairs of lowest rank.
Most pre-tokens are found in the cache (one cache line on a hit, compared byte for byte). Others of up to 126
bytes are merged over an array of ``rank << 7 | position``, with no branch that depends on the text (about 1 us
a pre-token); longer ones with a heap, O(n log n), in windows of bounded size. Windows are joined exactly: a
sequence of tokens is the encoding of its text if and only if every two neighbours are the encoding of theirs
(the first merge across a boundary would also be the first one in those two alone), so a cut is kept only where
the two tokens beside it, encoded together, come back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gristmill.stages.kernels.pretoken_table import key_of, same_bytes
from gristmill.stages.kernels.pretokenize import classify, next_pretoken

SHORT = 126
MAX_TOKENS = (1 << 21) - 1
MAX_MERGES = (1 << 22) - 1
_NOBODY = np.int32(MAX_TOKENS)  # an id that is in no pair
_NONE = np.uint32(MAX_MERGES)  # the rank of what is no pair
_DEAD = np.uint32(MAX_MERGES << 7)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_K = np.uint64(0x9E3779B97F4A7C15)
_RANK = np.uint64(MAX_MERGES)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(0xFFFF)
_S16, _S21, _S22, _S32, _S48 = np.uint64(16), np.uint64(21), np.uint64(22), np.uint64(32), np.uint64(48)


@njit(nogil=True, cache=True)
def fill_merges(merges_M2: Any, merges_H4: Any) -> None:
    """Put each pair and its rank into ``merges_H4``; of a pair given twice the first rank counts."""
    mask = np.uint64(len(merges_H4) - 1)
    for row in range(len(merges_H4)):
        for k in range(4):
            merges_H4[row, k] = _EMPTY
    for rank in range(len(merges_M2)):
        pair = np.uint64(merges_M2[rank, 0]) << _S21 | np.uint64(merges_M2[rank, 1])
        row = ((pair * _K) >> _S32) & mask
        k = 0
        while merges_H4[row, k] != _EMPTY and merges_H4[row, k] >> _S22 != pair:
            k += 1
            if k == 4:
                k = 0
                row = (row + np.uint64(1)) & mask
        if merges_H4[row, k] == _EMPTY:
            merges_H4[row, k] = pair << _S22 | np.uint64(rank)


@njit(inline="always")
def _rank(merges_H4: Any, left: Any, right: Any) -> Any:
    """Rank of a pair of ids, or NONE. Without branches, but for the 2 % of rows that are full."""
    mask = np.uint64(len(merges_H4) - 1)
    pair = np.uint64(left) << _S21 | np.uint64(right)
    row = ((pair * _K) >> _S32) & mask
    while True:
        a, b, c, d = merges_H4[row, 0], merges_H4[row, 1], merges_H4[row, 2], merges_H4[row, 3]
        rank = _RANK
        rank = a & _RANK if a >> _S22 == pair else rank
        rank = b & _RANK if b >> _S22 == pair else rank
        rank = c & _RANK if c >> _S22 == pair else rank
        rank = d & _RANK if d >> _S22 == pair else rank
        if d == _EMPTY or rank != _RANK:
            return np.uint32(rank)
        row = (row + np.uint64(1)) & mask


@njit(nogil=True, cache=True)
def _merge_short(
    data_B: Any, i: int, n: int, merges_H4: Any, rank_P: Any, ids_R: Any, byte_ids_256: Any,
    keys_N: Any, ids_N: Any, next_N: Any, last_N: Any, tokens_T: Any, t: int,
) -> Any:  # fmt: skip
    """Encode `n` <= SHORT bytes at `i` to ``tokens_T[t:]``; returns the number of tokens.

    Symbols stand at 1..n, with nobody at either end.
    """
    ids_N[0] = _NOBODY
    ids_N[n + 1] = _NOBODY
    keys_N[0] = _DEAD
    for k in range(1, n + 1):
        ids_N[k] = byte_ids_256[data_B[i + k - 1]]
        next_N[k] = k + 1
        last_N[k] = k - 1
    for k in range(1, n):
        rank = np.uint32(rank_P[np.int64(data_B[i + k - 1]) << 8 | np.int64(data_B[i + k])])
        keys_N[k] = rank << np.uint32(7) | np.uint32(k)
    keys_N[n] = _DEAD
    while True:
        best = _DEAD
        for k in range(1, n):
            best = min(best, keys_N[k])
        if best == _DEAD:
            break
        k = np.int64(best & np.uint32(127))
        j = next_N[k]
        after = next_N[j]
        before = last_N[k]
        token = ids_R[best >> np.uint32(7)]
        ids_N[k] = token
        next_N[k] = after
        last_N[after] = k
        keys_N[j] = _DEAD
        keys_N[k] = _rank(merges_H4, token, ids_N[after]) << np.uint32(7) | np.uint32(k)
        keys_N[before] = _rank(merges_H4, ids_N[before], token) << np.uint32(7) | np.uint32(before)
    k = np.int64(1)
    count = 0
    while k <= n:
        tokens_T[t + count] = ids_N[k]
        count += 1
        k = np.int64(next_N[k])
    return count


@njit(nogil=True, cache=True)
def _heap_push(heap_N: Any, n: int, key: Any) -> None:
    while n > 0:
        parent = (n - 1) >> 1
        if heap_N[parent] <= key:
            break
        heap_N[n] = heap_N[parent]
        n = parent
    heap_N[n] = key


@njit(nogil=True, cache=True)
def _heap_pop(heap_N: Any, n: int) -> Any:
    """Take the least of `n` keys out."""
    least = heap_N[0]
    key = heap_N[n - 1]
    n -= 1
    at = 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and heap_N[child + 1] < heap_N[child]:
            child += 1
        if heap_N[child] >= key:
            break
        heap_N[at] = heap_N[child]
        at = child
    heap_N[at] = key
    return least


@njit(nogil=True, cache=True)
def _merge_heap(
    data_B: Any, i: int, n: int, merges_H4: Any, ids_R: Any, byte_ids_256: Any,
    heap_N: Any, ids_N: Any, next_N: Any, last_N: Any, tokens_T: Any, t: int,
) -> Any:  # fmt: skip
    """Encode `n` bytes at `i` to ``tokens_T[t:]``; ``heap_N`` has room for 3 `n` keys, the others for `n`."""
    size = 0
    for k in range(n):
        ids_N[k] = byte_ids_256[data_B[i + k]]
        next_N[k] = k + 1
        last_N[k] = k - 1
    for k in range(n - 1):
        rank = _rank(merges_H4, ids_N[k], ids_N[k + 1])
        if rank != _NONE:
            _heap_push(heap_N, size, np.uint64(rank) << _S32 | np.uint64(k))
            size += 1
    while size > 0:
        key = _heap_pop(heap_N, size)
        size -= 1
        k = np.int64(key & _LOW)
        if ids_N[k] < 0 or next_N[k] >= n:
            continue
        j = next_N[k]
        if _rank(merges_H4, ids_N[k], ids_N[j]) != np.uint32(key >> _S32):
            continue
        token = ids_R[key >> _S32]
        ids_N[k] = token
        ids_N[j] = -1
        after = next_N[j]
        next_N[k] = after
        if after < n:
            last_N[after] = k
            rank = _rank(merges_H4, token, ids_N[after])
            if rank != _NONE:
                _heap_push(heap_N, size, np.uint64(rank) << _S32 | np.uint64(k))
                size += 1
        before = last_N[k]
        if before >= 0:
            rank = _rank(merges_H4, ids_N[before], token)
            if rank != _NONE:
                _heap_push(heap_N, size, np.uint64(rank) << _S32 | np.uint64(before))
                size += 1
    k = np.int64(0)
    count = 0
    while k < n:
        tokens_T[t + count] = ids_N[k]
        count += 1
        k = np.int64(next_N[k])
    return count


@njit(nogil=True, cache=True)
def _hold_together(
    a: int, b: int, spellings_Q: Any, spelling_offsets_V1: Any, merges_H4: Any, ids_R: Any, byte_ids_256: Any
) -> bool:
    """Whether tokens `a`, `b` are the encoding of their own bytes."""
    n_a = spelling_offsets_V1[a + 1] - spelling_offsets_V1[a]
    n = n_a + spelling_offsets_V1[b + 1] - spelling_offsets_V1[b]
    both = np.empty(n, np.uint8)
    for k in range(n):
        both[k] = spellings_Q[spelling_offsets_V1[a] + k] if k < n_a else spellings_Q[spelling_offsets_V1[b] + k - n_a]
    tokens = np.empty(n, np.uint32)
    ids, following, last = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    heap = np.empty(3 * n, np.uint64)
    count = _merge_heap(both, 0, n, merges_H4, ids_R, byte_ids_256, heap, ids, following, last, tokens, 0)
    return bool(count == 2 and tokens[0] == a and tokens[1] == b)


@njit(nogil=True, cache=True)
def _merge_long(
    data_B: Any, i: int, n: int, window: int, spellings_Q: Any, spelling_offsets_V1: Any,
    merges_H4: Any, ids_R: Any, byte_ids_256: Any, tokens_T: Any, t: int,
) -> Any:  # fmt: skip
    """Encode a long pre-token in windows of `window` bytes, more where no cut holds; returns the tokens."""
    size = min(n, window)
    heap = np.empty(3 * size, np.uint64)
    ids, following, last = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
    done = 0  # bytes encoded for good
    count = 0  # tokens of them
    failures = 0
    while True:
        span = min(size, n - done)
        got = _merge_heap(
            data_B, i + done, span, merges_H4, ids_R, byte_ids_256, heap, ids, following, last, tokens_T, t + count
        )
        # The window's first token must hold with the one before the cut; else the cut moves one token back.
        if count > 0 and not _hold_together(
            np.int64(tokens_T[t + count - 1]), np.int64(tokens_T[t + count]),
            spellings_Q, spelling_offsets_V1, merges_H4, ids_R, byte_ids_256,
        ):  # fmt: skip
            count -= 1
            token = np.int64(tokens_T[t + count])
            done -= spelling_offsets_V1[token + 1] - spelling_offsets_V1[token]
            failures += 1
            if size < n and (count == 0 or failures % 8 == 0):
                size = min(n, size * 2)
                heap = np.empty(3 * size, np.uint64)
                ids, following = np.empty(size, np.int32), np.empty(size, np.int32)
                last = np.empty(size, np.int32)
            continue
        if done + span == n:
            return count + got
        keep = got - got // 8  # the end of a window is what its missing right side could change
        for k in range(keep):
            token = np.int64(tokens_T[t + count + k])
            done += spelling_offsets_V1[token + 1] - spelling_offsets_V1[token]
        count += keep


@njit(nogil=True, cache=True)
def _encode(
    offsets_D1: Any, data_B: Any, flags_C: Any, style: int, max_digits: int, classes_L: Any,
    merges_H4: Any, rank_P: Any, ids_R: Any, byte_ids_256: Any, spellings_Q: Any, spelling_offsets_V1: Any,
    whole_H4: Any, cache_H4: Any, tokens_A: Any, bytes_A: Any, used_3: Any,
    keys_N: Any, ids_N: Any, next_N: Any, last_N: Any, window: int, tokens_T: Any, token_offsets_D1: Any,
) -> Any:  # fmt: skip
    mask = np.uint64(len(cache_H4) - 1)
    t = np.int64(0)
    for d in range(len(offsets_D1) - 1):
        token_offsets_D1[d] = t
        start = offsets_D1[d]
        n_doc = offsets_D1[d + 1] - start
        classify(data_B, start, start + n_doc, flags_C, classes_L)
        at = np.int64(0)
        while at < n_doc:
            i = start + at
            at = next_pretoken(classes_L, data_B, start, at, n_doc, style, max_digits)
            n = start + at - i
            a, b, h = key_of(data_B, i, n)
            row = h & mask
            hit = False
            info = cache_H4[row, 2]
            while info != 0:
                differ = (cache_H4[row, 0] ^ a) | (cache_H4[row, 1] ^ b) | ((info >> _S32 & _HALF) ^ np.uint64(n))
                if differ == 0 and (n <= 16 or same_bytes(data_B, i, bytes_A, np.int64(cache_H4[row, 3]), n)):
                    hit = True
                    break
                row = (row + np.uint64(1)) & mask
                info = cache_H4[row, 2]
            if hit:
                count = np.int64(info >> _S48)
                if count <= 2 and n <= 16:
                    # Both places are written, whether or not the second counts: one branch less.
                    tokens_T[t] = np.uint32(cache_H4[row, 3] & _LOW)
                    tokens_T[t + 1] = np.uint32(cache_H4[row, 3] >> _S32)
                else:
                    place = np.int64(info & _LOW)
                    for k in range(count):
                        tokens_T[t + k] = tokens_A[place + k]
                t += count
                continue
            count = np.int64(0)
            if len(whole_H4) > 1:
                count = _whole(a, b, h, data_B, i, n, whole_H4, spellings_Q, tokens_T, t)
            if count == 0:
                if n <= SHORT:
                    count = _merge_short(
                        data_B, i, n, merges_H4, rank_P, ids_R, byte_ids_256,
                        keys_N, ids_N, next_N, last_N, tokens_T, t,
                    )  # fmt: skip
                else:
                    count = _merge_long(
                        data_B, i, n, window, spellings_Q, spelling_offsets_V1,
                        merges_H4, ids_R, byte_ids_256, tokens_T, t,
                    )  # fmt: skip
            if n <= SHORT:
                if used_3[0] * 2 >= len(cache_H4) or used_3[1] + n > len(tokens_A) or used_3[2] + n > len(bytes_A):
                    for r in range(len(cache_H4)):
                        cache_H4[r, 2] = 0
                    used_3[:] = 0
                    row = h & mask
                cache_H4[row, 0] = a
                cache_H4[row, 1] = b
                cache_H4[row, 2] = np.uint64(count) << _S48 | np.uint64(n) << _S32 | np.uint64(used_3[1])
                if n <= 16 and count <= 2:
                    second = np.uint64(tokens_T[t + 1]) if count == 2 else np.uint64(0)
                    cache_H4[row, 3] = second << _S32 | np.uint64(tokens_T[t])
                else:
                    for k in range(count):
                        tokens_A[used_3[1] + k] = tokens_T[t + k]
                    used_3[1] += count
                    if n > 16:
                        cache_H4[row, 3] = np.uint64(used_3[2])
                        for k in range(n):
                            bytes_A[used_3[2] + k] = data_B[i + k]
                        used_3[2] += n
                used_3[0] += 1
            t += count
    token_offsets_D1[len(offsets_D1) - 1] = t
    return t


@njit(nogil=True, cache=True)
def _whole(
    a: Any, b: Any, h: Any, data_B: Any, i: int, n: int, whole_H4: Any, spellings_Q: Any, tokens_T: Any, t: int
) -> Any:
    """1 and the token where the pre-token is itself a token (for `ignore_merges`), else 0."""
    mask = np.uint64(len(whole_H4) - 1)
    row = h & mask
    while whole_H4[row, 2] != 0:
        place = whole_H4[row, 2]
        if (
            whole_H4[row, 0] == a
            and whole_H4[row, 1] == b
            and np.int64(place & _HALF) == n
            and (n <= 16 or same_bytes(data_B, i, spellings_Q, np.int64(place >> _S16), n))
        ):
            tokens_T[t] = np.uint32(whole_H4[row, 3])
            return np.int64(1)
        row = (row + np.uint64(1)) & mask
    return np.int64(0)


@njit(nogil=True, cache=True)
def fill_whole(spellings_Q: Any, spelling_offsets_V1: Any, sizes_V: Any, whole_H4: Any) -> None:
    """Put every token of ``sizes_V`` 2 to 65,535 bytes into ``whole_H4``, whose bytes are ``spellings_Q``."""
    mask = np.uint64(len(whole_H4) - 1)
    for v in range(len(sizes_V)):
        start = spelling_offsets_V1[v]
        n = np.int64(sizes_V[v])
        if n < 2 or n > 65535:
            continue
        a, b, h = key_of(spellings_Q, start, n)
        row = h & mask
        while whole_H4[row, 2] != 0:
            row = (row + np.uint64(1)) & mask
        whole_H4[row, 0] = a
        whole_H4[row, 1] = b
        whole_H4[row, 2] = np.uint64(start) << _S16 | np.uint64(n)
        whole_H4[row, 3] = np.uint64(v)


@njit(nogil=True, cache=True)
def _decode_size(tokens_T: Any, spelling_offsets_V1: Any) -> Any:
    size = np.int64(0)
    for k in range(len(tokens_T)):
        v = np.int64(tokens_T[k])
        if v < 0 or v >= len(spelling_offsets_V1) - 1:
            return -1 - k
        size += spelling_offsets_V1[v + 1] - spelling_offsets_V1[v]
    return size


@njit(nogil=True, cache=True)
def _decode(tokens_T: Any, spellings_Q: Any, spelling_offsets_V1: Any, out_B: Any) -> None:
    at = 0
    for k in range(len(tokens_T)):
        v = np.int64(tokens_T[k])
        for i in range(spelling_offsets_V1[v], spelling_offsets_V1[v + 1]):
            out_B[at] = spellings_Q[i]
            at += 1
