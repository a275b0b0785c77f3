"""What a stage is given to work with on Spark, and how its work is committed.

The driver's side of a pass: run splits as tasks (`run_pass`), map keys out of documents (`map_documents`),
remove rows without rewriting text (`remove`), and commit.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.stages import store
from gristmill.stages.artifact import Artifact, FileEntry, Part, read_mask, write_mask
from gristmill.stages.documents import (
    ROW_BITS,
    PartWriter,
    Split,
    conform,
    one_batch,
    plan_splits,
    read_split,
    union_schema,
)
from gristmill.stages.ledger import Count, Entry
from gristmill.stages.passes import PassPlan, rejected_schema, run_split
from gristmill.stages.progress import Counters, Sweep

Mapper = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass
class Outcome:
    """What a stage leaves to be committed. File paths are full; the engine makes them relative."""

    parts: list[Part] = field(default_factory=list)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    rejected: list[FileEntry] = field(default_factory=list)
    quarantined: list[FileEntry] = field(default_factory=list)
    files: list[FileEntry] = field(default_factory=list)
    ledger: list[Entry] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)


@dataclass
class Context:
    """Run-wide facts and the services of the engine, for one artifact being made.

    `directory` is where its files go; nothing there counts until the engine commits.
    """

    spark: Any
    root: str
    directory: str
    node: str
    seed: int
    parallelism: int
    counters: Counters
    files: list[FileEntry] = field(default_factory=list)

    def write_file(self, name: str, data: bytes) -> None:
        """Add a file to the artifact, under its own name."""
        path = store.join(self.directory, name)
        with store.HashingSink(path) as sink:
            sink.write(data)
        self.files.append(FileEntry(path=path, n_bytes=sink.n_bytes, xxh3=sink.digest))

    def add_file(self, entry: FileEntry) -> None:
        """Add a file that a task has written below `directory`."""
        self.files.append(entry)

    def run_tasks(self, items: Sequence[Any], task: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
        """Run ``task(item)`` for each item as a Spark task and return the results, in the order of `items`.

        Results are JSON data. Both must pickle. A task may run twice (retry, speculation): it must write
        under a name of its own attempt.
        """
        if not items:
            return []
        frame = self.spark.range(0, len(items), 1, len(items))
        results: list[dict[str, Any]] = [{}] * len(items)
        for row in frame.mapInArrow(partial(_run_items, list(items), task), "item long, result string").collect():
            results[row["item"]] = json.loads(row["result"])
        return results

    def run_pass(self, plan: PassPlan, splits: Sequence[Any]) -> list[dict[str, Any]]:
        """Run splits that have no record yet; return all records in the order of `splits`."""
        done = _finished(plan.directory)
        todo = [split for split in splits if split.key not in done]
        self.counters.skip(len(splits) - len(todo))
        for record in self.run_tasks(todo, partial(_run_split, plan, self.counters.sweep(self.spark))):
            done[record["split"]] = record
        return [done[split.key] for split in splits]

    def map_documents(self, inputs: Iterable[Artifact], columns: list[str], fn: Mapper, schema: pa.Schema) -> Any:
        """Run ``fn(batches) -> batches`` once a split in Spark tasks; returns a DataFrame with `schema`.

        The batches carry `columns` and `row`, an int64 that is unique but depends on the file layout: results
        must not depend on its value. Lazy, as every DataFrame: cache or checkpoint what is used twice.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        inputs = list(inputs)
        splits = plan_splits(inputs, self.parallelism)
        frame = self.spark.range(0, len(splits), 1, max(1, len(splits)))
        wanted = union_schema(inputs, columns)
        task = partial(_map_splits, splits, wanted, fn, schema, self.counters.sweep(self.spark))
        return frame.mapInArrow(task, from_arrow_schema(schema))

    def remove(self, inputs: Iterable[Artifact], removals: Any) -> Outcome:
        """Mark rows as removed: new masks and rejected rows; the text stays where it is.

        `removals`: DataFrame (row long, reason string, value double, threshold double, kept_id string), at
        most one line a row.
        """
        artifacts = list(inputs)
        parts = [(artifact.root, part) for artifact in artifacts for part in artifact.parts]
        schema = union_schema(artifacts)
        directory, node = self.directory, self.node

        def task(table: pa.Table) -> pa.Table:  # a function of its own: Spark reads the annotations
            return _remove_rows(parts, directory, node, schema, table)

        grouped = removals.selectExpr(f"cast(shiftright(row, {ROW_BITS}) as int) as part", "*").groupBy("part")
        rows = grouped.applyInArrow(task, "part int, result string").collect()
        results = {row["part"]: json.loads(row["result"]) for row in rows}
        entry = Entry(self.node)
        outcome = Outcome(schema=schema, ledger=[entry])
        for number, (_, part) in enumerate(parts):
            entry.into.add(part.n_docs, part.n_bytes)
            result = results.get(number)
            for source, n_docs in part.sources.items():
                entry.count_source(source, n_docs, n_docs)
            if result is None:
                outcome.parts.append(part)
                entry.kept.add(part.n_docs, part.n_bytes)
                continue
            left = Part(**result["part"])
            entry.kept.add(left.n_docs, left.n_bytes)
            for reason, (docs, n_bytes) in result["reasons"].items():
                entry.rejected.setdefault(reason, Count()).add(docs, n_bytes)
            for source, n_docs in part.sources.items():
                entry.count_source(source, 0, left.sources.get(source, 0) - n_docs)
            outcome.rejected.append(FileEntry(**result["rejected"]))
            if left.n_docs:
                outcome.parts.append(left)
        return outcome


