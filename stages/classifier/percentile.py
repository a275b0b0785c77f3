"""Keep the best share of documents by any numeric column, exactly, over the whole data set or within groups.

Each document becomes (row, group, key, tie, weight): `key` is its score as an integer that sorts from best to
worst, `tie` the XXH3-64 of its id. The cut is found by radix selection: count weights by the first 16 bits of the
keys of each group, find the bucket in which the share ends, look into that bucket only, and so on; a bucket of
few rows is finished in the driver. So there is no global sort and no approximate quantile, and memory in the
driver is bounded. Typically two counting jobs and one collection, over 40 bytes a document.

Documents of equal score are told apart by their id's hash; those of equal score and id share their fate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from gristmill.stages.base import GlobalStage
from gristmill.stages.errors import ConfigError, nearest
from gristmill.stages.kernels.hashing import hash64
from gristmill.stages.kernels.views import text_view

if TYPE_CHECKING:
    from gristmill.stages.artifact import Artifact
    from gristmill.stages.context import Context, Outcome

REASON = "below_top_share"
SCHEMA = pa.schema(
    [
        ("row", pa.int64()), ("in_group", pa.string()), ("key", pa.int64()), ("tie", pa.int64()),
        ("weight", pa.int64()), ("score", pa.float64()),
    ]
)  # fmt: skip
DIGIT_BITS = 16
FEW_ROWS = 100_000
"""Buckets of at most this many rows in all are finished in the driver."""
I64 = npt.NDArray[np.int64]
Cut = tuple[int, int]
"""(key, tie) of the first document that is dropped."""


class ClassifierPercentile(GlobalStage):
    """Keep the top share of documents by a score."""

    name: ClassVar[str] = "classifier_percentile"
    summary: ClassVar[str] = "keep the best share of documents by a score, exactly, overall or within groups"

    share: float = Field(gt=0, le=1, description="share that is kept, (0, 1]")
    column: str = Field(default="classifier_score", description="numeric column to rank by; null and NaN rank last")
    keep: Literal["highest", "lowest"] = Field(
        default="highest", description="which end is the best: highest score, or lowest (perplexity)"
    )
    by: tuple[str, ...] = Field(
        default=(), description="columns whose values make groups, each with a cut of its own (`lang`, `source`)"
    )
    unit: Literal["documents", "bytes"] = Field(
        default="documents", description="what the share is a share of: documents or UTF-8 bytes of text"
    )

    def reads(self) -> dict[str, pa.DataType | None]:
        """Return the score, the id and the groups' columns."""
        return dict.fromkeys(("id", "n_bytes", self.column, *self.by))

    def run(self, context: Context, inputs: list[Artifact]) -> Outcome:
        """Remove what lies below the cut; the report gives each group's counts and cut."""
        for artifact in inputs:
            for name in (self.column, *self.by):
                if name not in artifact.schema.names:
                    raise ConfigError(f"{self.name}: no column {name!r}.{nearest(name, artifact.schema.names)}")
            kind = artifact.schema.field(self.column).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                raise ConfigError(f"{self.name}.column: {self.column!r} is {kind}; a number is needed")
        from pyspark.sql import functions as f

        columns = list(dict.fromkeys(["id", "n_bytes", self.column, *self.by]))
        mapper = partial(keys_of, self.column, self.by, self.keep == "lowest", self.unit == "bytes")
        keys = context.map_documents(inputs, columns, mapper, SCHEMA).persist()
        try:
            totals = keys.groupBy("in_group").agg(f.count("row").alias("n"), f.sum("weight").alias("total"))
            groups = {
                row["in_group"]: Group(row["n"], row["total"], int(row["total"] * self.share + 0.5))
                for row in totals.collect()
            }
            find_cuts(keys, groups)
            outcome = context.remove(inputs, _removals(context.spark, keys, groups, self.keep == "lowest"))
        finally:
            keys.unpersist()
        outcome.report = {
            "groups": {
                name: {"documents": group.n_rows, self.unit: group.total, f"kept_{self.unit}": group.below,
                       "cut": None if group.cut is None else _score_of(group.cut[0], self.keep == "lowest")}
                for name, group in sorted(groups.items())
            }
        }  # fmt: skip
        return outcome


@dataclass
class Group:
    """What is known of one group while its cut is looked for."""

    n_rows: int
    total: int
    target: int
    """Weight that may be kept."""
    below: int = 0
    """Weight of what is known to be kept."""
    cut: Cut | None = None
    prefix: int | None = None
    """Leading digits of the keys (or, once `key` is set, ties) in which the cut lies, signed."""
    key: int | None = None


