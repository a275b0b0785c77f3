"""`datasketch` as the oracle of estimates, and as a consumer of our signatures."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.stages.dedup.export import lean_minhashes
from gristmill.stages.kernels import minhash

datasketch = pytest.importorskip("datasketch")
K = 128


def _pairs(seed: int, n: int, shared: int, size: int):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        pool = rng.integers(0, 2**63, 2 * size - shared).astype(np.uint64)
        yield pool[:size], np.concatenate([pool[:shared], pool[size:]])


@pytest.mark.parametrize("shared", [40, 120, 190])
def test_estimates_have_the_error_of_datasketch(shared):
    a_K, b_K = minhash.permutations(K)
    exact = shared / (400 - shared)
    ours, theirs = [], []
    for left, right in _pairs(shared, 60, shared, 200):
        sets = [np.sort(left), np.sort(right)]
        signature = minhash.signatures_of_sets(np.array([0, 200, 400]), np.concatenate(sets), a_K, b_K)
        ours.append((signature[0] == signature[1]).mean())
        other = [datasketch.MinHash(K), datasketch.MinHash(K)]
        for sketch, values in zip(other, sets, strict=True):
            sketch.update_batch([int(v).to_bytes(8, "little") for v in values])
        theirs.append(other[0].jaccard(other[1]))
    error_of_mean = 4 * np.sqrt(exact * (1 - exact) / K / 60)
    assert abs(np.mean(ours) - exact) < error_of_mean
    assert abs(np.mean(ours) - np.mean(theirs)) < 1.5 * error_of_mean
    assert np.std(ours) < 1.5 * np.std(theirs)


def test_exported_signatures_work_in_datasketch():
    a_K, b_K = minhash.permutations(K)
    left, right = next(_pairs(1, 1, 180, 200))
    sets = np.concatenate([np.sort(left), np.sort(right)])
    signature = minhash.signatures_of_sets(np.array([0, 200, 400]), sets, a_K, b_K)
    first, second = lean_minhashes(signature)
    assert first.jaccard(second) == (signature[0] == signature[1]).mean()
    buffer = bytearray(first.bytesize())
    first.serialize(buffer)
    assert datasketch.LeanMinHash.deserialize(buffer) == first
    lsh = datasketch.MinHashLSH(threshold=0.5, num_perm=K)
    lsh.insert("first", first)
    assert lsh.query(second) == ["first"]
