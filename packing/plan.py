"""A run's plan: sources, layouts and order, bound to a hash that saved states are held against."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.packing.balance import SUFFIX, BalancedLayout, by_cost, row_costs
from gristmill.packing.cache import Cache
from gristmill.packing.errors import ArgumentError, ShardFormatError, problem
from gristmill.packing.fit import PackPlan, PlannedLayout, make_pack_plan
from gristmill.packing.format import canonical_json, digest
from gristmill.packing.layout import ConcatLayout, GoneLayout, Layout, Rows
from gristmill.packing.lengths import Change, LengthChange, Lengths, WeightChange, split_changes
from gristmill.packing.order import Order, Shuffle
from gristmill.packing.permutation import distinct
from gristmill.packing.reader import ShardSet, open_shards

Ints = npt.NDArray[np.int64]
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
MAX_POSITIONS = 2**31 - 1
"""Positions of a row, and of a rank's batch: `cu_seqlens` is int32."""
PACKINGS = ("concat", "best_fit", "document")


@dataclass(frozen=True)
class Source:
    """One named part of the mixture and how it is cut into items."""

    name: str
    layout: Layout

    @property
    def shards(self) -> ShardSet:
        """Where the tokens are."""
        return self.layout.shards


@dataclass
class Resolved:
    """Rows of consecutive deliveries, in order: what to read for each, grouped by source."""

    sample: Ints
    source: Ints
    epoch: Ints
    item: Ints
    groups: dict[int, Rows]

    @property
    def identity(self) -> tuple[Ints, Ints, Ints, Ints]:
        """What a certificate is taken of: sample, source, epoch, item."""
        return self.sample, self.source, self.epoch, self.item


@dataclass(frozen=True)
class Plan:
    """Everything that decides which tokens sample t holds."""

    sources: tuple[Source, ...]
    sequence_length: int
    order: Order
    pack: str
    lengths: Lengths
    declared: tuple[tuple[WeightChange, ...], tuple[LengthChange, ...]] = ((), ())
    """The weights and lengths that the loader was made with, before changes in mid-run."""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the plan hash is taken of; goes into saved states so that a mismatch can be named."""
        first = self.sources[0].shards
        return {
            "pack": self.pack,
            "sequence_length": self.sequence_length,
            "seed": self.order.seed,
            "shuffle": self.order.shuffle.facts(),
            "tokenizer": first.tokenizer,
            "sources": {s.name: s.shards.identity for s in self.sources},
            "layouts": {s.name: s.layout.facts() for s in self.sources},
            "items": {s.name: s.layout.n_items for s in self.sources},
            "weights": [[start, dict(weights)] for start, weights in self.declared[0]],
            "lengths": [list(change) for change in self.declared[1]],
            "epochs": dict(zip(self.order.names, self.order.caps, strict=True)),
        }

    @cached_property
    def shard_bounds(self) -> Ints:
        """Numbers of the sources' shards when all are counted through: those of source i from `shard_bounds[i]` on."""
        return np.cumsum([0, *(len(source.shards) for source in self.sources)], dtype=np.int64)

    @cached_property
    def hash(self) -> str:
        """BLAKE2b-128 of `facts`."""
        return digest(canonical_json(self.facts))

    def with_changes(self, weights: tuple[WeightChange, ...], lengths: Lengths) -> Plan:
        """Return the plan with other changes in the course of the run."""
        old = self.order
        order = Order(old.names, old.n_items, old.seed, old.shuffle, old.caps, weights)
        return replace(self, order=order, lengths=lengths)

    def with_gone(self, gone: Mapping[str, tuple[str, int, Any, float | None]]) -> Plan:
        """Return the plan with sources that are there no more: identity, items, layout facts and cap by name."""
        shards = self.sources[0].shards
        sources, caps = list(self.sources), dict(zip(self.order.names, self.order.caps, strict=True))
        for name, (identity, n, facts, cap) in gone.items():
            sources.append(Source(name, GoneLayout(name, shards.emptied(identity), n, facts)))
            caps[name] = cap
        sources.sort(key=lambda source: source.name)
        old, names = self.order, tuple(source.name for source in sources)
        n_items = tuple(source.layout.n_items for source in sources)
        order = Order(names, n_items, old.seed, old.shuffle, tuple(caps[n] for n in names), old.changes)
        return replace(self, sources=tuple(sources), order=order)

    def place_of(self, sample: int) -> str:
        """Return the file and byte where a sample's tokens begin; opens nothing."""
        source, _, item = (int(part[0]) for part in self.order.locate(np.array([sample], np.int64)))
        layout = self.sources[source].layout
        first = item * self.sequence_length
        if isinstance(layout, PlannedLayout):
            first = int(layout.plan.first_P[layout.plan.row_starts[item]])
        return layout.shards.place_of(first)

    def costs(self, samples: Ints) -> Ints:
        """Return the attention cost of samples (-1: 0); rows of "concat" are not known to cost anything."""
        out = np.zeros(len(samples), np.int64)
        real = np.flatnonzero(samples >= 0)
        source, _, item = self.order.locate(samples[real])
        for i in distinct(source):
            layout = self.sources[i].layout
            if isinstance(layout, PlannedLayout):
                mine = source == i
                costs = layout.costs if isinstance(layout, BalancedLayout) else row_costs(layout.plan)
                out[real[mine]] = costs[item[mine]]
        return out

    def resolve(self, samples: Ints) -> Resolved:
        """Describe samples (int64; -1 stands for a blank row beyond the end)."""
        real = samples >= 0
        source = np.full(len(samples), -1, np.int64)
        epoch = np.zeros(len(samples), np.int64)
        item = np.full(len(samples), -1, np.int64)
        if real.any():
            source[real], epoch[real], item[real] = self.order.locate(samples[real])
        groups: dict[int, Rows] = {}
        for i in distinct(source[real]):
            mine = np.flatnonzero(source == i)
            groups[int(i)] = self.sources[i].layout.rows(item[mine])
        return Resolved(samples, source, epoch, item, groups)


