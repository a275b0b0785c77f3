"""Runs that change on their way: weights, sources, epochs, sequence length. Nothing repeats, nothing is lost."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.packing import (
    ArgumentError,
    Change,
    Loader,
    ShardMissingError,
    StateError,
    TokenSpec,
    open_shards,
    write_shards,
)

SPEC = TokenSpec(1000, 0, "t")
S = 8
SIZES = {"a": 17, "b": 60, "c": 9, "d": 31}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four sources of one document each, of that many rows."""
    base = tmp_path_factory.mktemp("c")
    rng = np.random.default_rng(2)
    return {
        name: write_shards(base / name, [rng.integers(1, 1000, n * S)], SPEC, ids=[f"{name}-doc"])
        for name, n in SIZES.items()
    }


Row = tuple[int, str, int, int]


class Trainer:
    """Takes steps, and remembers sample, source, epoch and item of every row delivered."""

    def __init__(self, roots: dict[str, Path], weights: dict[str, float], **options: Any) -> None:
        self.roots = roots
        self.options: dict[str, Any] = {"sequence_length": S, "seed": 4, "prefetch": 0, "weights": weights, **options}
        self.sources = list(weights)
        self.size = 3
        self.loader = self.make()
        self.seen: list[Row] = []
        self.streams = {name: open_shards(root).tokens(0, SIZES[name] * S + 1) for name, root in roots.items()}

    def make(self) -> Loader:
        return Loader({n: self.roots[n] for n in self.sources}, global_batch_size=self.size, **self.options)

    def step(self, n: int) -> None:
        names = self.loader.plan.order.names
        for _, batch in zip(range(n), self.loader, strict=False):
            samples = batch["samples"][batch["samples"] >= 0]
            placed = self.loader.plan.order.locate(np.unique(samples))
            for sample, source, epoch, item in zip(np.unique(samples).tolist(), *placed, strict=True):
                name = names[source]
                self.seen.append((sample, name, int(epoch), int(item)))
                ids = batch["input_ids"][batch["samples"] == sample].ravel()
                assert ids.tolist() == self.streams[name][item * S : (item + 1) * S].tolist()

    def resume(self, sources: list[str] | None = None, size: int = 3, weights: Any = None, **options: Any) -> None:
        state = json.loads(json.dumps(self.loader.state_dict()))
        self.sources, self.size = sources or self.sources, size
        self.options |= options
        if weights is not None:
            self.options["weights"] = weights
        loader = self.make()
        loader.load_state_dict(state, weights=weights)
        self.loader = loader

    def check(self) -> None:
        """Samples follow each other; each source was walked epoch by epoch, each item once in each."""
        assert [row[0] for row in self.seen] == list(range(len(self.seen)))
        for name in self.roots:
            mine = [(epoch, item) for _, source, epoch, item in self.seen if source == name]
            n = SIZES[name]
            assert [epoch for epoch, _ in mine] == sorted(epoch for epoch, _ in mine)
            for epoch, count in Counter(epoch for epoch, _ in mine).items():
                assert len({item for e, item in mine if e == epoch}) == count
                assert count == min(n, len(mine) - epoch * n)


@settings(deadline=None, max_examples=15)
@given(st.randoms(use_true_random=False))
def test_any_course_of_changes_repeats_nothing_and_loses_nothing(roots: dict[str, Path], random: random.Random) -> None:
    def some_weights(names: list[str]) -> dict[str, float]:
        chosen = random.sample(names, random.randint(1, len(names)))
        return {name: random.choice([1, 2, 0.5, 7]) for name in chosen}

    one = Trainer(roots, {"a": 2, "b": 1})
    for _ in range(6):
        one.step(random.randint(0, 9))
        what = random.choice(["weights", "resume", "add", "remove", "length"])
        if what == "weights":
            one.loader.set_weights(some_weights(one.sources))
        elif what == "resume":
            one.resume(size=random.choice([1, 2, 5]))
        elif what == "add":
            more = [name for name in SIZES if name not in one.sources]
            one.resume(one.sources + more[:1], weights=some_weights(one.sources + more[:1]))
        elif what == "remove" and len(one.sources) > 1:
            gone = random.choice(one.sources)
            left = [name for name in one.sources if name != gone]
            one.resume(left, weights=some_weights(left))
        else:
            one.loader.set_sequence_length(random.choice([1, 2, 4, 8]))
    one.step(5)
    one.check()
    # A resume anywhere gives the same from there on.
    before = len(one.seen)
    one.resume(size=random.choice([1, 4]))
    one.step(4)
    again, one.seen = one.seen[before:], one.seen[:before]
    one.loader.load_state_dict(
        {**one.loader.state_dict(), "delivered": before, "step": 0},
    )
    one.step(4)
    assert one.seen[before:] == again
    one.check()


