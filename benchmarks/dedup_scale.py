"""Connected components of synthetic band keys: time, shuffle and driver memory as the number of rows grows.

python benchmarks/dedup_scale.py [--rows 2,5,10,20] [--driver-edges 20000] [--partitions 8] [--master local[2]]

The rows (band, key, document) hold, at 20 million rows: a hot bucket with 30 % of all rows, a star of 5*10^6 leaves
(a bucket of two for each: 10^7 rows), a chain of 10^5 documents, 10^6 small clusters of two to four, and documents
that share nothing; other sizes hold the same shares. Document numbers are scrambled. Each size runs in a process of
its own, warmed on 100,000 rows, so that peaks of memory are its own. Labels are compared afterwards with a
union-find over all rows in one process, and where scipy is installed with its connected components.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.stages import runtime
from gristmill.stages.connected_components import connected_components
from gristmill.stages.dedup import checkpoint
from gristmill.stages.dedup.sketch import BUCKET_SCHEMA
from gristmill.stages.fuzzy_dedup import bucket_edges
from gristmill.stages.kernels.unionfind import components

FULL = 20_000_000
CHUNK = 250_000


def rows(n: int, start: int, stop: int) -> tuple[Any, Any, Any]:
    """Return ``(band, key, document)`` of rows start..stop of a data set of n rows."""
    i = np.arange(start, stop, dtype=np.int64)
    hot, star, chain = 3 * n // 10, n // 2, 200_000 * n // FULL
    small = 3_000_000 * n // FULL
    band, key, document = np.zeros(len(i), np.int16), np.full(len(i), -7, np.int64), i.copy()
    at = i - hot
    part = (at >= 0) & (at < star)
    band[part], key[part] = 1, at[part] // 2
    document[part] = np.where(at[part] % 2 == 0, n, n + 1 + at[part] // 2)
    at = at - star
    part = (at >= 0) & (at < chain)
    band[part], key[part], document[part] = 2, at[part] // 2, 2 * n + (at[part] + 1) // 2
    at = at - chain
    part = (at >= 0) & (at < small)
    # Clusters of 2, 3, 4, 3 documents in turn: twelve rows.
    which = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3])
    band[part], key[part] = 3, at[part] // 12 * 4 + which[at[part] % 12]
    document[part] = 3 * n + at[part]
    at = at - small
    part = at >= 0
    band[part], key[part], document[part] = 4, at[part], 4 * n + at[part]
    scrambled = (document * 0x5851F42D4C957F2D) & ((1 << 52) - 1)
    return band, key, scrambled


def _emit(n: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            band, key, document = rows(n, number * CHUNK, min(n, (number + 1) * CHUNK))
            yield pa.RecordBatch.from_arrays(
                [pa.array(document), pa.array(band), pa.array(key), pa.nulls(len(key), pa.int64())],
                schema=BUCKET_SCHEMA,
            )


def reference(n: int) -> tuple[Any, Any]:
    """Return ``(documents, smallest document of each one's component)`` for those that are not alone."""
    band, key, document = rows(n, 0, n)
    order = np.lexsort((document, key, band))
    same = (band[order][1:] == band[order][:-1]) & (key[order][1:] == key[order][:-1])
    names, inverse = np.unique(document[order], return_inverse=True)
    left, right = inverse[:-1][same], inverse[1:][same]
    root = components(len(names), left, right)
    with contextlib.suppress(ImportError):
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components as of_scipy

        graph = coo_array((np.ones(len(left), np.bool_), (left, right)), (len(names), len(names)))
        _, label = of_scipy(graph, directed=False)
        least = np.full(int(label.max()) + 1, len(names))
        np.minimum.at(least, label, np.arange(len(names)))
        if not np.array_equal(least[label], root):
            raise SystemExit("the reference differs from scipy")
    many = np.unique(np.concatenate([left, right]))
    return names[many], names[root[many]]


def shuffled(directory: str) -> int:
    """Return the shuffle bytes written according to Spark's event log."""
    total = 0
    for path in Path(directory).rglob("*"):
        if path.is_file():
            with path.open(errors="replace") as lines:
                for line in lines:
                    if '"SparkListenerTaskEnd"' in line:
                        metrics = json.loads(line).get("Task Metrics") or {}
                        total += metrics.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0)
    return total


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, the JVM and its workers so far."""
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def peak_mib(process: psutil.Process) -> int:
    """Return the greatest resident memory that a process has had, in MiB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    return 0


