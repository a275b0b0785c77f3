"""Makes the batches of one rank: rows are looked up thousands at a time, and several steps are filled together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.packing.batch import Batch, BatchOptions, Filler
from gristmill.packing.certificate import Certificate, certify
from gristmill.packing.chunk import Chunk
from gristmill.packing.questions import Questions
from gristmill.packing.trace import segment_documents

Ints = npt.NDArray[np.int64]
CHUNK_ROWS = 4096
"""Rows whose order and documents are looked up at once: about 0.8 us each this way, 800 us for a single one."""
HEAD_STEPS = 1
"""Steps of the first chunk after a start: few, so that the first batch waits for few shards to be opened."""

STEPS_AT_ONCE, BYTES_AT_ONCE = 8, 1 << 20
"""Steps that are filled together, and bytes of their ids, at most. Python's own share is a quarter of what a step of
2^16 positions costs by itself; arrays of several MiB drive each other out of the processor's cache."""


class Steps(Questions):
    """Steps from a base position on, counted from there; rows [low, high) of each are this rank's."""

    filler: Filler
    _options: BatchOptions
    _base: int
    _low: int
    _high: int
    _last: int | None
    _document_ids: bool
    _certify_content: bool

    def _set_shape(self) -> None:
        """Say how many steps are looked up, and how many are filled, at once."""
        rows = self._high - self._low
        self._chunks: dict[int, Chunk] = {}
        self._head_steps, self._chunk_steps = HEAD_STEPS, max(1, CHUNK_ROWS // rows)
        n_bytes = rows * self.plan.sequence_length * self._options.dtype.itemsize
        at_once = min(STEPS_AT_ONCE, max(1, BYTES_AT_ONCE // n_bytes))
        # Chunks of remote shards take their time: the first step must not wait for those after it.
        self._at_once = at_once if self._arguments["cache"] is None else 1

    def _make(self, made: int, n: int) -> list[tuple[Batch, Certificate]]:
        """Return this rank's batches of `n` steps from the `made`-th after the base on, with their certificates."""
        out: list[tuple[Batch, Certificate]] = []
        while len(out) < n:
            number, first = self._place(made + len(out))
            chunk = self._chunk(number)
            # One chunk at a time: the steps of the next may be of another shape, and it may not be there yet.
            last = min(first + n - len(out), len(chunk.samples) // chunk.rows)
            begins = range(made + len(out), made + len(out) + last - first)
            divisors = [self._divisor(self._base + step * self.global_batch_size) for step in begins]
            for within, batch in enumerate(self.filler.fill_several(chunk, first, divisors), first):
                out.append((batch, self._certified(chunk, within, batch)))
        return out

    def _certified(self, chunk: Chunk, within: int, batch: Batch) -> Certificate:
        """Return the certificate of a batch; complete it where document ids are asked for."""
        low, high = within * chunk.rows, (within + 1) * chunk.rows
        if self._document_ids:
            batch["document_ids"] = segment_documents(self.plan, chunk.samples[low:high], batch["cu_seqlens"])
        if self._certify_content:
            return certify(chunk.marks[low:high], batch["input_ids"].reshape(chunk.rows, -1))
        return chunk.certificate(low, high)

    def _place(self, made: int) -> tuple[int, int]:
        """Return the chunk that holds the `made`-th step from the base, and the step's number in it."""
        if made < self._head_steps:
            return -1, made
        return divmod(made - self._head_steps, self._chunk_steps)

    def _look_ahead(self, made: int) -> None:
        """Prepare the next chunk half-way through one, beside the threads that fill batches from it."""
        number, within = self._place(made)
        n_steps = self._chunk_steps if number >= 0 else self._head_steps
        if within == n_steps // 2 and (self._last is None or made - within + n_steps < self._last):
            self._chunk(number + 1)

    def _chunk(self, number: int) -> Chunk:
        found = self._chunks.get(number)
        if found is not None:
            return found
        with self._lock:
            found = self._chunks.get(number)
            if found is None:
                first, n_steps = 0, self._head_steps
                if number >= 0:
                    first, n_steps = self._head_steps + number * self._chunk_steps, self._chunk_steps
                found = Chunk(
                    self.plan,
                    self._samples(first, n_steps),
                    self._divisors(first, n_steps),
                    self._high - self._low,
                )
                self._chunks[number] = found
                while len(self._chunks) > 4:
                    del self._chunks[min(self._chunks)]
            return found

    def _divisors(self, made: int, n_steps: int) -> Ints | None:
        """Into how many rows each of this rank's rows in steps made .. made + n_steps is cut; None: into one."""
        if not self.plan.lengths.changes:
            return None
        first = self._base + np.arange(made, made + n_steps, dtype=np.int64) * self.global_batch_size
        return np.repeat(self.plan.lengths.divisors(self._skips.sample(first)), self._high - self._low)

    def _samples(self, made: int, n_steps: int) -> Ints:
        """Global samples of this rank's rows in steps made .. made + n_steps; -1 beyond the end."""
        g = self.global_batch_size
        if self._balance:
            return self._dealt(self._base + made * g, n_steps)[:, self._low : self._high].ravel()
        step = np.arange(made, made + n_steps, dtype=np.int64)[:, None] * g
        return self._delivery(self._base + (step + np.arange(self._low, self._high, dtype=np.int64)).ravel())
