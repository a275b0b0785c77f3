"""A pass that edits text after a global count: how line, paragraph and span deduplication write their result."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.stages.artifact import FileEntry, Part
from gristmill.stages.base import BatchStage
from gristmill.stages.context import Context, Outcome
from gristmill.stages.documents import Split, plan_splits, read_split
from gristmill.stages.ledger import Entry
from gristmill.stages.passes import PassPlan, Sink, output_schema

if TYPE_CHECKING:
    from gristmill.stages.artifact import Artifact


def rewrite(context: Context, inputs: list[Artifact], schema: pa.Schema, stage: BatchStage) -> Outcome:
    """Run a batch stage over all documents and return its parts, rejects and ledger."""
    out_schema = output_schema(schema, stage)
    plan = PassPlan(context.directory, partial(_read, schema), ((context.node, stage),), schema, out_schema)
    entry = Entry(context.node)
    outcome = Outcome(schema=out_schema, ledger=[entry])
    for record in context.run_pass(plan, list(plan_splits(inputs, context.parallelism))):
        for data in record["entries"]:
            entry.merge(Entry.from_json(data))
        if record["kept"]:
            outcome.parts.append(Part(**record["kept"][1]))
            outcome.files.append(FileEntry(**record["kept"][0]))
        if record["rejected"]:
            outcome.rejected.append(FileEntry(**record["rejected"][0]))
        if record["quarantined"]:
            outcome.quarantined.append(FileEntry(**record["quarantined"][0]))
    return outcome


def _read(schema: pa.Schema, split: Split, sink: Sink) -> Iterator[pa.RecordBatch]:
    return read_split(split, schema)
