"""The whole pipeline on a real corpus: seconds and MB/s a stage, peak memory, and datatrove's chain beside it.

    python benchmarks/end_to_end.py CORPUS [--evals FILE ...] [--peer-python PYTHON] [--sample-mb 4] [--cores 2]

CORPUS is a folder of JSON Lines with `text`, `id` and `source`. The JVM's start is not counted. The peer runs in
an environment of its own (`--peer-python`, with datatrove 0.10 installed) on a sample of the same documents and
the same number of cores; both sides' rates are bytes of text by seconds of wall clock.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import zstandard
from rich.console import Console

from gristmill.pipelines import config
from gristmill.pipelines.plan import plan
from gristmill.pipelines.report import ConsoleReporter
from gristmill.pipelines.run import run
from gristmill.stages import runtime

HERE = Path(__file__).resolve().parent
CHAIN = ("heuristics", "pii", "fuzzy_dedup")


class PeakMemory(threading.Thread):
    """Samples the resident memory of this process and all below it (JVM, Python workers).

    Pages that workers share are counted for each, so the figure is an upper bound; counting them once costs the
    kernel a walk through every mapping, which slowed what was measured by several per cent.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.stop = threading.Event()

    def run(self) -> None:
        """Sample until told to stop."""
        me = psutil.Process()
        while not self.stop.wait(0.5):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue
            self.peak = max(self.peak, total)


def pipeline(corpus: Path, evals: list[str], work: Path) -> dict[str, Any]:
    """Return the benchmark's pipeline; stages fused as a user's would be."""
    return {
        "name": "end_to_end",
        "seed": 1,
        "output": str(work / "out"),
        "stages": {
            "ingest": {"path": f"{corpus}/**/*.jsonl*", "fields": {"source": "source"}},
            "language": {},
            "heuristics": {},
            "pii": {},
            "exact_dedup": {},
            "fuzzy_dedup": {},
            "decontaminate": {"evals": evals}
            if evals
            else {"evals": [str(HERE.parent / "decontam/data/demo_eval.jsonl")]},
            "tokenizer": {"vocab_size": 32_768},
            "pack": {},
        },
    }


def sample(corpus: Path, target: Path, n_bytes: int) -> int:
    """Write the first documents of the corpus, `n_bytes` of text, as JSON Lines in as many files as there are cores."""
    target.mkdir(parents=True)
    written = 0
    with (target / "a.jsonl").open("w", encoding="utf-8") as a, (target / "b.jsonl").open("w", encoding="utf-8") as b:
        for path in sorted(corpus.rglob("*.jsonl.zst")):
            with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
                for number, line in enumerate(io.TextIOWrapper(stream, encoding="utf-8")):
                    row = json.loads(line)
                    (a if number % 2 else b).write(json.dumps({"id": row["id"], "text": row["text"]}) + "\n")
                    written += len(row["text"].encode())
                    if written >= n_bytes:
                        return written
    return written


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--evals", nargs="*", default=[])
    parser.add_argument("--peer-python")
    parser.add_argument("--sample-mb", type=float, default=4)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="keep artifacts here")
    given = parser.parse_args()
    work = given.keep or Path(tempfile.mkdtemp(prefix="gristmill-bench-"))
    console = Console()
    versions = ", ".join(f"{p} {version(p)}" for p in ("pyspark", "pyarrow", "numba", "numpy"))
    print(
        f"machine: {platform.processor() or platform.machine()}, {given.cores} of {os.cpu_count()} cores, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB; Python {platform.python_version()}, {versions}"
    )
    planned = plan(config.build(pipeline(given.corpus, [str(Path(e).resolve()) for e in given.evals], work)))
    runtime.session("end_to_end", f"local[{given.cores}]", planned.pipeline.spark)
    memory = PeakMemory()
    memory.start()
    start = time.monotonic()
    result = run(planned, ConsoleReporter(console))
    seconds = time.monotonic() - start
    memory.stop.set()
    n_bytes = result.units[0].artifact.ledger[0].kept.n_bytes
    print(f"\n{'stage':<32}{'seconds':>9}{'MB/s':>9}")
    for done in result.units:
        label = " + ".join(n.name for n in done.unit.nodes)
        entry = done.artifact.ledger[0].into.n_bytes if done.artifact.ledger else 0
        print(f"{label:<32}{done.seconds:>9.1f}{entry / 1e6 / done.seconds:>9.1f}")
    rate = n_bytes / 1e6 / seconds
    print(f"{'end to end':<32}{seconds:>9.1f}{rate:>9.1f}   ({n_bytes / 1e6:.0f} MB of text, JVM start excluded)")
    print(f"peak memory of driver, JVM and workers: {memory.peak / 2**30:.2f} GiB (bar: 8)")
    if given.peer_python:
        target = work / "peer"
        sample_bytes = sample(given.corpus, target / "in", int(given.sample_mb * 1e6))
        command = [
            given.peer_python,
            str(HERE / "peers/datatrove_chain.py"),
            str(target / "in"),
            str(target / "work"),
            str(given.cores),
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(f"the peer's chain failed:\n{ran.stderr[-2000:]}")
        got = json.loads(ran.stdout.splitlines()[-1])
        peer_seconds = sum(got["seconds"].values())
        ours = sum(d.seconds for d in result.units if any(n.name in CHAIN for n in d.unit.nodes))
        our_rate, peer_rate = n_bytes / 1e6 / ours, sample_bytes / 1e6 / peer_seconds
        steps = ", ".join(f"{k} {v:.1f} s" for k, v in got["seconds"].items())
        print(
            f"\ndatatrove {got['version']}: filters + PII + MinHash on {sample_bytes / 1e6:.1f} MB: {peer_rate:.3f} MB/s ({steps})"
        )
        print(f"gristmill: language + filters + PII + fuzzy dedup: {our_rate:.1f} MB/s")
        print(f"ratio: {our_rate / peer_rate:.0f}x for the chain (bar: 30x)")
    if not given.keep:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
