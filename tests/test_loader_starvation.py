"""Batches that do not come: who waits for what, and for how long. Workers that crash: nobody sees it in the order."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from s3_server import S3Server, serving

from gristmill.packing import Cache, Loader, ShardReadError, StarvedError, TokenSpec, WorkerError, s3, write_shards
from gristmill.packing.activity import activity_of, doing
from gristmill.packing.reader import Shard

S = 16


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    documents = [rng.integers(1, 1000, int(n)) for n in rng.integers(1, 90, 300)]
    folder = tmp_path_factory.mktemp("bucket") / "set-1"
    return write_shards(folder, documents, TokenSpec(1000, 0, "t"), documents_per_shard=110)


@pytest.fixture
def server(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with serving(root.parent, monkeypatch) as made:
        yield made
    s3._local.__dict__.clear()


class Gate:
    """Something that hangs until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.open.wait(120)


def loader(root: Any, **options: Any) -> Loader:
    return Loader(root, **{"sequence_length": S, "batch_size": 4, "seed": 2, "timeout": 0.05, **options})


def starved(one: Loader, reached: threading.Event, release: Callable[[], None]) -> str:
    """Take batches until one does not come, and return what is said about it.

    A busy machine may starve a loader without our help: only what is said once somebody hangs counts.
    """
    try:
        while True:
            hangs = reached.is_set()
            try:
                next(one)
            except StarvedError as error:
                if hangs:
                    return str(error)
    finally:
        release()
        one.close()


def test_a_read_that_hangs_is_named_with_shard_offset_and_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, gate = loader(root, threads=1), Gate()
    real = one._make

    def hang(made: int, n: int) -> Any:
        if made == 3:
            one._chunk(-1)
            gate.wait()
        return real(made, n)

    monkeypatch.setattr(one, "_make", hang)
    place = one.plan.place_of(int(one.samples_of(np.array([12]))[0]))
    said = starved(one, gate.reached, gate.open.set)
    assert "no batch within 0.05 s" in said
    assert "loader at step 3" in said
    assert f"step 3 reading 4 rows, the first from {place} for 0." in said or f"first from {place} for " in said
    assert str(root / "shard-0000") in place
    assert ".bin at byte " in place


def test_a_shard_that_does_not_open_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, gate = loader(root), Gate()
    real = Shard.__init__

    def hang(self: Shard, *arguments: Any, **options: Any) -> None:
        gate.wait()
        real(self, *arguments, **options)

    monkeypatch.setattr(Shard, "__init__", hang)
    assert f"opening {root}/shard-0000" in starved(one, gate.reached, gate.open.set)


def test_a_read_that_is_tried_again_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, gate = loader(root, verify="always"), Gate()
    real = Shard._read_slowly

    def hang(self: Shard, view: memoryview, offset: int) -> None:
        gate.wait()
        real(self, view, offset)

    monkeypatch.setattr(Shard, "_read_slowly", hang)
    assert f"reading {root}/shard-0000" in starved(one, gate.reached, gate.open.set)


def test_a_store_that_does_not_answer_is_named_with_object_and_try(server: S3Server, tmp_path: Path) -> None:
    cache = Cache(tmp_path, chunk_bytes=1024)
    one = loader("s3://data/set-1", cache=cache, epochs=100)
    server.hold_after(8)
    said = starved(one, server.holding, server.release)
    assert "fetching s3://data/set-1/shard-0000" in said
    assert ", try 1 of 5 for " in said


def test_a_chunk_that_another_process_fetches_is_named(server: S3Server, tmp_path: Path) -> None:
    cache = Cache(tmp_path, chunk_bytes=1024)
    one = loader("s3://data/set-1", cache=cache)
    real, gate = cache._locked, Gate()

    def hang(name: str, wait: bool = True) -> Any:
        gate.wait()
        return real(name, wait)

    cache._locked = hang  # type: ignore[method-assign]
    assert "waiting for another process that fetches" in starved(one, gate.reached, gate.open.set)


def test_starvation_is_reported_again_and_again_where_that_is_wanted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[StarvedError] = []
    gate = Gate()

    def report(error: StarvedError) -> None:
        reports.append(error)
        if len(reports) >= 3:
            gate.open.set()

    one = loader(root, on_starved=report, timeout=0.02)
    real = one._make

    def hang(made: int, n: int) -> Any:
        if made == 2:
            gate.wait()
        return real(made, n)

    monkeypatch.setattr(one, "_make", hang)
    samples = [t for batch in one for t in batch["samples"].tolist() if t >= 0]
    assert samples == list(range(one.n_rows or 0))
    assert len(reports) >= 3
    assert all("no batch within 0.02 s" in str(error) for error in reports)


def test_notes_are_of_one_thread_and_nest() -> None:
    me = threading.get_ident()
    assert activity_of(me) is None
    with doing("a"):
        with doing("b"):
            assert activity_of(me) == "b"
        assert activity_of(me) == "a"
        assert activity_of(-1) is None
    assert activity_of(me) is None


# ---- crashes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [RuntimeError, MemoryError, SystemExit, KeyboardInterrupt])
def test_a_worker_that_crashes_is_started_again_without_a_change_of_order(
    root: Path, monkeypatch: pytest.MonkeyPatch, crash: type[BaseException]
) -> None:
    want = [(b["samples"].tolist(), b["input_ids"].tolist()) for b in loader(root, prefetch=0)]
    one = loader(root, prefetch=4, threads=3, timeout=None)
    real, failed = one._make, set()

    def flaky(made: int, n: int) -> Any:
        for trial in (0, 1):
            if made % 5 == trial and (made, trial) not in failed:
                failed.add((made, trial))
                raise crash("lost")
        return real(made, n)

    monkeypatch.setattr(one, "_make", flaky)
    assert [(b["samples"].tolist(), b["input_ids"].tolist()) for b in one] == want
    assert len(failed) > 10


@pytest.mark.parametrize("tries", [1, 2, 5])
def test_a_step_that_always_crashes_is_an_error_after_the_stated_tries(
    root: Path, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    one = loader(root, prefetch=4, threads=2, tries=tries, timeout=None)
    real, calls = one._make, []

    def broken(made: int, n: int) -> Any:
        if made == 6:
            calls.append(made)
            raise RuntimeError("lost")
        return real(made, n)

    monkeypatch.setattr(one, "_make", broken)
    for step in range(6):
        assert next(one)["samples"][0] == 4 * step
    with pytest.raises(WorkerError, match=rf"step 6: a prefetch worker crashed {tries} times.*RuntimeError: lost") as e:
        next(one)
    assert isinstance(e.value.__cause__, RuntimeError)
    assert len(calls) == tries
    assert one.state_dict()["delivered"] == 24
    one.close()


def test_what_the_shards_themselves_refuse_is_not_tried_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("gristmill.packing.reader.time.sleep", lambda seconds: None)
    monkeypatch.setattr(os, "preadv", failing)
    one = loader(root, timeout=None)
    with pytest.raises(ShardReadError, match="reading failed 5 times"):
        next(one)
    one.close()
