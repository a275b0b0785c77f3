"""The loader beside its peers, on the same tokens in each one's own format.

    python benchmarks/loader.py throughput --dir /tmp/bench      ours, a torch memmap DataLoader, Megatron-Core's
                                                                 GPTDataset, mosaicml-streaming, litdata
    python benchmarks/loader.py start --dir /tmp/bench           first batch and resume, 10^9 sequences, 64 sources
    python benchmarks/loader.py start-peers --dir /tmp/bench     the same of two peers, 10^6 and 10^7 sequences, one source
    python benchmarks/loader.py pacing --dir /tmp/bench          p99.9 of next() with a consumer that takes 5 ms
    python benchmarks/loader.py fit --shards out/pack-...        best-fit plan of 10^7 documents of these lengths

Peers that are not installed are named and left out. The page cache is warm: every file is read once before, and our
checksums have been looked at. Everything takes turns, `--repeat` times over, for `--seconds` each; batches that were
made ready in between are not counted. Figures are medians over the rounds and, for machines that others use too, the
best tenth of them; so are the ratios, the first taken within the rounds. A token is an input position that arrives in an
array.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np

from gristmill.packing import Loader, ShardWriter, TokenSpec, open_shards, shard_name, shard_set_manifest
from gristmill.packing.fit import plan_documents
from gristmill.packing.format import encode_index

VOCABULARY = 32_000
SPEC = TokenSpec(VOCABULARY, 0, "benchmark")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["throughput", "start", "start-peers", "pacing", "fit", "one", "one-peer"])
    parser.add_argument("--dir", default=str(Path(tempfile.gettempdir()) / "gristmill-loader-benchmark"))
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--repeat", type=int, default=60, help="rounds (60)")
    parser.add_argument("--seconds", type=float, default=0.1, help="seconds of each in a round (0.1)")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--shards", help="take the documents' lengths for `fit` from this set; log-normal without it")
    parser.add_argument("--resume", type=int, default=0)
    parser.add_argument("--sequences", type=int, default=10**6)
    given = parser.parse_args()
    root = Path(given.dir)
    if given.what == "throughput":
        throughput(root, given)
    elif given.what == "start":
        start(root)
    elif given.what == "start-peers":
        start_peers(root)
    elif given.what == "one-peer":
        one_peer_start(root, given.peers[0], given.sequences)
    elif given.what == "pacing":
        pacing(root, given.tokens)
    elif given.what == "one":
        one_start(root, given.resume)
    else:
        fit(given.shards)


def corpus(root: Path, n_tokens: int) -> Path:
    """Write `n_tokens` random tokens in documents of log-normal length (mean 1,000)."""
    folder = root / f"shards-{n_tokens}"
    if (folder / "shards.json").exists():
        return folder
    rng, entries = np.random.default_rng(0), []
    for number in range(4):
        with ShardWriter(folder, shard_name(number), SPEC) as writer:
            while writer.n_tokens < n_tokens // 4:
                lengths = np.maximum(rng.lognormal(6.2, 1.2, 5000).astype(np.int64), 1)
                ids = [f"{number}-{writer.n_documents + i}" for i in range(len(lengths))]
                tokens = rng.integers(1, VOCABULARY, int(lengths.sum()))
                tokens[np.cumsum(lengths) - 1] = 0
                writer.add(tokens, lengths, ids)
            entries.append(writer.close())
    (folder / "shards.json").write_bytes(shard_set_manifest(SPEC, entries))
    return folder


# ---- throughput ---------------------------------------------------------------------------------------------


def throughput(root: Path, given: argparse.Namespace) -> None:
    """Print positions a second of every loader, and the ratio of ours on one thread to it."""
    folder = corpus(root, given.tokens)
    for path in folder.glob("*.bin"):
        path.read_bytes()
    for s in given.lengths:
        batch = max(1, 65_536 // s)
        made: dict[str, Iterator[Any]] = {}
        for label, options in OURS.items():
            made[label] = gristmill(folder, s, batch, options)
        missing = {}
        for name in given.peers:
            label = (PEERS[name].__doc__ or "").split("\n")[0].rstrip(".")
            try:
                made[label] = PEERS[name](root, folder, s, batch)()
            except ImportError as error:
                missing[label] = error.name or str(error)
        for label, iterator in made.items():
            _pull(iterator, 1.0)
            for _ in range(given.tokens // (s * batch) if label in OURS else 0):
                next(iterator)
        speeds: dict[str, list[Speed]] = {label: [] for label in made}
        for _ in range(given.repeat):
            for label, iterator in made.items():
                wall, cpu = _pull(iterator, given.seconds)
                speeds[label].append((wall * s * batch, cpu * s * batch))
        print(
            f"\nS = {s:,}, {batch} rows a batch, {given.tokens:,} tokens, {os.cpu_count()} cores, {given.repeat} rounds"
        )
        print(
            f"  {'Mtok/s, median (least to most)':<62} {'wall':>22} {'CPU':>7}   ours, 1 thread, is faster: int32, int64"
        )
        for label, rates in speeds.items():
            show(label, rates, *([] if label in OURS else [speeds[name] for name in list(OURS)[:2]]))
        for label, what in missing.items():
            print(f"  {label:<62} not installed ({what})")
        for label in OURS:
            made[label].close()  # type: ignore[attr-defined]
        made.clear()


Speed = tuple[float, float]
"""Positions a second of wall clock, and a second of this process's CPU time."""


