"""Line and paragraph deduplication: boilerplate that many documents share is cut out of them.

    pass 1   text -> one line a distinct piece of a split: (bucket, key, documents)      counted before the shuffle
    count    pieces found in more than `max_documents` documents of a bucket
    pass 2   text without those pieces; removed bytes in the ledger

A piece is compared by a 64-bit hash of its normalised units (see `kernels.shingles`). Llama 3 cuts lines seen more
than 6 times in 30 million documents (arXiv:2407.21783): ``max_documents: 6, bucket_documents: 30000000``. CCNet keeps
one copy of a paragraph (arXiv:1911.00359): ``unit: paragraph, max_documents: 1, keep: first``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from gristmill.stages import store
from gristmill.stages.base import REASON_FIELDS, BatchStage, replace_columns
from gristmill.stages.dedup import checkpoint
from gristmill.stages.dedup.order import KeepsBest, order_keys, sample_documents
from gristmill.stages.dedup.rewrite import rewrite
from gristmill.stages.kernels.hashing import hash64
from gristmill.stages.kernels.lines import split_pieces, strip_pieces
from gristmill.stages.kernels.shingles import normal_table
from gristmill.stages.kernels.views import text_array, text_view

if TYPE_CHECKING:
    from gristmill.stages.artifact import Artifact
    from gristmill.stages.context import Context, Outcome

COUNT_SCHEMA = pa.schema([("key", pa.int64()), ("documents", pa.int64()), ("best", pa.binary())])
HOT_SCHEMA = pa.schema([("key", pa.int64()), ("documents", pa.int64()), ("owner", pa.int64())])
REASON_EMPTY = "nothing_left"
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class LineDedup(KeepsBest):
    """Cut lines or paragraphs that too many documents have."""

    name: ClassVar[str] = "line_dedup"
    summary: ClassVar[str] = "cut lines or paragraphs that many documents share (navigation, notices)"

    unit: Literal["line", "paragraph"] = Field(
        default="line", description="what is compared: lines, or paragraphs (ended by a blank line)"
    )
    max_documents: int = Field(default=6, ge=1, description="a piece in more documents of a bucket than this is cut")
    keep: Literal["none", "first"] = Field(
        default="none", description="'none': cut it everywhere; 'first': leave it in the best document"
    )
    min_units: int = Field(
        default=3, ge=1, description="pieces of fewer units (words, or characters without spaces) are never cut"
    )
    bucket_documents: int | None = Field(
        default=None, ge=1, description="documents a bucket, assigned by a hash of the id; default: all in one"
    )
    bucket_column: str | None = Field(default=None, description="count within each value of this column")
    digits_alike: bool = Field(default=False, description="treat any run of digits as the same")

    def reads(self) -> dict[str, pa.DataType | None]:
        """Columns that must be there."""
        return {**super().reads(), **({self.bucket_column: None} if self.bucket_column else {})}

    def writes(self) -> tuple[pa.Field, ...]:
        """Columns added: bytes and pieces cut."""
        return _FIELDS

    def warm(self, schema: pa.Schema) -> None:
        """Compile the kernels."""
        batch = sample_documents()
        pieces_D1, starts_L1, keys_L = _split(self, batch)
        strip_pieces(text_view(batch.column("text"))[1], pieces_D1, starts_L1, keys_L == 0)

    def run(self, context: Context, inputs: list[Artifact]) -> Outcome:
        """Count, then rewrite. The report lists how many pieces were cut from how many documents."""
        self.check_columns([artifact.schema for artifact in inputs])
        work = store.join(context.directory, "_work")
        n_docs = sum(artifact.n_docs for artifact in inputs)
        n_buckets = -(-n_docs // self.bucket_documents) if self.bucket_documents else 1
        columns = ["text", *self.order_columns(), *([self.bucket_column] if self.bucket_column else [])]
        count = partial(_count, self, n_buckets)
        found = checkpoint.find(work, "hot", HOT_SCHEMA)
        if found is None:
            frame = context.map_documents(inputs, list(dict.fromkeys(columns)), count, COUNT_SCHEMA)
            found = checkpoint.save(hot_pieces(frame, self.max_documents), work, "hot", HOT_SCHEMA)
        fields = {f.name: f for artifact in inputs for f in artifact.schema}
        stage = Strip(
            unit=self.unit,
            keep=self.keep,
            options=self.model_dump(mode="json"),
            n_buckets=n_buckets,
            hot=tuple(piece.path for piece in found.pieces),
        )
        outcome = rewrite(context, inputs, pa.schema(list(fields.values())), stage)
        outcome.report = {"distinct_pieces_cut": found.n_rows, "buckets": n_buckets}
        store.delete_dir(work)
        return outcome


_FIELDS = (pa.field("line_dedup_bytes", pa.int64()), pa.field("line_dedup_pieces", pa.int64()))


class Strip(BatchStage):
    """The second pass; made by `LineDedup`, not for pipelines."""

    name: ClassVar[str] = "line_dedup_strip"
    summary: ClassVar[str] = "second pass of line_dedup"

    unit: Literal["line", "paragraph"]
    keep: Literal["none", "first"]
    options: dict[str, Any]
    n_buckets: int
    hot: tuple[str, ...]

    def writes(self) -> tuple[pa.Field, ...]:
        """Columns added: bytes and pieces cut."""
        return (pa.field("text", pa.large_string()), *_FIELDS)

    def edits(self) -> dict[str, str]:
        """Bytes removed, under the name of the unit."""
        return {f"repeated_{self.unit}": "line_dedup_bytes"}

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Cut hot pieces; a document of which nothing is left is rejected."""
        parent = LineDedup(**self.options)
        pieces_D1, starts_L1, keys_L = _split(parent, batch)
        keys_L = bucketed(parent, self.n_buckets, batch, pieces_D1, keys_L)
        known, owner = load_hot(self.hot)
        at = np.searchsorted(known, keys_L.view(np.int64))
        at[at == len(known)] = 0
        drop_L = (known[at] == keys_L.view(np.int64)) & (keys_L != 0) if len(known) else np.zeros(len(keys_L), bool)
        if self.keep == "first" and len(known):
            mine_D = identity(order_keys(batch, parent.source_priority, parent.prefer))
            drop_L &= owner[at] != np.repeat(mine_D, np.diff(pieces_D1))
        offsets_D1, data_B = text_view(batch.column("text"))
        old = np.diff(offsets_D1)
        offsets_D1, data_B, dropped_D = strip_pieces(data_B, pieces_D1, starts_L1, drop_L)
        left = np.diff(offsets_D1)
        empty = (left == 0) & (old > 0)
        cut = old - left
        out = replace_columns(
            batch,
            {
                "text": text_array(offsets_D1, data_B),
                "line_dedup_bytes": pa.array(cut),
                "line_dedup_pieces": pa.array(dropped_D),
            },
        )
        n = batch.num_rows
        columns = [
            pa.array(np.full(n, REASON_EMPTY), pa.string(), mask=~empty),
            pa.array(np.zeros(n), mask=~empty),
            pa.array(np.ones(n), mask=~empty),
        ]
        return replace_columns(out, dict(zip((f.name for f in REASON_FIELDS), columns, strict=True)))


