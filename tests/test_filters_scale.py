"""The filters together on Spark, however the documents are cut into files and tasks, and alone on huge documents."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import documents, table_rows, write_jsonl
from fasttext_files import tiny
from test_heuristics_text import ARTICLE, SPAM

Run = Callable[..., dict[str, Any]]


def rows() -> list[dict[str, Any]]:
    """Prose, spam, mixtures of both and odd texts in seven languages, every row with an id of its own."""
    texts = []
    for i in range(24):
        for language, prose in ARTICLE.items():
            words = SPAM[language].split()
            stuffed = " ".join(words[(i * k) % len(words)] for k in range(40 + i))
            turned = prose[i % 11 :] + prose[: i % 11]
            texts += [
                "\n".join([turned] * (1 + i % 4)),
                stuffed,
                f"{prose}\r\n{stuffed} {i}",
                "😀" * i + "\ufffd" * (i % 7),
            ]
    return [{"id": f"{n:05d}", "text": text} for n, text in enumerate(texts)]


def test_verdicts_do_not_depend_on_files_or_partitions(run_pipeline: Run, tmp_path: Path) -> None:
    model = tiny("word n-grams", labels=["good", "bad"], seed=4).write(tmp_path / "quality.bin")
    filters = {
        "language": {"min_score": 0.3, "max_removed": 1.0},
        "heuristics": {"filters": ["encoding", "quality"], "thresholds": {"too_few_words": 20}, "max_removed": 1.0},
        "classifier": {"model_path": str(model), "label": "good", "threshold": 0.4, "max_removed": 1.0},
    }
    found = []
    for n_files in (1, 64):
        every = rows()[:: 1 if n_files == 1 else -1]
        for k in range(n_files):
            write_jsonl(tmp_path / str(n_files) / f"{k * 37 % n_files:03d}.jsonl", every[k::n_files])
        ingest = {
            "stage": "ingest",
            "path": str(tmp_path / str(n_files)),
            **({"split_bytes": 8192} if n_files > 1 else {}),
        }
        artifacts = run_pipeline({"web": ingest, **filters}, tmp_path / f"out-{n_files}")
        assert len(artifacts["web"].parts) >= n_files
        made = artifacts["classifier"]
        rejected = [(r["id"], r["stage"], r["reason"], r["reason_value"]) for r in table_rows(made, "rejected")]
        origin = {"path", "row", "file", "line"}
        kept = [{k: v for k, v in row.items() if k not in origin} for row in documents(made)]
        found.append((kept, sorted(rejected), [entry.rejected for entry in made.ledger]))
    one, many = found
    assert len(one[0]) > 50
    assert {stage for _, stage, _, _ in one[1]} == set(filters)
    assert one == many


LARGE = """
import json, resource, sys, time
import numpy as np, pyarrow as pa
from gristmill import stages

name, kind, size, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
if kind == "emoji":
    text = "😀" * (size // 4)
else:
    words = np.array([f"w{i:x}" for i in range(50_000)] + ["the", "of", "and", "to"] * 5_000, dtype=object)
    block = " ".join(words[np.random.default_rng(1).integers(0, len(words), 200_000)])
    block = "\\n".join(block[i : i + 90] for i in range(0, len(block), 90))
    text = (block * (size // len(block) + 1))[:size]

def batch(text):
    return pa.RecordBatch.from_pydict({"id": ["a"], "text": pa.array([text], pa.large_string()), "lang": ["en"]})

stage, large = stages.create(name, **options), batch(text)
del text
stage.transform(batch("warm " * 200))
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
reason = stage.transform(large).column("reason")[0].as_py()
seconds = time.process_time() - start
print(json.dumps([seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, reason]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["words", "emoji"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("heuristics", {}),
        ("heuristics", {"preset": "fineweb"}),
        ("language", {}),
        ("language", {"paragraphs": True, "max_bytes": 1 << 28}),
        ("classifier", {"label": "good"}),
        ("classifier", {"label": "good", "max_bytes": 1 << 28}),
    ],
)
def test_a_document_of_200_mb_takes_linear_time_and_bounded_memory(
    name: str, options: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    if name == "classifier":
        model = tiny("word n-grams", labels=["good", "bad"], seed=4).write(tmp_path / "quality.bin")
        options = {**options, "model_path": str(model)}

    def run(size: int) -> tuple[float, int, str | None]:
        command = [sys.executable, "-c", LARGE, name, kind, str(size), json.dumps(options)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, mib, reason = json.loads(done.stdout)
        return seconds, mib, reason

    (small, _, first), (large, mib, second) = run(50_000_000), run(200_000_000)
    assert first == second
    assert large < 6 * small + 1, (small, large)
    assert mib < 600, mib
