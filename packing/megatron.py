"""Our shards under Megatron-Core: arguments for its own loader, and ours in the shape of its `GPTDataset`.

`blend_arguments` is what `--data-path` takes, `write_blend` the file for `--data-args-path` (or, with several splits,
`--per-split-data-args-path`). Megatron then shuffles and mixes by itself.

`MegatronDataset` keeps our order instead: item i is sample i of the run, so that Megatron's samplers, which count
`consumed_samples`, resume exactly, at any data-parallel size. It needs torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.packing.chunk import Chunk
from gristmill.packing.errors import ArgumentError, problem
from gristmill.packing.loader import Loader
from gristmill.packing.mixture import check_weights
from gristmill.packing.plan import Paths, named_sources
from gristmill.packing.reader import open_shards

CHUNK_ROWS = 256
MAX_CHUNKS = 16
SPLITS = ("train", "valid", "test")


def blend_arguments(sources: Paths | Mapping[str, Paths], weights: Mapping[str, float] | None = None) -> list[str]:
    """Return weight, prefix, weight, prefix, .. of every shard that holds tokens.

    A shard's weight is its source's share of the run times its share of the source's tokens; without `weights`,
    sources have the shares of their tokens.

    Raises:
        ArgumentError: weights of unknown sources, impossible ones, or no tokens.
    """
    named = dict(sorted(named_sources(sources).items()))
    shards: dict[str, list[tuple[Path, int]]] = {}
    for name, paths in named.items():
        shards[name] = []
        for folder in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
            opened = open_shards(folder)
            counts = np.diff(opened.token_starts).tolist()
            shards[name] += [(Path(folder) / opened.name_of(i), n) for i, n in enumerate(counts) if n]
    tokens = {name: sum(n for _, n in found) for name, found in shards.items()}
    given = dict(tokens) if weights is None else dict(weights)
    unknown = [name for name in given if name not in named]
    if unknown:
        raise ArgumentError(
            problem("weights of unknown sources", where="blend", expected=f"among {list(named)}", got=unknown)
        )
    check_weights(list(given.values()))
    total = sum(given.values())
    out: list[str] = []
    for name, found in shards.items():
        share = given.get(name, 0) / total
        if share and not tokens[name]:
            raise ArgumentError(problem("a source without tokens", where=name, expected="tokens", got=0))
        for prefix, n in found:
            if share:
                out += [repr(share * n / tokens[name]), str(prefix)]
    return out


def write_blend(
    path: str | os.PathLike[str],
    sources: Paths | Mapping[str, Paths],
    weights: Mapping[str, float] | None = None,
    **splits: Paths | Mapping[str, Paths],
) -> None:
    """Write a blend file.

    Args:
        path: the file; replaced if it is there.
        sources: shard folders of the training split.
        weights: by source name; see `blend_arguments`.
        **splits: `valid=` and `test=`: with them the file is JSON, for `--per-split-data-args-path`; without, the list
            of arguments for `--data-args-path`.

    Raises:
        ArgumentError: an unknown split; a path with a space in it, which that list cannot hold.
    """
    unknown = [name for name in splits if name not in SPLITS[1:]]
    if unknown:
        raise ArgumentError(problem("unknown split", where="write_blend", expected=SPLITS[1:], got=unknown))
    train = blend_arguments(sources, weights)
    if splits:
        every = {"train": train, **{name: blend_arguments(given) for name, given in splits.items()}}
        text = json.dumps({name: every.get(name, []) for name in SPLITS}, indent=1)
    else:
        spaced = [prefix for prefix in train[1::2] if len(prefix.split()) != 1]
        if spaced:
            raise ArgumentError(problem("a path with white space", where="write_blend", expected="none", got=spaced[0]))
        text = "\n".join(f"{weight} {prefix}" for weight, prefix in zip(train[::2], train[1::2], strict=True))
    target = Path(path)
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(target)


class MegatronDataset:
    """A map-style data set in the shape of Megatron-Core's `GPTDataset`: item i is sample i of the loader's run.

    Items hold tensors `tokens`, `labels`, `position_ids` int64 [S] and `loss_mask` float32 [S]; labels are ids of the
    vocabulary also where the mask is 0. With `attention_mask=True` there is also bool [1, S, S], True where a position
    must not look: later ones and other documents. Index None gives a row that the loss does not see.
    """

    def __init__(self, loader: Loader, *, attention_mask: bool = False) -> None:
        """Wrap a loader; its rank, position and batch size do not matter, the sampler has its own."""
        self.loader = loader
        self._attention_mask = attention_mask
        self._chunks: dict[int, Chunk] = {}

    def __len__(self) -> int:
        """Rows of the run.

        Raises:
            TypeError: the run never ends.
        """
        n = self.loader.n_rows
        if n is None:
            raise TypeError("this run never ends: give the loader epochs=")
        return n

    def __getitem__(self, index: int | None) -> dict[str, Any]:
        """Return one row as tensors."""
        import torch

        if index is None:
            number, row = -1, 0
        else:
            n = self.loader.n_rows
            if index < 0 or (n is not None and index >= n):
                raise IndexError(f"sample {index:,} of a run of {n:,}" if n is not None else f"sample {index:,}")
            number, row = divmod(int(index), CHUNK_ROWS)
        batch = self.loader.filler.fill(self._chunk(number), row)
        ids, labels = (torch.from_numpy(batch[name][0].astype(np.int64)) for name in ("input_ids", "labels"))
        real = labels >= 0
        out = {
            "tokens": ids,
            "labels": torch.where(real, labels, torch.zeros_like(labels)),
            "loss_mask": real.to(torch.float32),
            "position_ids": torch.from_numpy(batch["position_ids"][0].astype(np.int64)),
        }
        if self._attention_mask:
            s = len(ids)
            document = torch.from_numpy(np.searchsorted(batch["cu_seqlens"], np.arange(s), side="right"))
            later = torch.ones(s, s, dtype=torch.bool).triu(1)
            out["attention_mask"] = (later | (document[:, None] != document[None, :]))[None]
        return out

    def _chunk(self, number: int) -> Chunk:
        found = self._chunks.get(number)
        if found is None:
            first = number * CHUNK_ROWS
            last = first + CHUNK_ROWS if self.loader.n_rows is None else min(first + CHUNK_ROWS, self.loader.n_rows)
            rows = np.arange(first, last, dtype=np.int64)
            samples = self.loader.samples_of(rows) if number >= 0 else np.array([-1], np.int64)
            found = self._chunks[number] = Chunk(self.loader.plan, samples, rows=1)
            while len(self._chunks) > MAX_CHUNKS:
                del self._chunks[next(iter(self._chunks))]
        return found
