"""Connected components of any number of edges: DataFrame rounds, then one compiled union-find.

    edges -> contract -> strip leaves -> core small? -> union-find on the driver -> labels of the core
                 ^                          | no                                          |
                 +--- large-star, small-star of the core                 leaves take the label of their neighbour

A leaf has one neighbour, a smaller node. Contraction replaces the edges of a partition by a spanning star forest, so
what is a star already (a hot bucket, a hub, a small cluster) is all leaves and is set aside at once; only the core,
what hangs together across partitions, goes into another round, and the driver finishes it as soon as it fits
(`driver_edges`; 60 bytes an edge there). Each shuffle is sorted by node and read by a kernel as a stream: no
neighbourhood is ever held in memory, be it a star of 10^8. Every round is a checkpoint with asserted counts: a killed
run goes on at the last one.

Large-star/small-star: Kiveris et al. 2014, "Connected Components in MapReduce and Beyond"; O(log^2 n) rounds in
theory. The label of a component is its smallest node, whatever the partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages.dedup import checkpoint
from gristmill.stages.dedup.checkpoint import Checkpoint
from gristmill.stages.errors import RunError
from gristmill.stages.kernels.unionfind import bucket_stars, contract, star_step, strip_leaves

EDGE_SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64())])
STRIPPED_SCHEMA = EDGE_SCHEMA.append(pa.field("kind", pa.int8()))
"""`CORE` edges a > b; `LEAF` a with its only neighbour b; `COUNT` lines: a nodes were seen."""
LABEL_SCHEMA = pa.schema([("row", pa.int64()), ("component", pa.int64())])
"""Every node that has an edge, ascending, with the smallest node of its component."""
CORE, LEAF, COUNT = 0, 1, 2

DRIVER_EDGES = 20_000_000
CONTRACT_EDGES = 4_000_000
MAX_ROUNDS = 60
_NO_NODE = -(2**62) - 1
_EDGE = "a long, b long"
Stream = Iterator[pa.RecordBatch]


def connected_components(
    spark: Any, edges: Any, directory: str, driver_edges: int = DRIVER_EDGES
) -> tuple[Checkpoint, list[dict[str, int]]]:
    """Return ``(labels, rounds)`` for a DataFrame of edges ``(a long, b long)``.

    `labels` has `LABEL_SCHEMA` and ascends by row; `rounds` lists, from the first on, the nodes and edges there are
    and the edges of the core. Checkpoints go to `directory`.

    Raises:
        RunError: a round lost or gained nodes, or the rounds do not converge.
    """
    rounds: list[dict[str, int]] = []
    levels: list[Checkpoint] = []
    current = checkpoint.save(edges, directory, "edges-0", EDGE_SCHEMA, _contract)
    before = -1
    while True:
        number = len(rounds)
        if number > MAX_ROUNDS:
            raise RunError(f"connected components: {rounds[-1]['core_edges']:,} edges left after {MAX_ROUNDS} rounds")
        pairs = current.frame(spark, _both_ways, EDGE_SCHEMA)
        ordered = pairs.repartition("a").sortWithinPartitions("a")
        stripped = checkpoint.save(ordered, directory, f"stripped-{number}", STRIPPED_SCHEMA, _strip)
        counts = _counts(stripped, spark)
        if before not in (-1, counts["nodes"]):
            raise RunError(f"connected components: round {number} has {counts['nodes']:,} nodes, expected {before:,}")
        rounds.append({"edges": current.n_rows, **counts})
        levels.append(stripped)
        if counts["core_edges"] <= driver_edges:
            break
        core = stripped.frame(spark, partial(_only, CORE), EDGE_SCHEMA)
        before = int(core.selectExpr("explode(array(a, b)) as node").distinct().count())
        pairs = stripped.frame(spark, _core_both_ways, EDGE_SCHEMA)
        large = _by_node(pairs).mapInArrow(partial(_star_stream, True), _EDGE)
        small = partial(_small_and_contract, partial(_star_stream, False))
        current = checkpoint.save(_by_node(large), directory, f"edges-{number + 1}", EDGE_SCHEMA, small)
    labels = _labels_of_core(levels[-1], directory, f"labels-{len(levels)}")
    for number in reversed(range(len(levels))):
        labels = _labels_with_leaves(spark, levels[number], labels, directory, number)
        if labels.n_rows != rounds[number]["nodes"]:
            found, wanted = f"{labels.n_rows:,}", f"{rounds[number]['nodes']:,}"
            raise RunError(f"connected components: {found} labels for {wanted} nodes of round {number}")
    return labels, rounds


def stars_of_buckets(buckets: Any) -> Any:
    """Return edges (a, b) from rows (row long, band short, key long): the rows of each bucket, joined."""
    ordered = buckets.repartition("band", "key").sortWithinPartitions("key")
    return ordered.mapInArrow(_bucket_stream, _EDGE)


def _by_node(edges: Any) -> Any:
    return edges.repartition("a").sortWithinPartitions("a", "b")


def _counts(stripped: Checkpoint, spark: Any) -> dict[str, int]:
    total = stripped.frame(spark, _tally, EDGE_SCHEMA).agg({"a": "sum", "b": "sum"}).first()
    return {"nodes": int(total["sum(a)"] or 0), "core_edges": int(total["sum(b)"] or 0)}


def _labels_of_core(stripped: Checkpoint, directory: str, name: str) -> Checkpoint:
    done = checkpoint.find(directory, name, LABEL_SCHEMA)
    if done is not None:
        return done
    table = stripped.table(keep=lambda piece: piece.filter(pc.equal(piece.column("kind"), CORE)))
    node, root = contract(table.column("a").to_numpy(), table.column("b").to_numpy())
    roots = np.unique(root)
    row, component = np.concatenate([node, roots]), np.concatenate([root, roots])
    order = np.argsort(row)
    return checkpoint.save_table(pa.table([row[order], component[order]], schema=LABEL_SCHEMA), directory, name)


def _labels_with_leaves(spark: Any, stripped: Checkpoint, core: Checkpoint, directory: str, number: int) -> Checkpoint:
    """Return labels of all nodes of a round: those of its core, the leaves', and those of leaves' neighbours."""
    leaves = stripped.frame(spark, partial(_only, LEAF), EDGE_SCHEMA)
    if core.n_rows:
        known = core.frame(spark)
        leaves = leaves.join(known, leaves["b"] == known["row"], "left")
        leaves = leaves.selectExpr("a", "b", "row is null as alone", "coalesce(component, b) as component")
    else:
        leaves = leaves.selectExpr("a", "b", "true as alone", "b as component")
    labels = leaves.selectExpr("a as row", "component").union(
        leaves.where("alone").selectExpr("b as row", "component").distinct()
    )
    if core.n_rows:
        labels = labels.union(core.frame(spark))
    ordered = labels.repartitionByRange("row").sortWithinPartitions("row")
    return checkpoint.save(ordered, directory, "labels" if number == 0 else f"labels-{number}", LABEL_SCHEMA)


def _edges(a: Any, b: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(a, pa.int64()), pa.array(b, pa.int64())], schema=EDGE_SCHEMA)


def _column(batch: pa.RecordBatch, number: int) -> Any:
    return batch.column(number).to_numpy(zero_copy_only=False)


def _both_ways(batches: Stream) -> Stream:
    for batch in batches:
        a, b = _column(batch, 0), _column(batch, 1)
        yield _edges(np.concatenate([a, b]), np.concatenate([b, a]))


def _only(kind: int, batches: Stream) -> Stream:
    for batch in batches:
        at = np.flatnonzero(_column(batch, 2) == kind)
        yield _edges(_column(batch, 0)[at], _column(batch, 1)[at])


def _tally(batches: Stream) -> Stream:
    """Yield one line: the nodes seen and the edges of the core."""
    nodes = core = 0
    for batch in batches:
        kind = _column(batch, 2)
        nodes += int(_column(batch, 0)[kind == COUNT].sum())
        core += int((kind == CORE).sum())
    yield _edges([nodes], [core])


def _core_both_ways(batches: Stream) -> Stream:
    return _both_ways(_only(CORE, batches))


def _star_stream(large: bool, batches: Stream) -> Stream:
    """Apply one star operation to edges (u, v) sorted by both; of large-star the greater end comes first."""
    state_2 = np.array([_NO_NODE, _NO_NODE], np.int64)
    for batch in batches:
        u_E, v_E = _column(batch, 0), _column(batch, 1)
        a_E, b_E = np.empty(2 * len(u_E), np.int64), np.empty(2 * len(u_E), np.int64)
        n = star_step(u_E, v_E, large, state_2, a_E, b_E)
        yield _edges(np.maximum(a_E[:n], b_E[:n]), np.minimum(a_E[:n], b_E[:n]))


def _small_and_contract(small: Callable[[Stream], Stream], batches: Stream) -> Stream:
    return _contract(small(batches))


def _bucket_stream(batches: Stream) -> Stream:
    least_N, seen_N = np.zeros(256, np.int64), np.zeros(256, np.bool_)
    state_1 = np.zeros(1, np.int64)
    for batch in batches:
        row_R, band_R, key_R = (_column(batch, number) for number in range(3))
        a_R, b_R = np.empty(len(row_R), np.int64), np.empty(len(row_R), np.int64)
        n = bucket_stars(row_R, band_R, key_R, state_1, least_N, seen_N, a_R, b_R)
        yield _edges(a_R[:n], b_R[:n])


def _strip(batches: Stream) -> Stream:
    """Yield `STRIPPED_SCHEMA` rows of edges (u, v), both ways, sorted by u."""
    state_3 = np.array([_NO_NODE, 0, 1], np.int64)
    n_nodes = 0
    for batch in batches:
        u_E, v_E = _column(batch, 0), _column(batch, 1)
        a_E, b_E = np.empty(len(u_E) + 1, np.int64), np.empty(len(u_E) + 1, np.int64)
        kind_E = np.empty(len(u_E) + 1, np.int8)
        n, found = strip_leaves(u_E, v_E, state_3, a_E, b_E, kind_E)
        n_nodes += found
        yield pa.RecordBatch.from_arrays([pa.array(x[:n]) for x in (a_E, b_E, kind_E)], schema=STRIPPED_SCHEMA)
    last = [(int(state_3[0]), int(state_3[1]), LEAF)] if not state_3[2] and state_3[1] < state_3[0] else []
    rows = [*last, (n_nodes, 0, COUNT)] if n_nodes else []
    columns = [[row[i] for row in rows] for i in range(3)]
    yield pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, STRIPPED_SCHEMA, strict=True)], schema=STRIPPED_SCHEMA
    )


def _contract(batches: Stream) -> Stream:
    """Replace a partition's edges by a star forest, holding at most `CONTRACT_EDGES` edges at a time."""
    a: list[Any] = []
    b: list[Any] = []
    held = 0
    for batch in batches:
        a.append(_column(batch, 0))
        b.append(_column(batch, 1))
        held += batch.num_rows
        if held >= CONTRACT_EDGES:
            node, root = contract(np.concatenate(a), np.concatenate(b))
            a, b, held = [node], [root], len(node)
            if held > CONTRACT_EDGES // 2:
                yield _edges(node, root)
                a, b, held = [], [], 0
    if held:
        yield _edges(*contract(np.concatenate(a), np.concatenate(b)))
