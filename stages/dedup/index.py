"""The index of a deduplicated crawl: what later crawls are compared with, without touching old text.

    index/index.json                parameters of the sketch, counts, files; its hash is the index's identity
    index/leaders-<split>.parquet   row, order_key, id, bands, keys, shingles: one line a kept document, by row
    index/foreign-<origin>.parquet  row, bands, keys: buckets that documents removed here add to leaders of an
                                    older index, by row

`keys` of a leader are its own buckets and those of the documents that it removed, so a later document meets the
same leaders as if all crawls had been deduplicated at once, the older ones first: that is exact, not approximate.
Deleting documents from an index (`forget`) means leaving their lines out when it is read.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.stages import store
from gristmill.stages.artifact import Artifact, FileEntry
from gristmill.stages.context import Context
from gristmill.stages.dedup import checkpoint
from gristmill.stages.dedup.checkpoint import Checkpoint, Lookup, Piece
from gristmill.stages.dedup.order import order_keys
from gristmill.stages.dedup.resolver import CANDIDATE_SCHEMA
from gristmill.stages.dedup.sketch import Sketch
from gristmill.stages.documents import Split, plan_splits, read_split
from gristmill.stages.errors import ConfigError
from gristmill.stages.kernels.views import text_view

FORMAT = "gristmill-dedup-index"
FORMAT_VERSION = 2
ROW_SPACE = 55
"""Bits of a row number in the node number of an indexed document; the number of the index is above them."""

LEADER_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("order_key", pa.binary()),
        ("id", pa.string()),
        ("bands", pa.binary()),
        ("keys", pa.binary()),
        ("shingles", pa.binary()),
    ]
)
TAG_SCHEMA = pa.schema([("row", pa.int64()), ("bands", pa.binary()), ("keys", pa.binary())])
HIT_SCHEMA = pa.schema([("row", pa.int64()), ("band", pa.int16()), ("key", pa.int64()), ("center", pa.int64())])
"""As `sketch.BUCKET_SCHEMA`: the buckets of indexed documents, `row` their node number."""


@dataclass(frozen=True)
class Index:
    """One index, opened: `number` among those in use, oldest first."""

    number: int
    origin: str
    leaders: Checkpoint
    foreign: dict[str, Checkpoint]

    def nodes(self, rows: Any) -> Any:
        """Return node numbers (negative) of rows of the index."""
        return -1 - (rows | (self.number << ROW_SPACE))


def open_indexes(paths: tuple[str, ...], sketch: Sketch) -> list[Index]:
    """Open the indexes of earlier artifacts, oldest first.

    Raises:
        ConfigError: no index there, or one that was made with other parameters.
    """
    indexes = []
    for number, path in enumerate(paths):
        name = store.join(path, "index", "index.json")
        try:
            data = json.loads(store.read_bytes(name))
        except (FileNotFoundError, OSError, ValueError) as error:
            raise ConfigError(f"{name}: no dedup index there ({error}); make one with write_index: true") from None
        if data.get("format") != FORMAT or data.get("format_version") != FORMAT_VERSION:
            raise ConfigError(f"{name}: not a {FORMAT} of version {FORMAT_VERSION}")
        if data["sketch"] != _identity(sketch):
            raise ConfigError(
                f"{name}: the index was made with {data['sketch']}, this stage has {_identity(sketch)}; "
                "they must be the same"
            )

        def opened(pieces: list[dict[str, Any]], schema: pa.Schema, base: str = path) -> Checkpoint:
            full = [Piece(**{**piece, "path": store.join(base, "index", piece["path"])}) for piece in pieces]
            return Checkpoint(tuple(full), schema)

        foreign = {origin: opened(pieces, TAG_SCHEMA) for origin, pieces in data["foreign"].items()}
        indexes.append(Index(number, data["origin"], opened(data["leaders"], LEADER_SCHEMA), foreign))
    return indexes


def _identity(sketch: Sketch) -> dict[str, Any]:
    return {name: value for name, value in asdict(sketch).items() if name != "device"}


@dataclass(frozen=True)
class Shelf:
    """All indexes of a run and what to leave out, as tasks need them."""

    indexes: tuple[Index, ...]
    forget: tuple[str, ...]

    def pieces(self) -> list[tuple[int, Piece]]:
        """Return the work: (number of the index, file)."""
        return [(index.number, piece) for index in self.indexes for piece in index.leaders.pieces]

    def read(self, number: int, piece: Piece, columns: list[str]) -> Iterator[tuple[Index, pa.Table]]:
        """Yield leaders of one file with the buckets that later indexes add."""
        index = self.indexes[number]
        later = [
            Lookup(other.foreign[index.origin], ["bands", "keys"])
            for other in self.indexes[number + 1 :]
            if index.origin in other.foreign
        ]
        forget = pa.array(self.forget, pa.string())
        with store.open_input(piece.path) as source, pq.ParquetFile(source) as file:
            for group in range(file.metadata.num_row_groups):
                table = file.read_row_group(group, columns=columns, use_threads=False)
                if len(forget):
                    table = table.filter(pc.invert(pc.is_in(table.column("id"), forget)))
                for lookup in later:
                    table = _extended(table, lookup)
                if table.num_rows:
                    yield index, table


def _extended(table: pa.Table, lookup: Lookup) -> pa.Table:
    """Append the buckets that `lookup` has for the rows of a table."""
    at, found = lookup.find(table.column("row").to_numpy())
    if len(at) == 0:
        return table
    take = np.full(table.num_rows, -1, np.int64)
    take[at] = np.arange(len(at))
    places = pa.array(take, mask=take < 0)
    for name in ("bands", "keys"):
        own = table.column(name).combine_chunks().cast(pa.binary())
        more = pc.fill_null(found.column(name).combine_chunks().cast(pa.binary()).take(places), b"")
        joined = pc.binary_join_element_wise(own, more, pa.scalar(b"", pa.binary()))
        table = table.set_column(table.schema.get_field_index(name), name, joined)
    return table


def exploded(table: pa.Table) -> tuple[Any, Any, Any]:
    """Return ``(position in table, band, key)`` of every bucket, as int64, uint8 and uint64 arrays."""
    band_offsets, bands = text_view(table.column("bands"))
    key_offsets, keys = text_view(table.column("keys"))
    counts = np.diff(band_offsets)
    words = np.frombuffer(keys[key_offsets[0] : key_offsets[-1]].tobytes(), np.uint64)
    return np.repeat(np.arange(table.num_rows), counts), bands[band_offsets[0] : band_offsets[-1]], words


def matches(spark: Any, shelf: Shelf, wanted: list[Any] | None) -> Any:
    """Return a DataFrame of buckets of indexed documents (`HIT_SCHEMA`).

    `wanted`: per band the sorted keys to keep, or None for all of them.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    pieces = shelf.pieces()
    frame = spark.range(0, len(pieces), 1, max(1, len(pieces)))
    return frame.mapInArrow(partial(_match, shelf, wanted), from_arrow_schema(HIT_SCHEMA))


