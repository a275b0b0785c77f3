"""What a worker computes from text for fuzzy deduplication: band keys and shingle sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.stages.dedup.checkpoint import Checkpoint, Lookup
from gristmill.stages.dedup.order import order_keys
from gristmill.stages.dedup.resolver import CANDIDATE_SCHEMA
from gristmill.stages.errors import RunError
from gristmill.stages.kernels import minhash_cuda
from gristmill.stages.kernels.minhash import band_keys, permutations, signatures
from gristmill.stages.kernels.shingles import U64, normal_table, shingle_sets
from gristmill.stages.kernels.unionfind import components_of_buckets
from gristmill.stages.kernels.views import text_view

KEYS_SCHEMA = pa.schema([("row", pa.int64()), ("keys", pa.binary())])
"""Band keys of a document, 8 bytes each in the order of bands. Documents without units are left out."""

BUCKET_SCHEMA = pa.schema([("row", pa.int64()), ("band", pa.int16()), ("key", pa.int64()), ("center", pa.int64())])
"""Either a bucket of a split (its smallest row; `center` null) or, with band -1, an edge from row to center."""

FIRST_OF_RUN = b"\x01"
"""Before the order key of a document of this run; documents of an index sort before it."""


@dataclass(frozen=True)
class Sketch:
    """The parameters that decide signatures: same sketch, same keys, on any machine."""

    n: int
    bands: int
    rows: int
    seed: int
    digits_alike: bool
    device: str = "auto"

    def keys(self, texts: pa.Array) -> tuple[U64, npt.NDArray[np.int64]]:
        """Return ``(keys_DN, n_units_D)``; documents with 0 units must not be banded."""
        a_K, b_K = permutations(self.bands * self.rows, self.seed)
        norm_C = normal_table(self.digits_alike)
        compute = minhash_cuda.signatures if self._on_gpu() else signatures
        signatures_DK, n_units_D = compute(*text_view(texts), norm_C, self.n, a_K, b_K)
        return band_keys(signatures_DK, self.bands, self.rows), n_units_D

    def _on_gpu(self) -> bool:
        if self.device == "cpu":
            return False
        if self.device == "auto":
            return task_has_device()
        if not minhash_cuda.available():
            raise RunError("fuzzy_dedup.device is 'gpu', but this worker has no usable GPU (or no numba-cuda)")
        return True

    def packed(self, keys_DN: U64) -> pa.Array:
        """Return the keys of each document as one binary value, 8 bytes a band."""
        offsets = np.arange(len(keys_DN) + 1, dtype=np.int32) * (8 * self.bands)
        words = pa.py_buffer(np.ascontiguousarray(keys_DN))
        return pa.Array.from_buffers(pa.binary(), len(keys_DN), [None, pa.py_buffer(offsets), words])

    def sets(self, texts: pa.Array) -> pa.Array:
        """Return the sorted distinct shingle hashes of each document, 8 bytes each, large_binary."""
        ends_D1, sets_S = shingle_sets(*text_view(texts), normal_table(self.digits_alike), self.n)
        return pa.Array.from_buffers(
            pa.large_binary(), len(texts), [None, pa.py_buffer(ends_D1 * 8), pa.py_buffer(sets_S)]
        )


def task_has_device() -> bool:
    """Return whether Spark gave this task a GPU, and make that one the visible one. Call before CUDA is used.

    Spark does so when ``spark.task.resource.gpu.amount`` and ``spark.executor.resource.gpu.amount`` are set.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None or "gpu" not in task.resources():
        return False
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(task.resources()["gpu"].addresses)
    return minhash_cuda.available()


def emit_keys(sketch: Sketch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield `KEYS_SCHEMA` rows: the first pass where all keys fit on the driver."""
    for batch in batches:
        keys_DN, n_units_D = sketch.keys(batch.column("text"))
        some = np.flatnonzero(n_units_D)
        rows = batch.column("row").take(pa.array(some))
        yield pa.RecordBatch.from_arrays([rows, sketch.packed(keys_DN[some])], schema=KEYS_SCHEMA)


def emit_buckets(sketch: Sketch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield `BUCKET_SCHEMA` rows of one split: the first pass at any scale.

    Stars are made here, before the shuffle: a bucket with 10^8 members costs one line a split, and rows joined
    within the split cost one edge each, not one a band.
    """
    rows, keys = [], []
    for batch in batches:
        keys_DN, n_units_D = sketch.keys(batch.column("text"))
        some = np.flatnonzero(n_units_D)
        rows.append(batch.column("row").to_numpy()[some])
        keys.append(keys_DN[some])
    if not rows:
        return
    row_R = np.concatenate(rows)
    keys_RN = np.concatenate(keys)
    order = np.argsort(row_R, kind="stable")
    row_R, keys_RN = row_R[order], keys_RN[order]
    root = components_of_buckets(keys_RN)
    other = np.flatnonzero(root != np.arange(len(root)))
    yield pa.RecordBatch.from_arrays(
        [
            pa.array(row_R[other]),
            pa.array(np.full(len(other), -1, np.int16)),
            pa.nulls(len(other), pa.int64()),
            pa.array(row_R[root[other]]),
        ],
        schema=BUCKET_SCHEMA,
    )
    for band in range(sketch.bands):
        key, first = np.unique(keys_RN[:, band], return_index=True)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(row_R[first]),
                pa.array(np.full(len(key), band, np.int16)),
                pa.array(key.view(np.int64)),
                pa.nulls(len(key), pa.int64()),
            ],
            schema=BUCKET_SCHEMA,
        )


def emit_candidates(
    sketch: Sketch,
    labels: Checkpoint,
    source_priority: tuple[str, ...],
    prefer: tuple[str, ...],
    verify: bool,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield `CANDIDATE_SCHEMA` rows: the second pass, only documents that share a bucket with another."""
    known_keys = "keys" in labels.schema.names
    lookup = Lookup(labels, ["component", "keys"] if known_keys else ["component"])
    bands = bytes(range(sketch.bands))
    for batch in batches:
        at, found = lookup.find(batch.column("row").to_numpy())
        if len(at) == 0:
            continue
        chosen = batch.take(pa.array(at))
        texts = chosen.column("text")
        n = chosen.num_rows
        order = order_keys(chosen, source_priority, prefer).to_pylist()
        yield pa.RecordBatch.from_arrays(
            [
                found.column("component").combine_chunks(),
                pa.array([FIRST_OF_RUN + key for key in order], pa.binary()),
                chosen.column("row"),
                pa.array(np.zeros(n, np.bool_)),
                chosen.column("id").cast(pa.string()),
                pa.array([""] * n, pa.string()),
                pa.array([bands] * n, pa.binary()),
                found.column("keys").combine_chunks() if known_keys else sketch.packed(sketch.keys(texts)[0]),
                sketch.sets(texts).cast(pa.binary()) if verify else pa.array([b""] * n, pa.binary()),
            ],
            schema=CANDIDATE_SCHEMA,
        )
