"""Eight bytes at a time: unaligned loads, counts of bits, a hash of byte ranges, copies. For kernels only.

A chunk is eight bytes of the text in one 64-bit number, the first byte lowest. The classes of its bytes come out as
masks of the top bits (`H80`): a byte is in the class where its top bit is set. Sums stay within their byte because
the top bit is taken off before (Lamport, Multiple byte processing with full-word instructions, CACM 1975).

`span_hash` reads a range in such chunks, one multiplication a chunk; `text_hash` is the same in Python. Equal bytes
have equal hashes; different ones collide with a chance of about 2 ** -64 a pair, and those of at most eight bytes
never do.

Legend: ``data_B`` uint8, at least as long as what is asked of it: no index is checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

H80 = np.uint64(0x8080808080808080)
L7F = np.uint64(0x7F7F7F7F7F7F7F7F)
X20 = np.uint64(0x2020202020202020)
ZERO, ONE, TWO, THREE, SEVEN, EIGHT = (np.uint64(n) for n in (0, 1, 2, 3, 7, 8))
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
# 0x80 less the first byte of a range, and 0x80 less the one after its last, in every byte.
_FROM_A, _PAST_Z = np.uint64(0x1F1F1F1F1F1F1F1F), np.uint64(0x0505050505050505)
_FROM_0, _PAST_9 = np.uint64(0x5050505050505050), np.uint64(0x4646464646464646)
SEED = np.uint64(0xA0761D6478BD642F)
FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)

inner = njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For helpers that only kernels call: no array is counted and no entry for Python is compiled."""


def _load(bits: int) -> Any:
    def typed(typing_context: Any, data: Any, index: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            first = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            pointer = builder.gep(first, [arguments[1]])
            number = ir.IntType(bits)
            loaded = builder.load(builder.bitcast(pointer, number.as_pointer()), align=1)
            return builder.zext(loaded, ir.IntType(64)) if bits < 64 else loaded

        return types.uint64(data, types.int64), build

    return typed


load8 = intrinsic(_load(64))
"""``load8(data_B, i)``: the eight bytes from `i` on as uint64, the first lowest."""
load4 = intrinsic(_load(32))
"""``load4(data_B, i)``: the four bytes from `i` on as uint64, the first lowest."""
load1 = intrinsic(_load(8))
"""``load1(data_B, i)``: the byte at `i` as uint64."""


def _count(name: str) -> Any:
    def typed(typing_context: Any, value: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            if name == "ctpop":
                return builder.ctpop(arguments[0])
            zero_is_poison = ir.Constant(ir.IntType(1), 0)
            return getattr(builder, name)(arguments[0], zero_is_poison)

        return types.int64(types.uint64), build

    return typed


ones = intrinsic(_count("ctpop"))
"""``ones(x)``: the number of set bits of a uint64, as int64."""
trailing = intrinsic(_count("cttz"))
"""``trailing(x)``: the number of zero bits below the lowest set bit, 64 for 0, as int64."""
leading = intrinsic(_count("ctlz"))
"""``leading(x)``: the number of zero bits above the highest set bit, 64 for 0, as int64."""


@intrinsic
def copy_bytes(typing_context: Any, to: Any, at: Any, data: Any, start: Any, n: Any) -> Any:
    """Copy ``data[start:start + n]`` to ``to[at:]``, uint8 arrays that do not overlap there."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        source = context.make_array(signature.args[2])(context, builder, arguments[2]).data
        cgutils.raw_memcpy(
            builder, builder.gep(target, [arguments[1]]), builder.gep(source, [arguments[3]]), arguments[4], 1
        )
        return context.get_dummy_value()

    return types.void(to, types.int64, data, types.int64, types.int64), build


@intrinsic
def read_only(typing_context: Any, array: Any) -> Any:
    """Return the same array as one that cannot be written: one compiled helper serves Arrow's buffers and ours."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    return array.copy(readonly=True)(array), build


@inner
def letters_of(chunk: Any) -> Any:
    """Return which bytes are ASCII letters; bytes from 0x80 on have any value here."""
    low = (chunk & L7F) | X20
    return (low + _FROM_A) & ~(low + _PAST_Z)


@inner
def digits_of(chunk: Any) -> Any:
    """Return which bytes are ASCII digits; bytes from 0x80 on have any value here."""
    low = chunk & L7F
    return (low + _FROM_0) & ~(low + _PAST_9)


@inner
def first_bytes(n: Any) -> Any:
    """Return ones in the first `n` bytes, 1 <= n <= 8."""
    return _ALL >> np.uint64(64 - 8 * n)


@inner
def fold(h: Any, chunk: Any) -> Any:
    """Return the hash `h` with one more chunk in it."""
    h = (h ^ chunk) * FACTOR
    return h ^ (h >> _HALF)


@inner
def span_hash(data_B: Any, start: Any, end: Any) -> Any:
    """Return the hash of ``data_B[start:end]``; a last, shorter chunk is filled up with 0xFF, which UTF-8 has not."""
    h = SEED
    while start + 8 <= end:
        h = fold(h, load8(data_B, start))
        start += 8
    if start < end:
        if start + 8 <= len(data_B):
            return fold(h, load8(data_B, start) | ~first_bytes(end - start))
        chunk = ~first_bytes(end - start)
        for j in range(end - start):
            chunk |= load1(data_B, start + j) << np.uint64(8 * j)
        return fold(h, chunk)
    return h


def text_hash(text: bytes) -> int:
    """Return what `span_hash` gives these bytes."""
    h = int(SEED)
    for at in range(0, len(text), 8):
        h = (h ^ int.from_bytes(text[at : at + 8].ljust(8, b"\xff"), "little")) * int(FACTOR) & 0xFFFFFFFFFFFFFFFF
        h ^= h >> 32
    return h
