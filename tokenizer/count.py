"""Counting pre-tokens over Spark: which documents are used, and what goes from the tasks to the driver.

A document is held out, used for training or left aside by a hash of its id (XXH3-64, seeded): the choice does
not depend on files, splits or order. Each task counts into a bounded table (`PretokenTable`) and sends packed
counts, one row a bucket of keys; Spark brings each bucket's rows together; merge tasks add them up; the driver
gets every key once. Spark handles a few compressed blobs, never one row a key, and no text but pre-tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.stages.kernels.hashing import hash64
from gristmill.stages.kernels.pretoken_table import MAX_PIECE, PretokenTable, unpack
from gristmill.stages.kernels.pretokenize import PATTERNS
from gristmill.stages.kernels.views import Bytes, Offsets, text_view
from gristmill.tokenizer.encode import load_encoder

if TYPE_CHECKING:
    from gristmill.stages.artifact import Artifact
    from gristmill.stages.context import Context

TRAIN, HELD_OUT, TOTALS = 0, 1, 2
BUCKETS = 64
_ID_SEED = 0x746F6B656E697A65
SCHEMA = pa.schema([("kind", pa.int32()), ("bucket", pa.int32()), ("language", pa.string()), ("payload", pa.binary())])


@dataclass(frozen=True)
class Words:
    """Distinct pre-tokens and how often each occurs: ``offsets_W1`` int64, ``data_B``, ``counts_W`` int64."""

    offsets_W1: Offsets  # noqa: N815
    data_B: Bytes  # noqa: N815
    counts_W: npt.NDArray[np.int64]  # noqa: N815

    @classmethod
    def of(cls, payloads: list[bytes]) -> Words:
        """Join payloads of disjoint keys."""
        parts = [unpack(payload) for payload in payloads]
        lengths = np.concatenate([p[0] for p in parts]) if parts else np.empty(0, np.uint16)
        counts = np.concatenate([p[1] for p in parts]) if parts else np.empty(0, np.int64)
        data = np.concatenate([p[2] for p in parts]) if parts else np.empty(0, np.uint8)
        return cls(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), data, counts)

    def __len__(self) -> int:
        return len(self.counts_W)

    @property
    def n_bytes(self) -> int:
        """Bytes of text that they stand for."""
        return int(np.diff(self.offsets_W1) @ self.counts_W)


@dataclass(frozen=True)
class Plan:
    """What a counting task needs to know. Thresholds are shares of 2**64 of the hash of a document's id."""

    pattern: str
    seed: int
    held_out_below: int
    train_below: int
    max_piece: int
    has_language: bool
    compare: tuple[str, ...]


@dataclass
class Counted:
    """What the driver gets. Totals are [documents, bytes, tokens of each tokenizer in `Plan.compare`]."""

    train: Words
    held_out: dict[str, Words]
    train_totals: list[int]
    held_out_totals: dict[str, list[int]] = field(default_factory=dict)


def make_plan(
    pattern: str,
    seed: int,
    total_bytes: int,
    sample_bytes: int,
    held_out_bytes: int,
    max_piece: int,
    has_language: bool,
    compare: tuple[str, ...],
    train: bool = True,
) -> Plan:
    """Turn byte budgets into shares: at most a twentieth held out, and the training sample out of the rest."""
    held_out = min(0.05 if train else 1.0, held_out_bytes / max(1, total_bytes))
    share = min(1.0 - held_out, sample_bytes / max(1, total_bytes)) if train else 0.0
    below = int(held_out * 2**53) << 11
    last = 1 << 64 if held_out + share >= 1 else below + (int(share * 2**53) << 11)
    return Plan(pattern, seed, below, last if train else below, max_piece, has_language, compare)


def count(context: Context, inputs: list[Artifact], plan: Plan) -> Counted:
    """Run the counting and merging tasks and bring the result to the driver."""
    columns = ["id", "text", *(["lang"] if plan.has_language else [])]
    frame = context.map_documents(inputs, columns, partial(count_batches, plan), SCHEMA)
    merged = frame.repartition(max(1, context.parallelism), "kind", "bucket", "language").mapInArrow(
        merge_batches, frame.schema
    )
    return gather(merged.toArrow())


