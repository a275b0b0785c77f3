"""Reading and writing the document table: splits of row groups in, Parquet parts out.

A split is a run of row groups of one part. Readers apply the row mask; writers cut row groups by text bytes, so
that every batch a kernel sees is bounded in memory (16 MiB of text, or one document).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.stages import store
from gristmill.stages.artifact import Artifact, FileEntry, Part, read_mask
from gristmill.stages.errors import RunError
from gristmill.stages.kernels.views import n_bytes as text_n_bytes

ROW_GROUP_BYTES = 16 << 20
ROW_GROUP_ROWS = 100_000
ROW_BITS = 32
"""A row number is ``part << ROW_BITS | row in file``; both below 2^31 and 2^32."""

BASE_COLUMNS = (
    pa.field("id", pa.string()),
    pa.field("text", pa.large_string()),
    pa.field("source", pa.string()),
    pa.field("n_bytes", pa.int64()),
    pa.field("content_hash", pa.binary(16)),
)
"""Columns that every document has. `n_bytes` is kept equal to the UTF-8 length of `text`; `content_hash` is the
128-bit xxh3 of the text as it was ingested."""


@dataclass(frozen=True)
class Split:
    """Row groups ``[first, last)`` of part number `part` (counted over all inputs of a pass)."""

    part: int
    path: str
    mask: str | None
    first: int
    last: int
    first_row: int
    n_rows_in_file: int
    n_bytes: int

    @property
    def key(self) -> str:
        """Identity of the split, for resuming: same file and row groups, same key."""
        text = f"{self.path}\0{self.mask}\0{self.first}\0{self.last}"
        return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def plan_splits(inputs: Iterable[Artifact], parallelism: int, max_bytes: int = 64 << 20) -> list[Split]:
    """Cut all parts into splits of at most `max_bytes` of text, about three a core or more, whole row groups each."""
    parts = [(artifact.root, part) for artifact in inputs for part in artifact.parts]
    total = sum(part.n_bytes for _, part in parts)
    target = max(1, min(max_bytes, total // max(1, 3 * parallelism)))
    splits = []
    for number, (root, part) in enumerate(parts):
        rate = part.n_bytes / max(1, part.n_rows)
        first = first_row = rows = 0
        for group, n_rows in enumerate(part.row_group_rows):
            rows += n_rows
            if rows * rate >= target or group == len(part.row_group_rows) - 1:
                mask = store.join(root, part.mask) if part.mask else None
                splits.append(
                    Split(
                        number,
                        store.join(root, part.path),
                        mask,
                        first,
                        group + 1,
                        first_row,
                        part.n_rows,
                        int(rows * rate),
                    )
                )
                first, first_row, rows = group + 1, first_row + rows, 0
    return splits


def read_split(split: Split, schema: pa.Schema, with_row: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield one batch a row group with the columns of `schema` (nulls where the file lacks one), removed rows left out.

    `with_row` adds the row number as `row` int64.

    Raises:
        RunError: the file is gone or not what the manifest says.
    """
    mask = read_mask(split.mask, split.n_rows_in_file) if split.mask else None
    try:
        source = store.open_input(split.path)
    except (FileNotFoundError, OSError) as error:
        raise RunError(f"{split.path}: cannot be read ({error}); an artifact needs the ones it was made from") from None
    with source, pq.ParquetFile(source) as file:
        row = split.first_row
        for group in range(split.first, split.last):
            batch = one_batch(file.read_row_group(group, columns=schema.names, use_threads=False))
            n_rows = file.metadata.row_group(group).num_rows
            batch = conform(batch, schema, n_rows)
            if with_row:
                numbers = np.arange(row, row + n_rows, dtype=np.int64) | (split.part << ROW_BITS)
                batch = pa.RecordBatch.from_arrays([*batch.columns, pa.array(numbers)], [*schema.names, "row"])
            if mask is not None and not (keep := mask[row : row + n_rows]).all():
                batch = batch.filter(pa.array(keep))
            row += n_rows
            yield batch


