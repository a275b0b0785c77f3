"""Changes in the course of a run: other weights, another sequence length, from a global sample on.

A run is laid out for its longest sequence length S. A shorter one, S / d, cuts each row of S into d rows: the tokens of
a step, their order and the numbers of samples stay what they are, so a change of length repeats nothing, loses nothing
and keeps tokens a step constant. A step has the length that is in force at its first sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gristmill.packing.errors import ArgumentError, problem

Ints = npt.NDArray[np.int64]
WeightChange = tuple[int, Mapping[str, float]]
LengthChange = tuple[int, int]


@dataclass(frozen=True)
class Change:
    """From global sample `start` on: other weights, another sequence length, or both.

    With a constant number of rows a step, step s begins at sample s times that number (and skipped samples before it).
    """

    start: int
    weights: Mapping[str, float] | None = None
    sequence_length: int | None = None


def split_changes(
    curriculum: Iterable[Change | tuple[int, Mapping[str, float]]],
) -> tuple[tuple[WeightChange, ...], tuple[LengthChange, ...]]:
    """Return changes of weights and changes of length apart."""
    every = [change if isinstance(change, Change) else Change(*change) for change in curriculum]
    weights = tuple((int(c.start), dict(c.weights)) for c in every if c.weights is not None)
    lengths = tuple((int(c.start), int(c.sequence_length)) for c in every if c.sequence_length is not None)
    return weights, lengths


class Lengths:
    """The sequence length in force at any sample."""

    def __init__(self, longest: int, changes: Sequence[LengthChange] = ()) -> None:
        """Take (first sample, length) pairs; before the first of them the length is `longest`.

        Raises:
            ArgumentError: starts that do not rise, or a length that does not divide the longest.
        """
        starts = [start for start, _ in changes]
        if starts != sorted(set(starts)) or (starts and starts[0] < 0):
            raise ArgumentError(
                problem("changes of length must rise", where="curriculum", expected="0 <= t1 < t2 ..", got=starts)
            )
        for start, length in changes:
            if length < 1 or longest % length:
                raise ArgumentError(
                    problem(
                        f"impossible sequence length from sample {start:,} on",
                        where="curriculum",
                        expected=f"a divisor of {longest:,}, the longest",
                        got=length,
                        then="make the loader with a sequence_length that all lengths divide",
                    )
                )
        self.longest = longest
        self.changes = tuple((int(start), int(length)) for start, length in changes)
        self._starts = np.array(starts, np.int64)
        self._divisors = np.array([1, *(longest // length for _, length in changes)], np.int64)

    def divisors(self, samples: npt.ArrayLike) -> Ints:
        """Return into how many rows a row is cut at each of these samples."""
        found: Ints = self._divisors[np.searchsorted(self._starts, samples, side="right")]
        return found

    def with_change(self, start: int, length: int) -> Lengths:
        """Return these with another length from `start` on; changes planned for later are dropped."""
        return Lengths(self.longest, (*(c for c in self.changes if c[0] < start), (start, length)))
