"""Perplexity of each document under a KenLM language model, and CCNet's head, middle and tail.

Perplexity is ``10 ** (-sum of log10 / sum of (tokens + 1))`` over the document's lines, each scored with sentence
start and end (CCNet, Wenzek et al., arXiv:1911.00359). Scoring is a call into KenLM a line, a few MB/s a core:
an optional scorer, not a first filter. Needs the package `kenlm` or `ufal-kenlm`.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.stages.base import REASON_FIELDS, BatchStage, replace_columns
from gristmill.stages.errors import ConfigError

Bucket = Literal["head", "middle", "tail", "unknown"]
BUCKETS: tuple[Bucket, ...] = ("head", "middle", "tail", "unknown")
PUNCTUATION = {
    ord(a): b
    for a, b in zip("，。、„”“«»１」「《》´∶：？！（）；–—．～’…━〈〉【】％►", [
        ",", ".", ",", '"', '"', '"', '"', '"', "1", '"', '"', '"', '"', "'", ":", ":", "?", "!", "(", ")", ";", "-",
        " - ", ". ", "~", "'", "...", "-", "<", ">", "[", "]", "%", "-",
    ], strict=True)
}  # fmt: skip
"""Typographic and full-width punctuation to the ASCII that the models were trained on."""


class Perplexity(BatchStage):
    """Score documents with a KenLM model and sort them into head, middle and tail."""

    name: ClassVar[str] = "perplexity"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "Perplexity under a KenLM model; keep by CCNet's head, middle, tail or a maximum"

    model_path: str = Field(
        description="KenLM model (binary or ARPA); `{lang}` in it is replaced by the document's `lang`", min_length=1
    )
    tokens: Literal["spaces", "characters", "sentencepiece"] = Field(
        default="spaces", description="what the model's words are: split at white space, characters, or pieces"
    )
    sentencepiece_path: str | None = Field(
        default=None, description="SentencePiece model; `{lang}` as above; needs the package sentencepiece"
    )
    normalize: bool = Field(
        default=True,
        description="lower case, every digit to 0, typographic punctuation to ASCII, as CCNet's models need",
    )
    cutoffs: dict[str, tuple[float, float]] = Field(
        default_factory=dict,
        description="by language, largest perplexity of head and of middle (CCNet: percentiles 30 and 60 of a "
        "sample; `classifier_percentile` reports them); `*` for the others",
    )
    keep: tuple[Bucket, ...] = Field(default=BUCKETS, description="buckets that are kept")
    max_perplexity: float | None = Field(default=None, gt=0, description="largest perplexity that is kept")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if importlib.util.find_spec("kenlm") is None:
            raise ConfigError(
                "perplexity: needs KenLM; install it with `pip install ufal-kenlm` or `pip install kenlm`"
            )
        if self.tokens == "sentencepiece":
            if self.sentencepiece_path is None:
                raise ValueError("tokens: sentencepiece needs sentencepiece_path")
            if importlib.util.find_spec("sentencepiece") is None:
                raise ConfigError("perplexity: tokens: sentencepiece needs `pip install sentencepiece`")
        for code, (head, middle) in self.cutoffs.items():
            if not 0 < head <= middle:
                raise ValueError(f"cutoffs.{code}: head {head} must be above 0 and at most middle {middle}")
        if not self.files():
            raise ConfigError(f"perplexity.model_path: no file {self.model_path}")
        return self

    def files(self) -> tuple[Path, ...]:
        """Return the models of every language that are there."""
        return tuple(path for name in (self.model_path, self.sentencepiece_path) if name for path in _matching(name))

    def reads(self) -> dict[str, pa.DataType | None]:
        """Return `text`, and `lang` where it chooses a model or a cutoff."""
        columns: dict[str, pa.DataType | None] = {"text": pa.large_string()}
        if self._by_language():
            columns["lang"] = None
        return columns

    def _by_language(self) -> bool:
        return "{lang}" in self.model_path or any(code != "*" for code in self.cutoffs)

    def writes(self) -> tuple[pa.Field, ...]:
        """Return the perplexity (null: no model, no token) and its bucket."""
        return (pa.field("perplexity", pa.float64()), pa.field("perplexity_bucket", pa.string()))

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write perplexity and bucket; reject by bucket, then by maximum."""
        n = len(batch)
        languages = batch.column("lang").to_pylist() if self._by_language() else [None] * n
        value = np.array(
            [self._score(text.as_py(), lang) for text, lang in zip(batch.column("text"), languages, strict=True)],
            np.float64,
        )
        limits = [self.cutoffs.get(lang or "", self.cutoffs.get("*")) for lang in languages]
        names = [_bucket(float(x), limit) for x, limit in zip(value, limits, strict=True)]
        reasons: list[str | None] = [None] * n
        thresholds: list[float | None] = [None] * n
        for i, (bucket, limit) in enumerate(zip(names, limits, strict=True)):
            if bucket not in self.keep:
                reasons[i] = f"perplexity_{bucket}"
                thresholds[i] = None if limit is None else {"middle": limit[0], "tail": limit[1]}.get(bucket)
            elif self.max_perplexity is not None and value[i] > self.max_perplexity:
                reasons[i], thresholds[i] = "high_perplexity", self.max_perplexity
        kept = np.array([reason is None for reason in reasons], np.bool_)
        out = (
            pa.array(reasons, pa.string()),
            pa.array(value, mask=kept | np.isnan(value)),
            pa.array(thresholds, pa.float64()),
        )
        columns = {
            "perplexity": pa.array(value, mask=np.isnan(value)),
            "perplexity_bucket": pa.array(names, pa.string()),
        }
        columns |= {field.name: array for field, array in zip(REASON_FIELDS, out, strict=True)}
        return replace_columns(batch, columns)

    def _score(self, text: str, lang: str | None) -> float:
        path = self.model_path.replace("{lang}", lang or "")
        if not Path(path).is_file():
            return float("nan")
        model = _model(path)
        total, n_tokens = 0.0, 0
        for line in _normalized(text) if self.normalize else text.split("\n"):
            tokens = self._tokens(line, lang)
            if tokens:
                total += model.score(" ".join(tokens), bos=True, eos=True)
                n_tokens += len(tokens) + 1
        return float(10.0 ** (-total / n_tokens)) if n_tokens else float("nan")

    def _tokens(self, line: str, lang: str | None) -> list[str]:
        if self.tokens == "spaces":
            return line.split()
        if self.tokens == "characters":
            return [character for character in line if not character.isspace()]
        pieces = _pieces((self.sentencepiece_path or "").replace("{lang}", lang or ""))
        return list(pieces.encode(line, out_type=str))


def _normalized(text: str) -> list[str]:
    lowered = text.lower().translate(PUNCTUATION)
    return "".join("0" if character.isdigit() else character for character in lowered).split("\n")


def _bucket(value: float, limit: tuple[float, float] | None) -> Bucket:
    if limit is None or np.isnan(value):
        return "unknown"
    return "head" if value <= limit[0] else "middle" if value <= limit[1] else "tail"


def _matching(name: str) -> list[Path]:
    path = Path(name)
    if "{lang}" not in name:
        return [path] if path.is_file() else []
    base = Path(name.partition("{lang}")[0]).parent if "{lang}" in path.parent.as_posix() else path.parent
    pattern = path.as_posix().removeprefix(base.as_posix()).lstrip("/").replace("{lang}", "*")
    return sorted(found for found in base.glob(pattern) if found.is_file())


@cache
def _model(path: str) -> Any:
    import kenlm  # type: ignore[import-not-found]

    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    return kenlm.Model(path, config)


@cache
def _pieces(path: str) -> Any:
    import sentencepiece  # type: ignore[import-not-found]

    return sentencepiece.SentencePieceProcessor(model_file=path)
