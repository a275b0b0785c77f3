"""An exact mixture of sources: Tijdeman's rule, periodic, with random access in both directions.

Weights become integers W_i with sum Q. Item number x of source i may be drawn from step (x + d) Q / W_i on and
must be by (x + 1 - d) Q / W_i, d = 1 / (2K - 2); drawing always the released item of earliest deadline keeps
|x_i - w_i t| <= 1 - d at every prefix t (Tijdeman 1980, "The chairman assignment problem"). The sequence
repeats after Q steps, so two tables of Q entries give source and item of any step and the step of any item.
Building takes 0.6 us a step, once a process. Weights that are fractions of at most 65,536 parts (0.3, 0.125,
1/3) are kept exactly; others are rounded to Q = 2**16 parts, or more when a source is smaller than 1/4,096.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gristmill.packing.errors import ArgumentError, problem

Ints = npt.NDArray[np.int64]
EXACT_PARTS = 1 << 16
MAX_PARTS = 1 << 20
SMALLEST_PARTS = 16


def check_weights(weights: Sequence[float]) -> None:
    """Refuse weights that say nothing.

    Raises:
        ArgumentError: no weight is positive, or one is negative or not finite.
    """
    bad = [w for w in weights if not math.isfinite(w) or w < 0]
    if bad or not any(weights):
        raise ArgumentError(
            problem(
                "impossible mixture weights",
                where="mixture",
                expected="finite weights >= 0, one of them > 0",
                got=list(weights),
            )
        )


def quantise(weights: Sequence[float]) -> tuple[int, ...]:
    """Return integers with the ratios of `weights`; a positive weight never becomes 0.

    Raises:
        ArgumentError: as `check_weights`.
    """
    check_weights(weights)
    if sum(w > 0 for w in weights) == 1:
        return tuple(int(w > 0) for w in weights)
    total = sum(Fraction(w).limit_denominator(10**9) for w in weights)
    exact = [Fraction(w).limit_denominator(10**9) / total for w in weights]
    parts = math.lcm(*(f.denominator for f in exact))
    if parts <= EXACT_PARTS:
        return tuple(int(f * parts) for f in exact)
    smallest = min(f for f in exact if f > 0)
    parts = EXACT_PARTS
    while parts < MAX_PARTS and smallest * parts < SMALLEST_PARTS:
        parts *= 2
    floor = [max(int(f * parts), int(f > 0)) for f in exact]
    spare = parts - sum(floor)
    order = sorted(range(len(exact)), key=lambda i: (floor[i] - exact[i] * parts, i))
    for i in order[: max(spare, 0)]:
        floor[i] += 1
    for i in sorted(range(len(exact)), key=lambda i: -floor[i])[: max(-spare, 0)]:
        floor[i] -= 1
    common = math.gcd(*floor)
    return tuple(w // common for w in floor)


@dataclass(frozen=True)
class Period:
    """One period of the mixture, Q steps.

    `source[Q]`; `rank[Q]`: which item of that source within the period; `slots[Q]`: the steps of source i in
    order, at `bounds[i]` to `bounds[i + 1]`.
    """

    parts: Ints
    source: npt.NDArray[np.int32]
    rank: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    bounds: Ints

    @property
    def n_steps(self) -> int:
        """Q, the length of the period in samples."""
        return len(self.source)

    def counts(self, t: int) -> Ints:
        """Return how many items of each source the first `t` steps draw."""
        periods, rest = divmod(t, self.n_steps)
        return periods * self.parts + np.bincount(self.source[:rest], minlength=len(self.parts))

    def locate(self, t: Ints) -> tuple[Ints, Ints]:
        """Return (source, item number from 0) of each step."""
        periods, rest = np.divmod(t, self.n_steps)
        source = self.source[rest].astype(np.int64)
        return source, periods * self.parts[source] + self.rank[rest]

    def step_of(self, source: int, item: Ints) -> Ints:
        """Inverse of `locate`: the step that draws each item of `source` (which must have weight)."""
        periods, rank = np.divmod(item, int(self.parts[source]))
        steps: Ints = periods * self.n_steps + self.slots[self.bounds[source] + rank]
        return steps


@lru_cache(maxsize=64)
def period(parts: tuple[int, ...]) -> Period:
    """Build the period of integer weights `parts` by Tijdeman's rule, exactly, in O(Q log K)."""
    weights = np.array(parts, np.int64)
    q = int(weights.sum())
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(weights)])
    active = int((weights > 0).sum())
    owner = np.repeat(np.arange(len(parts), dtype=np.int32), weights)
    item = np.arange(q, dtype=np.int64) - bounds[owner]
    picked = np.arange(q) if active == 1 else _earliest_deadline(owner, item, weights, q, 2 * active - 2)
    source, rank = owner[picked], item[picked].astype(np.int32)
    slots = np.argsort(source, kind="stable").astype(np.int32)
    return Period(weights, source, rank, slots, bounds)


def _earliest_deadline(owner: npt.NDArray[np.int32], item: Ints, weights: Ints, q: int, m: int) -> Ints:
    """Return, for steps 1..q, the job drawn; jobs are (owner, item), d = 1/m."""
    w = weights[owner] * m
    release = -(-((item * m + 1) * q) // w)
    # Deadlines as exact fractions: whole part and remainder over w, compared as (whole, remainder / w).
    top = ((item + 1) * m - 1) * q
    whole = top // w
    fraction = (top - whole * w) / w
    by_deadline = np.lexsort((owner, fraction, whole))
    position = np.empty(q, np.int64)
    position[by_deadline] = np.arange(q)
    by_release = np.argsort(release, kind="stable")
    waiting = position[by_release].tolist()
    ready_at = release[by_release].tolist()
    ready_at.append(q + 1)
    heap: list[int] = []
    push, pop = heapq.heappush, heapq.heappop
    drawn = []
    at = 0
    for t in range(1, q + 1):
        while ready_at[at] <= t:
            push(heap, waiting[at])
            at += 1
        drawn.append(pop(heap))
    return by_deadline[np.array(drawn, np.int64)]
