"""Train a fastText classifier from examples of each label, and report how good it is on held-out ones.

Which documents are used, held out, and in which order they are seen is decided by a hash of the text: the same
texts give the same model byte for byte, copies of a document never lie on both sides, and the order of files does
not matter. One thread, since fastText with more is not deterministic. Chinese, Japanese and Thai have no spaces
between words, so character n-grams are on by default; word n-grams alone would see one token a sentence there.

Memory: the texts that are used (at most `max_documents` x `max_bytes` a label) and the model (`bucket` x `dim` x 4
bytes; 13 MB by default, where the package's own defaults make 831 MB).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import BaseModel, ConfigDict, Field

from gristmill.stages.artifact import open_artifact
from gristmill.stages.classifier.fit import fit
from gristmill.stages.classifier.report import Report, measure
from gristmill.stages.documents import plan_splits, read_split
from gristmill.stages.errors import ConfigError
from gristmill.stages.fasttext_model import read_model
from gristmill.stages.kernels import fasttext, fasttext_labels
from gristmill.stages.kernels.views import text_view


class TrainingOptions(BaseModel):
    """How a classifier is trained. Defaults suit document quality in any script."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dim: int = Field(default=16, ge=1, le=1024, description="columns of the model")
    epochs: int = Field(default=5, ge=1, le=1000, description="passes over the training documents")
    learning_rate: float = Field(default=0.1, gt=0, le=10, description="step size at the start")
    word_ngrams: int = Field(default=2, ge=1, le=10, description="longest word n-gram, words")
    minn: int = Field(default=2, ge=0, le=10, description="shortest character n-gram, characters")
    maxn: int = Field(default=4, ge=0, le=10, description="longest character n-gram, characters; 0: none")
    bucket: int = Field(default=200_000, ge=1000, le=100_000_000, description="rows for n-grams")
    min_count: int = Field(default=2, ge=1, description="rarest word with a row of its own")
    held_out: float = Field(default=0.1, gt=0, lt=0.9, description="share of documents kept for the report")
    max_bytes: int = Field(default=8192, ge=64, description="most UTF-8 bytes used of a document, from its start")
    max_documents: int = Field(default=50_000, ge=10, description="most documents used of each label")
    balance: bool = Field(default=True, description="use equally many documents of each label")
    quantise: bool = Field(default=False, description="write a compressed model (.ftz)")
    seed: int = Field(default=0, ge=0, lt=1 << 31, description="seed of the split and of the training")


@dataclass(frozen=True)
class Trained:
    """A trained model and its report, one for each label but with two labels only for the first."""

    model_path: Path
    reports: tuple[Report, ...]
    n_trained: dict[str, int]

    def write_report(self) -> list[Path]:
        """Write ``<model>.report.json``, ``.md`` and a calibration ``.svg`` for each report beside the model."""
        written = []
        for number, report in enumerate(self.reports):
            stem = str(self.model_path) + ("" if number == 0 else f".{report.label}")
            for suffix, text in (
                (".report.json", report.to_json()),
                (".report.md", report.to_markdown()),
                (".calibration.svg", report.calibration_svg()),
            ):
                path = Path(stem + suffix)
                path.write_text(text, encoding="utf-8")
                written.append(path)
        return written


def train(
    texts: Mapping[str, Iterable[str]], model_path: str | Path, options: TrainingOptions | None = None
) -> Trained:
    """Train on `texts` by label, write the model and return it with its held-out report.

    The first label is the one that the report of a two-label model speaks of; name it ``positive`` and the
    classifier stage needs no `label`.

    Raises:
        ConfigError: fewer than two labels, a label that fastText cannot hold, or too few documents.
        RunError: fastText failed.
    """
    options = options or TrainingOptions()
    labels = list(texts)
    if len(labels) < 2:
        raise ConfigError(f"training needs at least two labels, got {labels}")
    for label in labels:
        if not re.fullmatch(r"[\w.+-]+", label):
            raise ConfigError(f"label {label!r}: letters, digits and _ . + - only")
    examples = {label: _select(texts[label], options) for label in labels}
    if options.balance:
        least = min(len(rows) for rows in examples.values())
        examples = {label: rows[:least] for label, rows in examples.items()}
    trained, held = _divide(examples, options)
    for label in labels:
        if not trained[label] or not held[label]:
            raise ConfigError(
                f"label {label!r}: {len(trained[label]):,} training and {len(held[label]):,} held-out documents; "
                "both need at least one. Give more documents or change held_out"
            )
    model_path = Path(model_path)
    _fit(trained, model_path, options)
    return Trained(model_path, _evaluate(model_path, labels, held), {label: len(trained[label]) for label in labels})


