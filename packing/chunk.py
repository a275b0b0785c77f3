"""A stretch of rows made ready to be filled: everything that can be computed for thousands of rows at once.

For a batch there remain one read of all its rows, and slices of the arrays below.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gristmill.packing.certificate import Certificate, row_marks
from gristmill.packing.layout import ragged_ranges
from gristmill.packing.plan import Plan, Resolved

Ints = npt.NDArray[np.int64]
Read = tuple[int, int, int, int, int]
"""Source, shard (-1: the piece spans shards), first byte in the shard, first token in the stream, inputs."""


class Chunk:
    """C rows, ready to be filled.

    Attributes:
        samples: global sample of each row, -1 for a blank one.
        rows: rows of a batch, which C is a multiple of.
        piece_bounds: pieces `piece_bounds[r]` to `piece_bounds[r + 1]` fill row r; a blank row has none.
        whole: by batch, whether each of its rows is one piece of S positions in one shard.
        shards_P: the shard of each piece, counted through all sources (`Plan.shard_bounds`), where it lies in one.
        offsets_P: first byte of each piece in its shard.
        bounds: by batch, the bounds of its documents and rows over the flattened batch, int32 from 0 to rows * S.
        begins_X: for each bound but a batch's last, the position in its row where that document begins.
        sizes_X: positions from there to the next bound.
        longest: by batch, the largest of these.
    """

    def __init__(self, plan: Plan, samples: Ints, divisors_C: Ints | None = None, rows: int | None = None) -> None:
        """Resolve `samples` (-1: blank) and lay their reads out; `divisors_C` cuts each row into that many.

        `rows` are those of a batch; all of them by default.
        """
        resolved = plan.resolve(samples)
        self.samples = samples
        self.rows = rows or len(samples)
        self._lay_reads(plan, resolved)
        self._lay_begins(plan, resolved, divisors_C)
        marks = row_marks(*(part.view(np.uint64) for part in resolved.identity))
        self._marks = marks
        self._sums = np.concatenate([np.zeros((1, 2), np.uint64), np.cumsum(marks, axis=0, dtype=np.uint64)])
        self._real = np.concatenate([np.zeros(1, np.int64), np.cumsum(samples >= 0)])

    @property
    def marks(self) -> npt.NDArray[np.uint64]:
        """Certificate marks, uint64 (C, 2)."""
        return self._marks

    @cached_property
    def reads(self) -> list[Read]:
        """What each piece reads, for those that are read one by one."""
        return list(zip(*self._columns.tolist(), strict=True))

    def certificate(self, low: int, high: int) -> Certificate:
        """Return the certificate of rows [low, high)."""
        mask = 2**64 - 1
        (a, b), (c, d) = self._sums[low].tolist(), self._sums[high].tolist()
        return Certificate((c - a) & mask, (d - b) & mask, int(self._real[high] - self._real[low]))

    def _lay_reads(self, plan: Plan, resolved: Resolved) -> None:
        n_rows = len(resolved.sample)
        counts = np.zeros(n_rows, np.int64)
        where = {i: np.flatnonzero(resolved.source == i) for i in resolved.groups}
        for i, rows in resolved.groups.items():
            counts[where[i]] = np.diff(rows.pieces_C1)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        columns = np.empty((5, int(bounds[-1])), np.int64)
        for i, rows in resolved.groups.items():
            shards = plan.sources[i].shards
            # Pieces of one source lie in the order of its rows: scatter them to their places among all rows.
            size = np.diff(rows.pieces_C1)
            at = np.repeat(bounds[where[i]] - rows.pieces_C1[:-1], size) + np.arange(len(rows.first_P))
            number = np.searchsorted(shards.token_starts, rows.first_P, side="right") - 1
            spans = rows.first_P + rows.inputs_P + 1 > shards.token_starts[number + 1]
            columns[0, at] = i
            columns[1, at] = np.where(spans, -1, number)
            columns[2, at] = (rows.first_P - shards.token_starts[number]) * shards.dtype.itemsize
            columns[3, at] = rows.first_P
            columns[4, at] = rows.inputs_P
        self._columns = columns
        self.piece_bounds: list[int] = bounds.tolist()
        self.offsets_P = columns[2]
        self.shards_P = plan.shard_bounds[columns[0]] + columns[1]
        full = (columns[1] >= 0) & (columns[4] == plan.sequence_length)
        whole = counts == 1
        whole[whole] = full[bounds[:-1][whole]]
        self.whole: list[bool] = whole.reshape(-1, self.rows).all(axis=1).tolist()

    def _lay_begins(self, plan: Plan, resolved: Resolved, divisors_C: Ints | None) -> None:
        s = plan.sequence_length
        n_rows = len(resolved.sample)
        parts = [np.arange(0, n_rows * s, s, dtype=np.int64)]
        if divisors_C is not None:
            inside = ragged_ranges(np.zeros(n_rows, np.int64), divisors_C) * np.repeat(s // divisors_C, divisors_C)
            parts = [np.repeat(parts[0], divisors_C) + inside]
        for i, rows in resolved.groups.items():
            mine = np.flatnonzero(resolved.source == i)
            parts.append(np.repeat(mine * s, np.diff(rows.cuts_C1)) + rows.cuts_X)
        begins = np.concatenate(parts)
        begins.sort()
        if divisors_C is not None:
            begins = begins[np.concatenate([[True], np.diff(begins) > 0])]
        n_batches, per_batch = n_rows // self.rows, self.rows * s
        batch = begins // per_batch
        # Each batch has a slice of its own, with one more place for its end.
        bounds = np.full(len(begins) + n_batches, per_batch, np.int32)
        bounds[np.arange(len(begins)) + batch] = begins - batch * per_batch
        at = np.searchsorted(batch, np.arange(n_batches + 1))
        self.sizes_X = np.diff(begins, append=n_rows * s)
        self.begins_X = (begins % s).astype(np.uint16 if s <= 1 << 16 else np.uint32)
        self.begin_bounds: list[int] = at.tolist()
        self.bounds = [bounds[a + i : b + i + 1] for i, (a, b) in enumerate(pairwise(self.begin_bounds))]
        self.longest: list[int] = np.maximum.reduceat(self.sizes_X, at[:-1]).tolist()
