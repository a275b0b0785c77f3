"""The kernels give the package's answers on 20,000 real documents or more, for three kinds of model."""

from __future__ import annotations

import gzip
import json
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill.stages.classifier.fit import fit
from gristmill.stages.fasttext_model import read_model
from gristmill.stages.kernels import fasttext, fasttext_labels
from gristmill.stages.kernels.views import text_view
from gristmill.stages.models import LID_176

N_DOCUMENTS, N_OTHERS = 20_000, 6_000
"""Documents in all, and those besides the paragraphs, at least."""
UDHR = Path(__file__).resolve().parents[2] / "shared" / "data" / "udhr" / "paragraphs.jsonl.gz"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """UDHR paragraphs where they are at hand, then pieces of the texts and sources that are installed with Python."""
    texts: list[str] = []
    if UDHR.is_file():
        with gzip.open(UDHR, "rt", encoding="utf-8") as lines:
            texts = [json.loads(line)["text"] for line in lines]
    wanted = max(N_DOCUMENTS, len(texts) + N_OTHERS)
    folders = [Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib"))]
    rng = np.random.default_rng(3)
    for folder in folders:
        for path in sorted(
            [*folder.rglob("*.py"), *folder.rglob("*.md"), *folder.rglob("*.txt"), *folder.rglob("METADATA")]
        ):
            if len(texts) >= wanted:
                return texts
            try:
                text = path.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            at = 0
            while at < len(text) and len(texts) < wanted:
                length = int(rng.integers(20, 3000))
                texts.append(text[at : at + length])
                at += length
    return texts


def train_file(folder: Path, documents: list[str]) -> Path:
    path = folder / "train.txt"
    with path.open("w", encoding="utf-8") as sink:
        for text in documents[::5]:
            label = ("other", "python", "latin")[(":" in text) + (max(text, default="a") < "\u0250")]
            sink.write(f"__label__{label} {text.replace(chr(10), ' ')}\n")
    return path


@pytest.mark.parametrize("kind", ["lid.176", "softmax with word n-grams", "quantised"])
def test_the_kernel_equals_the_package_on_20000_documents(kind: str, documents: list[str], tmp_path: Path) -> None:
    package = pytest.importorskip("fasttext")
    assert len(documents) >= N_DOCUMENTS
    path = LID_176
    if kind != "lid.176":
        path = tmp_path / "model.bin"
        arguments: dict[str, Any] = {"dim": 12, "epoch": 2, "thread": 1, "verbose": 0, "minCount": 2}
        if kind == "quantised":
            arguments |= {"minn": 1, "maxn": 5, "bucket": 30_000, "loss": "hs", "wordNgrams": 2}
        else:
            arguments |= {"minn": 0, "maxn": 0, "bucket": 50_000, "wordNgrams": 3}
        fit(train_file(tmp_path, documents), path, arguments, 8000 if kind == "quantised" else None)
    model = read_model(path)
    offsets, data = text_view(pa.array(documents, pa.large_string()))
    mean, n_inputs = fasttext.vectors(model, *fasttext.whole_documents(offsets), data, stops_at_end_token=True)
    labels, scores = fasttext_labels.top_k(model, mean, n_inputs, 3)
    peer = package.load_model(str(path))
    for text, ours, p in zip(documents, labels, scores, strict=True):
        names, expected = peer.predict(text.replace("\n", " "), k=3)
        got = {model.labels[label]: float(score) for label, score in zip(ours, p, strict=True) if label >= 0}
        for name, score in zip(names, expected, strict=True):
            # The package leaves out, and so do we, what lies below its floor; either may at the edge itself.
            assert abs(got.get(name.removeprefix("__label__"), 0.0) - score) <= 1e-4, (text, got, names, expected)
