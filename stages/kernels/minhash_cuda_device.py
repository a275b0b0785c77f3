"""The device code of `minhash_cuda`: imports CUDA, so it is imported only where a GPU is used.

A module of its own because the simulator replaces the global name ``cuda`` of a kernel, and only a global one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, int32, int64, uint32, uint64

from gristmill.stages.kernels.shingles import (
    DIGIT,
    DROP,
    MAX_N,
    MIX_1,
    MIX_2,
    SEPARATOR,
    SHINGLE_FACTOR,
    SHORT_SEED,
    UNIT,
    UNIT_FACTOR,
    UNIT_SEED,
)

THREADS = 128
"""Threads a block; a power of two."""
MAX_PERMUTATIONS = 1024
CAPACITY = 2 * THREADS + MAX_N
U27, U30, U31 = np.uint64(27), np.uint64(30), np.uint64(31)
EMPTY = np.uint32(0xFFFFFFFF)
LOW = np.uint64(0xFFFFFFFF)


@cuda.jit(device=True)
def mix64(x: Any) -> Any:
    """Finalise a 64-bit hash, as `shingles.mix64`."""
    x = (x ^ (x >> U30)) * MIX_1
    x = (x ^ (x >> U27)) * MIX_2
    return x ^ (x >> U31)


@cuda.jit(device=True)
def decode(data_B: Any, i: Any) -> Any:
    """Decode one character, as `unicode.decode`."""
    first = int32(data_B[i])
    if first < 0x80:
        return first, 1
    second = int32(data_B[i + 1]) & 0x3F
    if first < 0xE0:
        return ((first & 0x1F) << 6) | second, 2
    third = int32(data_B[i + 2]) & 0x3F
    if first < 0xF0:
        return ((first & 0x0F) << 12) | (second << 6) | third, 3
    fourth = int32(data_B[i + 3]) & 0x3F
    return ((first & 0x07) << 18) | (second << 12) | (third << 6) | fourth, 4


@cuda.jit(device=True)
def begins(data_B: Any, i: Any, start: Any, norm_C: Any) -> Any:
    """Return the table's value if a unit begins at byte i, else SEPARATOR."""
    if (data_B[i] & 0xC0) == 0x80:
        return SEPARATOR
    code_point, _ = decode(data_B, i)
    value = norm_C[code_point]
    if value == DROP:
        return SEPARATOR
    if value == SEPARATOR or (value & UNIT) != 0:
        return value
    j = i - 1
    while j >= start:
        if (data_B[j] & 0xC0) != 0x80:
            before, _ = decode(data_B, j)
            other = norm_C[before]
            if other != DROP:
                if other == SEPARATOR or (other & UNIT) != 0:
                    return value
                return SEPARATOR
        j -= 1
    return value


@cuda.jit(device=True)
def hash_unit(data_B: Any, i: Any, end: Any, norm_C: Any, value: Any) -> Any:
    """Hash the unit that begins at byte i, as `shingles.next_units`."""
    if (value & UNIT) != 0:
        return mix64((UNIT_SEED ^ uint64(value)) * UNIT_FACTOR)
    h = UNIT_SEED
    was_digit = False
    while i < end:
        code_point, step = decode(data_B, i)
        value = norm_C[code_point]
        i += step
        if value == DROP:
            continue
        if value == SEPARATOR or (value & UNIT) != 0:
            break
        digit = (value & DIGIT) != 0
        if not (digit and was_digit):
            h = (h ^ uint64(value)) * UNIT_FACTOR
        was_digit = digit
    return mix64(h)


@cuda.jit
def kernel(
    offsets_D1: Any, data_B: Any, norm_C: Any, n: Any, a_K: Any, b_K: Any, signatures_DK: Any, n_units_D: Any
) -> None:
    """Write signatures and unit counts; block b does documents b, b + grid, ..."""
    units_M = cuda.shared.array(CAPACITY, uint64)
    shingles_M = cuda.shared.array(CAPACITY, uint32)
    minima_K = cuda.shared.array(MAX_PERMUTATIONS, uint32)
    scan_T = cuda.shared.array(THREADS, int32)
    t = cuda.threadIdx.x
    n_permutations = a_K.shape[0]
    d = cuda.blockIdx.x
    while d < signatures_DK.shape[0]:
        start = offsets_D1[d]
        end = offsets_D1[d + 1]
        for k in range(t, n_permutations, THREADS):
            minima_K[k] = EMPTY
        have = 0
        total = int64(0)
        at = start
        while True:
            value = SEPARATOR
            if at + t < end:
                value = begins(data_B, at + t, start, norm_C)
            scan_T[t] = 0 if value == SEPARATOR else 1
            cuda.syncthreads()
            width = 1
            while width < THREADS:
                add = scan_T[t - width] if t >= width else 0
                cuda.syncthreads()
                scan_T[t] += add
                cuda.syncthreads()
                width *= 2
            if value != SEPARATOR:
                units_M[have + scan_T[t] - 1] = hash_unit(data_B, at + t, end, norm_C, value)
            found = scan_T[THREADS - 1]
            cuda.syncthreads()
            have += found
            total += found
            at += THREADS
            last = at >= end
            if (last or have + THREADS > CAPACITY) and have >= n:
                count = have - n + 1
                for i in range(t, count, THREADS):
                    x = units_M[i]
                    for j in range(1, n):
                        x = x * SHINGLE_FACTOR + units_M[i + j]
                    shingles_M[i] = uint32(mix64(x) & LOW)
                cuda.syncthreads()
                for k in range(t, n_permutations, THREADS):
                    a = a_K[k]
                    b = b_K[k]
                    least = minima_K[k]
                    for i in range(count):
                        low = uint32((a * uint64(shingles_M[i]) + b) & LOW)
                        least = low if low < least else least
                    minima_K[k] = least
                x = units_M[have - n + 1 + t] if t < n - 1 else uint64(0)
                cuda.syncthreads()
                if t < n - 1:
                    units_M[t] = x
                have = n - 1
                cuda.syncthreads()
            if last:
                break
        if 0 < total < n:
            x = SHORT_SEED + uint64(total)
            for i in range(total):
                x = x * SHINGLE_FACTOR + units_M[i]
            x = mix64(x)
            for k in range(t, n_permutations, THREADS):
                minima_K[k] = uint32((a_K[k] * x + b_K[k]) & LOW)
        for k in range(t, n_permutations, THREADS):
            signatures_DK[d, k] = minima_K[k]
        if t == 0:
            n_units_D[d] = total
        cuda.syncthreads()
        d += cuda.gridDim.x
