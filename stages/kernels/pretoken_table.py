"""Counting pre-tokens: an open-addressing hash table over byte strings, and its packed form for the shuffle.

Legend: ``rows_H4`` uint64 (H, 4), H a power of two, one slot a row: two words of key, ``start << 16 | length``
(0: empty) and the count; ``arena_A`` uint8, the bytes of every key; ``fill_2`` int64: keys held, bytes of the
arena used. A key of at most 16 bytes is its own two words, so that a hit touches one cache line; a longer one
has 128 bits of hash there and is compared in the arena: no two keys are ever mixed up.
``lengths_K`` uint16, ``counts_K`` int64 and ``bytes_Q`` uint8 are K keys one after another.

Cost: expected O(bytes), about 60 ns a pre-token; memory 32 bytes a slot, at most half of them used. Pre-tokens
longer than `max_piece` bytes (runs of Chinese, base64) are counted as pieces of that length, cut between
characters: a function of the document alone, so counts do not depend on how documents are spread over tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from gristmill.stages.kernels.hashing import load64
from gristmill.stages.kernels.pretokenize import Pattern, classify, flags, next_pretoken, scratch
from gristmill.stages.kernels.views import Bytes, Offsets

MAX_PIECE = 65_535
_M0 = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(inline="always")
def mix(h: Any) -> Any:
    """Scramble a uint64 (the finaliser of SplitMix64, Steele et al. 2014)."""
    h = (h ^ (h >> np.uint64(30))) * _M1
    h = (h ^ (h >> np.uint64(27))) * _M2
    return h ^ (h >> np.uint64(31))


@njit(inline="always")
def _word(data_B: Any, i: int, n: int) -> Any:
    """Bytes ``i .. i + n`` (n <= 8) as a little-endian uint64, zeros above; reads nothing past the buffer."""
    if n <= 0:
        return np.uint64(0)
    if i + 8 <= len(data_B):
        return load64(data_B, i) & (_ALL >> np.uint64(64 - 8 * n))
    word = np.uint64(0)
    for k in range(n):
        word |= np.uint64(data_B[i + k]) << np.uint64(8 * k)
    return word


@njit(inline="always")
def hash_of(a: Any, b: Any, n: int) -> Any:
    """Return the hash of a key from its two words and its length in bytes."""
    h = (a ^ (np.uint64(n) << np.uint64(58))) * _M1 ^ (b + np.uint64(n)) * _M2
    h = (h ^ (h >> np.uint64(32))) * _M0
    return h ^ (h >> np.uint64(29))


@njit(nogil=True, cache=True)
def _long_key(data_B: Any, i: int, n: int) -> tuple[Any, Any]:
    """128 bits of hash of `n` > 16 bytes."""
    a = np.uint64(n)
    b = np.uint64(~n)
    for k in range(i, i + n - 7, 8):
        word = load64(data_B, k)
        a = (a ^ word) * _M1
        a ^= a >> np.uint64(32)
        b = (b + word) * _M0
        b ^= b >> np.uint64(29)
    word = load64(data_B, i + n - 8)
    return mix(a ^ word), mix(b + word)


@njit(inline="always")
def key_of(data_B: Any, i: int, n: int) -> tuple[Any, Any, Any]:
    """Return two words of key and the hash of the `n` bytes at `i`; the words decide equality if n <= 16."""
    if n <= 16:
        a = _word(data_B, i, min(n, 8))
        b = _word(data_B, i + 8, n - 8)
    else:
        a, b = _long_key(data_B, i, n)
    return a, b, hash_of(a, b, n)


@njit(nogil=True, cache=True)
def same_bytes(data_B: Any, i: int, other_B: Any, j: int, n: int) -> bool:
    """Whether `n` >= 8 bytes at `i` and at `j` are equal."""
    for k in range(0, n - 7, 8):
        if load64(data_B, i + k) != load64(other_B, j + k):
            return False
    return bool(load64(data_B, i + n - 8) == load64(other_B, j + n - 8))


@njit(inline="always")
def _slot_of(rows_H4: Any, arena_A: Any, data_B: Any, i: int, n: int, a: Any, b: Any, h: Any) -> Any:
    """Slot of the key of `n` bytes at `i`, or the empty slot where it belongs."""
    mask = np.uint64(len(rows_H4) - 1)
    slot = h & mask
    while rows_H4[slot, 2] != 0:
        place = rows_H4[slot, 2]
        if (
            rows_H4[slot, 0] == a
            and rows_H4[slot, 1] == b
            and np.int64(place & np.uint64(0xFFFF)) == n
            and (n <= 16 or same_bytes(data_B, i, arena_A, np.int64(place >> np.uint64(16)), n))
        ):
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(nogil=True, cache=True)
def _insert(
    rows_H4: Any, arena_A: Any, fill_2: Any, slot: Any, data_B: Any, i: int, n: int, a: Any, b: Any, count: int
) -> bool:
    """Put a new key into an empty slot; False, and nothing done, where there is no room for it."""
    if fill_2[0] * 2 >= len(rows_H4) or fill_2[1] + n > len(arena_A):
        return False
    start = fill_2[1]
    for k in range(n):
        arena_A[start + k] = data_B[i + k]
    fill_2[0] += 1
    fill_2[1] += n
    rows_H4[slot, 0] = a
    rows_H4[slot, 1] = b
    rows_H4[slot, 2] = (np.uint64(start) << np.uint64(16)) | np.uint64(n)
    rows_H4[slot, 3] = np.uint64(count)
    return True


@njit(nogil=True, cache=True)
def _count(
    offsets_D1: Any,
    data_B: Any,
    docs_S: Any,
    state_3: Any,
    flags_C: Any,
    style: int,
    max_digits: int,
    max_piece: int,
    classes_L: Any,
    rows_H4: Any,
    arena_A: Any,
    fill_2: Any,
) -> bool:
    """Count the documents `docs_S` from ``state_3`` on; False where the table is full."""
    while state_3[0] < len(docs_S):
        d = docs_S[state_3[0]]
        start = offsets_D1[d]
        n = offsets_D1[d + 1] - start
        classify(data_B, start, start + n, flags_C, classes_L)
        i = state_3[1]
        end = state_3[2]  # of the pre-token that a full table interrupted
        while i < n:
            if i >= end:
                end = next_pretoken(classes_L, data_B, start, i, n, style, max_digits)
            j = end
            if end - i > max_piece:
                j = i + max_piece
                while data_B[start + j] & 0xC0 == 0x80 and j > i + max_piece - 3:
                    j -= 1
            a, b, h = key_of(data_B, start + i, j - i)
            slot = _slot_of(rows_H4, arena_A, data_B, start + i, j - i, a, b, h)
            if rows_H4[slot, 2] != 0:
                rows_H4[slot, 3] += np.uint64(1)
            elif not _insert(rows_H4, arena_A, fill_2, slot, data_B, start + i, j - i, a, b, 1):
                state_3[1] = i
                state_3[2] = end
                return False
            i = j
        state_3[0] += 1
        state_3[1] = 0
        state_3[2] = 0
    return True


@njit(nogil=True, cache=True)
def _add_keys(
    lengths_K: Any, counts_K: Any, bytes_Q: Any, state_2: Any, rows_H4: Any, arena_A: Any, fill_2: Any
) -> bool:
    while state_2[0] < len(lengths_K):
        k = state_2[0]
        n = np.int64(lengths_K[k])
        a, b, h = key_of(bytes_Q, state_2[1], n)
        slot = _slot_of(rows_H4, arena_A, bytes_Q, state_2[1], n, a, b, h)
        if rows_H4[slot, 2] != 0:
            rows_H4[slot, 3] += np.uint64(counts_K[k])
        elif not _insert(rows_H4, arena_A, fill_2, slot, bytes_Q, state_2[1], n, a, b, counts_K[k]):
            return False
        state_2[0] += 1
        state_2[1] += n
    return True


@njit(nogil=True, cache=True)
def _rehash(old_H4: Any, rows_H4: Any) -> None:
    mask = np.uint64(len(rows_H4) - 1)
    for old in range(len(old_H4)):
        if old_H4[old, 2] == 0:
            continue
        a, b = old_H4[old, 0], old_H4[old, 1]
        slot = hash_of(a, b, np.int64(old_H4[old, 2] & np.uint64(0xFFFF))) & mask
        while rows_H4[slot, 2] != 0:
            slot = (slot + np.uint64(1)) & mask
        for k in range(4):
            rows_H4[slot, k] = old_H4[old, k]


@njit(nogil=True, cache=True)
def _dump(
    rows_H4: Any, arena_A: Any, buckets: int, keys_G1: Any, bytes_G1: Any, lengths_K: Any, counts_K: Any, bytes_Q: Any
) -> None:
    """Write all keys grouped by bucket; bucket g owns keys ``keys_G1[g]:keys_G1[g+1]``, likewise its bytes."""
    size = np.uint64(buckets)
    for write in range(2):
        for slot in range(len(rows_H4)):
            place = rows_H4[slot, 2]
            if place == 0:
                continue
            n = np.int64(place & np.uint64(0xFFFF))
            h = hash_of(rows_H4[slot, 0], rows_H4[slot, 1], n)
            g = np.int64((h >> np.uint64(40)) % size)
            if write == 0:
                keys_G1[g + 1] += 1
                bytes_G1[g + 1] += n
                continue
            start = np.int64(place >> np.uint64(16))
            lengths_K[keys_G1[g]] = n
            counts_K[keys_G1[g]] = np.int64(rows_H4[slot, 3])
            for k in range(n):
                bytes_Q[bytes_G1[g] + k] = arena_A[start + k]
            keys_G1[g] += 1
            bytes_G1[g] += n
        if write == 0:
            for g in range(buckets):
                keys_G1[g + 1] += keys_G1[g]
                bytes_G1[g + 1] += bytes_G1[g]
    for g in range(buckets, 0, -1):
        keys_G1[g] = keys_G1[g - 1]
        bytes_G1[g] = bytes_G1[g - 1]
    keys_G1[0] = 0
    bytes_G1[0] = 0


class PretokenTable:
    """Counts of pre-tokens. Grows up to `max_slots`; then `add_documents` hands it over in parts.

    `max_slots`: a power of two; half of it is the number of distinct keys held at once. 2**22 is 128 MiB and
    the bytes of about two million keys.
    """

    def __init__(self, max_slots: int = 1 << 22, max_arena: int = 1 << 27) -> None:
        self._max_slots = max_slots
        self._max_arena = max_arena
        self._rows = np.zeros((min(1 << 14, max_slots), 4), np.uint64)
        self._arena = np.empty(min(1 << 18, max_arena), np.uint8)
        self._fill = np.zeros(2, np.int64)

    def __len__(self) -> int:
        return int(self._fill[0])

    def add_documents(
        self,
        offsets_D1: Offsets,
        data_B: Bytes,
        pattern: Pattern,
        max_piece: int,
        docs_S: npt.NDArray[np.int64] | None = None,
        buckets: int = 1,
    ) -> Iterator[tuple[int, bytes]]:
        """Count the pre-tokens of the documents `docs_S` (all by default).

        Yields what `drain` does, each time the table is full; mostly nothing. Must be run to its end.
        """
        docs = np.arange(len(offsets_D1) - 1) if docs_S is None else docs_S
        state = np.zeros(3, np.int64)
        table = flags(pattern)
        style, digits = pattern.style, pattern.max_digits
        classes = scratch(offsets_D1)
        while not _count(
            offsets_D1, data_B, docs, state, table, style, digits, max_piece, classes,
            self._rows, self._arena, self._fill,
        ):  # fmt: skip
            yield from self._make_room(buckets)

    def add_packed(self, payload: bytes) -> None:
        """Add the keys and counts of a payload that `drain` made. Grows without limit."""
        lengths, counts, data = unpack(payload)
        state = np.zeros(2, np.int64)
        while not _add_keys(lengths, counts, data, state, self._rows, self._arena, self._fill):
            self._grow()

    def drain(self, buckets: int = 1) -> Iterator[tuple[int, bytes]]:
        """Yield ``(bucket, payload)`` for each bucket that has keys, and empty the table.

        A key's bucket depends on its bytes alone.
        """
        keys = np.zeros(buckets + 1, np.int64)
        sizes = np.zeros(buckets + 1, np.int64)
        lengths = np.empty(self._fill[0], np.uint16)
        counts = np.empty(self._fill[0], np.int64)
        data = np.empty(self._fill[1], np.uint8)
        _dump(self._rows, self._arena, buckets, keys, sizes, lengths, counts, data)
        self._rows[:] = 0
        self._fill[:] = 0
        for g in range(buckets):
            if keys[g + 1] > keys[g]:
                part = slice(keys[g], keys[g + 1])
                yield g, pack(lengths[part], counts[part], data[sizes[g] : sizes[g + 1]])

    def _make_room(self, buckets: int) -> Iterator[tuple[int, bytes]]:
        if (self._fill[0] * 2 >= len(self._rows) and len(self._rows) >= self._max_slots) or (
            self._fill[1] + MAX_PIECE > len(self._arena) and len(self._arena) >= self._max_arena
        ):
            yield from self.drain(buckets)
        else:
            self._grow()

    def _grow(self) -> None:
        if self._fill[0] * 2 >= len(self._rows):
            rows = np.zeros((len(self._rows) * 2, 4), np.uint64)
            _rehash(self._rows, rows)
            self._rows = rows
        else:
            self._arena = np.concatenate([self._arena, np.empty_like(self._arena)])


def pack(lengths_K: npt.NDArray[np.uint16], counts_K: npt.NDArray[np.int64], bytes_Q: Bytes) -> bytes:
    """Return the keys and counts as one compressed payload (K, raw length, then Zstandard)."""
    raw = lengths_K.tobytes() + counts_K.tobytes() + bytes_Q.tobytes()
    head = np.array([len(lengths_K), len(raw)], np.int64).tobytes()
    return head + pa.Codec("zstd", 1).compress(raw, asbytes=True)


def unpack(payload: bytes) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64], Bytes]:
    """Undo `pack`: ``(lengths_K, counts_K, bytes_Q)``."""
    n, size = np.frombuffer(payload, np.int64, 2).tolist()
    raw = pa.Codec("zstd").decompress(payload[16:], decompressed_size=size, asbytes=True)
    return (
        np.frombuffer(raw, np.uint16, n),
        np.frombuffer(raw[2 * n : 10 * n], np.int64),
        np.frombuffer(raw, np.uint8, offset=10 * n) if size > 10 * n else np.empty(0, np.uint8),
    )


@njit(nogil=True, cache=True)
def thin(lengths_K: Any, bytes_Q: Any, every: int, counts_K: Any) -> None:
    """Keep one in `every` of the keys counted once, by hash, with the count `every`; set the others to 0.

    The expected count of any substring stays what it was, and the choice depends on the keys alone.
    """
    start = np.int64(0)
    for k in range(len(lengths_K)):
        n = np.int64(lengths_K[k])
        if counts_K[k] == 1:
            _, _, h = key_of(bytes_Q, start, n)
            counts_K[k] = every if mix(h) % np.uint64(every) == 0 else 0
        start += n
