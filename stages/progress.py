"""Live counts of a running stage, fed by Spark accumulators as tasks go on and read by whoever shows progress."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Counters:
    """Documents and bytes done so far of one node, and what there is to do (0: not known)."""

    node: str
    total_docs: int = 0
    total_bytes: int = 0
    started: float = field(default_factory=time.monotonic)
    skipped_splits: int = 0
    note: str = ""
    _pairs: list[tuple[Any, Any]] = field(default_factory=list)

    def accumulators(self, spark: Any) -> tuple[Any, Any]:
        """Return a new (documents, bytes) pair of accumulators for one sweep over the data."""
        pair = (spark.sparkContext.accumulator(0), spark.sparkContext.accumulator(0))
        self._pairs.append(pair)
        return pair

    def skip(self, n_splits: int) -> None:
        """Note splits that an earlier, interrupted run has done already."""
        self.skipped_splits = n_splits

    @property
    def docs(self) -> int:
        """Documents done in the latest sweep."""
        return int(self._pairs[-1][0].value) if self._pairs else 0

    @property
    def n_bytes(self) -> int:
        """Bytes of text done in the latest sweep."""
        return int(self._pairs[-1][1].value) if self._pairs else 0

    @property
    def seconds(self) -> float:
        """Seconds since the node began."""
        return time.monotonic() - self.started
