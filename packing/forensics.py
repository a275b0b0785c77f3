"""After a loss spike: what was in those steps, worst rows first, and a skip list to leave it out.

Three signals of each row are held against rows of the run's past: the entropy of its ids (low: boilerplate,
padding runs), the share of 8-grams that occurred earlier in the row (high: loops), and its surprisal, the mean
-log2 of its ids' frequencies in the past (high: foreign scripts, binary, hashes). A row's score is the largest of
the three deviations, in standard deviations of the past.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gristmill.packing.chunk import Chunk
from gristmill.packing.errors import ArgumentError, problem
from gristmill.packing.loader import Loader
from gristmill.packing.questions import windows
from gristmill.packing.trace import trace_sample

NGRAM = 8
BASELINE_ROWS = 512


@dataclass(frozen=True)
class SuspectRow:
    """One delivered row: step and slot, its three signals, its score, and its documents.

    `ids` are its first 64, `repeats` the 8-gram that occurs most often in it (empty if none occurs twice), `rarest` its
    five ids of the highest surprisal.
    """

    step: int
    slot: int
    sample: int
    source: str
    score: float
    worst: str
    entropy_bits: float
    repeated: float
    surprisal_bits: float
    documents: tuple[str, ...]
    ids: tuple[int, ...]
    repeats: tuple[int, ...]
    rarest: tuple[int, ...]


def windows_of(rows: Iterable[SuspectRow]) -> list[tuple[int, int]]:
    """Return the half-open windows of global samples that these rows are, rising."""
    return windows(np.array(sorted({row.sample for row in rows}), np.int64))


def spike_report(
    loader: Loader, first_step: int, last_step: int, baseline_rows: int = BASELINE_ROWS
) -> list[SuspectRow]:
    """Return the rows of all ranks in steps [first_step, last_step), worst first.

    Steps are counted at this loader's batch size from the start of the run. The baseline is taken evenly from
    the steps before, or from the run's start where there are none.

    Raises:
        ArgumentError: no such steps.
    """
    g = loader.global_batch_size
    total = loader.n_rows
    first, last = first_step * g, last_step * g
    last = last if total is None else min(last, total)
    if not 0 <= first < last:
        raise ArgumentError(
            problem("no such steps", where="spike_report", expected="0 <= first < last", got=(first_step, last_step))
        )
    before = first if first else min(total or g * 64, g * 64)
    chosen = np.unique(np.linspace(0, before - 1, min(baseline_rows, before)).astype(np.int64))
    past = row_ids(loader, loader.samples_of(chosen))
    size = loader.plan.sources[0].shards.vocab_size
    frequency = np.bincount(past.ravel(), minlength=size) + 1.0
    surprise = -np.log2(frequency / frequency.sum())
    base = signals(past, surprise)
    centre, spread = base.mean(axis=0), base.std(axis=0) + 1e-6
    samples = loader.samples_of_slots(first_step, -(-last // g))
    slots = np.flatnonzero(samples >= 0)
    samples = samples[slots]
    found = np.empty((len(samples), 3))
    details: list[tuple[tuple[int, ...], ...]] = []
    for at in range(0, len(samples), 64):
        ids = row_ids(loader, samples[at : at + 64])
        found[at : at + 64] = signals(ids, surprise)
        details += [
            (tuple(row[:64].tolist()), most_repeated(row), tuple(rarest(row, surprise).tolist())) for row in ids
        ]
    # Low entropy is suspicious, high repetition and surprisal are.
    deviation = (found - centre) / spread * np.array([-1.0, 1.0, 1.0])
    names = ("entropy", "repetition", "surprisal")
    out = []
    for row in np.argsort(-deviation.max(axis=1), kind="stable").tolist():
        trace = trace_sample(loader.plan, int(samples[row]))
        step, slot = divmod(first + int(slots[row]), g)
        entropy, repeated, surprisal = found[row].tolist()
        out.append(
            SuspectRow(
                step,
                slot,
                int(samples[row]),
                trace.source,
                float(deviation[row].max()),
                names[int(deviation[row].argmax())],
                entropy,
                repeated,
                surprisal,
                tuple(piece.document.document_id for piece in trace.pieces),
                *details[row],
            )
        )
    return out


def row_ids(loader: Loader, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the input ids of any global samples, int64 [rows, S]."""
    parts = []
    for at in range(0, len(samples), 64):
        chunk = Chunk(loader.plan, samples[at : at + 64])
        parts.append(loader.filler.fill(chunk)["input_ids"].astype(np.int64))
    return np.concatenate(parts)


