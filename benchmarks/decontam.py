"""Decontamination: our stage against the set-of-13-grams approach in Python, same sets, same documents, one core.

    python benchmarks/decontam.py --evals 'evals/gsm8k*.jsonl' [--evals ...] [--text 'corpus/*.jsonl.zst'] [--mb 60]

The other side is what most tools do: fold, split on white space, hash each 13-gram of a document, look it up in a
Python set (with xxhash where it is installed). --datatrove names the interpreter of an environment with datatrove,
whose own filter then reads the same items and documents. Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

PEER = r"""
import json, sys, tempfile, time
from datatrove.data import Document
from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter
from datatrove.utils.text import ngrams, simplify_text
import numpy as np
items, texts = json.load(sys.stdin)
config = NGramsDecontConfig(n_grams=13, find_query_ngrams=True)
folder = tempfile.mkdtemp()
judge = NGramsDecontFilter(folder, config=config)
fold = lambda text: judge.tokenizer.word_tokenize(simplify_text(text, config.norm_config))
hashes = {judge.hash_func(" ".join(gram)) for item in items for gram in ngrams(fold(" ".join(item)), 13)}
np.array(sorted(hashes), dtype=config.hash_config.np_descr).tofile(folder + "/all.index.hashes")
judge.filter(Document(text="warm up", id="0"))
began = time.process_time()
found = sum(judge.filter(Document(text=text, id="0")) is not True for text in texts)
print(json.dumps([time.process_time() - began, found]))
"""

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
    parser.add_argument("--datatrove")
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
    if not options.datatrove:
        return
    few = sample[: max(1, len(sample) // 10)]
    given = json.dumps([[[item.question, item.answer] for item in items[:3000]], few])
    answer = subprocess.run([options.datatrove, "-c", PEER], input=given, capture_output=True, text=True, check=False)
    if answer.returncode:
        sys.exit(answer.stderr[-2000:])
    seconds, found = json.loads(answer.stdout.splitlines()[-1])
    peer = sum(len(text.encode()) for text in few) / 1e6 / seconds
    print(f"datatrove NGramsDecontFilter     {peer:8.2f} MB/s  ({found:,} of {len(few):,} documents)")
    print(f"ratio                            {ours / peer:8.0f} x")


if __name__ == "__main__":
    main()
