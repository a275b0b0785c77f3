"""Decontamination: our stage against the set-of-13-grams approach in Python, same sets, same documents, one core.

    python benchmarks/decontam.py --evals 'evals/gsm8k*.jsonl' [--evals ...] [--text 'corpus/*.jsonl.zst'] [--mb 60]

The other side is what most tools do: fold, split on white space, hash each 13-gram of a document, look it up in a
Python set (as lm-evaluation-harness and datatrove do, with xxhash where it is installed). Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import unicodedata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

PUNCTUATION = re.compile(r"[^\w\s]")


def grams(text: str, n: int = 13) -> list[str]:
    """Return the n-grams of folded words."""
    words = PUNCTUATION.sub(" ", unicodedata.normalize("NFKC", text).lower()).split()
    return [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--evals", action="append", default=None)
    parser.add_argument("--text")
    parser.add_argument("--mb", type=float, default=60)
    parser.add_argument("--peer-mb", type=float, default=6)
    options = parser.parse_args()
    import pyarrow as pa
    from pii import take

    from gristmill import stages
    from gristmill.decontam.evals import EvalSet, load_items

    try:
        from xxhash import xxh3_64_intdigest as digest
    except ImportError:
        digest = hash
    evals = options.evals or ["builtin:demo"]
    texts = take(options.text, options.mb * 1e6)
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    size = sum(len(text.encode()) for text in texts) / 1e6
    stage = stages.create("decontaminate", evals=[{"path": path} for path in evals])
    began = time.process_time()
    index = stage.index()
    print(f"index, with kernels              {time.process_time() - began:8.2f} s  {index.report['ngrams']}")
    stage.transform(batch.slice(0, 1))
    times = []
    for _ in range(3):
        began = time.process_time()
        out = stage.transform(batch)
        times.append(time.process_time() - began)
    ours = size / min(times)
    flagged = len(texts) - out.column("reason").null_count
    print(f"{len(texts):,} documents, {size:.1f} MB; {flagged:,} flagged")
    print(f"stage                            {ours:8.1f} MB/s")
    items = [item for path in evals for item in load_items(EvalSet(path=path))]
    parts = [text for item in items for text in (item.question, item.answer, *item.choices) if text]
    known = {digest(gram.encode()) for text in parts for gram in grams(text)}
    sample = take(options.text, options.peer_mb * 1e6)
    began = time.process_time()
    found = sum(any(digest(gram.encode()) in known for gram in grams(text)) for text in sample)
    peer = sum(len(text.encode()) for text in sample) / 1e6 / (time.process_time() - began)
    print(
        f"set of 13-grams in Python        {peer:8.2f} MB/s  ({found:,} documents of {options.peer_mb} MB; words only)"
    )
    print(f"ratio                            {ours / peer:8.0f} x")


if __name__ == "__main__":
    main()
