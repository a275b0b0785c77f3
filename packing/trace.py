"""From a step to its documents, and from a document to its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gristmill.packing.plan import Plan
from gristmill.packing.reader import Provenance


@dataclass(frozen=True)
class Piece:
    """Part of a row: positions [start, start + n_positions) hold `document` from its token `document_token` on."""

    start: int
    n_positions: int
    document: Provenance
    document_token: int


@dataclass(frozen=True)
class RowTrace:
    """What one global sample holds."""

    sample: int
    source: str
    epoch: int
    item: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Showing:
    """A time at which a document is shown: global sample, and step and slot at the loader's batch size."""

    sample: int
    step: int
    slot: int


def trace_sample(plan: Plan, sample: int) -> RowTrace:
    """Return the documents of one global sample."""
    resolved = plan.resolve(np.array([sample], np.int64))
    source = int(resolved.source[0])
    rows = resolved.groups[source]
    shards = plan.sources[source].shards
    pieces: list[Piece] = []
    at = 0
    for first, n in zip(rows.first_P.tolist(), rows.inputs_P.tolist(), strict=True):
        token, end = first, first + n
        while token < end:
            document = shards.locate(token)
            shard = int(np.searchsorted(shards.token_starts, token, side="right")) - 1
            begin = int(shards.token_starts[shard]) + document.first_token
            stop = min(end, begin + document.n_tokens)
            pieces.append(Piece(at + token - first, stop - token, document, token - begin))
            token = stop
        at += n
    return RowTrace(sample, plan.sources[source].name, int(resolved.epoch[0]), int(resolved.item[0]), tuple(pieces))


def samples_with(plan: Plan, document_id: str, first: int, last: int) -> list[int]:
    """Return the global samples in [first, last) that show any token of a document as an input."""
    found: set[int] = set()
    for number, source in enumerate(plan.sources):
        for document in source.shards.find(document_id):
            begin, end = source.shards.document_tokens(document)
            if end > begin:
                items = source.layout.items_of(begin, end)
                found.update(plan.order.samples_of(number, items, first, last).tolist())
    return sorted(found)


def showings(
    samples: list[int], logical: Callable[[int], int], is_skipped: Callable[[int], bool], batch: int
) -> list[Showing]:
    """Return step and slot of samples that are delivered, at `batch` rows a step from the start of the run."""
    out = []
    for sample in samples:
        if not is_skipped(sample):
            step, slot = divmod(logical(sample), batch)
            out.append(Showing(sample, step, slot))
    return out
