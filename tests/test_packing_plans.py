"""Packing plans: documents whole, rows full, each target once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.packing import ArgumentError, Loader, ShardCorruptError, ShardFormatError, TokenSpec, write_shards
from gristmill.packing.fit import PackPlan, PlannedLayout, best_fit, cut_long, make_pack_plan
from gristmill.packing.reader import open_shards

SPEC = TokenSpec(1000, 0, "t")


def one_by_one(targets: list[int], s: int) -> list[int]:
    """Best-fit decreasing as in a textbook: positions used in each row, sorted."""
    pieces = sorted((n for t in targets for n in [s] * (t // s) + [t % s] if n), reverse=True)
    room: list[int] = []
    for n in pieces:
        fitting = [i for i, r in enumerate(room) if r >= n]
        if not fitting:
            room.append(s)
            fitting = [len(room) - 1]
        room[min(fitting, key=lambda i: room[i])] -= n
    return sorted(s - r for r in room)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=50), st.integers(2, 40))
def test_best_fit_equals_the_one_by_one_algorithm(targets: list[int], s: int) -> None:
    first, n, row = best_fit(np.cumsum([0, *targets[:-1]]), np.array(targets), s)
    used = np.bincount(row, weights=n).astype(int)
    assert sorted(used.tolist()) == one_by_one(targets, s)
    assert len(first) == sum(-(-t // s) for t in targets)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(1, 40))
def test_only_documents_longer_than_a_row_are_cut(targets: list[int], s: int) -> None:
    begins = np.cumsum([0, *targets[:-1]]) * 2
    first, n = cut_long(begins, np.array(targets), s)
    covered = [list(range(b, b + t)) for b, t in zip(begins, targets, strict=True)]
    pieces = [list(range(a, a + k)) for a, k in zip(first, n, strict=True)]
    assert sorted(x for p in pieces for x in p) == [x for c in covered for x in c]
    assert len(pieces) == sum(max(1, -(-t // s)) for t in targets)
    assert max(map(len, pieces)) <= s


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    documents = [rng.integers(1, 1000, int(n)) for n in rng.integers(0, 90, 150)]
    names = [f"doc-{i}" for i in range(len(documents))]
    return write_shards(tmp_path_factory.mktemp("p"), documents, SPEC, ids=names, documents_per_shard=40)


@pytest.mark.parametrize("pack", ["best_fit", "document"])
@pytest.mark.parametrize("s", [16, 64])
def test_rows_hold_documents_and_every_target_once(root: Path, pack: str, s: int) -> None:
    shards = open_shards(root)
    loader = Loader(root, sequence_length=s, batch_size=5, pack=pack, loss_mask=True)
    plan = loader.plan.sources[0].layout.plan  # type: ignore[attr-defined]
    stream = shards.tokens(0, shards.n_tokens)
    bounds = {shards.document_tokens(i) for i in range(shards.n_documents)}
    seen = np.zeros(len(stream), int)
    for batch in loader:
        cu = batch["cu_seqlens"]
        for row, t in enumerate(batch["samples"]):
            if t < 0:
                continue
            trace = loader.where(int(t) // 5, int(t) % 5)
            assert trace.sample == t
            at = 0
            for piece in trace.pieces:
                number = shards.find(piece.document.document_id)[0]
                begin = shards.document_tokens(number)[0] + piece.document_token
                n = piece.n_positions
                assert piece.start == at
                assert (batch["input_ids"][row, at : at + n] == stream[begin : begin + n]).all()
                assert (batch["labels"][row, at : at + n] == stream[begin + 1 : begin + n + 1]).all()
                assert (batch["position_ids"][row, at : at + n] == np.arange(n)).all()
                assert row * s + at in cu
                seen[begin + 1 : begin + n + 1] += 1
                at += n
            assert (batch["labels"][row, at:] == -100).all()
            assert batch["loss_mask"][row].sum() == at
    first_tokens = [a for a, b in bounds if b > a]
    assert (np.delete(seen, first_tokens) == 1).all()
    assert (seen[first_tokens] == 0).all()
    counts = plan.statistics
    assert counts.n_targets == seen.sum()
    assert counts.n_rows == loader.n_rows
    assert counts.n_documents == 150


def test_a_plan_is_kept_and_bound_to_its_shards(root: Path, tmp_path: Path) -> None:
    plan = make_pack_plan(open_shards(root), 64, "best_fit")
    plan.save(tmp_path / "x.plan")
    again = PackPlan.load(tmp_path / "x.plan")
    assert again.digest == plan.digest
    assert again.statistics == plan.statistics
    with pytest.raises(ShardFormatError, match="make the plan again"):
        PlannedLayout(open_shards(root), again, 32)
    raw = bytearray((tmp_path / "x.plan").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "x.plan").write_bytes(raw)
    with pytest.raises(ShardCorruptError, match="checksum of section"):
        PackPlan.load(tmp_path / "x.plan")


def test_a_cached_plan_gives_the_same_batches(root: Path, tmp_path: Path) -> None:
    options = {"sequence_length": 64, "batch_size": 3, "pack": "best_fit", "prefetch": 0}
    fresh = Loader(root, **options)  # type: ignore[arg-type]
    made = Loader(root, plan_cache=tmp_path, **options)  # type: ignore[arg-type]
    read = Loader(root, plan_cache=tmp_path, **options)  # type: ignore[arg-type]
    assert len(list(tmp_path.iterdir())) == 1
    assert fresh.plan.hash == made.plan.hash == read.plan.hash
    for a, b, c in zip(fresh, made, read, strict=True):
        assert (a["input_ids"] == b["input_ids"]).all()
        assert (a["input_ids"] == c["input_ids"]).all()


def test_padding_is_small_on_lengths_like_those_of_web_text() -> None:
    targets = np.maximum(np.random.default_rng(0).lognormal(6.2, 1.2, 50_000).astype(np.int64), 1)
    _, _, row = best_fit(np.cumsum(targets), targets, 4096)
    assert 1 - targets.sum() / ((row.max() + 1) * 4096) < 0.005


def test_a_source_without_targets_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, [[], []], SPEC)
    with pytest.raises(ArgumentError, match="no document has two tokens"):
        Loader(tmp_path, sequence_length=8, batch_size=1, pack="best_fit")