def named_sources(sources: Paths | Mapping[str, Paths]) -> dict[str, Paths]:
    """Give every source a name: the mapping's keys, or "all" where one path or one list was given."""
    if isinstance(sources, Mapping):
        if not sources:
            raise ArgumentError(problem("no sources", where="Loader", expected="at least one", got=0))
        return dict(sources)
    return {"all": sources}


def make_plan(
    sources: Paths | Mapping[str, Paths],
    *,
    sequence_length: int,
    seed: int = 0,
    weights: Mapping[str, float] | None = None,
    epochs: float | Mapping[str, float] | None = None,
    pack: str = "concat",
    shuffle: Shuffle | str = "full",
    curriculum: Sequence[Change | tuple[int, Mapping[str, float]]] = (),
    verify: str = "first",
    retries: int = 4,
    plan_cache: str | os.PathLike[str] | None = None,
    cache: Cache | None = None,
    balance: bool = False,
) -> Plan:
    """Open the sources and lay out the run; reads `shards.json` files and nothing else for "concat".

    Raises:
        ArgumentError: impossible arguments. ShardFormatError: sources with different tokenizers.
    """
    if not 1 <= sequence_length <= MAX_POSITIONS:
        raise ArgumentError(
            problem(
                "impossible length", where="sequence_length", expected=f"1 to {MAX_POSITIONS:,}", got=sequence_length
            )
        )
    if pack not in PACKINGS:
        raise ArgumentError(problem("unknown packing", where="pack", expected=PACKINGS, got=pack))
    if balance and pack == "concat":
        raise ArgumentError(
            problem("nothing to balance", where="balance", expected="pack='best_fit' or 'document'", got=pack)
        )
    # By name, so that the order of the run does not depend on that of a mapping.
    named = dict(sorted(named_sources(sources).items()))
    opened = {name: open_shards(paths, verify=verify, retries=retries, cache=cache) for name, paths in named.items()}
    first_name, first = next(iter(opened.items()))
    for name, shards in opened.items():
        mine, other = (shards.tokenizer, shards.dtype, shards.eos_id), (first.tokenizer, first.dtype, first.eos_id)
        if mine != other:
            raise ShardFormatError(
                problem(
                    f"source {name!r} was encoded differently from {first_name!r}",
                    where="Loader",
                    expected=other,
                    got=mine,
                    then="encode all sources with one tokenizer",
                )
            )
    laid = tuple(
        Source(name, make_layout(shards, sequence_length, pack, plan_cache, balance)) for name, shards in opened.items()
    )
    names = tuple(named)
    changes, lengths = split_changes(curriculum)
    all_changes = ((0, dict(weights)), *changes) if weights is not None else ()
    if changes and weights is None:
        raise ArgumentError(
            problem(
                "a curriculum of weights needs weights to begin with", where="Loader", expected="weights={..}", got=None
            )
        )
    default = None if isinstance(epochs, Mapping) or epochs is not None or weights is not None else 1.0
    if isinstance(epochs, Mapping):
        if weights is None:
            raise ArgumentError(
                problem("epoch caps by source need weights", where="epochs", expected="weights={..}", got=None)
            )
        caps = tuple(epochs.get(name) for name in names)
    else:
        caps = tuple((default if epochs is None else epochs) for _ in names)
    caps = tuple(None if cap is None or cap == float("inf") else float(cap) for cap in caps)
    if any(cap is not None and cap <= 0 for cap in caps):
        raise ArgumentError(problem("epochs must be positive", where="epochs", expected="> 0", got=epochs))
    how = Shuffle(shuffle) if isinstance(shuffle, str) else shuffle
    order = Order(
        names,
        tuple(source.layout.n_items for source in laid),
        seed,
        Shuffle("strata") if balance and how.kind == "full" else how,
        caps,
        all_changes,
    )
    return Plan(laid, sequence_length, order, pack, Lengths(sequence_length, lengths), (all_changes, lengths))


def make_layout(
    shards: ShardSet,
    sequence_length: int,
    pack: str,
    cache: str | os.PathLike[str] | None = None,
    balance: bool = False,
) -> Layout:
    """Return the layout called `pack`; a plan that `cache` holds already is read and not made again."""
    if pack == "concat":
        return ConcatLayout(shards, sequence_length)
    kind = BalancedLayout if balance else PlannedLayout
    if cache is None:
        return kind(shards, _plan_rows(shards, sequence_length, pack, balance), sequence_length)
    folder = Path(cache)
    name = f"{pack}{SUFFIX}" if balance else pack
    path = folder / f"{name}-{sequence_length}-{shards.identity}.plan"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if path.exists():
            return kind(shards, PackPlan.load(path), sequence_length)
        for abandoned in folder.glob(f".{path.name}.tmp-*"):
            abandoned.unlink(missing_ok=True)
        plan = _plan_rows(shards, sequence_length, pack, balance)
        plan.save(path)
    return kind(shards, plan, sequence_length)


def _plan_rows(shards: ShardSet, sequence_length: int, pack: str, balance: bool) -> PackPlan:
    plan = make_pack_plan(shards, sequence_length, pack)
    return by_cost(plan) if balance else plan


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process of the machine at a time make a plan; the others then read it. A kill releases the lock."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems lock no folders: there every process makes the plan, all of them the same.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
