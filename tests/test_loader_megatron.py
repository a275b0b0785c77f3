"""Shards and loader under Megatron-Core: blend files, and a data set in the shape of GPTDataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.packing import ArgumentError, Loader, TokenSpec, open_shards, write_shards
from gristmill.packing.megatron import MegatronDataset, blend_arguments, write_blend

SPEC = TokenSpec(1000, 0, "t")
S = 16


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two sources whose tokens tell them apart: odd ids, even ids."""
    rng = np.random.default_rng(1)
    base = tmp_path_factory.mktemp("p")
    out = {}
    for name, n, odd in (("web", 90, 1), ("code", 30, 0)):
        documents = [rng.integers(1, 499, int(k)) * 2 + odd for k in rng.integers(1, 90, n)]
        out[name] = write_shards(base / name, documents, SPEC, documents_per_shard=40)
    return out


def test_a_blend_gives_sources_their_weights_and_shards_their_tokens(roots: dict[str, Path]) -> None:
    arguments = blend_arguments(roots, {"web": 3, "code": 1})
    weights = {prefix: float(weight) for weight, prefix in zip(arguments[::2], arguments[1::2], strict=True)}
    assert sum(weights.values()) == pytest.approx(1)
    for name, share in (("web", 0.75), ("code", 0.25)):
        shards = open_shards(roots[name])
        for i, n in enumerate(np.diff(shards.token_starts).tolist()):
            prefix = roots[name] / shards.name_of(i)
            assert weights[str(prefix)] == pytest.approx(share * n / shards.n_tokens)
            assert prefix.with_name(prefix.name + ".bin").exists()
    plain = blend_arguments(roots)
    n_web, n_code = (open_shards(roots[n]).n_tokens for n in ("web", "code"))
    got = sum(float(w) for w, p in zip(plain[::2], plain[1::2], strict=True) if str(roots["code"]) in p)
    assert got == pytest.approx(n_code / (n_web + n_code))
    assert blend_arguments(roots["code"]) == ["1.0", str(roots["code"] / "shard-00000")]


def test_impossible_blends_are_refused(roots: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="unknown sources"):
        blend_arguments(roots, {"books": 1})
    with pytest.raises(ArgumentError, match="impossible mixture weights"):
        blend_arguments(roots, {"web": 0})
    with pytest.raises(ArgumentError, match="unknown split"):
        write_blend(tmp_path / "b", roots, dev=roots["web"])
    spaced = write_shards(tmp_path / "a b", [[1, 2]], SPEC)
    with pytest.raises(ArgumentError, match="white space"):
        write_blend(tmp_path / "b", spaced)


def test_blend_files(roots: dict[str, Path], tmp_path: Path) -> None:
    write_blend(tmp_path / "one", roots, {"web": 3, "code": 1})
    assert (tmp_path / "one").read_text().split() == blend_arguments(roots, {"web": 3, "code": 1})
    write_blend(tmp_path / "splits", roots["web"], valid=roots["code"])
    assert json.loads((tmp_path / "splits").read_text()) == {
        "train": blend_arguments(roots["web"]),
        "valid": blend_arguments(roots["code"]),
        "test": [],
    }
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "splits"]


# ---- with torch, and with Megatron-Core ---------------------------------------------------------------------


