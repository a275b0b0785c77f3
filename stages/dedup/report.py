"""What a run of fuzzy deduplication says about itself: cluster sizes, the largest clusters with text, annotations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.stages import store
from gristmill.stages.artifact import Artifact
from gristmill.stages.dedup.checkpoint import Checkpoint
from gristmill.stages.documents import ROW_BITS

SAMPLE_CHARACTERS = 200
DRIVER_ROWS = 10_000_000


def clusters(spark: Any, inputs: list[Artifact], decisions: Checkpoint, n_samples: int) -> dict[str, Any]:
    """Return counts, the histogram of cluster sizes (the kept document included) and the largest clusters."""
    if decisions.n_rows > DRIVER_ROWS:
        frame = decisions.frame(spark).where("row >= 0").groupBy("kept_origin", "kept_row", "kept_id")
        groups = frame.agg({"row": "count", "similarity": "avg"}).toArrow()
        groups = groups.rename_columns(["kept_origin", "kept_row", "kept_id", *groups.schema.names[3:]])
        names = {"count(row)": "row_count", "avg(similarity)": "similarity_mean"}
        groups = groups.rename_columns([names.get(name, name) for name in groups.schema.names])
        refused = int(decisions.frame(spark).agg({"refused": "sum"}).first()[0] or 0)
    else:
        table = decisions.table()
        refused = int(pc.sum(table.column("refused")).as_py() or 0)
        table = table.filter(pc.greater_equal(table.column("row"), 0))
        groups = table.group_by(["kept_origin", "kept_row", "kept_id"]).aggregate(
            [("row", "count"), ("row", "min"), ("similarity", "mean")]
        )
    sizes = groups.column("row_count").to_numpy() + 1
    values, counts = np.unique(sizes, return_counts=True)
    order = [("row_count", "descending"), ("kept_id", "ascending"), ("kept_row", "ascending")]
    top = groups.sort_by(order).slice(0, n_samples).to_pylist() if n_samples else []
    texts = read_texts(inputs, [g["kept_row"] for g in top if not g["kept_origin"]], SAMPLE_CHARACTERS)
    return {
        "removed": int(sizes.sum() - len(sizes)),
        "clusters": len(sizes),
        "clusters_by_size": {str(size): int(n) for size, n in zip(values, counts, strict=True)},
        "bucket_entries_refused": refused,
        "largest_clusters": [
            {
                "kept_id": group["kept_id"],
                "documents": group["row_count"] + 1,
                "mean_similarity": None
                if group["similarity_mean"] is None or np.isnan(group["similarity_mean"])
                else round(group["similarity_mean"], 4),
                "text": texts.get(group["kept_row"], "") if not group["kept_origin"] else "",
            }
            for group in top
        ],
    }


def read_texts(inputs: Iterable[Artifact], rows: list[int], n_characters: int) -> dict[int, str]:
    """Return the beginning of the text of a few rows, by row number; reads one row group a row."""
    parts = [(artifact.root, part) for artifact in inputs for part in artifact.parts]
    texts = {}
    for row in rows:
        root, part = parts[row >> ROW_BITS]
        at = row & ((1 << ROW_BITS) - 1)
        group = 0
        while at >= part.row_group_rows[group]:
            at -= part.row_group_rows[group]
            group += 1
        with store.open_input(store.join(root, part.path)) as source, pq.ParquetFile(source) as file:
            column = file.read_row_group(group, columns=["text"], use_threads=False).column(0)
            texts[row] = pc.utf8_slice_codeunits(column.slice(at, 1), 0, n_characters)[0].as_py()
    return texts


def duplicates_file(inputs: Iterable[Artifact], decisions: Checkpoint) -> bytes:
    """Return a Parquet file (id, kept_id, similarity) of what would have been removed, by id."""
    table = decisions.table()
    table = table.filter(pc.greater_equal(table.column("row"), 0)).sort_by("row")
    rows = table.column("row").to_numpy()
    parts = [(artifact.root, part) for artifact in inputs for part in artifact.parts]
    ids = []
    for number in np.unique(rows >> ROW_BITS):
        root, part = parts[int(number)]
        at = rows[rows >> ROW_BITS == number] & ((1 << ROW_BITS) - 1)
        with store.open_input(store.join(root, part.path)) as source:
            ids.append(pq.read_table(source, columns=["id"]).column(0).take(pa.array(at)))
    column = pa.chunked_array([c for chunk in ids for c in chunk.chunks], pa.string())
    out = pa.table({"id": column, "kept_id": table.column("kept_id"), "similarity": table.column("similarity")})
    out = out.sort_by([("id", "ascending"), ("kept_id", "ascending")])
    sink = pa.BufferOutputStream()
    pq.write_table(out, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())
