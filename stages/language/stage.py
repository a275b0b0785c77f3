"""Which language a document is in, how sure that is, and whether it is wanted.

Work is bounded: of a document over `max_bytes` bytes the model sees `n_windows` windows spread evenly over it,
so a 200 MB document costs what an 8 kB one does. Everything depends on the document's bytes alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.stages.base import REASON_FIELDS, BatchStage, replace_columns
from gristmill.stages.errors import ConfigError, nearest
from gristmill.stages.fasttext_model import FastTextModel, read_labels, read_model
from gristmill.stages.kernels import fasttext, fasttext_labels, language, unicode
from gristmill.stages.kernels.views import text_view
from gristmill.stages.language.scripts import SCRIPT_CODES
from gristmill.stages.models import LID_176

JAPANESE = ("ja", "jpn")
MIN_KANA_LETTERS = 16
"""A Japanese text of this many letters has kana; a shorter one may be a name or a heading without."""
UNDETERMINED = "und"
"""ISO 639-3 code for a document that has no language: no letters, or nothing that the model knows."""


class Language(BatchStage):
    """Identify each document's language and keep the wanted ones."""

    name: ClassVar[str] = "language"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "Identify the language with fastText; keep wanted languages above a score"

    keep: tuple[str, ...] = Field(
        default=(),
        description="languages to keep, as the model names them (`en`, `zh`); for labels such as `eng_Latn` "
        "the language alone also does. Empty: all",
    )
    min_score: float = Field(
        default=0.5, ge=0, le=1,
        description="lowest probability of the best language, [0, 1]; 0.65 is FineWeb's for English alone",
    )  # fmt: skip
    min_scores: dict[str, float] = Field(
        default_factory=dict, description="lowest probability by language, instead of min_score, [0, 1]"
    )
    model_path: Path | None = Field(
        default=None, description="a supervised fastText .bin or .ftz file; default: the built-in lid.176"
    )
    max_bytes: int = Field(
        default=8192, ge=0, le=1 << 40,
        description="most UTF-8 bytes of a document that are looked at, as evenly spaced windows; 0: all",
    )  # fmt: skip
    n_windows: int = Field(default=8, ge=2, le=1024, description="windows in a document over max_bytes")
    top_k: int = Field(
        default=1, ge=1, le=100, description="languages written as signal; above 1 adds lang_top and lang_top_score"
    )
    kana_check: bool = Field(
        default=True,
        description="never call a text of 16 letters or more in Han characters alone Japanese: the best other "
        "language gets the probability it has given that it is not Japanese (lid.176 takes some Chinese for it)",
    )
    paragraphs: bool = Field(
        default=False, description="identify each long line too; adds lang_paragraphs and lang_mixed_share"
    )
    min_paragraph_bytes: int = Field(
        default=80, ge=1, description="shortest line that is identified by itself, UTF-8 bytes"
    )
    max_mixed_share: float = Field(
        default=1.0, ge=0, le=1,
        description="largest share of judged bytes in another language than the document's, [0, 1]; needs paragraphs",
    )  # fmt: skip

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_bytes and self.max_bytes < 256 * self.n_windows:
            raise ValueError(f"max_bytes must be 0 or at least 256 x n_windows = {256 * self.n_windows:,}")
        if self.max_mixed_share < 1 and not self.paragraphs:
            raise ValueError("max_mixed_share needs paragraphs: true")
        for code, score in self.min_scores.items():
            if not 0 <= score <= 1:
                raise ValueError(f"min_scores.{code}: {score} is outside [0, 1]")
        known = self._known()
        for code in (*self.keep, *self.min_scores):
            if code not in known:
                raise ConfigError(
                    f"language: {code!r} is no language of {self._path().name}.{nearest(code, known)} "
                    f"It has {len(known):,}: {', '.join(sorted(known)[:12])}, ..."
                )
        return self

    def _path(self) -> Path:
        return LID_176 if self.model_path is None else self.model_path

    def _known(self) -> set[str]:
        labels = read_labels(self._path())
        return {*labels, *(label.partition("_")[0] for label in labels)}

    def files(self) -> tuple[Path, ...]:
        """Return the model's path."""
        return (self._path(),)

    def writes(self) -> tuple[pa.Field, ...]:
        """Return the language, its probability, the script and what else is switched on."""
        fields = [
            pa.field("lang", pa.string()),
            pa.field("lang_score", pa.float32()),
            pa.field("lang_script", pa.string()),
            pa.field("lang_script_share", pa.float32()),
            pa.field("lang_n_letters", pa.int64()),
        ]
        if self.top_k > 1:
            fields.append(pa.field("lang_top", pa.list_(pa.string())))
            fields.append(pa.field("lang_top_score", pa.list_(pa.float32())))
        if self.paragraphs:
            fields.append(pa.field("lang_paragraphs", pa.int32()))
            fields.append(pa.field("lang_mixed_share", pa.float32()))
        return tuple(fields)

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write the signals and reject by language, score and mixture, in that order."""
        model = read_model(self._path())
        offsets_D1, data_B = text_view(batch.column("text"))
        spans = language.windows(offsets_D1, data_B, self.max_bytes, self.n_windows)
        script, n_script, n_letters = language.script_profile(spans, data_B)
        mean, n_inputs = fasttext.vectors(model, *spans, data_B)
        labels, scores = self._answers(model, mean, n_inputs, script, n_letters, self.top_k)
        best, score = labels[:, 0], scores[:, 0]
        columns: dict[str, pa.Array] = {
            "lang": _names(best, model.labels),
            "lang_score": pa.array(score),
            "lang_script": _take(script.astype(np.int32), SCRIPT_CODES),
            "lang_script_share": pa.array((n_script / np.maximum(n_letters, 1)).astype(np.float32)),
            "lang_n_letters": pa.array(n_letters),
        }
        if self.top_k > 1:
            counts = np.zeros(len(labels) + 1, np.int32)
            np.cumsum((labels >= 0).sum(axis=1), out=counts[1:])
            given = labels >= 0
            columns["lang_top"] = pa.ListArray.from_arrays(counts, _names(labels[given], model.labels))
            columns["lang_top_score"] = pa.ListArray.from_arrays(counts, pa.array(scores[given]))
        mixed = np.zeros(len(batch), np.float32)
        if self.paragraphs:
            n_judged, mixed = self._mixture(model, spans, data_B, best)
            columns["lang_paragraphs"] = pa.array(n_judged)
            columns["lang_mixed_share"] = pa.array(mixed)
        columns.update(self._verdict(model.labels, best, score, n_letters, mixed))
        return replace_columns(batch, columns)

    def _answers(
        self,
        model: FastTextModel,
        mean: npt.NDArray[np.float32],
        n_inputs: npt.NDArray[np.int64],
        script: npt.NDArray[np.uint8],
        n_letters: npt.NDArray[np.int64],
        k: int,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return the k best labels and their probabilities in [0, 1], after the checks that need the script."""
        # One more is asked for, to have k left where Japanese is ruled out.
        labels, scores = fasttext_labels.top_k(model, mean, n_inputs, k + 1)
        scores = np.minimum(scores, np.float32(1))
        # A model answers for digits and emoji too; without letters the answer is noise.
        labels[n_letters == 0] = -1
        scores[labels < 0] = 0
        if self.kana_check:
            japanese = [n for n, name in enumerate(model.labels) if name.partition("_")[0] in JAPANESE]
            without_kana = (script == unicode.SCRIPT_HAN) & (n_letters >= MIN_KANA_LETTERS)
            for d in np.nonzero(without_kana & np.isin(labels[:, 0], japanese))[0]:
                rest = max(1e-5, 1.0 - float(scores[d, 0]))
                labels[d] = np.append(labels[d, 1:], -1)
                scores[d] = np.minimum(1.0, np.append(scores[d, 1:] / rest, 0.0))
        return labels[:, :k], scores[:, :k]

    def _mixture(
        self, model: FastTextModel, spans: language.Spans, data_B: Any, best: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return judged paragraphs and the share of their bytes in another language than the document's (D)."""
        document, starts, ends = language.paragraphs(spans, data_B, self.min_paragraph_bytes)
        each = (np.arange(len(document) + 1, dtype=np.int64), starts, ends)
        script, _, n_letters = language.script_profile(each, data_B)
        vectors = fasttext.vectors(model, *each, data_B)
        labels, scores = self._answers(model, *vectors, script, n_letters, 1)
        judged = (scores[:, 0] >= self.min_score) & (labels[:, 0] >= 0)
        n_bytes = np.where(judged, ends - starts, 0)
        n = len(best)
        total = np.bincount(document, n_bytes, n)
        other = np.bincount(document, np.where(labels[:, 0] != best[document], n_bytes, 0), n)
        n_judged = np.bincount(document[judged], minlength=n).astype(np.int32)
        return n_judged, (other / np.maximum(total, 1)).astype(np.float32)

    def _verdict(
        self,
        names: tuple[str, ...],
        best: npt.NDArray[np.int32],
        score: npt.NDArray[np.float32],
        n_letters: npt.NDArray[np.int64],
        mixed: npt.NDArray[np.float32],
    ) -> dict[str, pa.Array]:
        """Return the three reason columns; the first rule that fails decides."""
        wanted = np.array([*(_is_wanted(name, self.keep) for name in names), not self.keep])
        least = np.array([*(_least(name, self.min_scores, self.min_score) for name in names), self.min_score])
        value = score.astype(np.float64)
        rules = (
            ("no_letters", n_letters == 0, n_letters.astype(np.float64), np.full(len(best), 1.0)),
            ("language_not_wanted", ~wanted[best], value, np.full(len(best), np.nan)),
            ("low_language_score", value < least[best], value, least[best]),
            ("mixed_language", mixed > self.max_mixed_share, mixed.astype(np.float64),
             np.full(len(best), self.max_mixed_share)),
        )  # fmt: skip
        which = np.full(len(best), len(rules), np.int32)
        for number in range(len(rules) - 1, -1, -1):
            which[rules[number][1]] = number
        kept = which == len(rules)
        values = np.select([which == number for number in range(len(rules))], [rule[2] for rule in rules], np.nan)
        thresholds = np.select([which == number for number in range(len(rules))], [rule[3] for rule in rules], np.nan)
        reasons = pa.DictionaryArray.from_arrays(
            pa.array(which, mask=kept), pa.array([rule[0] for rule in rules])
        ).cast(pa.string())
        out = (reasons, pa.array(values, mask=kept), pa.array(thresholds, mask=np.isnan(thresholds)))
        return {field.name: array for field, array in zip(REASON_FIELDS, out, strict=True)}


def _is_wanted(label: str, keep: tuple[str, ...]) -> bool:
    return not keep or label in keep or label.partition("_")[0] in keep


def _least(label: str, by_language: dict[str, float], default: float) -> float:
    return by_language.get(label, by_language.get(label.partition("_")[0], default))


def _take(indices: npt.NDArray[np.int32], names: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(names)).cast(pa.string())


def _names(labels: npt.NDArray[np.int32], names: tuple[str, ...]) -> pa.Array:
    """Return label texts; -1 becomes `und`."""
    return _take(np.where(labels < 0, len(names), labels).astype(np.int32), [*names, UNDETERMINED])
