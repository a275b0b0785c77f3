"""Semantic near-duplicates: document vectors, k-means, cosine inside clusters. Flags unless told to remove.

    sample   documents chosen by a hash of their content -> vectors      at most twice `sample_documents` rows
    train    spherical k-means on the driver                             `dedup.kmeans`, integers only
    assign   text -> vector -> nearest centroid                          one row a document: 2 bytes a column
    resolve  cluster by cluster, best first, against the kept ones       float32 matrix products, exact
    remove   row masks, or duplicates.parquet where it only flags

After SemDeDup (Abbas et al. 2023, arXiv:2303.09540), with two changes: a document is compared with kept documents
only, so similarity does not chain; and everything is computed in integers, so the result depends on the documents
alone: not on files, partitions, task order, BLAS or machine. Near-duplicates that fall into different clusters are
not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.stages import store
from gristmill.stages.dedup import checkpoint, kmeans, report
from gristmill.stages.dedup.checkpoint import Checkpoint
from gristmill.stages.dedup.embed import Embedder, HashedUnits, TokenVectors, load, model_files
from gristmill.stages.dedup.order import KeepsBest, order_keys, sample_documents
from gristmill.stages.errors import ConfigError
from gristmill.stages.kernels.embedding import F32, nearest_leader, new_leaders, norms
from gristmill.stages.kernels.views import text_view

if TYPE_CHECKING:
    from gristmill.stages.artifact import Artifact
    from gristmill.stages.base import Stage
    from gristmill.stages.context import Context, Outcome

REASON = "semantic_duplicate"
NO_VECTOR = -1
"""Cluster of documents that have no vector: never compared, always kept, counted."""
BLOCK = 512
LEADER_BLOCK = 4096

SAMPLE_SCHEMA = pa.schema([("key", pa.int64()), ("data", pa.binary())])
ASSIGNED_SCHEMA = pa.schema(
    [
        ("cluster", pa.int64()),
        ("order_key", pa.binary()),
        ("row", pa.int64()),
        ("id", pa.string()),
        ("vector", pa.binary()),
    ]
)
DECISION_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("kept_id", pa.string()),
        ("kept_row", pa.int64()),
        ("kept_origin", pa.string()),
        ("similarity", pa.float64()),
        ("refused", pa.int64()),
        ("no_vector", pa.int64()),
    ]
)
"""One line a duplicate; lines of row -1 only count documents that found no room as leaders or have no vector."""


class SemanticDedup(KeepsBest):
    """Flag or remove documents that say the same as a better one."""

    name: ClassVar[str] = "semantic_dedup"
    summary: ClassVar[str] = "flag documents whose vectors are nearly the same: static embeddings, k-means, cosine"

    model: str | None = Field(
        default=None,
        description="folder with model.safetensors and tokenizer.json of a static embedding model (model2vec, "
        "Sentence-Transformers StaticEmbedding); without it, hashed units weighted by rarity: words, not meaning",
    )
    model_characters: int = Field(
        default=4096, ge=16, le=1 << 24, description="characters of a text that a model reads, from the beginning"
    )
    dimensions: int = Field(
        default=256, ge=64, le=4096, multiple_of=64, description="columns of a vector of hashed units"
    )
    threshold: float = Field(default=0.95, gt=0, le=1, description="cosine from which a document is a duplicate")
    clusters: int | None = Field(
        default=None, ge=1, le=1_000_000, description="clusters of k-means; default: one a thousand documents"
    )
    sample_documents: int = Field(
        default=50_000, ge=1, le=10_000_000, description="documents that k-means is trained on, on the driver"
    )
    iterations: int = Field(default=10, ge=1, le=1000, description="rounds of k-means at most")
    max_leaders: int = Field(
        default=20_000, ge=1, description="kept documents of a cluster that later ones are compared with; then none"
    )
    annotate_only: bool = Field(
        default=True, description="remove nothing; write duplicates.parquet (id, kept_id, similarity)"
    )
    seed: int = Field(default=1, ge=0, lt=2**32, description="seed of the signs and of the sample")
    n_samples: int = Field(default=10, ge=0, le=1000, description="largest groups shown in the report, with text")

    @model_validator(mode="after")
    def _check_sample(self) -> SemanticDedup:
        if self.clusters is not None and self.clusters > self.sample_documents:
            raise ValueError(f"{self.clusters:,} clusters need as many sample_documents, not {self.sample_documents:,}")
        return self

    def files(self) -> tuple[Path, ...]:
        """Return the files of the model."""
        return model_files(self.model) if self.model else ()

    def check(self, node: str, inputs: Mapping[str, Stage]) -> None:
        """Read the model. Raises: ConfigError."""
        if self.model:
            try:
                load(self.model)
            except ConfigError as error:
                raise ConfigError(f"{node}.model: {error}") from None

    def embedder(self) -> Embedder:
        """Return what makes vectors, not yet fitted."""
        if self.model:
            return TokenVectors(self.model, self.model_characters)
        return HashedUnits(self.dimensions, self.seed)

    def warm(self, schema: pa.Schema) -> None:
        """Compile the kernels."""
        batch = sample_documents()
        embedder, sample = self.embedder().fit(self.embedder().sample(batch.column("text")))
        centroids = kmeans.train(sample, 1, 1)
        assigned = _assign(embedder, centroids, self.source_priority, self.prefer, iter([batch]))
        for _ in _resolve(self.threshold, self.max_leaders, assigned):
            pass

    def run(self, context: Context, inputs: list[Artifact]) -> Outcome:
        """Find documents that are near a better one, and flag or remove them."""
        self.check_columns([artifact.schema for artifact in inputs])
        work = store.join(context.directory, "_work")
        n_docs = sum(artifact.n_docs for artifact in inputs)
        data = self._sample(context, inputs, n_docs, work)
        embedder, vectors = self.embedder().fit(data)
        vectors = vectors[np.any(vectors != 0, axis=1)]
        wanted = self.clusters or max(1, min(round(n_docs / 1000), len(vectors) // 10))
        centroids = kmeans.train(vectors, wanted, self.iterations) if len(vectors) else np.zeros((1, 1), np.float32)
        decisions = self._decisions(context, inputs, embedder, centroids, work)
        removals = decisions.frame(context.spark).where("row >= 0")
        removals = removals.selectExpr(
            "row",
            f"'{REASON}' as reason",
            "similarity as value",
            f"cast({self.threshold!r} as double) as threshold",
            "kept_id",
        )
        if self.annotate_only:
            context.write_file("duplicates.parquet", report.duplicates_file(inputs, decisions))
            removals = removals.limit(0)
        outcome = context.remove(inputs, removals)
        found = report.clusters(context.spark, inputs, decisions, self.n_samples)
        outcome.report = {
            "embedding": embedder.describe(),
            "sampled": len(data),
            "kmeans_clusters": len(centroids),
            "flagged": found.pop("removed"),
            "leaders_refused": found.pop("bucket_entries_refused"),
            "without_vector": int(sum(decisions.table(["no_vector"]).column(0).to_pylist())),
            **found,
        }
        store.delete_dir(work)
        return outcome

    def _sample(self, context: Context, inputs: list[Artifact], n_docs: int, work: str) -> list[bytes]:
        """Return what the embedder needs of the documents with the smallest keys, by key, contents once."""
        rate = min(1.0, 2 * self.sample_documents / max(1, n_docs))
        mapper = partial(_emit_sample, self.embedder(), self.seed, rate)
        frame = context.map_documents(inputs, ["text", "content_hash"], mapper, SAMPLE_SCHEMA)
        table = checkpoint.save(frame, work, "sample", SAMPLE_SCHEMA).table()
        _, first = np.unique(table.column("key").to_numpy(), return_index=True)
        chosen: list[bytes] = table.column("data").take(pa.array(first[: self.sample_documents])).to_pylist()
        return chosen

    def _decisions(
        self, context: Context, inputs: list[Artifact], embedder: Embedder, centroids: F32, work: str
    ) -> Checkpoint:
        from pyspark.sql.pandas.types import from_arrow_schema

        mapper = partial(_assign, embedder, centroids, self.source_priority, self.prefer)
        assigned = context.map_documents(inputs, ["text", *self.order_columns()], mapper, ASSIGNED_SCHEMA)
        ordered = assigned.repartition("cluster").sortWithinPartitions("cluster", "order_key", "row")
        resolve = partial(_resolve, self.threshold, self.max_leaders)
        frame = ordered.mapInArrow(resolve, from_arrow_schema(DECISION_SCHEMA))
        return checkpoint.save(frame, work, "decisions", DECISION_SCHEMA)


def sample_keys(content_hash: pa.Array, seed: int) -> Any:
    """Return a uniform uint64 a document from its content hash and the seed, (D)."""
    raw = np.frombuffer(b"".join(content_hash.to_pylist()), np.uint64).reshape(-1, 2)
    x = (raw[:, 0] ^ np.uint64((seed * 0x9E3779B97F4A7C15) & ((1 << 64) - 1))) * np.uint64(0xBF58476D1CE4E5B9)
    return (x ^ (x >> np.uint64(31)) ^ raw[:, 1]) * np.uint64(0x94D049BB133111EB)


def _emit_sample(
    embedder: Embedder, seed: int, rate: float, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys = sample_keys(batch.column("content_hash"), seed) >> np.uint64(1)
        chosen = np.flatnonzero(keys.astype(np.float64) < rate * 2.0**63)
        data = embedder.sample(batch.column("text").take(pa.array(chosen)))
        yield pa.RecordBatch.from_arrays(
            [pa.array(keys[chosen].astype(np.int64)), pa.array(data, pa.binary())], schema=SAMPLE_SCHEMA
        )


def _assign(
    embedder: Embedder,
    centroids: F32,
    source_priority: tuple[str, ...],
    prefer: tuple[str, ...],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        vectors = embedder.vectors(batch.column("text"))
        cluster = np.full(len(vectors), NO_VECTOR, np.int64)
        some = np.flatnonzero(np.any(vectors != 0, axis=1))
        if len(some):
            cluster[some] = kmeans.assign(vectors[some], centroids)
        width = vectors.itemsize * vectors.shape[1]
        offsets = pa.py_buffer(np.arange(len(vectors) + 1, dtype=np.int32) * np.int32(width))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(cluster),
                order_keys(batch, source_priority, prefer),
                batch.column("row"),
                batch.column("id").cast(pa.string()),
                pa.Array.from_buffers(pa.binary(), len(vectors), [None, offsets, pa.py_buffer(vectors)]),
            ],
            schema=ASSIGNED_SCHEMA,
        )


class _Cluster:
    """The kept documents of the cluster that is being read, as far as there is room for them."""

    def __init__(self) -> None:
        self.begin(NO_VECTOR, 1)

    def begin(self, number: int, n_columns: int) -> None:
        """Forget them all."""
        self.number = number
        self.n_leaders = 0
        self.ids = pa.array([], pa.string())
        self.rows = np.empty(256, np.int64)
        self.norms = np.empty(256)
        self.vectors = np.empty((256, n_columns), np.float32)

    def remember(self, rows: Any, ids: pa.Array, vectors: F32, lengths: Any) -> None:
        """Append leaders."""
        used, needed = self.n_leaders, self.n_leaders + len(rows)
        if needed > len(self.norms):
            self.rows = np.resize(self.rows, 2 * needed)
            self.norms = np.resize(self.norms, 2 * needed)
            self.vectors = np.resize(self.vectors, (2 * needed, self.vectors.shape[1]))
        self.rows[used:needed], self.norms[used:needed], self.vectors[used:needed] = rows, lengths, vectors
        self.ids = pa.concat_arrays([self.ids, ids])
        self.n_leaders = needed


def _resolve(threshold: float, max_leaders: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decide rows of `ASSIGNED_SCHEMA` sorted by (cluster, order_key, row); yields `DECISION_SCHEMA`."""
    state = _Cluster()
    for given in batches:
        batch = given.cast(ASSIGNED_SCHEMA) if given.schema != ASSIGNED_SCHEMA else given
        clusters = batch.column("cluster").to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(clusters)) + 1).tolist(), len(clusters)]
        for start, stop in pairwise(bounds if len(clusters) else []):
            if clusters[start] == NO_VECTOR:
                yield _note(no_vector=stop - start)
                continue
            for low in range(start, stop, BLOCK):
                piece = batch.slice(low, min(BLOCK, stop - low))
                offsets, data = text_view(piece.column("vector"))
                vectors = data[offsets[0] : offsets[-1]].view(np.int16).reshape(piece.num_rows, -1)
                if clusters[start] != state.number:
                    state.begin(int(clusters[start]), vectors.shape[1])
                yield from _decide(threshold, max_leaders, state, piece, vectors)


