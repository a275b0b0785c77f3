"""From items to token ranges: what a row of a batch is made of.

A layout turns item numbers of one source into `Rows`: for each row the pieces of the token stream that fill
it and the places where a document begins. All of it is vectorised over a few thousand rows at a time; only
the copying itself is done row by row. `ConcatLayout` needs no plan in memory: item i is the window
[i S, i S + S] of the stream, so that every token but the first is a target exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gristmill.packing.errors import ArgumentError, ShardMissingError, problem
from gristmill.packing.reader import ShardSet

Ints = npt.NDArray[np.int64]


@dataclass
class Rows:
    """C rows of one source.

    Attributes:
        pieces_C1: bounds of each row's pieces in the next two arrays.
        first_P: first token of each piece in the source's stream.
        inputs_P: input positions that the piece fills (its targets are the tokens one further).
        targets_P: how many of these have a target; the rest are ignored by the loss.
        cuts_C1: bounds of each row's cuts.
        cuts_X: positions in (0, S) where a document begins, rising within a row.
    """

    pieces_C1: Ints  # noqa: N815
    first_P: Ints  # noqa: N815
    inputs_P: Ints  # noqa: N815
    targets_P: Ints  # noqa: N815
    cuts_C1: Ints  # noqa: N815
    cuts_X: Ints  # noqa: N815


class Layout(Protocol):
    """How one source is cut into items."""

    shards: ShardSet
    n_items: int

    def rows(self, items: Ints) -> Rows:
        """Describe these items."""

    def items_of(self, first: int, last: int) -> Ints:
        """Return the items that hold any token of [first, last) as an input."""

    def facts(self) -> Any:
        """What of this enters the plan hash."""


class ConcatLayout:
    """Documents end to end, cut every S tokens; the last row is padded."""

    def __init__(self, shards: ShardSet, sequence_length: int) -> None:
        """Cut `shards` into windows of S inputs.

        Raises:
            ArgumentError: fewer than two tokens.
        """
        self.shards = shards
        self.sequence_length = sequence_length
        self.n_items = -(-(shards.n_tokens - 1) // sequence_length)
        if self.n_items < 1:
            raise ArgumentError(
                problem(
                    "source is too small for a single target",
                    where="ConcatLayout",
                    expected="at least 2 tokens",
                    got=shards.n_tokens,
                )
            )

    def facts(self) -> Any:
        """Nothing beyond the name: the rest follows from the shards and S."""
        return "concat"

    def rows(self, items: Ints) -> Rows:
        """Describe windows `items`; cuts are looked up shard by shard, all rows of a shard at once."""
        s = self.sequence_length
        first = items * s
        inputs = np.minimum(self.shards.n_tokens - 1 - first, s)
        cuts_C1, cuts_X = document_cuts(self.shards, first, inputs)
        return Rows(np.arange(len(items) + 1), first, inputs, inputs, cuts_C1, cuts_X)

    def items_of(self, first: int, last: int) -> Ints:
        """Windows that overlap tokens [first, last)."""
        low = first // self.sequence_length
        high = -(-last // self.sequence_length)
        return np.arange(low, min(high, self.n_items), dtype=np.int64)


class GoneLayout:
    """A source that the run no longer draws from and whose files are gone; only its number of items is known."""

    def __init__(self, name: str, shards: ShardSet, n_items: int, facts: Any) -> None:
        """Stand for source `name`; `shards` is an empty set."""
        self.name = name
        self.shards = shards
        self.n_items = n_items
        self._facts = facts

    def facts(self) -> Any:
        """What the layout's facts were."""
        return self._facts

    def rows(self, items: Ints) -> Rows:
        """Refuse.

        Raises:
            ShardMissingError: always.
        """
        raise ShardMissingError(
            problem(
                "rows of a source that was left out when the run was resumed",
                where=self.name,
                then="give the source to the loader to look at them",
            )
        )

    def items_of(self, first: int, last: int) -> Ints:
        """No items: the documents are gone."""
        return np.zeros(0, np.int64)


def document_cuts(shards: ShardSet, first_C: Ints, n_C: Ints) -> tuple[Ints, Ints]:
    """Return bounds[C+1] and positions of the document starts strictly inside windows [first, first + n)."""
    number = np.searchsorted(shards.token_starts, first_C, side="right") - 1
    last = first_C + n_C
    straddles = last > shards.token_starts[number + 1]
    counts = np.zeros(len(first_C), np.int64)
    found: list[tuple[Ints, Ints, Ints, Ints]] = []
    # In the order of the stream: searches for rising keys are short and stay in the processor's cache.
    rising = np.argsort(first_C)
    rising = rising[~straddles[rising]]
    for rows in np.split(rising, np.flatnonzero(np.diff(number[rising])) + 1) if len(rising) else ():
        shard = int(number[rows[0]])
        starts = shards.shard(shard).first_token
        local = first_C[rows] - shards.token_starts[shard]
        low = np.searchsorted(starts, local, side="right")
        high = np.searchsorted(starts, local + n_C[rows], side="left")
        size = np.maximum(high - low, 0)
        counts[rows] = size
        values = starts[ragged_ranges(low, size)] - np.repeat(local, size)
        found.append((rows, size, values, local))
    for row in np.flatnonzero(straddles):
        values = _cuts_across(shards, int(first_C[row]), int(last[row]))
        counts[row] = len(values)
        found.append((np.array([row]), np.array([len(values)]), values, values))
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    cuts = np.empty(int(bounds[-1]), np.int64)
    for rows, size, values, _ in found:
        cuts[ragged_ranges(bounds[rows], size)] = values
    return _without_repeats(bounds, cuts)


def ragged_ranges(start_R: Ints, size_R: Ints) -> Ints:
    """Return start[0] .. start[0] + size[0] - 1, start[1] .. and so on."""
    ends = np.cumsum(size_R)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(start_R - (ends - size_R), size_R) + np.arange(total)


def _cuts_across(shards: ShardSet, first: int, last: int) -> Ints:
    """Document starts strictly inside [first, last) where that range spans several shards."""
    parts = []
    number = int(np.searchsorted(shards.token_starts, first, side="right")) - 1
    while number < len(shards) and shards.token_starts[number] < last:
        base = int(shards.token_starts[number])
        starts = shards.shard(number).first_token
        low = int(np.searchsorted(starts, first - base, side="right"))
        high = int(np.searchsorted(starts, last - base, side="left"))
        parts.append(starts[low:high] + (base - first))
        number += 1
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _without_repeats(bounds_C1: Ints, cuts_X: Ints) -> tuple[Ints, Ints]:
    """Drop cuts that equal their predecessor in the row (empty documents)."""
    if len(cuts_X) < 2:
        return bounds_C1, cuts_X
    keep = np.concatenate([[True], np.diff(cuts_X) != 0])
    keep[bounds_C1[:-1][bounds_C1[:-1] < len(cuts_X)]] = True
    if keep.all():
        return bounds_C1, cuts_X
    kept = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])
    return kept[bounds_C1], cuts_X[keep]
