"""The bytes on disk: Megatron `.idx`, section tables, manifests. FORMAT.md is the specification.

A shard is four files, `shard-00000.bin`, `.idx`, `.manifest.json` and `.provenance`; a shard set is a folder
of shards and one `shards.json`. Trust runs downwards: `shards.json` holds a digest of each shard manifest,
the shard manifest holds the checksums of the other three files, of `.bin` one for each block of 64 KiB, so
that a random read verifies what it touches and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.packing.errors import ShardCorruptError, ShardFormatError, ShardMissingError, problem

FORMAT_VERSION = 1
SET_FILE = "shards.json"
SET_MAGIC = "gristmill-shards"
SHARD_MAGIC = "gristmill-shard"
TABLE_MAGIC = b"GMTABLE\x00"
INDEX_MAGIC = b"MMIDIDX\x00\x00"
INDEX_HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, dtype code, sequences, documents + 1: 34 bytes, little-endian, unaligned."""
BLOCK_BYTES = 1 << 16
"""Default size of a checksummed block of `.bin`: 16 us of CRC-32, 4 checksum bytes."""
MAX_SEQUENCE_TOKENS = 2**31 - 1
"""Lengths in `.idx` are i32; a longer document is stored as several sequences of one document."""
U16_VOCABULARY = 65_500
"""Megatron's own writer stores u16 below this vocabulary size and i32 from it on."""

DTYPE_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
CODE_OF_DTYPE = {name: code for code, name in DTYPE_CODES.items()}

Ints = npt.NDArray[np.int64]
TokenArray = npt.NDArray[Any]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the stored dtype for ids in [0, vocab_size): u16 below 65,500, else i32."""
    return np.dtype("<u2") if vocab_size < U16_VOCABULARY else np.dtype("<i4")


def canonical_json(value: object) -> bytes:
    """Return the one JSON spelling that digests are taken of: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest(data: bytes) -> str:
    """Return BLAKE2b-128 as 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def pack_block_sums(sums: npt.NDArray[np.uint32]) -> str:
    """Return block checksums as base64 of little-endian u32."""
    return base64.b64encode(sums.astype("<u4").tobytes()).decode()


def unpack_block_sums(text: str) -> npt.NDArray[np.uint32]:
    """Inverse of `pack_block_sums`."""
    return np.frombuffer(base64.b64decode(text), "<u4")


@dataclass(frozen=True)
class IndexHeader:
    """The first 34 bytes of a `.idx` and what follows from them."""

    dtype: str
    n_sequences: int
    n_documents: int

    @property
    def n_bytes(self) -> int:
        """Size of the whole file: header, i32 lengths, i64 pointers, i64 document indices."""
        return INDEX_HEADER.size + 12 * self.n_sequences + 8 * (self.n_documents + 1)


def encode_index(lengths_N: npt.ArrayLike, document_ends_D: npt.ArrayLike, dtype: str) -> bytes:
    """Return a whole `.idx` file.

    Args:
        lengths_N: tokens of each sequence, every one below 2**31.
        document_ends_D: sequence number one past each document's last.
        dtype: NumPy name of the stored token type.
    """
    lengths = np.asarray(lengths_N, np.int64)
    ends = np.asarray(document_ends_D, np.int64)
    if lengths.size and int(lengths.max()) > MAX_SEQUENCE_TOKENS:
        raise ShardFormatError(
            problem(
                "a sequence is too long for the i32 lengths of .idx",
                where="encode_index",
                expected=f"at most {MAX_SEQUENCE_TOKENS:,} tokens",
                got=int(lengths.max()),
                then="split the document into several sequences",
            )
        )
    pointers = np.zeros(lengths.size, "<i8")
    np.cumsum(lengths[:-1] * np.dtype(dtype).itemsize, out=pointers[1:])
    header = INDEX_HEADER.pack(INDEX_MAGIC, 1, CODE_OF_DTYPE[dtype], lengths.size, ends.size + 1)
    bounds = np.concatenate([np.zeros(1, np.int64), ends]).astype("<i8")
    return header + lengths.astype("<i4").tobytes() + pointers.tobytes() + bounds.tobytes()


def decode_index_header(raw: bytes, where: object) -> IndexHeader:
    """Parse the head of a `.idx`.

    Raises:
        ShardFormatError: not a Megatron index, an unknown version or an unknown dtype code.
    """
    if len(raw) < INDEX_HEADER.size or raw[:9] != INDEX_MAGIC:
        raise ShardFormatError(
            problem(
                "not a Megatron index",
                where=where,
                expected=repr(INDEX_MAGIC),
                got=repr(raw[:9]),
                then="check that the path names the .idx and not another file",
            )
        )
    _, version, code, n_sequences, n_bounds = INDEX_HEADER.unpack(raw[: INDEX_HEADER.size])
    if version != 1:
        raise ShardFormatError(problem("unknown version of .idx", where=where, expected=1, got=version))
    if code not in DTYPE_CODES:
        raise ShardFormatError(
            problem("unknown dtype code", where=where, expected=f"one of {sorted(DTYPE_CODES)}", got=code)
        )
    return IndexHeader(DTYPE_CODES[code], n_sequences, n_bounds - 1)


def read_index(path: Path) -> tuple[str, Ints, Ints, Ints]:
    """Read a whole `.idx`: dtype name, lengths[N], byte pointers[N], document bounds[D + 1], all int64.

    Raises:
        ShardFormatError: as `decode_index_header`.
        ShardCorruptError: the file's size or contents disagree with its header.
    """
    raw = read_bytes(path)
    header = decode_index_header(raw, path)
    if len(raw) != header.n_bytes:
        raise ShardCorruptError(
            problem(
                "truncated or overlong index",
                where=path,
                expected=f"{header.n_bytes:,} bytes",
                got=f"{len(raw):,}",
                then="copy the file again",
            )
        )
    at = INDEX_HEADER.size
    n = header.n_sequences
    lengths = np.frombuffer(raw, "<i4", n, at).astype(np.int64)
    pointers = np.frombuffer(raw, "<i8", n, at + 4 * n).astype(np.int64)
    bounds = np.frombuffer(raw, "<i8", header.n_documents + 1, at + 12 * n).astype(np.int64)
    rising = bool((np.diff(bounds) >= 0).all()) and bounds[0] == 0 and bounds[-1] == n
    if not rising or bool((lengths < 0).any()):
        raise ShardCorruptError(
            problem(
                "document bounds or lengths are impossible",
                where=path,
                expected=f"bounds rising from 0 to {n:,}",
                got=f"{bounds[0]} .. {bounds[-1]}",
                then="copy the file again",
            )
        )
    return header.dtype, lengths, pointers, bounds


def read_bytes(path: Path) -> bytes:
    """Read a small file whole.

    Raises:
        ShardMissingError: it is not there.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ShardMissingError(
            problem("file is missing", where=path, then="copy the shard set again, with every file in it")
        ) from None


