"""One pass over the text: read a split, run the fused batch stages, write kept, rejected and quarantined rows.

This is what a Spark task executes. It writes files under names of its own attempt and returns one record; the
driver commits by naming the records' files in a manifest. A record is also left in ``_tasks/`` so that a run
that was killed finds what is already done.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages import store
from gristmill.stages.base import REASON, REASON_FIELDS, BatchStage, replace_columns
from gristmill.stages.documents import PartWriter, conform
from gristmill.stages.errors import GristmillError, RunError
from gristmill.stages.kernels.views import n_bytes as text_n_bytes
from gristmill.stages.ledger import Count, Entry

PREFIX_BYTES = 256

QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("stage", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("file", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("n_bytes", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("prefix", pa.binary()),
    ]
)
"""Bad input: `line` counts from 1 (Parquet: row from 1), `offset` is the byte in the decoded file (-1: unknown),
`n_bytes` its length, `prefix` its first 256 bytes as they were."""

REJECTED_BASE = (
    pa.field("id", pa.string()),
    pa.field("source", pa.string()),
    pa.field("stage", pa.string()),
    *REASON_FIELDS,
    pa.field("kept_id", pa.string()),
    pa.field("n_bytes", pa.int64()),
)
"""First columns of a rejected row; every signal measured so far follows, the text does not."""

RESERVED = ("row", *(f.name for f in REJECTED_BASE if f.name not in ("id", "source", "n_bytes")))
"""Names that no column of documents may have: rejected rows use them for themselves."""


class Sink:
    """Where a pass books what it reads: ledger entries by node name, and quarantine rows, written as they come."""

    def __init__(self, writer: PartWriter) -> None:
        self.entries: dict[str, Entry] = {}
        self._writer = writer

    def entry(self, node: str) -> Entry:
        """Return the ledger entry of a node."""
        return self.entries.setdefault(node, Entry(node))

    def quarantine(self, node: str, reason: str, n_bytes: int, n_docs: int = 1, **row: Any) -> None:
        """Count and record bad input: one row, which stands for `n_docs` documents. The caller counts the input.

        `row`: file, line, offset, id, detail, prefix.
        """
        self.entry(node).quarantined.setdefault(reason, Count()).add(n_docs, n_bytes)
        row["prefix"] = bytes(row.get("prefix", b"")[:PREFIX_BYTES])
        row |= {"stage": node, "reason": reason, "n_bytes": n_bytes}
        self._writer.write(pa.RecordBatch.from_pylist([row], QUARANTINE_SCHEMA))

    def quarantine_rows(self, node: str, columns: dict[str, Any]) -> None:
        """Count and record many bad records: arrays by column name, at least `reason`, `n_bytes` and `prefix`."""
        n_rows = len(columns["reason"])
        arrays = [
            columns[f.name] if f.name in columns else pa.nulls(n_rows, f.type)
            for f in QUARANTINE_SCHEMA
            if f.name != "stage"
        ]
        batch = pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(node), n_rows), *arrays], schema=QUARANTINE_SCHEMA)
        by_reason = pa.table({"reason": batch.column("reason"), "n": batch.column("n_bytes")}).group_by("reason")
        for row in by_reason.aggregate([("n", "count"), ("n", "sum")]).to_pylist():
            self.entry(node).quarantined.setdefault(row["reason"], Count()).add(row["n_count"], row["n_sum"])
        self._writer.write(batch)


Reader = Callable[[Any, Sink], Iterator[pa.RecordBatch]]
"""Reads one split, giving bad records to the sink."""


@dataclass(frozen=True)
class PassPlan:
    """What every task of a pass needs to know. `steps` are (node name, stage)."""

    directory: str
    reader: Reader
    steps: tuple[tuple[str, BatchStage], ...]
    input_schema: pa.Schema
    output_schema: pa.Schema


def output_schema(schema: pa.Schema, stage: BatchStage) -> pa.Schema:
    """Return the columns after `stage`: replaced in place where the name exists, else appended."""
    fields = {f.name: f for f in schema}
    for written in stage.writes():
        fields[written.name] = written
    return pa.schema(list(fields.values()))


def rejected_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of rejected rows for documents that have `schema`."""
    names = {f.name for f in REJECTED_BASE} | {"text"}
    return pa.schema([*REJECTED_BASE, *(f for f in schema if f.name not in names)])


