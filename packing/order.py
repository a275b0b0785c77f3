"""The order of a run as a pure function: global sample number -> (source, epoch, item), and back.

Nothing here knows ranks, workers or batch size; that is why changing them changes nothing. A run is a list of
segments, each with its own mixture; `base` remembers how many items of each source the earlier segments drew,
so a change of weights repeats nothing and loses nothing. Sources with a cap on epochs leave the mixture when
they are used up, which begins a segment of its own. Without weights there is no mixture: all items of all
sources are one set, shuffled as one, each exactly once an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.packing.errors import ArgumentError, problem
from gristmill.packing.mixture import Period, check_weights, period, quantise
from gristmill.packing.permutation import BlockShuffle, Permutation, StrataShuffle, distinct

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shuffle:
    """How items are ordered within an epoch.

    "full": any item anywhere. "blocks": blocks of `block_items` neighbouring items, shuffled, and their items
    within windows of `window_blocks` blocks. "none": as stored. "strata": one of each of `n_strata` (a power of two)
    equal ranges of items in turn, for items that are numbered by cost.
    """

    kind: str = "full"
    block_items: int = 256
    window_blocks: int = 64
    n_strata: int = 64

    def __post_init__(self) -> None:
        if self.kind not in ("full", "blocks", "none", "strata"):
            raise ArgumentError(
                problem("unknown shuffle", where="Shuffle", expected="full, blocks, strata or none", got=self.kind)
            )
        if min(self.block_items, self.window_blocks, self.n_strata) < 1:
            raise ArgumentError(problem("impossible sizes of a shuffle", where="Shuffle", expected=">= 1", got=self))

    def facts(self) -> Any:
        """What of this enters the plan hash."""
        if self.kind == "blocks":
            return [self.kind, self.block_items, self.window_blocks]
        return [self.kind, self.n_strata] if self.kind == "strata" else self.kind


class Identity:
    """The order of `Shuffle("none")`."""

    def __call__(self, index: npt.ArrayLike) -> Ints:
        """Return `index`."""
        return np.asarray(index, np.int64)

    inverse = __call__


@lru_cache(maxsize=4096)
def _bijection(shuffle: Shuffle, n: int, seed: int, name: str, epoch: int) -> Any:
    if shuffle.kind == "none":
        return Identity()
    if shuffle.kind == "blocks":
        return BlockShuffle(n, shuffle.block_items, shuffle.window_blocks, seed, name, epoch)
    if shuffle.kind == "strata":
        return StrataShuffle(n, shuffle.n_strata, seed, name, epoch)
    return Permutation(n, seed, name, epoch)


@dataclass(frozen=True)
class Segment:
    """From sample `start` on, draw by `parts`; `base` items of each source were drawn before."""

    start: int
    parts: tuple[int, ...]
    base: tuple[int, ...]

    @property
    def period(self) -> Period:
        """The mixture's tables, built on first use."""
        return period(self.parts)