def read_json(path: Path, magic: str) -> tuple[dict[str, Any], bytes]:
    """Read a manifest: the parsed object and its raw bytes.

    Raises:
        ShardFormatError: not JSON, another magic, or a version this release does not know.
    """
    raw = read_bytes(path)
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise ShardCorruptError(problem(f"not valid JSON ({error})", where=path, then="copy the file again")) from None
    if not isinstance(value, dict) or value.get("magic") != magic:
        got = value.get("magic") if isinstance(value, dict) else type(value).__name__
        raise ShardFormatError(problem("wrong magic", where=path, expected=repr(magic), got=repr(got)))
    if value.get("version") != FORMAT_VERSION:
        raise ShardFormatError(
            problem(
                "unknown format version",
                where=path,
                expected=FORMAT_VERSION,
                got=value.get("version"),
                then="read it with the release of gristmill that wrote it, or a newer one",
            )
        )
    return value, raw


def sealed(value: dict[str, Any]) -> bytes:
    """Return a set manifest's bytes: its canonical JSON with `digest` over everything else, and a newline."""
    return canonical_json({**value, "digest": digest(canonical_json(value))}) + b"\n"


def read_sealed(path: Path, magic: str) -> dict[str, Any]:
    """Read what `sealed` made.

    Raises:
        ShardCorruptError: edited or damaged; otherwise as `read_json`.
    """
    value, _ = read_json(path, magic)
    want = value.pop("digest", None)
    got = digest(canonical_json(value))
    if got != want:
        raise ShardCorruptError(
            problem(
                "edited or damaged: its digest is not that of its content",
                where=path,
                expected=want,
                got=got,
                then="copy the file again, or write the set anew",
            )
        )
    return value


def crc32(data: Any) -> int:
    """Return zlib's CRC-32 of a buffer."""
    return zlib.crc32(data) & 0xFFFFFFFF
