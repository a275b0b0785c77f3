"""The loader: every token once, the same order on any topology, exact resume."""

from __future__ import annotations

import gc
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.packing import (
    ArgumentError,
    Loader,
    ShardReadError,
    Shuffle,
    StateError,
    StepMetrics,
    TokenSpec,
    write_shards,
)

SPEC = TokenSpec(1000, 0, "t" * 32)
S = 32


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    """A shard set of 5 shards, its token stream, and where its documents begin."""
    rng = np.random.default_rng(5)
    documents = [rng.integers(1, 1000, int(n)) for n in rng.integers(0, 70, 220)]
    root = write_shards(tmp_path_factory.mktemp("set"), documents, SPEC, documents_per_shard=50)
    stream = np.concatenate([np.append(d, 0) for d in documents])
    starts = np.cumsum([0, *(len(d) + 1 for d in documents)])
    return root, stream, starts


def copy(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in batch.items()}


def rows(loader: Loader, n_steps: int | None = None) -> list[tuple[int, bytes]]:
    out = []
    for step, batch in enumerate(loader):
        ids = batch["input_ids"].astype(np.int32)
        out += [(int(t), row.tobytes()) for t, row in zip(batch["samples"], ids, strict=True)]
        if n_steps is not None and step + 1 == n_steps:
            break
    return out


@pytest.mark.parametrize("sequence_length", [7, 32, 1000])
def test_rows_are_windows_of_the_stream_and_each_token_is_a_target_once(corpus: Any, sequence_length: int) -> None:
    root, stream, starts = corpus
    loader = Loader([root], sequence_length=sequence_length, batch_size=4, seed=7)
    targets = np.zeros(len(stream), np.int64)
    for batch in loader:
        bounds = batch["cu_seqlens"]
        assert bounds[0] == 0
        assert bounds[-1] == 4 * sequence_length
        assert batch["max_seqlen"] == np.diff(bounds).max()
        positions = np.concatenate([np.arange(n) for n in np.diff(bounds)])
        assert (batch["position_ids"].ravel() == positions).all()
        for row, t in enumerate(batch["samples"]):
            if t < 0:
                assert (batch["labels"][row] == -100).all()
                continue
            first = int(loader.plan.order.locate(np.array([t]))[2][0]) * sequence_length
            n = min(sequence_length, len(stream) - 1 - first)
            assert (batch["input_ids"][row, :n] == stream[first : first + n]).all()
            assert (batch["labels"][row, :n] == stream[first + 1 : first + 1 + n]).all()
            assert (batch["labels"][row, n:] == -100).all()
            targets[first + 1 : first + 1 + n] += 1
            inside = bounds[(bounds > row * sequence_length) & (bounds < (row + 1) * sequence_length)]
            truth = starts[(starts > first) & (starts < first + n)] - first
            assert np.unique(truth).tolist() == (inside - row * sequence_length).tolist()
    assert (targets[1:] == 1).all()


def test_no_ranks_workers_or_batch_size_changes_the_order(corpus: Any) -> None:
    root = corpus[0]
    reference = [r for r in rows(Loader([root], sequence_length=S, batch_size=1, seed=7, prefetch=0)) if r[0] >= 0]
    for world in (1, 2, 3, 8):
        for prefetch, threads in ((0, 1), (3, 1), (5, 4)):
            for size in (8, 24):
                ranks = [
                    Loader(
                        [root],
                        sequence_length=S,
                        global_batch_size=size,
                        seed=7,
                        rank=r,
                        world_size=world,
                        prefetch=prefetch,
                        threads=threads,
                    )
                    for r in range(world)
                ]
                got: list[tuple[int, bytes]] = []
                for _ in range(len(ranks[0])):
                    for rank in ranks:
                        got += rows(rank, 1)
                assert [r for r in got if r[0] >= 0] == reference, (world, prefetch, size)
                assert all(len(rows(rank)) == 0 for rank in ranks)


def test_a_state_counts_what_was_delivered_and_not_what_was_prefetched(corpus: Any) -> None:
    loader = Loader([corpus[0]], sequence_length=S, batch_size=2, prefetch=8, threads=2)
    next(loader)
    time.sleep(0.05)
    assert loader.state_dict()["delivered"] == 2
    assert loader.state_dict(after_steps=3)["delivered"] == 8
    loader.close()


