"""The ingest stage: files in, document table out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, PrivateAttr, field_validator

from gristmill.stages import store
from gristmill.stages.base import SourceStage
from gristmill.stages.context import Context
from gristmill.stages.documents import BASE_COLUMNS
from gristmill.stages.errors import ConfigError, nearest
from gristmill.stages.ingest import jsonl, tables
from gristmill.stages.ingest.decode import codec_of, count_lines, line_start
from gristmill.stages.ingest.files import InputFile, find
from gristmill.stages.passes import RESERVED, Sink

OURS = ("text", "source", "n_bytes", "content_hash")
FOOTERS_READ = 256
"""Parquet footers read while planning, evenly spread; the others are checked when tasks are cut."""

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
        min_length=1,
        description="files, directories (read recursively) or glob patterns (*, ?, **), local or any pyarrow.fs URI",
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

    _files: list[InputFile] | None = PrivateAttr(default=None)

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
            if column in ("id", *OURS):
                raise ValueError(f"column {column!r} is ours and has its type")
            if column in RESERVED or not column:
                raise ValueError(f"a column cannot be called {column!r}; take another name and map it in fields")
        return value

    @field_validator("fields")
    @classmethod
    def _whole_paths(cls, value: dict[str, str]) -> dict[str, str]:
        for column, path in value.items():
            if not all(path.split(".")):
                raise ValueError(f"{column}: {path!r} is no field: names with dots between them are needed")
        return value

    def inputs(self, node: str) -> list[InputFile]:
        """Return the input files, listed once: what is planned is what is read. Raises: ConfigError."""
        if self._files is None:
            self._files = find(self.path, self.format, node)
        return self._files

    def __getstate__(self) -> dict[Any, Any]:
        """Leave the list behind: a worker gets its split."""
        return {**super().__getstate__(), "__pydantic_private__": {"_files": None}}

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
            ConfigError: a Parquet file has no such field (names the nearest one), has a column whose name is
                ours or whose type differs from the other files', or the files are of another format than said.
        """
        files = self.inputs(node)
        if self.format in ("jsonl", "text") and files and _starts_as_parquet(files[0]):
            raise ConfigError(f"{node}.format: {self.format}, but {files[0].path} is a Parquet file")
        paths = self._paths(node)
        fields = {f.name: f for f in BASE_COLUMNS}
        for column, kind in self.columns.items():
            fields[column] = pa.field(column, TYPES[kind])
        formats = {f.format for f in files}
        if "jsonl" in formats:
            fields.setdefault("url", pa.field("url", pa.string()))
        if "jsonl" in formats and self.rest == "keep":
            fields.setdefault(jsonl.REST, pa.field(jsonl.REST, pa.string()))
        self._add_parquet(node, [f for f in files if f.format == "parquet"], paths, fields)
        return pa.schema(list(fields.values()))

    def _add_parquet(
        self, node: str, files: list[InputFile], paths: dict[str, str], fields: dict[str, pa.Field]
    ) -> None:
        """Add the columns of Parquet files to `fields`. A column with two types gets the one that holds both."""
        step = -(-len(files) // FOOTERS_READ) or 1
        sample = files[::step]
        with ThreadPoolExecutor(16) as pool:
            schemas = list(pool.map(_footer, sample))
        if files and not any(schemas):
            raise ConfigError(
                f"{node}.path: {files[0].path} is not a Parquet file, nor is any other that was looked at"
            )
        checked = False
        given: dict[str, tuple[pa.DataType, InputFile]] = {}
        for file, have in zip(sample, schemas, strict=True):
            if have is None:
                continue
            if not checked:
                self._check_parquet(node, file, have, paths)
                checked = True
            if paths["url"].partition(".")[0] in have.names:
                fields.setdefault("url", pa.field("url", pa.string()))
            for f in self._carried(node, file, have, paths):
                kind = f.type.value_type if pa.types.is_dictionary(f.type) else f.type
                before, where = given.get(f.name, (kind, file))
                given[f.name] = (_both(node, f.name, (before, where), (kind, file)), where)
        for name, (kind, _) in given.items():
            fields.setdefault(name, pa.field(name, kind))

    def _carried(self, node: str, file: InputFile, have: pa.Schema, paths: dict[str, str]) -> list[pa.Field]:
        """Return the columns of a Parquet file that no setting names and that are carried along.

        Raises:
            ConfigError: one has a name that is ours; its values would be lost.
        """
        if self.rest != "keep":
            return []
        used = {path.partition(".")[0] for path in paths.values()}
        for name in have.names:
            if name not in used and name in ("source", "n_bytes", "content_hash", *RESERVED):
                way = (
                    f"{node}.fields: {{source: source}} takes it as the source of each document"
                    if name == "source"
                    else f"{node}.columns: {{their_{name}: TYPE}} and {node}.fields: {{their_{name}: {name}}} carry it"
                )
                raise ConfigError(
                    f"{node}.path: {file.path} has a column {name!r}, a name that is ours. {way}; "
                    f"{node}.rest: drop leaves it out"
                )
        return [f for f in have if f.name not in used]

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
        paths, planned = self._paths(context.node), set(self.document_schema(context.node).names)
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
                metadata = _metadata(file)
                have = pa.schema([]) if metadata is None else metadata.schema.to_arrow_schema()
                new = [f.name for f in self._carried(context.node, file, have, paths) if f.name not in planned]
                if new:
                    raise ConfigError(
                        f"{context.node}.path: {file.path} has a column {new[0]!r} that the other files lack; "
                        f"declare it in {context.node}.columns, or leave such columns out with rest: drop"
                    )
                out.extend(
                    [FileSplit((file,))] if metadata is None else _row_group_splits(file, metadata, self.split_bytes)
                )
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


def _metadata(file: InputFile) -> pq.FileMetaData | None:
    """Return a Parquet file's footer; None if it cannot be read (the file goes to quarantine)."""
    try:
        return pq.read_metadata(store.open_input(file.path))
    except (OSError, pa.ArrowException):
        return None


def _starts_as_parquet(file: InputFile) -> bool:
    try:
        with store.open_input(file.path) as stream:
            return bool(stream.read(4) == b"PAR1")
    except OSError:
        return False


def _footer(file: InputFile) -> pa.Schema | None:
    metadata = _metadata(file)
    return None if metadata is None else metadata.schema.to_arrow_schema()


def _both(
    node: str, column: str, one: tuple[pa.DataType, InputFile], two: tuple[pa.DataType, InputFile]
) -> pa.DataType:
    """Return the type that holds the values of both. Raises: ConfigError."""
    if one[0] == two[0]:
        return one[0]
    schemas = [pa.schema([pa.field(column, kind)]) for kind, _ in (one, two)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        raise ConfigError(
            f"{node}.path: column {column!r} is {one[0]} in {one[1].path} and {two[0]} in {two[1].path}; "
            f"declare it in {node}.columns, or leave such columns out with rest: drop"
        ) from None


def _row_group_splits(file: InputFile, metadata: pq.FileMetaData, split_bytes: int) -> list[FileSplit]:
    """Cut a Parquet file at row groups."""
    out = []
    first = held = 0
    for group in range(metadata.num_row_groups):
        held += metadata.row_group(group).total_byte_size
        if held >= split_bytes or group == metadata.num_row_groups - 1:
            out.append(FileSplit((file,), first, group + 1))
            first, held = group + 1, 0
    return out
