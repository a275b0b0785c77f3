"""Decontamination: keep evaluation items out of the training text.

Each document is streamed once against an index of the evaluation sets' n-grams (`kernels.ngrams`). A common run of
at least `n` words (or `n_characters` characters, where a text is written without spaces), or a whole short
question, is contamination. The document is dropped, or the run is cut out with a window around it. See
docs/decontam.md for the rules, their sources and their limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator

from gristmill.decontam.cut import cut_documents
from gristmill.decontam.evals import FIELDS, EvalSet, load_items
from gristmill.decontam.index import EvalIndex, IndexConfig, load_index
from gristmill.decontam.verdict import Hit, judge
from gristmill.stages.base import REASON_FIELDS, BatchStage, Stage, replace_columns
from gristmill.stages.errors import ConfigError
from gristmill.stages.kernels.ngrams import match
from gristmill.stages.kernels.views import text_array, text_view

SAMPLE_CHARACTERS = 200
MOST_ITEMS_LISTED = 1000

_SIGNALS = (
    pa.field("contam_set", pa.string()),
    pa.field("contam_item", pa.string()),
    pa.field("contam_field", pa.string()),
    pa.field("contam_tokens", pa.int32()),
    pa.field("contam_ratio", pa.float32()),
    pa.field("contam_items_n", pa.int32()),
    pa.field("contam_items", pa.list_(pa.string())),
    pa.field("contam_passages_n", pa.int32()),
    pa.field("contam_text", pa.string()),
)


class Decontaminate(BatchStage):
    """Find evaluation items in `text`; write what was found; drop the document or cut the match."""

    name: ClassVar[str] = "decontaminate"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "drop documents that contain evaluation items, or cut the items out (n-gram index)"

    evals: tuple[EvalSet, ...] = Field(
        min_length=1, description="evaluation sets: paths, globs or objects with path, name, fields and thresholds"
    )
    action: Literal["drop", "cut", "flag"] = Field(
        default="drop", description="drop the document, cut the match and a window around it, or only write signals"
    )
    n: int = Field(default=13, ge=5, le=50, description="words in an n-gram")
    n_characters: int = Field(
        default=20, ge=8, le=60, description="characters in an n-gram of text without spaces (Chinese, Japanese, Thai)"
    )
    min_words: int = Field(default=8, ge=4, le=50, description="shorter questions than this many words are skipped")
    min_characters: int = Field(default=12, ge=6, le=60, description="the same in characters, for text without spaces")
    max_items: int = Field(
        default=10, ge=1, description="n-grams of more different items than this are common phrases and not indexed"
    )
    ignore: tuple[str, ...] = Field(default=(), description="phrases whose n-grams are not indexed")
    fields: tuple[Literal["question", "answer", "choice", "passage"], ...] = Field(
        min_length=1,
        default=("question", "answer", "choice"),
        description="parts of an item whose match decides; a passage alone matches its source article",
    )
    window: int = Field(default=200, ge=0, description="characters cut on each side of a match (action cut)")
    min_piece: int = Field(default=200, ge=0, description="characters that a piece between cuts must have to stay")
    max_cuts: int = Field(default=10, ge=0, description="documents cut into more pieces than this are dropped")

    @field_validator("evals", mode="before")
    @classmethod
    def _paths(cls, evals: Any) -> Any:
        if isinstance(evals, str | dict):
            evals = [evals]
        if not isinstance(evals, list | tuple):
            return evals
        return [{"path": spec} if isinstance(spec, str | Path) else spec for spec in evals]

    def model_post_init(self, _: object) -> None:
        """Refuse missing files and contradictions, before anything runs.

        Raises:
            ConfigError: a file is missing (with the nearest one), a minimum above its n-gram, one name twice.
        """
        self.files()
        for least, most in (("min_words", "n"), ("min_characters", "n_characters")):
            if getattr(self, least) > getattr(self, most):
                raise ConfigError(
                    f"{self.name}.{least} is {getattr(self, least)}, above {most} ({getattr(self, most)})"
                )
        titles = [spec.title() for spec in self.evals]
        for title in titles:
            if titles.count(title) > 1:
                raise ConfigError(f"{self.name}.evals: two sets are called {title!r}; give one of them a `name:`")

    def files(self) -> tuple[Path, ...]:
        """Return the evaluation files: their content is part of the fingerprint."""
        return tuple(path for spec in self.evals for path in spec.files())

    def check(self, node: str, inputs: Mapping[str, Stage]) -> None:
        """Read the evaluation sets.

        Raises:
            ConfigError: one cannot be read, has no field that the mapping knows, or no item.
        """
        for spec in self.evals:
            try:
                items = load_items(spec)
            except ConfigError as error:
                raise ConfigError(f"{node}.evals: {error}") from None
            if not items:
                raise ConfigError(f"{node}.evals: {spec.path}: `allow` names every item; leave the set out instead")

    def writes(self) -> tuple[pa.Field, ...]:
        """Return the contamination signals (null or 0 where nothing was found), and ``text`` where it is cut."""
        if self.action == "cut":
            return (pa.field("text", pa.large_string()), *_SIGNALS, pa.field("contam_removed_bytes", pa.int64()))
        return _SIGNALS

    def edits(self) -> dict[str, str]:
        """Return the ledger reason of cut text."""
        return {"contaminated": "contam_removed_bytes"} if self.action == "cut" else {}

    def index(self) -> EvalIndex:
        """Return the index, built on first use in this process."""
        return load_index(
            IndexConfig(
                self.evals, self.n, self.n_characters, self.min_words, self.min_characters, self.max_items, self.ignore
            )
        )

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the signals, the verdict, and cut text."""
        offsets_D1, data_B = text_view(batch.column("text"))
        index = self.index()
        matches_M7 = match(offsets_D1, data_B, index.table)
        deciding = tuple(name for name in FIELDS if name in self.fields)
        hits = judge(index, matches_M7, deciding, offsets_D1, data_B, SAMPLE_CHARACTERS, MOST_ITEMS_LISTED)
        n_docs = batch.num_rows
        columns = _columns(n_docs, hits)
        flagged = {hit.doc: hit for hit in hits if hit.flagged}
        if self.action == "cut":
            runs = {doc: hit.spans for doc, hit in flagged.items()}
            cut = cut_documents(offsets_D1, data_B, runs, self.window, self.min_piece, self.max_cuts)
            if cut.spans:
                columns = {"text": text_array(*cut.write(offsets_D1, data_B)), **columns}
            columns["contam_removed_bytes"] = pa.array(cut.removed_bytes(n_docs))
            flagged = {doc: hit for doc, hit in flagged.items() if doc in cut.hopeless}
        if self.action == "flag":
            flagged = {}
        return replace_columns(batch, {**columns, **self._verdict(n_docs, flagged)})

    def _verdict(self, n_docs: int, flagged: dict[int, Hit]) -> dict[str, pa.Array]:
        reason: list[str | None] = [None] * n_docs
        value: list[float | None] = [None] * n_docs
        threshold: list[float | None] = [None] * n_docs
        for doc, hit in flagged.items():
            reason[doc] = f"contaminated_{hit.set_name}"
            value[doc] = float(hit.n_tokens)
            threshold[doc] = float(hit.threshold)
        arrays = (pa.array(reason, pa.string()), pa.array(value, pa.float64()), pa.array(threshold, pa.float64()))
        return {field.name: array for field, array in zip(REASON_FIELDS, arrays, strict=True)}