def grouped(spark: Any, n: int, work: str, driver_edges: int) -> tuple[Any, list[dict[str, int]]]:
    """Return labels and rounds of the data set of n rows."""
    n_chunks = -(-n // CHUNK)
    frame = spark.range(0, n_chunks, 1, max(4, n_chunks // 4)).mapInArrow(
        partial(_emit, n), "row long, band short, key long, center long"
    )
    buckets = checkpoint.save(frame, work, "buckets", BUCKET_SCHEMA)
    return connected_components(spark, bucket_edges(buckets.frame(spark)), work, driver_edges)


def one(n: int, scratch: Path, driver_edges: int, master: str, partitions: int) -> None:
    """Run one size and leave its labels and figures in `scratch`."""
    log = scratch / "events"
    log.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{log}",
        "spark.eventLog.compress": "false",
        "spark.local.dir": str(scratch),
        # As on a cluster, components cross partitions: on one machine Spark would join small ones.
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.shuffle.partitions": str(partitions),
    }
    spark = runtime.session("scale", master, conf)
    grouped(spark, 100_000, str(scratch / "warm"), 2_000)
    before, cpu, start = shuffled(str(log)), cpu_seconds(), time.perf_counter()
    labels, rounds = grouped(spark, n, str(scratch / "work"), driver_edges)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    me = psutil.Process()
    jvm = max((peak_mib(p) for p in me.children(recursive=True) if p.name() == "java"), default=0)
    facts = {
        "seconds": seconds,
        "cpu": cpu,
        "shuffled": shuffled(str(log)) - before,
        "rounds": [[r["edges"], r["core_edges"]] for r in rounds],
        "python_mib": peak_mib(me),
        "jvm_mib": jvm,
    }
    spark.stop()
    pq.write_table(labels.table(), scratch / "labels.parquet")
    (scratch / "facts.json").write_text(json.dumps(facts))


def main() -> int:
    """Print one line a size and the growth exponents; exit code 1 where labels are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="2,5,10,20", help="millions of rows, comma-separated")
    parser.add_argument("--driver-edges", type=int, default=20_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--partitions", type=int, default=8, help="partitions of each shuffle")
    parser.add_argument("--one", nargs=2, metavar=("ROWS", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(int(options.one[0]), Path(options.one[1]), options.driver_edges, options.master, options.partitions)
        return 0
    heads = [("rows", 12), ("seconds", 8), ("CPU s", 7), ("shuffled MB", 12), ("B/row", 7), ("Python MiB", 11)]
    heads += [("JVM MiB", 8), ("labels", 7)]
    print(" ".join(f"{name:>{width}}" for name, width in heads) + "  edges (of the core) before each round")
    wrong = False
    measured = []
    for n in [round(float(text) * 1e6) for text in options.rows.split(",")]:
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, __file__, "--driver-edges", str(options.driver_edges)]
            command += ["--partitions", str(options.partitions)]
            subprocess.run([*command, "--master", options.master, "--one", str(n), scratch], check=True)
            facts = json.loads((Path(scratch) / "facts.json").read_text())
            table = pq.read_table(Path(scratch) / "labels.parquet").sort_by("row")
        names, label = reference(n)
        right = np.array_equal(table.column("row").to_numpy(), names)
        right = right and np.array_equal(table.column("component").to_numpy(), label)
        wrong |= not right
        print(
            f"{n:>12,} {facts['seconds']:>8.1f} {facts['cpu']:>7.1f} {facts['shuffled'] / 1e6:>12,.0f} "
            f"{facts['shuffled'] / n:>7.0f} {facts['python_mib']:>11,} {facts['jvm_mib']:>8,} "
            f"{'right' if right else 'WRONG':>7}  {', '.join(f'{edges:,} ({core:,})' for edges, core in facts['rounds'])}",
            flush=True,
        )
        measured.append((n, facts["seconds"], facts["cpu"], facts["shuffled"]))
    if len(measured) > 1:
        logs = np.log(np.array(measured, float))
        for name, column in (("time", 1), ("CPU time", 2), ("shuffle", 3)):
            print(f"growth exponent of {name}: {np.polyfit(logs[:, 0], logs[:, column], 1)[0]:.2f}")
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