def keys_of(
    column: str, by: tuple[str, ...], lowest: bool, in_bytes: bool, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield `SCHEMA` rows; smaller keys are better."""
    for batch in batches:
        score = batch.column(column).cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
        ids = pc.fill_null(batch.column("id").cast(pa.large_string()), "")
        names = [pc.fill_null(batch.column(name).cast(pa.string()), "null") for name in by]
        group = pc.binary_join_element_wise(*names, " / ") if names else pa.repeat(pa.scalar("all"), len(batch))
        weight = batch.column("n_bytes") if in_bytes else pa.repeat(pa.scalar(1, pa.int64()), len(batch))
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("row"),
                group,
                pa.array(rank_keys(score, lowest)),
                pa.array(hash64(*text_view(ids)).view(np.int64)),
                weight,
                pa.array(score, mask=np.isnan(score)),
            ],
            schema=SCHEMA,
        )


def rank_keys(score: npt.NDArray[np.float64], lowest: bool) -> I64:
    """Return int64 keys that sort from best to worst; NaN last, -0 as 0."""
    bits = (score + 0.0).view(np.int64)
    # IEEE order as two's complement: negative numbers have all other bits inverted.
    ordered = np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits)
    keys = ordered if lowest else ~ordered
    return np.where(np.isnan(score), np.iinfo(np.int64).max, keys)


def _score_of(key: int, lowest: bool) -> float | None:
    """Return the score of a key; None for NaN."""
    if key == np.iinfo(np.int64).max:
        return None
    ordered = key if lowest else ~key
    return float(np.array(ordered if ordered >= 0 else ordered ^ 0x7FFFFFFFFFFFFFFF, np.int64).view(np.float64))


def find_cuts(keys: Any, groups: dict[str, Group], few_rows: int = FEW_ROWS) -> None:
    """Set `cut` and `below` of each group: the weight of all smaller (key, tie) is at most its target."""
    from pyspark.sql import functions as f

    active = {name: group for name, group in groups.items() if group.target < group.total}
    for name, group in groups.items():
        if name not in active:
            group.below = group.total
    frame = keys.where(f.col("in_group").isin(list(active)))
    for column in ("key", "tie"):
        for shift in range(64 - DIGIT_BITS, -1, -DIGIT_BITS):
            if not active:
                return
            digit = f.shiftright(column, shift).alias("digit")
            counts = frame.groupBy("in_group", digit).agg(f.sum("weight").alias("w"), f.count("row").alias("n"))
            by_group: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
            for row in counts.collect():
                by_group[row["in_group"]].append((row["digit"], row["w"], row["n"]))
            n_rows = 0
            for name, digits in by_group.items():
                group = active[name]
                for prefix, weight, n in sorted(digits):
                    if group.below + weight > group.target:
                        group.prefix = prefix
                        n_rows += n
                        break
                    group.below += weight
            frame = _inside(keys, active, column, shift)
            if n_rows <= few_rows:
                rows = frame.groupBy("in_group", "key", "tie").agg(f.sum("weight").alias("w"))
                _finish(rows.collect(), active)
                return
        if column == "key":  # too many documents of one score: tell them apart by their ids' hashes
            for group in active.values():
                group.key = group.prefix
    for group in active.values():
        group.cut = (group.key or 0, group.prefix or 0)


def _inside(keys: Any, active: dict[str, Group], column: str, shift: int) -> Any:
    """Return the rows in which the cut of their group lies."""
    from pyspark.sql import functions as f

    rows = [(name, group.prefix, group.key) for name, group in active.items()]
    prefixes = keys.sparkSession.createDataFrame(rows, "in_group string, prefix long, whole long")
    leading = f.shiftright(column, shift) if shift else f.col(column)
    inside = (leading == f.col("prefix")) & (f.col("whole").isNull() | (f.col("key") == f.col("whole")))
    return keys.join(f.broadcast(prefixes), "in_group").where(inside).drop("prefix", "whole")


def _finish(rows: list[Any], active: dict[str, Group]) -> None:
    done = set()
    for row in sorted(rows, key=lambda row: (row["in_group"], row["key"], row["tie"])):
        name = row["in_group"]
        group = active[name]
        if name in done:
            continue
        if group.below + row["w"] > group.target:
            group.cut = (row["key"], row["tie"])
            done.add(name)
        else:
            group.below += row["w"]


def _removals(spark: Any, keys: Any, groups: dict[str, Group], lowest: bool) -> Any:
    from pyspark.sql import functions as f

    rows = [
        (name, group.cut[0], group.cut[1], _score_of(group.cut[0], lowest))
        for name, group in groups.items()
        if group.cut is not None
    ]
    cuts = spark.createDataFrame(rows, "in_group string, cut_key long, cut_tie long, threshold double")
    beyond = (f.col("key") > f.col("cut_key")) | (
        (f.col("key") == f.col("cut_key")) & (f.col("tie") >= f.col("cut_tie"))
    )
    return (
        keys.join(f.broadcast(cuts), "in_group")
        .where(beyond)
        .selectExpr("row", f"'{REASON}' as reason", "score as value", "threshold", "cast(null as string) as kept_id")
    )
