"""The loader under PyTorch, and our shards under Megatron-Core."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.data import DataLoader  # noqa: E402

from gristmill.packing import TokenSpec, open_shards, write_shards  # noqa: E402
from gristmill.packing.torch import TorchLoader  # noqa: E402

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("default"),
]
SPEC = TokenSpec(1000, 0, "t")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    documents = [rng.integers(1, 1000, int(n)) for n in rng.integers(1, 90, 120)]
    return write_shards(tmp_path_factory.mktemp("p"), documents, SPEC, documents_per_shard=50)


def loader(root: Path, **options: Any) -> TorchLoader:
    return TorchLoader(root, **{"sequence_length": 16, "batch_size": 4, "seed": 3, **options})


def rows(batches: Any) -> list[Any]:
    return [
        row for batch in batches for row in zip(batch["samples"].tolist(), batch["input_ids"].tolist(), strict=True)
    ]


def test_batches_are_int64_tensors(root: Path) -> None:
    one = loader(root, loss_mask=True)
    batch = next(iter(one))
    assert batch["input_ids"].dtype == batch["labels"].dtype == batch["position_ids"].dtype == torch.int64
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["loss_mask"].dtype == torch.uint8
    logits = torch.randn(4, 16, 1000)
    assert torch.isfinite(torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch["labels"]))
    one.close()


@pytest.mark.parametrize("workers", [0, 1, 3, 4])
def test_dataloader_workers_do_not_change_the_order(root: Path, workers: int) -> None:
    reference = rows(loader(root))
    assert rows(DataLoader(loader(root), batch_size=None, num_workers=workers)) == reference


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 8, 24])
def test_one_order_for_any_ranks_dataloader_workers_and_batch(root: Path, batch_size: int) -> None:
    reference = [row for row in rows(loader(root, batch_size=1)) if row[0] >= 0]
    for world in (1, 2, 3, 8):
        for workers in (0, 1, 4):
            ranks = [
                iter(
                    DataLoader(
                        loader(root, batch_size=batch_size, rank=r, world_size=world, prefetch=0),
                        batch_size=None,
                        num_workers=workers,
                    )
                )
                for r in range(world)
            ]
            got = [row for batches in zip(*ranks, strict=True) for row in rows(batches)]
            assert [row for row in got if row[0] >= 0] == reference, (world, workers)


def test_a_distributed_checkpoint_holds_the_position(root: Path, tmp_path: Path) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    reference = rows(loader(root))
    one = loader(root)
    seen = [row for _, batch in zip(range(5), one, strict=False) for row in rows([batch])]
    dcp.save({"data": one, "weight": torch.ones(3)}, checkpoint_id=str(tmp_path), no_dist=True)
    one.close()
    two = loader(root, batch_size=2)
    dcp.load({"data": two, "weight": torch.zeros(3)}, checkpoint_id=str(tmp_path), no_dist=True)
    rest = [row for row in rows(two) if row[0] >= 0]
    assert seen + rest == [row for row in reference if row[0] >= 0]


def test_a_loader_travels_to_spawned_workers_with_its_position(root: Path) -> None:
    one = loader(root)
    reference = rows(loader(root))
    iterator = iter(one)
    for _ in range(3):
        next(iterator)
    one.close()
    got = rows(DataLoader(one, batch_size=None, num_workers=1, multiprocessing_context="spawn"))
    assert got == reference[12:]


def test_workers_may_be_forked_while_prefetch_threads_run(root: Path) -> None:
    reference = rows(loader(root))
    for n in range(1, 9):
        one = loader(root, prefetch=6, threads=3)
        iterator = iter(one)
        for _ in range(n):
            next(iterator)
        assert rows(DataLoader(one, batch_size=None, num_workers=2)) == reference[4 * n :]
        one.close()


def test_a_state_after_worker_steps_resumes_exactly(root: Path) -> None:
    reference = rows(loader(root))
    one = loader(root)
    seen = []
    for step, batch in enumerate(DataLoader(one, batch_size=None, num_workers=2)):
        seen += rows([batch])
        if step == 6:
            break
    two = loader(root, batch_size=7)
    two.load_state_dict(one.loader.state_dict(after_steps=7))
    rest = [row for row in rows(two) if row[0] >= 0]
    assert seen + rest == [row for row in reference if row[0] >= 0]


def test_stateful_dataloader_resumes_in_the_middle(root: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    reference = rows(loader(root))
    for workers in (0, 2):
        one = stateful.StatefulDataLoader(loader(root), batch_size=None, num_workers=workers)
        seen = []
        iterator = iter(one)
        for _ in range(5):
            seen += rows([next(iterator)])
        state = one.state_dict()
        two = stateful.StatefulDataLoader(loader(root), batch_size=None, num_workers=workers)
        two.load_state_dict(state)
        assert seen + rows(two) == reference, workers


def test_it_is_a_checkpointable_object(root: Path) -> None:
    stateful = pytest.importorskip("torch.distributed.checkpoint.stateful")
    assert isinstance(loader(root), stateful.Stateful)


KILLED = """
import os, signal, sys
from torch.utils.data import DataLoader
from gristmill.packing.torch import TorchLoader

loader = TorchLoader(sys.argv[1], sequence_length=16, batch_size=4, epochs=10_000)
iterator = iter(DataLoader(loader, batch_size=None, num_workers=2))
next(iterator)
os.kill(iterator._workers[0].pid, signal.SIGKILL)
for _ in iterator:
    pass
print("the epochs went on to their end")
"""


def test_a_killed_worker_is_an_error_and_no_hang_and_leaves_nothing(root: Path, tmp_path: Path) -> None:
    def shared() -> set[str]:
        folder = Path("/dev/shm")
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()

    before = shared()
    ran = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    stdout, stderr = ran.communicate(timeout=120)
    assert ran.returncode != 0
    assert stdout == ""
    assert "DataLoader worker" in stderr
    assert list(tmp_path.rglob("*")) == []
    assert {n for n in shared() - before if "gristmill" in n or str(ran.pid) in n.split("_")} == set()


def test_batches_cross_to_the_main_process_without_shared_memory(root: Path) -> None:
    batch = next(iter(loader(root, loss_mask=True)))
    raw = pickle.dumps(batch)
    assert len(raw) < 3 * 4 * batch["input_ids"].numel() + batch["loss_mask"].numel() + 2000
    again = pickle.loads(raw)
    assert list(again) == list(batch)
    for key, value in batch.items():
        assert type(again[key]) is type(value)
        if isinstance(value, torch.Tensor):
            assert again[key].dtype == value.dtype
            assert torch.equal(again[key], value)


def test_megatron_core_reads_our_shards(root: Path) -> None:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset", reason="megatron-core is not installed")
    shards = open_shards(root)
    number = 0
    for i in range(len(shards)):
        theirs = indexed.IndexedDataset(str(root / shards.shard(i).name))
        assert len(theirs) == shards.shard(i).n_documents
        assert theirs.document_indices.tolist() == list(range(len(theirs) + 1))
        for tokens in theirs:
            mine = shards.document(number)
            assert tokens.dtype == mine.dtype
            assert tokens.tolist() == mine.tolist()
            number += 1
    assert number == shards.n_documents