def _columns(n_docs: int, hits: list[Hit]) -> dict[str, pa.Array]:
    """Return the signal columns; documents without a hit have null names and zero counts."""
    n_tokens, n_items = np.zeros(n_docs, np.int32), np.zeros(n_docs, np.int32)
    n_passages, ratio = np.zeros(n_docs, np.int32), np.zeros(n_docs, np.float32)
    texts: dict[str, list[Any]] = {
        name: [None] * n_docs for name in ("contam_set", "contam_item", "contam_field", "contam_items", "contam_text")
    }
    for hit in hits:
        n_passages[hit.doc] = hit.n_passages
        if not hit.set_name:
            continue
        n_tokens[hit.doc], ratio[hit.doc], n_items[hit.doc] = hit.n_tokens, hit.ratio, hit.n_items
        for name, value in zip(texts, (hit.set_name, hit.item_id, hit.part, hit.items, hit.text), strict=True):
            texts[name][hit.doc] = value
    numbers = {
        "contam_tokens": n_tokens, "contam_ratio": ratio, "contam_items_n": n_items, "contam_passages_n": n_passages,
    }  # fmt: skip
    return {
        field.name: pa.array(numbers[field.name] if field.name in numbers else texts[field.name], field.type)
        for field in _SIGNALS
    }
