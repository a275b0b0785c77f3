"""How good a score is on documents that it was not trained on: AUC, thresholds, calibration.

All numbers are for one label against the rest. Sources: AUC as the Mann-Whitney statistic with ties counted half;
expected calibration error as in Guo et al., arXiv:1706.04599, over ten bins of equal width.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))
N_BINS = 10
LINE = "#3a6ea5"


@dataclass(frozen=True)
class ThresholdRow:
    """What keeping scores >= `threshold` would do; shares in [0, 1], null where there is nothing to divide by."""

    threshold: float
    precision: float | None
    recall: float
    false_positive_rate: float
    kept_share: float


@dataclass(frozen=True)
class CalibrationBin:
    """Documents with a score in [low, high): how many, their mean score, the share that is positive."""

    low: float
    high: float
    n_docs: int
    mean_score: float | None
    positive_share: float | None


@dataclass(frozen=True)
class Report:
    """Quality of a score on held-out documents."""

    label: str
    n_positive: int
    n_negative: int
    auc: float
    brier: float
    calibration_error: float
    thresholds: tuple[ThresholdRow, ...]
    calibration: tuple[CalibrationBin, ...]

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self), indent=1)

    def to_markdown(self) -> str:
        """Return the report for people."""
        lines = [
            f"Held out: {self.n_positive:,} `{self.label}`, {self.n_negative:,} other. "
            f"AUC {self.auc:.4f}, Brier {self.brier:.4f}, calibration error {self.calibration_error:.4f}.",
            "",
            "| threshold | precision | recall | false positives | kept |",
            "|---|---|---|---|---|",
        ]
        for row in self.thresholds:
            precision = "–" if row.precision is None else f"{row.precision:.3f}"
            lines.append(
                f"| {row.threshold:.2f} | {precision} | {row.recall:.3f} | {row.false_positive_rate:.3f} | "
                f"{row.kept_share:.3f} |"
            )
        lines += ["", "| score | documents | mean score | positive |", "|---|---|---|---|"]
        for b in self.calibration:
            if b.n_docs:
                lines.append(
                    f"| {b.low:.1f}–{b.high:.1f} | {b.n_docs:,} | {b.mean_score:.3f} | {b.positive_share:.3f} |"
                )
        return "\n".join(lines) + "\n"

    def calibration_svg(self) -> str:
        """Return the calibration plot: share of positives over mean score, bars for the documents in each bin."""
        size, edge = 260, 34
        most = max([b.n_docs for b in self.calibration] + [1])
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size + 2 * edge} {size + 2 * edge}" '
            'font-family="sans-serif" font-size="10">',
            f"<title>{_escape(self.label)}: AUC {self.auc:.3f}, error {self.calibration_error:.3f}</title>",
        ]

        def x(value: float) -> float:
            return round(edge + value * size, 1)

        def y(value: float) -> float:
            return round(edge + (1 - value) * size, 1)

        for b in self.calibration:
            height = size * 0.25 * b.n_docs / most
            parts.append(
                f'<rect x="{x(b.low) + 1}" y="{y(0) - height:.1f}" width="{size / N_BINS - 2:.1f}" '
                f'height="{height:.1f}" fill="#d5dde6"/>'
            )
        parts.append(f'<rect x="{edge}" y="{edge}" width="{size}" height="{size}" fill="none" stroke="#999"/>')
        parts.append(f'<line x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}" stroke="#999" stroke-dasharray="4 3"/>')
        points = [
            (x(b.mean_score), y(b.positive_share))
            for b in self.calibration
            if b.mean_score is not None and b.positive_share is not None
        ]
        path = " ".join(f"{a},{b}" for a, b in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.5"/>')
        parts += [f'<circle cx="{a}" cy="{b}" r="3" fill="{LINE}"/>' for a, b in points]
        for tick in (0.0, 0.5, 1.0):
            parts.append(f'<text x="{x(tick)}" y="{y(0) + 13}" text-anchor="middle">{tick:g}</text>')
            parts.append(f'<text x="{x(0) - 5}" y="{y(tick) + 3}" text-anchor="end">{tick:g}</text>')
        parts.append(f'<text x="{x(0.5)}" y="{y(0) + 27}" text-anchor="middle">mean score</text>')
        parts.append(f'<text x="{edge}" y="{edge - 8}">share of {_escape(self.label)} (held out)</text>')
        return "\n".join([*parts, "</svg>", ""])


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def auc(scores: npt.NDArray[Any], positive: npt.NDArray[np.bool_]) -> float:
    """Return the probability that a positive scores above a negative, ties half; nan without both."""
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    if not n_positive or not n_negative:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def measure(label: str, scores: npt.NDArray[Any], positive: npt.NDArray[np.bool_]) -> Report:
    """Return the report of `scores` in [0, 1] against the truth."""
    scores = scores.astype(np.float64)
    n, n_positive = len(scores), int(positive.sum())
    rows = []
    for threshold in THRESHOLDS:
        kept = scores >= threshold
        hits = int((kept & positive).sum())
        n_kept = int(kept.sum())
        rows.append(
            ThresholdRow(
                threshold,
                hits / n_kept if n_kept else None,
                hits / max(1, n_positive),
                (n_kept - hits) / max(1, n - n_positive),
                n_kept / max(1, n),
            )
        )
    which = np.minimum((scores * N_BINS).astype(np.int64), N_BINS - 1)
    bins, error = [], 0.0
    for number in range(N_BINS):
        inside = which == number
        n_docs = int(inside.sum())
        mean = float(scores[inside].mean()) if n_docs else None
        share = float(positive[inside].mean()) if n_docs else None
        if mean is not None and share is not None:
            error += abs(mean - share) * n_docs / n
        bins.append(CalibrationBin(number / N_BINS, (number + 1) / N_BINS, n_docs, mean, share))
    brier = float(((scores - positive) ** 2).mean()) if n else float("nan")
    return Report(label, n_positive, n - n_positive, auc(scores, positive), brier, error, tuple(rows), tuple(bins))