def train_from_artifacts(
    artifacts: Mapping[str, Iterable[str]], model_path: str | Path, options: TrainingOptions | None = None
) -> Trained:
    """As `train`, from paths of document artifacts by label.

    Raises:
        ConfigError: as `train`, or a path that is no artifact of documents.
    """
    return train({label: _texts_of(paths) for label, paths in artifacts.items()}, model_path, options)


def _texts_of(paths: Iterable[str]) -> Iterator[str]:
    schema = pa.schema([pa.field("text", pa.large_string())])
    for path in paths:
        for split in plan_splits([open_artifact(path)], 1):
            for batch in read_split(split, schema):
                yield from (text.as_py() for text in batch.column(0))


def _select(texts: Iterable[str], options: TrainingOptions) -> list[tuple[int, str]]:
    """Return (hash, text) of the documents with the lowest hashes, without copies, by rising hash."""
    chosen: dict[int, str] = {}
    room = 2 * options.max_documents
    for text in texts:
        raw = text.encode()[: options.max_bytes]
        line = raw.decode("utf-8", "ignore").replace("\n", " ").replace("__label__", " ")
        if line and not line.isspace():
            chosen[xxhash.xxh3_64_intdigest(raw, options.seed)] = line
        if len(chosen) > 2 * room:
            chosen = dict(sorted(chosen.items())[:room])
    return sorted(chosen.items())[: options.max_documents]


def _divide(
    examples: dict[str, list[tuple[int, str]]], options: TrainingOptions
) -> tuple[dict[str, list[tuple[int, str]]], dict[str, list[tuple[int, str]]]]:
    """Hold documents out by the low bits of their hash (the high ones decided which are used)."""
    edge = round(options.held_out * 65536)
    trained = {label: [row for row in rows if row[0] & 0xFFFF >= edge] for label, rows in examples.items()}
    held = {label: [row for row in rows if row[0] & 0xFFFF < edge] for label, rows in examples.items()}
    return trained, held


def _fit(trained: dict[str, list[tuple[int, str]]], model_path: Path, options: TrainingOptions) -> None:
    mixed = sorted((h, label, text) for label, rows in trained.items() for h, text in rows)
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "train.txt"
        with lines.open("w", encoding="utf-8", newline="\n") as sink:
            sink.writelines(f"__label__{label} {text}\n" for _, label, text in mixed)
        arguments: dict[str, Any] = {
            "dim": options.dim, "epoch": options.epochs, "lr": options.learning_rate,
            "wordNgrams": options.word_ngrams, "minn": options.minn if options.maxn else 0, "maxn": options.maxn,
            "bucket": options.bucket, "minCount": options.min_count, "loss": "softmax", "thread": 1,
            "seed": options.seed, "verbose": 0,
        }  # fmt: skip
        model_path.parent.mkdir(parents=True, exist_ok=True)
        fit(lines, model_path, arguments, max(1000, options.bucket // 4) if options.quantise else None)


def _evaluate(model_path: Path, labels: list[str], held: dict[str, list[tuple[int, str]]]) -> tuple[Report, ...]:
    model = read_model(model_path)
    rows = [(label, text) for label in labels for _, text in held[label]]
    truth = np.array([label for label, _ in rows])
    offsets_D1, data_B = text_view(pa.array([text for _, text in rows], pa.large_string()))
    mean, n_inputs = fasttext.vectors(model, *fasttext.whole_documents(offsets_D1), data_B)
    reports = []
    for label in labels[:1] if len(labels) == 2 else labels:
        scores = fasttext_labels.probability_of(model, mean, n_inputs, model.labels.index(label))
        reports.append(measure(label, np.minimum(scores, np.float32(1)), truth == label))
    return tuple(reports)
