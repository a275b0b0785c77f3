"""The ingest stage: files in, document table out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, field_validator

from gristmill.stages import store
from gristmill.stages.base import SourceStage
from gristmill.stages.context import Context
from gristmill.stages.documents import BASE_COLUMNS
from gristmill.stages.errors import ConfigError, nearest
from gristmill.stages.ingest import jsonl, tables
from gristmill.stages.ingest.decode import codec_of, count_lines, line_start
from gristmill.stages.ingest.files import InputFile, find
from gristmill.stages.passes import Sink

TYPES = {
    "string": pa.string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True)
class FileSplit:
    """Work of one task: files in full, or one file's bytes (JSON Lines) or row groups (Parquet) ``[start, stop)``.

    `stop` < 0 means to the end. `first_line`: lines before `start`.
    """

    files: tuple[InputFile, ...]
    start: int = 0
    stop: int = -1
    first_line: int = 0

    @property
    def key(self) -> str:
        """Identity of the split, for resuming."""
        text = repr([(f.path, f.n_bytes, f.mtime_ns) for f in self.files]) + f"{self.start} {self.stop}"
        return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


class Ingest(SourceStage):
    """Read JSON Lines, Parquet or text files into the document table."""

    name: ClassVar[str] = "ingest"
    summary: ClassVar[str] = "read JSON Lines, Parquet or text files; bad records go to quarantine with their place"
    version: ClassVar[int] = 1

    path: tuple[str, ...] = Field(
        description="files, directories (read recursively) or glob patterns (*, ?, **), local or any pyarrow.fs URI"
    )
    format: Literal["auto", "jsonl", "parquet", "text"] = Field(
        default="auto", description="auto: by suffix, before .gz, .zst or .bz2"
    )
    source: str = Field(default="corpus", min_length=1, description="name of the source, unless mapped from a field")
    fields: dict[str, str] = Field(
        default={}, description="column: field, dots for nested ones, for example text: content, id: doc.uuid"
    )
    columns: dict[str, str] = Field(
        default={}, description=f"further columns to carry and their types ({', '.join(TYPES)})"
    )
    rest: Literal["keep", "drop"] = Field(
        default="keep",
        description="fields not named: keep them (JSON Lines: as JSON in column 'metadata'; Parquet: as columns)",
    )
    max_record_bytes: int = Field(
        default=100_000_000,
        ge=1024,
        le=2_000_000_000,
        description="longest record in bytes; longer ones are quarantined",
    )
    split_bytes: int = Field(
        default=64 << 20, ge=1 << 10, description="bytes of input a task, where a file can be cut or several be joined"
    )

    @field_validator("path", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("columns")
    @classmethod
    def _known_types(cls, value: dict[str, str]) -> dict[str, str]:
        for column, kind in value.items():
            if kind not in TYPES:
                raise ValueError(f"column {column!r} has unknown type {kind!r}.{nearest(kind, TYPES)}")
            if column in ("text", "n_bytes", "content_hash"):
                raise ValueError(f"column {column!r} is ours and has its type")
        return value

    def inputs(self, node: str) -> list[InputFile]:
        """Return the input files. Raises: ConfigError."""
        return find(self.path, self.format, node)

    def identity(self, node: str) -> Any:
        """Return what decides the content of the input: names, sizes and modification times."""
        return [[f.name, f.n_bytes, f.mtime_ns] for f in self.inputs(node)]

    def _paths(self, node: str) -> dict[str, str]:
        """Column -> field. The text must be somewhere, id, source and url need not."""
        known = ["text", "id", "source", "url", *self.columns]
        unknown = [c for c in self.fields if c not in known]
        if unknown:
            raise ConfigError(
                f"{node}.fields.{unknown[0]}: no such column; declare it with its type in {node}.columns."
                f"{nearest(unknown[0], known)}"
            )
        names = {"text": "text", "id": "id", "url": "url"} | {c: c for c in self.columns} | self.fields
        return dict(sorted(names.items()))

    def document_schema(self, node: str) -> pa.Schema:
        """Return the columns of the documents, known before anything runs.

        Raises:
            ConfigError: a Parquet file has no such field (names the nearest one).
        """
        files = self.inputs(node)
        paths = self._paths(node)
        fields = {f.name: f for f in BASE_COLUMNS}
        for column, kind in self.columns.items():
            fields[column] = pa.field(column, TYPES[kind])
        formats = {f.format for f in files}
        if "jsonl" in formats:
            fields.setdefault("url", pa.field("url", pa.string()))
        if "jsonl" in formats and self.rest == "keep":
            fields.setdefault(jsonl.REST, pa.field(jsonl.REST, pa.string()))
        first = next((f for f in files if f.format == "parquet"), None)
        if first is not None:
            try:
                have = pq.read_schema(store.open_input(first.path))
            except (OSError, pa.ArrowException):
                have = None
            if have is not None:
                self._check_parquet(node, first, have, paths)
                if paths["url"].partition(".")[0] in have.names:
                    fields.setdefault("url", pa.field("url", pa.string()))
                if self.rest == "keep":
                    used = {p.partition(".")[0] for p in paths.values()}
                    for f in have:
                        if f.name not in fields and f.name not in used:
                            kind = f.type.value_type if pa.types.is_dictionary(f.type) else f.type
                            fields[f.name] = pa.field(f.name, kind)
        return pa.schema(list(fields.values()))

    def _check_parquet(self, node: str, file: InputFile, have: pa.Schema, paths: dict[str, str]) -> None:
        for column, path in paths.items():
            head = path.partition(".")[0]
            if head not in have.names and (column == "text" or column in self.fields or column in self.columns):
                raise ConfigError(
                    f"{node}.fields.{column}: {file.path} has no column {head!r}.{nearest(head, have.names)} "
                    f"It has: {', '.join(have.names)}"
                )

    def splits(self, context: Context) -> list[FileSplit]:
        """Cut the input into tasks; lines before each piece of a large file are counted by Spark tasks."""
        out: list[FileSplit] = []
        small: list[InputFile] = []
        held = 0
        for file in self.inputs(context.node):
            if file.format == "text":
                small.append(file)
                held += file.n_bytes
                if held >= self.split_bytes or len(small) >= 10_000:
                    out.append(FileSplit(tuple(small)))
                    small, held = [], 0
            elif file.format == "jsonl" and codec_of(file.path) is None and file.n_bytes > self.split_bytes:
                n_pieces = -(-file.n_bytes // self.split_bytes)
                cuts = [line_start(file.path, file.n_bytes * k // n_pieces) for k in range(n_pieces + 1)]
                cuts[-1] = file.n_bytes
                ranges = [(a, b) for a, b in pairwise(cuts) if b > a]
                counts = context.run_tasks(ranges, partial(_count_lines, file.path))
                line = 0
                for (start, stop), count in zip(ranges, counts, strict=True):
                    out.append(FileSplit((file,), start, stop, line))
                    line += count["lines"]
            elif file.format == "parquet":
                out.extend(_parquet_splits(file, self.split_bytes))
            else:
                out.append(FileSplit((file,)))
        if small:
            out.append(FileSplit(tuple(small)))
        return out

    def read(self, node: str, schema: pa.Schema, split: FileSplit, sink: Sink) -> Iterator[pa.RecordBatch]:
        """Yield the documents of a split; bad records go to the sink."""
        paths = self._paths(node)
        first = split.files[0]
        if first.format == "jsonl":
            types = {c: TYPES[k] for c, k in self.columns.items()}
            plan = jsonl.JsonlPlan(node, paths, types, self.source, schema, self.max_record_bytes)
            yield from jsonl.read(plan, first.path, first.name, split.start, split.stop, split.first_line, sink)
            return
        if first.format == "text":
            table = tables.TablePlan(node, {}, self.source, schema, self.max_record_bytes)
            yield from tables.read_text_files(table, [(f.path, f.name) for f in split.files], sink)
            return
        extra = {f.name: f.name for f in schema if f.name not in {b.name for b in BASE_COLUMNS} | set(paths)}
        table = tables.TablePlan(node, paths | extra, self.source, schema, self.max_record_bytes)
        yield from tables.read_parquet(table, first.path, first.name, split.start, split.stop, sink)


def _count_lines(path: str, piece: tuple[int, int]) -> dict[str, Any]:
    return {"lines": count_lines(path, *piece)}


def _parquet_splits(file: InputFile, split_bytes: int) -> list[FileSplit]:
    """Cut a Parquet file at row groups; a file whose footer cannot be read is one split, for quarantine."""
    try:
        metadata = pq.read_metadata(store.open_input(file.path))
    except (OSError, pa.ArrowException):
        return [FileSplit((file,))]
    out = []
    first = held = 0
    for group in range(metadata.num_row_groups):
        held += metadata.row_group(group).total_byte_size
        if held >= split_bytes or group == metadata.num_row_groups - 1:
            out.append(FileSplit((file,), first, group + 1))
            first, held = group + 1, 0
    return out
