"""Fills arrays: one read a row, then whole-batch widening, positions and boundaries.

Buffers are used again only when nobody holds them: a set of arrays is recycled once their reference counts say
that the caller (a view, a torch tensor over them) has let go, so a kept batch never changes under its owner.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.packing.chunk import Chunk
from gristmill.packing.plan import Plan
from gristmill.packing.tombstones import Tombstones

Batch = dict[str, Any]
Ints = npt.NDArray[np.int64]
Allocate = Callable[[tuple[int, ...], Any], npt.NDArray[Any]]
IGNORE = -100
"""Target of positions that the loss must not see; torch's default `ignore_index`."""
MAX_KEPT = 64
"""Sets of arrays that a pool keeps for one shape."""


class Pool:
    """Sets of arrays, recycled when their reference counts show that only the pool holds them."""

    def __init__(self, allocate: Allocate = np.empty, reuse: bool = True) -> None:
        self._sets: dict[Any, list[list[npt.NDArray[Any]]]] = {}
        self._allocate = allocate
        self._reuse = reuse
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtypes: tuple[Any, ...]) -> tuple[npt.NDArray[Any], ...]:
        """Return uninitialised arrays of one shape that nobody else holds."""
        if not self._reuse:
            return tuple(self._allocate(shape, dtype) for dtype in dtypes)
        with self._lock:
            sets = self._sets.setdefault((shape, dtypes), [])
            for arrays in sets:
                if _is_free(arrays):
                    return tuple(arrays)
            fresh = [self._allocate(shape, dtype) for dtype in dtypes]
            if len(sets) < MAX_KEPT:
                sets.append(fresh)
            return tuple(fresh)


def _references(arrays: list[npt.NDArray[Any]], i: int) -> int:
    return sys.getrefcount(arrays[i])


_FREE = _references([np.empty(1)], 0)
"""What `_references` says of an array that only its list holds; measured, since interpreters differ."""


def _is_free(arrays: list[npt.NDArray[Any]]) -> bool:
    return all(_references(arrays, i) <= _FREE for i in range(len(arrays)))


@dataclass(frozen=True)
class BatchOptions:
    """What goes into a batch besides ids, labels, positions and boundaries."""

    dtype: Any = np.int32
    loss_mask: bool = False
    boundary_targets: bool = True


