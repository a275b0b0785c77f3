"""Decoded bytes of a file in blocks, and what to do when its compressed stream is broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gristmill.stages import store

CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}
_STEPS = (1 << 20, 1 << 12, 1)


def codec_of(path: str) -> str | None:
    """Return Arrow's name of the compression that the suffix of `path` tells, or None."""
    dot = path.rfind(".")
    return CODECS.get(path[dot:].lower()) if dot >= 0 else None


@dataclass
class BrokenStreamError(Exception):
    """The compressed stream ended early or is damaged: all bytes before `offset` (decoded) were delivered."""

    offset: int
    detail: str


def _open(path: str) -> Any:
    raw = store.open_input(path)
    codec = codec_of(path)
    return pa.CompressedInputStream(raw, codec) if codec else raw


def decoded_blocks(path: str, n_bytes: int) -> Iterator[bytes]:
    """Yield the decoded content of `path` in blocks of at most `n_bytes`.

    Raises:
        BrokenStreamError: after the last byte that could be decoded was yielded.
        OSError: the file cannot be opened or read.
    """
    position = 0
    try:
        with _open(path) as stream:
            while block := stream.read(n_bytes):
                yield block
                position += len(block)
        return
    except (OSError, pa.ArrowException) as error:
        if codec_of(path) is None:
            raise
        detail = str(error)
    # A failed read loses what it had decoded, so the stretch before the damage is read again in ever
    # smaller steps; only broken files pay for this.
    for step in _STEPS:
        with _open(path) as stream:
            skip = position
            try:
                while skip:
                    skip -= len(stream.read(min(skip, n_bytes)))
                while block := stream.read(step):
                    yield block
                    position += len(block)
            except (OSError, pa.ArrowException):
                continue
    raise BrokenStreamError(position, detail)


def line_start(path: str, position: int) -> int:
    """Return where the first line that starts at or after `position` starts (the file's size if none does)."""
    with store.open_input(path) as stream:
        size = int(stream.size())
        if position <= 0:
            return 0
        at = position - 1
        while at < size:
            stream.seek(at)
            block = stream.read(1 << 16)
            found = block.find(b"\n")
            if found >= 0:
                return int(at + found + 1)
            at += len(block)
        return size


def range_blocks(path: str, start: int, stop: int, n_bytes: int) -> Iterator[bytes]:
    """Yield the bytes ``[start, stop)`` of an uncompressed file in blocks of at most `n_bytes`."""
    with store.open_input(path) as stream:
        stream.seek(start)
        while start < stop and (block := stream.read(min(n_bytes, stop - start))):
            start += len(block)
            yield block


def count_lines(path: str, start: int, stop: int) -> int:
    """Return the number of LF bytes in ``[start, stop)``."""
    return sum(block.count(b"\n") for block in range_blocks(path, start, stop, 16 << 20))
