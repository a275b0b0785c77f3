"""From columns of raw values to rows of the document table, bad rows to quarantine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.stages.kernels.hashing import digests_D16
from gristmill.stages.kernels.jsonlines import text_faults
from gristmill.stages.kernels.views import text_view
from gristmill.stages.ledger import Entry
from gristmill.stages.passes import PREFIX_BYTES, Sink


def finish(columns: dict[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Add `n_bytes` and `content_hash` and put the columns in the order of `schema`, missing ones as nulls."""
    offsets_D1, data_B = text_view(columns["text"])
    digest = digests_D16(offsets_D1, data_B)
    n_docs = len(offsets_D1) - 1
    columns = {
        **columns,
        "n_bytes": pa.array(np.diff(offsets_D1)),
        "content_hash": pa.Array.from_buffers(
            pa.binary(16), n_docs, [None, pa.py_buffer(np.ascontiguousarray(digest))]
        ),
    }
    arrays = [columns[f.name] if f.name in columns else pa.nulls(n_docs, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def faults(text: pa.Array) -> npt.NDArray[np.uint8]:
    """Return 0 (fine), 1 (invalid UTF-8) or 2 (holds a NUL byte) for each document, uint8 (D)."""
    offsets_D1, data_B = text_view(text)
    fault_D = np.zeros(len(offsets_D1) - 1, np.uint8)
    text_faults(offsets_D1, data_B, fault_D)
    return fault_D


FAULTS = ("", "invalid_utf8", "nul_byte")


def book_kept(entry: Entry, batch: pa.RecordBatch) -> int:
    """Count a batch as kept, by source; return its text bytes."""
    n_bytes = int(batch.column("n_bytes").to_numpy().sum())
    entry.kept.add(batch.num_rows, n_bytes)
    for item in batch.column("source").value_counts().to_pylist():
        entry.count_source(item["values"] or "", item["counts"], item["counts"])
    return n_bytes


def quarantine(sink: Sink, node: str, reason: str, n_bytes: int, raw: Any = b"", n_docs: int = 1, **place: Any) -> None:
    """Quarantine a bad record and count it as input. `place`: file, line, offset, id, detail."""
    sink.entry(node).into.add(n_docs, n_bytes)
    sink.quarantine(node, reason, n_bytes, n_docs, prefix=bytes(raw[:PREFIX_BYTES]), **place)