class Filler:
    """Turns rows of a chunk into batches. Thread-safe; scratch space is per thread."""

    def __init__(self, plan: Plan, options: BatchOptions, pool: Pool, tombstones: Tombstones) -> None:
        self._plan = plan
        self._tombstones = tombstones if tombstones.documents else None
        self._options = options
        self._pool = pool
        self._local = threading.local()
        shards = plan.sources[0].shards
        self._sets = [source.shards for source in plan.sources]
        self._stored = shards.dtype
        self._pad = shards.eos_id if shards.eos_id is not None else 0
        self._ramp_bytes = np.arange(plan.sequence_length, dtype=options.dtype).data.cast("B")
        kind = np.dtype(options.dtype)
        self._dtypes = (kind, kind, kind, np.dtype(np.uint8)) if options.loss_mask else (kind, kind, kind)

    def fill(self, chunk: Chunk, low: int, high: int, divisor: int = 1) -> Batch:
        """Return rows [low, high) of `chunk` as a batch; `divisor` cuts every row into that many."""
        n, s = high - low, self._plan.sequence_length
        ids, labels, positions, *mask = self._pool.take((n, s), self._dtypes)
        raw, views = self._scratch(n, s + 1)
        if self._plan.pack == "concat":
            holes = self._read_windows(raw, views, chunk, low, high)
            ids[...] = raw[:, :-1]
            labels[...] = raw[:, 1:]
        else:
            holes = self._read_pieces(raw[0], ids, labels, chunk, low, high)
        for row, start, stop in holes:
            labels[row, start:stop] = IGNORE
        if self._tombstones is not None:
            self._withdraw(self._tombstones, ids, labels, chunk, low, high)
        first, last = chunk.begin_bounds[low], chunk.begin_bounds[high]
        begins = np.empty(last - first + 1, np.int32)
        begins[:-1] = chunk.begins[first:last] - low * s
        begins[-1] = n * s
        sizes = begins[1:] - begins[:-1]
        if not self._options.boundary_targets:
            labels.reshape(-1)[begins[1:-1] - 1] = IGNORE
        self._lay_positions(positions, begins, sizes)
        shape = (n * divisor, s // divisor)
        batch: Batch = {
            "input_ids": ids if divisor == 1 else ids.reshape(shape),
            "labels": labels if divisor == 1 else labels.reshape(shape),
            "position_ids": positions if divisor == 1 else positions.reshape(shape),
            "cu_seqlens": begins,
            "max_seqlen": int(sizes.max()),
            "samples": np.repeat(chunk.samples[low:high], divisor),
        }
        if mask:
            np.not_equal(labels, IGNORE, out=mask[0].view(np.bool_))
            batch["loss_mask"] = mask[0] if divisor == 1 else mask[0].reshape(shape)
        return batch

    def _read_windows(
        self, raw: npt.NDArray[Any], views: list[memoryview], chunk: Chunk, low: int, high: int
    ) -> list[tuple[int, int, int]]:
        """Read one window of S + 1 tokens a row; return (row, start, stop) ranges without targets."""
        holes: list[tuple[int, int, int]] = []
        s = self._plan.sequence_length
        n_bytes = (s + 1) * self._stored.itemsize
        sets, preadv, bounds = self._sets, os.preadv, chunk.piece_bounds
        for row in range(high - low):
            at = bounds[low + row]
            if at == bounds[low + row + 1]:
                raw[row] = self._pad
                holes.append((row, 0, s))
                continue
            source, number, offset, first, n = chunk.reads[at]
            if n < s:
                raw[row, n + 1 :] = self._pad
                holes.append((row, n, s))
            if number < 0 or n < s:
                sets[source].read_into(raw[row, : n + 1], first)
                continue
            shard = sets[source].shard(number)
            try:
                got = preadv(shard.fd, (views[row],), offset)
            except OSError:
                got = -1
            if got != n_bytes:
                shard.read_slowly(views[row], offset)
            if not shard.clean:
                shard.check(offset, n_bytes)
        return holes

    def _read_pieces(
        self,
        scratch: npt.NDArray[Any],
        ids: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        chunk: Chunk,
        low: int,
        high: int,
    ) -> list[tuple[int, int, int]]:
        """Fill rows piece by piece; return (row, start, stop) ranges without targets."""
        holes: list[tuple[int, int, int]] = []
        s = self._plan.sequence_length
        for row in range(high - low):
            begin, end = chunk.piece_bounds[low + row], chunk.piece_bounds[low + row + 1]
            at = 0
            for source, number, offset, first, n in chunk.reads[begin:end]:
                piece = scratch[: n + 1]
                if number < 0:
                    self._sets[source].read_into(piece, first)
                else:
                    self._sets[source].shard(number).read_bytes_into(piece, offset)
                ids[row, at : at + n] = piece[:-1]
                labels[row, at : at + n] = piece[1:]
                at += n
            if at < s:
                ids[row, at:] = self._pad
                holes.append((row, at, s))
        return holes

    def _withdraw(
        self,
        tombstones: Tombstones,
        ids: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        chunk: Chunk,
        low: int,
        high: int,
    ) -> None:
        for row in range(high - low):
            begin, end = chunk.piece_bounds[low + row], chunk.piece_bounds[low + row + 1]
            at = 0
            for source, _, _, first, n in chunk.reads[begin:end]:
                piece = slice(at, at + n)
                tombstones.blank(source, first, ids[row, piece], labels[row, piece], self._pad, IGNORE)
                at += n

    def _lay_positions(
        self, out: npt.NDArray[Any], begins: npt.NDArray[np.int32], sizes: npt.NDArray[np.int32]
    ) -> None:
        """Write positions that restart at each of `begins`: piece by piece where documents are long.

        Copying through memory views costs half of what array slices cost: 0.4 us a document.
        """
        flat = out.reshape(-1)
        if len(begins) * 200 < flat.size:
            target, ramp, width = flat.data.cast("B"), self._ramp_bytes, flat.itemsize
            for a, b in pairwise((begins * np.int64(width)).tolist()):
                target[a:b] = ramp[: b - a]
        else:
            np.subtract(np.arange(flat.size), np.repeat(begins[:-1], sizes), out=flat, casting="same_kind")

    def _scratch(self, n: int, width: int) -> tuple[npt.NDArray[Any], list[memoryview]]:
        kept = getattr(self._local, "kept", None)
        if kept is None or kept[0].shape != (n, width):
            raw = np.empty((n, width), self._stored)
            kept = self._local.kept = (raw, [row.data.cast("B") for row in raw])
        return kept
