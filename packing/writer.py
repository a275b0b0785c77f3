"""Writes shards: Megatron `.bin/.idx` plus manifest and provenance, in one streaming pass.

Tokens go straight to disk while block checksums run along; memory holds one length and one identity a
document. Files are written under a temporary name and renamed, `shards.json` last, so a killed writer
leaves nothing that `open_shards` would read. Same calls, same bytes: nothing in a shard depends on time,
host, path or chunking of the calls.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill.packing.errors import ArgumentError, ShardFormatError, problem
from gristmill.packing.format import (
    BLOCK_BYTES,
    FORMAT_VERSION,
    MAX_SEQUENCE_TOKENS,
    SET_FILE,
    SET_MAGIC,
    SHARD_MAGIC,
    canonical_json,
    crc32,
    digest,
    encode_index,
    pack_block_sums,
    sealed,
    token_dtype,
)
from gristmill.packing.table import Strings, write_table


@dataclass(frozen=True)
class TokenSpec:
    """What the ids in a shard mean; equal for every shard of a set.

    `tokenizer` is a content hash (hexadecimal) of the tokenizer; the loader refuses to mix two.
    `eos_policy` is "append" where each document ends with `eos_id`, else "none".
    """

    vocab_size: int
    eos_id: int | None
    tokenizer: str
    eos_policy: str = "append"

    def __post_init__(self) -> None:
        if not 0 < self.vocab_size <= 2**31:
            raise ArgumentError(
                problem("impossible vocabulary", where="TokenSpec", expected="1 to 2**31", got=self.vocab_size)
            )
        if self.eos_id is not None and not 0 <= self.eos_id < self.vocab_size:
            raise ArgumentError(
                problem(
                    "eos_id is outside the vocabulary",
                    where="TokenSpec",
                    expected=f"0 to {self.vocab_size - 1:,}",
                    got=self.eos_id,
                )
            )
        if self.eos_policy not in ("append", "none"):
            raise ArgumentError(
                problem("unknown eos_policy", where="TokenSpec", expected="'append' or 'none'", got=self.eos_policy)
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Stored dtype: u16 below 65,500 ids, else i32."""
        return token_dtype(self.vocab_size)


def shard_name(number: int) -> str:
    """Return `shard-00000` and so on."""
    return f"shard-{number:05d}"


