"""From a step to its documents, and from a document to its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gristmill.packing.order import Skips
from gristmill.packing.plan import Plan
from gristmill.packing.reader import Provenance

Ints = npt.NDArray[np.int64]


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


def trace_sample(plan: Plan, sample: int, part: int = 0, n_parts: int = 1) -> RowTrace:
    """Return the documents of one global sample, or of one of the equal parts that it is cut into."""
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
    width = plan.sequence_length // n_parts
    pieces = [p for piece in pieces if (p := _within(piece, part * width, (part + 1) * width)) is not None]
    return RowTrace(sample, plan.sources[source].name, int(resolved.epoch[0]), int(resolved.item[0]), tuple(pieces))


def segment_documents(plan: Plan, samples: Ints, bounds: Ints) -> Ints:
    """Return which document each segment of a batch is of: number of the source and of the document in it.

    Args:
        plan: the run's plan.
        samples: global sample of each full row of the batch, -1 for a blank one.
        bounds: `cu_seqlens` of the batch.

    Returns:
        int64 [segments, 2]; -1, -1 where a segment is padding.
    """
    s = plan.sequence_length
    resolved = plan.resolve(samples)
    row, position = np.divmod(np.asarray(bounds[:-1], np.int64), s)
    out = np.full((len(row), 2), -1, np.int64)
    for i, rows in resolved.groups.items():
        mine = np.flatnonzero(resolved.source == i)
        local = np.full(len(samples), -1, np.int64)
        local[mine] = np.arange(len(mine))
        chosen = np.flatnonzero(local[row] >= 0)
        k, at = local[row[chosen]], position[chosen]
        # Where pieces begin in the rows of this source, laid end to end.
        before = np.cumsum(rows.inputs_P) - rows.inputs_P
        size = np.diff(rows.pieces_C1)
        begins = before - np.repeat(before[rows.pieces_C1[:-1]], size)
        number = np.repeat(np.arange(len(mine)), size)
        piece = np.searchsorted(number * s + begins, k * s + at, side="right") - 1
        inside = at - begins[piece]
        real = inside < rows.inputs_P[piece]
        chosen, token = chosen[real], (rows.first_P[piece] + inside)[real]
        out[chosen, 0] = i
        out[chosen, 1] = plan.sources[i].shards.documents_at(token)
    return out


def _within(piece: Piece, low: int, high: int) -> Piece | None:
    """Return what of a piece lies in positions [low, high), counted from `low`."""
    start, stop = max(piece.start, low), min(piece.start + piece.n_positions, high)
    if stop <= start:
        return None
    return Piece(start - low, stop - start, piece.document, piece.document_token + start - piece.start)


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
    plan: Plan,
    document_id: str,
    samples: list[int],
    skips: Skips,
    batch: int,
    dealt: Callable[[int, int], Ints],
) -> list[Showing]:
    """Return step and slot of the rows of `samples` that show a document, at `batch` full rows a step."""
    out = []
    for sample in samples:
        if skips.skipped(sample):
            continue
        step = skips.logical(sample) // batch
        slot = int(np.flatnonzero(dealt(step * batch, 1)[0] == sample)[0])
        n_parts = int(plan.lengths.divisors(skips.sample(step * batch)))
        out += [
            Showing(sample, step, slot * n_parts + part)
            for part in range(n_parts)
            if n_parts == 1 or _shows(trace_sample(plan, sample, part, n_parts), document_id)
        ]
    return out


def _shows(trace: RowTrace, document_id: str) -> bool:
    return any(piece.document.document_id == document_id for piece in trace.pieces)
