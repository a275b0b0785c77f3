"""The order of a run: permutations, mixtures, segments, skips."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.packing import ArgumentError
from gristmill.packing.mixture import period, quantise
from gristmill.packing.order import Order, Shuffle, Skips
from gristmill.packing.permutation import BlockShuffle, Permutation, StrataShuffle

SIZES = [*range(1, 80), *range(80, 5001, 7), *(2**k + d for k in range(6, 17) for d in (-1, 0, 1))]
GOLDEN_10 = [1, 3, 4, 5, 7, 2, 6, 0, 9, 8]
GOLDEN_BIG = [9638843879, 540608012205, 604632534884]
GOLDEN_BLOCKS = [1, 0, 2, 5, 3, 4, 9, 12, 14, 13, 11, 10, 8, 7, 17, 16, 15, 6, 19, 18]
GOLDEN_STRATA = [19, 2, 14, 9, 15, 1, 10, 5, 11, 4, 16, 7, 12, 0, 17, 6, 3, 8, 13, 18]
GOLDEN_BIG_STRATA = [131544217313, 899426634443, 599805868434]


def is_bijection(f: object, n: int) -> bool:
    places = f(np.arange(n))  # type: ignore[operator]
    inverse = f.inverse(places)  # type: ignore[attr-defined]
    return bool((np.sort(places) == np.arange(n)).all() and (inverse == np.arange(n)).all())


def test_permutations_are_bijections_with_their_inverse() -> None:
    assert [n for n in SIZES if not is_bijection(Permutation(n, n % 5, "web", 1), n)] == []


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 700), st.integers(1, 40), st.integers(1, 9), st.integers(0, 3))
def test_block_shuffles_are_bijections_within_their_radius(n: int, block: int, window: int, seed: int) -> None:
    shuffle = BlockShuffle(n, block, window, seed, "s", 0)
    assert is_bijection(shuffle, n)
    places = shuffle(np.arange(n))
    for begin in range(0, n, block * window):
        touched = np.unique(places[begin : begin + block * window] // block)
        assert len(touched) <= window


def test_a_permutation_looks_random() -> None:
    n = 200_000
    places = Permutation(n, 1, "x", 0)(np.arange(n))
    distinct = len(np.unique(np.diff(places)))
    random = [len(np.unique(np.diff(np.random.default_rng(i).permutation(n)))) for i in range(3)]
    assert abs(distinct - np.mean(random)) < 0.01 * np.mean(random)
    assert abs(np.corrcoef(np.arange(n), places)[0, 1]) < 0.02


def test_the_next_epoch_of_a_seed_is_not_the_next_seed() -> None:
    x = np.arange(1000)
    assert (Permutation(1000, 1, "web", 1)(x) != Permutation(1000, 2, "web", 0)(x)).any()
    assert (Permutation(1000, 1, "a", 11)(x) != Permutation(1000, 1, "a1", 1)(x)).any()


def test_the_order_never_changes_between_releases() -> None:
    assert Permutation(10, 7, "all", 0)(np.arange(10)).tolist() == GOLDEN_10
    assert Permutation(10**12, 7, "all", 3)([0, 1, 10**12 - 1]).tolist() == GOLDEN_BIG
    assert BlockShuffle(20, 3, 2, 7, "all", 0)(np.arange(20)).tolist() == GOLDEN_BLOCKS
    assert StrataShuffle(20, 8, 7, "all", 0)(np.arange(20)).tolist() == GOLDEN_STRATA
    assert StrataShuffle(10**12, 64, 7, "all", 3)([0, 1, 10**12 - 1]).tolist() == GOLDEN_BIG_STRATA


def test_huge_sizes_work_in_constant_memory() -> None:
    p = Permutation(2**60 + 1, 3, "x")
    x = np.array([0, 1, 2**59, 2**60])
    assert (p.inverse(p(x)) == x).all()


# ---- mixture ------------------------------------------------------------------------------------------------


def deviation(parts: tuple[int, ...]) -> float:
    table = period(parts)
    hot = np.zeros((table.n_steps, len(parts)), np.int64)
    hot[np.arange(table.n_steps), table.source] = 1
    share = np.array(parts) / table.n_steps
    return float(np.abs(hot.cumsum(0) - np.arange(1, table.n_steps + 1)[:, None] * share).max())


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=30).filter(any))
def test_no_prefix_of_a_mixture_is_off_by_a_whole_sample(weights: list[int]) -> None:
    parts = quantise(weights)
    k = sum(w > 0 for w in parts)
    assert deviation(parts) <= (1 - 1 / (2 * k - 2) if k > 1 else 0) + 1e-9


def test_mixtures_of_200_uneven_sources_stay_within_one_sample() -> None:
    weights = np.random.default_rng(1).dirichlet(np.full(200, 0.3))
    parts = quantise((weights + 1e-4).tolist())
    assert deviation(parts) < 1


@settings(deadline=None, max_examples=80)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda w: sum(w) > 1e-3))
def test_quantised_weights_keep_zeros_and_ratios(weights: list[float]) -> None:
    weights = [w if w > 1e-6 else 0.0 for w in weights]
    if not any(weights):
        return
    parts = quantise(weights)
    assert [p > 0 for p in parts] == [w > 0 for w in weights]
    share = np.array(parts) / sum(parts)
    assert np.abs(share - np.array(weights) / sum(weights)).max() < 1e-4


def test_simple_weights_are_exact() -> None:
    assert quantise([0.5, 0.3, 0.2]) == (5, 3, 2)
    assert quantise([1 / 3, 2 / 3]) == (1, 2)
    assert quantise([7, 0]) == (1, 0)


@pytest.mark.parametrize("weights", [[0, 0], [-1, 2], [float("nan"), 1], [float("inf"), 1]])
def test_impossible_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ArgumentError, match="impossible mixture weights"):
        quantise(weights)


# ---- orders -------------------------------------------------------------------------------------------------


def order(n_items: tuple[int, ...], caps: tuple[float | None, ...], *changes: tuple[int, dict[str, float]]) -> Order:
    names = tuple("abcdefgh"[: len(n_items)])
    return Order(names, n_items, 7, Shuffle(), caps, changes)


def walk(o: Order, n: int) -> list[tuple[int, int, int]]:
    return list(zip(*(part.tolist() for part in o.locate(np.arange(n))), strict=True))


def test_without_weights_every_item_comes_once_an_epoch() -> None:
    o = order((5, 11, 1), (2.0,) * 3)
    assert o.n_samples == 34
    seen = walk(o, 34)
    assert len(set(seen)) == 34
    assert {(s, i) for s, e, i in seen[:17]} == {(s, i) for s, n in enumerate((5, 11, 1)) for i in range(n)}


def test_capped_sources_leave_and_everything_is_used_exactly() -> None:
    o = order((6, 40, 9), (1.0, 2.0, 1.0), (0, {"a": 0.5, "b": 0.3, "c": 0.2}))
    assert o.n_samples == 6 + 80 + 9
    seen = walk(o, 95)
    assert len(set(seen)) == 95
    assert o.segments()[0].start == 0
    assert len(o.segments()) == 3
    first = o.segments()[1].start
    assert {s for s, _, _ in seen[first:]} == {1, 2}


def test_endless_sources_have_no_end() -> None:
    assert order((6, 4), (None, 1.0), (0, {"a": 1, "b": 1})).n_samples is None


def test_a_change_of_weights_repeats_nothing_and_loses_nothing() -> None:
    o = order((50, 50), (1.0, 1.0), (0, {"a": 9, "b": 1}), (17, {"a": 1, "b": 3}), (40, {"a": 1}))
    assert o.n_samples is not None
    seen = walk(o, o.n_samples)
    assert len(set(seen)) == len(seen)
    assert {i for s, _, i in seen if s == 0} == set(range(50))
    before = walk(order((50, 50), (1.0, 1.0), (0, {"a": 9, "b": 1})), 17)
    assert seen[:17] == before
    assert {s for s, _, _ in seen[40:]} == {0}


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from([Shuffle(), Shuffle("none"), Shuffle("blocks", 3, 2)]),
)
def test_samples_of_is_the_inverse_of_locate(sizes: list[int], mixed: bool, a: int, b: int, shuffle: Shuffle) -> None:
    first, last = min(a, b), max(a, b)
    names = tuple("abcd"[: len(sizes)])
    weights = {name: i + 1.0 for i, name in enumerate(names)}
    changes = ((0, weights), (13, dict.fromkeys(names, 1.0))) if mixed else ()
    o = Order(names, tuple(sizes), 3, shuffle, (None,) * len(sizes), changes)
    source, _, item = o.locate(np.arange(70))
    for s, n in enumerate(sizes):
        wanted = np.arange(0, n, 2)
        truth = [t for t in range(first, last) if source[t] == s and item[t] in wanted]
        assert o.samples_of(s, wanted, first, last).tolist() == truth


def test_unknown_sources_in_weights_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"unknown sources \['z'\]"):
        order((1, 1), (1.0, 1.0), (0, {"z": 1}))


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=5))
def test_skips_leave_out_exactly_their_windows(windows: list[tuple[int, int]]) -> None:
    skips = Skips([(a, a + n) for a, n in windows])
    skipped = {t for a, n in windows for t in range(a, a + n)}
    kept = [t for t in range(200) if t not in skipped][:100]
    assert skips.sample(np.arange(100)).tolist() == kept
    assert [skips.logical(t) for t in range(100)] == [sum(s not in skipped for s in range(t)) for t in range(100)]