def _match(shelf: Shelf, wanted: list[Any] | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    pieces = shelf.pieces()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            of, piece = pieces[int(number)]
            for index, table in shelf.read(of, piece, ["row", "id", "bands", "keys"]):
                at, band, key = exploded(table)
                if wanted is not None:
                    hit = np.zeros(len(at), np.bool_)
                    for b, known in enumerate(wanted):
                        mine = np.flatnonzero(band == b)
                        if len(known) and len(mine):
                            place = np.minimum(np.searchsorted(known, key[mine]), len(known) - 1)
                            hit[mine] = known[place] == key[mine]
                    at, band, key = at[hit], band[hit], key[hit]
                nodes = index.nodes(table.column("row").to_numpy()[at])
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(nodes),
                        pa.array(band.astype(np.int16)),
                        pa.array(key.view(np.int64)),
                        pa.nulls(len(at), pa.int64()),
                    ],
                    schema=HIT_SCHEMA,
                )


def leaders(spark: Any, shelf: Shelf, labels: Checkpoint) -> Any:
    """Return a DataFrame of `CANDIDATE_SCHEMA` rows of the indexed documents that have a component."""
    from pyspark.sql.pandas.types import from_arrow_schema

    pieces = shelf.pieces()
    frame = spark.range(0, len(pieces), 1, max(1, len(pieces)))
    return frame.mapInArrow(partial(_leaders, shelf, labels), from_arrow_schema(CANDIDATE_SCHEMA))