def run_split(
    plan: PassPlan, split: Any, count: Callable[[int, int, int], None] = lambda docs, n_bytes, n_kept: None
) -> dict[str, Any]:
    """Do one split and return its record. `count` is told documents, bytes and documents kept as they are done."""
    attempt = uuid.uuid4().hex[:12]
    kept = PartWriter(store.join(plan.directory, "kept", f"{split.key}-{attempt}.parquet"), plan.output_schema)
    dropped_schema = rejected_schema(plan.output_schema)
    dropped = PartWriter(
        store.join(plan.directory, "rejected", f"{split.key}-{attempt}.parquet"), dropped_schema, text=False
    )
    bad = PartWriter(
        store.join(plan.directory, "quarantined", f"{split.key}-{attempt}.parquet"), QUARANTINE_SCHEMA, text=False
    )
    sink = Sink(bad)
    for node, _ in plan.steps:
        sink.entry(node)
    for batch in plan.reader(split, sink):
        n_docs, n_bytes = batch.num_rows, int(pc.sum(batch.column("n_bytes")).as_py() or 0)
        left = batch
        for node, stage in plan.steps:
            left = _step(node, stage, left, sink, dropped, dropped_schema)
        kept.write(left.select(plan.output_schema.names))
        count(n_docs, n_bytes, left.num_rows)
    record: dict[str, Any] = {"split": split.key, "entries": [e.to_json() for e in sink.entries.values()]}
    for name, writer in (("kept", kept), ("rejected", dropped), ("quarantined", bad)):
        done = writer.close()
        record[name] = None if done is None else [done[0].model_dump(mode="json"), done[1].model_dump(mode="json")]
    store.write_bytes(store.join(plan.directory, "_tasks", f"{split.key}.json"), json.dumps(record).encode())
    return record


def _step(
    node: str,
    stage: BatchStage,
    batch: pa.RecordBatch,
    sink: Sink,
    dropped: PartWriter,
    dropped_schema: pa.Schema,
) -> pa.RecordBatch:
    """Run one stage on one batch, book it, write what it rejects and return the kept rows."""
    if batch.num_rows == 0:
        return _append_nulls(batch, stage)
    entry = sink.entry(node)
    old_bytes = text_n_bytes(batch.column("text"))
    entry.into.add(batch.num_rows, int(old_bytes.sum()))
    old_source = batch.column("source")
    out, alive = _transform(node, stage, batch, sink)
    _count_sources(entry, old_source, column=0)
    if out is None:
        return _append_nulls(batch.slice(0, 0), stage)
    if alive is not None:
        old_bytes = old_bytes[alive]
    new_bytes = text_n_bytes(out.column("text"))
    if stage.edits():
        out = replace_columns(out, {"n_bytes": pa.array(new_bytes)})
    reasons = out.column(out.schema.get_field_index(REASON))
    if reasons.null_count == len(reasons):
        keep = None
    else:
        keep = np.asarray(pc.is_null(reasons).to_numpy(zero_copy_only=False))
        lost = out.filter(pa.array(~keep))
        lost_bytes = old_bytes[~keep]
        lost = replace_columns(
            lost,
            {
                "stage": pa.array([node] * lost.num_rows, pa.string()),
                "n_bytes": pa.array(lost_bytes),
                "kept_id": pa.nulls(lost.num_rows, pa.string()),
            },
        )
        by_reason = pa.table({"reason": lost.column(REASON), "n": pa.array(lost_bytes)}).group_by("reason")
        for row in by_reason.aggregate([("n", "count"), ("n", "sum")]).to_pylist():
            entry.rejected.setdefault(row["reason"], Count()).add(row["n_count"], row["n_sum"])
        dropped.write(conform(lost, dropped_schema))
        out = out.filter(pa.array(keep))
        old_bytes, new_bytes = old_bytes[keep], new_bytes[keep]
    for reason, column in stage.edits().items():
        removed = out.column(out.schema.get_field_index(column)).to_numpy(zero_copy_only=False)
        if removed.any():
            entry.edited.setdefault(reason, Count()).add(int(np.count_nonzero(removed)), int(removed.sum()))
    entry.kept.add(out.num_rows, int(new_bytes.sum()))
    _count_sources(entry, out.column(out.schema.get_field_index("source")), column=1)
    names_out = [name for name in out.schema.names if name not in {f.name for f in REASON_FIELDS}]
    return out.select(names_out)


