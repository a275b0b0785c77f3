"""Attention cost in balance: steps and ranks alike, rows and tokens as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.packing import ArgumentError, Loader, StateError, TokenSpec, open_shards, write_shards
from gristmill.packing.balance import attention, by_cost, deal, imbalance, row_costs
from gristmill.packing.fit import make_pack_plan
from gristmill.packing.permutation import StrataShuffle
from gristmill.packing.report import describe_plan, plan_text

SPEC = TokenSpec(1000, 0, "t")
S = 64


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    sizes = np.concatenate([rng.integers(1, 12, 2500), rng.integers(30, 64, 300), np.full(80, 64)])
    documents = [rng.integers(1, 1000, int(n)) for n in rng.permutation(sizes)]
    return write_shards(tmp_path_factory.mktemp("p"), documents, SPEC, ids=[f"d{i}" for i in range(len(documents))])


def loaders(root: Path, world: int = 1, **options: Any) -> list[Loader]:
    given = {"sequence_length": S, "pack": "best_fit", "global_batch_size": 16, "prefetch": 0, **options}
    return [Loader(root, rank=r, world_size=world, **given) for r in range(world)]


def cost(batch: dict[str, Any]) -> int:
    """Sum of squares of the documents' lengths, padding left out, from what was delivered."""
    bounds = batch["cu_seqlens"]
    real = np.add.reduceat((batch["labels"].ravel() != -100).astype(int), bounds[:-1])
    return int((real.astype(np.int64) ** 2).sum())


def costs(root: Path, world: int, n_steps: int, **options: Any) -> np.ndarray:
    ranks = loaders(root, world, **options)
    return np.array([[cost(next(rank)) for rank in ranks] for _ in range(n_steps)])


def test_steps_and_ranks_cost_the_same_where_they_are_balanced(root: Path) -> None:
    plain, even = costs(root, 4, 20), costs(root, 4, 20, balance=True)

    def unevenness(found: np.ndarray) -> tuple[float, float]:
        steps = found.sum(axis=1)
        return steps.std() / steps.mean(), float((found.max(axis=1) / found.mean(axis=1) - 1).mean())

    assert unevenness(even)[0] < 0.25 * unevenness(plain)[0]
    assert unevenness(even)[1] < 0.25 * unevenness(plain)[1]
    assert unevenness(even)[1] < 0.1
    facts = describe_plan(loaders(root, 4, balance=True)[0])
    bare = describe_plan(loaders(root, 4)[0])
    assert facts["attention"]["ranks"] < 0.25 * bare["attention"]["ranks"]
    assert facts["sources"][0]["fill"] == bare["sources"][0]["fill"]
    assert "attention (sum of length squared): steps deviate by" in plan_text(facts)


def test_a_plan_sorted_by_cost_has_the_same_rows(root: Path) -> None:
    plan = make_pack_plan(open_shards(root), S, "best_fit")
    made = by_cost(plan)
    found = row_costs(made)
    assert (np.diff(found) <= 0).all()
    assert sorted(found.tolist()) == sorted(row_costs(plan).tolist())
    assert made.statistics == plan.statistics

    def rows(p: Any) -> set[bytes]:
        bounds = zip(p.row_starts[:-1], p.row_starts[1:], strict=True)
        return {p.first_P[a:b].tobytes() + p.n_P[a:b].tobytes() for a, b in bounds}

    assert rows(made) == rows(plan)
    summary = attention(plan)
    assert summary == attention(made)
    assert summary.largest == S * S == found[0]
    assert summary.mean == pytest.approx(found.mean())


def test_any_number_of_ranks_has_the_same_steps_and_every_row_comes_once(root: Path) -> None:
    def steps(world: int, **options: Any) -> list[list[int]]:
        ranks = loaders(root, world, balance=True, **options)
        return [sorted(int(t) for batch in batches for t in batch["samples"]) for batches in zip(*ranks, strict=True)]

    reference = steps(1)
    for world in (2, 3, 8):
        assert steps(world) == reference
    assert steps(2, prefetch=3, threads=2) == reference
    assert sorted(t for step in reference for t in step if t >= 0) == list(range(loaders(root)[0].n_rows or 0))