def _leaders(shelf: Shelf, labels: Checkpoint, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    lookup = Lookup(labels, ["component"])
    pieces = shelf.pieces()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            of, piece = pieces[int(number)]
            for index, table in shelf.read(of, piece, LEADER_SCHEMA.names):
                at, found = lookup.find(index.nodes(table.column("row").to_numpy()))
                if len(at) == 0:
                    continue
                chosen = table.take(pa.array(at)).combine_chunks()
                before = b"\x00" + index.number.to_bytes(2, "big")
                column = {name: _one(chosen.column(name)) for name in chosen.schema.names}
                yield pa.RecordBatch.from_arrays(
                    [
                        _one(found.column("component")),
                        pa.array([before + key for key in column["order_key"].to_pylist()], pa.binary()),
                        column["row"],
                        pa.array(np.ones(len(at), np.bool_)),
                        column["id"],
                        pa.array([index.origin] * len(at), pa.string()),
                        column["bands"],
                        column["keys"],
                        column["shingles"],
                    ],
                    schema=CANDIDATE_SCHEMA,
                )


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def write_index(
    context: Context,
    inputs: list[Artifact],
    sketch: Sketch,
    decisions: Checkpoint,
    source_priority: tuple[str, ...],
    prefer: tuple[str, ...],
    work: str,
) -> None:
    """Add the index of what was kept to the artifact: one more pass over the text of kept documents."""
    spark = context.spark
    frame = decisions.frame(spark).where("row >= 0")
    ranged = frame.select("row").repartitionByRange("row").sortWithinPartitions("row")
    removed = checkpoint.save(ranged, work, "removed", pa.schema([("row", pa.int64())]))
    tags = _merged_tags(frame.where("kept_origin = ''"), work, "tags")
    origins = [row["kept_origin"] for row in frame.select("kept_origin").distinct().collect() if row["kept_origin"]]
    splits = plan_splits(inputs, context.parallelism)
    directory = store.join(context.directory, "index")
    columns = list(dict.fromkeys(["text", "id", "source", "content_hash", *(p.removeprefix("-") for p in prefer)]))
    task = partial(_write_leaders, directory, inputs[0].schema if inputs else pa.schema([]), columns, sketch)
    task = partial(task, removed, tags, source_priority, prefer)
    pieces = []
    for record in context.run_tasks(splits, task):
        if record["file"]:
            context.add_file(FileEntry(**record["file"]))
            pieces.append({**record["piece"], "path": record["piece"]["path"].rpartition("/")[2]})
    foreign = {}
    for number, origin in enumerate(sorted(origins)):
        merged = _merged_tags(frame.where(f"kept_origin = '{origin}'"), work, f"foreign-{number}")
        sink = pa.BufferOutputStream()
        pq.write_table(merged.table(), sink, compression="zstd", row_group_size=checkpoint.ROW_GROUP_ROWS)
        context.write_file(f"index/foreign-{origin}.parquet", sink.getvalue().to_pybytes())
        low = min(piece.low for piece in merged.pieces)
        high = max(piece.high for piece in merged.pieces)
        foreign[origin] = [{"path": f"foreign-{origin}.parquet", "n_rows": merged.n_rows, "low": low, "high": high}]
    data = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "origin": context.directory.rstrip("/").rpartition("/")[2],
        "sketch": _identity(sketch),
        "leaders": pieces,
        "foreign": foreign,
    }
    context.write_file("index/index.json", json.dumps(data, indent=1).encode())


