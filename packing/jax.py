"""The loader for JAX: this process's rows as one part of a globally sharded array.

Give each process the `rank` and `world_size` that `jax.process_index()` and `jax.process_count()` say. Nothing else
is shared between processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from gristmill.packing.loader import Loader

SHARDED = ("input_ids", "labels", "position_ids", "loss_mask")


def process_loader(sources: Any, **options: Any) -> Loader:
    """Return a `Loader` for this JAX process; arguments as `Loader`, without `rank` and `world_size`."""
    return Loader(sources, rank=jax.process_index(), world_size=jax.process_count(), **options)


def to_global(batch: dict[str, Any], sharding: Any) -> dict[str, Any]:
    """Make global arrays of this process's part of a batch.

    Args:
        batch: from a `Loader`; every process must hold the same number of rows.
        sharding: a `NamedSharding` whose first axis is the data axis.

    Returns:
        `input_ids`, `labels`, `position_ids` (and `loss_mask`) as `jax.Array` [global rows, S]; what is ragged or
        scalar (`cu_seqlens`, `max_seqlen`, `samples`) stays as it is, for this process's rows.
    """
    out = dict(batch)
    for key in SHARDED:
        if key in batch:
            # A copy: the loader fills its buffers again once NumPy's reference is gone, JAX may alias them.
            out[key] = jax.make_array_from_process_local_data(sharding, np.array(batch[key]))
    return out


def global_batches(loader: Loader, sharding: Any) -> Iterator[dict[str, Any]]:
    """Yield every batch of `loader` as global arrays."""
    for batch in loader:
        yield to_global(batch, sharding)
