"""Substring deduplication: spans of at least so many units that another document has already are cut out.

    pass 1   text -> anchors (sampled windows of `span_units` units)       counted; those seen twice are hot
    pass 2   hot anchors -> the best document that has each                the owner keeps its first copy
    pass 3   text without windows that are copies                          removed bytes in the ledger

Whatever is cut lies inside a window of `span_units` units that the owner of that window still has (up to
normalisation and 64-bit collisions): nothing is removed on suspicion, and one copy stays. Of a shared span of
``span_units + slack_units - 1`` units or more, at most ``slack_units - 1`` units at either end stay (see
`kernels.spans`). Suffix arrays over the whole corpus (Lee et al. 2022, arXiv:2107.06499) find every copy but need one
machine; this needs a shuffle of 12 bytes for about every ``slack_units / 2`` units.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from gristmill.stages import store
from gristmill.stages.base import REASON_FIELDS, BatchStage, replace_columns
from gristmill.stages.dedup import checkpoint
from gristmill.stages.dedup.order import KeepsBest, order_keys, sample_documents
from gristmill.stages.dedup.rewrite import rewrite
from gristmill.stages.kernels import unicode
from gristmill.stages.kernels.shingles import normal_table
from gristmill.stages.kernels.spans import anchors, cut_spans
from gristmill.stages.kernels.views import text_array, text_view
from gristmill.stages.line_dedup import COUNT_SCHEMA, HOT_SCHEMA, hot_pieces, identity, load_hot

if TYPE_CHECKING:
    from gristmill.stages.artifact import Artifact
    from gristmill.stages.context import Context, Outcome

REASON = "repeated_span"
REASON_EMPTY = "nothing_left"
_FIELDS = (pa.field("span_dedup_bytes", pa.int64()), pa.field("span_dedup_spans", pa.int64()))


class SpanDedup(KeepsBest):
    """Cut spans that a better document has as well."""

    name: ClassVar[str] = "span_dedup"
    summary: ClassVar[str] = "cut long spans that another document has already, keeping one copy"

    span_units: int = Field(
        default=50, ge=8, le=10_000, description="units (words, or characters without spaces) a window"
    )
    slack_units: int = Field(
        default=10, ge=1, description="windows that one anchor stands for: fewer find more and cost more"
    )
    whole_sentences: bool = Field(default=False, description="shrink each cut to whole sentences or lines")
    digits_alike: bool = Field(default=False, description="treat any run of digits as the same")

    def writes(self) -> tuple[pa.Field, ...]:
        """Columns added: bytes and spans cut."""
        return _FIELDS

    def warm(self, schema: pa.Schema) -> None:
        """Compile the kernels."""
        Strip(options=self.model_dump(mode="json"), hot=()).transform(sample_documents())

    def run(self, context: Context, inputs: list[Artifact]) -> Outcome:
        """Count, find owners, then rewrite."""
        self.check_columns([artifact.schema for artifact in inputs])
        work = store.join(context.directory, "_work")
        seen = checkpoint.find(work, "seen", HOT_SCHEMA)
        if seen is None:
            counts = context.map_documents(inputs, ["text"], partial(_count, self), COUNT_SCHEMA)
            seen = checkpoint.save(hot_pieces(counts, 1), work, "seen", HOT_SCHEMA)
        hot = checkpoint.find(work, "hot", HOT_SCHEMA)
        if hot is None:
            paths = tuple(piece.path for piece in seen.pieces)
            columns = list(dict.fromkeys(["text", *self.order_columns()]))
            owners = context.map_documents(inputs, columns, partial(_owners, self, paths), COUNT_SCHEMA)
            hot = checkpoint.save(hot_pieces(owners, 0), work, "hot", HOT_SCHEMA)
        fields = {f.name: f for artifact in inputs for f in artifact.schema}
        stage = Strip(options=self.model_dump(mode="json"), hot=tuple(piece.path for piece in hot.pieces))
        outcome = rewrite(context, inputs, pa.schema(list(fields.values())), stage)
        outcome.report = {"windows_seen_twice": hot.n_rows}
        store.delete_dir(work)
        return outcome


class Strip(BatchStage):
    """The last pass; made by `SpanDedup`, not for pipelines."""

    name: ClassVar[str] = "span_dedup_strip"
    summary: ClassVar[str] = "last pass of span_dedup"

    options: dict[str, Any]
    hot: tuple[str, ...]

    def writes(self) -> tuple[pa.Field, ...]:
        """Columns added: bytes and spans cut."""
        return (pa.field("text", pa.large_string()), *_FIELDS)

    def edits(self) -> dict[str, str]:
        """Bytes removed."""
        return {REASON: "span_dedup_bytes"}

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Cut windows that are copies; a document of which nothing is left is rejected."""
        parent = SpanDedup(**self.options)
        known, owner = load_hot(self.hot)
        keys_A, document_A, first_A, next_A = _anchors(parent, batch)
        at, is_hot = _find(known, keys_A)
        mine_D = identity(order_keys(batch, parent.source_priority, parent.prefer))
        own_A = owner[at] == mine_D[document_A] if len(known) else np.zeros(len(keys_A), np.bool_)
        _, first = np.unique(np.stack([document_A, keys_A.view(np.int64)]), axis=1, return_index=True)
        earliest_A = np.zeros(len(keys_A), np.bool_)
        earliest_A[first] = True
        original_A = is_hot & own_A & earliest_A
        chosen = np.flatnonzero(is_hot)
        offsets_D1, data_B = text_view(batch.column("text"))
        old = np.diff(offsets_D1)
        offsets_D1, data_B, spans_D = cut_spans(
            offsets_D1,
            data_B,
            document_A[chosen],
            first_A[chosen],
            next_A[chosen],
            ~original_A[chosen],
            parent.whole_sentences,
            unicode.SENTENCE_TERMINAL,
        )
        left = np.diff(offsets_D1)
        empty = (left == 0) & (old > 0)
        n = batch.num_rows
        columns = [
            text_array(offsets_D1, data_B),
            pa.array(old - left),
            pa.array(spans_D),
            pa.array(np.full(n, REASON_EMPTY), pa.string(), mask=~empty),
            pa.array(np.zeros(n), mask=~empty),
            pa.array(np.ones(n), mask=~empty),
        ]
        names = [f.name for f in (*self.writes(), *REASON_FIELDS)]
        return replace_columns(batch, dict(zip(names, columns, strict=True)))