def _merged_tags(frame: Any, work: str, name: str) -> Checkpoint:
    """Return the buckets that removed documents give to each leader, one line a leader, by its row."""
    from pyspark.sql.pandas.types import from_arrow_schema

    tags = frame.selectExpr("kept_row as row", "bands", "keys")
    ordered = tags.repartitionByRange("row").sortWithinPartitions("row", "keys")
    merged = ordered.mapInArrow(_merge, from_arrow_schema(TAG_SCHEMA))
    return checkpoint.save(merged, work, name, TAG_SCHEMA)


def _merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[Any] = []
    for batch in batches:
        rows = batch.column("row").to_pylist()
        bands, keys = batch.column("bands").to_pylist(), batch.column("keys").to_pylist()
        out = []
        for row, band, key in zip(rows, bands, keys, strict=True):
            if held and held[0] == row:
                held[1] += band
                held[2] += key
            else:
                if held:
                    out.append(held)
                held = [row, band, key]
        if out:
            yield pa.RecordBatch.from_pylist([dict(zip(TAG_SCHEMA.names, x, strict=True)) for x in out], TAG_SCHEMA)
    if held:
        yield pa.RecordBatch.from_pylist([dict(zip(TAG_SCHEMA.names, held, strict=True))], TAG_SCHEMA)


def _write_leaders(
    directory: str,
    schema: pa.Schema,
    columns: list[str],
    sketch: Sketch,
    removed: Checkpoint,
    tags: Checkpoint,
    source_priority: tuple[str, ...],
    prefer: tuple[str, ...],
    split: Split,
) -> dict[str, Any]:
    """Write the leaders of one split and say what was written."""
    gone = Lookup(removed, [])
    extra = Lookup(tags, ["bands", "keys"])
    path = store.join(directory, f"leaders-{split.key}.parquet")
    attempt = f"{path}.{uuid.uuid4().hex[:8]}.tmp" if store.is_local(path) else path
    sink = writer = None
    n_rows, low, high = 0, 0, 0
    wanted = pa.schema([schema.field(name) for name in columns])
    for batch in read_split(split, wanted, with_row=True):
        if batch.num_rows == 0:
            continue
        keep = np.ones(batch.num_rows, np.bool_)
        keep[gone.find(batch.column("row").to_numpy())[0]] = False
        kept = batch.filter(pa.array(keep))
        keys_DN, n_units_D = sketch.keys(kept.column("text"))
        some = np.flatnonzero(n_units_D)
        if len(some) == 0:
            continue
        kept, keys_DN = kept.take(pa.array(some)), keys_DN[some]
        table = pa.table(
            [
                kept.column("row"),
                order_keys(kept, source_priority, prefer),
                kept.column("id").cast(pa.string()),
                pa.array([bytes(range(sketch.bands))] * len(some), pa.binary()),
                sketch.packed(keys_DN),
                sketch.sets(kept.column("text")).cast(pa.binary()),
            ],
            schema=LEADER_SCHEMA,
        )
        table = _extended(table, extra)
        if writer is None:
            sink = store.HashingSink(attempt)
            writer = pq.ParquetWriter(sink, LEADER_SCHEMA, compression="zstd", compression_level=1)
        writer.write_table(table)
        rows = table.column("row").to_numpy()
        low = int(rows[0]) if n_rows == 0 else low
        high = int(rows[-1])
        n_rows += len(rows)
    if writer is None or sink is None:
        return {"file": None}
    writer.close()
    sink.close()
    if attempt != path:
        store.rename(attempt, path)
    entry = FileEntry(path=path, n_bytes=sink.n_bytes, xxh3=sink.digest)
    return {
        "file": entry.model_dump(mode="json"),
        "piece": {"path": path, "n_rows": n_rows, "low": low, "high": high},
    }
