r"""Section tables: a little-endian columnar file that NumPy and the standard library read by themselves.

Layout: 8 bytes magic ``GMTABLE\0`` · u32 version · u32 sections · u64 rows · then one 48-byte entry a section
(16 bytes name, 8 bytes NumPy dtype, u64 offset, u64 items, u32 CRC-32, u32 zero) · sections, each at a
multiple of 64 bytes. A column of strings is two sections, `NAME_ends` (i64, cumulative, without the leading
0) and `NAME_bytes` (u8). Unknown sections are ignored by readers. The file is mapped, never loaded.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from gristmill.packing.errors import ShardCorruptError, ShardFormatError, ShardMissingError, problem
from gristmill.packing.format import FORMAT_VERSION, TABLE_MAGIC, crc32

HEAD = struct.Struct("<8sIIQ")
ENTRY = struct.Struct("<16s8sQQII")
ALIGNMENT = 64
NAME_BYTES = 16
KINDS = re.compile("[<|][iuf][1248]")
"""Spellings of dtypes that a section may have."""


class Strings:
    """A column of UTF-8 strings as Arrow holds it: offsets_D1 int64 and data_B uint8; offsets[0] may be > 0."""

    __slots__ = ("data_B", "offsets_D1")

    def __init__(self, offsets_D1: npt.NDArray[np.int64], data_B: npt.NDArray[np.uint8]) -> None:
        self.offsets_D1 = offsets_D1
        self.data_B = data_B

    @classmethod
    def of(cls, values: Sequence[str]) -> Strings:
        """Build a column from Python strings."""
        raw = [value.encode() for value in values]
        offsets = np.zeros(len(raw) + 1, np.int64)
        np.cumsum([len(item) for item in raw], out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(raw), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets_D1) - 1

    def __getitem__(self, i: int) -> str:
        start, stop = int(self.offsets_D1[i]), int(self.offsets_D1[i + 1])
        return self.data_B[start:stop].tobytes().decode()

    def compact(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """Return ends without the leading 0, and exactly the bytes they cover."""
        first, last = int(self.offsets_D1[0]), int(self.offsets_D1[-1])
        return self.offsets_D1[1:] - first, self.data_B[first:last]


def write_table(stream: BinaryIO, n_rows: int, sections: Mapping[str, npt.NDArray[Any]]) -> int:
    """Write a table and return the CRC-32 of the whole file."""
    arrays = {name: np.ascontiguousarray(array) for name, array in sections.items()}
    offset = HEAD.size + ENTRY.size * len(arrays)
    head = [HEAD.pack(TABLE_MAGIC, FORMAT_VERSION, len(arrays), n_rows)]
    starts = []
    for name, array in arrays.items():
        if len(name.encode()) > NAME_BYTES:
            raise ValueError(f"section name {name!r} is longer than {NAME_BYTES} bytes")
        offset = -(-offset // ALIGNMENT) * ALIGNMENT
        starts.append(offset)
        kind = array.dtype.newbyteorder("<").str.encode()
        head.append(ENTRY.pack(name.encode(), kind, offset, array.size, crc32(array), 0))
        offset += array.nbytes
    raw = b"".join(head)
    stream.write(raw)
    total = crc32(raw)
    at = len(raw)
    for start, array in zip(starts, arrays.values(), strict=True):
        padding = bytes(start - at)
        stream.write(padding)
        stream.write(array.data)
        total = zlib.crc32(array.data, zlib.crc32(padding, total))
        at = start + array.nbytes
    return total & 0xFFFFFFFF


class Table:
    """A mapped section table; arrays are read-only views into the page cache."""

    def __init__(self, path: Path, expected_bytes: int | None = None) -> None:
        """Map the file and parse its head.

        Raises:
            ShardMissingError, ShardFormatError, ShardCorruptError: absent; wrong magic or version; wrong size.
        """
        self.path = path
        try:
            with path.open("rb") as stream:
                n_bytes = os.fstat(stream.fileno()).st_size
                if expected_bytes is not None and n_bytes != expected_bytes:
                    raise ShardCorruptError(
                        problem(
                            "size differs from the manifest",
                            where=path,
                            expected=f"{expected_bytes:,} bytes",
                            got=f"{n_bytes:,}",
                            then="copy the shard again",
                        )
                    )
                if n_bytes < HEAD.size:
                    raise ShardFormatError(problem("not a section table", where=path, expected="a header"))
                self._map = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
        except FileNotFoundError:
            raise ShardMissingError(problem("file is missing", where=path, then="copy the shard again")) from None
        magic, version, n_sections, self.n_rows = HEAD.unpack_from(self._map)
        if magic != TABLE_MAGIC or version != FORMAT_VERSION:
            raise ShardFormatError(
                problem(
                    "wrong magic or version",
                    where=path,
                    expected=(TABLE_MAGIC, FORMAT_VERSION),
                    got=(magic, version),
                )
            )
        self._entries: dict[str, tuple[np.dtype[Any], int, int, int]] = {}
        try:
            for i in range(n_sections):
                name, kind, start, items, crc, _ = ENTRY.unpack_from(self._map, HEAD.size + ENTRY.size * i)
                text = kind.rstrip(b"\0").decode()
                if not KINDS.fullmatch(text):
                    raise ValueError(f"section {name!r} has dtype {text!r}")
                dtype = np.dtype(text)
                if start + items * dtype.itemsize > n_bytes:
                    raise ValueError(f"section {name!r} ends after the file")
                self._entries[name.rstrip(b"\0").decode()] = (dtype, start, items, crc)
        except (struct.error, ValueError, TypeError) as error:
            raise ShardCorruptError(
                problem(f"broken section list ({error})", where=path, then="copy the shard again")
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def names(self) -> list[str]:
        """Names of the sections."""
        return list(self._entries)

    def array(self, name: str, verify: bool = False) -> npt.NDArray[Any]:
        """Return one section as a read-only view.

        Raises:
            ShardFormatError: no such section.
            ShardCorruptError: `verify` and the checksum fails.
        """
        if name not in self._entries:
            raise ShardFormatError(
                problem(f"section {name!r} is missing", where=self.path, expected=name, got=self.names)
            )
        dtype, start, items, crc = self._entries[name]
        view = np.frombuffer(self._map, dtype, items, start)
        if verify and crc32(view) != crc:
            raise ShardCorruptError(
                problem(
                    f"checksum of section {name!r} fails",
                    where=self.path,
                    expected=f"{crc:08x}",
                    got=f"{crc32(view):08x}",
                    then="the file was damaged after it was written: copy it again",
                )
            )
        return view

    def string(self, name: str, row: int) -> str:
        """Return one value of a string column; empty where the column is absent."""
        if f"{name}_ends" not in self._entries:
            return ""
        ends = self.array(f"{name}_ends")
        start = int(ends[row - 1]) if row else 0
        return self.array(f"{name}_bytes")[start : int(ends[row])].tobytes().decode()

    def find_string(self, name: str, value: str) -> list[int]:
        """Return the rows whose string equals `value`, by one scan of the bytes (about 1 GB/s)."""
        ends = self.array(f"{name}_ends")
        needle = value.encode()
        if not needle:
            return [int(row) for row in np.flatnonzero(np.diff(ends, prepend=0) == 0)]
        _, base, n_bytes, _ = self._entries[f"{name}_bytes"]
        rows: list[int] = []
        at = self._map.find(needle, base, base + n_bytes)
        while at >= 0:
            begin = at - base
            row = int(np.searchsorted(ends, begin, side="right"))
            start = int(ends[row - 1]) if row else 0
            if start == begin and int(ends[row]) == begin + len(needle):
                rows.append(row)
            at = self._map.find(needle, at + 1, base + n_bytes)
        return rows