def test_the_order_of_a_mapping_does_not_matter(corpus: Any, tmp_path: Path) -> None:
    other = write_shards(tmp_path, [[7] * 40] * 30, SPEC)
    for extra in ({}, {"weights": {"a": 1, "b": 1}, "epochs": 1}):
        options: dict[str, Any] = {"sequence_length": S, "batch_size": 1, **extra}
        one, two = Loader({"a": corpus[0], "b": other}, **options), Loader({"b": other, "a": corpus[0]}, **options)
        assert one.plan.hash == two.plan.hash
        assert rows(one) == rows(two)


def test_states_of_another_run_are_refused_with_the_reason(corpus: Any) -> None:
    root = corpus[0]

    def loader(**options: Any) -> Loader:
        return Loader(root, **{"sequence_length": S, "batch_size": 1, "seed": 1, **options})

    state = loader().state_dict()
    with pytest.raises(StateError, match=r"seed differs; expected 1, got 2"):
        loader(seed=2).load_state_dict(state)
    with pytest.raises(StateError, match=r"sequence_length differs; expected 32, got 16"):
        loader(sequence_length=16).load_state_dict(state)
    with pytest.raises(StateError, match="shuffle differs"):
        loader(shuffle=Shuffle("blocks")).load_state_dict(state)
    with pytest.raises(StateError, match="not a loader state of this version"):
        loader().load_state_dict({**state, "version": 2})
    mixed = loader(weights={"all": 1.0}).state_dict()
    with pytest.raises(StateError, match=r"weights differs.*load_state_dict\(state, weights=...\) changes them"):
        loader(weights={"all": 2.0}).load_state_dict(mixed)


def test_another_tokenizer_is_refused(corpus: Any, tmp_path: Path) -> None:
    write_shards(tmp_path, [[1, 2, 3]], TokenSpec(1000, 0, "other"))
    state = Loader(corpus[0], sequence_length=S, batch_size=1).state_dict()
    with pytest.raises(StateError, match="tokenizer differs; expected t+, got other"):
        Loader(tmp_path, sequence_length=S, batch_size=1).load_state_dict(state)


def test_weights_changed_in_mid_run_survive_a_resume(corpus: Any) -> None:
    def loader() -> Loader:
        return Loader(
            {"a": corpus[0], "b": corpus[0]}, weights={"a": 3, "b": 1}, epochs=1, sequence_length=S, batch_size=2
        )

    one = loader()
    head = rows(one, 10)
    one.set_weights({"a": 1, "b": 5})
    state = json.loads(json.dumps(one.state_dict()))
    tail = rows(one)
    two = loader()
    two.load_state_dict(state)
    assert rows(two) == tail
    samples = np.array([t for t, _ in head + tail if t >= 0])
    assert samples.tolist() == list(range(len(samples)))
    source, epoch, item = one.plan.order.locate(samples)
    assert len(set(zip(source, epoch, item, strict=True))) == len(samples) == 2 * one.plan.order.n_items[0]
    assert np.bincount(source[20:80]).tolist() == [10, 50]


def test_skipped_windows_are_never_delivered_and_later_ones_do_not_move_the_past(corpus: Any) -> None:
    root = corpus[0]
    everything = rows(Loader(root, sequence_length=S, batch_size=1, drop_last=True))
    loader = Loader(root, sequence_length=S, batch_size=1, skip=[(3, 5)])
    got = rows(loader, 6)
    assert [t for t, _ in got] == [0, 1, 2, 5, 6, 7]
    loader.skip([(0, 2), (6, 12), (20, 22)])
    state = loader.state_dict()
    rest = rows(loader)
    assert [t for t, _ in rest[:9]] == [12, 13, 14, 15, 16, 17, 18, 19, 22]
    assert got + rest == [r for r in everything if r[0] in {t for t, _ in got + rest}]
    again = Loader(root, sequence_length=S, batch_size=1)
    again.load_state_dict(state)
    assert rows(again) == rest
    assert loader.samples_of_steps(2, 4) == [(2, 3), (5, 6)]
    assert loader.samples_of_tokens(2 * S, 4 * S) == [(2, 3), (5, 6)]
    assert loader.samples_of_tokens(2 * S + 1, 3 * S - 1) == [(2, 3)]


def test_the_last_step_is_filled_with_blank_rows_or_dropped(corpus: Any) -> None:
    full = Loader(corpus[0], sequence_length=S, batch_size=7)
    steps = len(full)
    batches = [copy(b) for b in full]
    assert len(batches) == steps
    assert all(b["input_ids"].shape == (7, S) for b in batches)
    blank = batches[-1]["samples"] < 0
    assert blank.sum() == steps * 7 - full.n_rows
    assert (batches[-1]["labels"][blank] == -100).all()
    assert len(list(Loader(corpus[0], sequence_length=S, batch_size=7, drop_last=True))) == steps - 1


