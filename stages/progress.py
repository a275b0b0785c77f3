"""Live counts of a running stage, fed by Spark accumulators as tasks go on and read by whoever shows progress."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sweep:
    """Spark accumulators of one sweep over the data: documents, bytes of text, documents kept."""

    docs: Any
    n_bytes: Any
    kept: Any

    def add(self, docs: int, n_bytes: int, kept: int) -> None:
        """Count, from inside a task."""
        self.docs.add(docs)
        self.n_bytes.add(n_bytes)
        self.kept.add(kept)


@dataclass
class Counters:
    """What a node has done so far, and what there is to do (0: not known)."""

    node: str
    total_docs: int = 0
    total_bytes: int = 0
    started: float = field(default_factory=time.monotonic)
    skipped_splits: int = 0
    sweeps: list[Sweep] = field(default_factory=list)

    def sweep(self, spark: Any) -> Sweep:
        """Begin a new sweep over the data."""
        accumulator = spark.sparkContext.accumulator
        self.sweeps.append(Sweep(accumulator(0), accumulator(0), accumulator(0)))
        return self.sweeps[-1]

    def skip(self, n_splits: int) -> None:
        """Note splits that an earlier, interrupted run has done already."""
        self.skipped_splits = n_splits

    @property
    def docs(self) -> int:
        """Documents done in the latest sweep."""
        return int(self.sweeps[-1].docs.value) if self.sweeps else 0

    @property
    def n_bytes(self) -> int:
        """Bytes of text done in the latest sweep."""
        return int(self.sweeps[-1].n_bytes.value) if self.sweeps else 0

    @property
    def kept(self) -> int:
        """Documents kept in the latest sweep; 0 where the stage decides only at its end."""
        return int(self.sweeps[-1].kept.value) if self.sweeps else 0

    @property
    def seconds(self) -> float:
        """Seconds since the node began."""
        return time.monotonic() - self.started
