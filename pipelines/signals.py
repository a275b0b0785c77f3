"""Stored signals of an artifact, kept and rejected documents alike: thresholds tried again without touching text."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.stages import registry, store
from gristmill.stages.artifact import Artifact
from gristmill.stages.base import Stage
from gristmill.stages.documents import conform, one_batch, plan_splits, read_split
from gristmill.stages.errors import ConfigError


def stage_of(artifact: Artifact, stage_name: str) -> tuple[str, Stage]:
    """Return ``(node, stage)`` of the only node of a stage type whose work is in the artifact.

    Raises:
        ConfigError: there is none, or more than one.
    """
    records = [r for r in artifact.manifest.nodes if r.stage == stage_name]
    if len(records) != 1:
        have = ", ".join(f"{r.node} ({r.stage})" for r in artifact.manifest.nodes)
        raise ConfigError(f"{artifact.path}: one {stage_name} node is needed; it holds the work of {have}")
    return records[0].node, registry.get(stage_name).build(records[0].node, **records[0].config)


def signal_table(artifact: Artifact, node: str, columns: list[str]) -> pa.Table:
    """Return the named columns of every document that reached `node`: kept, and rejected there or later.

    Raises:
        ConfigError: a column is not there.
    """
    missing = [c for c in columns if c not in artifact.schema.names]
    if missing:
        raise ConfigError(f"{artifact.path}: no column {missing[0]!r}")
    schema = pa.schema([artifact.schema.field(c) for c in columns])
    nodes = [r.node for r in artifact.manifest.nodes]
    later = pa.array(nodes[nodes.index(node) :])
    batches = [batch for split in plan_splits([artifact], 1) for batch in read_split(split, schema)]
    for file in artifact.manifest.rejected:
        with store.open_input(store.join(artifact.root, file.path)) as source:
            rows = pq.read_table(source, columns=[*columns, "stage"])
        rows = rows.filter(pc.is_in(rows.column("stage"), value_set=later))
        if rows.num_rows:
            batches.append(conform(one_batch(rows), schema))
    return pa.Table.from_batches(batches, schema)
