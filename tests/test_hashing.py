"""XXH3 kernels against the reference implementation."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.stages.kernels import hashing
from gristmill.stages.kernels.views import text_view

SEEDS = (0, 1, 0x9E3779B97F4A7C15, 2**64 - 1)


def _view(documents: list[bytes]):
    return text_view(pa.array(documents, pa.large_binary()))


def test_golden_digest_of_known_input():
    offsets_D1, data_B = _view([b"", b"a", b"gristmill"])
    got = [bytes(row).hex() for row in hashing.digests_D16(offsets_D1, data_B)]
    assert got[0] == "99aa06d3014798d86001c324468d497f"
    assert got[1] == "a96faf705af16834e6c632b61e964e1f"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_length_to_2100_equals_reference(seed):
    rng = np.random.default_rng(5)
    documents = [rng.bytes(n) for n in range(2101)] + [rng.bytes(n) for n in (4095, 4096, 4097, 70_001)]
    offsets_D1, data_B = _view(documents)
    got64 = hashing.hash64(offsets_D1, data_B, seed)
    got128 = hashing.xxh3_128(offsets_D1, data_B, seed)
    for i, document in enumerate(documents):
        assert int(got64[i]) == xxhash.xxh3_64_intdigest(document, seed), len(document)
        wide = (int(got128[i, 0]) << 64) | int(got128[i, 1])
        assert wide == xxhash.xxh3_128_intdigest(document, seed), len(document)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.binary(max_size=600), max_size=8), st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_slices_hash_like_their_documents(documents, seed, skip):
    array = pa.array(documents, pa.large_binary()).slice(min(skip, len(documents)))
    offsets_D1, data_B = text_view(array)
    assert [int(h) for h in hashing.hash64(offsets_D1, data_B, seed)] == [
        xxhash.xxh3_64_intdigest(d.as_py(), seed) for d in array
    ]


def test_content_hash_column_is_canonical_digest():
    texts = ["", "x", "多" * 300]
    column = hashing.content_hash(pa.array(texts, pa.large_string()))
    assert column.type == pa.binary(16)
    assert column.to_pylist() == [xxhash.xxh3_128_digest(t.encode()) for t in texts]


def test_last_byte_changes_hash():
    a, b = b"q" * 5000, b"q" * 4999 + b"r"
    high_low = hashing.xxh3_128(*_view([a, b]))
    assert (high_low[0] != high_low[1]).all()
