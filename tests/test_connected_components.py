"""Connected components by rounds against union-find; leaves, checkpoints, interruptions."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.stages import connected_components as cc
from gristmill.stages.dedup import checkpoint
from gristmill.stages.errors import RunError
from gristmill.stages.kernels.unionfind import bucket_stars, contract, strip_leaves


def graph(seed):
    """Chains, stars, a clique, pairs and repeated edges, with scrambled node numbers, some of them negative."""
    rng = random.Random(seed)
    names = rng.sample(range(-(2**40), 2**40), 2000)
    edges = [(i, i + 1) for i in range(60)]
    edges += [(400, 401 + i) for i in range(200)] + [(600 + i, 700) for i in range(100)]
    edges += [(800 + i, 800 + j) for i in range(9) for j in range(i)]
    edges += [(900 + 2 * i, 901 + 2 * i) for i in range(100)] + [(950 + 30, 400)]
    edges += edges[::7]
    rng.shuffle(edges)
    return [(names[a], names[b]) if rng.random() < 0.5 else (names[b], names[a]) for a, b in edges]


def expected(edges):
    a, b = np.array(edges, np.int64).reshape(-1, 2).T
    node, root = contract(a, b)
    return sorted([*zip(node.tolist(), root.tolist(), strict=True), *((r, r) for r in np.unique(root).tolist())])


def frame(spark, edges, n_partitions=3):
    return spark.createDataFrame(edges, "a long, b long").repartition(n_partitions)


def labels_of(result):
    table = result.table()
    rows = table.column("row").to_pylist()
    assert rows == sorted(rows), "labels ascend across files"
    return list(zip(rows, table.column("component").to_pylist(), strict=True))


@pytest.mark.parametrize("driver_edges", [pytest.param(0, marks=pytest.mark.slow), 20, 10**6])
def test_labels_are_the_smallest_nodes_however_many_rounds_it_takes(scattered, tmp_path, driver_edges):
    edges = graph(driver_edges)
    result, rounds = cc.connected_components(scattered, frame(scattered, edges), str(tmp_path), driver_edges)
    assert labels_of(result) == expected(edges)
    assert (len(rounds) > 1) == (driver_edges < 100)
    core = [r["core_edges"] for r in rounds]
    assert core[-1] <= driver_edges and core == sorted(core, reverse=True)
    assert rounds[0]["nodes"] == len(expected(edges))


def test_stars_are_set_aside_at_once(scattered, tmp_path):
    edges = [(0, i) for i in range(1, 3000)] + [(10_000 + 2 * i, 10_001 + 2 * i) for i in range(500)]
    result, rounds = cc.connected_components(scattered, frame(scattered, edges), str(tmp_path), 0)
    assert labels_of(result) == expected(edges)
    assert rounds == [{"edges": 3499, "nodes": 4000, "core_edges": 0}]


def test_no_edges_make_no_labels(spark, tmp_path):
    result, rounds = cc.connected_components(spark, frame(spark, []), str(tmp_path))
    assert result.n_rows == 0 and rounds == [{"edges": 0, "nodes": 0, "core_edges": 0}]


@pytest.mark.slow
def test_interrupted_after_every_single_commit_resumes_with_the_same_labels(scattered, tmp_path, monkeypatch):
    edges = graph(5)
    real, finished = checkpoint.commit, []

    def commit_then_die(directory, name, pieces, schema):
        real(directory, name, pieces, schema)
        finished.append(name)
        raise KeyboardInterrupt(name)

    monkeypatch.setattr(checkpoint, "commit", commit_then_die)
    while True:
        try:
            result, rounds = cc.connected_components(scattered, frame(scattered, edges), str(tmp_path), 40)
            break
        except KeyboardInterrupt:
            assert len(finished) < 60
    assert labels_of(result) == expected(edges)
    last = len(rounds) - 1
    assert last > 0
    assert finished == [
        *(f"{kind}-{i}" for i in range(last + 1) for kind in ("edges", "stripped")),
        *(f"labels-{i}" for i in range(last + 1, 0, -1)),
        "labels",
    ]


def test_lost_nodes_stop_the_run(scattered, tmp_path, monkeypatch):
    def forgets(large, batches):  # a function of its own: Spark's workers do not know this module
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)

    monkeypatch.setattr(cc, "_star_stream", forgets)
    with pytest.raises(RunError, match="round 1 has .* nodes, expected"):
        cc.connected_components(scattered, frame(scattered, graph(1)), str(tmp_path), 0)


def test_chunked_contraction_keeps_components(monkeypatch):
    monkeypatch.setattr(cc, "CONTRACT_EDGES", 8)
    edges = graph(3)
    batches = [cc._edges(*np.array(edges[i : i + 5]).T) for i in range(0, len(edges), 5)]
    out = [pair for batch in cc._contract(iter(batches)) for pair in zip(*batch.to_pydict().values(), strict=True)]
    assert expected(out) == expected(edges) and len(out) < len(edges)


EDGES = st.lists(st.tuples(st.integers(-3, 9), st.integers(-3, 9)).filter(lambda e: e[0] != e[1]), max_size=25)


@settings(deadline=None, max_examples=100)
@given(EDGES, st.integers(1, 7))
def test_stripped_leaves_have_one_smaller_neighbour(edges, n_rows):
    pairs = sorted({*edges, *((b, a) for a, b in edges)}, key=lambda e: e[0])
    neighbours = {}
    for a, b in pairs:
        neighbours.setdefault(a, set()).add(b)
    leaves = {(u, v) for u, vs in neighbours.items() for v in vs if len(vs) == 1 and v < u}
    core = {(u, v) for u, vs in neighbours.items() for v in vs if v < u} - leaves
    arrays = np.array(pairs, np.int64).reshape(-1, 2)
    batches = [cc._edges(*arrays[i : i + n_rows].T) for i in range(0, len(arrays), n_rows)]
    rows = [row for batch in cc._strip(iter(batches)) for row in batch.to_pylist()]
    got = {kind: {(r["a"], r["b"]) for r in rows if r["kind"] == kind} for kind in (cc.CORE, cc.LEAF)}
    assert got == {cc.CORE: core, cc.LEAF: leaves}
    assert sum(r["a"] for r in rows if r["kind"] == cc.COUNT) == len(neighbours)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2), st.integers(-1, 1)), max_size=30), st.integers(1, 7))
def test_buckets_are_joined_by_band_and_key_also_where_keys_of_bands_are_equal(rows, n_rows):
    ordered = sorted(rows, key=lambda r: r[2])
    schema = pa.schema([("row", pa.int64()), ("band", pa.int16()), ("key", pa.int64())])
    table = pa.table([[r[i] for r in ordered] for i in range(3)], schema=schema)
    batches = table.to_batches(max_chunksize=n_rows)
    got = [tuple(e.values()) for b in cc._bucket_stream(iter(batches)) for e in b.to_pylist()]
    wanted = []
    for bucket in {(band, key) for _, band, key in rows}:
        members = sorted({r[0] for r in rows if r[1:] == bucket})
        wanted += [(other, members[0]) for other in members[1:]]
    assert all(a > b for a, b in got)
    assert expected(got) == expected(wanted)


def test_kernels_take_plain_arrays():
    a, b, kind = np.empty(4, np.int64), np.empty(4, np.int64), np.empty(4, np.int8)
    state = np.array([-(2**62) - 1, 0, 1])
    assert strip_leaves(np.array([1, 2, 2]), np.array([2, 1, 1]), state, a, b, kind) == (0, 2)
    assert state.tolist() == [2, 1, 0], "the last node is left in the state"
    zero = np.zeros(256, np.int64), np.zeros(256, np.bool_)
    rows, bands, keys = np.array([5, 3, 4]), np.array([0, 0, 0], np.int16), np.array([7, 7, 7])
    assert bucket_stars(rows, bands, keys, np.zeros(1, np.int64), *zero, a, b) == 2
    assert list(zip(a[:2].tolist(), b[:2].tolist(), strict=True)) == [(5, 3), (4, 3)]
