"""Deduplication against its peers and against the truth, in one run on one machine.

python benchmarks/dedup.py kernels CORPUS           signature kernel; datasketch and rensa on the same shingles
python benchmarks/dedup.py truth CORPUS             all pairs by exact Jaccard, planted variants, unverified LSH
python benchmarks/dedup.py whole CORPUS [--datatrove-python PYTHON] [--sample-megabytes 10]

CORPUS is a directory of ``*.jsonl.zst`` or ``*.jsonl`` with fields id, text and optionally source, lang_hint. Peers
are imported where installed (rensa, datasketch) or run by another interpreter (datatrove). Seconds are CPU seconds
of this process for kernels, wall-clock seconds for whole runs.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from dedup_corpus import make_artifact, removed, run_stage

from gristmill.stages import runtime
from gristmill.stages.fuzzy_dedup import FuzzyDedup
from gristmill.stages.kernels import minhash
from gristmill.stages.kernels.jaccard import similarities, similarity_if
from gristmill.stages.kernels.shingles import normal_table, shingle_sets
from gristmill.stages.kernels.views import text_view
from gristmill.stages.semantic_dedup import SemanticDedup

UNSEGMENTED = ("zh", "ja", "th", "lo", "km", "my")


def documents(corpus: str) -> Iterator[dict[str, Any]]:
    """Yield the documents of a directory, in the order of its files."""
    for path in sorted(Path(corpus).glob("*.jsonl*")):
        raw: Any = path.open("rb")
        if path.suffix == ".zst":
            import zstandard

            raw = zstandard.ZstdDecompressor().stream_reader(raw)
        for line in io.TextIOWrapper(raw, encoding="utf-8"):
            yield json.loads(line)


def cpu(run: Callable[[], Any], repeats: int) -> float:
    """Return the least CPU seconds of some runs."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def kernels(corpus: str) -> None:
    """Print MB/s of the signature kernel and its ratio to peers that get the shingles for nothing."""
    groups: dict[str, list[str]] = {"Latin": [], "unsegmented": []}
    for document in documents(corpus):
        language = str(document.get("lang_hint", "en")).lower()[:2]
        if language in ("en", "de", "fr", "es", "it", "pl"):
            groups["Latin"].append(document["text"])
        elif language in UNSEGMENTED:
            groups["unsegmented"].append(document["text"])
    norm_C = normal_table()
    a_K, b_K = minhash.permutations(112)
    for name, texts in groups.items():
        view = text_view(pa.array(texts, pa.large_string()))
        megabytes = len(view[1]) / 1e6
        minhash.signatures(*text_view(pa.array(["warm"], pa.large_string())), norm_C, 5, a_K, b_K)
        seconds = cpu(lambda view=view: minhash.signatures(*view, norm_C, 5, a_K, b_K), 5)
        print(f"{name:<12} {megabytes:7.1f} MB  text -> signatures of 112  {megabytes / seconds:7.1f} MB/s a core")
    texts = [text for text in groups["Latin"] if len(text) > 500][:2000]
    view = text_view(pa.array(texts, pa.large_string()))
    ends_D1, sets_S = shingle_sets(*view, norm_C, 5)
    shingled = [[" ".join(w[i : i + 5]) for i in range(len(w) - 4)] for w in (t.lower().split() for t in texts)]
    n_shingles = sum(map(len, shingled))
    whole = cpu(lambda: minhash.signatures(*view, norm_C, 5, a_K, b_K), 3)
    ours = cpu(lambda: minhash.signatures_of_sets(ends_D1, sets_S, a_K, b_K), 3)
    print(f"\n{len(texts):,} Latin documents, {n_shingles:,} word 5-grams, 112 permutations, CPU nanoseconds a shingle")
    print(f"gristmill, text to signature      {whole / n_shingles * 1e9:9.1f}")
    print(f"gristmill, shingles to signature  {ours / len(sets_S) * 1e9:9.1f}")
    for peer, run in peers(shingled):
        first, again = cpu(run, 1) / n_shingles, cpu(run, 3) / n_shingles
        own = ours / len(sets_S)
        print(
            f"{peer:<33} {first * 1e9:9.1f}   {first / own:6.1f}x our shingles to signature; "
            f"on the same strings again {again * 1e9:.1f} ({again / own:.1f}x)"
        )


