"""Arrow string columns as NumPy views, and back, without copying the text.

Legend: ``offsets_D1`` int64 (D+1), document d is ``data_B[offsets_D1[d]:offsets_D1[d+1]]``; ``data_B`` uint8.
The views share memory with the Arrow buffers: read-only, valid while the array is alive. Offsets of a slice do
not start at zero.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Offsets: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]


def text_view(array: pa.Array | pa.ChunkedArray) -> tuple[Offsets, Bytes]:
    """Return ``(offsets_D1, data_B)`` of a string or binary column; nulls read as empty documents.

    Raises:
        TypeError: not a string or binary column.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        array = array.cast(pa.large_binary())
    elif not (pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)):
        raise TypeError(f"a string or binary column is needed, got {kind}")
    _, offsets, data = array.buffers()
    n = len(array)
    if n == 0 or offsets is None:
        return np.zeros(n + 1, np.int64), np.empty(0, np.uint8)
    offsets_D1 = np.frombuffer(offsets, np.int64)[array.offset : array.offset + n + 1]
    data_B = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return offsets_D1, data_B


def text_array(offsets_D1: Offsets, data_B: Bytes) -> pa.Array:
    """Return a large_string array over the two buffers, without copying them. The bytes must be valid UTF-8."""
    return pa.Array.from_buffers(
        pa.large_string(), len(offsets_D1) - 1, [None, pa.py_buffer(offsets_D1), pa.py_buffer(data_B)]
    )


def n_bytes(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return the length of each document in UTF-8 bytes, int64 (D)."""
    return np.diff(text_view(array)[0])