def test_a_balanced_run_resumes_exactly_at_another_size(root: Path) -> None:
    (one,) = loaders(root, balance=True)
    seen = [t for _ in range(5) for t in next(one)["samples"].tolist()]
    state = json.loads(json.dumps(one.state_dict()))
    ranks = loaders(root, 3, balance=True, global_batch_size=10)
    for rank in ranks:
        rank.load_state_dict(state)
        for batch in rank:
            seen += [t for t in batch["samples"].tolist() if t >= 0]
    assert sorted(seen) == list(range(one.n_rows or 0))


def test_where_and_when_know_who_got_a_row(root: Path) -> None:
    ranks = loaders(root, 3, balance=True)
    shown: dict[str, set[tuple[int, int]]] = {}
    for step in range(6):
        samples = np.concatenate([next(rank)["samples"] for rank in ranks])
        for slot, sample in enumerate(samples.tolist()):
            trace = ranks[0].where(step, slot)
            assert trace.sample == sample
            for piece in trace.pieces:
                shown.setdefault(piece.document.document_id, set()).add((step, slot))
    for name in list(shown)[:40]:
        assert {(s.step, s.slot) for s in ranks[2].when(name, 0, 6 * 16)} == shown[name]


def test_balance_needs_a_packing_plan(root: Path) -> None:
    with pytest.raises(ArgumentError, match="nothing to balance"):
        loaders(root, balance=True, pack="concat")


def test_a_state_of_another_packing_is_refused_by_its_name(root: Path) -> None:
    (even,) = loaders(root, balance=True, shuffle="none")
    (plain,) = loaders(root, shuffle="none")
    with pytest.raises(StateError, match="how source 'all' is packed differs; expected .'best_fit.balanced'"):
        plain.load_state_dict(even.state_dict())


def test_a_balanced_plan_is_cached_under_a_name_of_its_own(root: Path, tmp_path: Path) -> None:
    for balance in (True, False, True):
        loaders(root, balance=balance, plan_cache=tmp_path)
    assert sorted(p.name.split("-")[0] for p in tmp_path.iterdir()) == ["best_fit", "best_fit+balanced"]
    fresh, read = loaders(root, balance=True)[0], loaders(root, balance=True, plan_cache=tmp_path)[0]
    assert fresh.plan.hash == read.plan.hash


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 900), st.integers(1, 130), st.integers(0, 5))
def test_strata_shuffles_are_bijections_that_draw_from_every_range_in_turn(n: int, strata: int, seed: int) -> None:
    shuffle = StrataShuffle(n, strata, seed, "s", 0)
    places = shuffle(np.arange(n))
    assert np.sort(places).tolist() == list(range(n))
    assert shuffle.inverse(places).tolist() == list(range(n))
    k = shuffle._k
    assert k & (k - 1) == 0
    assert k <= min(n, strata) < 2 * k
    ranges = np.searchsorted(np.arange(k + 1) * n // k, places, side="right") - 1
    for width in (2**q for q in range(k.bit_length())):
        for at in range(0, n // k * k, width):
            assert np.sort(ranges[at : at + width] // (k // width)).tolist() == list(range(width))


def test_the_next_epoch_of_strata_is_another_order() -> None:
    one, two = (StrataShuffle(640, 64, 1, "s", epoch)(np.arange(640)) for epoch in (0, 1))
    assert (one != two).mean() > 0.9
    assert len({tuple(window // 10) for window in one.reshape(10, 64)}) == 10


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 6), st.integers(0, 9))
def test_dealing_gives_every_row_to_one_slot_and_never_worsens_a_step_by_more_than_a_row(
    ranks: int, each: int, more: int, seed: int
) -> None:
    g = ranks * each + min(more, ranks - 1)
    bounds = np.arange(ranks + 1) * g // ranks
    found = np.random.default_rng(seed).integers(0, 100, (4, g))
    chosen = deal(found, bounds)
    assert (np.sort(chosen, axis=1) == np.arange(g)).all()
    dealt = np.take_along_axis(found, chosen, axis=1)
    loads = np.add.reduceat(dealt, bounds[:-1], axis=1)
    if g % ranks == 0:
        assert (loads.max(axis=1) - loads.min(axis=1) <= found.max(axis=1)).all()
    assert imbalance(np.full((3, g), 5), np.arange(ranks + 1) * g // ranks)[0] == 0.0