def count_batches(plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the documents of one split."""
    pattern = PATTERNS[plan.pattern]
    train = PretokenTable()
    held_out: dict[str, PretokenTable] = {}
    totals: dict[tuple[int, str], npt.NDArray[np.int64]] = defaultdict(
        lambda: np.zeros(2 + len(plan.compare), np.int64)
    )
    for batch in batches:
        offsets, data = text_view(batch.column("text"))
        hashes = hash64(*text_view(batch.column("id")), seed=(plan.seed ^ _ID_SEED) & (2**64 - 1))
        is_held_out = hashes < np.uint64(min(plan.held_out_below, 2**64 - 1))
        is_train = ~is_held_out
        if plan.train_below < 1 << 64:
            is_train &= hashes < np.uint64(plan.train_below)
        sizes = np.diff(offsets)
        rows = np.flatnonzero(is_train)
        totals[TRAIN, ""][:2] += [len(rows), sizes[rows].sum()]
        for bucket, payload in train.add_documents(offsets, data, pattern, plan.max_piece, rows, BUCKETS):
            yield _row(TRAIN, bucket, "", payload)
        held = np.flatnonzero(is_held_out)
        if not len(held):
            continue
        names = batch.column("lang").take(pa.array(held)).to_pylist() if plan.has_language else [None] * len(held)
        languages = np.array([name or "" for name in names])
        for language in sorted(set(languages.tolist())):
            rows = held[languages == language]
            sums = totals[HELD_OUT, language]
            sums[:2] += [len(rows), sizes[rows].sum()]
            table = held_out.setdefault(language, PretokenTable(1 << 20))
            for bucket, payload in table.add_documents(offsets, data, pattern, MAX_PIECE, rows):
                yield _row(HELD_OUT, bucket, language, payload)
            for k, path in enumerate(plan.compare):
                picked = batch.column("text").take(pa.array(rows))
                sums[2 + k] += len(load_encoder(path).encode_batch(*text_view(picked))[0])
    for bucket, payload in train.drain(BUCKETS):
        yield _row(TRAIN, bucket, "", payload)
    for language, table in held_out.items():
        for bucket, payload in table.drain():
            yield _row(HELD_OUT, bucket, language, payload)
    for (kind, language), sums in totals.items():
        yield _row(TOTALS, kind, language, sums.tobytes())


def merge_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add up the rows of the same kind, bucket and language; all of them are in this partition."""
    tables: dict[tuple[int, int, str], PretokenTable] = {}
    totals: dict[tuple[int, int, str], npt.NDArray[np.int64]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            key = row["kind"], row["bucket"], row["language"]
            if row["kind"] == TOTALS:
                sums = np.frombuffer(row["payload"], np.int64)
                totals[key] = totals[key] + sums if key in totals else sums
            else:
                tables.setdefault(key, PretokenTable()).add_packed(row["payload"])
    for key in sorted(tables):
        for _, payload in tables.pop(key).drain():
            yield _row(*key, payload)
    for key in sorted(totals):
        yield _row(*key, totals[key].tobytes())


def gather(table: pa.Table) -> Counted:
    """Sort the merged rows into `Counted`, in an order of their own."""
    rows = sorted(table.to_pylist(), key=lambda row: (row["kind"], row["language"], row["bucket"]))
    held_out: dict[str, list[bytes]] = defaultdict(list)
    for row in rows:
        if row["kind"] == HELD_OUT:
            held_out[row["language"]].append(row["payload"])
    totals = {
        (row["bucket"], row["language"]): np.frombuffer(row["payload"], np.int64).tolist()
        for row in rows
        if row["kind"] == TOTALS
    }
    return Counted(
        Words.of([row["payload"] for row in rows if row["kind"] == TRAIN]),
        {language: Words.of(payloads) for language, payloads in held_out.items()},
        totals.get((TRAIN, ""), [0, 0]),
        {language: sums for (kind, language), sums in totals.items() if kind == HELD_OUT},
    )


def _row(kind: int, bucket: int, language: str, payload: bytes) -> pa.RecordBatch:
    columns: list[Any] = [[kind], [bucket], [language], [payload]]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, f.type) for column, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
