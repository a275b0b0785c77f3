"""Parquet files and plain text files to documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.stages import store
from gristmill.stages.documents import one_batch, slice_by_bytes
from gristmill.stages.ingest import build
from gristmill.stages.ingest.decode import BrokenStreamError, decoded_blocks
from gristmill.stages.kernels.views import n_bytes as text_n_bytes
from gristmill.stages.passes import PREFIX_BYTES, Sink


@dataclass(frozen=True)
class TablePlan:
    """What a reader needs to know. `paths`: column -> dotted field (Parquet only)."""

    node: str
    paths: dict[str, str]
    source: str
    schema: pa.Schema
    max_record_bytes: int


def read_parquet(plan: TablePlan, path: str, name: str, first: int, last: int, sink: Sink) -> Iterator[pa.RecordBatch]:
    """Yield the documents of row groups ``[first, last)`` (`last` < 0: all)."""
    try:
        file = pq.ParquetFile(store.open_input(path))
    except (OSError, pa.ArrowException) as error:
        build.quarantine(sink, plan.node, "unreadable_file", 0, file=name, detail=str(error)[:500])
        return
    with file:
        top = sorted({p.partition(".")[0] for p in plan.paths.values()})
        have = file.schema_arrow.names
        row = sum(file.metadata.row_group(g).num_rows for g in range(first))
        for group in range(first, file.num_row_groups if last < 0 else last):
            n_rows = file.metadata.row_group(group).num_rows
            try:
                table = file.read_row_group(group, columns=[c for c in top if c in have], use_threads=False)
                batch = one_batch(table)
                columns = {c: _field(batch, p) for c, p in plan.paths.items()}
            except (OSError, pa.ArrowException) as error:
                build.quarantine(
                    sink,
                    plan.node,
                    "unreadable_row_group",
                    0,
                    n_docs=n_rows,
                    file=name,
                    line=row + 1,
                    detail=str(error)[:500],
                )
                row += n_rows
                continue
            yield from _check(plan, name, row, n_rows, columns, sink)
            row += n_rows


def _field(batch: pa.RecordBatch, path: str) -> pa.Array | None:
    """Return a dotted field as a column, null where a parent is null; None if the file has no such field."""
    head, _, tail = path.partition(".")
    at = batch.schema.get_field_index(head)
    if at < 0:
        return None
    array = batch.column(at)
    while tail:
        head, _, tail = tail.partition(".")
        if not pa.types.is_struct(array.type) or array.type.get_field_index(head) < 0:
            return None
        array = pc.struct_field(array, head)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    return array


def _check(
    plan: TablePlan, name: str, row: int, n_rows: int, columns: dict[str, pa.Array | None], sink: Sink
) -> Iterator[pa.RecordBatch]:
    text = columns["text"]
    if text is None or not _is_text(text.type):
        reason = "missing_text" if text is None else "text_not_string"
        kind = "" if text is None else f" is {text.type}"
        build.quarantine(
            sink,
            plan.node,
            reason,
            0,
            n_docs=n_rows,
            file=name,
            line=row + 1,
            detail=f"field {plan.paths['text']!r}{kind}",
        )
        return
    null = np.asarray(pc.is_null(text).to_numpy(zero_copy_only=False))
    text = text.cast(pa.large_binary())
    sizes = text_n_bytes(text)
    reasons = np.array(build.FAULTS, object)[build.faults(text)]
    reasons[sizes > plan.max_record_bytes] = "record_too_large"
    reasons[null] = "missing_text"
    out: dict[str, Any] = {}
    details = np.full(n_rows, None, object)
    for column in plan.schema.names:
        given = columns.get(column)
        if column != "text" and given is not None:
            kind = plan.schema.field(column).type
            out[column], bad_D = _cast(given, kind)
            hit = bad_D & (reasons == "")
            reasons[hit] = "wrong_type"
            details[hit] = f"field {plan.paths[column]!r} is {given.type}, not {kind}"
    entry = sink.entry(plan.node)
    entry.into.add(n_rows, int(sizes.sum()))
    bad = np.flatnonzero(reasons != "")
    lines = np.arange(row, row + n_rows)
    if len(bad):
        sink.quarantine_rows(
            plan.node,
            {
                "reason": pa.array(reasons[bad], pa.string()),
                "file": pa.repeat(pa.scalar(name), len(bad)),
                "line": pa.array(lines[bad] + 1),
                "n_bytes": pa.array(sizes[bad]),
                "detail": pa.array(details[bad], pa.string()),
                "prefix": pc.binary_slice(text.take(pa.array(bad)), 0, PREFIX_BYTES).cast(pa.binary()),
            },
        )
    keep = pa.array(reasons == "")
    out = {column: array.filter(keep) for column, array in out.items()}
    out["text"] = text.filter(keep).cast(pa.large_string())
    n_kept = len(out["text"])
    if n_kept == 0:
        return
    constant = pa.repeat(pa.scalar(plan.source, pa.string()), n_kept)
    out["source"] = pc.coalesce(out["source"], constant) if "source" in out else constant
    own = pc.binary_join_element_wise(out["source"], pa.scalar(f"/{name}#"), "")
    own = pc.binary_join_element_wise(own, pa.array(lines).filter(keep).cast(pa.string()), "")
    out["id"] = pc.coalesce(out["id"], own) if "id" in out else own
    batch = build.finish(out, plan.schema)
    build.book_kept(entry, batch)
    yield from slice_by_bytes(batch)


def _cast(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return the column as `kind` and which rows cannot be (bool, null in the result)."""
    bad_D = np.zeros(len(array), np.bool_)
    try:
        return array.cast(kind), bad_D
    except pa.ArrowException:
        pass
    rows = []
    for i in range(len(array)):
        try:
            rows.append(array.slice(i, 1).cast(kind))
        except pa.ArrowException:
            bad_D[i] = True
            rows.append(pa.nulls(1, kind))
    return pa.concat_arrays(rows), bad_D


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def read_text_files(plan: TablePlan, files: list[tuple[str, str]], sink: Sink) -> Iterator[pa.RecordBatch]:
    """Yield documents, one a file, of ``(path, name)`` pairs."""
    entry = sink.entry(plan.node)
    texts: list[bytes] = []
    names: list[str] = []
    held = 0
    for path, name in files:
        try:
            raw, total = _whole(path, plan.max_record_bytes)
        except (BrokenStreamError, OSError) as error:
            detail = error.detail if isinstance(error, BrokenStreamError) else str(error)
            build.quarantine(sink, plan.node, "unreadable_file", 0, file=name, line=1, offset=0, detail=detail[:500])
            continue
        if total > plan.max_record_bytes:
            build.quarantine(sink, plan.node, "record_too_large", total, raw, file=name, line=1, offset=0)
            continue
        texts.append(raw)
        names.append(name)
        held += total
        if held > (8 << 20):
            yield from _documents(plan, texts, names, entry, sink)
            texts, names, held = [], [], 0
    yield from _documents(plan, texts, names, entry, sink)


