"""A fastText model's probability of one label as a score, kept by threshold and, if wanted, by weighted sampling.

Sampling is GPT-3's: keep where a Pareto draw exceeds 1 - score, so some low-scoring documents stay in and the
output is not only what the classifier likes best. The draw comes from a hash of the document's id, so a retried
task, another partition count or another batch size keeps the same documents.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.stages.base import REASON_FIELDS, BatchStage, replace_columns
from gristmill.stages.errors import ConfigError, nearest
from gristmill.stages.fasttext_model import read_labels, read_model
from gristmill.stages.kernels import fasttext, fasttext_labels, language
from gristmill.stages.kernels.hashing import hash64
from gristmill.stages.kernels.views import text_view

F64 = npt.NDArray[np.float64]


class Classifier(BatchStage):
    """Score documents with a fastText model and keep by the score."""

    name: ClassVar[str] = "classifier"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "Score with any fastText model (quality, toxicity, domain); keep by threshold or sampling"

    model_path: Path = Field(description="a supervised fastText .bin or .ftz file")
    label: str = Field(
        default="positive", description="label whose probability is the score, without `__label__`", min_length=1
    )
    threshold: float = Field(default=0.5, ge=0, le=1, description="score at which the verdict turns, [0, 1]")
    keep: Literal["above", "below"] = Field(
        default="above", description="above: keep scores >= threshold (quality); below: keep scores < it (toxicity)"
    )
    pareto_alpha: float = Field(
        default=0.0, ge=0, le=1000,
        description="shape of the sampling draw; 0: no sampling. GPT-3 uses 9 with threshold 0; smaller keeps more",
    )  # fmt: skip
    seed: int = Field(default=0, ge=0, lt=1 << 64, description="seed of the sampling draw")
    column: str = Field(
        default="classifier_score", pattern=r"^[A-Za-z_]\w*$", description="column that the score is written to"
    )
    max_bytes: int = Field(
        default=0, ge=0, le=1 << 40,
        description="most UTF-8 bytes of a document that are looked at, as evenly spaced windows; 0: all",
    )  # fmt: skip
    n_windows: int = Field(default=8, ge=2, le=1024, description="windows in a document over max_bytes")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_bytes and self.max_bytes < 256 * self.n_windows:
            raise ValueError(f"max_bytes must be 0 or at least 256 x n_windows = {256 * self.n_windows:,}")
        labels = read_labels(self.model_path)
        if self.label not in labels:
            raise ConfigError(
                f"classifier.label: {self.label!r} is no label of {self.model_path}."
                f"{nearest(self.label, labels)} It has {len(labels):,}: {', '.join(labels[:12])}"
            )
        return self

    def files(self) -> tuple[Path, ...]:
        """Return the model's path."""
        return (self.model_path,)

    def reads(self) -> dict[str, pa.DataType | None]:
        """Return `text`, and `id` where it decides the draw."""
        columns: dict[str, pa.DataType | None] = {"text": pa.large_string()}
        if self.pareto_alpha > 0:
            columns["id"] = None
        return columns

    def writes(self) -> tuple[pa.Field, ...]:
        """Return the score, float32 in [0, 1]."""
        return (pa.field(self.column, pa.float32()),)

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write the score; reject by threshold, then by the draw."""
        model = read_model(self.model_path)
        offsets_D1, data_B = text_view(batch.column("text"))
        spans = language.windows(offsets_D1, data_B, self.max_bytes, self.n_windows)
        mean, n_inputs = fasttext.vectors(model, *spans, data_B)
        score = fasttext_labels.probability_of(model, mean, n_inputs, model.labels.index(self.label))
        score = np.minimum(score, np.float32(1))
        value = score.astype(np.float64)
        if self.keep == "above":
            rejected, rule = value < self.threshold, f"low_{self.column}"
        else:
            rejected, rule = value >= self.threshold, f"high_{self.column}"
        reason = np.where(rejected, 0, -1)
        threshold = np.full(len(value), self.threshold)
        if self.pareto_alpha > 0:
            draw = pareto_draws(batch.column("id"), self.pareto_alpha, self.seed)
            needed = 1.0 - draw if self.keep == "above" else draw
            lost = (value <= needed if self.keep == "above" else value >= needed) & ~rejected
            reason[lost] = 1
            threshold = np.where(lost, needed, threshold)
        kept = reason < 0
        columns: dict[str, pa.Array] = {self.column: pa.array(score)}
        reasons = pa.DictionaryArray.from_arrays(
            pa.array(reason.astype(np.int32), mask=kept), pa.array([rule, f"not_drawn_by_{self.column}"])
        ).cast(pa.string())
        out = (reasons, pa.array(value, mask=kept), pa.array(threshold, mask=kept))
        columns.update({field.name: array for field, array in zip(REASON_FIELDS, out, strict=True)})
        return replace_columns(batch, columns)


def pareto_draws(ids: pa.Array | pa.ChunkedArray, alpha: float, seed: int) -> F64:
    """Return one Pareto II (Lomax) draw a document, float64 in [0, inf), from XXH3-64 of its id.

    The distribution is NumPy's `pareto(alpha)`; GPT-3 keeps a document where the draw exceeds 1 - score with
    alpha 9 (Brown et al., arXiv:2005.14165, appendix A). Equal ids get equal draws.
    """
    if not (pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type)):
        ids = ids.cast(pa.string())
    hashes = hash64(*text_view(ids), seed)
    uniform = ((hashes >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.expm1(-np.log(uniform) / alpha)