def _anchors(stage: SpanDedup, batch: pa.RecordBatch) -> Any:
    width = min(stage.slack_units, stage.span_units)
    return anchors(*text_view(batch.column("text")), normal_table(stage.digits_alike), stage.span_units, width)


def _find(known: Any, keys_A: Any) -> tuple[Any, Any]:
    """Return the place of each key among the known ones and whether it is there."""
    if len(known) == 0:
        return np.zeros(len(keys_A), np.int64), np.zeros(len(keys_A), np.bool_)
    at = np.minimum(np.searchsorted(known, keys_A.view(np.int64)), len(known) - 1)
    return at, known[at] == keys_A.view(np.int64)


def _count(stage: SpanDedup, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield how often each anchor occurs in a batch."""
    for batch in batches:
        key, counts = np.unique(_anchors(stage, batch)[0].view(np.int64), return_counts=True)
        nothing = pa.array([b""], pa.binary()).take(pa.array(np.zeros(len(key), np.int64)))
        yield pa.RecordBatch.from_arrays([pa.array(key), pa.array(counts), nothing], schema=COUNT_SCHEMA)


def _owners(stage: SpanDedup, seen: tuple[str, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the best document of a batch for each anchor that is hot."""
    known, _ = load_hot(seen)
    for batch in batches:
        keys_A, document_A, _, _ = _anchors(stage, batch)
        _, is_hot = _find(known, keys_A)
        key, document = keys_A[is_hot].view(np.int64), document_A[is_hot]
        order = order_keys(batch, stage.source_priority, stage.prefer)
        rank = np.empty(batch.num_rows, np.int64)
        rank[np.argsort(np.array(order.to_pylist(), object), kind="stable")] = np.arange(batch.num_rows)
        sorted_ = np.lexsort((rank[document], key))
        key, document = key[sorted_], document[sorted_]
        starts = np.flatnonzero(np.diff(key, prepend=key[:1] - 1)) if len(key) else np.empty(0, np.int64)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(key[starts]),
                pa.array(np.ones(len(starts), np.int64)),
                order.take(pa.array(document[starts])),
            ],
            schema=COUNT_SCHEMA,
        )
