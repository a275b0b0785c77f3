"""A pass that edits text after a global count: how line, paragraph and span deduplication write their result."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.stages.base import BatchStage
from gristmill.stages.context import Context, Outcome, from_records
from gristmill.stages.documents import Split, plan_splits, read_split
from gristmill.stages.passes import PassPlan, Sink, output_schema

if TYPE_CHECKING:
    from gristmill.stages.artifact import Artifact


def rewrite(context: Context, inputs: list[Artifact], schema: pa.Schema, stage: BatchStage) -> Outcome:
    """Run a batch stage over all documents and return its parts, rejects and ledger."""
    out_schema = output_schema(schema, stage)
    plan = PassPlan(context.directory, partial(_read, schema), ((context.node, stage),), schema, out_schema)
    records = context.run_pass(plan, list(plan_splits(inputs, context.parallelism)))
    return from_records(records, [context.node], out_schema)


def _read(schema: pa.Schema, split: Split, sink: Sink) -> Iterator[pa.RecordBatch]:
    return read_split(split, schema)
