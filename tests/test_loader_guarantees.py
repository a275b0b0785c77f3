"""The guarantees, in the words in which they are given: order on any topology, exact resume, no garbage ever."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.packing import (
    Loader,
    PackingError,
    ShardCorruptError,
    ShardFormatError,
    ShardMissingError,
    TokenSpec,
    write_shards,
)
from gristmill.packing.certificate import combine
from gristmill.packing.permutation import Permutation

SPEC = TokenSpec(1000, 0, "t" * 32)
S = 16
ARRAYS = ("input_ids", "labels", "position_ids")


def make(folder: Path, n: int = 160, seed: int = 5) -> Path:
    rng = np.random.default_rng(seed)
    documents = [rng.integers(1, 1000, int(k)) for k in rng.integers(0, 60, n)]
    return write_shards(folder, documents, SPEC, documents_per_shard=60, source="web")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("set"))


def row_bytes(batch: dict[str, Any], row: int) -> bytes:
    return b"".join(np.ascontiguousarray(batch[name][row], "<i4").tobytes() for name in ARRAYS)


def rows_of(batch: dict[str, Any]) -> Iterator[tuple[int, bytes]]:
    """Every real row of a batch: its global sample, and its ids, labels and positions to the bit."""
    for row, sample in enumerate(batch["samples"].tolist()):
        if sample >= 0:
            yield sample, row_bytes(batch, row)


def order_hash(rows: list[tuple[int, bytes]]) -> str:
    state = hashlib.blake2b()
    for sample, content in rows:
        state.update(sample.to_bytes(8, "little") + content)
    return state.hexdigest()


def worker_steps(loader: Loader, n_workers: int) -> Iterator[dict[str, Any]]:
    """Batches as a DataLoader with that many workers takes them: from copies of the loader in turn."""
    if not n_workers:
        yield from loader
        return
    state = loader.state_dict()
    copies = []
    for worker in range(n_workers):
        _, (cls, arguments, _) = loader.__reduce__()
        copy = cls(**arguments)
        copy.load_state_dict(state)
        copies.append(copy.interleaved(worker, n_workers))
    for step in range(len(loader)):
        yield next(copies[step % n_workers])


@pytest.mark.parametrize("batch_size", [1, 8, 24])
def test_exactly_once_and_one_order_for_any_ranks_workers_and_batch(root: Path, batch_size: int) -> None:
    options: dict[str, Any] = {"sequence_length": S, "seed": 7, "batch_size": batch_size, "prefetch": 0}
    whole = Loader(root, sequence_length=S, seed=7, batch_size=1, prefetch=0)
    reference = [row for batch in whole for row in rows_of(batch)]
    n = whole.plan.order.n_items[0]
    # Exactly once an epoch: every sample, and every window of the stream.
    assert [sample for sample, _ in reference] == list(range(n))
    assert np.unique(whole.plan.order.locate(np.arange(n))[2]).tolist() == list(range(n))
    for world in (1, 2, 3, 8):
        for workers in (0, 1, 4):
            ranks = [Loader(root, rank=r, world_size=world, **options) for r in range(world)]
            got: list[tuple[int, bytes]] = []
            for batches in zip(*(worker_steps(rank, workers) for rank in ranks), strict=True):
                got += [row for batch in batches for row in rows_of(batch)]
            assert order_hash(got) == order_hash(reference), (world, workers)
            if not workers:
                assert combine(rank.certificate() for rank in ranks) == whole.certificate()


@pytest.mark.parametrize("threads", [1, 4])
def test_prefetch_threads_do_not_change_the_order(root: Path, threads: int) -> None:
    options: dict[str, Any] = {"sequence_length": S, "seed": 7, "batch_size": 8}
    reference = [row for batch in Loader(root, prefetch=0, **options) for row in rows_of(batch)]
    with Loader(root, prefetch=6, threads=threads, **options) as loader:
        assert [row for batch in loader for row in rows_of(batch)] == reference


@pytest.mark.parametrize("pack", ["concat", "best_fit"])
def test_resume_is_bit_identical_at_100_random_cuts_and_on_another_topology(root: Path, pack: str) -> None:
    def loader(size: int, rank: int = 0, world: int = 1) -> Loader:
        return Loader(
            {"a": root, "b": root}, weights={"a": 2, "b": 1}, epochs=1, sequence_length=S, global_batch_size=size,
            rank=rank, world_size=world, seed=3, prefetch=0, pack=pack,
        )  # fmt: skip

    reference = [row for batch in loader(1) for row in rows_of(batch)]
    chance = random.Random(0)
    for _ in range(100):
        first, second, world = chance.choice((1, 4, 6, 16)), chance.choice((8, 9, 24)), chance.choice((1, 2, 3))
        before = loader(first)
        n_steps = chance.randrange(1, len(before))
        before.seek(max(0, n_steps - 2))
        head = [row for _, batch in zip(range(min(2, n_steps)), before, strict=False) for row in rows_of(batch)]
        state = json.loads(json.dumps(before.state_dict()))
        cut = n_steps * first
        assert head == reference[max(0, n_steps - 2) * first : cut]
        assert state["delivered"] == cut
        # The same topology gives the same batches to the last bit, boundaries and all.
        after = loader(first)
        after.load_state_dict(state)
        for _, one, two in zip(range(3), before, after, strict=False):
            assert list(one) == list(two)
            assert all(np.array_equal(one[key], two[key]) for key in one)
        # Another one gives the same rows.
        ranks = [loader(second, r, world) for r in range(world)]
        for rank in ranks:
            rank.load_state_dict(state)
        got = []
        for _, *batches in zip(range(3), *ranks, strict=False):
            got += [row for batch in batches for row in rows_of(batch)]
        assert got == reference[cut : cut + 3 * second]


def test_permutations_are_bijections_for_all_sizes_to_5000_and_around_powers_of_two() -> None:
    sizes = [*range(1, 5001), *(2**k + d for k in range(13, 19) for d in (-1, 0, 1))]
    seen = np.zeros(max(sizes), bool)
    for n in sizes:
        seen[:n] = False
        seen[Permutation(n, n, "web", 0)(np.arange(n))] = True
        assert seen[:n].all(), n


@pytest.mark.parametrize("weights", [(1, 1), (7, 2, 1), (0.5, 0.3, 0.15, 0.05), (97, 1, 1, 1, 300)])
def test_no_prefix_of_a_run_is_off_by_a_whole_sample(root: Path, weights: tuple[float, ...]) -> None:
    names = [f"s{i}" for i in range(len(weights))]
    given = dict(zip(names, weights, strict=True))
    loader = Loader(dict.fromkeys(names, root), weights=given, sequence_length=S, batch_size=1)
    source = loader.plan.order.locate(np.arange(20_000))[0]
    drawn = np.cumsum(source[:, None] == np.arange(len(weights)), axis=0)
    want = np.arange(1, 20_001)[:, None] * np.array(weights) / sum(weights)
    assert np.abs(drawn - want).max() < 1


# ---- damage -------------------------------------------------------------------------------------------------


def deliver(folder: Path) -> str:
    return order_hash([row for b in Loader(folder, sequence_length=S, batch_size=4, prefetch=0) for row in rows_of(b)])


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**9), st.integers(0, 7))
def test_any_flipped_bit_is_an_error_or_changes_nothing(root: Path, tmp_path_factory: Any, at: int, bit: int) -> None:
    """Flips in what a loader does not read, such as the ids of documents, are found by `verify`."""
    folder = tmp_path_factory.mktemp("flip")
    good = deliver(root)
    files = sorted(root.iterdir())
    path = files[at % len(files)]
    shutil.copytree(root, folder / "set")
    raw = bytearray(path.read_bytes())
    raw[at // len(files) % len(raw)] ^= 1 << bit
    (folder / "set" / path.name).write_bytes(raw)
    try:
        assert deliver(folder / "set") == good
    except PackingError as error:
        assert str(folder) in str(error)
    shutil.rmtree(folder)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**9), st.booleans())
def test_any_truncated_or_longer_file_is_an_error(root: Path, tmp_path_factory: Any, at: int, longer: bool) -> None:
    folder = tmp_path_factory.mktemp("cut")
    shutil.copytree(root, folder / "set")
    files = sorted(path for path in (folder / "set").iterdir())
    path = files[at % len(files)]
    raw = path.read_bytes()
    path.write_bytes(raw + b"\0" if longer else raw[: at // len(files) % len(raw)])
    with pytest.raises((ShardCorruptError, ShardFormatError), match=path.name.split(".")[0]):
        deliver(folder / "set")
    shutil.rmtree(folder)


def swap(folder: Path, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        a, b = folder / f"shard-00000.{kind}", folder / f"shard-00001.{kind}"
        a.rename(folder / "x")
        b.rename(a)
        (folder / "x").rename(b)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("bin",), r"shard-0000\d\.bin: checksum of bytes 0 to 512 fails.*copy it again"),
        (("provenance",), ""),
        (("manifest.json",), "stale or foreign manifest"),
        (("bin", "idx", "provenance", "manifest.json"), "stale or foreign manifest"),
    ],
)
def test_swapped_files_of_one_size_are_found_by_the_loader(
    tmp_path: Path, kinds: tuple[str, ...], message: str
) -> None:
    lengths = [7, 23, 23, 7]
    documents = [np.full(n, i + 1) for i, n in enumerate(lengths * 8)]
    write_shards(tmp_path, documents, SPEC, documents_per_shard=16, ids=[f"doc-{i:03d}" for i in range(32)])
    swap(tmp_path, kinds)
    if kinds == ("provenance",):
        # Equal lengths, equal bounds: nothing that a batch is made of has changed. Names have, and `verify` says so.
        deliver(tmp_path)
        with pytest.raises(ShardCorruptError, match="provenance: checksum of the file fails"):
            Loader(tmp_path, sequence_length=S, batch_size=1).plan.sources[0].shards.verify()
        return
    with pytest.raises(ShardCorruptError, match=message):
        deliver(tmp_path)


@pytest.mark.parametrize("kind", ["bin", "idx", "provenance"])
def test_swapped_files_of_other_lengths_are_found_by_the_loader(tmp_path: Path, kind: str) -> None:
    make(tmp_path)
    swap(tmp_path, (kind,))
    with pytest.raises((ShardCorruptError, ShardFormatError), match=rf"shard-0000\d\.{kind}.*(copy|swapped)"):
        deliver(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    make(tmp_path)
    for path in tmp_path.glob("shard-00001.*"):
        path.unlink()
    with pytest.raises(ShardMissingError, match=r"shard-00001\.manifest\.json: file is missing.*every file in it"):
        deliver(tmp_path)


def test_a_shard_of_another_run_is_stale(tmp_path: Path) -> None:
    make(tmp_path / "a")
    make(tmp_path / "b", seed=6)
    for path in (tmp_path / "b").glob("shard-00001.*"):
        shutil.copy(path, tmp_path / "a" / path.name)
    with pytest.raises(ShardCorruptError, match=r"shard-00001\.manifest\.json: stale or foreign manifest.*two runs"):
        deliver(tmp_path / "a")


@pytest.mark.parametrize("name", ["shards.json", "shard-00000.manifest.json"])
def test_another_dtype_in_a_manifest_is_refused(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    text = (tmp_path / name).read_text()
    (tmp_path / name).write_text(text.replace('"uint16"', '"int32"'))
    with pytest.raises(ShardCorruptError, match="edited or damaged|stale or foreign"):
        deliver(tmp_path)