def _count_sources(entry: Entry, sources: pa.Array, column: int) -> None:
    for item in sources.value_counts().to_pylist():
        entry.count_source(item["values"] or "", *((item["counts"], 0) if column == 0 else (0, item["counts"])))


def _transform(
    node: str, stage: BatchStage, batch: pa.RecordBatch, sink: Sink
) -> tuple[pa.RecordBatch | None, np.ndarray[Any, np.dtype[np.intp]] | None]:
    """Call the stage; rows that make it raise are found by halving and quarantined.

    Returns the output (None if no row survived) and the positions of the rows in it (None: all of them).
    """
    try:
        return _checked(node, stage, batch), None
    except GristmillError:
        raise
    except Exception:
        pieces: list[pa.RecordBatch] = []
        alive: list[int] = []
        _bisect(node, stage, batch, 0, sink, pieces, alive)
        if not pieces:
            return None, None
        table = pa.Table.from_batches(pieces).combine_chunks()
        return table.to_batches()[0], np.asarray(alive, np.intp)


def _bisect(
    node: str,
    stage: BatchStage,
    batch: pa.RecordBatch,
    start: int,
    sink: Sink,
    pieces: list[pa.RecordBatch],
    alive: list[int],
) -> None:
    try:
        pieces.append(_checked(node, stage, batch))
        alive.extend(range(start, start + batch.num_rows))
    except GristmillError:
        raise
    except Exception as error:
        if batch.num_rows > 1:
            half = batch.num_rows // 2
            _bisect(node, stage, batch.slice(0, half), start, sink, pieces, alive)
            _bisect(node, stage, batch.slice(half), start + half, sink, pieces, alive)
            return
        raw = batch.column("text")[0].as_buffer()
        sink.quarantine(
            node,
            "stage_error",
            raw.size,
            prefix=raw.to_pybytes()[:PREFIX_BYTES] if raw.size < 1 << 20 else raw[:PREFIX_BYTES].to_pybytes(),
            id=batch.column("id")[0].as_py(),
            detail=f"{type(error).__name__}: {error}"[:500],
        )


def _checked(node: str, stage: BatchStage, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Call the stage and hold it to its contract."""
    out = stage.transform(batch)
    if out.num_rows != batch.num_rows:
        raise RunError(f"{node}: stage {stage.name} returned {out.num_rows:,} rows for {batch.num_rows:,}")
    for written in (*stage.writes(), *REASON_FIELDS):
        at = out.schema.get_field_index(written.name)
        if at < 0 or out.schema.field(at).type != written.type:
            got = "nothing" if at < 0 else str(out.schema.field(at).type)
            raise RunError(
                f"{node}: stage {stage.name} must write column {written.name!r} as {written.type}, got {got}"
            )
    return out


def _append_nulls(batch: pa.RecordBatch, stage: BatchStage) -> pa.RecordBatch:
    schema = output_schema(batch.schema, stage)
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
