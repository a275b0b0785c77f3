"""Indexed token shards and the exactly resumable loader. Needs NumPy and the standard library only."""

from __future__ import annotations

from gristmill.packing.cache import Cache
from gristmill.packing.certificate import Certificate
from gristmill.packing.errors import (
    ArgumentError,
    PackingError,
    ShardCorruptError,
    ShardFormatError,
    ShardMissingError,
    ShardReadError,
    StarvedError,
    StateError,
    WorkerError,
)
from gristmill.packing.lengths import Change
from gristmill.packing.loader import Loader, StepMetrics
from gristmill.packing.order import Shuffle
from gristmill.packing.reader import Provenance, ShardSet, open_shards
from gristmill.packing.writer import ShardWriter, TokenSpec, shard_name, shard_set_manifest, write_shards

__all__ = [
    "ArgumentError",
    "Cache",
    "Certificate",
    "Change",
    "Loader",
    "PackingError",
    "Provenance",
    "ShardCorruptError",
    "ShardFormatError",
    "ShardMissingError",
    "ShardReadError",
    "ShardSet",
    "ShardWriter",
    "Shuffle",
    "StarvedError",
    "StateError",
    "StepMetrics",
    "TokenSpec",
    "WorkerError",
    "open_shards",
    "shard_name",
    "shard_set_manifest",
    "write_shards",
]
