"""Remote shards: an S3-protocol server on loopback that is slow, fails, and cuts bodies short."""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from s3_server import ACCESS, SECRET, S3Server, serving

from gristmill.packing import (
    ArgumentError,
    Loader,
    ShardCorruptError,
    ShardMissingError,
    ShardReadError,
    TokenSpec,
    open_shards,
    s3,
    write_shards,
)
from gristmill.packing.cache import Cache
from gristmill.packing.s3 import Remote, signed_headers

SPEC = TokenSpec(1000, 0, "t")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    rng = np.random.default_rng(1)
    documents = [rng.integers(1, 1000, int(n)) for n in rng.integers(1, 90, 300)]
    write_shards(tmp_path / "bucket" / "set-1", documents, SPEC, documents_per_shard=110)
    with serving(tmp_path / "bucket", monkeypatch) as made:
        yield made
    s3._local.__dict__.clear()


def rows(source: Any, **options: Any) -> list[tuple[int, bytes]]:
    loader = Loader(source, **{"sequence_length": 32, "batch_size": 4, "seed": 2, **options})
    out = [(int(t), r.tobytes()) for b in loader for t, r in zip(b["samples"], b["input_ids"], strict=True)]
    loader.close()
    return out


def test_signatures_are_those_of_the_published_example() -> None:
    made = signed_headers(
        "examplebucket.s3.amazonaws.com",
        "/test.txt",
        {"Range": "bytes=0-9"},
        datetime(2013, 5, 24, tzinfo=UTC),
        ACCESS,
        SECRET,
        "us-east-1",
    )
    assert made["authorization"].endswith("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41")


def test_remote_batches_equal_local_ones_and_each_chunk_is_fetched_once(server: S3Server, tmp_path: Path) -> None:
    local = rows(tmp_path / "bucket" / "set-1")
    cache = Cache(tmp_path / "cache", chunk_bytes=4096)
    assert rows("s3://data/set-1", cache=cache, prefetch=3, threads=3) == local
    assert max(n for key, n in server.seen.items() if ".bin" in key) == 1
    before = sum(server.seen.values())
    assert rows("s3://data/set-1", cache=Cache(tmp_path / "cache", chunk_bytes=4096)) == local
    again = {key for key in server.seen if server.seen[key] > 1}
    assert sum(server.seen.values()) - before == 1
    assert all(key.startswith("shards.json") for key in again)


def test_slow_failing_and_cut_answers_change_nothing(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = rows(tmp_path / "bucket" / "set-1")
    server.fail_every, server.cut_every, server.delay = 5, 7, 0.002
    real = time.sleep
    monkeypatch.setattr("gristmill.packing.s3.time.sleep", lambda seconds: real(0.001))
    assert rows("s3://data/set-1", cache=Cache(tmp_path / "cache", chunk_bytes=2048)) == local


def test_a_store_that_stays_down_is_named(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.packing.s3.time.sleep", lambda seconds: None)
    cache = Cache(tmp_path / "cache")
    shards = open_shards("s3://data/set-1", cache=cache, retries=2)
    shards.shard(0)
    server.always = 500
    with pytest.raises(ShardReadError, match=r"s3://data/set-1/shard-00000.bin at byte 0: reading failed \(HTTP 500\)"):
        shards.tokens(0, 10)
    server.always = None
    with pytest.raises(ShardMissingError, match="no such object"):
        open_shards("s3://data/nowhere", cache=cache)
    with pytest.raises(ArgumentError, match="remote shards need a cache"):
        open_shards("s3://data/set-1")


def test_wrong_keys_fail_at_once(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ShardReadError, match="HTTP 403"):
        Remote("s3://data/set-1").read("shards.json")
    assert server.n == 1


def test_a_damaged_cache_is_fetched_again_and_a_damaged_store_is_an_error(server: S3Server, tmp_path: Path) -> None:
    local = rows(tmp_path / "bucket" / "set-1")
    rows("s3://data/set-1", cache=Cache(tmp_path / "cache", chunk_bytes=4096))
    chunk = next((tmp_path / "cache").rglob("*.bin.000001.chunk"))
    raw = bytearray(chunk.read_bytes())
    raw[7] ^= 1
    chunk.write_bytes(raw)
    assert rows("s3://data/set-1", cache=Cache(tmp_path / "cache", chunk_bytes=4096)) == local
    remote = tmp_path / "bucket" / "set-1" / "shard-00000.bin"
    raw = bytearray(remote.read_bytes())
    raw[7] ^= 1
    remote.write_bytes(raw)
    with pytest.raises(ShardCorruptError, match=r"shard-00000\.bin: checksum of bytes"):
        rows("s3://data/set-1", cache=Cache(tmp_path / "cache2", chunk_bytes=4096))


def test_the_cache_stays_within_its_limit(server: S3Server, tmp_path: Path) -> None:
    local = rows(tmp_path / "bucket" / "set-1")
    cache = Cache(tmp_path / "cache", limit_bytes=12_288, chunk_bytes=4096)
    assert rows("s3://data/set-1", cache=cache, verify="never") == local
    left = sum(p.stat().st_size for p in (tmp_path / "cache").rglob("*.chunk"))
    assert left <= 12_288 + 4096
    assert cache.n_fetched > 30


def test_the_chunk_needed_last_is_dropped_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=3000, chunk_bytes=1000)
    for number in range(5):
        (tmp_path / f"s.bin.{number:06d}.chunk").write_bytes(bytes(1000))
    needed = {0: 50.0, 1: 10.0, 2: float("inf"), 3: 20.0}
    cache.next_use = lambda shard, first, last: needed[first // 1000]
    cache._make_room(5000)
    assert sorted(int(p.name.split(".")[2]) for p in tmp_path.glob("*.chunk")) == [1, 3, 4]


def fetch_all(folder: Path, chunk_bytes: int, queue: Any) -> None:
    cache = Cache(folder, chunk_bytes=chunk_bytes)
    open_shards("s3://data/set-1", cache=cache).verify()
    queue.put(cache.n_fetched)


def test_processes_share_a_cache_without_fetching_twice(server: S3Server, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    server.delay = 0.005
    task = functools.partial(fetch_all, tmp_path / "cache", 2048, queue)
    workers = [context.Process(target=task) for _ in range(3)]
    for worker in workers:
        worker.start()
    total = sum(queue.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    assert max(n for key, n in server.seen.items() if not key.startswith("shards.json")) == 1
    assert total == sum(n for key, n in server.seen.items() if not key.startswith("shards.json")) + 1
    assert not list((tmp_path / "cache" / "partial").iterdir())
