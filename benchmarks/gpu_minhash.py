"""MinHash signatures on a GPU: equality with the CPU kernel, then GB/s against it and against the copy bandwidth.

python benchmarks/gpu_minhash.py [--megabytes 256] [--permutations 112]

Needs an NVIDIA GPU and the package numba-cuda. Text is synthetic (words of a skewed vocabulary, every eighth
document Chinese); documents are 200 to 20,000 bytes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gristmill.stages.kernels import minhash, minhash_cuda
from gristmill.stages.kernels.shingles import normal_table


def make_text(n_bytes: int, seed: int = 1) -> tuple[Any, Any]:
    """Return ``(offsets_D1, data_B)`` of about `n_bytes` of synthetic text."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    latin = ["".join(rng.choice(letters, rng.integers(2, 11))) + " " for _ in range(20_000)]
    chinese = [chr(c) for c in rng.integers(0x4E00, 0x5E00, 3_000)]
    pieces, offsets, total = [], [0], 0
    while total < n_bytes:
        length = int(rng.integers(200, 20_000))
        words = chinese if len(pieces) % 8 == 0 else latin
        picks = np.minimum(rng.zipf(1.2, length // (3 if words is chinese else 6)), len(words)) - 1
        piece = "".join([words[i] for i in picks]).encode()
        pieces.append(piece)
        total += len(piece)
        offsets.append(total)
    return np.array(offsets, np.int64), np.frombuffer(b"".join(pieces), np.uint8)


def best(run: Callable[[], Any], repeats: int = 3) -> float:
    """Return the least seconds of some runs."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> int:
    """Print the table; exit code 1 where the results differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--permutations", type=int, default=112)
    options = parser.parse_args()
    if not minhash_cuda.available():
        print("no usable CUDA device (needs an NVIDIA GPU and numba-cuda): nothing measured")
        return 2
    from numba import cuda

    offsets_D1, data_B = make_text(options.megabytes << 20)
    norm_C = normal_table()
    a_K, b_K = minhash.permutations(options.permutations)
    arguments = (offsets_D1, data_B, norm_C, 5, a_K, b_K)
    on_gpu = minhash_cuda.signatures(*arguments)
    on_cpu = minhash.signatures(*arguments)
    if not all((x == y).all() for x, y in zip(on_gpu, on_cpu, strict=True)):
        wrong = np.flatnonzero((on_gpu[0] != on_cpu[0]).any(axis=1))
        print(f"DIFFERENT: {len(wrong):,} of {len(offsets_D1) - 1:,} documents, first {wrong[:5].tolist()}")
        return 1
    gigabytes = len(data_B) / 1e9
    gpu = best(lambda: minhash_cuda.signatures(*arguments))
    cpu = best(lambda: minhash.signatures(*arguments))
    copy = best(lambda: (cuda.to_device(data_B), cuda.synchronize()))
    print(f"documents {len(offsets_D1) - 1:,}, {gigabytes:.3f} GB, {options.permutations} permutations: equal")
    print(f"GPU, copies included  {gigabytes / gpu:8.2f} GB/s")
    print(f"CPU, one core         {gigabytes / cpu:8.3f} GB/s   ratio {cpu / gpu:.1f}")
    print(f"copy to the device    {gigabytes / copy:8.2f} GB/s   kernel at {copy / gpu:.0%} of it")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
