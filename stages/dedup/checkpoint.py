"""Rounds that survive a kill: a DataFrame's rows written to Parquet by the tasks, committed by one small file.

A checkpoint is ``<directory>/<name>-<attempt>/part-*.parquet`` and ``<directory>/<name>.json``, which lists the
files with their row counts and is written last. A rerun finds the list and does not compute the round again; files
of a failed or speculative attempt are in no list. Reading goes through pyarrow as well, so any store will do.

Files written in ascending order of their first column also serve as a lookup by that column (`lookup`), which
reads only the row groups that can hold the wanted numbers: how a pass over the text learns what was decided
about its rows, at any scale.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.stages import store
from gristmill.stages.errors import RunError

Mapper = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
ROW_GROUP_ROWS = 1 << 17
_RECORD = pa.schema([("path", pa.string()), ("n_rows", pa.int64()), ("low", pa.int64()), ("high", pa.int64())])


@dataclass(frozen=True)
class Piece:
    """One file: rows, and the least and greatest value of the first column (0, 0 where it is not an integer)."""

    path: str
    n_rows: int
    low: int
    high: int


@dataclass(frozen=True)
class Checkpoint:
    """Committed rows; `schema` as an Arrow schema."""

    pieces: tuple[Piece, ...]
    schema: pa.Schema

    @property
    def n_rows(self) -> int:
        """All rows."""
        return sum(piece.n_rows for piece in self.pieces)

    def frame(self, spark: Any, then: Mapper | None = None, schema: pa.Schema | None = None) -> Any:
        """Return the rows as a DataFrame, one partition a file; with `then`, what it makes of them (`schema`)."""
        from pyspark.sql.pandas.types import from_arrow_schema

        numbers = spark.range(0, len(self.pieces), 1, max(1, len(self.pieces)))
        return numbers.mapInArrow(partial(_read, self.pieces, then), from_arrow_schema(schema or self.schema))

    def table(self, columns: list[str] | None = None, keep: Callable[[pa.Table], pa.Table] | None = None) -> pa.Table:
        """Return the rows on the driver; of each file only what `keep` returns."""
        tables = (pq.read_table(_open(piece.path), columns=columns) for piece in self.pieces)
        kept = [keep(table) if keep else table for table in tables]
        schema = self.schema if columns is None else pa.schema([self.schema.field(c) for c in columns])
        return pa.concat_tables(kept) if kept else schema.empty_table()


def _open(path: str) -> Any:
    return store.open_input(path)


def find(directory: str, name: str, schema: pa.Schema) -> Checkpoint | None:
    """Return the checkpoint if it was committed and its files are still there."""
    path = store.join(directory, f"{name}.json")
    if not store.exists(path):
        return None
    pieces = tuple(Piece(**piece) for piece in json.loads(store.read_bytes(path)))
    if not all(store.exists(piece.path) for piece in pieces):
        return None
    return Checkpoint(pieces, schema)


def commit(directory: str, name: str, pieces: Sequence[Piece], schema: pa.Schema) -> Checkpoint:
    """Write the list: from here on the round is done."""
    ordered = sorted((p for p in pieces if p.n_rows), key=lambda piece: (piece.low, piece.path))
    data = json.dumps([vars(piece) for piece in ordered])
    store.write_bytes(store.join(directory, f"{name}.json"), data.encode())
    return Checkpoint(tuple(ordered), schema)


def save(frame: Any, directory: str, name: str, schema: pa.Schema, first: Mapper | None = None) -> Checkpoint:
    """Compute a DataFrame once and commit its rows; an earlier commit of the same name is returned as it is.

    With `first`, what it makes of the rows of each partition (`schema`) is written, in the same Python task.

    Raises:
        RunError: a task's file has another row count than the task reported.
    """
    done = find(directory, name, schema)
    if done is not None:
        return done
    from pyspark.sql.pandas.types import from_arrow_schema

    task = partial(_write, store.join(directory, f"{name}-{uuid.uuid4().hex[:8]}"), schema, first)
    rows = frame.mapInArrow(task, from_arrow_schema(_RECORD)).collect()
    pieces = [Piece(row["path"], row["n_rows"], row["low"], row["high"]) for row in rows]
    for piece in pieces:
        n_rows = pq.ParquetFile(_open(piece.path)).metadata.num_rows if piece.n_rows else 0
        if n_rows != piece.n_rows:
            raise RunError(f"{piece.path}: the task wrote {piece.n_rows:,} rows, the file has {n_rows:,}")
    return commit(directory, name, pieces, schema)


def save_table(table: pa.Table, directory: str, name: str) -> Checkpoint:
    """Commit rows that the driver holds."""
    base = store.join(directory, f"{name}-{uuid.uuid4().hex[:8]}")
    record = next(_write(base, table.schema, None, iter(table.combine_chunks().to_batches())), None)
    pieces = [] if record is None else [Piece(**row) for row in record.to_pylist()]
    return commit(directory, name, pieces, table.schema)


def _write(
    base: str, schema: pa.Schema, first_do: Mapper | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    path = store.join(base, f"part-{uuid.uuid4().hex[:12]}.parquet")
    numeric = pa.types.is_integer(schema.field(0).type)
    n_rows, low, high = 0, 2**63 - 1, -(2**63)
    sink = writer = None
    for batch in first_do(batches) if first_do else batches:
        if batch.num_rows == 0:
            continue
        if writer is None:
            sink = store.HashingSink(path)
            writer = pq.ParquetWriter(sink, schema, compression="zstd", compression_level=1)
        writer.write_batch(batch.cast(schema) if batch.schema != schema else batch, row_group_size=ROW_GROUP_ROWS)
        n_rows += batch.num_rows
        if numeric:
            first = batch.column(0).to_numpy(zero_copy_only=False)
            low, high = min(low, int(first.min())), max(high, int(first.max()))
    if writer is None or sink is None:
        return
    writer.close()
    sink.close()
    if not numeric:
        low = high = 0
    yield pa.RecordBatch.from_pydict({"path": [path], "n_rows": [n_rows], "low": [low], "high": [high]}, schema=_RECORD)


def _read(
    pieces: tuple[Piece, ...], then: Mapper | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    rows = _rows(pieces, batches)
    return then(rows) if then else rows


def _rows(pieces: tuple[Piece, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            with _open(pieces[number].path) as source, pq.ParquetFile(source) as file:
                yield from file.iter_batches(ROW_GROUP_ROWS, use_threads=False)


class Lookup:
    """Values of a checkpoint by its first column, which ascends within and across files.

    Keeps the row group read last, since rows are asked for in ascending order.
    """

    def __init__(self, checkpoint: Checkpoint, columns: Sequence[str]) -> None:
        self._pieces = checkpoint.pieces
        self._columns = [checkpoint.schema.names[0], *columns]
        self._groups: dict[tuple[str, int], pa.Table] = {}

    def find(self, rows_D: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], pa.Table]:
        """Return ``(position in rows_D, matching rows)`` for the rows that are known, in the order of `rows_D`."""
        if len(rows_D) == 0 or not self._pieces:
            return np.empty(0, np.int64), pa.table({name: [] for name in self._columns})
        low, high = int(rows_D.min()), int(rows_D.max())
        tables = []
        used = {}
        for piece in self._pieces:
            if piece.high < low or piece.low > high:
                continue
            with _open(piece.path) as source, pq.ParquetFile(source) as file:
                for group in range(file.metadata.num_row_groups):
                    bounds = file.metadata.row_group(group).column(0).statistics
                    if bounds is not None and (bounds.max < low or bounds.min > high):
                        continue
                    key = (piece.path, group)
                    used[key] = (
                        self._groups[key]
                        if key in self._groups
                        else file.read_row_group(group, columns=self._columns, use_threads=False)
                    )
                    tables.append(used[key])
        self._groups = used
        if not tables:
            return np.empty(0, np.int64), pa.table({name: [] for name in self._columns})
        table = pa.concat_tables(tables)
        keys = table.column(0).to_numpy()
        at = np.minimum(np.searchsorted(keys, rows_D), len(keys) - 1)
        hit = np.flatnonzero(keys[at] == rows_D)
        return hit, table.take(pa.array(at[hit]))