def conform(batch: pa.RecordBatch, schema: pa.Schema, n_rows: int | None = None) -> pa.RecordBatch:
    """Bring a batch to `schema`: order the columns, fill the missing ones with nulls."""
    n_rows = batch.num_rows if n_rows is None else n_rows
    arrays = []
    for wanted in schema:
        at = batch.schema.get_field_index(wanted.name)
        arrays.append(pa.nulls(n_rows, wanted.type) if at < 0 else batch.column(at))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def union_schema(artifacts: Iterable[Artifact], columns: Iterable[str] | None = None) -> pa.Schema:
    """Return the columns that the artifacts have together, or those of them that are named, in that order.

    Raises:
        RunError: no artifact has a named column.
    """
    fields: dict[str, pa.Field] = {}
    for artifact in artifacts:
        for f in artifact.schema:
            fields.setdefault(f.name, f)
    if columns is None:
        return pa.schema(list(fields.values()))
    missing = [c for c in columns if c not in fields]
    if missing:
        raise RunError(f"the documents have no column {missing[0]!r}; they have {', '.join(fields)}")
    return pa.schema([fields[c] for c in columns])


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one record batch."""
    arrays = []
    for column in table.columns:
        if column.num_chunks == 1:
            arrays.append(column.chunk(0))
        else:
            arrays.append(pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def slice_by_bytes(batch: pa.RecordBatch, max_bytes: int = ROW_GROUP_BYTES) -> Iterator[pa.RecordBatch]:
    """Cut a batch so that each piece holds at most `max_bytes` of text, or a single row."""
    ends = np.cumsum(text_n_bytes(batch.column("text")))
    start = 0
    base = 0
    while start < batch.num_rows:
        stop = int(np.searchsorted(ends, base + max_bytes, side="right"))
        stop = min(max(stop, start + 1), start + ROW_GROUP_ROWS)
        yield batch.slice(start, stop - start)
        base = int(ends[stop - 1])
        start = stop


class PartWriter:
    """Writes documents (or any rows) to one Parquet file, a row group per about 16 MiB of text.

    The file is complete after `close`, which returns its description or None when no row was written.
    """

    def __init__(self, path: str, schema: pa.Schema, text: bool = True) -> None:
        self.path = path
        self._schema = schema
        self._text = text
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._sink: store.HashingSink | None = None
        self._writer: Any = None
        self._groups: list[int] = []
        self._n_docs = self._n_bytes = 0
        self._sources: dict[str, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows. The batch must have the writer's columns, in its order."""
        if batch.num_rows == 0:
            return
        if self._text:
            for piece in slice_by_bytes(batch):
                self._add(piece, int(pc.sum(piece.column("n_bytes")).as_py()))
            for item in batch.column("source").value_counts().to_pylist():
                name = item["values"] or ""
                self._sources[name] = self._sources.get(name, 0) + item["counts"]
        else:
            self._add(batch, batch.nbytes)

    def _add(self, batch: pa.RecordBatch, n_bytes: int) -> None:
        if self._pending and (
            self._pending_bytes + n_bytes > ROW_GROUP_BYTES or self._pending_rows + batch.num_rows > ROW_GROUP_ROWS
        ):
            self._flush()
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += n_bytes
        self._n_docs += batch.num_rows
        self._n_bytes += n_bytes

    def _flush(self) -> None:
        if not self._pending:
            return
        if self._writer is None:
            self._sink = store.HashingSink(self.path)
            names = [f.name for f in self._schema if f.name not in ("text", "id", "content_hash", "url")]
            self._writer = pq.ParquetWriter(
                self._sink,
                self._schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=names,
                write_statistics=[f.name for f in self._schema if f.name in ("id", "n_bytes", "source", "lang")],
                store_schema=True,
            )
        table = pa.Table.from_batches(self._pending, self._schema)
        self._writer.write_table(table, row_group_size=max(1, self._pending_rows))
        self._groups.append(self._pending_rows)
        self._pending = []
        self._pending_rows = self._pending_bytes = 0

    def close(self) -> tuple[FileEntry, Part] | None:
        """Finish the file and return ``(file, part)`` with the attempt's own path, or None if there were no rows."""
        self._flush()
        if self._writer is None or self._sink is None:
            return None
        self._writer.close()
        self._sink.close()
        entry = FileEntry(path=self.path, n_bytes=self._sink.n_bytes, xxh3=self._sink.digest)
        part = Part(
            path=self.path,
            row_group_rows=tuple(self._groups),
            n_docs=self._n_docs,
            n_bytes=self._n_bytes,
            sources=dict(sorted(self._sources.items())),
        )
        return entry, part
