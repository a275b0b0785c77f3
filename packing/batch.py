"""Fills arrays: one read of all rows, then whole-batch widening, positions and boundaries.

Buffers are used again only when nobody holds them: the array that a batch's ids, labels and positions are parts of is
recycled once its reference count says that the caller (a view, a torch tensor over it) has let go of all of them, so a
kept batch never changes under its owner.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.packing.bulk import BulkReader
from gristmill.packing.chunk import Chunk
from gristmill.packing.plan import Plan
from gristmill.packing.reader import Shard
from gristmill.packing.tombstones import Tombstones

Batch = dict[str, Any]
Ints = npt.NDArray[np.int64]
Allocate = Callable[[tuple[int, ...], Any], npt.NDArray[Any]]
IGNORE = -100
"""Target of positions that the loss must not see; torch's default `ignore_index`."""
MAX_KEPT = 64
"""Arrays of one shape that a pool keeps for a thread."""
MAX_HELD = 64
"""Shards that a thread keeps open for itself."""


class Pool:
    """Arrays, recycled when their reference counts show that only the pool holds them.

    Each thread has its own: what it wrote last is still in its processor's cache, and there is nothing to lock.
    """

    def __init__(self, allocate: Allocate = np.empty, reuse: bool = True) -> None:
        self._allocate = allocate
        self._reuse = reuse
        self._local = threading.local()

    def take(self, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Return an uninitialised array that nobody else holds, whole or in part."""
        if not self._reuse:
            return self._allocate(shape, dtype)
        every = self._local.__dict__.setdefault("arrays", {})
        arrays: list[npt.NDArray[Any]] = every.setdefault((shape, dtype), [])
        for i in range(len(arrays)):
            if _references(arrays, i) <= _FREE:
                return arrays[i]
        fresh = self._allocate(shape, dtype)
        if len(arrays) < MAX_KEPT:
            arrays.append(fresh)
        return fresh


def _references(arrays: list[npt.NDArray[Any]], i: int) -> int:
    return sys.getrefcount(arrays[i])


_FREE = _references([np.empty(1)], 0)
"""What `_references` says of an array that only its list holds; measured, since interpreters differ."""


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
        self._ramp = np.arange(plan.sequence_length, dtype=np.uint16 if plan.sequence_length <= 1 << 16 else np.uint32)
        self._dtype = np.dtype(options.dtype)

    def fill(self, chunk: Chunk, number: int = 0, divisor: int = 1) -> Batch:
        """Return batch `number` of `chunk`; `divisor` cuts every row into that many."""
        return self.fill_several(chunk, number, [divisor])[0]

    def fill_several(self, chunk: Chunk, first: int, divisors: Sequence[int]) -> list[Batch]:
        """Return batches `first`, `first + 1`, .. of `chunk`, one for each of `divisors`, which cut their rows.

        Their arrays are parts of one, so that Python's share, and what changes of threads cost, is paid once for all.
        """
        n, s = chunk.rows, self._plan.sequence_length
        last = first + len(divisors)
        low, high = first * n, last * n
        block = self._pool.take((3, high - low, s), self._dtype)
        ids, labels, positions = block
        space = self._space(high - low, s + 1)
        if self._plan.pack == "concat":
            if all(chunk.whole[first:last]) and self._read_whole(space, chunk, low, high):
                holes = []
            else:
                holes = self._read_windows(space, chunk, low, high)
            block[:2] = space.shifted[:, : high - low]
        else:
            holes = self._read_pieces(space.raw[0], ids, labels, chunk, low, high)
        for row, start, stop in holes:
            labels[row, start:stop] = IGNORE
        if self._tombstones is not None:
            self._withdraw(self._tombstones, ids, labels, chunk, low, high)
        # In two bytes where these suffice: half of the memory traffic or less, and in the end one widening.
        begins = slice(chunk.begin_bounds[first], chunk.begin_bounds[last])
        places = chunk.begins_X[begins].repeat(chunk.sizes_X[begins]).reshape(high - low, s)
        np.subtract(self._ramp, places, out=positions)
        return [
            self._batch(chunk, first + i, block[:, i * n : (i + 1) * n], divisor) for i, divisor in enumerate(divisors)
        ]

    def _batch(self, chunk: Chunk, number: int, block: npt.NDArray[Any], divisor: int) -> Batch:
        """Return batch `number` of `chunk`, whose ids, labels and positions are in `block`."""
        ids, labels, positions = block
        n, s = ids.shape
        bounds = chunk.bounds[number]
        if not self._options.boundary_targets:
            labels.reshape(-1)[bounds[1:-1] - 1] = IGNORE
        shape = (n * divisor, s // divisor)
        samples = chunk.samples[number * n : (number + 1) * n]
        batch: Batch = {
            "input_ids": ids if divisor == 1 else ids.reshape(shape),
            "labels": labels if divisor == 1 else labels.reshape(shape),
            "position_ids": positions if divisor == 1 else positions.reshape(shape),
            "cu_seqlens": bounds,
            "max_seqlen": chunk.longest[number],
            "samples": samples if divisor == 1 else np.repeat(samples, divisor),
        }
        if self._options.loss_mask:
            mask = self._pool.take((n, s), np.dtype(np.uint8))
            np.not_equal(labels, IGNORE, out=mask.view(np.bool_))
            batch["loss_mask"] = mask if divisor == 1 else mask.reshape(shape)
        return batch

    def _read_whole(self, space: Space, chunk: Chunk, low: int, high: int) -> bool:
        """Read rows [low, high) at once, each a window of S + 1 tokens of one shard; False if that cannot be."""
        pieces = slice(chunk.piece_bounds[low], chunk.piece_bounds[high])
        numbers, offsets = chunk.shards_P[pieces], chunk.offsets_P[pieces]
        fds = space.fds[numbers]
        if np.count_nonzero(fds < 0):
            space.open(numbers, self._plan)
            fds = space.fds[numbers]
            if np.count_nonzero(fds < 0):
                return False
        for row in space.reader.read(fds, offsets):
            space.files[int(numbers[row])].read_bytes_into(space.raw[row], int(offsets[row]))
        if space.unverified:
            n_bytes = space.raw.strides[0]
            for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True):
                shard = space.files[number]
                if not shard.clean:
                    shard.check(offset, n_bytes)
            space.look()
        return True

    def _read_windows(self, space: Space, chunk: Chunk, low: int, high: int) -> list[tuple[int, int, int]]:
        """Read one window of S + 1 tokens a row; return (row, start, stop) ranges without targets."""
        raw = space.raw
        holes: list[tuple[int, int, int]] = []
        s = self._plan.sequence_length
        for row in range(high - low):
            at = chunk.piece_bounds[low + row]
            if at == chunk.piece_bounds[low + row + 1]:
                raw[row] = self._pad
                holes.append((row, 0, s))
                continue
            source, number, offset, first, n = chunk.reads[at]
            if n < s:
                raw[row, n + 1 :] = self._pad
                holes.append((row, n, s))
            if number < 0:
                self._sets[source].read_into(raw[row, : n + 1], first)
            else:
                self._sets[source].shard(number).read_bytes_into(raw[row, : n + 1], offset)
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

    def _space(self, n: int, width: int) -> Space:
        space: Space | None = getattr(self._local, "space", None)
        if space is None or len(space.raw) < n:
            space = self._local.space = Space(n, width, self._stored, int(self._plan.shard_bounds[-1]))
        return space


class Space:
    """What one thread works in: room for the stored tokens of some batches, and the shards that it reads from."""

    def __init__(self, n: int, width: int, stored: Any, n_shards: int) -> None:
        self.raw = np.empty((n, width), stored)
        # Inputs and labels as one array of two, since every call hands Python's lock over.
        inputs, step = (n, width - 1), self.raw.itemsize
        self.shifted = np.lib.stride_tricks.as_strided(
            self.raw, (2, *inputs), (step, *self.raw.strides), writeable=False
        )
        self.reader = BulkReader(self.raw)
        self.files: dict[int, Shard] = {}
        self.fds = np.full(n_shards, -1, np.int32)
        self.unverified = False

    def open(self, numbers: Ints, plan: Plan) -> None:
        """Open these shards, counted through all sources; at most MAX_HELD others stay open."""
        if len(self.files) > MAX_HELD:
            self.fds.fill(-1)
            self.files.clear()
        for number in dict.fromkeys(numbers.tolist()):
            if number not in self.files:
                source = int(np.searchsorted(plan.shard_bounds, number, side="right")) - 1
                shard = plan.sources[source].shards.shard(number - int(plan.shard_bounds[source]))
                self.files[number], self.fds[number] = shard, shard.fd
        self.look()

    def look(self) -> None:
        """See whether any of the shards may hold blocks whose checksums are still to be looked at."""
        self.unverified = not all(shard.clean for shard in self.files.values())