def test_a_change_of_source_is_seen_by_where_and_when(roots: dict[str, Path]) -> None:
    one = Trainer(roots, {"a": 2, "b": 1})
    one.step(7)
    one.resume(["a", "b", "d"], weights={"d": 1, "b": 1})
    one.step(7)
    for sample, name, _, _ in one.seen:
        trace = one.loader.where(sample // 3, sample % 3)
        assert (trace.source, trace.pieces[0].document.document_id) == (name, f"{name}-doc")
    for name in one.sources:
        shown = [s.sample for s in one.loader.when(f"{name}-doc", last=len(one.seen))]
        assert shown == [row[0] for row in one.seen if row[1] == name]
    assert {row[1] for row in one.seen[:21]} == {"a", "b"}
    assert {row[1] for row in one.seen[21:]} == {"b", "d"}


def test_a_source_that_is_still_drawn_from_is_missed(roots: dict[str, Path]) -> None:
    one = Trainer(roots, {"a": 2, "b": 1})
    one.step(3)
    with pytest.raises(StateError, match="source 'b' is not given, but the run goes on drawing from it"):
        Loader({"a": roots["a"]}, weights={"a": 1}, sequence_length=S, batch_size=1, seed=4).load_state_dict(
            one.loader.state_dict(), weights={"a": 2, "b": 1}
        )
    two = Trainer(roots, {"a": 2, "b": 1})
    two.step(3)
    two.loader.set_weights({"a": 1})
    two.options["weights"] = {"a": 1}  # those in force, so that they need not be given again
    two.resume(["a"])
    two.step(3)
    two.check()
    b = next(row[0] for row in two.seen if row[1] == "b")
    with pytest.raises(ShardMissingError, match="b: rows of a source that was left out"):
        two.loader.where(b // 3, b % 3)
    # It comes back where it was left.
    two.resume(["a", "b"], weights={"b": 1})
    two.step(3)
    two.check()
    assert {row[1] for row in two.seen[18:]} == {"b"}


def test_a_source_that_has_grown_is_refused_and_a_run_without_weights_cannot_gain_one(
    roots: dict[str, Path], tmp_path: Path
) -> None:
    write_shards(tmp_path, [np.arange(1, 300)], SPEC)
    options: dict[str, Any] = {"sequence_length": S, "batch_size": 1}
    state = Loader({"a": roots["a"]}, weights={"a": 1}, **options).state_dict()
    with pytest.raises(StateError, match="what source 'a' holds differs.*as a source of their own"):
        Loader({"a": [roots["a"], tmp_path]}, weights={"a": 1}, **options).load_state_dict(state)
    state = Loader({"a": roots["a"]}, **options).state_dict()
    with pytest.raises(StateError, match="list of sources differs.*shuffled as one"):
        Loader({"a": roots["a"], "b": roots["b"]}, **options).load_state_dict(state)
    with pytest.raises(StateError, match="weights differs"):
        Loader({"a": roots["a"]}, weights={"a": 1}, **options).load_state_dict(state)


def test_a_run_is_made_longer_without_a_change_of_its_past(roots: dict[str, Path]) -> None:
    plain: dict[str, Any] = {"sequence_length": S, "batch_size": 2, "prefetch": 0}
    short = Loader(roots["a"], **plain)
    first = [t for b in short for t in b["samples"].tolist() if t >= 0]
    longer = Loader(roots["a"], epochs=2, **plain)
    longer.load_state_dict(short.state_dict())
    assert first + [t for b in longer for t in b["samples"].tolist() if t >= 0] == list(range(34))
    with pytest.raises(StateError, match="epochs differs"):
        Loader(roots["a"], epochs=1, **plain).load_state_dict(longer.state_dict())
    one = Trainer(roots, {"a": 1, "b": 1}, epochs={"a": 1, "b": 1})
    one.step(5)
    one.resume(epochs={"a": 2, "b": 1})
    one.step(99)
    one.check()
    assert len(one.seen) == 2 * 17 + 60
    with pytest.raises(StateError, match="epochs differs.*a source that has reached its cap stays as it is"):
        one.resume(epochs={"a": 1, "b": 1})


def test_weights_may_be_given_anew_with_the_state(roots: dict[str, Path]) -> None:
    one = Trainer(roots, {"a": 2, "b": 1})
    one.step(4)
    one.options["weights"] = {"a": 1, "b": 5}
    with pytest.raises(StateError, match="weights differs"):
        one.resume()
    one.resume(weights={"a": 1, "b": 5})
    one.step(20)
    one.check()
    assert Counter(row[1] for row in one.seen[12:72]) == {"a": 10, "b": 50}


def test_a_damaged_state_is_refused(roots: dict[str, Path]) -> None:
    loader = Loader(roots["a"], sequence_length=S, batch_size=1)
    state = loader.state_dict()
    state["plan"]["seed"] = 9
    with pytest.raises(StateError, match="plan is damaged"):
        loader.load_state_dict(state)


# ---- sequence length ----------------------------------------------------------------------------------------


def corpus(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    documents = [rng.integers(1, 1000, int(n)) for n in rng.integers(0, 50, 90)]
    return write_shards(tmp_path, documents, SPEC, ids=[f"d{i}" for i in range(90)], documents_per_shard=40)


@pytest.mark.parametrize("pack", ["concat", "best_fit", "document"])
def test_shorter_rows_hold_the_same_tokens_and_targets(tmp_path: Path, pack: str) -> None:
    root = corpus(tmp_path)
    options: dict[str, Any] = {"sequence_length": 32, "pack": pack, "loss_mask": True, "certify_content": True}
    whole = Loader(root, batch_size=4, **options)
    stages = [Change(0, sequence_length=8), Change(10, sequence_length=16), Change(24, sequence_length=32)]
    changing = Loader(root, batch_size=4, curriculum=stages, **options)
    lengths = []
    for step, (a, b) in enumerate(zip(whole, changing, strict=True)):
        rows, s = b["input_ids"].shape
        lengths.append(s)
        assert rows * s == 4 * 32
        for key in ("input_ids", "labels", "loss_mask"):
            assert (a[key].ravel() == b[key].ravel()).all()
        assert (b["samples"] == np.repeat(a["samples"], 32 // s)).all()
        bounds = b["cu_seqlens"]
        assert set(a["cu_seqlens"].tolist()) | set(range(0, 4 * 32 + 1, s)) == set(bounds.tolist())
        assert (np.diff(bounds) > 0).all()
        assert b["max_seqlen"] == np.diff(bounds).max() <= s
        assert (b["position_ids"].ravel() == np.concatenate([np.arange(n) for n in np.diff(bounds)])).all()
        for slot in range(rows):
            if b["samples"][slot] >= 0:
                trace = changing.where(step, slot)
                at = 0
                for piece in trace.pieces:
                    assert piece.start == at
                    shards = changing.plan.sources[0].shards
                    tokens = shards.document(shards.find(piece.document.document_id)[0])[piece.document_token :]
                    want = tokens[: piece.n_positions].tolist()
                    assert b["input_ids"][slot, at : at + piece.n_positions].tolist() == want
                    at += piece.n_positions
                assert (b["labels"][slot, at:] == -100).all()
                names = {piece.document.document_id for piece in trace.pieces}
                for name in names:
                    assert (step, slot) in {(s.step, s.slot) for s in changing.when(name)}
    # A step has the length at its first sample: step 3 begins at sample 12.
    assert lengths == [8, 8, 8] + [16] * 3 + [32] * (len(lengths) - 6)
    assert whole.certificate() == changing.certificate()


def test_a_change_of_length_survives_a_resume_at_another_size(tmp_path: Path) -> None:
    root = corpus(tmp_path)

    def loader(size: int, rank: int = 0, world: int = 1, **extra: Any) -> Loader:
        return Loader(
            root, sequence_length=32, global_batch_size=size, rank=rank, world_size=world, prefetch=2,
            curriculum=[Change(8, sequence_length=16)], **extra,
        )  # fmt: skip

    one = loader(4)
    for _ in range(3):
        last = next(one)
    assert last["input_ids"].shape == (8, 16)
    one.set_sequence_length(8)
    state = json.loads(json.dumps(one.state_dict()))
    assert next(one)["input_ids"].shape == (16, 8)
    ranks = [loader(6, r, 2) for r in range(2)]
    got = []
    for rank in ranks:
        rank.load_state_dict(state)
        batch = next(rank)
        assert batch["input_ids"].shape == (12, 8)
        got += batch["samples"].tolist()
        rank.close()
    assert got == [t for t in range(12, 18) for _ in range(4)]
    one.close()
    with pytest.raises(ArgumentError, match=r"expected a divisor of 32, the longest, got 12"):
        one.set_sequence_length(12)
    with pytest.raises(StateError, match="lengths differs.*set_sequence_length"):
        Loader(root, sequence_length=32, batch_size=1).load_state_dict(state)


def test_weights_and_length_change_at_one_sample(roots: dict[str, Path]) -> None:
    change = Change(6, weights={"b": 1}, sequence_length=4)
    loader = Loader(
        {n: roots[n] for n in "ab"}, weights={"a": 1}, curriculum=[change], sequence_length=S, batch_size=3, prefetch=0
    )
    shapes, sources = [], []
    for step in range(4):
        batch = next(loader)
        shapes.append(batch["input_ids"].shape)
        sources += [loader.where(step, slot).source for slot in range(len(batch["samples"]))]
    assert shapes == [(3, 8), (3, 8), (6, 4), (6, 4)]
    assert sources == ["a"] * 6 + ["b"] * 12
