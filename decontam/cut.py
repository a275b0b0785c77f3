"""Cut matched runs out of documents, with a window around each, as GPT-3 did (Brown et al. 2020, appendix C).

A run and `window` characters on each side go; what remains between two cuts stays if it has at least `min_piece`
characters; a document with more than `max_cuts` cuts, or of which nothing remains, is given up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gristmill.stages.kernels.pii import Spans, splice
from gristmill.stages.kernels.views import Bytes, Offsets

JOINT = b"\n"
"""What stands where something was cut out between two pieces that stay."""


@dataclass
class Cut:
    """Byte ranges to remove, in document order: ``(document, start, end, 1 where a joint stays)``."""

    spans: list[tuple[int, int, int, int]] = field(default_factory=list)
    hopeless: set[int] = field(default_factory=set)

    def write(self, offsets_D1: Offsets, data_B: Bytes) -> tuple[Offsets, Bytes]:
        """Return the text without the ranges as ``(offsets_D1, data_B)``."""
        doc, start, end, joint = np.array(self.spans, np.int64).reshape(-1, 4).T.copy()
        return splice(offsets_D1, data_B, Spans(doc, start, end, joint.astype(np.uint8)), joint, [b"", JOINT])

    def removed_bytes(self, n_docs: int) -> npt.NDArray[np.int64]:
        """Return the bytes removed from each document, int64 (D)."""
        removed_D = np.zeros(n_docs, np.int64)
        for doc, start, end, joint in self.spans:
            removed_D[doc] += end - start - joint * len(JOINT)
        return removed_D


def cut_documents(
    offsets_D1: Offsets,
    data_B: Bytes,
    runs: dict[int, list[tuple[int, int]]],
    window: int,
    min_piece: int,
    max_cuts: int,
) -> Cut:
    """Return what to remove for the byte ranges `runs` of each document; documents given up keep their text."""
    cut = Cut()
    for doc in sorted(runs):
        lo, hi = int(offsets_D1[doc]), int(offsets_D1[doc + 1])
        holes: list[list[int]] = []
        for start, end in sorted(runs[doc]):
            a, b = _back(data_B, lo, start, window), _forward(data_B, hi, end, window)
            if holes and a <= holes[-1][1]:
                holes[-1][1] = max(holes[-1][1], b)
            else:
                holes.append([a, b])
        pieces = []
        at = lo
        for a, b in [*holes, [hi, hi]]:
            if a > at and _long_enough(data_B, at, a, min_piece):
                pieces.append((at, a))
            at = b
        if not pieces or len(holes) > max_cuts:
            cut.hopeless.add(doc)
            continue
        at = lo
        for number, (a, b) in enumerate([*pieces, (hi, hi)]):
            if a > at:
                cut.spans.append((doc, at, a, int(0 < number < len(pieces))))
            at = b
    return cut


def _back(data_B: Bytes, lo: int, at: int, characters: int) -> int:
    """Return the position `characters` characters before `at`, at least `lo`."""
    first = max(lo, at - 4 * characters - 3)
    leads = np.flatnonzero((data_B[first:at] & 0xC0) != 0x80)
    return first + int(leads[-characters]) if 0 < characters <= len(leads) else at if characters == 0 else lo


def _forward(data_B: Bytes, hi: int, at: int, characters: int) -> int:
    """Return the position `characters` characters after `at`, at most `hi`."""
    last = min(hi, at + 4 * characters + 4)
    leads = np.flatnonzero((data_B[at:last] & 0xC0) != 0x80)
    return at + int(leads[characters]) if characters < len(leads) else hi


def _long_enough(data_B: Bytes, start: int, end: int, characters: int) -> bool:
    if end - start >= 4 * characters:
        return True
    return int(((data_B[start:end] & 0xC0) != 0x80).sum()) >= characters
