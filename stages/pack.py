"""Encode documents and write them as Megatron shards in one global, keyed shuffle.

The place of a document is XXH3-128 of its id under the pipeline's seed: the high bits choose the shard, the
whole key the place in it, so shards are ranges of one order that knows nothing of files, splits or tasks. The
number of shards follows from the bytes of text and `shard_text_bytes` alone. Two phases, both plain tasks over
files; text never enters the JVM:

A. each split is encoded once and leaves one bucket file, its documents grouped by shard;
B. each shard reads its range of every bucket file, sorts it and writes `.bin/.idx`, provenance and manifest.

A task holds one split (64 MB of text) or one shard (its tokens and ids) in memory. Bucket files carry the name
of their attempt and only those of successful attempts are read; all are removed before the commit.
"""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from gristmill.packing import ShardWriter, TokenSpec, shard_name, shard_set_manifest
from gristmill.packing.table import Strings
from gristmill.stages import store
from gristmill.stages.artifact import FileEntry
from gristmill.stages.base import GlobalStage, Stage
from gristmill.stages.documents import PartWriter, Split, one_batch, plan_splits, read_split, union_schema
from gristmill.stages.errors import ConfigError
from gristmill.stages.kernels.hashing import xxh3_128
from gristmill.stages.kernels.views import text_view
from gristmill.stages.ledger import Entry
from gristmill.stages.passes import QUARANTINE_SCHEMA, Sink

if TYPE_CHECKING:
    from gristmill.stages.artifact import Artifact
    from gristmill.stages.context import Context, Outcome
    from gristmill.stages.progress import Sweep

BUCKETS = "buckets"
KINDS = ("bin", "idx", "provenance", "manifest.json")
TAKE_TOKENS = 4 << 20
"""Tokens gathered at a time while a sorted shard is written."""

BUCKET_SCHEMA = pa.schema(
    [
        ("key_high", pa.uint64()),
        ("key_low", pa.uint64()),
        ("id", pa.large_string()),
        ("source", pa.large_string()),
        ("url", pa.large_string()),
        ("content_hash", pa.binary(16)),
        ("n_bytes", pa.int64()),
        ("tokens", pa.large_binary()),
    ]
)


