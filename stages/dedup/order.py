"""Which of several duplicates is kept: one binary key a document, smallest first.

The key compares byte by byte: rank of the source, each preferred column, the id, the content hash. So the choice
is total, needs no tie-break by row, and is the same for any file layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from gristmill.stages.base import GlobalStage
from gristmill.stages.errors import ConfigError, nearest

_END_UP = b"\x00"
_END_DOWN = b"\xff"


class KeepsBest(GlobalStage):
    """A stage that keeps one of several documents: the fields that say which."""

    source_priority: tuple[str, ...] = Field(
        default=(),
        description="sources from most to least preferred; those not named come after, all alike",
    )
    prefer: tuple[str, ...] = Field(
        default=("-n_bytes",),
        description="columns that decide next: the smallest value is kept, with a leading '-' the largest "
        "(longest, latest); nulls come last; ties go to the smaller id, then the smaller content hash",
    )

    def preferred_columns(self) -> list[str]:
        """Return the names in `prefer` without their signs."""
        return [name.removeprefix("-") for name in self.prefer]

    def order_columns(self) -> list[str]:
        """Return every column that `order_keys` reads."""
        return list(dict.fromkeys(["id", "source", "content_hash", *self.preferred_columns()]))

    def reads(self) -> dict[str, pa.DataType | None]:
        """Columns that must be there: the text, the identity and whatever `prefer` names."""
        return {"text": pa.large_string(), **dict.fromkeys(self.order_columns())}

    def check_columns(self, schemas: list[pa.Schema]) -> None:
        """Fail where a preferred column is missing or cannot be ordered.

        Raises:
            ConfigError: names the column and the nearest one that is there.
        """
        for name in self.preferred_columns():
            for schema in schemas:
                if name not in schema.names:
                    raise ConfigError(f"{self.name}.prefer: no column {name!r}.{nearest(name, schema.names)}")
                kind = schema.field(name).type
                if pa.types.is_nested(kind):
                    raise ConfigError(
                        f"{self.name}.prefer: column {name!r} is {kind}; a number, string or date is needed"
                    )


def order_keys(batch: pa.RecordBatch, source_priority: tuple[str, ...], prefer: tuple[str, ...]) -> pa.Array:
    """Return the keep key of each row, binary; the smallest is kept."""
    if batch.num_rows == 0:
        return pa.array([], pa.binary())
    parts = [_source_rank(batch.column("source"), source_priority)]
    for name in prefer:
        parts += _column(batch.column(name.removeprefix("-")), name.startswith("-"))
    identifiers = pc.fill_null(batch.column("id").cast(pa.large_string()), "")
    parts += [identifiers.cast(pa.large_binary()), _END_UP, _binary(batch.column("content_hash"))]
    sized = [part if isinstance(part, bytes) else part.cast(pa.large_binary()) for part in parts]
    joined = pc.binary_join_element_wise(
        *(pa.scalar(part, pa.large_binary()) if isinstance(part, bytes) else part for part in sized),
        pa.scalar(b"", pa.large_binary()),
    )
    return joined.cast(pa.binary())


def sample_documents() -> pa.RecordBatch:
    """Return two small documents, to compile kernels on."""
    return pa.RecordBatch.from_pydict(
        {
            "n_bytes": pa.array([27, 24], pa.int64()),
            "row": pa.array([0, 1], pa.int64()),
            "id": ["a", "b"],
            "source": ["s", "s"],
            "content_hash": pa.array([bytes(16)] * 2, pa.binary(16)),
            "text": pa.array(["one two three four five six", "天地玄黄宇宙洪荒"], pa.large_string()),
        }
    )


def _fixed(rows_DW: npt.NDArray[np.uint8]) -> pa.Array:
    rows_DW = np.ascontiguousarray(rows_DW)
    return pa.Array.from_buffers(pa.binary(rows_DW.shape[1]), len(rows_DW), [None, pa.py_buffer(rows_DW)]).cast(
        pa.large_binary()
    )


def _binary(column: pa.Array) -> pa.Array:
    return pc.fill_null(column.cast(pa.large_binary()), b"")


def _source_rank(column: pa.Array, source_priority: tuple[str, ...]) -> pa.Array:
    found = pc.index_in(column, pa.array(source_priority, column.type)) if source_priority else None
    rank = np.full(len(column), len(source_priority), np.int64)
    if found is not None:
        rank = pc.fill_null(found, len(source_priority)).to_numpy(zero_copy_only=False).astype(np.int64)
    return _fixed(rank.astype(">u4").view(np.uint8).reshape(-1, 4))


def _column(column: pa.Array, descending: bool) -> list[Any]:
    """Encode one column: a byte that sends nulls last, then eight bytes or an ended string."""
    is_null = pc.is_null(column, nan_is_null=pa.types.is_floating(column.type)).to_numpy(zero_copy_only=False)
    flag = _fixed(is_null.astype(np.uint8).reshape(-1, 1))
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        data = _binary(column)
        return [flag, _inverted(data) if descending else data, _END_DOWN if descending else _END_UP]
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        column = column.cast(width)
    values = pc.fill_null(column.cast(pa.float64(), safe=False), 0.0).to_numpy(zero_copy_only=False) + 0.0
    values = np.where(is_null, 0.0, values)
    bits = values.view(np.uint64)
    ordered = np.where(bits >> np.uint64(63) != 0, ~bits, bits | np.uint64(1 << 63))
    if descending:
        ordered = np.where(is_null, ordered, ~ordered)
    return [flag, _fixed(ordered.astype(">u8").view(np.uint8).reshape(-1, 8))]


def _inverted(column: pa.Array) -> pa.Array:
    """Return the bytes of each value complemented, so that larger strings compare smaller."""
    _, offsets, data = column.buffers()
    flipped = ~np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return pa.Array.from_buffers(
        pa.large_binary(), len(column), [None, offsets, pa.py_buffer(flipped)], offset=column.offset
    )
