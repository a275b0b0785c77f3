"""Reads of many rows in one system call, and what becomes of them where there is none."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.packing import Loader, ShardWriter, TokenSpec, bulk, shard_name, shard_set_manifest
from gristmill.packing.bulk import MAX_AT_ONCE, BulkReader

WIDTH = 33


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    """Return a descriptor of a file of uint16 and what is in it."""
    values = np.random.default_rng(0).integers(0, 60_000, 50_000).astype(np.uint16)
    values.tofile(tmp_path / "a.bin")
    fd = os.open(tmp_path / "a.bin", os.O_RDONLY)
    yield fd, values
    os.close(fd)


def read_all(reader: BulkReader, rows: Any, fds: list[int], offsets: Any) -> list[int]:
    """Read row by row what the reader left, as its caller does; return what it left."""
    left = reader.read(fds, offsets)
    for row in left:
        os.preadv(fds[row], [rows[row].data], int(offsets[row]))
    return left


@pytest.mark.parametrize("n", [1, 5, MAX_AT_ONCE, MAX_AT_ONCE + 1, 3 * MAX_AT_ONCE])
def test_every_row_gets_its_range(stored: Any, n: int) -> None:
    fd, values = stored
    rows = np.zeros((n, WIDTH), np.uint16)
    reader = BulkReader(rows)
    for seed in range(3):
        first = np.random.default_rng(seed).integers(0, len(values) - WIDTH, n)
        read_all(reader, rows, [fd] * n, first * 2)
        assert np.array_equal(rows, values[first[:, None] + np.arange(WIDTH)])


def test_rows_at_the_end_of_the_file_and_of_bad_descriptors_are_reported(stored: Any) -> None:
    fd, values = stored
    rows = np.zeros((6, WIDTH), np.uint16)
    reader = BulkReader(rows)
    offsets = np.array([0, 2, 2 * (len(values) - 1), 4, 10**9, 6])
    assert {2, 4} <= set(reader.read([fd] * 6, offsets))
    closed = os.dup(fd)
    os.close(closed)
    good = np.arange(6) * 2
    assert {3, 4, 5} <= set(reader.read([fd, fd, fd, closed, fd, fd], good))
    read_all(reader, rows, [fd] * 6, good)
    assert np.array_equal(rows, values[np.arange(6)[:, None] + np.arange(WIDTH)])


def test_a_forked_child_reads_on(stored: Any) -> None:
    fd, values = stored
    rows = np.zeros((8, WIDTH), np.uint16)
    reader = BulkReader(rows)
    offsets = np.arange(8) * 20
    reader.read([fd] * 8, offsets)
    child = os.fork()
    if not child:
        rows[...] = 0
        read_all(reader, rows, [fd] * 8, offsets + 2)
        os._exit(0 if np.array_equal(rows, values[(np.arange(8) * 10 + 1)[:, None] + np.arange(WIDTH)]) else 1)
    assert os.waitpid(child, 0)[1] == 0
    read_all(reader, rows, [fd] * 8, offsets)
    assert np.array_equal(rows, values[(np.arange(8) * 10)[:, None] + np.arange(WIDTH)])


def corpus(folder: Path) -> Path:
    """Write two small shards."""
    spec, entries, rng = TokenSpec(1000, 0, "t"), [], np.random.default_rng(3)
    for number in range(2):
        with ShardWriter(folder, shard_name(number), spec) as writer:
            lengths = rng.integers(1, 90, 300)
            tokens = rng.integers(1, 1000, int(lengths.sum()))
            tokens[np.cumsum(lengths) - 1] = 0
            writer.add(tokens, lengths, [f"{number}-{i}" for i in range(300)])
            entries.append(writer.close())
    (folder / "shards.json").write_bytes(shard_set_manifest(spec, entries))
    return folder


@pytest.mark.parametrize("pack", ["concat", "best_fit", "document"])
def test_batches_are_the_same_without_the_system_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: str
) -> None:
    folder = corpus(tmp_path)
    options: dict[str, Any] = {"sequence_length": 32, "batch_size": 24, "pack": pack, "prefetch": 0}
    reference = list(Loader(folder, **options))
    monkeypatch.setattr(bulk, "_system_calls", lambda: None)
    for a, b in zip(reference, Loader(folder, **options), strict=True):
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[key], b[key]) for key in a)


def test_positions_count_from_the_last_bound(tmp_path: Path) -> None:
    for batch in Loader(corpus(tmp_path), sequence_length=32, batch_size=7, prefetch=0):
        bounds = batch["cu_seqlens"]
        assert bounds.dtype == np.int32 and bounds[0] == 0 and bounds[-1] == 7 * 32
        want = np.concatenate([np.arange(n) for n in np.diff(bounds)])
        assert np.array_equal(batch["position_ids"].ravel(), want)
        assert batch["max_seqlen"] == np.diff(bounds).max()


def test_what_is_written_into_one_batch_reaches_no_other(tmp_path: Path) -> None:
    folder = corpus(tmp_path)
    options: dict[str, Any] = {"sequence_length": 32, "batch_size": 4, "prefetch": 0}
    reference = list(Loader(folder, **options))
    for want, got in zip(reference, Loader(folder, **options), strict=True):
        for key in ("input_ids", "labels", "position_ids", "cu_seqlens", "samples"):
            assert np.array_equal(want[key], got[key]), key
            got[key][...] = 7


@pytest.mark.parametrize("key", ["input_ids", "labels", "position_ids"])
def test_one_array_that_is_kept_never_changes(tmp_path: Path, key: str) -> None:
    """They are parts of one allocation, which must not be filled again while any of them is held."""
    folder = corpus(tmp_path)
    for options in ({"prefetch": 0}, {"prefetch": 4, "threads": 2}):
        loader = Loader(folder, sequence_length=32, batch_size=4, **options)  # type: ignore[arg-type]
        kept, copies = [], []
        for batch in loader:
            kept.append(batch[key])
            copies.append(batch[key].copy())
            del batch
        assert all(np.array_equal(a, b) for a, b in zip(kept, copies, strict=True))


@pytest.mark.parametrize(("prefetch", "threads"), [(1, 1), (1, 3), (3, 2), (4, 1), (8, 2), (16, 3)])
def test_workers_that_take_several_steps_deliver_the_same_in_the_same_order(
    tmp_path: Path, prefetch: int, threads: int
) -> None:
    folder = corpus(tmp_path)
    reference = list(Loader(folder, sequence_length=32, batch_size=4, prefetch=0))
    loader = Loader(folder, sequence_length=32, batch_size=4, prefetch=prefetch, threads=threads)
    first = [next(loader) for _ in range(7)]
    state = loader.state_dict()
    loader.close()
    again = Loader(folder, sequence_length=32, batch_size=4, prefetch=prefetch, threads=threads)
    again.load_state_dict(state)
    for want, got in zip(reference, [*first, *again], strict=True):
        assert all(np.array_equal(want[name], got[name]) for name in want)


def test_a_dropped_loader_ends_its_threads(tmp_path: Path) -> None:
    loader = Loader(corpus(tmp_path), sequence_length=32, batch_size=8, prefetch=4, threads=2)
    next(loader)
    threads = loader._runner._threads  # type: ignore[union-attr]
    assert any(thread.is_alive() for thread in threads)
    del loader
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_a_start_imports_no_masked_arrays(tmp_path: Path) -> None:
    """They cost as much as all the rest of a start; `np.unique` brings them in."""
    program = (
        "import sys; from gristmill.packing import Loader\n"
        f"next(Loader({{'a': {str(corpus(tmp_path))!r}}}, weights={{'a': 1.0}}, sequence_length=32, batch_size=4, prefetch=0))\n"
        "assert 'numpy.ma' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
