"""Throughput of the heuristic filters on one core, beside datatrove's FineWeb chain on the same documents.

    python benchmarks/filters.py --docs CORPUS [--mb 100] [--datatrove-python PATH] [--datatrove-mb 3]

Ours is `Heuristics.transform`: every signal and the rules of the preset, edited text included, in batches of
4 MB, the second of two passes (the first compiles or loads the kernels). datatrove's is the chain Gopher
repetition, Gopher quality, C4 without the end-mark rule, FineWeb quality over `Document` objects, stopping at the
first filter that rejects, as its pipeline does. Seconds are of the process's own CPU time, one thread.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import subprocess
import time
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "1")
import pyarrow as pa
import zstandard

from gristmill.stages.heuristics import Heuristics

CHAIN = r"""
import json, sys, time
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter)
chain = [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(filter_no_terminal_punct=False),
         FineWebQualityFilter()]
texts = [json.loads(line) for line in sys.stdin]
for one in chain:
    one.filter(Document(text="warm up the tokenizer once. " * 5, id="w"))
kept = 0
start = time.process_time()
for text in texts:
    document = Document(text=text, id="x")
    try:
        kept += all(one.filter(document) is True for one in chain)
    except Exception:
        pass
print(json.dumps([time.process_time() - start, kept]))
"""


def read(path: Path, n_bytes: float, language: str | None) -> list[tuple[str, str]]:
    """Return (text, language) of documents spread over the corpus, about `n_bytes` in all."""
    files = [path] if path.is_file() else sorted([*path.rglob("*.jsonl.zst"), *path.rglob("*.jsonl")])
    rows: list[tuple[str, str]] = []
    for file in files:
        raw = file.open("rb")
        stream = zstandard.ZstdDecompressor().stream_reader(raw) if file.suffix == ".zst" else raw
        for line in io.TextIOWrapper(stream, "utf-8"):
            record = json.loads(line)
            hint = record.get("lang_hint", "en")
            if language is None or hint == language:
                rows.append((record["text"], hint))
    total = sum(len(text) for text, _ in rows)
    step = max(round(total / n_bytes), 1)
    return rows[::step]


def batches(rows: list[tuple[str, str]], n_bytes: int = 4_000_000) -> list[pa.RecordBatch]:
    """Return the rows as record batches of about `n_bytes` of text."""
    out, current, size = [], [], 0
    for row in [*rows, None]:
        if row is None or size > n_bytes:
            if current:
                columns = {
                    "text": pa.array([t for t, _ in current], pa.large_string()),
                    "lang": [x for _, x in current],
                }
                out.append(pa.RecordBatch.from_pydict(columns))
            current, size = [], 0
        if row is not None:
            current.append(row)
            size += len(row[0].encode())
    return out


def measure(preset: str, rows: list[tuple[str, str]], passes: int = 3) -> tuple[float, int, int]:
    """Return (best CPU seconds, documents kept, bytes)."""
    stage = Heuristics.build(preset=preset)
    parts = batches(rows)
    best = float("inf")
    kept = 0
    for _ in range(passes):
        start = time.process_time()
        kept = sum(stage.transform(part).column("reason").null_count for part in parts)
        best = min(best, time.process_time() - start)
    return best, kept, sum(len(text.encode()) for text, _ in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, required=True)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--datatrove-python")
    parser.add_argument("--datatrove-mb", type=float, default=3)
    options = parser.parse_args()
    machine = platform.processor() or platform.machine()
    print(f"{machine}, Python {platform.python_version()}, one thread, load {os.getloadavg()[0]:.1f}")
    for language in (None, "en", "zh", "ja", "ru"):
        rows = read(options.docs, options.mb * 1e6 if language is None else options.mb * 2e5, language)
        for preset in ("fineweb", "web") if language in {None, "en"} else ("web",):
            seconds, kept, n_bytes = measure(preset, rows)
            label = f"{language or 'all languages'}"
            print(f"{label:14} {preset:15} {len(rows):7,} documents {n_bytes / 1e6:7.1f} MB  {seconds:6.2f} s "
                  f"{n_bytes / seconds / 1e6:6.1f} MB/s  kept {kept:,}")  # fmt: skip
    if options.datatrove_python:
        rows = read(options.docs, options.datatrove_mb * 1e6, "en")
        lines = "".join(json.dumps(text) + "\n" for text, _ in rows)
        done = subprocess.run(
            [options.datatrove_python, "-c", CHAIN], input=lines, capture_output=True, text=True, check=True
        )
        theirs, their_kept = json.loads(done.stdout.splitlines()[-1])
        for preset in ("fineweb", "datatrove-0.10"):
            seconds, kept, n_bytes = measure(preset, rows)
            mb = n_bytes / 1e6
            print(
                f"same {mb:.1f} MB of English: {preset} {mb / seconds:.1f} MB/s (kept {kept:,}), "
                f"datatrove {mb / theirs:.3f} MB/s (kept {their_kept:,}): {theirs / seconds:.0f}x"
            )


if __name__ == "__main__":
    main()