def _grams(tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return a hash of each 8-gram."""
    grams = np.zeros(max(len(tokens) - NGRAM + 1, 0), np.uint64)
    for i in range(NGRAM):
        grams = grams * np.uint64(0x9E3779B97F4A7C15) + tokens[i : i + len(grams)].astype(np.uint64)
    return grams


def most_repeated(tokens: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """Return the 8-gram that occurs most often, the earliest of several; nothing if none occurs twice."""
    _, first, counts = np.unique(_grams(tokens), return_index=True, return_counts=True)
    if not len(counts) or counts.max() < 2:
        return ()
    at = int(first[counts == counts.max()].min())
    return tuple(tokens[at : at + NGRAM].tolist())


def rarest(tokens: npt.NDArray[np.int64], surprise: npt.NDArray[np.float64], n: int = 5) -> npt.NDArray[np.int64]:
    """Return the `n` different ids of the highest surprisal, the most surprising first."""
    ids = np.unique(tokens)
    return ids[np.argsort(-surprise[ids], kind="stable")[:n]]


def signals(ids: npt.NDArray[np.int64], surprise: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return entropy in bits, share of repeated 8-grams and mean surprisal in bits of each row, [rows, 3]."""
    out = np.empty((len(ids), 3))
    for row, tokens in enumerate(ids):
        share = np.unique(tokens, return_counts=True)[1] / len(tokens)
        grams = _grams(tokens)
        out[row, 0] = -(share * np.log2(share)).sum()
        out[row, 1] = 1 - len(np.unique(grams)) / max(1, len(grams))
        out[row, 2] = surprise[tokens].mean()
    return out


def spike_text(rows: Sequence[SuspectRow], decode: Callable[[Sequence[int]], str] | None = None, top: int = 20) -> str:
    """Return the worst rows as a table for a terminal."""
    head = f"{'score':>6} {'because of':<11} {'step':>9} {'slot':>5} {'entropy':>8} {'repeated':>8} {'surprisal':>9}  "
    lines = [head + "source, documents"]
    for row in rows[:top]:
        names = ", ".join(row.documents[:3]) + (f" and {len(row.documents) - 3} more" if len(row.documents) > 3 else "")
        lines.append(
            f"{row.score:>6.1f} {row.worst:<11} {row.step:>9,} {row.slot:>5} {row.entropy_bits:>8.2f} "
            f"{row.repeated:>8.1%} {row.surprisal_bits:>9.2f}  {row.source}: {names}"
        )
        if decode is not None:
            lines.append(f"       {decode(row.ids)[:100]!r}")
    return "\n".join(lines)


def spike_html(rows: Sequence[SuspectRow], decode: Callable[[Sequence[int]], str] | None = None) -> str:
    """Return the report as one HTML page without scripts."""
    cells = []
    for row in rows:
        text, loop, rare = (
            decode(part) if decode is not None else " ".join(map(str, part))
            for part in (row.ids, row.repeats, row.rarest)
        )
        values = (
            f"{row.score:.1f}", row.worst, f"{row.step:,}", row.slot, f"{row.entropy_bits:.2f}",
            f"{row.repeated:.1%}", f"{row.surprisal_bits:.2f}", row.source, ", ".join(row.documents), text, loop, rare,
        )  # fmt: skip
        cells.append("<tr>" + "".join(f"<td>{html.escape(str(v))}</td>" for v in values) + "</tr>")
    names = (
        "score", "because of", "step", "slot", "entropy", "repeated", "surprisal", "source", "documents", "text",
        "most repeated", "rarest",
    )  # fmt: skip
    head = "".join(f"<th>{name}</th>" for name in names)
    style = "body{font:14px sans-serif}td,th{padding:4px 8px;text-align:left;border-bottom:1px solid #ddd}"
    return (
        f"<!doctype html><meta charset=utf-8><title>Spike report</title><style>{style}</style>"
        f"<h1>Rows delivered, worst first</h1><table><tr>{head}</tr>{''.join(cells)}</table>"
    )
