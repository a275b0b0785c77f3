"""A Hugging Face Trainer fed by packed shards: kill it, start it again, and it goes on exactly where it was.

The Trainer's models shift labels themselves, so they are given the input ids as labels, but for those that have no
target; positions restart at documents. The loader's position is saved beside each checkpoint, after it, and loaded
before a resume; a checkpoint without one was not finished.

    python docs/examples/huggingface_trainer.py SHARDS OUT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from gristmill.packing import open_shards
from gristmill.packing.torch import TorchLoader

BATCH, LENGTH, STEPS = 4, 128, 40


class Rows(IterableDataset):  # type: ignore[misc]
    """Single rows of the loader's batches, as the Trainer collates them itself."""

    def __init__(self, loader: TorchLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for batch in self.loader:
            own = batch["input_ids"].clone()
            own[:, 1:][batch["labels"][:, :-1] == -100] = -100
            for ids, labels, positions in zip(batch["input_ids"], own, batch["position_ids"], strict=True):
                yield {"input_ids": ids, "labels": labels, "position_ids": positions}


class SavePosition(TrainerCallback):  # type: ignore[misc]
    """Writes the loader's position into every checkpoint folder."""

    def __init__(self, loader: TorchLoader) -> None:
        self.loader = loader

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        """Count steps the Trainer has taken, not what its workers have fetched."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        fresh = self.loader.loader
        position = fresh.state_dict() | {"delivered": state.global_step * BATCH, "step": state.global_step}
        (folder / "loader.tmp").write_text(json.dumps(position))
        (folder / "loader.tmp").rename(folder / "loader.json")


def main(shards: str, out: str) -> None:
    """Train, resuming from the last checkpoint in `out` if there is one."""
    set_seed(7)
    loader = TorchLoader(shards, sequence_length=LENGTH, batch_size=BATCH, seed=7, epochs=float("inf"))
    config = GPT2Config(
        vocab_size=open_shards(shards).vocab_size, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    saved = Path(out).glob("checkpoint-*/loader.json")
    last = max(saved, key=lambda path: int(path.parent.name.split("-")[1]), default=None)
    if last is not None:
        loader.load_state_dict(json.loads(last.read_text()))
    arguments = TrainingArguments(
        out, max_steps=STEPS, per_device_train_batch_size=BATCH, save_steps=10, logging_steps=5,
        ignore_data_skip=True, report_to=[], use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=Rows(loader), callbacks=[SavePosition(loader)])
    trainer.train(resume_from_checkpoint=str(last.parent) if last is not None else None)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
