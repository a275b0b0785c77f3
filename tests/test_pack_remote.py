"""Shards packed straight into an object store, by its own protocol, and read back from there by the loader."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_jsonl
from s3_server import S3Server, serving

pytest.importorskip("pyspark")

from gristmill.packing import Cache, Loader, ShardMissingError, ShardReadError, open_shards, s3
from gristmill.stages import store as files
from gristmill.stages.artifact import open_artifact

pytestmark = pytest.mark.slow

Run = Callable[..., dict[str, Any]]
WORDS = ["the", "cat", "sat", "on", "a", "mat", "狗", "naïve", "flour", "mill", "stone", "water"]


@pytest.fixture
def store(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An empty bucket `data` that driver and Spark's Python workers can reach."""
    (tmp_path / "bucket").mkdir()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    files._scheme.cache_clear()
    with serving(tmp_path / "bucket", monkeypatch) as server:
        environment = spark.sparkContext.environment
        before = dict(environment)
        names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED")
        environment.update({name: os.environ[name] for name in names})
        yield server
        environment.clear()
        environment.update(before)
    files._scheme.cache_clear()
    s3._local.__dict__.clear()


def stages(tmp_path: Path) -> dict[str, Any]:
    if not (tmp_path / "in").exists():
        chance = np.random.default_rng(4)
        for number in range(3):
            rows = [
                {"id": f"doc-{number}-{i}", "text": " ".join(chance.choice(WORDS, 30)), "url": f"https://x.org/{i}"}
                for i in range(60)
            ]
            write_jsonl(tmp_path / "in" / f"{number}.jsonl", rows)
    return {
        "web": {"stage": "ingest", "path": str(tmp_path / "in" / "*.jsonl"), "columns": {"url": "string"}},
        "tokenizer": {"vocab_size": 300},
        "pack": {"shard_text_bytes": 8192},
    }


def shard_files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name.startswith("shard")}


def rows(source: Any, **options: Any) -> list[tuple[int, bytes]]:
    with Loader(source, **{"sequence_length": 64, "batch_size": 4, "seed": 2, **options}) as loader:
        return [(int(t), ids.tobytes()) for b in loader for t, ids in zip(b["samples"], b["input_ids"], strict=True)]


def test_shards_in_a_bucket_equal_local_ones_and_are_read_back_through_faults(
    store: S3Server, run_pipeline: Run, tmp_path: Path
) -> None:
    data = stages(tmp_path)
    local = run_pipeline(data, tmp_path / "out")["pack"]
    run_pipeline({name: data[name] for name in ("web", "tokenizer")}, "s3://data/out")
    store.delay, store.fail_every = 0.001, 13
    remote = run_pipeline(stages(tmp_path), "s3://data/out")["pack"]
    folder = store.root / "out" / remote.directory
    ours = Path(local.path)
    assert remote.directory == local.directory
    assert len(shard_files(ours)) == 4 * len(open_shards(ours)) + 1 > 5
    assert shard_files(folder) == shard_files(ours)
    # Committed by manifest, which lists every file that is there; buckets and attempts are gone.
    manifest = json.loads((folder / "manifest.json").read_bytes())
    listed = {entry["path"].rpartition("/")[2]: entry["n_bytes"] for entry in manifest["files"]}
    extra = {"manifest.json", "ledger.json", "run.json"}
    assert listed == {p.name: p.stat().st_size for p in folder.iterdir() if p.is_file() and p.name not in extra}
    assert open_artifact(f"s3://data/out/{remote.directory}").manifest == remote.manifest
    assert store.uploads == {}
    assert store.refused == []
    # Provenance and tokens come back through latency, errors and cut bodies.
    store.fail_every, store.cut_every = 5, 7
    cache = Cache(tmp_path / "cache", chunk_bytes=4096)
    assert rows(f"s3://data/out/{remote.directory}", cache=cache) == rows(ours)
    shards = open_shards(f"s3://data/out/{remote.directory}", cache=cache)
    shards.verify()
    assert shards.provenance(5) == open_shards(ours).provenance(5)


def test_a_set_that_was_not_committed_is_not_read_and_a_second_run_completes_it(
    store: S3Server, run_pipeline: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = stages(tmp_path)
    run_pipeline({name: data[name] for name in ("web", "tokenizer")}, "s3://data/out")
    store.refuse = "shard-00001.provenance"
    with pytest.raises(Exception, match="shard-00001.provenance"):
        run_pipeline(data, "s3://data/out")
    (folder,) = (store.root / "out").glob("pack-*")
    assert (folder / "shard-00000.bin").exists() or (folder / "shard-00001.bin").exists()
    assert not (folder / "shards.json").exists()
    assert not (folder / "manifest.json").exists()
    cache = Cache(tmp_path / "cache")
    with pytest.raises(ShardMissingError, match=f"s3://data/out/{folder.name}"):
        open_shards(f"s3://data/out/{folder.name}", cache=cache)
    store.refuse = None
    made = run_pipeline(data, "s3://data/out")["pack"]
    assert made.directory == folder.name
    local = run_pipeline(data, tmp_path / "out")["pack"]
    assert shard_files(folder) == shard_files(Path(local.path))
    assert rows(f"s3://data/out/{folder.name}", cache=cache) == rows(local.path)
    monkeypatch.setattr("gristmill.packing.s3.time.sleep", lambda seconds: None)
    store.always = 503
    with pytest.raises(ShardReadError, match=r"s3://data/out/pack-\w+/shards.json.*HTTP 503"):
        rows(f"s3://data/out/{folder.name}", cache=cache)


def test_an_fsspec_store_takes_shards_as_well(run_pipeline: Run, tmp_path: Path) -> None:
    data = stages(tmp_path)
    local = run_pipeline(data, tmp_path / "out")["pack"]
    made = run_pipeline(data, f"fsspec+file://{tmp_path}/other")["pack"]
    folder = tmp_path / "other" / made.directory
    assert shard_files(folder) == shard_files(Path(local.path))
    assert open_artifact(f"fsspec+file://{tmp_path}/other/{made.directory}").manifest == made.manifest
    assert rows(folder) == rows(local.path)
