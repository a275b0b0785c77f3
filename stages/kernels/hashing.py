"""XXH3 in 64 and 128 bits over Arrow string buffers, equal to the reference implementation for every length.

Legend: ``offsets_D1`` int64 (D+1), document d is ``data_B[offsets_D1[d]:offsets_D1[d+1]]``; ``data_B`` uint8;
``secret_S`` uint8 (192), XXH3's secret; ``long_S`` the secret that inputs over 240 bytes use (it depends on
the seed). The algorithm is Yann Collet's XXH3 (xxHash specification, 2019-2023). Cost: one pass, no allocation.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit, types
from numba.extending import intrinsic

from gristmill.stages.kernels.views import Bytes, Offsets, text_view

U64: TypeAlias = npt.NDArray[np.uint64]

SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
        "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
        "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    np.uint8,
)

P32_1 = np.uint64(0x9E3779B1)
P32_2 = np.uint64(0x85EBCA77)
P32_3 = np.uint64(0xC2B2AE3D)
P64_1 = np.uint64(0x9E3779B185EBCA87)
P64_2 = np.uint64(0xC2B2AE3D27D4EB4F)
P64_3 = np.uint64(0x165667B19E3779F9)
P64_4 = np.uint64(0x85EBCA77C2B2AE63)
P64_5 = np.uint64(0x27D4EB2F165667C5)
MX1 = np.uint64(0x165667919E3779F9)
MX2 = np.uint64(0x9FB21C651E98DF25)
LOW32 = np.uint64(0xFFFFFFFF)


def _loader(bits: int) -> Any:
    @intrinsic
    def load(typing_context: Any, data_B: Any, i: Any) -> Any:
        """Unaligned little-endian load of `bits` bits at byte `i`, widened to uint64."""
        signature = types.uint64(data_B, types.int64)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            from llvmlite import ir

            array = context.make_array(sig.args[0])(context, builder, args[0])
            pointer = builder.gep(array.data, [args[1]])
            typed = builder.bitcast(pointer, ir.IntType(bits).as_pointer())
            value = builder.load(typed, align=1)
            return builder.zext(value, ir.IntType(64)) if bits < 64 else value

        return signature, codegen

    return load


load64 = _loader(64)
load32 = _loader(32)


@intrinsic
def multiply_high(typing_context: Any, a: Any, b: Any) -> Any:
    """High 64 bits of the 128-bit product of two uint64."""
    signature = types.uint64(types.uint64, types.uint64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        from llvmlite import ir

        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return signature, codegen


@intrinsic
def swap64(typing_context: Any, a: Any) -> Any:
    """Reverse the bytes of a uint64."""
    signature = types.uint64(types.uint64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return signature, codegen


@njit(inline="always")
def _fold(a: np.uint64, b: np.uint64) -> Any:
    return multiply_high(a, b) ^ (a * b)


@njit(inline="always")
def _avalanche64(h: np.uint64) -> Any:
    h = (h ^ (h >> np.uint64(33))) * P64_2
    h = (h ^ (h >> np.uint64(29))) * P64_3
    return h ^ (h >> np.uint64(32))


@njit(inline="always")
def _avalanche(h: np.uint64) -> Any:
    h = (h ^ (h >> np.uint64(37))) * MX1
    return h ^ (h >> np.uint64(32))


@njit(inline="always")
def _mix16(data_B: Any, i: int, secret_S: Any, s: int, seed: np.uint64) -> Any:
    return _fold(
        load64(data_B, i) ^ (load64(secret_S, s) + seed),
        load64(data_B, i + 8) ^ (load64(secret_S, s + 8) - seed),
    )


@njit(nogil=True, cache=True)
def _mix32(low: Any, high: Any, data_B: Any, i: int, j: int, secret_S: Any, s: int, seed: Any) -> Any:
    low = (low + _mix16(data_B, i, secret_S, s, seed)) ^ (load64(data_B, j) + load64(data_B, j + 8))
    high = (high + _mix16(data_B, j, secret_S, s + 16, seed)) ^ (load64(data_B, i) + load64(data_B, i + 8))
    return low, high


@njit(nogil=True, cache=True)
def _merge(a0: Any, a1: Any, a2: Any, a3: Any, a4: Any, a5: Any, a6: Any, a7: Any, long_S: Any, s: int, h: Any) -> Any:
    h += _fold(a0 ^ load64(long_S, s), a1 ^ load64(long_S, s + 8))
    h += _fold(a2 ^ load64(long_S, s + 16), a3 ^ load64(long_S, s + 24))
    h += _fold(a4 ^ load64(long_S, s + 32), a5 ^ load64(long_S, s + 40))
    h += _fold(a6 ^ load64(long_S, s + 48), a7 ^ load64(long_S, s + 56))
    return _avalanche(h)


@njit(nogil=True, cache=True)
def _long(data_B: Any, start: int, n: int, long_S: Any) -> Any:
    """Hash inputs over 240 bytes: eight 64-bit lanes, stripes of 64 bytes, a scramble each 16 stripes."""
    a0, a1, a2, a3 = P32_3, P64_1, P64_2, P64_3
    a4, a5, a6, a7 = P64_4, P32_2, P64_5, P32_1
    s32 = np.uint64(32)
    s47 = np.uint64(47)
    n_stripes = (n - 1) // 64
    for stripe in range(n_stripes + 1):
        i = start + stripe * 64
        k = (stripe & 15) * 8
        if stripe == n_stripes:
            i = start + n - 64
            k = 192 - 64 - 7
        v0, v1, v2, v3 = (
            load64(data_B, i),
            load64(data_B, i + 8),
            load64(data_B, i + 16),
            load64(data_B, i + 24),
        )
        v4, v5, v6, v7 = (
            load64(data_B, i + 32),
            load64(data_B, i + 40),
            load64(data_B, i + 48),
            load64(data_B, i + 56),
        )
        k0, k1 = v0 ^ load64(long_S, k), v1 ^ load64(long_S, k + 8)
        k2, k3 = v2 ^ load64(long_S, k + 16), v3 ^ load64(long_S, k + 24)
        k4, k5 = v4 ^ load64(long_S, k + 32), v5 ^ load64(long_S, k + 40)
        k6, k7 = v6 ^ load64(long_S, k + 48), v7 ^ load64(long_S, k + 56)
        a0 += v1 + (k0 & LOW32) * (k0 >> s32)
        a1 += v0 + (k1 & LOW32) * (k1 >> s32)
        a2 += v3 + (k2 & LOW32) * (k2 >> s32)
        a3 += v2 + (k3 & LOW32) * (k3 >> s32)
        a4 += v5 + (k4 & LOW32) * (k4 >> s32)
        a5 += v4 + (k5 & LOW32) * (k5 >> s32)
        a6 += v7 + (k6 & LOW32) * (k6 >> s32)
        a7 += v6 + (k7 & LOW32) * (k7 >> s32)
        if (stripe & 15) == 15 and stripe < n_stripes:
            a0 = (a0 ^ (a0 >> s47) ^ load64(long_S, 128)) * P32_1
            a1 = (a1 ^ (a1 >> s47) ^ load64(long_S, 136)) * P32_1
            a2 = (a2 ^ (a2 >> s47) ^ load64(long_S, 144)) * P32_1
            a3 = (a3 ^ (a3 >> s47) ^ load64(long_S, 152)) * P32_1
            a4 = (a4 ^ (a4 >> s47) ^ load64(long_S, 160)) * P32_1
            a5 = (a5 ^ (a5 >> s47) ^ load64(long_S, 168)) * P32_1
            a6 = (a6 ^ (a6 >> s47) ^ load64(long_S, 176)) * P32_1
            a7 = (a7 ^ (a7 >> s47) ^ load64(long_S, 184)) * P32_1
    length = np.uint64(n)
    low = _merge(a0, a1, a2, a3, a4, a5, a6, a7, long_S, 11, length * P64_1)
    high = _merge(a0, a1, a2, a3, a4, a5, a6, a7, long_S, 192 - 64 - 11, ~(length * P64_2))
    return high, low


@njit(nogil=True, cache=True)
def xxh3_64_range(data_B: Any, start: int, n: int, seed: np.uint64, secret_S: Any, long_S: Any) -> Any:
    """XXH3 (64 bits) of ``data_B[start:start+n]``; for use inside other kernels.

    `secret_S` is `SECRET`; `long_S` is ``secret_for(seed)``. Bounds are the caller's duty.
    """
    length = np.uint64(n)
    if n > 240:
        return _long(data_B, start, n, long_S)[1]
    end = start + n
    if n > 128:
        acc = length * P64_1
        for i in range(8):
            acc += _mix16(data_B, start + 16 * i, secret_S, 16 * i, seed)
        acc = _avalanche(acc)
        for i in range(8, n // 16):
            acc += _mix16(data_B, start + 16 * i, secret_S, 16 * (i - 8) + 3, seed)
        return _avalanche(acc + _mix16(data_B, end - 16, secret_S, 136 - 17, seed))
    if n > 16:
        acc = length * P64_1
        for i in range((n - 1) // 32, -1, -1):
            acc += _mix16(data_B, start + 16 * i, secret_S, 32 * i, seed)
            acc += _mix16(data_B, end - 16 * (i + 1), secret_S, 32 * i + 16, seed)
        return _avalanche(acc)
    if n > 8:
        low = load64(data_B, start) ^ ((load64(secret_S, 24) ^ load64(secret_S, 32)) + seed)
        high = load64(data_B, end - 8) ^ ((load64(secret_S, 40) ^ load64(secret_S, 48)) - seed)
        return _avalanche(length + swap64(low) + high + _fold(low, high))
    if n >= 4:
        seed ^= swap64(seed & LOW32) & ~LOW32
        value = load32(data_B, end - 4) + (load32(data_B, start) << np.uint64(32))
        h = value ^ ((load64(secret_S, 8) ^ load64(secret_S, 16)) - seed)
        h ^= ((h << np.uint64(49)) | (h >> np.uint64(15))) ^ ((h << np.uint64(24)) | (h >> np.uint64(40)))
        h *= MX2
        h = (h ^ ((h >> np.uint64(35)) + length)) * MX2
        return h ^ (h >> np.uint64(28))
    if n > 0:
        combined = (
            (np.uint64(data_B[start]) << np.uint64(16))
            | (np.uint64(data_B[start + (n >> 1)]) << np.uint64(24))
            | np.uint64(data_B[end - 1])
            | (length << np.uint64(8))
        )
        return _avalanche64(combined ^ ((load32(secret_S, 0) ^ load32(secret_S, 4)) + seed))
    return _avalanche64(seed ^ load64(secret_S, 56) ^ load64(secret_S, 64))


@njit(nogil=True, cache=True)
def xxh3_128_range(data_B: Any, start: int, n: int, seed: np.uint64, secret_S: Any, long_S: Any) -> Any:
    """XXH3 (128 bits) of ``data_B[start:start+n]`` as ``(high, low)``; arguments as in `xxh3_64_range`."""
    length = np.uint64(n)
    if n > 240:
        return _long(data_B, start, n, long_S)
    end = start + n
    if n > 16:
        low = length * P64_1
        high = np.uint64(0)
        if n > 128:
            for i in range(4):
                low, high = _mix32(low, high, data_B, start + 32 * i, start + 32 * i + 16, secret_S, 32 * i, seed)
            low, high = _avalanche(low), _avalanche(high)
            for i in range(4, n // 32):
                at = start + 32 * i
                low, high = _mix32(low, high, data_B, at, at + 16, secret_S, 3 + 32 * (i - 4), seed)
            low, high = _mix32(low, high, data_B, end - 16, end - 32, secret_S, 136 - 17 - 16, np.uint64(0) - seed)
        else:
            for i in range((n - 1) // 32, -1, -1):
                low, high = _mix32(low, high, data_B, start + 16 * i, end - 16 * (i + 1), secret_S, 32 * i, seed)
        h_low = _avalanche(low + high)
        h_high = np.uint64(0) - _avalanche(low * P64_1 + high * P64_4 + (length - seed) * P64_2)
        return h_high, h_low
    if n > 8:
        flip_low = (load64(secret_S, 32) ^ load64(secret_S, 40)) - seed
        flip_high = (load64(secret_S, 48) ^ load64(secret_S, 56)) + seed
        first = load64(data_B, start)
        last = load64(data_B, end - 8)
        mixed = first ^ last ^ flip_low
        low = mixed * P64_1 + (np.uint64(n - 1) << np.uint64(54))
        high = multiply_high(mixed, P64_1)
        last ^= flip_high
        high += last + (last & LOW32) * (P32_2 - np.uint64(1))
        low ^= swap64(high)
        return _avalanche(multiply_high(low, P64_2) + high * P64_2), _avalanche(low * P64_2)
    if n >= 4:
        seed ^= swap64(seed & LOW32) & ~LOW32
        value = load32(data_B, start) + (load32(data_B, end - 4) << np.uint64(32))
        keyed = value ^ ((load64(secret_S, 16) ^ load64(secret_S, 24)) + seed)
        factor = P64_1 + (length << np.uint64(2))
        low = keyed * factor
        high = multiply_high(keyed, factor) + (low << np.uint64(1))
        low ^= high >> np.uint64(3)
        low = (low ^ (low >> np.uint64(35))) * MX2
        return _avalanche(high), low ^ (low >> np.uint64(28))
    if n > 0:
        combined = (
            (np.uint64(data_B[start]) << np.uint64(16))
            | (np.uint64(data_B[start + (n >> 1)]) << np.uint64(24))
            | np.uint64(data_B[end - 1])
            | (length << np.uint64(8))
        )
        swapped = swap64(combined) >> np.uint64(32)
        rotated = ((swapped << np.uint64(13)) | (swapped >> np.uint64(19))) & LOW32
        low = _avalanche64(combined ^ ((load32(secret_S, 0) ^ load32(secret_S, 4)) + seed))
        high = _avalanche64(rotated ^ ((load32(secret_S, 8) ^ load32(secret_S, 12)) - seed))
        return high, low
    low = _avalanche64(seed ^ load64(secret_S, 64) ^ load64(secret_S, 72))
    return _avalanche64(seed ^ load64(secret_S, 80) ^ load64(secret_S, 88)), low


@njit(nogil=True, cache=True)
def _all_64(offsets_D1: Any, data_B: Any, seed: Any, secret_S: Any, long_S: Any, out_D: Any) -> None:
    for d in range(out_D.shape[0]):
        out_D[d] = xxh3_64_range(data_B, offsets_D1[d], offsets_D1[d + 1] - offsets_D1[d], seed, secret_S, long_S)


@njit(nogil=True, cache=True)
def _all_128(offsets_D1: Any, data_B: Any, seed: Any, secret_S: Any, long_S: Any, out_D2: Any) -> None:
    for d in range(out_D2.shape[0]):
        out_D2[d, 0], out_D2[d, 1] = xxh3_128_range(
            data_B, offsets_D1[d], offsets_D1[d + 1] - offsets_D1[d], seed, secret_S, long_S
        )


@cache
def secret_for(seed: int) -> Bytes:
    """Return `long_S` for `seed` in [0, 2^64): each 16 bytes of `SECRET` plus and minus the seed."""
    words = SECRET.view("<u8").copy()
    words[0::2] += np.uint64(seed)
    words[1::2] -= np.uint64(seed)
    return words.view(np.uint8)


def hash64(offsets_D1: Offsets, data_B: Bytes, seed: int = 0) -> U64:
    """Return XXH3-64 of each document, uint64 (D); equals ``xxhash.xxh3_64_intdigest(text, seed)``.

    `seed` lies in [0, 2^64). Use other seeds for independent key spaces.
    """
    out_D = np.empty(len(offsets_D1) - 1, np.uint64)
    _all_64(offsets_D1, data_B, np.uint64(seed), SECRET, secret_for(seed), out_D)
    return out_D


def xxh3_128(offsets_D1: Offsets, data_B: Bytes, seed: int = 0) -> U64:
    """Return XXH3-128 of each document, uint64 (D, 2) as (high, low).

    Equals ``divmod(xxhash.xxh3_128_intdigest(text, seed), 2**64)``.
    """
    out_D2 = np.empty((len(offsets_D1) - 1, 2), np.uint64)
    _all_128(offsets_D1, data_B, np.uint64(seed), SECRET, secret_for(seed), out_D2)
    return out_D2


def digests(hashes_D2: U64) -> Bytes:
    """Return the canonical big-endian digests, uint8 (D, 16); equals ``xxhash.xxh3_128_digest(text)``."""
    return np.ascontiguousarray(hashes_D2).astype(">u8").view(np.uint8).reshape(-1, 16)


def digests_D16(offsets_D1: Offsets, data_B: Bytes) -> Bytes:  # noqa: N802
    """Return the canonical XXH3-128 digest of each document, uint8 (D, 16)."""
    return digests(xxh3_128(offsets_D1, data_B))


def content_hash(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the XXH3-128 digests of a string column as fixed_size_binary(16); nulls hash as empty."""
    digest_D16 = digests_D16(*text_view(array))
    return pa.Array.from_buffers(pa.binary(16), len(digest_D16), [None, pa.py_buffer(digest_D16)])