def peers(shingled: list[list[str]]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield peers that are installed; they get lists of shingles, ready made."""
    try:
        from datasketch import MinHash

        def datasketch() -> None:
            for shingles in shingled:
                MinHash(112).update_batch([s.encode() for s in shingles])

        yield "datasketch MinHash.update_batch", datasketch
    except ImportError:
        print("datasketch is not installed")
    try:
        from rensa import CMinHash, RMinHash

        def rensa(kind: Any) -> None:
            for shingles in shingled:
                sketch = kind(num_perm=112, seed=1)
                sketch.update(shingles)
                sketch.digest()

        yield "rensa RMinHash.update", lambda: rensa(RMinHash)
        yield "rensa CMinHash.update", lambda: rensa(CMinHash)
    except ImportError:
        print("rensa is not installed")


def variants(texts: list[str], rng: random.Random) -> list[tuple[str, str]]:
    """Return planted near-duplicates: (kind, text)."""
    out = []
    for text in texts:
        words = text.split()
        for share in (0.01, 0.03, 0.05, 0.1, 0.2, 0.3):
            copy = list(words)
            for _ in range(max(1, int(len(copy) * share))):
                copy[rng.randrange(len(copy))] = rng.choice(words)[::-1]
            out.append((f"edit {share:.0%}", " ".join(copy)))
        at = rng.randrange(len(words))
        out.append(("insert", " ".join([*words[:at], *rng.sample(words, min(12, len(words))), *words[at:]])))
        paragraphs = text.split("\n")
        rng.shuffle(paragraphs)
        out.append(("reorder", "\n".join(paragraphs)))
        out.append(
            ("boilerplate", "Home | About | Contact | Search this site\n" + text + "\nCopyright, all rights reserved")
        )
    return out


@njit(nogil=True, cache=True)
def _all_pairs(ends_D1: Any, sets_S: Any, order_D: Any, threshold: float, pairs_P2: Any, values_P: Any) -> int:
    found = 0
    for i in range(order_D.shape[0]):
        a = order_D[i]
        n_a = ends_D1[a + 1] - ends_D1[a]
        for j in range(i + 1, order_D.shape[0]):
            b = order_D[j]
            if n_a < threshold * (ends_D1[b + 1] - ends_D1[b]):
                break
            value = similarity_if(sets_S, ends_D1[a], ends_D1[a + 1], sets_S, ends_D1[b], ends_D1[b + 1], 0, threshold)
            if value >= 0 and found < values_P.shape[0]:
                pairs_P2[found, 0] = a
                pairs_P2[found, 1] = b
                values_P[found] = value
                found += 1
    return found


def truth(corpus: str, n_documents: int, n_planted: int) -> None:
    """Print recall against all pairs, the worst verified removal, and what an unverified LSH would remove."""
    rng = random.Random(5)
    pool = [d for d in documents(corpus) if d["text"].strip()]
    chosen = rng.sample(pool, min(n_documents, len(pool)))
    docs = [{"id": f"r{i:06d}", "text": d["text"]} for i, d in enumerate(chosen)]
    long = [d["text"] for d in chosen if 200 < len(d["text"].split()) < 3000]
    kinds = {}
    for i, (kind, text) in enumerate(variants(rng.sample(long, min(n_planted, len(long))), rng)):
        docs.append({"id": f"v{i:06d}", "text": text})
        kinds[f"v{i:06d}"] = kind
    view = text_view(pa.array([d["text"] for d in docs], pa.large_string()))
    ends_D1, sets_S = shingle_sets(*view, normal_table(), 5)
    sizes = np.diff(ends_D1)
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    limit = 50_000_000
    pairs, values = np.empty((limit, 2), np.int64), np.empty(limit)
    start = time.perf_counter()
    found = _all_pairs(ends_D1, sets_S, order, 0.8, pairs, values)
    pairs, values = pairs[:found], values[:found]
    print(
        f"{len(docs):,} documents, {len(kinds):,} of them planted; all pairs took {time.perf_counter() - start:.0f} s"
    )
    print(f"pairs with J >= 0.80: {found:,}, with J >= 0.85: {(values >= 0.85).sum():,}")
    number = {d["id"]: i for i, d in enumerate(docs)}
    spark = runtime.session("truth", "local[2]")
    with tempfile.TemporaryDirectory() as scratch:
        artifact = make_artifact(Path(scratch), docs, 4)
        stages = {
            "verified": FuzzyDedup.build(),
            "unverified": FuzzyDedup.build(verify=False),
            "semantic, hashed units": SemanticDedup.build(annotate_only=False),
        }
        for label, stage in stages.items():
            start = time.perf_counter()
            outcome = run_stage(spark, stage, artifact, label)
            seconds = time.perf_counter() - start
            gone = removed(outcome)
            lost = np.zeros(len(docs), np.bool_)
            lost[[number[id_] for id_ in gone]] = True
            left = np.array([number[id_] for id_ in gone])
            right = np.array([number[kept] for kept, _ in gone.values()])
            exact = similarities(ends_D1, sets_S, left, right)
            print(f"\n{label}: removed {len(gone):,} in {seconds:.1f} s; exact J to the kept document: least "
                  f"{exact.min():.4f}, below 0.80: {(exact < 0.8).sum():,} ({(exact < 0.8).mean():.1%})")  # fmt: skip
            for low in (0.80, 0.85, 0.90, 0.95):
                wanted = values >= low
                done = lost[pairs[wanted, 0]] | lost[pairs[wanted, 1]]
                print(f"  pairs with J >= {low:.2f} of which at least one is removed: {done.mean():.4f}")
            by_kind: dict[str, list[bool]] = {}
            for id_, kind in kinds.items():
                by_kind.setdefault(kind, []).append(bool(lost[number[id_]]))
            print("  planted, removed: " + ", ".join(f"{k} {np.mean(v):.0%}" for k, v in by_kind.items()))
    spark.stop()


DATATROVE = """
import sys, time
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
if __name__ == "__main__":
    base, source, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    config = MinhashConfig(num_buckets=16, hashes_per_bucket=7)
    steps = [
        (tasks, [JsonlReader(source), MinhashDedupSignature(base + "/sig", config=config)]),
        (16, [MinhashDedupBuckets(base + "/sig", base + "/buckets", config=config)]),
        (1, [MinhashDedupCluster(base + "/buckets", base + "/remove", config=config)]),
        (tasks, [JsonlReader(source), MinhashDedupFilter(base + "/remove"), JsonlWriter(base + "/out")]),
    ]
    start = time.perf_counter()
    for i, (n, pipeline) in enumerate(steps):
        LocalPipelineExecutor(pipeline=pipeline, tasks=n, workers=2, logging_dir=base + f"/log{i}").run()
        print("step", i + 1, round(time.perf_counter() - start, 1), flush=True)
    print("seconds", time.perf_counter() - start)
"""


def whole(corpus: str, datatrove_python: str | None, sample_megabytes: float) -> None:
    """Print MB/s of the whole stage on the corpus, and of datatrove's four steps on a sample of it."""
    docs = [{"id": d["id"], "text": d["text"]} for d in documents(corpus)]
    megabytes = sum(len(d["text"].encode()) for d in docs) / 1e6
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        artifact = make_artifact(base, docs, 4)
        spark = runtime.session("whole", "local[2]")
        best = 1e9
        for run in range(3):
            start = time.perf_counter()
            outcome = run_stage(spark, FuzzyDedup.build(), artifact, f"out-{run}")
            best = min(best, time.perf_counter() - start)
        spark.stop()
        print(f"gristmill: {len(docs):,} documents, {megabytes:.1f} MB in {best:.1f} s = {megabytes / best:.1f} MB/s, "
              f"{len(removed(outcome)):,} removed")  # fmt: skip
        if not datatrove_python:
            return
        sample, total = [], 0.0
        for document in random.Random(1).sample(docs, len(docs)):
            if total > sample_megabytes:
                break
            sample.append(document)
            total += len(document["text"].encode()) / 1e6
        (base / "in").mkdir()
        for part in range(4):
            lines = "".join(json.dumps(d, ensure_ascii=False) + "\n" for d in sample[part::4])
            (base / "in" / f"{part}.jsonl").write_text(lines)
        (base / "run.py").write_text(DATATROVE)
        command = [datatrove_python, str(base / "run.py"), str(base / "dt"), str(base / "in"), "4"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print("datatrove failed:\n" + done.stderr[-2000:])
            return
        seconds = float(done.stdout.split("seconds")[-1])
        print(f"datatrove: {len(sample):,} documents, {total:.1f} MB in {seconds:.1f} s = {total / seconds:.2f} MB/s")
        print(f"ratio {megabytes / best / (total / seconds):.0f}")


def main() -> None:
    """Run one of the three parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["kernels", "truth", "whole"])
    parser.add_argument("corpus")
    parser.add_argument("--documents", type=int, default=20_000, help="real documents in the truth test")
    parser.add_argument("--planted", type=int, default=300, help="documents that get nine variants each")
    parser.add_argument("--datatrove-python", help="interpreter that has datatrove")
    parser.add_argument("--sample-megabytes", type=float, default=10)
    options = parser.parse_args()
    if options.part == "kernels":
        kernels(options.corpus)
    elif options.part == "truth":
        truth(options.corpus, options.documents, options.planted)
    else:
        whole(options.corpus, options.datatrove_python, options.sample_megabytes)


if __name__ == "__main__":
    main()
