"""A first look at shards: the first batch as a trainer gets it, and a shard's own facts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gristmill.packing import Loader, PackingError, open_shards
from gristmill.stages.errors import ConfigError

SEQUENCE_LENGTH = 512
BATCH_SIZE = 4


def first_batch(path: str) -> str:
    """Return the shapes and first ids of the first batch that a loader gives, or why there is none."""
    try:
        shards = open_shards(path)
        length = min(SEQUENCE_LENGTH, max(1, shards.n_tokens // (2 * BATCH_SIZE)))
        with Loader([path], sequence_length=length, batch_size=BATCH_SIZE, seed=0, prefetch=0) as loader:
            batch = next(iter(loader))
            n_steps = len(loader)
    except (PackingError, StopIteration) as error:
        return f"no batch: {error}"
    lines = [f"first batch of {n_steps:,} (sequence_length={length}, batch_size={BATCH_SIZE}, seed=0):"]
    for name, value in batch.items():
        if isinstance(value, np.ndarray):
            head = ", ".join(str(v) for v in value.reshape(-1)[:6])
            lines.append(f"  {name:<13} {value.dtype} {list(value.shape)}  {head}, ...")
        else:
            lines.append(f"  {name:<13} {value}")
    return "\n".join(lines)


def shard_text(prefix: str) -> str:
    """Return what one shard holds and its first documents. `prefix` is its path without suffix.

    Raises:
        ConfigError: there is no such shard.
    """
    path = Path(prefix)
    try:
        shards = open_shards(str(path.parent))
    except PackingError as error:
        raise ConfigError(str(error)) from None
    names = [shards.shard(i).name for i in range(len(shards))]
    if path.name not in names:
        raise ConfigError(f"{prefix}: the set in {path.parent} has the shards {', '.join(names[:5])} ...")
    shard = shards.shard(names.index(path.name))
    lines = [f"{shard.name}: {shard.n_documents:,} documents, {shard.n_tokens:,} tokens, {shard.dtype}"]
    for number in range(min(3, shard.n_documents)):
        origin = shard.provenance(number)
        tokens = shard.document(number)
        head = ", ".join(str(t) for t in tokens[:12])
        lines.append(f"  {origin.document_id} ({origin.source}) {origin.n_tokens:,} tokens: {head}, ...")
    return "\n".join(lines)
