"""A keyed bijection of [0, n) in O(1) memory: a generalised Feistel network, vectorised, with its inverse.

An index is a pair (L, R) in Z_a x Z_b with a = ceil(sqrt n), b = ceil(n / a). Eight rounds add a keyed hash of
one half to the other, modulo its size; a result >= n walks again (a*b < n + a, so hardly ever). About 60 ns
an index in batches. Keys come from BLAKE2b of (seed, name, epoch), never from seed + epoch: else seed s at
epoch e + 1 would equal seed s + 1 at epoch e. Black and Rogaway 2002, "Ciphers with arbitrary finite domains".
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.packing.errors import ArgumentError, problem

ROUNDS = 8
U64 = npt.NDArray[np.uint64]

_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_M3 = np.uint64(0x9E3779B97F4A7C15)
_S30, _S27, _S31, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


def mix64(x: U64) -> U64:
    """Return splitmix64's finaliser of `x`, a bijection of 64-bit words. Steele et al. 2014."""
    z = x ^ (x >> _S30)
    z *= _M1
    z ^= z >> _S27
    z *= _M2
    z ^= z >> _S31
    return z


def distinct(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the different values, rising. `np.unique` imports `numpy.ma` on first use: a third of a loader's start."""
    rising = np.sort(values, axis=None)
    return rising[np.concatenate([[True], rising[1:] != rising[:-1]])] if len(rising) else rising


def derive_key(seed: int, *parts: object) -> bytes:
    """Return a 64-byte BLAKE2b key of the seed and the parts, each length-prefixed so that none runs over."""
    state = hashlib.blake2b(digest_size=64, person=b"gristmill-order\0")
    for part in (seed, *parts):
        raw = repr(part).encode()
        state.update(len(raw).to_bytes(8, "little") + raw)
    return state.digest()


class Permutation:
    """A pseudo-random bijection of [0, n), chosen by (seed, *parts)."""

    __slots__ = ("_a", "_b", "_keys", "n")

    def __init__(self, n: int, seed: int, *parts: object) -> None:
        """Prepare the rounds; O(1).

        Raises:
            ArgumentError: n outside [1, 2**62].
        """
        if not 1 <= n <= 2**62:
            raise ArgumentError(problem("impossible size", where="Permutation", expected="1 to 2**62", got=n))
        self.n = n
        a = math.isqrt(n - 1) + 1
        self._a = np.uint64(a)
        self._b = np.uint64(-(-n // a))
        self._keys = np.frombuffer(derive_key(seed, *parts), "<u8")

    def __call__(self, index: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Map indices in [0, n) to their places."""
        return self._walk(index, self._forward)

    def inverse(self, place: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Map places back to indices; undoes a call."""
        return self._walk(place, self._backward)

    def _walk(self, values: npt.ArrayLike, once: Any) -> npt.NDArray[np.int64]:
        x = np.atleast_1d(np.asarray(values, np.int64))
        if x.size and (int(x.min()) < 0 or int(x.max()) >= self.n):
            raise ArgumentError(
                problem(
                    "index outside the permutation",
                    where="Permutation",
                    expected=f"[0, {self.n:,})",
                    got=f"{x.min():,} to {x.max():,}",
                )
            )
        y = once(x.astype(np.uint64))
        n = np.uint64(self.n)
        out = np.flatnonzero(y >= n)
        while out.size:
            again = once(y[out])
            y[out] = again
            out = out[again >= n]
        result: npt.NDArray[np.int64] = y.astype(np.int64).reshape(np.shape(values))
        return result

    def _forward(self, x: U64) -> U64:
        left = x // self._b
        right = x - left * self._b
        scratch = (np.empty_like(x), np.empty_like(x))
        for j in range(0, ROUNDS, 2):
            _add(left, right, self._keys[j], self._a, scratch)
            _add(right, left, self._keys[j + 1], self._b, scratch)
        return left * self._b + right

    def _backward(self, x: U64) -> U64:
        left = x // self._b
        right = x - left * self._b
        scratch = (np.empty_like(x), np.empty_like(x))
        for j in range(ROUNDS - 2, -1, -2):
            _subtract(right, left, self._keys[j + 1], self._b, scratch)
            _subtract(left, right, self._keys[j], self._a, scratch)
        return left * self._b + right


def _round(half: U64, key: np.uint64, size: np.uint64, scratch: tuple[U64, U64]) -> U64:
    """Keyed hash of one half, reduced to [0, size) by multiply-high (size <= 2**31, bias below 2**-32)."""
    h, t = scratch
    np.bitwise_xor(half, key, out=h)
    np.multiply(h, _M1, out=h)
    np.right_shift(h, _S30, out=t)
    np.bitwise_xor(h, t, out=h)
    np.multiply(h, _M2, out=h)
    np.right_shift(h, _S27, out=t)
    np.bitwise_xor(h, t, out=h)
    np.multiply(h, _M3, out=h)
    np.right_shift(h, _S32, out=h)
    np.multiply(h, size, out=h)
    np.right_shift(h, _S32, out=h)
    return h


def _add(target: U64, other: U64, key: np.uint64, size: np.uint64, scratch: tuple[U64, U64]) -> None:
    """Add modulo `size`: of x and x - size (mod 2**64) the smaller one is right."""
    h = _round(other, key, size, scratch)
    np.add(target, h, out=target)
    np.subtract(target, size, out=h)
    np.minimum(target, h, out=target)


def _subtract(target: U64, other: U64, key: np.uint64, size: np.uint64, scratch: tuple[U64, U64]) -> None:
    h = _round(other, key, size, scratch)
    np.subtract(target, h, out=target)
    np.add(target, size, out=h)
    np.minimum(target, h, out=target)


class BlockShuffle:
    """Permutes whole blocks of c items, then the items within windows of w blocks; the radius is explicit.

    For stores where a request costs milliseconds: one GET brings c items that are all wanted within the next
    w blocks. Items of an incomplete last block are shuffled among themselves at the end of the epoch.
    """

    __slots__ = ("_blocks", "_full", "_seed", "_window_items", "block_items", "n", "parts", "window_blocks")

    def __init__(self, n: int, block_items: int, window_blocks: int, seed: int, *parts: object) -> None:
        """Prepare a shuffle of [0, n) in blocks of `block_items`, windows of `window_blocks` blocks."""
        if block_items < 1 or window_blocks < 1:
            raise ArgumentError(
                problem(
                    "impossible block shuffle",
                    where="BlockShuffle",
                    expected="block_items and window_blocks of at least 1",
                    got=(block_items, window_blocks),
                )
            )
        self.n = n
        self.block_items = block_items
        self.window_blocks = window_blocks
        self.parts = parts
        self._seed = seed
        self._full = n // block_items
        self._blocks = Permutation(max(self._full, 1), seed, *parts, "blocks")
        self._window_items = block_items * window_blocks

    def __call__(self, index: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Map indices in [0, n) to their places."""
        x = np.atleast_1d(np.asarray(index, np.int64))
        window = x // self._window_items
        within = x - window * self._window_items
        out = np.empty_like(x)
        for w in distinct(window):
            mine = window == w
            out[mine] = self._place(int(w), within[mine])
        return out.reshape(np.shape(index))

    def inverse(self, place: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Map places back to indices."""
        y = np.atleast_1d(np.asarray(place, np.int64))
        block, member = y // self.block_items, y % self.block_items
        slot = np.where(block < self._full, block, 0)
        if self._full:
            slot = self._blocks.inverse(slot)
        slot = np.where(block < self._full, slot, self._full)
        window = slot // self.window_blocks
        local = (slot - window * self.window_blocks) * self.block_items + member
        out = np.empty_like(y)
        for w in distinct(window):
            mine = window == w
            out[mine] = w * self._window_items + self._window(int(w)).inverse(local[mine])
        return out.reshape(np.shape(place))

    def _window(self, w: int) -> Permutation:
        size = min(self._window_items, self.n - w * self._window_items)
        return Permutation(size, self._seed, *self.parts, "window", w)

    def _place(self, w: int, within: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        local = self._window(w)(within)
        slot = w * self.window_blocks + local // self.block_items
        member = local % self.block_items
        block = slot.copy()
        whole = slot < self._full
        if whole.any():
            block[whole] = self._blocks(slot[whole])
        return block * self.block_items + member


class StrataShuffle:
    """Draws from k equal ranges of [0, n) in turn: every window of k, a power of two, holds one item of each range.

    Where items are numbered by cost, neighbours in the run then cost the same together. The order of ranges in a window
    is the van der Corput sequence, scrambled for each window (Owen 1995): every aligned run of 2^q slots holds one item
    of each of 2^q coarser ranges, so that short runs are even too. One permutation P of the windows serves all ranges,
    each shifted by an amount of its own. Ranges have m or m + 1 items; the extra ones, chosen by key, end the epoch.
    """

    __slots__ = ("_extra", "_k", "_long", "_m", "_reversed", "_salt", "_shift", "_starts", "_windows", "n")

    def __init__(self, n: int, n_strata: int, seed: int, *parts: object) -> None:
        """Prepare a shuffle of [0, n) in `n_strata` ranges (rounded down to a power of two, at most n)."""
        if n_strata < 1:
            raise ArgumentError(
                problem("impossible strata", where="StrataShuffle", expected="at least 1", got=n_strata)
            )
        self.n = n
        k = 1 << (min(n_strata, n).bit_length() - 1)
        keys = np.frombuffer(derive_key(seed, *parts, "strata"), "<u8")
        self._k, self._m = k, n // k
        self._starts = np.arange(k + 1, dtype=np.int64) * n // k
        sizes = np.diff(self._starts)
        self._long = np.flatnonzero(sizes > self._m)
        numbers = np.arange(k, dtype=np.uint64)
        self._shift = (mix64(numbers + keys[0]) % np.uint64(self._m)).astype(np.int64)
        self._extra = np.where(
            sizes > self._m, (mix64(numbers + keys[1]) % np.uint64(self._m + 1)).astype(np.int64), -1
        )
        self._salt = keys[2]
        self._reversed = np.zeros(k, np.int64)
        for bit in range(k.bit_length() - 1):
            self._reversed |= ((np.arange(k) >> bit) & 1) << (k.bit_length() - 2 - bit)
        self._windows = Permutation(self._m, seed, *parts, "windows")

    def __call__(self, index: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Map indices in [0, n) to their places."""
        x = np.atleast_1d(np.asarray(index, np.int64))
        window, slot = x // self._k, x % self._k
        last = window == self._m
        stratum = self._scramble(self._reversed[slot], window, undo=False)
        stratum[last] = self._long[slot[last]]
        local = self._windows((np.where(last, 0, window) + self._shift[stratum]) % self._m)
        extra = self._extra[stratum]
        local = np.where(extra >= 0, (local + extra + 1) % (self._m + 1), local)
        local[last] = extra[last]
        return (self._starts[stratum] + local).reshape(np.shape(index))

    def inverse(self, place: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Map places back to indices."""
        y = np.atleast_1d(np.asarray(place, np.int64))
        stratum = np.searchsorted(self._starts, y, side="right") - 1
        local, extra = y - self._starts[stratum], self._extra[stratum]
        last = local == extra
        local = np.where(extra >= 0, (local - extra - 1) % (self._m + 1), local)
        local[last] = 0
        window = (self._windows.inverse(local) - self._shift[stratum]) % self._m
        slot = self._reversed[self._scramble(stratum, window, undo=True)]
        slot[last] = np.searchsorted(self._long, stratum[last])
        window[last] = self._m
        return (window * self._k + slot).reshape(np.shape(place))

    def _scramble(
        self, values: npt.NDArray[np.int64], window: npt.NDArray[np.int64], *, undo: bool
    ) -> npt.NDArray[np.int64]:
        """Flip each bit by a hash of the window and of the bits above it, before they were flipped themselves."""
        bits = self._k.bit_length() - 1
        salt = mix64(window.astype(np.uint64) + self._salt)
        plain, out = np.zeros_like(values), np.zeros_like(values)
        for bit in reversed(range(bits)):
            flip = (mix64(salt + (plain | 1 << (bits - bit)).astype(np.uint64)) & np.uint64(1)).astype(np.int64)
            given = (values >> bit) & 1
            plain = plain << 1 | (given ^ flip if undo else given)
            out |= (given ^ flip) << bit
        return out
