"""MinHash signatures on a GPU: the integer specification of `minhash`, one thread block a document.

Legend: as in `minhash`; `T` threads a block; a window is T consecutive bytes.

    window     each thread looks at one byte; where a unit starts there it hashes that unit     (text -> units)
    compaction an inclusive scan over the block gives each unit its place in shared memory
    shingles   thread i hashes the shingle that starts at unit i                                (units -> hashes)
    minima     thread k walks all shingles of the block for permutation k                       (hashes -> signature)

All arithmetic is 64-bit integer and every unit, shingle and minimum is the one that the CPU kernel computes, so
results are equal bit for bit. `numba.cuda` is imported on first use only (Spark's worker daemon forks, and a CUDA
context does not survive a fork); the RAPIDS accelerator is not needed. Needs the package ``numba-cuda`` and an
NVIDIA GPU, or ``NUMBA_ENABLE_CUDASIM=1`` for the simulator.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.stages.kernels.minhash import U32
from gristmill.stages.kernels.shingles import I32, MAX_N, U64
from gristmill.stages.kernels.views import Bytes, Offsets


@cache
def available() -> bool:
    """Return whether a CUDA device (or the simulator) can be used by this process."""
    try:
        from numba import cuda
    except ImportError:
        return False
    try:
        return bool(cuda.is_available())
    except Exception:
        return False


def signatures(
    offsets_D1: Offsets,
    data_B: Bytes,
    norm_C: I32,
    n: int,
    a_K: U64,
    b_K: U64,
    max_blocks: int = 1 << 16,
) -> tuple[U32, npt.NDArray[np.int64]]:
    """Return ``(signatures_DK, n_units_D)``, equal to `minhash.signatures`; a grid of at most `max_blocks`.

    Copies the text of the batch to the device and the signatures back.

    Raises:
        ValueError: more permutations, or units a shingle, than the kernel has shared memory for.
    """
    from numba import cuda

    from gristmill.stages.kernels.minhash_cuda_device import MAX_PERMUTATIONS, THREADS, kernel

    if len(a_K) > MAX_PERMUTATIONS or not 1 <= n <= MAX_N:
        raise ValueError(f"at most {MAX_PERMUTATIONS:,} permutations and {MAX_N} units a shingle on a GPU")
    n_docs = len(offsets_D1) - 1
    if n_docs == 0:
        return np.empty((0, len(a_K)), np.uint32), np.empty(0, np.int64)
    first = int(offsets_D1[0])
    text_B = np.ascontiguousarray(data_B[first : int(offsets_D1[-1])])
    if len(text_B) == 0:
        text_B = np.zeros(1, np.uint8)
    signatures_DK = cuda.device_array((n_docs, len(a_K)), np.uint32)
    n_units_D = cuda.device_array(n_docs, np.int64)
    kernel[min(n_docs, max_blocks), THREADS](
        cuda.to_device(np.ascontiguousarray(offsets_D1 - first)),
        cuda.to_device(text_B),
        _on_device("norm", norm_C),
        n,
        _on_device("a", a_K),
        _on_device("b", b_K),
        signatures_DK,
        n_units_D,
    )
    return signatures_DK.copy_to_host(), n_units_D.copy_to_host()


_RESIDENT: dict[str, tuple[Any, Any]] = {}


def _on_device(name: str, array: Any) -> Any:
    """Keep a table that every batch needs on the device."""
    from numba import cuda

    held = _RESIDENT.get(name)
    if held is None or held[0] is not array:
        held = (array, cuda.to_device(np.array(array)))
        _RESIDENT[name] = held
    return held[1]