class ShardWriter:
    """Writes one shard. Use as a context manager: an exception removes the temporary files."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        spec: TokenSpec,
        *,
        block_bytes: int = BLOCK_BYTES,
        max_sequence_tokens: int = MAX_SEQUENCE_TOKENS,
        attempt: str = "",
    ) -> None:
        """Open `directory/name.*` for writing under temporary names that contain `attempt`."""
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.spec = spec
        self._block_bytes = block_bytes
        self._max_sequence = max_sequence_tokens
        self._suffix = f".tmp-{attempt or os.getpid()}"
        self._stream = self._temporary("bin").open("wb")
        self._sums: list[int] = []
        self._block_crc = 0
        self._block_fill = 0
        self._max_id = -1
        self._lengths: list[npt.NDArray[np.int64]] = []
        self._ids: list[Strings] = []
        self._urls: list[Strings] = []
        self._source_codes: list[npt.NDArray[np.uint32]] = []
        self._sources: dict[str, int] = {}
        self._extra: dict[str, list[npt.NDArray[Any]]] = {}
        self.n_tokens = 0
        self.n_documents = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()

    def add(
        self,
        tokens_T: npt.ArrayLike,
        lengths_D: npt.ArrayLike,
        ids: Strings | Sequence[str],
        *,
        sources: str | Strings | Sequence[str] | tuple[Sequence[str], npt.NDArray[Any]] = "",
        urls: Strings | Sequence[str] | None = None,
        extra: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> None:
        """Append documents.

        Args:
            tokens_T: concatenated tokens of any integer dtype, EOS included where the policy appends it.
            lengths_D: tokens of each document; they sum to T.
            ids: one document id each.
            sources: one name for all, one each, or (names, codes int [D]) as in a dictionary column.
            urls: one each, or None.
            extra: further fixed-width columns of the provenance table, e.g. ``n_bytes`` int64.

        Raises:
            ShardFormatError: an id outside the vocabulary.
            ArgumentError: lengths, ids and tokens disagree in number.
        """
        tokens = np.asarray(tokens_T)
        lengths = np.asarray(lengths_D, np.int64)
        n = lengths.size
        id_column = ids if isinstance(ids, Strings) else Strings.of(ids)
        url_column = Strings.of([""] * n) if urls is None else urls
        url_column = url_column if isinstance(url_column, Strings) else Strings.of(url_column)
        if len(id_column) != n or len(url_column) != n or int(lengths.sum()) != tokens.size:
            raise ArgumentError(
                problem(
                    "documents, ids, urls and tokens disagree",
                    where=self._final("bin"),
                    expected=f"{n:,} documents of {int(lengths.sum()):,} tokens",
                    got=f"{len(id_column):,} ids, {len(url_column):,} urls, {tokens.size:,} tokens",
                )
            )
        if tokens.size:
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high >= self.spec.vocab_size:
                raise ShardFormatError(
                    problem(
                        "token id outside the vocabulary",
                        where=self._final("bin"),
                        expected=f"0 to {self.spec.vocab_size - 1:,}",
                        got=high if low >= 0 else low,
                        then="the encoder and the TokenSpec come from different tokenizers",
                    )
                )
            self._max_id = max(self._max_id, high)
            self._write(np.ascontiguousarray(tokens, self.spec.dtype))
        self._lengths.append(lengths)
        self._ids.append(id_column)
        self._urls.append(url_column)
        self._source_codes.append(self._code(sources, n))
        for key, column in (extra or {}).items():
            self._extra.setdefault(key, []).append(column)
        self.n_tokens += tokens.size
        self.n_documents += n

    def close(self) -> dict[str, Any]:
        """Write the other files, rename all four into place and return the entry for `shards.json`."""
        if self._block_fill:
            self._sums.append(self._block_crc)
        self._stream.close()
        lengths = np.concatenate([*self._lengths, np.zeros(0, np.int64)])
        dtype = self.spec.dtype
        sequence_lengths, ends = split_long(lengths, self._max_sequence)
        index = encode_index(sequence_lengths, ends, dtype.name)
        self._temporary("idx").write_bytes(index)
        sections = self._sections(lengths)
        with self._temporary("provenance").open("wb") as stream:
            provenance_crc = write_table(stream, lengths.size, sections)
            n_provenance = stream.tell()
        sums = np.array(self._sums, np.uint32)
        n_bin = self.n_tokens * dtype.itemsize
        manifest = {
            "magic": SHARD_MAGIC,
            "version": FORMAT_VERSION,
            "name": self.name,
            "dtype": dtype.name,
            "vocab_size": self.spec.vocab_size,
            "max_id": self._max_id,
            "eos_id": self.spec.eos_id,
            "eos_policy": self.spec.eos_policy,
            "tokenizer": self.spec.tokenizer,
            "n_tokens": self.n_tokens,
            "n_documents": self.n_documents,
            "n_sequences": int(sequence_lengths.size),
            "files": {
                "bin": {"n_bytes": n_bin, "blocks_digest": digest(sums.astype("<u4").tobytes())},
                "idx": {"n_bytes": len(index), "crc32": f"{crc32(index):08x}"},
                "provenance": {"n_bytes": n_provenance, "crc32": f"{provenance_crc:08x}"},
            },
            "blocks": {"n_bytes": self._block_bytes, "crc32": pack_block_sums(sums)},
        }
        raw = canonical_json(manifest) + b"\n"
        self._temporary("manifest.json").write_bytes(raw)
        for kind in ("bin", "idx", "provenance", "manifest.json"):
            self._temporary(kind).replace(self._final(kind))
        return {
            "name": self.name,
            "n_tokens": self.n_tokens,
            "n_documents": self.n_documents,
            "n_bytes": n_bin,
            "manifest": digest(raw),
        }

    def abort(self) -> None:
        """Remove what was written so far."""
        self._stream.close()
        for kind in ("bin", "idx", "provenance", "manifest.json"):
            self._temporary(kind).unlink(missing_ok=True)

    def _write(self, tokens: npt.NDArray[Any]) -> None:
        raw = tokens.view(np.uint8)
        self._stream.write(raw.data)
        at = 0
        while at < raw.size:
            step = min(self._block_bytes - self._block_fill, raw.size - at)
            self._block_crc = zlib.crc32(raw[at : at + step].data, self._block_crc)
            self._block_fill += step
            at += step
            if self._block_fill == self._block_bytes:
                self._sums.append(self._block_crc)
                self._block_crc = self._block_fill = 0

    def _code(
        self, sources: str | Strings | Sequence[str] | tuple[Sequence[str], npt.NDArray[Any]], n: int
    ) -> npt.NDArray[np.uint32]:
        if isinstance(sources, str):
            return np.full(n, self._sources.setdefault(sources, len(self._sources)), np.uint32)
        if isinstance(sources, tuple) and len(sources) == 2 and isinstance(sources[1], np.ndarray):
            known = [self._sources.setdefault(name, len(self._sources)) for name in sources[0]]
            codes: npt.NDArray[np.uint32] = np.array(known, np.uint32)[sources[1]]
            return codes
        names = [sources[i] for i in range(n)]
        return np.array([self._sources.setdefault(name, len(self._sources)) for name in names], np.uint32)

    def _sections(self, lengths: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
        starts = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        sections: dict[str, npt.NDArray[Any]] = {"first_token": starts}
        for name, columns in (("id", self._ids), ("url", self._urls), ("sources", None)):
            column = Strings.of(list(self._sources)) if columns is None else concatenate(columns)
            ends, data = column.compact()
            sections[f"{name}_ends"], sections[f"{name}_bytes"] = ends, data
        sections["source"] = np.concatenate([*self._source_codes, np.zeros(0, np.uint32)])
        for key, parts in self._extra.items():
            column_array = np.concatenate(parts)
            if len(column_array) != lengths.size:
                raise ArgumentError(
                    problem(
                        f"extra column {key!r} is not there for every document",
                        where=self._final("provenance"),
                        expected=int(lengths.size),
                        got=len(column_array),
                    )
                )
            sections[key] = column_array
        return sections

    def _temporary(self, kind: str) -> Path:
        return self.directory / f".{self.name}.{kind}{self._suffix}"

    def _final(self, kind: str) -> Path:
        return self.directory / f"{self.name}.{kind}"


def split_long(
    lengths_D: npt.NDArray[np.int64], max_tokens: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split documents above `max_tokens` into sequences: lengths[N] and document ends[D] (in sequences)."""
    pieces = np.maximum(-(-lengths_D // max_tokens), 1)
    ends = np.cumsum(pieces)
    lengths = np.full(int(pieces.sum()), max_tokens, np.int64)
    lengths[ends - 1] = lengths_D - (pieces - 1) * max_tokens
    return lengths, ends


def concatenate(columns: list[Strings]) -> Strings:
    """Return one string column after another as one."""
    parts = [column.compact() for column in columns]
    base = np.cumsum([0, *(data.size for _, data in parts)])
    ends = [end + base[i] for i, (end, _) in enumerate(parts)]
    offsets = np.concatenate([np.zeros(1, np.int64), *ends])
    return Strings(offsets, np.concatenate([np.zeros(0, np.uint8), *(data for _, data in parts)]))


def shard_set_manifest(spec: TokenSpec, entries: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the bytes of `shards.json` for these shards, ordered by name."""
    shards = sorted((dict(entry) for entry in entries), key=lambda entry: str(entry["name"]))
    return sealed(
        {
            "magic": SET_MAGIC,
            "version": FORMAT_VERSION,
            "dtype": spec.dtype.name,
            "vocab_size": spec.vocab_size,
            "eos_id": spec.eos_id,
            "eos_policy": spec.eos_policy,
            "tokenizer": spec.tokenizer,
            "n_tokens": sum(int(entry["n_tokens"]) for entry in shards),
            "n_documents": sum(int(entry["n_documents"]) for entry in shards),
            "shards": shards,
        }
    )


def write_shards(
    directory: str | os.PathLike[str],
    documents: Iterable[Sequence[int] | npt.NDArray[Any]],
    spec: TokenSpec,
    *,
    ids: Sequence[str] | None = None,
    source: str = "",
    documents_per_shard: int = 1 << 20,
) -> Path:
    """Write in-memory token lists as a shard set and return its folder; for tests, imports and small data.

    EOS is appended where the policy says so. Use `ShardWriter.add` for bulk arrays.
    """
    root = Path(directory)
    tail = [spec.eos_id] if spec.eos_policy == "append" and spec.eos_id is not None else []
    all_documents = [np.concatenate([np.asarray(d, np.int64), np.array(tail, np.int64)]) for d in documents]
    names = list(ids) if ids is not None else [f"{i}" for i in range(len(all_documents))]
    entries = []
    for number, at in enumerate(range(0, max(len(all_documents), 1), documents_per_shard)):
        part = all_documents[at : at + documents_per_shard]
        with ShardWriter(root, shard_name(number), spec) as writer:
            tokens = np.concatenate([np.zeros(0, np.int64), *part])
            writer.add(tokens, [len(d) for d in part], names[at : at + documents_per_shard], sources=source)
            entries.append(writer.close())
    temporary = root / f".{SET_FILE}.tmp-{os.getpid()}"
    temporary.write_bytes(shard_set_manifest(spec, entries))
    temporary.replace(root / SET_FILE)
    return root