def show(label: str, rates: list[Speed], *ours: list[Speed]) -> None:
    """Print one line; the CPU time of worker processes is not seen."""
    cpu = median(cpu for _, cpu in rates) / 1e6
    line = f"  {label:<62}{_middle(rates) / 1e6:8.1f} {_best(rates) / 1e6:8.1f}{cpu:8.1f}"
    for other in ours:
        ratio = median(mine[0] / its[0] for mine, its in zip(other, rates, strict=True))
        line += f"  {ratio:5.1f}x {_best(other) / _best(rates):5.1f}x"
    print(line, flush=True)


def _middle(rates: list[Speed]) -> float:
    return median(wall for wall, _ in rates)


def _best(rates: list[Speed]) -> float:
    """Return the median of the best tenth of the rounds."""
    walls = sorted(wall for wall, _ in rates)
    return median(walls[-max(1, len(walls) // 10) :])


def _pull(iterator: Iterator[Any], seconds: float) -> Speed:
    """Return batches a second of wall clock and of CPU time; the first ones are not counted, they may have been ready."""
    for _ in range(PREFETCH + 1):
        batch = next(iterator)
    began = now = time.perf_counter()
    cpu = time.process_time()
    n = 0
    while now - began < seconds:
        batch = next(iterator)
        n += 1
        now = time.perf_counter()
    del batch
    return n / (now - began), n / max(1e-9, time.process_time() - cpu)


PREFETCH = 16
OURS: dict[str, dict[str, Any]] = {
    "gristmill, 1 thread, int32 (ids, labels, positions, bounds)": {"prefetch": 0},
    "the same, int64": {"prefetch": 0, "dtype": np.int64},
    "gristmill, prefetch 16 in 1 thread, int32": {"prefetch": PREFETCH, "threads": 1},
    "gristmill, prefetch 16 in 2 threads, int32": {"prefetch": PREFETCH, "threads": 2},
    "gristmill, prefetch 16 in 2 threads, int64": {"prefetch": PREFETCH, "threads": 2, "dtype": np.int64},
}


def gristmill(folder: Path, s: int, batch: int, options: dict[str, Any]) -> Iterator[Any]:
    """Ours: ids, labels, positions, boundaries, checksums verified on first touch."""
    return iter(Loader(folder, sequence_length=s, batch_size=batch, epochs=float("inf"), **options))


def memmap_loader(folder: Path, s: int, batch: int, workers: int) -> Callable[[], Iterator[Any]]:
    """What most small training scripts do: a memmap, random windows, ids and labels as int64."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    arrays = [np.memmap(path, np.uint16, "r") for path in sorted(folder.glob("*.bin"))]

    class Windows(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 1 << 40

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            array = arrays[index % len(arrays)]
            first = (index * 7_919 * s) % (len(array) - s - 1)
            window = torch.from_numpy(array[first : first + s + 1].astype(np.int64))
            return window[:-1], window[1:]

    class Numbers(torch.utils.data.Sampler):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[int]:
            yield from range(1 << 40)

    return lambda: iter(DataLoader(Windows(), batch_size=batch, num_workers=workers, sampler=Numbers()))


def memmap_0(root: Path, folder: Path, s: int, batch: int) -> Callable[[], Iterator[Any]]:
    """PyTorch DataLoader over a memmap, 0 workers (ids, labels)."""
    return memmap_loader(folder, s, batch, 0)


def memmap_2(root: Path, folder: Path, s: int, batch: int) -> Callable[[], Iterator[Any]]:
    """PyTorch DataLoader over a memmap, 2 workers (ids, labels)."""
    return memmap_loader(folder, s, batch, 2)


def gpt_dataset(root: Path, folder: Path, s: int, batch: int) -> Callable[[], Iterator[Any]]:
    """Megatron-Core GPTDataset (ids, labels, positions)."""
    import megatron.core.datasets.gpt_dataset  # noqa: F401

    return lambda: megatron_batches(folder / shard_name(0), root / f"megatron-cache-{s}", s, batch)


def megatron_batches(path: Path, cache: Path, s: int, batch: int) -> Iterator[Any]:
    """Yield batches of a `GPTDataset` over one `.bin/.idx` pair, whose index it keeps in `cache`."""
    import torch
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    class Words:
        eod = eos_id = eos = pad = 0
        vocab_size = VOCABULARY
        unique_identifiers: ClassVar[dict[str, str]] = {"class": "words"}

    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=s,
        split="1,0,0",
        path_to_cache=str(cache),
        tokenizer=Words(),
        reset_position_ids=True,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        allow_ambiguous_pad_tokens=True,
    )
    indexed = IndexedDataset(str(path))
    made = GPTDataset(indexed, str(path), np.arange(len(indexed), dtype=np.int32), None, Split.train, config)
    while True:
        yield from torch.utils.data.DataLoader(made, batch_size=batch)


def streaming(root: Path, folder: Path, s: int, batch: int) -> Callable[[], Iterator[Any]]:
    """MosaicML-streaming StreamingDataset, MDS (ids)."""
    import torch
    from streaming import MDSWriter, StreamingDataset

    out = root / f"mds-{s}"
    if not (out / "index.json").exists():
        tokens = open_shards(folder).tokens(0, 20_000_000).astype(np.uint16)
        with MDSWriter(out=str(out), columns={"tokens": f"ndarray:uint16:{s}"}) as writer:
            for i in range(len(tokens) // s):
                writer.write({"tokens": tokens[i * s : (i + 1) * s]})

    def batches() -> Iterator[Any]:
        data = StreamingDataset(local=str(out), shuffle=True, batch_size=batch)
        while True:
            yield from torch.utils.data.DataLoader(data, batch_size=batch)

    return batches


def litdata(root: Path, folder: Path, s: int, batch: int) -> Callable[[], Iterator[Any]]:
    """LitData StreamingDataset, TokensLoader (ids)."""
    import torch
    from litdata import StreamingDataset, TokensLoader
    from litdata.streaming.writer import BinaryWriter

    out = root / f"litdata-{s}"
    if not (out / "index.json").exists():
        out.mkdir(parents=True, exist_ok=True)
        writer = BinaryWriter(str(out), chunk_bytes="64MB", item_loader=TokensLoader())
        tokens = torch.from_numpy(open_shards(folder).tokens(0, 20_000_000).astype(np.int32))
        for i in range(len(tokens) // 100_000):
            writer.add_item(i, [tokens[i * 100_000 : (i + 1) * 100_000]])
        writer.done()
        writer.merge()

    def batches() -> Iterator[Any]:
        data = StreamingDataset(str(out), item_loader=TokensLoader(block_size=s), shuffle=True)
        while True:
            yield from torch.utils.data.DataLoader(data, batch_size=batch)

    return batches


PEERS = {
    "memmap": memmap_0,
    "memmap-workers": memmap_2,
    "gpt-dataset": gpt_dataset,
    "streaming": streaming,
    "litdata": litdata,
}

# ---- start and resume ---------------------------------------------------------------------------------------

SEQUENCES = 10**9
SOURCES = 64
START_LENGTH = 2048


def sparse_sources(root: Path) -> dict[str, Path]:
    """Write 64 sources of 10^9 sequences of 2,048 together, as sparse files (4 TB that take no room)."""
    from gristmill.packing.format import (
        SHARD_MAGIC,
        canonical_json,
        crc32,
        digest,
        pack_block_sums,
    )
    from gristmill.packing.table import write_table

    n_tokens = SEQUENCES // SOURCES * START_LENGTH + 1
    block = 64 << 20
    out = {}
    for number in range(SOURCES):
        folder = root / "sparse" / f"s{number:02d}"
        out[f"s{number:02d}"] = folder
        if (folder / "shards.json").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "shard-00000.bin").open("wb") as stream:
            stream.truncate(2 * n_tokens)
        ends = np.linspace(0, n_tokens, 1001).astype(np.int64)
        index = encode_index(np.diff(ends), np.arange(1, 1001), "uint16") if n_tokens < 2**31 * 1000 else b""
        (folder / "shard-00000.idx").write_bytes(index)
        with (folder / "shard-00000.provenance").open("wb") as stream:
            crc = write_table(stream, 1000, {"first_token": ends})
            n_provenance = stream.tell()
        n_blocks, last = divmod(2 * n_tokens, block)
        sums = np.array([crc32(bytes(block))] * n_blocks + ([crc32(bytes(last))] if last else []), np.uint32)
        manifest = {
            "magic": SHARD_MAGIC, "version": 1, "name": "shard-00000", "dtype": "uint16",
            "vocab_size": VOCABULARY, "max_id": 0, "eos_id": 0, "eos_policy": "append", "tokenizer": "benchmark",
            "n_tokens": n_tokens, "n_documents": 1000, "n_sequences": 1000,
            "files": {
                "bin": {"n_bytes": 2 * n_tokens, "blocks_digest": digest(sums.astype("<u4").tobytes())},
                "idx": {"n_bytes": len(index), "crc32": f"{crc32(index):08x}"},
                "provenance": {"n_bytes": n_provenance, "crc32": f"{crc:08x}"},
            },
            "blocks": {"n_bytes": block, "crc32": pack_block_sums(sums)},
        }  # fmt: skip
        raw = canonical_json(manifest) + b"\n"
        (folder / "shard-00000.manifest.json").write_bytes(raw)
        entry = {
            "name": "shard-00000", "n_tokens": n_tokens, "n_documents": 1000, "n_bytes": 2 * n_tokens,
            "manifest": digest(raw),
        }  # fmt: skip
        (folder / "shards.json").write_bytes(shard_set_manifest(SPEC, [entry]))
    return out


def start(root: Path) -> None:
    """Print time to the first batch and growth of memory, at the start and resumed at three places."""
    sparse_sources(root)
    print(f"{SEQUENCES:,} sequences of {START_LENGTH:,} over {SOURCES} sources, 8 rows a batch, new process each:")
    for resume in (0, 1, SEQUENCES // 3, SEQUENCES - 1000):
        runs = []
        for _ in range(7):
            ran = subprocess.run(
                [sys.executable, __file__, "one", "--dir", str(root), "--resume", str(resume)],
                capture_output=True,
                text=True,
                check=True,
            )
            runs.append(json.loads(ran.stdout))
        ms, cpu, mb = (sorted(run[key] for run in runs) for key in ("ms", "cpu_ms", "mb"))
        print(
            f"  from row {resume:>13,}: first batch after {median(ms):.1f} ms ({ms[0]:.1f} to {ms[-1]:.1f}; "
            f"{median(cpu):.1f} of CPU), resident memory +{mb[-1]:.1f} MB at most"
        )


def one_start(root: Path, resume: int) -> None:
    """Print the figures of one start as JSON. Blocks of sparse files are 64 MiB, so checksums are left out."""
    sources = {f"s{i:02d}": root / "sparse" / f"s{i:02d}" for i in range(SOURCES)}
    weights = {name: 1.0 + (i % 7) for i, name in enumerate(sources)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), time.process_time()
    loader = Loader(
        sources, weights=weights, sequence_length=START_LENGTH, batch_size=8, seed=1, verify="never", prefetch=0
    )
    if resume:
        state = loader.state_dict()
        loader.load_state_dict({**state, "delivered": resume, "step": resume // 8})
    next(loader)
    ms = (time.perf_counter() - began) * 1000
    cpu_ms = (time.process_time() - cpu) * 1000
    print(
        json.dumps(
            {"ms": ms, "cpu_ms": cpu_ms, "mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}
        )
    )


def start_peers(root: Path) -> None:
    """Print time to the first batch and growth of memory of two peers; each twice, since what they build they keep."""
    print(f"peers: sequences of {START_LENGTH:,} in one source, 8 rows a batch, new process each, after imports:")
    for name, n in itertools.product(("gpt-dataset", "streaming"), (10**6, 10**7)):
        for again in ("", "first time", "again"):
            command = [sys.executable, __file__, "one-peer", "--dir", str(root), "--peers", name, "--sequences", str(n)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode:
                print(f"  {name}: {(ran.stderr.strip().splitlines() or ['failed'])[-1]}")
                break
            if not ran.stdout:  # the files have been written
                continue
            run = json.loads(ran.stdout.splitlines()[-1])
            print(f"  {name}, {n:,} sequences, {again}: first batch after {run['ms']:,.0f} ms, "
                  f"resident memory +{run['mb']:,.0f} MB", flush=True)  # fmt: skip


def one_peer_start(root: Path, name: str, n: int) -> None:
    """Print the figures of one start of a peer as JSON; if there are no files of this size yet, write them instead."""
    import torch

    folder = root / f"start-{name}-{n}"
    fresh = not folder.exists()
    if name == "gpt-dataset":
        import megatron.core.datasets.gpt_dataset  # noqa: F401

        folder.mkdir(parents=True, exist_ok=True)
        lengths = np.full(n // 10, 10 * START_LENGTH, np.int64)
        if not (folder / "tokens.bin").exists():
            (folder / "tokens.idx").write_bytes(encode_index(lengths, np.arange(1, len(lengths) + 1), "uint16"))
            with (folder / "tokens.bin").open("wb") as stream:
                stream.truncate(2 * int(lengths.sum()))
    else:
        import streaming

        a_shard = 16_000
        if not (folder / "index.json").exists():
            with streaming.MDSWriter(out=str(folder), columns={"tokens": f"ndarray:uint16:{START_LENGTH}"}) as writer:
                for _ in range(a_shard):
                    writer.write({"tokens": np.zeros(START_LENGTH, np.uint16)})
            index = json.loads((folder / "index.json").read_text())
            (shard,) = index["shards"]
            index["shards"] = []
            for number in range(n // a_shard):
                raw = {**shard["raw_data"], "basename": f"shard.{number:05d}.mds"}
                index["shards"].append({**shard, "raw_data": raw})
                if number:
                    os.link(folder / shard["raw_data"]["basename"], folder / raw["basename"])
            (folder / "index.json").write_text(json.dumps(index))
    if fresh:  # what it took to write the files must not count
        return
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    if name == "gpt-dataset":
        next(megatron_batches(folder / "tokens", folder / "cache", START_LENGTH, 8))
    else:
        data = streaming.StreamingDataset(local=str(folder), shuffle=True, batch_size=8)
        next(iter(torch.utils.data.DataLoader(data, batch_size=8)))
    ms = (time.perf_counter() - began) * 1000
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps({"ms": ms, "mb": grown}), flush=True)
    os._exit(0)


# ---- pacing, plans ------------------------------------------------------------------------------------------


def pacing(root: Path, n_tokens: int) -> None:
    """Print percentiles of the wait in next() while the consumer works 5 ms a step."""
    folder = corpus(root, n_tokens)
    for name, options in (("prefetch 2", {"prefetch": 2}), ("prefetch 0", {"prefetch": 0})):
        loader = Loader(folder, sequence_length=2048, batch_size=8, epochs=float("inf"), **options)
        waits = []
        for _ in range(4000):
            began = time.perf_counter()
            next(loader)
            waits.append(time.perf_counter() - began)
            time.sleep(0.005)
        loader.close()
        p50, p99, p999 = np.percentile(np.array(waits[100:]) * 1000, [50, 99, 99.9])
        print(f"  {name}: next() takes p50 {p50:.3f} ms, p99 {p99:.3f} ms, p99.9 {p999:.3f} ms")


def fit(shards: str | None) -> None:
    """Print seconds and padding of a best-fit plan, ready to be saved."""
    rng = np.random.default_rng(0)
    if shards is None:
        targets = np.maximum(rng.lognormal(6.2, 1.2, 10**7).astype(np.int64), 1)
        what = "log-normal lengths"
    else:
        opened = open_shards(shards, verify="never")
        bounds = [opened.shard(i).first_token for i in range(len(opened))]
        seen = np.concatenate([np.diff(starts) for starts in bounds]) - 1
        targets = rng.choice(seen, 10**7)
        what = f"lengths drawn from {len(seen):,} documents"
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(targets[:-1] + 1)])
    for s in (2048, 4096, 8192):
        began, cpu = time.perf_counter(), time.process_time()
        plan = plan_documents(first, targets, s, "best_fit", "benchmark")
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        counts = plan.statistics
        print(
            f"best fit of 10^7 documents ({what}, mean {targets.mean() + 1:,.0f}) at S = {s:,}: {seconds:.1f} s "
            f"({cpu:.1f} s of one core), padding {counts.padding:.5%}, {counts.n_cut:,} cut, {counts.n_rows:,} rows"
        )


if __name__ == "__main__":
    main()
