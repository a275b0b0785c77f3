"""Exact deduplication: documents with the same 128-bit key, one kept by a total order.

The key is XXH3-128 of the text as it is, or of a normalised form. Two different documents share a 128-bit key with
probability about 2^-62 among 10^10 documents. One pass over the text and one shuffle of about 60 bytes a document;
the text stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from gristmill.stages.dedup.order import KeepsBest, order_keys, sample_documents
from gristmill.stages.kernels import unicode
from gristmill.stages.kernels.shingles import normal_table
from gristmill.stages.kernels.textkey import exact_keys
from gristmill.stages.kernels.views import text_view

if TYPE_CHECKING:
    from gristmill.stages.artifact import Artifact
    from gristmill.stages.context import Context, Outcome

REASON = "exact_duplicate"

KEY_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("high", pa.int64()),
        ("low", pa.int64()),
        ("order_key", pa.binary()),
        ("id", pa.string()),
    ]
)


class ExactDedup(KeepsBest):
    """Keep one document of each group with the same text."""

    name: ClassVar[str] = "exact_dedup"
    summary: ClassVar[str] = "remove documents whose text is the same, byte for byte or normalised"

    normalize: Literal["none", "spaces", "units"] = Field(
        default="none",
        description="what counts as the same text: 'none' equal bytes; 'spaces' equal up to white space; "
        "'units' equal words (and characters of scripts without spaces) up to case, punctuation, digits and marks",
    )

    def run(self, context: Context, inputs: list[Artifact]) -> Outcome:
        """Remove all but the best document of each group; the report counts groups by size."""
        self.check_columns([artifact.schema for artifact in inputs])
        columns = ["text", *self.order_columns()]
        mapper = partial(_keys, self.normalize, self.source_priority, self.prefer)
        return remove_equal_keys(context, inputs, context.map_documents(inputs, columns, mapper, KEY_SCHEMA), REASON)

    def warm(self, schema: pa.Schema) -> None:
        """Compile the kernels."""
        for _ in _keys(self.normalize, (), (), iter([sample_documents()])):
            pass


def remove_equal_keys(context: Context, inputs: list[Artifact], keys: Any, reason: str) -> Outcome:
    """Remove all but the best row of each key of a `KEY_SCHEMA` DataFrame; the report counts groups by size."""
    removals = _removals(keys, reason).persist()
    try:
        outcome = context.remove(inputs, removals.drop("size"))
        sizes = removals.groupBy("kept_id", "size").count().groupBy("size").count().collect()
    finally:
        removals.unpersist()
    outcome.report = {
        "groups_by_size": {str(size): n for size, n in sorted((row["size"], row["count"]) for row in sizes)}
    }
    return outcome


def _keys(
    normalize: str, source_priority: tuple[str, ...], prefer: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys_D2 = exact_keys(*text_view(batch.column("text")), normalize, unicode.IS_SPACE, normal_table())
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("row"),
                pa.array(keys_D2[:, 0].copy().view("int64")),
                pa.array(keys_D2[:, 1].copy().view("int64")),
                order_keys(batch, source_priority, prefer),
                batch.column("id").cast(pa.string()),
            ],
            schema=KEY_SCHEMA,
        )


def _removals(keys: Any, reason: str) -> Any:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    group = Window.partitionBy("high", "low")
    ordered = group.orderBy("order_key", "row")
    return (
        keys.withColumn("position", f.row_number().over(ordered))
        .withColumn("kept_id", f.first("id").over(ordered))
        .withColumn("size", f.count(f.lit(1)).over(group))
        .where("position > 1")
        .selectExpr(
            "row",
            f"'{reason}' as reason",
            "cast(1.0 as double) as value",
            "cast(1.0 as double) as threshold",
            "kept_id",
            "size",
        )
    )
