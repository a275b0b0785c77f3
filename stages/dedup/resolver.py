"""The greedy resolver as a stream: rows of candidate documents in, in order, one decision a row out.

Rows come sorted by (component, order), so memory holds the leaders of one component and a batch, whatever the
size of the component: a bucket of 10^8 equal documents has one leader. The state is dropped between components
once it is large. Sets of leaders beyond 256 MiB move to a memory-mapped temporary file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.stages.kernels.jaccard import CONTAINMENT, JACCARD, rehash, resolve
from gristmill.stages.kernels.views import text_view

MEASURES = {"jaccard": JACCARD, "containment": CONTAINMENT}

CANDIDATE_SCHEMA = pa.schema(
    [
        ("component", pa.int64()),
        ("order_key", pa.binary()),
        ("row", pa.int64()),
        ("forced", pa.bool_()),
        ("id", pa.string()),
        ("origin", pa.string()),
        ("bands", pa.binary()),
        ("keys", pa.binary()),
        ("shingles", pa.binary()),
    ]
)
"""`forced`: from an index, a leader without comparison; `origin`: the index it is from (empty: this run);
`keys`: 8 bytes a bucket, `bands` the band of each; `shingles`: sorted distinct hashes, 8 bytes each."""

DECISION_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("component", pa.int64()),
        ("kept_id", pa.string()),
        ("kept_row", pa.int64()),
        ("kept_origin", pa.string()),
        ("similarity", pa.float64()),
        ("refused", pa.int64()),
        ("bands", pa.binary()),
        ("keys", pa.binary()),
    ]
)
"""One line a document of this run that has a leader other than itself (it is a duplicate); `refused` counts, on
one line a batch with row -1, bucket entries that were not kept because the bucket was full."""

_LARGE = 256 << 20


class Resolver:
    """State of the stream. `measure` is ``jaccard`` or ``containment``; see `kernels.jaccard.resolve`."""

    def __init__(self, threshold: float, measure: str, verify: bool, max_bucket: int) -> None:
        self._threshold = threshold
        self._measure = MEASURES[measure]
        self._verify = verify
        self._max_bucket = max_bucket
        self._reset()

    def _reset(self) -> None:
        self._slots = np.zeros(1 << 12, np.uint64)
        self._heads = np.full(1 << 12, -1, np.int64)
        self._lengths = np.zeros(1 << 12, np.int64)
        self._next = np.empty(1 << 12, np.int64)
        self._owner = np.empty(1 << 12, np.int64)
        self._ends = np.zeros(1 << 10, np.int64)
        self._sets = np.empty(1 << 16, np.uint64)
        self._counts = np.zeros(4, np.int64)
        self._ids: list[pa.Array] = []
        self._component = -1

    def decide(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decide one batch of `CANDIDATE_SCHEMA` rows; returns rows of `DECISION_SCHEMA`."""
        component = batch.column("component").to_numpy()
        pieces = []
        start = 0
        if self._counts[2] and component[0] != self._component and self._sets.nbytes + self._heads.nbytes > _LARGE:
            self._reset()
        while start < len(component):
            stop = len(component)
            if self._sets.nbytes > _LARGE:
                same = np.searchsorted(component[start:], component[start], side="right")
                stop = start + int(same)
            pieces.append(self._decide(batch.slice(start, stop - start)))
            if stop < len(component):
                self._reset()
            start = stop
        self._component = int(component[-1])
        return _joined(pieces)

    def _decide(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        n_docs = batch.num_rows
        key_offsets, key_bytes = text_view(batch.column("keys"))
        band_offsets, bands = text_view(batch.column("bands"))
        set_offsets, set_bytes = text_view(batch.column("shingles"))
        keys = _words(key_offsets, key_bytes)
        sets = _words(set_offsets, set_bytes)
        tags_D1 = (key_offsets - key_offsets[0]) // 8
        ends_D1 = (set_offsets - set_offsets[0]) // 8
        self._reserve(n_docs, len(keys), len(sets))
        base = int(self._counts[2])
        refused = int(self._counts[3])
        leader_D = np.empty(n_docs, np.int64)
        similarity_D = np.empty(n_docs, np.float64)
        resolve(
            np.asarray(batch.column("forced").to_numpy(zero_copy_only=False), np.bool_),
            tags_D1,
            keys,
            bands[band_offsets[0] : band_offsets[-1]],
            ends_D1,
            sets,
            self._measure,
            self._threshold,
            self._verify,
            self._max_bucket,
            self._slots,
            self._heads,
            self._next,
            self._owner,
            self._lengths,
            self._ends,
            self._sets,
            np.full(base + n_docs, -1, np.int64),
            self._counts,
            leader_D,
            similarity_D,
        )
        made = np.flatnonzero(leader_D >= base)
        own = np.zeros(n_docs, np.bool_)
        _, first = np.unique(leader_D[made], return_index=True)
        own[made[first]] = True
        leaders = batch.select(["id", "row", "origin"]).filter(pa.array(own))
        self._ids.append(pa.StructArray.from_arrays(leaders.columns, names=["id", "row", "origin"]))
        known = pa.concat_arrays(self._ids)
        self._ids = [known]
        lost = np.flatnonzero(~own)
        kept = known.take(pa.array(leader_D[lost]))
        rows = batch.column("row").take(pa.array(lost))
        decided = pa.RecordBatch.from_arrays(
            [
                rows,
                batch.column("component").take(pa.array(lost)),
                kept.field("id"),
                kept.field("row"),
                kept.field("origin"),
                pa.array(similarity_D[lost]),
                pa.array(np.zeros(len(lost), np.int64)),
                batch.column("bands").take(pa.array(lost)),
                batch.column("keys").take(pa.array(lost)),
            ],
            schema=DECISION_SCHEMA,
        )
        refused = int(self._counts[3]) - refused
        if not refused:
            return decided
        note = pa.RecordBatch.from_pylist([{"row": -1, "component": -1, "refused": refused}], DECISION_SCHEMA)
        return _joined([decided, note])

    def _reserve(self, n_docs: int, n_tags: int, n_shingles: int) -> None:
        """Make room for a whole batch."""
        buckets = int(self._counts[0]) + n_tags
        if 2 * buckets > len(self._slots):
            size = 1 << int(2 * buckets - 1).bit_length()
            slots, heads = np.zeros(size, np.uint64), np.full(size, -1, np.int64)
            rehash(self._slots, self._heads, slots, heads)
            lengths = np.zeros(size, np.int64)
            rehash(self._slots, self._lengths, np.zeros(size, np.uint64), lengths)
            self._slots, self._heads, self._lengths = slots, heads, lengths
        self._next = _grown(self._next, int(self._counts[1]), int(self._counts[1]) + n_tags)
        self._owner = _grown(self._owner, int(self._counts[1]), int(self._counts[1]) + n_tags)
        leaders = int(self._counts[2])
        self._ends = _grown(self._ends, leaders + 1, leaders + n_docs + 1)
        used = int(self._ends[leaders])
        self._sets = _grown(self._sets, used, used + n_shingles)


def _joined(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(pieces) == 1:
        return pieces[0]
    columns = [pa.concat_arrays([piece.column(i) for piece in pieces]) for i in range(len(DECISION_SCHEMA))]
    return pa.RecordBatch.from_arrays(columns, schema=DECISION_SCHEMA)


def _words(offsets_D1: npt.NDArray[np.int64], data_B: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(data_B[offsets_D1[0] : offsets_D1[-1]].tobytes(), np.uint64)


def _grown(array: npt.NDArray[Any], used: int, needed: int) -> npt.NDArray[Any]:
    """Return `array`, or a copy of its used part with room for `needed` (in a temporary file if large)."""
    if needed <= len(array):
        return array
    size = max(needed, 2 * len(array))
    wider: npt.NDArray[Any]
    if size * array.itemsize > _LARGE:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the map
        file.truncate(size * array.itemsize)
        wider = np.asarray(np.memmap(file, array.dtype, "r+", shape=(size,)))
    else:
        wider = np.empty(size, array.dtype)
    wider[:used] = array[:used]
    return wider


def decide_stream(
    threshold: float, measure: str, verify: bool, max_bucket: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run a `Resolver` over a partition that is sorted by (component, order_key, row)."""
    resolver = Resolver(threshold, measure, verify, max_bucket)
    for batch in batches:
        if batch.num_rows:
            yield resolver.decide(batch.cast(CANDIDATE_SCHEMA) if batch.schema != CANDIDATE_SCHEMA else batch)
