"""Train a tiny GPT on packed shards on the CPU, be killed, resume at another world size: the losses coincide.

python docs/examples/train_tiny_gpt.py SHARDS                       one uninterrupted run of 30 steps
python docs/examples/train_tiny_gpt.py SHARDS --state s             kill it, at any moment
python docs/examples/train_tiny_gpt.py SHARDS --state s --world 2   the rest as two ranks
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn

from gristmill.packing import open_shards
from gristmill.packing.torch import TorchLoader

STEPS, LENGTH, GLOBAL_BATCH, WIDTH = 30, 64, 8, 64


class TinyGpt(nn.Module):
    """Token and position embeddings, two causal blocks, a head."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, WIDTH), nn.Embedding(LENGTH, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocab_size)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return logits; a position sees earlier ones of its own document only."""
        document = (positions == 0).cumsum(1)
        other = document[:, :, None] != document[:, None, :]
        mask = other | torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        x = self.tokens(ids) + self.positions(positions)
        return self.head(self.blocks(x, mask=mask.repeat_interleave(4, 0)))


def main() -> None:
    """Train, printing one loss a step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("shards")
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--stop", type=int, default=STEPS)
    parser.add_argument("--state", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = TinyGpt(open_shards(given.shards).vocab_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ranks = [
        TorchLoader(given.shards, sequence_length=LENGTH, global_batch_size=GLOBAL_BATCH, seed=7, rank=r,
                    world_size=given.world, epochs=float("inf"))
        for r in range(given.world)
    ]  # fmt: skip
    if given.state and given.state.exists():
        saved = torch.load(given.state, weights_only=True)
        model.load_state_dict(saved["model"])
        for rank in ranks:
            rank.load_state_dict(saved["data"])
    streams = [iter(rank) for rank in ranks]
    for step in range(ranks[0].loader.step, given.stop):
        total = torch.zeros(())
        for batch in map(next, streams):  # one process stands for all ranks; gradients add up as in DDP
            logits = model(batch["input_ids"], batch["position_ids"])
            total = total + nn.functional.cross_entropy(
                logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum"
            )
        loss = total / (GLOBAL_BATCH * LENGTH)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step:3d} {loss.item():.4f}", flush=True)  # noqa: T201
        if given.state:
            # By rename: a kill at any moment leaves this state or the one before.
            torch.save({"model": model.state_dict(), "data": ranks[0].state_dict()}, f"{given.state}.tmp")
            os.replace(f"{given.state}.tmp", given.state)  # noqa: PTH105


if __name__ == "__main__":
    main()