@pytest.mark.peer
@pytest.mark.filterwarnings("default")
def test_items_are_the_samples_of_the_run_at_any_place(roots: dict[str, Path]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    options: dict[str, Any] = {"sequence_length": S, "seed": 3, "weights": {"web": 3, "code": 1}, "epochs": 2}
    reference = Loader(roots, batch_size=1, skip=[(5, 9)], prefetch=0, **options)
    data = MegatronDataset(Loader(roots, batch_size=7, skip=[(5, 9)], **options), attention_mask=True)
    want = list(reference)
    assert len(data) == len(want) > 500
    for i in np.random.default_rng(0).permutation(len(want))[:300].tolist():
        item, batch = data[i], want[i]
        assert item["tokens"].dtype == item["labels"].dtype == item["position_ids"].dtype == torch.int64
        assert item["loss_mask"].dtype == torch.float32
        assert item["tokens"].tolist() == batch["input_ids"][0].tolist()
        assert item["position_ids"].tolist() == batch["position_ids"][0].tolist()
        assert item["loss_mask"].tolist() == (batch["labels"][0] >= 0).tolist()
        assert item["labels"].tolist() == np.maximum(batch["labels"][0], 0).tolist()
        begins = np.arange(S) - batch["position_ids"][0]
        for q in range(S):
            seen = [k for k in range(S) if not item["attention_mask"][0, q, k]]
            assert seen == list(range(int(begins[q]), q + 1))
    assert data[None]["loss_mask"].sum() == 0
    with pytest.raises(IndexError):
        data[len(data)]


@pytest.mark.peer
@pytest.mark.filterwarnings("default")
def test_a_sampler_that_counts_consumed_samples_resumes_exactly(roots: dict[str, Path]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    options: dict[str, Any] = {"sequence_length": S, "batch_size": 1, "seed": 3}
    data = MegatronDataset(Loader(roots, **options))

    def run(consumed: int, micro: int, world: int, workers: int) -> list[list[int]]:
        """What Megatron's pretraining sampler does: micro-batches of each rank in turn."""
        ranks = []
        for rank in range(world):
            batches = [
                list(range(at + rank * micro, at + (rank + 1) * micro))
                for at in range(consumed, len(data) - micro * world + 1, micro * world)
            ]
            loader = torch.utils.data.DataLoader(data, batch_sampler=batches, num_workers=workers)
            ranks.append([row for batch in loader for row in batch["tokens"].tolist()])
        n = len(ranks[0]) // micro
        return [row for i in range(n) for rank in ranks for row in rank[i * micro : (i + 1) * micro]]

    whole = run(0, 4, 1, 0)
    assert whole == [row.tolist() for batch in Loader(roots, **options) for row in batch["input_ids"]][: len(whole)]
    resumed = run(80, 2, 2, 2)
    assert resumed == whole[80 : 80 + len(resumed)]
    assert len(resumed) > 100


@pytest.mark.peer
@pytest.mark.filterwarnings("default")
def test_megatron_core_trains_on_a_blend_of_our_shards(roots: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("megatron.core.datasets.gpt_dataset", reason="megatron-core is not installed")
    pytest.importorskip("megatron.core.datasets.helpers_cpp", reason="its index helpers are not compiled")
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import get_blend_from_list

    class Words:
        eod = eos_id = eos = pad = 0
        vocab_size = 1000
        unique_identifiers = {"class": "words"}  # noqa: RUF012

    write_blend(tmp_path / "blend", roots, {"web": 3, "code": 1})
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=S, blend=get_blend_from_list((tmp_path / "blend").read_text().split()),
        split="1,0,0", path_to_cache=str(tmp_path / "cache"), tokenizer=Words(), reset_position_ids=True,
        reset_attention_mask=True, eod_mask_loss=False, create_attention_mask=True, allow_ambiguous_pad_tokens=True,
    )  # fmt: skip
    # Its blends ask for the rank of a process group: one of this process alone, which needs no port.
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        train, _, _ = BlendedMegatronDatasetBuilder(GPTDataset, [400, 0, 0], lambda: True, config).build()
    finally:
        distributed.destroy_process_group()
    odd = 0
    for i in range(400):
        item = train[i]
        kept = item["tokens"][item["tokens"] > 0] % 2
        assert len(set(kept.tolist())) <= 1
        odd += int(len(kept) and kept[0] == 1)
    assert odd == pytest.approx(300, abs=8)
    # Ours has the same keys, types and shapes.
    ours = MegatronDataset(Loader(roots, sequence_length=S, batch_size=1), attention_mask=True)[0]
    theirs = train[0]
    shapes = {key: (value.dtype, tuple(value.shape)) for key, value in theirs.items() if key != "dataset_id"}
    assert {key: (value.dtype, tuple(value.shape)) for key, value in ours.items()} == shapes
