"""kill -9 of a whole rank, at any moment: nothing is left behind, and a restart continues exactly."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from s3_server import S3Server, serving

from gristmill.packing import Cache, Loader, TokenSpec, s3, write_shards

SPEC = TokenSpec(1000, 0, "t")
SEQUENCE, BATCH, EPOCHS = 16, 4, 10**6
PATIENCE = 120.0
"""Seconds after which waiting is given up; no test depends on how long anything takes."""

TRAINER = """
import json, os, sys, zlib
from pathlib import Path

work, options = Path(sys.argv[1]), json.loads(sys.argv[2])
workers, cache = options.pop("workers"), options.pop("cache")
if cache:
    from gristmill.packing import Cache

    options["cache"] = Cache(cache, chunk_bytes=2048)
if workers:
    from torch.utils.data import DataLoader
    from gristmill.packing.torch import TorchLoader

    face = TorchLoader(**options)
    loader = face.loader
else:
    from gristmill.packing import Loader

    face = loader = Loader(**options)
state = work / "state.json"
if state.exists():
    loader.load_state_dict(json.loads(state.read_text()))
batches = iter(face)
if workers:
    batches = iter(DataLoader(face, batch_size=None, num_workers=workers))
    (work / "workers").write_text(" ".join(str(w.pid) for w in batches._workers))
with (work / "log").open("w") as log:
    for made, batch in enumerate(batches):
        for sample, ids in zip(batch["samples"].tolist(), batch["input_ids"].tolist()):
            print(sample, *ids, file=log)
        log.flush()
        saved = loader.state_dict(after_steps=made + 1) if workers else loader.state_dict()
        (work / "state.tmp").write_text(json.dumps(saved))
        os.replace(work / "state.tmp", state)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    documents = [rng.integers(1, 1000, int(n)) for n in rng.integers(1, 90, 300)]
    return write_shards(tmp_path_factory.mktemp("bucket") / "set-1", documents, SPEC, documents_per_shard=110)