@dataclass
class Order:
    """The order of one run.

    Attributes:
        names: source names; they, the seed and the item counts choose the permutations.
        n_items: items an epoch of each source.
        caps: most epochs of each source, None for endless.
        changes: (first sample, weights by source name), rising; empty without a mixture.
    """

    names: tuple[str, ...]
    n_items: tuple[int, ...]
    seed: int
    shuffle: Shuffle
    caps: tuple[float | None, ...]
    changes: tuple[tuple[int, Mapping[str, float]], ...] = ()
    _segments: list[Segment] = field(default_factory=list, repr=False)
    _end: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._cap_items = tuple(
            None if cap is None else round(cap * n) for cap, n in zip(self.caps, self.n_items, strict=True)
        )
        for start, weights in self.changes:
            unknown = [name for name in weights if name not in self.names]
            if unknown:
                raise ArgumentError(
                    problem(
                        f"unknown sources {unknown} in the weights from sample {start:,} on",
                        where="mixture",
                        expected=f"among {list(self.names)}",
                        got=unknown,
                    )
                )
            check_weights(list(weights.values()))
        starts = [start for start, _ in self.changes]
        if starts and (starts[0] != 0 or starts != sorted(set(starts))):
            raise ArgumentError(
                problem("segment starts must rise from 0", where="mixture", expected="0 < t1 < t2 ..", got=starts)
            )
        if self.changes:
            self._open_segment(0, 0, tuple(0 for _ in self.names))
        self._bounds = np.cumsum([0, *self.n_items], dtype=np.int64)

    @property
    def mixed(self) -> bool:
        """Whether weights decide, and not the sizes of the sources."""
        return bool(self.changes)

    @property
    def n_samples(self) -> int | None:
        """Samples until every source has reached its cap; None if that never happens."""
        if not self.mixed:
            cap = self.caps[0]
            return None if cap is None else round(cap * int(self._bounds[-1]))
        while self._end is None:
            if not self._advance():
                return None
        return self._end

    def segments(self, up_to: int | None = None) -> list[Segment]:
        """Return the segments that begin before sample `up_to` (None: all that are finite in number)."""
        while self._end is None and (up_to is None or self._limit() < up_to):
            if not self._advance():
                break
        return [s for s in self._segments if up_to is None or s.start < up_to]

    def locate(self, t: Ints) -> tuple[Ints, Ints, Ints]:
        """Return (source, epoch, item) of global samples `t` (int64, each >= 0 and below `n_samples`)."""
        if not self.mixed:
            total = int(self._bounds[-1])
            epoch, index = np.divmod(t, total)
            place = self._permute("all", total, epoch, index)
            source = np.searchsorted(self._bounds, place, side="right") - 1
            return source, epoch, place - self._bounds[source]
        source, number = self._draw(t)
        n = np.array(self.n_items, np.int64)[source]
        epoch, index = np.divmod(number, n)
        item = np.empty_like(index)
        for i in distinct(source):
            mine = source == i
            item[mine] = self._permute(self.names[i], self.n_items[i], epoch[mine], index[mine])
        return source, epoch, item

    def samples_of(self, source: int, item: Ints, first: int, last: int) -> Ints:
        """Return the samples in [first, last) that deliver any of these items of `source`, rising."""
        item = np.asarray(item, np.int64)
        found: list[Ints] = []
        if not self.mixed:
            total = int(self._bounds[-1])
            for epoch in range(first // total, -(-last // total)):
                place = self._bounds[source] + item
                index = _bijection(self.shuffle, total, self.seed, "all", epoch).inverse(place)
                found.append(epoch * total + index)
        else:
            n = self.n_items[source]
            segments = self.segments(last)
            for i, segment in enumerate(segments):
                stop = min(last, segments[i + 1].start if i + 1 < len(segments) else last)
                begin = max(first, segment.start)
                if stop <= begin or not segment.parts[source]:
                    continue
                drawn = segment.base[source] + segment.period.counts(stop - segment.start)[source]
                before = segment.base[source] + segment.period.counts(begin - segment.start)[source]
                for epoch in range(int(before) // n, -(-int(drawn) // n)):
                    index = _bijection(self.shuffle, n, self.seed, self.names[source], epoch).inverse(item)
                    number = epoch * n + index
                    number = number[(number >= before) & (number < drawn)]
                    step = segment.period.step_of(source, number - segment.base[source])
                    found.append(segment.start + step)
        merged = np.concatenate([np.zeros(0, np.int64), *found])
        return distinct(merged[(merged >= first) & (merged < last)])

    def counts(self, t: int) -> Ints:
        """Return how many items of each source the samples [0, t) draw (mixtures only)."""
        segments = self.segments(t) or self._segments[:1]
        segment = segments[-1]
        return np.array(segment.base, np.int64) + segment.period.counts(t - segment.start)

    def _draw(self, t: Ints) -> tuple[Ints, Ints]:
        segments = self.segments(int(t.max()) + 1) if t.size else self._segments
        which = np.searchsorted(np.array([s.start for s in segments]), t, side="right") - 1
        source = np.empty_like(t)
        number = np.empty_like(t)
        for i in distinct(which):
            mine, segment = which == i, segments[i]
            source[mine], item = segment.period.locate(t[mine] - segment.start)
            number[mine] = item + np.array(segment.base, np.int64)[source[mine]]
        return source, number

    def _permute(self, name: str, n: int, epoch: Ints, index: Ints) -> Ints:
        if not epoch.size:
            return index
        low, high = int(epoch.min()), int(epoch.max())
        if low == high:
            result: Ints = _bijection(self.shuffle, n, self.seed, name, low)(index)
            return result
        out = np.empty_like(index)
        for e in distinct(epoch):
            mine = epoch == e
            out[mine] = _bijection(self.shuffle, n, self.seed, name, int(e))(index[mine])
        return out

    def _open_segment(self, change: int, start: int, base: tuple[int, ...]) -> None:
        """Begin a segment at `start` with the weights of `changes[change]` and what `base` leaves of the caps."""
        wanted = self.changes[change][1]
        alive = [
            wanted.get(name, 0.0) if cap is None or drawn < cap else 0.0
            for name, cap, drawn in zip(self.names, self._cap_items, base, strict=True)
        ]
        if not any(alive):
            self._end = start
            return
        self._segments.append(Segment(start, quantise(alive), base))
        self._change = change

    def _limit(self) -> int:
        """First sample that the last known segment does not cover, 2**62 where nothing ends it."""
        segment = self._segments[-1]
        stop = self.changes[self._change + 1][0] if self._change + 1 < len(self.changes) else 1 << 62
        for i, cap in enumerate(self._cap_items):
            if cap is not None and segment.parts[i]:
                last = np.array([cap - segment.base[i] - 1], np.int64)
                stop = min(stop, segment.start + int(segment.period.step_of(i, last)[0]) + 1)
        return stop

    def _advance(self) -> bool:
        """Add the next segment; False if the last one never ends."""
        if self._end is not None:
            return False
        stop = self._limit()
        if stop >= 1 << 62:
            return False
        segment = self._segments[-1]
        counts = segment.period.counts(stop - segment.start)
        base = tuple(int(b + c) for b, c in zip(segment.base, counts, strict=True))
        change = self._change
        while change + 1 < len(self.changes) and self.changes[change + 1][0] <= stop:
            change += 1
        self._open_segment(change, stop, base)
        return True


class Skips:
    """Sorted windows of samples that are never delivered: logical numbers <-> samples, by prefix sums."""

    def __init__(self, windows: Sequence[tuple[int, int]] = ()) -> None:
        """Take half-open windows [a, b), merge what overlaps.

        Raises:
            ArgumentError: a negative or backward window.
        """
        merged: list[tuple[int, int]] = []
        for a, b in sorted((int(a), int(b)) for a, b in windows):
            if a < 0 or b < a:
                raise ArgumentError(problem("impossible skip window", where="skip", expected="0 <= a <= b", got=(a, b)))
            if merged and a <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(b, merged[-1][1]))
            elif b > a:
                merged.append((a, b))
        self.windows = tuple(merged)
        starts = np.array([a for a, _ in merged], np.int64)
        sizes = np.array([b - a for a, b in merged], np.int64)
        self._skipped = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self._logical = starts - self._skipped[:-1]
        self._starts, self._ends = starts, starts + sizes

    def with_later(self, windows: Sequence[tuple[int, int]], now: int) -> Skips:
        """Return these skips and, of `windows`, what lies at sample `now` or later."""
        return Skips([*self.windows, *((max(int(a), now), int(b)) for a, b in windows if int(b) > now)])

    def sample(self, logical: npt.ArrayLike) -> Ints:
        """Return the sample that is delivered as number `logical`."""
        u = np.asarray(logical, np.int64)
        return np.asarray(u + self._skipped[np.searchsorted(self._logical, u, side="right")], np.int64)

    def skipped(self, sample: int) -> bool:
        """Return whether `sample` is never delivered."""
        j = int(np.searchsorted(self._starts, sample, side="right"))
        return bool(j and sample < self._ends[j - 1])

    def logical(self, sample: int) -> int:
        """Return how many samples below `sample` are delivered."""
        j = int(np.searchsorted(self._starts, sample, side="right"))
        if j and sample < self._ends[j - 1]:
            return int(self._logical[j - 1])
        return sample - int(self._skipped[j])
