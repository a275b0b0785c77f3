"""What can be asked of a run without running it: which samples a step holds, where documents are shown, what is due.

All of it follows from the plan, the skip windows, the rows a step and the number of ranks; position and threads are the
loader's (loader.py), which answers these too.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.packing.balance import deal
from gristmill.packing.certificate import Certificate, certify, row_marks
from gristmill.packing.order import Skips
from gristmill.packing.plan import Plan
from gristmill.packing.reader import Provenance
from gristmill.packing.trace import RowTrace, Showing, samples_with, showings, trace_sample

Ints = npt.NDArray[np.int64]


class Questions:
    """Pure functions of a run's plan, skips and shape; steps count from the start of the run, at this batch size."""

    plan: Plan
    global_batch_size: int
    world_size: int
    _skips: Skips
    _balance: bool
    _arguments: dict[str, Any]
    _lock: threading.Lock
    _pid: int

    def samples_of_steps(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the windows of global samples that steps [first, last) of this batch size hold, for `skip`."""
        g = self.global_batch_size
        return windows(self._skips.sample(np.arange(first * g, last * g, dtype=np.int64)))

    def samples_of_tokens(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the windows of global samples that hold tokens [first, last) of the run, S a row, for `skip`."""
        s = self.plan.sequence_length
        return windows(self._skips.sample(np.arange(first // s, -(-last // s), dtype=np.int64)))

    def samples_of(self, rows: Ints) -> Ints:
        """Return the global samples of deliveries `rows` (counted from the start of the run)."""
        return self._skips.sample(rows)

    def samples_of_slots(self, first: int, last: int) -> Ints:
        """Return the global samples of the slots of steps [first, last), step after step; -1 beyond the end."""
        return self._dealt(first * self.global_batch_size, last - first).ravel()

    def sample_of(self, row: int) -> int:
        """Return the global sample of one delivery."""
        return int(self._skips.sample(row))

    def expected_certificate(self, first: int, last: int) -> Certificate:
        """Return what the certificates of all ranks for rows [first, last) of the run must add up to."""
        total = Certificate()
        for at in range(first, last, 1 << 16):
            samples = self._skips.sample(np.arange(at, min(at + (1 << 16), last), dtype=np.int64))
            located = (samples, *self.plan.order.locate(samples))
            total += certify(row_marks(*(part.view(np.uint64) for part in located)))
        return total

    def document(self, source: int, number: int) -> Provenance:
        """Return what a row of a batch's `document_ids` stands for."""
        return self.plan.sources[source].shards.provenance(number)

    def where(self, step: int, slot: int) -> RowTrace:
        """Return the documents in row `slot` of the global batch of `step`, counted at this batch size."""
        n_parts = self._divisor(step * self.global_batch_size)
        slot, part = divmod(slot, n_parts)
        sample = int(self._dealt(step * self.global_batch_size, 1)[0, slot])
        return trace_sample(self.plan, sample, part, n_parts)

    def when(self, document_id: str, first: int = 0, last: int | None = None) -> list[Showing]:
        """Return when a document is shown, among global samples [first, last).

        `last` is the end of the run by default, or a million samples on where there is none.
        """
        end = self.plan.order.n_samples
        last = (end if end is not None else first + 1_000_000) if last is None else last
        samples = samples_with(self.plan, document_id, first, last)
        return showings(self.plan, document_id, samples, self._skips, self.global_batch_size, self._dealt)

    @property
    def delivered(self) -> int:
        """Rows delivered to all ranks together since the run began."""
        raise NotImplementedError

    # ---- inside ----------------------------------------------------------------------------------------

    def _renew_locks(self) -> None:
        """In a forked process: locks that the parent's threads held at that moment would never be given back here."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        owners = [self, self._arguments["cache"], *(source.shards for source in self.plan.sources)]
        for owner in owners:
            if owner is not None:
                owner._lock = threading.Lock()

    def _divisor(self, row: int) -> int:
        """Into how many rows the step is cut that begins with delivery `row`."""
        return int(self.plan.lengths.divisors(self._skips.sample(row))) if self.plan.lengths.changes else 1

    def _next_use(self, shard: str, first_byte: int, last_byte: int) -> float:
        """Return the next sample that reads these bytes of a shard, within two epochs or a million samples."""
        now = self.sample_of(self.delivered)
        end = now + min(1_000_000, 2 * sum(self.plan.order.n_items))
        total = self.plan.order.n_samples
        end = end if total is None else min(end, total)
        best = float("inf")
        for number, source in enumerate(self.plan.sources):
            shards, width = source.shards, source.shards.dtype.itemsize
            for i in range(len(shards)):
                if shards.name_of(i) == shard:
                    base = int(shards.token_starts[i])
                    items = source.layout.items_of(base + first_byte // width, base + last_byte // width)
                    found = self.plan.order.samples_of(number, items, now, end)
                    best = min(best, float(found[0]) if len(found) else best)
        return best

    def _dealt(self, first: int, n_steps: int) -> Ints:
        """Global samples of all slots of the steps from delivery `first` on, int64 (n_steps, rows a step)."""
        g = self.global_batch_size
        samples = self._delivery(np.arange(first, first + n_steps * g, dtype=np.int64))
        if self._balance:
            costs = self.plan.costs(samples).reshape(n_steps, g)
            chosen = deal(costs, np.arange(self.world_size + 1, dtype=np.int64) * g // self.world_size)
            return np.take_along_axis(samples.reshape(n_steps, g), chosen, axis=1)
        return samples.reshape(n_steps, g)

    def _delivery(self, rows: Ints) -> Ints:
        """Global samples of deliveries, -1 beyond the end."""
        samples = self._skips.sample(rows)
        total = self.plan.order.n_samples
        return samples if total is None else np.where(samples < total, samples, -1)


def windows(samples: Ints) -> list[tuple[int, int]]:
    """Return rising samples as half-open windows."""
    breaks = np.flatnonzero(np.diff(samples) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(samples, breaks) if len(part)]