@pytest.fixture
def s3_server(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with serving(root.parent, monkeypatch) as server:
        yield server
    s3._local.__dict__.clear()


class Rank:
    """A training process of its own, with a temporary folder of its own."""

    def __init__(self, work: Path, source: Path | str, workers: int = 0, cache: Path | None = None, **options: Any):
        self.work = work
        self.temporary = work / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        (work / "log").unlink(missing_ok=True)
        given = {
            "sources": str(source), "sequence_length": SEQUENCE, "batch_size": BATCH, "seed": 3, "epochs": EPOCHS,
            "workers": workers, "cache": str(cache) if cache else None, **options,
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(work), json.dumps(given)],
            env={**os.environ, "TMPDIR": str(self.temporary)},
            stderr=subprocess.PIPE,
        )

    def wait_for(self, happened: Callable[[], bool]) -> None:
        """Wait until something is true, for as long as the process lives."""
        until = time.monotonic() + PATIENCE
        while not happened():
            if self.process.poll() is not None:
                stderr = self.process.stderr.read().decode() if self.process.stderr else ""
                pytest.fail(f"the rank ended by itself: {stderr}")
            assert time.monotonic() < until, "the rank never got there"
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill -9, and wait until its DataLoader workers have noticed."""
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL
        if self.process.stderr:
            self.process.stderr.close()
        until = time.monotonic() + PATIENCE
        while any(map(runs, self.workers)):
            assert time.monotonic() < until, "workers outlive their rank"
            time.sleep(0.05)

    @property
    def workers(self) -> list[int]:
        path = self.work / "workers"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def lines(self) -> list[str]:
        """Rows of the steps that were written whole."""
        path = self.work / "log"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return lines[: len(lines) - len(lines) % BATCH]

    def left_behind(self) -> list[str]:
        """Files in the temporary folder, and in shared memory under the names of these processes."""
        found = [str(path) for path in self.temporary.rglob("*")]
        pids = {str(pid) for pid in (self.process.pid, *self.workers)}
        shared = Path("/dev/shm")
        names = [path.name for path in shared.iterdir()] if shared.is_dir() else []
        return found + [name for name in names if "gristmill" in name or pids & set(name.split("_"))]


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def lines_of(loader: Loader, n_steps: int) -> list[str]:
    out = []
    for _ in range(n_steps):
        batch = next(loader)
        for sample, ids in zip(batch["samples"].tolist(), batch["input_ids"].tolist(), strict=True):
            out.append(" ".join(map(str, [sample, *ids])))
    return out


def survive(root: Path, source: Path | str, work: Path, **options: Any) -> None:
    """Kill a rank twice at any moment; each life delivers on from the last saved state, and so does another topology."""
    reference = Loader(root, sequence_length=SEQUENCE, batch_size=BATCH, seed=3, epochs=EPOCHS, prefetch=0)
    at = 0
    for _ in range(2):
        rank = Rank(work, source, **options)
        rank.wait_for(lambda: len(rank.lines()) >= 20 * BATCH)  # noqa: B023
        rank.kill()
        assert rank.left_behind() == []
        delivered = rank.lines()
        reference.seek(at // BATCH)
        assert delivered == lines_of(reference, len(delivered) // BATCH)
        state = json.loads((work / "state.json").read_text())
        assert at + len(delivered) - BATCH <= state["delivered"] <= at + len(delivered)
        at = state["delivered"]
    resumed = Loader(root, sequence_length=SEQUENCE, batch_size=3, seed=3, epochs=EPOCHS, prefetch=0)
    resumed.load_state_dict(state)
    reference.seek(at // BATCH)
    assert lines_of(resumed, 4) == lines_of(reference, 3)


def test_a_killed_rank_leaves_nothing_and_continues_exactly(root: Path, tmp_path: Path) -> None:
    survive(root, root, tmp_path, prefetch=4, threads=2)


def test_a_rank_killed_while_it_fetches_leaves_nothing_and_holds_nobody_up(
    s3_server: S3Server, root: Path, tmp_path: Path
) -> None:
    s3_server.delay = 0.001
    work, cache = tmp_path / "work", tmp_path / "cache"
    rank = Rank(work, "s3://data/set-1", cache=cache, prefetch=4, threads=2)
    s3_server.hold_after(8)
    rank.wait_for(s3_server.holding.is_set)
    rank.kill()
    assert rank.left_behind() == []
    s3_server.release()
    survive(root, "s3://data/set-1", work / "next", cache=cache, prefetch=2)
    Cache(cache)  # the last kill may have been in the middle of a fetch
    assert list((cache / "partial").iterdir()) == []
    assert [path.name for path in cache.rglob(".*")] == []


@pytest.mark.peer
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("remote", [False, True])
def test_a_rank_killed_with_its_dataloader_workers_leaves_nothing(
    s3_server: S3Server, root: Path, tmp_path: Path, remote: bool
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    if remote:
        cache = tmp_path / "cache"
        survive(root, "s3://data/set-1", tmp_path / "work", workers=2, cache=cache)
        Cache(cache)
        assert list((cache / "partial").iterdir()) == []
    else:
        survive(root, root, tmp_path / "work", workers=2)


def test_what_a_killed_process_had_begun_to_fetch_is_swept_and_what_others_fetch_is_not(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    dead, alive = tmp_path / "partial" / ("0" * 32), tmp_path / "partial" / ("1" * 32)
    dead.write_bytes(b"half")
    alive.write_bytes(b"half")
    with cache._locked("1111"):
        Cache(tmp_path)
        assert [path.name for path in (tmp_path / "partial").iterdir()] == [alive.name]
    Cache(tmp_path)
    assert list((tmp_path / "partial").iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks for a descriptor in /proc")
def test_a_lock_is_given_up_even_if_a_forked_process_has_inherited_it(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    lock = tmp_path / "locks" / "00"
    with cache._locked("00"):
        (held,) = [int(p.name) for p in Path("/proc/self/fd").iterdir() if os.path.realpath(p) == str(lock.resolve())]
        inherited = os.dup(held)
    with lock.open("r+") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(inherited)


def test_a_fork_while_a_thread_holds_a_lock_stops_nobody(root: Path) -> None:
    """What a forked DataLoader worker finds: the parent's prefetch threads are gone, their locks are not."""
    for n_workers in (0, 1):
        loader = Loader(root, sequence_length=SEQUENCE, batch_size=BATCH, prefetch=2)
        loader._lock.acquire()
        loader.plan.sources[0].shards._lock.acquire()
        loader._pid = -1  # as if this process were another one than made it
        got: list[Any] = []
        take = loader.interleaved(0, n_workers) if n_workers else loader
        thread = threading.Thread(target=lambda: got.append(next(iter(take))), daemon=True)  # noqa: B023
        thread.start()
        thread.join(PATIENCE)
        assert len(got) == 1
        loader.close()


def test_a_plan_that_a_killed_process_had_begun_to_save_is_removed(root: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"sequence_length": 64, "batch_size": 3, "pack": "best_fit", "prefetch": 0}
    Loader(root, plan_cache=tmp_path, **options)
    (made,) = tmp_path.iterdir()
    made.rename(tmp_path / f".{made.name}.tmp-12345")
    Loader(root, plan_cache=tmp_path, **options)
    assert [path.name for path in tmp_path.iterdir()] == [made.name]
