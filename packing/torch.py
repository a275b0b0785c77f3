"""The loader for PyTorch: an `IterableDataset` of whole batches, with or without DataLoader workers.

Background threads already prepare batches, so `TorchLoader` is iterated directly in most training loops. Under
`DataLoader(loader, batch_size=None, num_workers=W)` worker w makes steps w, w + W, .. and the DataLoader takes
them in turn, so the order is the same for any W. Positions are saved by `state_dict` here (direct
iteration), by `torchdata`'s StatefulDataLoader (workers), or by `torch.distributed.checkpoint` (a `Stateful`).

Workers hand their batches over through the DataLoader's pipe (`TensorBatch`) and not through shared memory, as tensors
would be: nothing is left in /dev/shm or the temporary folder when a worker or the trainer is killed, and a container's
64 MB of /dev/shm are enough. It is as fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, get_worker_info

from gristmill.packing.batch import Pool
from gristmill.packing.loader import Loader
from gristmill.packing.plan import Paths

IDS = ("input_ids", "labels", "position_ids")
"""Tensors whose values fit in 32 bits whatever their type."""
TENSORS = ("input_ids", "labels", "position_ids", "cu_seqlens", "samples", "loss_mask", "document_ids")


class TensorBatch(dict[str, Any]):
    """A batch of tensors: a dict that is pickled as plain arrays, so that it crosses a pipe as bytes."""

    def __copy__(self) -> TensorBatch:
        """Return a shallow copy; DataLoader's collation makes one."""
        return TensorBatch(self)

    def __reduce__(self) -> Any:
        """Pickle tensors on the CPU as arrays, int64 ids in half their bytes; others travel as torch sends them."""
        plain: dict[str, Any] = dict(self)
        wide = []
        for key, value in self.items():
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                plain[key] = value.numpy()
                if key in IDS and value.dtype == torch.int64:
                    wide.append(key)
                    plain[key] = plain[key].astype(np.int32)
        return _unpack, (plain, wide)


def _unpack(plain: dict[str, Any], wide: list[str]) -> TensorBatch:
    """Undo `TensorBatch.__reduce__`."""
    plain |= {key: plain[key].astype(np.int64) for key in wide}
    return TensorBatch((k, torch.from_numpy(v) if isinstance(v, np.ndarray) else v) for k, v in plain.items())


class TorchLoader(IterableDataset):  # type: ignore[misc]
    """Iterates this rank's batches as tensors; arguments as `Loader`, with `dtype` int64 by default."""

    def __init__(
        self,
        sources: Paths | Mapping[str, Paths],
        *,
        pin_memory: bool = False,
        device: str | torch.device | None = None,
        dtype: Any = np.int64,
        **options: Any,
    ) -> None:
        """Plan the run.

        Args:
            sources: as `Loader`.
            pin_memory: fill page-locked tensors; taken from torch's caching allocator, which does not hand
                memory out again before copies recorded on it are done.
            device: move every tensor there, without blocking where memory is pinned.
            dtype: of ids, labels and positions; torch's losses want int64 targets.
            **options: as `Loader`.
        """
        super().__init__()
        self._device = torch.device(device) if device is not None else None
        pool = Pool(_pinned, reuse=False) if pin_memory else None
        self._pinned = pin_memory
        self.loader = Loader(sources, dtype=dtype, pool=pool, **options)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        if worker is None:
            batches: Iterator[dict[str, Any]] = iter(self.loader)
        else:
            batches = self.loader.interleaved(worker.id, worker.num_workers)
        for batch in batches:
            yield self._tensors(batch)

    def __len__(self) -> int:
        """Steps from the current position to the end."""
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the position; see `Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], *, weights: Mapping[str, float] | None = None) -> None:
        """Continue from a saved position; see `Loader.load_state_dict`."""
        self.loader.load_state_dict(state_dict, weights=weights)

    def close(self) -> None:
        """Stop the background threads."""
        self.loader.close()

    def _tensors(self, batch: dict[str, Any]) -> TensorBatch:
        out = TensorBatch(batch)
        for key in TENSORS:
            if key in out:
                tensor = torch.from_numpy(out[key])
                if self._device is not None:
                    tensor = tensor.to(self._device, non_blocking=self._pinned)
                out[key] = tensor
        return out


def _pinned(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    array: npt.NDArray[Any] = torch.empty(shape, dtype=kind, pin_memory=torch.cuda.is_available()).numpy()
    return array
