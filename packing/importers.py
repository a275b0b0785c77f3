"""Brings foreign token files in: Megatron, datatrove, OLMo's flat arrays, MDS, Hugging Face data sets, lists.

Each is read once and written as a shard set of ours, so that from then on sizes, dtype and every block are
checked. None of these formats says what its ids mean: the caller states the vocabulary and the tokenizer's hash.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.packing.errors import ShardCorruptError, ShardFormatError, problem
from gristmill.packing.format import SET_FILE, read_bytes, read_index
from gristmill.packing.writer import ShardWriter, TokenSpec, shard_name, shard_set_manifest

Documents = Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64], list[str]]]
"""Runs of documents: tokens, lengths and ids."""

RUN_TOKENS = 8 << 20
SHARD_TOKENS = 256 << 20
ARROW_ROWS = 10_000
"""Rows of an Arrow batch that are taken from a Hugging Face data set at a time."""
INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


def import_megatron(
    prefixes: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], spec: TokenSpec, **options: Any
) -> Path:
    """Import `PREFIX.bin` and `PREFIX.idx`; documents of several sequences are joined again.

    Raises:
        ShardCorruptError: `.bin` is not as long as the index says.
    """

    def read(prefix: Path) -> Documents:
        dtype, lengths, pointers, bounds = read_index(prefix.with_name(prefix.name + ".idx"))
        path = prefix.with_name(prefix.name + ".bin")
        kind = np.dtype(dtype).newbyteorder("<")
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        expected = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[:-1])]) * kind.itemsize
        if not np.array_equal(pointers, expected[: len(pointers)]):
            raise ShardFormatError(
                problem("sequences do not lie one after another", where=prefix, then="rewrite it with Megatron's tools")
            )
        yield from _runs(path, kind, np.diff(ends[bounds]), path.name)

    return _import(prefixes, read, out, spec, **options)


def import_datatrove(
    paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], spec: TokenSpec, **options: Any
) -> Path:
    """Import `FILE.ds` with `FILE.ds.index` (u64 cumulative ends in tokens).

    Tokens are u16 or u32; the size of the file and the index together say which.

    Raises:
        ShardCorruptError: the file is neither as long as u16 nor as u32 would be.
    """

    def read(path: Path) -> Documents:
        ends = np.frombuffer(read_bytes(path.with_name(path.name + ".index")), "<u8").astype(np.int64)
        n = int(ends[-1]) if len(ends) else 0
        kind = np.dtype("<u4") if n and path.stat().st_size == 4 * n else np.dtype("<u2")
        yield from _runs(path, kind, np.diff(ends, prepend=0), path.name)

    return _import(paths, read, out, spec, **options)


def import_flat(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    spec: TokenSpec,
    dtype: str = "<u2",
    **options: Any,
) -> Path:
    """Import headerless arrays (OLMo's `.npy`); documents end at `spec.eos_id`.

    Raises:
        ShardFormatError: the spec has no EOS, or a file does not end with it.
    """

    def read(path: Path) -> Documents:
        kind = np.dtype(dtype)
        n = path.stat().st_size // kind.itemsize
        tokens = np.memmap(path, kind, "r", shape=(n,)) if n else np.zeros(0, kind)
        ends = np.flatnonzero(tokens == spec.eos_id) + 1
        if spec.eos_id is None or (n and (not len(ends) or ends[-1] != n)):
            raise ShardFormatError(
                problem("file does not end with EOS", where=path, expected=spec.eos_id, got=tokens[-1:].tolist())
            )
        yield from _runs(path, kind, np.diff(ends, prepend=0), path.name)

    return _import(paths, read, out, spec, **options)


def import_mds(
    folders: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    spec: TokenSpec,
    column: str = "tokens",
    dtype: str = "<u2",
    **options: Any,
) -> Path:
    """Import uncompressed MDS folders: one document a sample, from a `bytes` or one-dimensional `ndarray` column.

    `dtype` is that of a `bytes` column; an ndarray column names its own, in the index or in each sample.
    """

    def read(folder: Path) -> Documents:
        for shard in json.loads(read_bytes(folder / "index.json"))["shards"]:
            path = folder / shard["raw_data"]["basename"]
            names, sizes = shard["column_names"], shard["column_sizes"]
            if column not in names or shard.get("format") != "mds" or not path.exists():
                raise ShardFormatError(
                    problem("unreadable MDS shard", where=path, expected=f"uncompressed, column {column!r}", got=names)
                )
            encoding = shard["column_encodings"][names.index(column)]
            raw = read_bytes(path)
            (n,) = struct.unpack_from("<I", raw)
            offsets = np.frombuffer(raw, "<u4", n + 1, 4).tolist()
            documents = []
            for i, (begin, end) in enumerate(pairwise(offsets)):
                value = _mds_column(raw[begin:end], sizes, names.index(column))
                documents.append(_mds_tokens(value, encoding, dtype, f"{path}, sample {i:,}"))
            lengths = np.array([len(d) for d in documents], np.int64)
            ids = [f"{folder.name}/{path.name}#{i}" for i in range(n)]
            yield np.concatenate([np.zeros(0, np.dtype(dtype)), *documents]), lengths, ids

    return _import(folders, read, out, spec, **options)


def import_dataset(
    dataset: Any,
    out: str | os.PathLike[str],
    spec: TokenSpec,
    column: str = "input_ids",
    id_column: str | None = None,
    **options: Any,
) -> Path:
    """Import a Hugging Face `Dataset` or `IterableDataset` with a column of token lists, through its Arrow batches.

    Tokens are taken as they are; a missing EOS is not added, so state `eos_policy="none"` where there is none.

    Raises:
        ShardFormatError: a list is null, or holds a null.
    """

    def read(_: Path) -> Documents:
        first = 0
        for table in dataset.with_format("arrow").iter(batch_size=ARROW_ROWS):
            given = table.column(id_column).to_pylist() if id_column is not None else None
            at = 0
            for chunk in table.column(column).chunks:
                values = chunk.flatten()
                if chunk.null_count or values.null_count:
                    raise ShardFormatError(
                        problem(
                            "a null among the tokens",
                            where=f"column {column!r}, rows {first:,} to {first + len(chunk):,}",
                            expected="lists of integers",
                            got="null",
                            then="filter these rows out",
                        )
                    )
                n = len(chunk)
                ids = [f"{first + i}" for i in range(n)] if given is None else [str(x) for x in given[at : at + n]]
                yield values.to_numpy(zero_copy_only=False), np.diff(chunk.offsets.to_numpy()).astype(np.int64), ids
                first, at = first + n, at + n

    return _import([""], read, out, spec, **options)


def import_lists(
    documents: Iterable[Sequence[int]], out: str | os.PathLike[str], spec: TokenSpec, **options: Any
) -> Path:
    """Import lists of tokens from any Python iterable.

    Tokens are taken as they are; a missing EOS is not added, so state `eos_policy="none"` where there is none.
    """

    def read(_: Path) -> Documents:
        tokens: list[npt.NDArray[np.int64]] = []
        first = total = 0
        for document in documents:
            tokens.append(np.asarray(document, np.int64))
            total += len(tokens[-1])
            if total >= RUN_TOKENS:
                yield _joined(tokens, first)
                first, tokens, total = first + len(tokens), [], 0
        if tokens:
            yield _joined(tokens, first)

    return _import([""], read, out, spec, **options)


def _joined(
    tokens: list[npt.NDArray[np.int64]], first: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], list[str]]:
    lengths = np.array([len(t) for t in tokens], np.int64)
    return np.concatenate(tokens), lengths, [f"{first + i}" for i in range(len(tokens))]


def _mds_column(sample: bytes, sizes: list[int | None], wanted: int) -> bytes:
    """Return one column of an MDS sample: u32 sizes of the columns without a fixed one, then the columns."""
    n_variable = sum(size is None for size in sizes)
    given = iter(struct.unpack_from(f"<{n_variable}I", sample))
    actual = [next(given) if size is None else size for size in sizes]
    begin = 4 * n_variable + sum(actual[:wanted])
    return sample[begin : begin + actual[wanted]]


def _mds_tokens(value: bytes, encoding: str, dtype: str, where: str) -> npt.NDArray[Any]:
    """Decode an MDS value: `bytes`, `ndarray:DTYPE:SHAPE`, `ndarray:DTYPE` or `ndarray`.

    The last two begin with what their name leaves out: a byte of dtype (bits, plus 1 if signed), a byte of shape
    (dimensions times 4 plus the logarithm of the bytes a size takes), then the sizes.
    """
    kind, _, rest = encoding.partition(":")
    if encoding == "bytes":
        return np.frombuffer(value, dtype)
    if kind == "ndarray":
        name, _, shape = rest.partition(":")
        at = 0
        if not name:
            name, at = f"{'int' if value[0] & 1 else 'uint'}{value[0] & 0xFE}", 1
        if name in INTEGERS and shape:
            return np.frombuffer(value, np.dtype(name).newbyteorder("<"))
        if name in INTEGERS and value[at] >> 2 == 1:
            width = 1 << (value[at] & 3)
            n = int.from_bytes(value[at + 1 : at + 1 + width], "little")
            body = value[at + 1 + width :]
            if len(body) == n * np.dtype(name).itemsize:
                return np.frombuffer(body, np.dtype(name).newbyteorder("<"))
    raise ShardFormatError(
        problem("unknown encoding", where=where, expected="bytes, or an ndarray of integers in one row", got=encoding)
    )


def _runs(path: Path, dtype: np.dtype[Any], lengths: npt.NDArray[np.int64], name: str) -> Documents:
    """Yield the documents of a headerless file in runs of about 8 Mi tokens, after checking its size."""
    expected = int(lengths.sum()) * dtype.itemsize
    got = path.stat().st_size
    if got != expected:
        raise ShardCorruptError(
            problem(
                "size disagrees with the index",
                where=path,
                expected=f"{expected:,} bytes of {dtype.name}",
                got=f"{got:,}",
                then="the file is truncated, or of another dtype (check the vocabulary)",
            )
        )
    ends = np.cumsum(lengths)
    cuts = np.flatnonzero(np.diff(ends // RUN_TOKENS)) + 1
    begin = 0
    for document, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(lengths)], strict=True):
        if stop <= document:
            continue
        n = int(lengths[document:stop].sum())
        tokens = np.fromfile(path, dtype, n, offset=begin * dtype.itemsize)
        begin += n
        yield tokens, lengths[document:stop], [f"{name}#{i}" for i in range(document, stop)]


def _import(
    paths: Sequence[str | os.PathLike[str]],
    read: Callable[[Path], Documents],
    out: str | os.PathLike[str],
    spec: TokenSpec,
    *,
    source: str = "",
    shard_tokens: int = SHARD_TOKENS,
) -> Path:
    """Write everything that `read` yields; a shard is closed once it holds `shard_tokens`."""
    root = Path(out)
    entries: list[dict[str, Any]] = []
    writer: ShardWriter | None = None
    try:
        for path in paths:
            for tokens, lengths, ids in read(Path(path)):
                writer = writer or ShardWriter(root, shard_name(len(entries)), spec)
                writer.add(tokens, lengths, ids, sources=source)
                if writer.n_tokens >= shard_tokens:
                    entries.append(writer.close())
                    writer = None
        if writer is not None or not entries:
            entries.append((writer or ShardWriter(root, shard_name(0), spec)).close())
    except BaseException:
        if writer is not None:
            writer.abort()
        raise
    temporary = root / f".{SET_FILE}.tmp-{os.getpid()}"
    temporary.write_bytes(shard_set_manifest(spec, entries))
    temporary.replace(root / SET_FILE)
    return root
