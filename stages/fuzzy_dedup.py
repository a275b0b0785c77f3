"""Fuzzy deduplication: MinHash-LSH candidates, connected components, exact verification.

    pass 1   text -> band keys                            one 64-bit key a band, the band its own column
    group    equal keys -> stars -> components            on the driver below `driver_keys`, in rounds above
    pass 2   text of candidates -> shingle sets           only rows that share a bucket with another
    resolve  component by component, best first           kernels.jaccard: exact similarity decides
    remove   row masks; kept id and similarity recorded

Only keys and numbers are shuffled. Which documents stay depends on the documents alone: not on files, partitions,
task order or retries (see `kernels.jaccard` for why).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.stages import store
from gristmill.stages.connected_components import (
    DRIVER_EDGES,
    LABEL_SCHEMA,
    connected_components,
    stars_of_buckets,
)
from gristmill.stages.dedup import checkpoint, report
from gristmill.stages.dedup.checkpoint import Checkpoint
from gristmill.stages.dedup.index import Shelf, leaders, matches, open_indexes, write_index
from gristmill.stages.dedup.order import KeepsBest, sample_documents
from gristmill.stages.dedup.resolver import CANDIDATE_SCHEMA, DECISION_SCHEMA, decide_stream
from gristmill.stages.dedup.sketch import (
    BUCKET_SCHEMA,
    KEYS_SCHEMA,
    Sketch,
    emit_buckets,
    emit_candidates,
    emit_keys,
)
from gristmill.stages.errors import ConfigError, RunError
from gristmill.stages.kernels.minhash import bands_for_recall, s_curve
from gristmill.stages.kernels.unionfind import components, components_of_buckets
from gristmill.stages.kernels.views import text_view

if TYPE_CHECKING:
    from gristmill.stages.artifact import Artifact
    from gristmill.stages.base import Stage
    from gristmill.stages.context import Context, Outcome

REASON = "near_duplicate"


class FuzzyDedup(KeepsBest):
    """Keep one document of each group of near-duplicates."""

    name: ClassVar[str] = "fuzzy_dedup"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "remove near-duplicates: MinHash-LSH, verified by exact shingle Jaccard"

    threshold: float = Field(
        default=0.8, gt=0, le=1, description="similarity of shingle sets from which a document is a duplicate"
    )
    measure: Literal["jaccard", "containment"] = Field(
        default="jaccard",
        description="'jaccard' shared / united shingles; 'containment' shared / those of the removed document",
    )
    verify: bool = Field(
        default=True,
        description="measure each candidate exactly before removing it; without it every bucket collision removes",
    )
    shingle_units: int = Field(
        default=5, ge=1, le=64, description="units (words, or characters of scripts without spaces) a shingle"
    )
    permutations: int = Field(default=112, ge=1, le=4096, description="MinHash permutations at most")
    bands: int | None = Field(
        default=None, ge=1, le=256, description="LSH bands (with `rows`); default: chosen for `min_recall`"
    )
    rows: int | None = Field(default=None, ge=1, le=64, description="signature values a band (with `bands`)")
    min_recall: float = Field(
        default=0.95, gt=0, lt=1, description="chance that a pair exactly at `threshold` becomes a candidate"
    )
    digits_alike: bool = Field(default=True, description="treat any run of digits as the same unit part")
    annotate_only: bool = Field(
        default=False, description="remove nothing; write duplicates.parquet (id, kept_id, similarity) instead"
    )
    max_bucket: int = Field(
        default=256, ge=1, description="kept documents that a bucket remembers as candidates; more are not compared"
    )
    driver_keys: int = Field(
        default=20_000_000, ge=0, description="band keys that the driver groups by itself; above, Spark rounds do"
    )
    driver_edges: int = Field(
        default=DRIVER_EDGES, ge=0, description="edges from which on the driver finishes the components"
    )
    device: Literal["auto", "cpu", "gpu"] = Field(
        default="auto",
        description="where signatures are computed; 'auto': on the GPU that Spark gave to the task, if any",
    )
    seed: int = Field(default=1, ge=0, lt=2**32, description="seed of the permutations")
    write_index: bool = Field(
        default=False, description="add an index of the kept documents to the artifact, for `against` of later runs"
    )
    against: tuple[str, ...] = Field(
        default=(),
        max_length=100,
        description="artifacts with an index, oldest first: their documents are better than any of this run and stay",
    )
    forget: str | None = Field(
        default=None, description="text file with ids, one a line, that the indexes in `against` no longer count"
    )
    n_samples: int = Field(default=10, ge=0, le=1000, description="largest clusters shown in the report, with text")

    @model_validator(mode="after")
    def _check_options(self) -> FuzzyDedup:
        if (self.bands is None) != (self.rows is None):
            raise ValueError("give both bands and rows, or neither")
        places = [path.rstrip("/") for path in self.against]
        if len(set(places)) < len(places):
            twice = next(path for path in places if places.count(path) > 1)
            raise ValueError(f"against names {twice} twice")
        return self

    def files(self) -> tuple[Path, ...]:
        """Return the identity of the indexes, and the ids to forget, as far as they are local."""
        return tuple(Path(path) for path in self._references() if store.is_local(path))

    def remote_files(self) -> tuple[str, ...]:
        """Return the same of those in a remote store."""
        return tuple(path for path in self._references() if not store.is_local(path))

    def _references(self) -> list[str]:
        paths = [store.join(path, "index", "index.json") for path in self.against]
        return [path.removeprefix("file://") for path in [*paths, *([self.forget] if self.forget else [])]]

    def check(self, node: str, inputs: Mapping[str, Stage]) -> None:
        """Open the indexes and read the ids to forget. Raises: ConfigError."""
        if not self.against and not self.forget:
            return
        try:
            self.shelf()
        except ConfigError as error:
            raise ConfigError(f"{node}.against: {error}") from None

    def shelf(self) -> Shelf:
        """Open the indexes.

        Raises:
            ConfigError: there is no index, it was made with another sketch, or `forget` is not a list of ids.
        """
        if self.forget and not self.against:
            raise ConfigError("forget takes ids out of the indexes in `against`, and none is given")
        ids: tuple[str, ...] = ()
        if self.forget:
            try:
                text = store.read_bytes(self.forget).decode()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{self.forget}: cannot be read as a list of ids ({error})") from None
            ids = tuple(line.strip() for line in text.splitlines() if line.strip())
        return Shelf(tuple(open_indexes(self.against, self.sketch())), ids)

    def sketch(self) -> Sketch:
        """Return the parameters of the signatures, bands chosen."""
        if self.bands is not None and self.rows is not None:
            bands, rows = self.bands, self.rows
        else:
            bands, rows = bands_for_recall(self.threshold, self.permutations, self.min_recall)
        return Sketch(self.shingle_units, bands, rows, self.seed, self.digits_alike, self.device)

    def warm(self, schema: pa.Schema) -> None:
        """Compile the kernels on two documents that are alike."""
        batch = sample_documents()
        sketch = self.sketch()
        keys_DN, _ = sketch.keys(batch.column("text"))
        components_of_buckets(keys_DN)
        n = batch.num_rows
        candidates = pa.RecordBatch.from_arrays(
            [
                pa.array([0] * n, pa.int64()),
                pa.array([b""] * n, pa.binary()),
                batch.column("row"),
                pa.array([False] * n),
                batch.column("id"),
                pa.array([""] * n, pa.string()),
                pa.array([bytes(range(sketch.bands))] * n, pa.binary()),
                sketch.packed(keys_DN),
                sketch.sets(batch.column("text")).cast(pa.binary()),
            ],
            schema=CANDIDATE_SCHEMA,
        )
        for _ in decide_stream(self.threshold, self.measure, self.verify, self.max_bucket, iter([candidates])):
            pass

    def run(self, context: Context, inputs: list[Artifact]) -> Outcome:
        """Find near-duplicates and remove all but the best of each group."""
        self.check_columns([artifact.schema for artifact in inputs])
        sketch = self.sketch()
        shelf = self.shelf()
        work = store.join(context.directory, "_work")
        labels, facts = self._labels(context, inputs, sketch, shelf, work)
        decisions = self._decisions(context, inputs, sketch, shelf, labels, work)
        frame = decisions.frame(context.spark).where("row >= 0")
        removals = frame.selectExpr(
            "row",
            f"'{REASON}' as reason",
            "nanvl(similarity, null) as value",
            f"cast({self.threshold!r} as double) as threshold",
            "kept_id",
        )
        if self.annotate_only:
            context.write_file("duplicates.parquet", report.duplicates_file(inputs, decisions))
            removals = removals.limit(0)
        outcome = context.remove(inputs, removals)
        outcome.report = {
            "bands": sketch.bands,
            "rows": sketch.rows,
            "s_curve": s_curve(sketch.bands, sketch.rows).splitlines(),
            **facts,
            **report.clusters(context.spark, inputs, decisions, self.n_samples),
        }
        if self.write_index:
            write_index(context, inputs, sketch, decisions, self.source_priority, self.prefer, work)
        store.delete_dir(work)
        return outcome

    def _labels(
        self, context: Context, inputs: list[Artifact], sketch: Sketch, shelf: Shelf, work: str
    ) -> tuple[Checkpoint, dict[str, Any]]:
        """Return the component of every row that shares a bucket with another, and facts for the report."""
        n_docs = sum(artifact.n_docs for artifact in inputs)
        in_rounds = n_docs * sketch.bands > self.driver_keys
        schema = LABEL_SCHEMA if in_rounds else LABEL_SCHEMA.append(pa.field("keys", pa.binary()))
        done = checkpoint.find(work, "labels", schema)
        if done is None and in_rounds:
            return self._labels_in_rounds(context, inputs, sketch, shelf, work)
        if done is None:
            frame = context.map_documents(inputs, ["text"], partial(emit_keys, sketch), KEYS_SCHEMA)
            table = frame.toArrow()
            row_R = table.column("row").to_numpy()
            offsets, packed = text_view(table.column("keys"))
            keys_RN = packed[offsets[0] : offsets[-1]].view(np.uint64).reshape(-1, sketch.bands)
            labels = _group_on_driver(context.spark, row_R, keys_RN, table.column("keys"), shelf)
            done = checkpoint.save_table(labels, work, "labels")
        return done, {"candidates": done.n_rows}

    def _labels_in_rounds(
        self, context: Context, inputs: list[Artifact], sketch: Sketch, shelf: Shelf, work: str
    ) -> tuple[Checkpoint, dict[str, Any]]:
        found = checkpoint.find(work, "buckets", BUCKET_SCHEMA)
        if found is None:
            frame = context.map_documents(inputs, ["text"], partial(emit_buckets, sketch), BUCKET_SCHEMA)
            found = checkpoint.save(frame, work, "buckets", BUCKET_SCHEMA)
        buckets = found.frame(context.spark)
        if shelf.indexes:
            ours = buckets.where("band >= 0").select("band", "key").distinct()
            buckets = buckets.union(
                matches(context.spark, shelf, None).join(ours, ["band", "key"], "left_semi").select(*buckets.columns)
            )
        labels, rounds = connected_components(context.spark, bucket_edges(buckets), work, self.driver_edges)
        return labels, {"candidates": labels.n_rows, "rounds": rounds}

    def _decisions(
        self, context: Context, inputs: list[Artifact], sketch: Sketch, shelf: Shelf, labels: Checkpoint, work: str
    ) -> Checkpoint:
        from pyspark.sql.pandas.types import from_arrow_schema

        done = checkpoint.find(work, "decisions", DECISION_SCHEMA)
        if done is not None:
            return done
        emit = partial(emit_candidates, sketch, labels, self.source_priority, self.prefer, self.verify)
        columns = ["text", *self.order_columns()]
        candidates = context.map_documents(inputs, columns, emit, CANDIDATE_SCHEMA)
        if shelf.indexes:
            candidates = candidates.union(leaders(context.spark, shelf, labels))
        ordered = candidates.repartition("component").sortWithinPartitions("component", "order_key", "row")
        decide = partial(decide_stream, self.threshold, self.measure, self.verify, self.max_bucket)
        frame = ordered.mapInArrow(decide, from_arrow_schema(DECISION_SCHEMA))
        decisions = checkpoint.save(frame, work, "decisions", DECISION_SCHEMA)
        if self.verify and decisions.n_rows:
            low = decisions.table(["row", "similarity"])
            measured = low.column("similarity").to_numpy()[low.column("row").to_numpy() >= 0]
            if len(measured) and not measured.min() >= self.threshold:
                raise RunError(f"{self.name}: a removal has similarity {measured.min()}, below {self.threshold}")
        return decisions


def _group_on_driver(spark: Any, row_R: Any, keys_RN: Any, packed: Any, shelf: Shelf) -> pa.Table:
    """Return labels (row, component, keys) of rows and indexed documents that share a bucket, ascending by row."""
    order = np.argsort(row_R)
    row_R, keys_RN = row_R[order], keys_RN[order]
    root = components_of_buckets(keys_RN)
    packed = packed.take(pa.array(order)).cast(pa.binary())
    if shelf.indexes and len(row_R):
        firsts = [np.unique(keys_RN[:, band], return_index=True) for band in range(keys_RN.shape[1])]
        found = matches(spark, shelf, [keys for keys, _ in firsts]).toArrow()
        node, where = np.unique(found.column("row").to_numpy(), return_inverse=True)
        band, key = found.column("band").to_numpy(), found.column("key").to_numpy().view(np.uint64)
        met = np.empty(len(band), np.int64)
        for number, (keys, first) in enumerate(firsts):
            mine = np.flatnonzero(band == number)
            met[mine] = first[np.searchsorted(keys, key[mine])]
        n = len(row_R)
        other = np.flatnonzero(root != np.arange(n))
        root = components(
            n + len(node), np.concatenate([other, met]), np.concatenate([root[other], where.reshape(-1) + n])
        )
        row_R = np.concatenate([row_R, node])
        packed = pa.concat_arrays([*packed.chunks, pa.array([b""] * len(node), pa.binary())])
    _, inverse, sizes = np.unique(root, return_inverse=True, return_counts=True)
    many = np.flatnonzero(sizes[inverse] > 1)
    many = many[np.argsort(row_R[many])]
    labels = pa.table([row_R[many], row_R[root[many]]], schema=LABEL_SCHEMA)
    return labels.append_column(pa.field("keys", pa.binary()), packed.take(pa.array(many)))


def bucket_edges(buckets: Any) -> Any:
    """Return edges (a, b) from `BUCKET_SCHEMA` rows: those that join the rows of each bucket."""
    across = stars_of_buckets(buckets.where("band >= 0").select("row", "band", "key"))
    return across.union(buckets.where("band < 0").selectExpr("row as a", "center as b"))
