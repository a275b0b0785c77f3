"""Connected components of any number of edges: DataFrame rounds, then one compiled union-find.

    edges -> contract per partition -> [large-star, small-star, contract per partition]* -> union-find -> labels

Each round is a shuffle sorted by node that a kernel reads as a stream: the first neighbour of a node is its
smallest, so no neighbourhood is ever held in memory, be it a star of 10^8. Contraction replaces the edges of a
partition by a spanning star forest (at most one edge a node) before they are written. Rounds end as soon as the
edges fit on the driver (`driver_edges`; 60 bytes an edge there), or when the edges are stars already. Every round
is a checkpoint with its counts: a killed run goes on at the last one.

Large-star/small-star: Kiveris et al. 2014, "Connected Components in MapReduce and Beyond"; O(log^2 n) rounds in
theory, a handful in practice. The label of a component is its smallest node, whatever the partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.stages.dedup import checkpoint
from gristmill.stages.dedup.checkpoint import Checkpoint
from gristmill.stages.errors import RunError
from gristmill.stages.kernels.unionfind import contract, star_step

EDGE_SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64())])
LABEL_SCHEMA = pa.schema([("row", pa.int64()), ("component", pa.int64())])
"""Every node that has an edge, ascending, with the smallest node of its component."""

DRIVER_EDGES = 20_000_000
CONTRACT_EDGES = 4_000_000
MAX_ROUNDS = 60
_NO_NODE = -(2**62) - 1


def connected_components(
    spark: Any, edges: Any, directory: str, driver_edges: int = DRIVER_EDGES
) -> tuple[Checkpoint, list[dict[str, int]]]:
    """Return ``(labels, rounds)`` for a DataFrame of edges ``(a long, b long)``.

    `labels` has `LABEL_SCHEMA` and ascends by row; `rounds` lists nodes and edges after each round. Checkpoints
    go to `directory`.

    Raises:
        RunError: a round lost or gained nodes, or the rounds do not converge.
    """
    current = checkpoint.save(edges.mapInArrow(_contract, "a long, b long"), directory, "edges-0", EDGE_SCHEMA)
    rounds = [{"edges": current.n_rows}]
    n_nodes = digest = -1
    while current.n_rows > driver_edges:
        if n_nodes < 0:
            n_nodes = _n_nodes(current.frame(spark))
            rounds[0]["nodes"] = n_nodes
        if len(rounds) > MAX_ROUNDS:
            raise RunError(f"connected components: {current.n_rows:,} edges left after {MAX_ROUNDS} rounds")
        frame = current.frame(spark)
        both = frame.selectExpr("a as u", "b as v").union(frame.selectExpr("b as u", "a as v"))
        large = _star(both, large=True)
        oriented = large.selectExpr("greatest(a, b) as u", "least(a, b) as v")
        small = _star(oriented, large=False).mapInArrow(_contract, "a long, b long")
        current = checkpoint.save(small, directory, f"edges-{len(rounds)}", EDGE_SCHEMA)
        found = _n_nodes(current.frame(spark))
        if found != n_nodes:
            raise RunError(f"connected components: round {len(rounds)} has {found:,} nodes, the first had {n_nodes:,}")
        rounds.append({"edges": current.n_rows, "nodes": found})
        previous, digest = digest, _digest(current.frame(spark))
        if digest == previous:
            return _labels_of_stars(spark, current, directory), rounds
    done = checkpoint.find(directory, "labels", LABEL_SCHEMA)
    if done is None:
        table = current.table()
        node, root = contract(table.column("a").to_numpy(), table.column("b").to_numpy())
        row = np.concatenate([node, np.unique(root)])
        order = np.argsort(row)
        component = np.concatenate([root, np.unique(root)])
        labels = pa.table([row[order], component[order]], schema=LABEL_SCHEMA)
        done = checkpoint.save_table(labels, directory, "labels")
    return done, rounds


def _star(edges: Any, large: bool) -> Any:
    """Shuffle edges (u, v) by u and apply one star operation."""
    ordered = edges.repartition("u").sortWithinPartitions("u", "v")
    return ordered.mapInArrow(partial(_star_stream, large), "a long, b long")


def _star_stream(large: bool, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    state_2 = np.array([_NO_NODE, _NO_NODE], np.int64)
    for batch in batches:
        u_E = batch.column(0).to_numpy(zero_copy_only=False)
        v_E = batch.column(1).to_numpy(zero_copy_only=False)
        a_E = np.empty(2 * len(u_E), np.int64)
        b_E = np.empty(2 * len(u_E), np.int64)
        n = star_step(u_E, v_E, large, state_2, a_E, b_E)
        yield pa.RecordBatch.from_arrays([pa.array(a_E[:n]), pa.array(b_E[:n])], schema=EDGE_SCHEMA)


def _contract(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replace a partition's edges by a star forest, holding at most `CONTRACT_EDGES` edges at a time."""
    a: list[Any] = []
    b: list[Any] = []
    held = 0
    for batch in batches:
        a.append(batch.column(0).to_numpy(zero_copy_only=False))
        b.append(batch.column(1).to_numpy(zero_copy_only=False))
        held += batch.num_rows
        if held >= CONTRACT_EDGES:
            node, root = contract(np.concatenate(a), np.concatenate(b))
            a, b, held = [node], [root], len(node)
            if held > CONTRACT_EDGES // 2:
                yield pa.RecordBatch.from_arrays([pa.array(node), pa.array(root)], schema=EDGE_SCHEMA)
                a, b, held = [], [], 0
    if held:
        node, root = contract(np.concatenate(a), np.concatenate(b))
        yield pa.RecordBatch.from_arrays([pa.array(node), pa.array(root)], schema=EDGE_SCHEMA)


def _n_nodes(frame: Any) -> int:
    return int(frame.selectExpr("explode(array(a, b)) as node").distinct().count())


def _digest(frame: Any) -> int:
    """Return an order-free digest of a set of edges."""
    row = frame.distinct().selectExpr("sum(cast(xxhash64(a, b) as decimal(38, 0))) as digest").first()
    return int(row["digest"] or 0)


def _labels_of_stars(spark: Any, edges: Checkpoint, directory: str) -> Checkpoint:
    frame = edges.frame(spark)
    labels = (
        frame.selectExpr("a as row", "b as component")
        .union(frame.selectExpr("b as row", "b as component"))
        .distinct()
        .repartitionByRange("row")
        .sortWithinPartitions("row")
    )
    return checkpoint.save(labels, directory, "labels", LABEL_SCHEMA)
