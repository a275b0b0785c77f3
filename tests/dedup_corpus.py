"""Documents into an artifact and a deduplication stage over it, without the pipeline runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.stages.artifact import Artifact, Manifest, encode_schema, read_mask
from gristmill.stages.context import Context, Outcome
from gristmill.stages.documents import PartWriter
from gristmill.stages.kernels.hashing import content_hash
from gristmill.stages.progress import Counters

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.large_string()),
        ("source", pa.string()),
        ("n_bytes", pa.int64()),
        ("content_hash", pa.binary(16)),
        ("quality", pa.float64()),
        ("url", pa.string()),
        ("date", pa.string()),
    ]
)


def make_artifact(root: Path, documents: list[dict[str, Any]], n_parts: int = 1, name: str = "in-00000000") -> Artifact:
    """Write documents (id and text, optionally source, quality, url, date) as `n_parts` files."""
    parts = []
    for number in range(n_parts):
        chosen = documents[number::n_parts]
        if not chosen:
            continue
        text = pa.array([d["text"] for d in chosen], pa.large_string())
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([d["id"] for d in chosen], pa.string()),
                text,
                pa.array([d.get("source", "web") for d in chosen], pa.string()),
                pa.array([len(d["text"].encode()) for d in chosen], pa.int64()),
                content_hash(text),
                pa.array([d.get("quality") for d in chosen], pa.float64()),
                pa.array([d.get("url") for d in chosen], pa.string()),
                pa.array([d.get("date") for d in chosen], pa.string()),
            ],
            schema=SCHEMA,
        )
        writer = PartWriter(str(root / name / "kept" / f"{number:05d}.parquet"), SCHEMA)
        writer.write(batch)
        written = writer.close()
        assert written is not None
        parts.append(written[1].model_copy(update={"path": f"{name}/kept/{number:05d}.parquet"}))
    manifest = Manifest(
        kind="documents",
        fingerprint="0" * 32,
        nodes=(),
        inputs=(),
        arrow_schema=encode_schema(SCHEMA),
        parts=tuple(parts),
    )
    return Artifact(str(root), name, manifest)


def make_context(spark: Any, root: Path, name: str, parallelism: int = 2) -> Context:
    """Return a context whose artifact is ``root/name``."""
    return Context(spark, str(root), str(root / name), name, 7, parallelism, Counters(name))


def run_stage(spark: Any, stage: Any, artifacts: Artifact | list[Artifact], name: str = "out") -> Outcome:
    """Run a global stage and check that its ledger balances."""
    inputs = artifacts if isinstance(artifacts, list) else [artifacts]
    outcome: Outcome = stage.run(make_context(spark, Path(inputs[0].root), name), inputs)
    for entry in outcome.ledger:
        entry.check()
    return outcome


def rejected(outcome: Outcome) -> list[dict[str, Any]]:
    """Return rejected rows, by id."""
    tables = [pq.read_table(entry.path) for entry in outcome.rejected]
    return sorted((row for table in tables for row in table.to_pylist()), key=lambda row: row["id"])


def removed(outcome: Outcome) -> dict[str, tuple[str, float]]:
    """Return removed id -> (kept id, similarity)."""
    return {row["id"]: (row["kept_id"], row["reason_value"]) for row in rejected(outcome)}


def kept_ids(root: Path, outcome: Outcome) -> list[str]:
    """Return the ids that are still there, sorted."""
    ids = []
    for part in outcome.parts:
        table = pq.read_table(root / part.path, columns=["id"])
        if part.mask:
            table = table.filter(pa.array(read_mask(part.mask, part.n_rows)))
        ids += table.column("id").to_pylist()
    return sorted(ids)