class Pack(GlobalStage):
    """Encode, shuffle and write shards."""

    name: ClassVar[str] = "pack"
    summary: ClassVar[str] = "encode documents and write them, shuffled, as Megatron .bin/.idx shards with provenance"
    input_kinds: ClassVar[tuple[str, ...]] = ("documents", "tokenizer")
    output_kind: ClassVar[str] = "shards"

    shard_text_bytes: int = Field(
        default=512 << 20, ge=1 << 10, le=64 << 30,
        description="bytes of text that one shard is made from, on average; a task's memory is about twice a "
        "shard's tokens (512 MiB of text: about 0.6 GB)",
    )  # fmt: skip
    append_eos: bool = Field(default=True, description="end each document with the tokenizer's end-of-text token")
    eos_id: int | None = Field(
        default=None, ge=0, description="end-of-text token id; default: the one that the tokenizer names"
    )

    def check(self, node: str, inputs: Mapping[str, Stage]) -> None:
        """Refuse two tokenizers, and an end-of-text token that the tokenizer will not have."""
        from gristmill.tokenizer.stage import Tokenizer

        given = {name: stage for name, stage in inputs.items() if stage.output_kind == "tokenizer"}
        if len(given) > 1:
            raise ConfigError(f"{node}.inputs: one tokenizer is needed, got {' and '.join(given)}")
        for name, stage in given.items():
            if isinstance(stage, Tokenizer):
                self._eos(node, name, *stage.ids())

    def _eos(self, node: str, tokenizer: str, vocab_size: int, eos_id: int | None) -> int | None:
        """Return the id that ends documents. Raises: ConfigError."""
        eos = self.eos_id if self.eos_id is not None else eos_id
        if self.append_eos and eos is None:
            raise ConfigError(
                f"{node}.append_eos: {tokenizer} names no end-of-text token; give `eos_id`, or set append_eos: false"
            )
        if eos is not None and eos >= vocab_size:
            raise ConfigError(f"{node}.eos_id: ids are below {vocab_size:,} in {tokenizer}, got {eos:,}")
        return eos

    def run(self, context: Context, inputs: list[Artifact]) -> Outcome:
        """Write the shard set; the report holds tokens by source and the numbers of `shards.json`."""
        from gristmill.stages.context import Outcome

        documents = [a for a in inputs if a.kind == "documents"]
        tokenizer = next(a for a in inputs if a.kind == "tokenizer")
        path = tokenizer.path_of("tokenizer.json")
        spec = self.token_spec(path, tokenizer.read_bytes("tokenizer.json"))
        n_shards = max(1, -(-sum(a.n_bytes for a in documents) // self.shard_text_bytes))
        buckets_dir = store.join(context.directory, BUCKETS)
        store.delete_dir(buckets_dir)
        have = union_schema(documents)
        wanted = [n for n in ("id", "text", "source", "n_bytes", "content_hash", "url") if n in have.names]
        job = EncodeJob(
            context.directory, context.node, path, spec, n_shards, context.seed, union_schema(documents, wanted)
        )
        splits = list(plan_splits(documents, context.parallelism))
        sweep = context.counters.sweep(context.spark)
        encoded = context.run_tasks(splits, partial(encode_split, job, sweep))
        outcome = Outcome(ledger=[entry := Entry(context.node)])
        for result in encoded:
            entry.merge(Entry.from_json(result["entry"]))
            if result["quarantined"]:
                outcome.quarantined.append(FileEntry(**result["quarantined"]))
        ranges: list[list[tuple[str, int, int]]] = [[] for _ in range(n_shards)]
        for result in encoded:
            for shard, offset, size in result["ranges"]:
                ranges[shard].append((result["path"], offset, size))
        numbered = list(enumerate(ranges))
        written = context.run_tasks(numbered, partial(write_shard, context.directory, spec))
        store.delete_dir(buckets_dir)
        for result in written:
            for item in result["files"]:
                context.add_file(FileEntry(**item))
        shards = [result["shard"] for result in written]
        context.write_file("shards.json", shard_set_manifest(spec, shards))
        by_source: Counter[str] = Counter()
        for result in written:
            by_source.update(result["tokens_by_source"])
        n_tokens = sum(s["n_tokens"] for s in shards)
        n_documents = sum(s["n_documents"] for s in shards)
        outcome.report = {
            "n_shards": n_shards,
            "n_documents": n_documents,
            "n_tokens": n_tokens,
            "n_eos": n_documents if self.append_eos else 0,
            "dtype": spec.dtype.name,
            "tokenizer": spec.tokenizer,
            "bytes_per_token": round(entry.kept.n_bytes / max(1, n_tokens), 4),
            "tokens_by_source": dict(sorted(by_source.items())),
        }
        return outcome

    def token_spec(self, path: str, raw: bytes) -> TokenSpec:
        """Return what the ids will mean.

        Raises:
            ConfigError: EOS is wanted and the tokenizer has none.
        """
        from gristmill.tokenizer.encode import load_encoder

        encoder = load_encoder(path)
        eos = self._eos(self.name, path, encoder.vocab_size, encoder.eos_id)
        identity = hashlib.blake2b(raw, digest_size=16).hexdigest()
        return TokenSpec(encoder.vocab_size, eos, identity, "append" if self.append_eos else "none")


class EncodeJob:
    """What every task of phase A needs to know."""

    def __init__(
        self, directory: str, node: str, tokenizer: str, spec: TokenSpec, n_shards: int, seed: int, columns: pa.Schema
    ) -> None:
        """Hold the arguments; pickled to the workers."""
        self.directory = directory
        self.node = node
        self.tokenizer = tokenizer
        self.spec = spec
        self.n_shards = n_shards
        self.seed = seed
        self.columns = columns


def encode_split(job: EncodeJob, sweep: Sweep, split: Split) -> dict[str, Any]:
    """Encode a split into one bucket file; returns its path, the byte range of each shard and a ledger entry."""
    attempt = f"{split.key}-{uuid.uuid4().hex[:12]}"
    bad = PartWriter(store.join(job.directory, "quarantined", f"{attempt}.parquet"), QUARANTINE_SCHEMA, text=False)
    sink = Sink(bad)
    entry = sink.entry(job.node)
    batches = []
    for batch in read_split(split, job.columns):
        if batch.num_rows:
            batches.append(_encode(job, batch, sink))
            sweep.add(batch.num_rows, 0, batches[-1].num_rows)
    sweep.add(0, split.n_bytes, 0)
    path = store.join(job.directory, BUCKETS, f"{attempt}.arrow")
    ranges = _write_bucket(path, pa.Table.from_batches(batches, BUCKET_SCHEMA), job.n_shards)
    closed = bad.close()
    return {
        "path": path,
        "ranges": ranges,
        "entry": entry.to_json(),
        "quarantined": closed[0].model_dump(mode="json") if closed else None,
    }


def shard_of(key_high: npt.NDArray[np.uint64], n_shards: int) -> npt.NDArray[np.int64]:
    """Return the shard of each key: equal ranges of the high 32 bits."""
    return ((key_high >> np.uint64(32)) * np.uint64(n_shards) >> np.uint64(32)).astype(np.int64)


def _encode(job: EncodeJob, batch: pa.RecordBatch, sink: Sink) -> pa.RecordBatch:
    """Return the bucket rows of a batch; documents without tokens go to quarantine."""
    from gristmill.tokenizer.encode import load_encoder

    offsets, data = text_view(batch.column("text"))
    tokens, ends = load_encoder(job.tokenizer).encode_batch(offsets, data)
    tokens, ends = with_eos(tokens, ends, job.spec)
    n_bytes = np.diff(offsets)
    empty = np.diff(ends) == (1 if job.spec.eos_policy == "append" else 0)
    entry = sink.entry(job.node)
    entry.into.add(batch.num_rows, int(n_bytes.sum()))
    rows = _bucket_rows(job, batch, tokens, ends, n_bytes)
    if empty.any():
        mask = pa.array(empty)
        lost = batch.filter(mask)
        sink.quarantine_rows(
            job.node,
            {
                "reason": pa.repeat(pa.scalar("no_tokens"), lost.num_rows),
                "id": lost.column("id").cast(pa.string()),
                "n_bytes": pa.array(n_bytes[empty]),
                "prefix": pa.array([b""] * lost.num_rows, pa.binary()),
            },
        )
        rows = rows.filter(pa.array(~empty))
    entry.kept.add(rows.num_rows, int(n_bytes[~empty].sum()))
    for column, chosen in ((0, batch.column("source")), (1, rows.column("source"))):
        for item in chosen.value_counts().to_pylist():
            counts = [0, 0]
            counts[column] = item["counts"]
            entry.count_source(item["values"] or "", *counts)
    return rows


def _bucket_rows(
    job: EncodeJob,
    batch: pa.RecordBatch,
    tokens: npt.NDArray[Any],
    ends: npt.NDArray[np.int64],
    n_bytes: npt.NDArray[np.int64],
) -> pa.RecordBatch:
    keys = xxh3_128(*text_view(batch.column("id").cast(pa.large_string())), seed=job.seed & (2**64 - 1))
    stored = np.ascontiguousarray(tokens, job.spec.dtype)
    offsets = pa.py_buffer(np.ascontiguousarray(ends * stored.itemsize))
    n = batch.num_rows

    def text_column(name: str) -> pa.Array:
        if name not in batch.schema.names:
            return pa.repeat(pa.scalar("", pa.large_string()), n)
        return batch.column(name).cast(pa.large_string()).fill_null("")

    hashes = batch.column("content_hash") if "content_hash" in batch.schema.names else pa.nulls(n, pa.binary(16))
    columns = [
        pa.array(np.ascontiguousarray(keys[:, 0])),
        pa.array(np.ascontiguousarray(keys[:, 1])),
        text_column("id"),
        text_column("source"),
        text_column("url"),
        hashes.fill_null(bytes(16)),
        pa.array(n_bytes),
        pa.Array.from_buffers(pa.large_binary(), n, [None, offsets, pa.py_buffer(stored)]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=BUCKET_SCHEMA)


def with_eos(
    tokens_T: npt.NDArray[Any], offsets_D1: npt.NDArray[np.int64], spec: TokenSpec
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return tokens and offsets with EOS after each document, if the policy says so."""
    if spec.eos_policy != "append" or spec.eos_id is None:
        return tokens_T, offsets_D1
    n = len(offsets_D1) - 1
    offsets = offsets_D1 + np.arange(n + 1)
    out = np.empty(len(tokens_T) + n, tokens_T.dtype)
    is_eos = np.zeros(len(out), np.bool_)
    is_eos[offsets[1:] - 1] = True
    out[is_eos] = spec.eos_id
    out[~is_eos] = tokens_T
    return out, offsets


def _write_bucket(path: str, table: pa.Table, n_shards: int) -> list[tuple[int, int, int]]:
    """Write rows grouped by shard; returns (shard, offset, bytes) of each group."""
    if not table.num_rows:
        return []
    shard = shard_of(table.column("key_high").to_numpy(), n_shards)
    order = np.argsort(shard, kind="stable")
    bounds = np.searchsorted(shard[order], np.arange(n_shards + 1))
    ranges = []
    with store.HashingSink(path) as sink:
        for number in np.flatnonzero(np.diff(bounds)):
            rows = pa.array(order[bounds[number] : bounds[number + 1]])
            start = sink.tell()
            sink.write(one_batch(table.take(rows)).serialize())
            ranges.append((int(number), start, sink.tell() - start))
    return ranges


def write_shard(directory: str, spec: TokenSpec, item: tuple[int, list[tuple[str, int, int]]]) -> dict[str, Any]:
    """Gather one shard's documents, sort them and write its files under their final names."""
    number, ranges = item
    batches = []
    for path, offset, size in ranges:
        with store.open_input(path) as source:
            batches.append(pa.ipc.read_record_batch(source.read_at(size, offset), BUCKET_SCHEMA))
    table = pa.Table.from_batches(batches, BUCKET_SCHEMA)
    order = sorted_rows(table)
    name = shard_name(number)
    attempt = uuid.uuid4().hex[:12]
    local = store.is_local(directory)
    with tempfile.TemporaryDirectory(prefix="gristmill-pack-") as scratch:
        folder = Path(store.locate(directory)[1] if local else scratch)
        by_source: Counter[str] = Counter()
        with ShardWriter(folder, name, spec, attempt=attempt) as writer:
            for rows in _runs(table, order, spec.dtype.itemsize):
                by_source.update(_add(writer, table.take(pa.array(rows)), spec))
            entry = writer.close()
        files = [_file_entry(folder / f"{name}.{kind}", directory, upload=not local) for kind in KINDS]
    return {"shard": entry, "files": files, "tokens_by_source": dict(by_source)}


def sorted_rows(table: pa.Table) -> npt.NDArray[np.int64]:
    """Return the rows in the order of the shard: by key, then content hash, id, source and url.

    Keys tie only for equal ids; for these few the rest is compared, so that the order is total and does not
    depend on where a row came from.
    """
    high, low = table.column("key_high").to_numpy(), table.column("key_low").to_numpy()
    order = np.lexsort((low, high))
    same = (np.diff(high[order]) == 0) & (np.diff(low[order]) == 0)
    at = 0
    ties = np.flatnonzero(same)
    while at < len(ties):
        first = last = int(ties[at])
        while at < len(ties) and ties[at] == last:
            last += 1
            at += 1
        group = order[first : last + 1]
        names = ("content_hash", "id", "source", "url", "n_bytes", "tokens")
        keyed = table.select(names).take(pa.array(group)).to_pylist()
        ranked = sorted(range(len(group)), key=lambda i: tuple(keyed[i][name] for name in names))
        order[first : last + 1] = group[ranked]
    return order.astype(np.int64)


def _runs(table: pa.Table, order: npt.NDArray[np.int64], itemsize: int) -> list[npt.NDArray[np.int64]]:
    """Cut the sorted rows into runs of about `TAKE_TOKENS` tokens."""
    if not len(order):
        return []
    sizes = np.concatenate([np.diff(text_view(chunk)[0]) for chunk in table.column("tokens").chunks])
    run = np.cumsum(sizes[order] // itemsize) // TAKE_TOKENS
    return np.split(order, np.flatnonzero(np.diff(run)) + 1)


def _add(writer: ShardWriter, rows: pa.Table, spec: TokenSpec) -> dict[str, int]:
    """Append documents to the shard and return their tokens by source."""
    batch = one_batch(rows)
    offsets, data = text_view(batch.column("tokens"))
    stored = data[offsets[0] : offsets[-1]].view(spec.dtype)
    lengths = np.diff(offsets) // spec.dtype.itemsize
    hashes = np.frombuffer(batch.column("content_hash").buffers()[1], "<u8")
    hashes = hashes[2 * batch.column("content_hash").offset :][: 2 * len(lengths)].reshape(-1, 2)
    encoded = batch.column("source").dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    writer.add(
        stored,
        lengths,
        Strings(*text_view(batch.column("id"))),
        sources=(names, codes),
        urls=Strings(*text_view(batch.column("url"))),
        extra={
            "n_bytes": batch.column("n_bytes").to_numpy(),
            "hash_low": hashes[:, 0],
            "hash_high": hashes[:, 1],
        },
    )
    totals = np.bincount(codes, weights=lengths, minlength=len(names))
    return {name: int(total) for name, total in zip(names, totals, strict=True)}


def _file_entry(path: Path, directory: str, *, upload: bool) -> dict[str, Any]:
    """Hash a finished file, and put it into the store where that is not the local disk."""
    import xxhash

    target = store.join(directory, path.name)
    with path.open("rb") as stream:
        if upload:
            with store.HashingSink(target) as sink:
                while block := stream.read(8 << 20):
                    sink.write(block)
            return FileEntry(path=target, n_bytes=sink.n_bytes, xxh3=sink.digest).model_dump(mode="json")
        state = xxhash.xxh3_64()
        while block := stream.read(8 << 20):
            state.update(block)
    return FileEntry(path=target, n_bytes=path.stat().st_size, xxh3=state.hexdigest()).model_dump(mode="json")