def _decide(
    threshold: float, max_leaders: int, state: _Cluster, piece: pa.RecordBatch, whole_DJ: Any
) -> Iterator[pa.RecordBatch]:
    lengths, vectors = norms(whole_DJ), whole_DJ.astype(np.float32)
    n_leaders = state.n_leaders
    leader = np.full(len(vectors), -1, np.int64)
    for first in range(0, n_leaders, LEADER_BLOCK):
        last = min(first + LEADER_BLOCK, n_leaders)
        scores = vectors @ state.vectors[first:last].T
        nearest_leader(scores, lengths, state.norms[first:last], threshold, leader, first)
    mate = np.full(len(vectors), -1, np.int64)
    refused = new_leaders(vectors @ vectors.T, lengths, threshold, max_leaders - n_leaders, leader, mate)
    made = np.flatnonzero((leader < 0) & (mate < 0))[: max_leaders - n_leaders]
    rows, ids = piece.column("row").to_numpy(), piece.column("id")
    state.remember(rows[made], ids.take(pa.array(made)), vectors[made], lengths[made])
    number = np.zeros(len(vectors), np.int64)
    number[made] = n_leaders + np.arange(len(made))
    leader = np.where(mate >= 0, number[mate], leader)
    lost = np.flatnonzero(leader >= 0)
    kept = leader[lost]
    if len(lost):
        products = np.einsum("dj,dj->d", whole_DJ[lost].astype(np.float64), state.vectors[kept].astype(np.float64))
        zeros = pa.array(np.zeros(len(lost), np.int64))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(rows[lost]),
                state.ids.take(pa.array(kept)),
                pa.array(state.rows[kept]),
                pa.array([""] * len(lost), pa.string()),
                pa.array(products / (lengths[lost] * state.norms[kept])),
                zeros,
                zeros,
            ],
            schema=DECISION_SCHEMA,
        )
    if refused:
        yield _note(refused=refused)


def _note(refused: int = 0, no_vector: int = 0) -> pa.RecordBatch:
    counts = {"row": -1, "kept_row": -1, "kept_origin": "", "refused": refused, "no_vector": no_vector}
    return pa.RecordBatch.from_pylist([counts], DECISION_SCHEMA)