def from_records(records: list[dict[str, Any]], nodes: list[str], schema: pa.Schema) -> Outcome:
    """Add up what the splits of a pass did."""
    entries = {node: Entry(node) for node in nodes}
    outcome = Outcome(schema=schema, ledger=list(entries.values()))
    for record in records:
        for data in record["entries"]:
            entries[data["stage"]].merge(Entry.from_json(data))
        if record["kept"]:
            outcome.parts.append(Part(**record["kept"][1]))
            outcome.files.append(FileEntry(**record["kept"][0]))
        if record["rejected"]:
            outcome.rejected.append(FileEntry(**record["rejected"][0]))
        if record["quarantined"]:
            outcome.quarantined.append(FileEntry(**record["quarantined"][0]))
    return outcome


def _finished(directory: str) -> dict[str, dict[str, Any]]:
    """Records left by an earlier, interrupted run whose files are all there in full length."""
    done = {}
    for path, _, _ in store.list_files(store.join(directory, "_tasks")):
        if not path.endswith(".json"):
            continue
        try:
            record = json.loads(store.read_bytes(path))
        except ValueError:
            continue
        files = [record[name][0] for name in ("kept", "rejected", "quarantined") if record[name]]
        if all(store.n_bytes_of(file["path"]) == file["n_bytes"] for file in files):
            done[record["split"]] = record
    return done


def _run_items(
    items: list[Any], task: Callable[[Any], dict[str, Any]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            result = json.dumps(task(items[number]))
            yield pa.RecordBatch.from_pydict({"item": [number], "result": [result]})


def _run_split(plan: PassPlan, sweep: Sweep, split: Any) -> dict[str, Any]:
    return run_split(plan, split, sweep.add)


def _map_splits(
    splits: list[Split],
    columns: pa.Schema,
    fn: Mapper,
    schema: pa.Schema,
    sweep: Sweep,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            split = splits[number]
            for out in fn(_counted(read_split(split, columns, with_row=True), sweep)):
                yield out.cast(schema) if out.schema != schema else out
            sweep.add(0, split.n_bytes, 0)


def _counted(batches: Iterator[pa.RecordBatch], sweep: Sweep) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            yield batch
            sweep.add(batch.num_rows, 0, 0)


def _remove_rows(
    parts: list[tuple[str, Part]], directory: str, node: str, schema: pa.Schema, table: pa.Table
) -> pa.Table:
    """Write the new mask and the rejected rows of one part."""
    number = int(table.column("part")[0].as_py())
    root, part = parts[number]
    attempt = uuid.uuid4().hex[:12]
    table = table.sort_by("row")
    rows = table.column("row").to_numpy() & ((1 << ROW_BITS) - 1)
    mask = read_mask(store.join(root, part.mask), part.n_rows) if part.mask else np.ones(part.n_rows, np.bool_)
    mask[rows] = False
    with store.open_input(store.join(root, part.path)) as source:
        file = pq.ParquetFile(source)
        have = [n for n in file.schema_arrow.names if n != "text"]
        documents = file.read(columns=have, use_threads=False)
    lost = conform(one_batch(documents.take(pa.array(rows))), pa.schema([f for f in schema if f.name != "text"]))
    left = documents.select(["source", "n_bytes"]).filter(pa.array(mask))
    columns = {
        "stage": pa.array([node] * lost.num_rows, pa.string()),
        "reason": table.column("reason"),
        "reason_value": table.column("value"),
        "reason_threshold": table.column("threshold"),
        "kept_id": table.column("kept_id"),
    }
    out_schema = rejected_schema(schema)
    out = pa.table(
        [columns[f.name].cast(f.type) if f.name in columns else lost.column(f.name) for f in out_schema],
        schema=out_schema,
    )
    writer = PartWriter(store.join(directory, "rejected", f"{number:05d}-{attempt}.parquet"), out_schema, text=False)
    for batch in out.combine_chunks().to_batches():
        writer.write(batch)
    written = writer.close()
    assert written is not None
    mask_path = store.join(directory, "masks", f"{number:05d}-{attempt}.bits")
    write_mask(mask_path, mask)
    sources = {
        item["values"] or "": item["counts"]
        for item in left.column("source").combine_chunks().value_counts().to_pylist()
    }
    reasons = {
        row["reason"]: [row["n_bytes_count"], row["n_bytes_sum"]]
        for row in out.group_by("reason").aggregate([("n_bytes", "count"), ("n_bytes", "sum")]).to_pylist()
    }
    remaining = part.model_copy(
        update={
            "mask": mask_path,
            "n_docs": left.num_rows,
            "n_bytes": int(pc.sum(left.column("n_bytes")).as_py() or 0),
            "sources": dict(sorted(sources.items())),
        }
    )
    result = {
        "part": remaining.model_dump(mode="json"),
        "rejected": written[0].model_dump(mode="json"),
        "reasons": reasons,
    }
    text = pa.array([json.dumps(result)], pa.large_string())
    return pa.table({"part": pa.array([number], pa.int32()), "result": text})
