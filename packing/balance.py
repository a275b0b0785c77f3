"""Balance of attention cost: the sum over the documents of a row of length squared.

Variable-length attention works on each document by itself, so a row of one document of S positions costs S times what
one of S documents of one position does. With rows in random order the ranks of a step wait for the one with the
dearest rows. Three things even that out, and none of them moves a token from one row to another or pads anything:

- a plan's rows are numbered by falling cost (`by_cost`), so that ranges of numbers are classes of cost;
- the shuffle `strata` draws from all classes in turn, so that every step costs about the same;
- `deal` gives the rows of a step to its ranks, the dearest first and each to the rank with the least so far.

What a step holds stays independent of the number of ranks; which rank takes which row does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.packing.fit import PackPlan, PlannedLayout
from gristmill.packing.layout import ragged_ranges
from gristmill.packing.reader import ShardSet

Ints = npt.NDArray[np.int64]
SUFFIX = "+balanced"


@dataclass(frozen=True)
class Attention:
    """How even the attention cost of a plan's rows is: sums of length squared, in positions squared."""

    mean: float
    largest: int
    smallest: int
    deviation: float

    @property
    def spread(self) -> float:
        """Standard deviation over mean."""
        return self.deviation / self.mean


def row_costs(plan: PackPlan) -> Ints:
    """Return the sum of length squared of each row, int64."""
    squares = np.concatenate([np.zeros(1, np.int64), np.cumsum(plan.n_P.astype(np.int64) ** 2)])
    costs: Ints = squares[plan.row_starts[1:]] - squares[plan.row_starts[:-1]]
    return costs


def attention(plan: PackPlan) -> Attention:
    """Return the statistics of a plan's row costs."""
    costs = row_costs(plan)
    return Attention(float(costs.mean()), int(costs.max()), int(costs.min()), float(costs.std()))


def by_cost(plan: PackPlan) -> PackPlan:
    """Return the plan with its rows by falling attention cost, equal ones as they were."""
    order = np.argsort(-row_costs(plan), kind="stable")
    begin, size = plan.row_starts[:-1][order], np.diff(plan.row_starts)[order]
    pieces = ragged_ranges(begin, size)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(size)])
    kind = plan.kind + SUFFIX
    return replace(plan, kind=kind, row_starts=starts, first_P=plan.first_P[pieces], n_P=plan.n_P[pieces])


class BalancedLayout(PlannedLayout):
    """Rows of a plan made by `by_cost`, with what each of them costs."""

    def __init__(self, shards: ShardSet, plan: PackPlan, sequence_length: int) -> None:
        """Bind a plan to its source, as `PlannedLayout`."""
        super().__init__(shards, plan, sequence_length)
        self.costs = row_costs(plan)


def imbalance(costs_TG: Ints, bounds_R1: npt.NDArray[Any]) -> tuple[float, float]:
    """Return how uneven steps and ranks are: deviation of the steps' costs, and mean excess of a step's dearest rank.

    Both are shares of the mean; costs are in the order of slots.
    """
    steps = costs_TG.sum(axis=1)
    ranks = np.add.reduceat(costs_TG, np.asarray(bounds_R1, np.int64)[:-1], axis=1)
    excess = ranks.max(axis=1) / np.maximum(ranks.mean(axis=1), 1e-9) - 1
    return float(steps.std() / max(steps.mean(), 1e-9)), float(excess.mean())


def deal(costs_TG: Ints, bounds_R1: npt.NDArray[Any]) -> Ints:
    """Return, for each slot of T steps, the row of the step that it takes, int64 (T, G).

    Args:
        costs_TG: cost of each of the G rows of a step.
        bounds_R1: rank r has slots bounds[r] to bounds[r + 1]; numbers of slots differ by one at most.

    The dearest rows go first, in rounds of one row a rank, the dearest of a round to the rank with the least so far.
    """
    bounds = np.asarray(bounds_R1, np.int64)
    counts = np.diff(bounds)
    n_steps, n_rows = costs_TG.shape
    dearest = np.argsort(-costs_TG, axis=1, kind="stable")
    load = np.zeros((n_steps, len(counts)), np.int64)
    out = np.empty((n_steps, n_rows), np.int64)
    steps = np.arange(n_steps)[:, None]
    at = 0
    for turn in range(int(counts.max())):
        ranks = np.flatnonzero(counts > turn)
        rows = dearest[:, at : at + len(ranks)]
        takers = ranks[np.argsort(load[:, ranks], axis=1, kind="stable")]
        out[steps, bounds[takers] + turn] = rows
        load[steps, takers] += costs_TG[steps, rows]
        at += len(ranks)
    return out