def _whole(path: str, limit: int) -> tuple[bytes, int]:
    """Return ``(content, length)``; a file over the limit is read to its end but only its head is kept."""
    blocks: list[bytes] = []
    total = 0
    for block in decoded_blocks(path, 8 << 20):
        total += len(block)
        if total <= limit or not blocks:
            blocks.append(block)
    return b"".join(blocks), total


def _documents(
    plan: TablePlan, texts: list[bytes], names: list[str], entry: Any, sink: Sink
) -> Iterator[pa.RecordBatch]:
    if not texts:
        return
    text = pa.array(texts, pa.large_binary())
    fault_D = build.faults(text)
    for at in np.flatnonzero(fault_D):
        raw = texts[at]
        build.quarantine(sink, plan.node, build.FAULTS[fault_D[at]], len(raw), raw, file=names[at], line=1, offset=0)
    keep = fault_D == 0
    if not keep.any():
        return
    mask = pa.array(keep)
    kept_names = pa.array(names, pa.string()).filter(mask)
    columns = {
        "text": text.filter(mask).cast(pa.large_string()),
        "source": pa.repeat(pa.scalar(plan.source, pa.string()), len(kept_names)),
        "id": pc.binary_join_element_wise(pa.scalar(f"{plan.source}/"), kept_names, pa.scalar("#0"), ""),
    }
    batch = build.finish(columns, plan.schema)
    entry.into.add(batch.num_rows, build.book_kept(entry, batch))
    yield from slice_by_bytes(batch)