def _split(stage: LineDedup, batch: pa.RecordBatch) -> Any:
    norm_C = normal_table(stage.digits_alike)
    return split_pieces(*text_view(batch.column("text")), stage.unit == "paragraph", norm_C, stage.min_units)


def bucketed(stage: LineDedup, n_buckets: int, batch: pa.RecordBatch, pieces_D1: Any, keys_L: Any) -> Any:
    """Mix the bucket of each document into its keys."""
    bucket_D = np.zeros(batch.num_rows, np.uint64)
    if n_buckets > 1:
        bucket_D += hash64(*text_view(batch.column("id").cast(pa.large_string())), 11) % np.uint64(n_buckets)
    if stage.bucket_column:
        values = batch.column(stage.bucket_column).cast(pa.large_string()).fill_null("")
        bucket_D = (bucket_D + np.uint64(1)) * _FACTOR ^ hash64(*text_view(values), 12)
    if n_buckets > 1 or stage.bucket_column:
        mixed = (keys_L ^ np.repeat(bucket_D * _FACTOR, np.diff(pieces_D1))) * _FACTOR | np.uint64(1)
        return np.where(keys_L == 0, keys_L, mixed)
    return keys_L


def identity(keys: pa.Array) -> Any:
    """Return a 64-bit name of each keep key, int64: which document a piece is left in."""
    return hash64(*text_view(keys.cast(pa.large_binary())), 13).view(np.int64)


def _count(stage: LineDedup, n_buckets: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield documents and best document of each piece of a split."""
    for batch in batches:
        pieces_D1, _, keys_L = _split(stage, batch)
        keys_L = bucketed(stage, n_buckets, batch, pieces_D1, keys_L)
        document_L = np.repeat(np.arange(batch.num_rows), np.diff(pieces_D1))
        some = np.flatnonzero(keys_L)
        order = order_keys(batch, stage.source_priority, stage.prefer)
        rank = np.empty(batch.num_rows, np.int64)
        rank[np.argsort(np.array(order.to_pylist(), object), kind="stable")] = np.arange(batch.num_rows)
        pairs = np.lexsort((rank[document_L[some]], keys_L[some]))
        key, document = keys_L[some][pairs], document_L[some][pairs]
        first = np.ones(len(key), np.bool_)
        first[1:] = (key[1:] != key[:-1]) | (document[1:] != document[:-1])
        key, document = key[first], document[first]
        starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(key) else np.empty(0, np.int64)
        counts = np.diff(np.append(starts, len(key)))
        best = order.take(pa.array(document[starts]))
        if stage.keep == "none":
            best = pa.array([b""] * len(starts), pa.binary())
        yield pa.RecordBatch.from_arrays(
            [pa.array(key[starts].view(np.int64)), pa.array(counts), best], schema=COUNT_SCHEMA
        )


def hot_pieces(counts: Any, max_documents: int) -> Any:
    """Return pieces in too many documents, ascending by key over all partitions."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    totals = counts.groupBy("key").agg(f.sum("documents").alias("documents"), f.min("best").alias("best"))
    hot = totals.where(f"documents > {max_documents}")
    return hot.repartitionByRange("key").sortWithinPartitions("key").mapInArrow(_owner, from_arrow_schema(HOT_SCHEMA))


def _owner(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        owner = pa.array(identity(batch.column("best")))
        yield pa.RecordBatch.from_arrays([batch.column("key"), batch.column("documents"), owner], schema=HOT_SCHEMA)


@cache
def load_hot(paths: tuple[str, ...]) -> tuple[Any, Any]:
    """Return ``(keys, owners)`` of all hot pieces, int64 ascending by key; 16 bytes each, once a process."""
    tables = [pq.read_table(store.open_input(path), columns=["key", "owner"]) for path in paths]
    if not tables:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    table = pa.concat_tables(tables)
    key, owner = table.column("key").to_numpy(), table.column("owner").to_numpy()
    order = np.argsort(key)
    return key[order], owner[order]