def test_a_kept_batch_never_changes_and_dropped_ones_are_used_again(corpus: Any) -> None:
    loader = Loader(corpus[0], sequence_length=S, batch_size=4, prefetch=2, epochs=4)
    kept, copies, addresses = [], [], set()
    for step, batch in enumerate(loader):
        addresses.add(batch["input_ids"].ctypes.data)
        if step % 25 == 0:
            kept.append(batch)
            copies.append(copy(batch))
        del batch
    assert step > 100
    assert len(addresses) < 3 * len(kept) + 30
    for a, b in zip(kept, copies, strict=True):
        assert all((np.asarray(a[key]) == np.asarray(b[key])).all() for key in a)


def test_loss_mask_and_boundary_targets(corpus: Any) -> None:
    root = corpus[0]
    loader = Loader(root, sequence_length=S, batch_size=4, loss_mask=True, boundary_targets=False, shuffle="none")
    batch = next(loader)
    ends = batch["cu_seqlens"][1:-1] - 1
    row_ends = (ends + 1) % S == 0
    labels = batch["labels"].ravel()
    assert (labels[ends] == -100).all()
    assert ((labels == -100) == (batch["loss_mask"].ravel() == 0)).all()
    assert (labels == -100).sum() == len(ends)
    assert row_ends.sum() == 3


def test_impossible_arguments_are_refused(corpus: Any) -> None:
    root = corpus[0]
    for options in (
        {},
        {"batch_size": 1, "global_batch_size": 1},
        {"batch_size": 1, "rank": 2, "world_size": 2},
        {"global_batch_size": 2, "world_size": 3},
        {"batch_size": 1, "pack": "tetris"},
        {"batch_size": 1, "epochs": 0},
        {"batch_size": 1, "shuffle": "riffle"},
        {"batch_size": 1, "curriculum": [(5, {"all": 1})]},
        {"batch_size": 1, "skip": [(5, 3)]},
        {"batch_size": 1, "weights": {"all": 0}},
        {"batch_size": 1, "weights": {"all": 1}, "curriculum": [(5, {"all": -1})]},
        {"batch_size": 2**27},
        {"batch_size": 2**40},
    ):
        with pytest.raises(ArgumentError):
            Loader(root, sequence_length=S, **options)  # type: ignore[arg-type]


def test_threads_end_with_the_loader(corpus: Any) -> None:
    before = set(threading.enumerate())
    with Loader(corpus[0], sequence_length=S, batch_size=1, prefetch=4, threads=3) as loader:
        next(loader)
        own = set(threading.enumerate()) - before
        assert own
    assert not any(thread.is_alive() for thread in own)


def test_metrics_are_reported_each_step(corpus: Any) -> None:
    seen: list[StepMetrics] = []
    loader = Loader(corpus[0], sequence_length=S, batch_size=1, on_step=seen.append)
    rows(loader, 5)
    loader.close()
    assert [m.step for m in seen] == [0, 1, 2, 3, 4]
    assert all(m.seconds >= 0 and 0 <= m.ready <= 2 for m in seen)


def test_a_crashed_worker_is_started_again_without_a_visible_change(
    corpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = rows(Loader(corpus[0], sequence_length=S, batch_size=1))
    loader = Loader(corpus[0], sequence_length=S, batch_size=1, prefetch=4, threads=3)
    real, failed = loader._make, set()

    def flaky(made: int, n: int) -> Any:
        if made % 3 == 0 and made not in failed:
            failed.add(made)
            raise RuntimeError("lost")
        return real(made, n)

    monkeypatch.setattr(loader, "_make", flaky)
    assert rows(loader) == reference
    assert failed


def test_read_errors_are_retried_then_named(corpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real = os.preadv
    failures = 3

    def failing(fd: int, buffers: Any, offset: int) -> int:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(5, "Input/output error")
        return real(fd, buffers, offset)

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(os, "preadv", failing)
    loader = Loader(corpus[0], sequence_length=S, batch_size=1, prefetch=0)
    next(loader)
    failures = 10**6
    with pytest.raises(ShardReadError, match=r"shard-0000\d\.bin at byte .*reading failed 5 times"):
        for _ in loader:
            pass
    del loader
    gc.collect()
