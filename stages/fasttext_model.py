"""The fastText model file (`.bin`, `.ftz`), read and checked, laid out for the kernels.

Layout of a file, little-endian, no padding (format version 12, and 11 for old supervised models)::

    int32 magic, version
    int32 dim, window, epoch, min_count, negative, word_ngrams, loss, model, bucket, minn, maxn, lr_rate; float64 t
    int32 n_entries, n_words, n_labels; int64 n_tokens, n_pruned
    n_entries x (bytes, NUL, int64 count, int8 type)          words first, then labels, most frequent first
    n_pruned  x (int32 bucket, int32 row)                     only in pruned dictionaries (-1: not pruned)
    uint8 quantised?; input matrix                            dense: int64 m, n; float32 (m, n)
    uint8 quantised output?; output matrix                    quantised: uint8 norms?; int64 m, n; int32 n_codes;
                                                              codes; codebook [; norm codes; norm codebook]
    codebook: int32 dim, n_parts, part, last_part; float32 centroids (dim, 256)

Every count is checked against the bytes that are left before anything is allocated, so a truncated or hostile
file ends in a `ConfigError` that names the offset. Quantised matrices are expanded to float32 (lid.176.ftz:
0.9 MB on disk, 3.3 MB in memory): adding a row is then one vector load instead of a codebook look-up per part.
Rows are padded to a multiple of 16 columns, one cache line.

Source: A. Joulin et al., arXiv:1607.01759 and arXiv:1612.03651; behaviour checked against the fasttext package.
"""

from __future__ import annotations

import stat
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.stages.errors import ConfigError

F32 = npt.NDArray[np.float32]
MAGIC = 793_712_314
LANES = 16
"""Columns are padded to a multiple of this: 16 float32 are one cache line and one AVX-512 register."""
LABEL_PREFIX = "__label__"

HIERARCHICAL_SOFTMAX, NEGATIVE_SAMPLING, SOFTMAX, ONE_VS_ALL = 1, 2, 3, 4
LOSS_NAMES = {1: "hierarchical softmax", 2: "negative sampling", 3: "softmax", 4: "one-vs-all"}
SUPERVISED = 3
NOT_PRUNED, PRUNED, NO_NGRAMS = 0, 1, 2
UNSEEN = 10**15
"""Weight of a node of the Huffman tree that is not built yet, as fastText has it."""

MAX_DIM = 1 << 16
MAX_NGRAM = 64
MAPPED_FROM = 1 << 26
"""Files from this size on are mapped, so that loading does not hold them twice."""
MAX_EXPANSION = 64
"""Most times that a matrix may grow in memory over the file (a quantised one grows about eightfold)."""


@dataclass(frozen=True, eq=False)
class FastTextModel:
    """A supervised fastText model as arrays.

    Legend: E dictionary entries (words then labels), H hash slots (power of two), R input rows, P padded
    columns (multiple of 16, the rest is zero), L labels.
    """

    path: Path
    dim: int
    minn: int
    maxn: int
    bucket: int
    word_ngrams: int
    loss: int
    n_words: int
    labels: tuple[str, ...]
    """Label texts without ``__label__``, in the file's order (L)."""
    word_offsets_E1: npt.NDArray[np.int64]  # noqa: N815
    word_data_B: npt.NDArray[np.uint8]  # noqa: N815
    hash_E: npt.NDArray[np.uint32]  # noqa: N815
    slots_H: npt.NDArray[np.int32]  # noqa: N815
    rows_RP: F32  # noqa: N815
    pruning: int
    """`NOT_PRUNED`, `PRUNED` or `NO_NGRAMS`."""
    bits_W: npt.NDArray[np.uint64]  # noqa: N815
    """Bit b is set where bucket b has a row; the row is n_words + number of set bits before b (pruned only)."""
    rank_W: npt.NDArray[np.int32]  # noqa: N815
    output_LP: F32  # noqa: N815
    left_N: npt.NDArray[np.int32]  # noqa: N815
    """Huffman tree of hierarchical softmax: children of node n in [0, 2L-1); -1 for leaves (node = label)."""
    right_N: npt.NDArray[np.int32]  # noqa: N815
    parent_N: npt.NDArray[np.int32]  # noqa: N815

    @property
    def n_bytes(self) -> int:
        """Memory held by the matrices, in bytes."""
        return int(self.rows_RP.nbytes + self.output_LP.nbytes)

    def describe(self) -> str:
        """Return one line for people."""
        return (
            f"{len(self.labels):,} labels, dim {self.dim}, {LOSS_NAMES[self.loss]}, {self.n_words:,} words, "
            f"characters {self.minn}-{self.maxn}, word n-grams up to {self.word_ngrams}, "
            f"{self.rows_RP.shape[0]:,} rows, {self.n_bytes / 1e6:.1f} MB in memory"
        )


def read_model(path: str | Path) -> FastTextModel:
    """Return the model at `path`, read once a process and again when the file changes.

    Raises:
        ConfigError: no such file, or not a supervised fastText model; names the path and the byte offset.
    """
    found = _stat(path)
    return _read_cached(str(path), found.st_size, found.st_mtime_ns)


@cache
def _read_cached(path: str, size: int, _modified: int) -> FastTextModel:
    mapped: Any = np.memmap(path, np.uint8, "r") if size >= MAPPED_FROM else None
    return _read(Path(path), Path(path).read_bytes() if mapped is None else memoryview(mapped))


def read_labels(path: str | Path) -> tuple[str, ...]:
    """Return the labels only (without ``__label__``); reads no matrix.

    Raises:
        ConfigError: as `read_model`.
    """
    found = _stat(path)
    return _labels_cached(str(path), found.st_size, found.st_mtime_ns)


@cache
def _labels_cached(path: str, size: int, _modified: int) -> tuple[str, ...]:
    data: Any = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)
    reader = _Reader(Path(path), memoryview(data))
    header = _read_header(reader)
    return _read_dictionary(reader, header["n_words"], header["n_labels"]).labels


def _stat(path: str | Path) -> Any:
    try:
        found = Path(path).stat()
    except (OSError, ValueError) as error:
        raise ConfigError(f"fastText model {path}: cannot be read ({error})") from None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"fastText model {path}: is not a file")
    return found


class _Reader:
    """A cursor over the file that refuses to run past its end."""

    def __init__(self, path: Path, data: bytes | memoryview) -> None:
        self.path = path
        self.data = data
        self.at = 0

    def fail(self, problem: str, at: int | None = None) -> ConfigError:
        where = self.at if at is None else at
        return ConfigError(
            f"fastText model {self.path}: {problem} (byte {where:,} of {len(self.data):,}). "
            "Is it a complete supervised .bin or .ftz file?"
        )

    def need(self, n_bytes: int, what: str) -> int:
        """Return the start of the next `n_bytes` and step over them."""
        start = self.at
        if n_bytes < 0 or n_bytes > len(self.data) - start:
            left = len(self.data) - start
            raise self.fail(f"ends inside {what}: {n_bytes:,} bytes are needed, {left:,} are left")
        self.at = start + n_bytes
        return start

    def unpack(self, form: str, what: str) -> tuple[Any, ...]:
        return struct.unpack_from(form, self.data, self.need(struct.calcsize(form), what))

    def array(self, kind: str, count: int, what: str) -> Any:
        """Return `count` items as a view of the file (possibly unaligned)."""
        item = np.dtype(kind).itemsize
        start = self.need(count * item if count >= 0 else -1, what)
        return np.frombuffer(self.data, kind, count, start)


@dataclass
class _Dictionary:
    labels: tuple[str, ...]
    counts_L: list[int]  # noqa: N815
    word_offsets_E1: npt.NDArray[np.int64]  # noqa: N815
    word_data_B: npt.NDArray[np.uint8]  # noqa: N815


def _read_header(reader: _Reader) -> dict[str, int]:
    (magic,) = reader.unpack("<i", "the magic number")
    if magic != MAGIC:
        raise reader.fail(f"is not a fastText model: magic {magic:#x}, expected {MAGIC:#x}", 0)
    (version,) = reader.unpack("<i", "the format version")
    if version not in (11, 12):
        raise reader.fail(f"has format version {version}; 11 and 12 are known", 4)
    names = [
        "dim",
        "window",
        "epoch",
        "min_count",
        "negative",
        "word_ngrams",
        "loss",
        "model",
        "bucket",
        "minn",
        "maxn",
        "lr_rate",
    ]
    start = reader.at
    header: dict[str, int] = dict(zip(names, reader.unpack("<12i", "the arguments"), strict=True))
    reader.unpack("<d", "the arguments")
    if header["model"] != SUPERVISED:
        raise reader.fail("is a word-vector model (cbow or skipgram), not a classifier", start)
    if version == 11:
        header["maxn"] = 0  # old supervised models have no character n-grams, whatever the field says
    bounds = {
        "dim": (1, MAX_DIM),
        "word_ngrams": (0, MAX_NGRAM),
        "loss": (1, 4),
        "bucket": (0, 2**31 - 1),
        "minn": (0, MAX_NGRAM),
        "maxn": (0, MAX_NGRAM),
    }
    for key, (low, high) in bounds.items():
        if not low <= header[key] <= high:
            raise reader.fail(f"has {key} {header[key]:,}, expected {low:,} to {high:,}", start)
    start = reader.at
    sizes = reader.unpack("<3i2q", "the dictionary's sizes")
    n_entries, n_words, n_labels, _, n_pruned = sizes
    if n_words < 0 or n_labels < 1 or n_entries != n_words + n_labels or n_pruned < -1:
        raise reader.fail(
            f"has a dictionary of {n_entries:,} entries, {n_words:,} words, {n_labels:,} labels and "
            f"{n_pruned:,} pruned buckets, which cannot be",
            start,
        )
    if n_entries * 10 > len(reader.data) - reader.at:
        raise reader.fail(f"ends inside the dictionary of {n_entries:,} entries", start)
    header.update(n_words=n_words, n_labels=n_labels, n_pruned=n_pruned)
    return header


def _read_dictionary(reader: _Reader, n_words: int, n_labels: int) -> _Dictionary:
    data, at, end = reader.data, reader.at, len(reader.data)
    # A memoryview has no find(): take windows, which also keeps a lookup of labels from reading the matrices.
    window, base = bytes(data[at : at + (1 << 20)]), at
    words: list[bytes] = []
    counts: list[int] = []
    for entry in range(n_words + n_labels):
        nul = window.find(0, at - base)
        while nul < 0 or base + nul + 10 > base + len(window):
            if base + len(window) >= end:
                reader.at = at
                raise reader.fail(f"ends inside dictionary entry {entry:,} of {n_words + n_labels:,}")
            base, window = at, bytes(data[at : at + 2 * max(len(window), 1 << 20)])
            nul = window.find(0)
        word = window[at - base : nul]
        kind = window[nul + 9]
        if kind != (entry >= n_words):
            reader.at = at
            raise reader.fail(f"has dictionary entry {entry:,} of type {kind}, expected {int(entry >= n_words)}")
        words.append(word)
        if entry >= n_words:
            counts.append(int.from_bytes(window[nul + 1 : nul + 9], "little", signed=True))
            if not 0 <= counts[-1] < UNSEEN:
                reader.at = at
                raise reader.fail(f"has label {entry - n_words:,} with a count of {counts[-1]:,}")
        at = base + nul + 10
    reader.at = at
    offsets = np.zeros(len(words) + 1, np.int64)
    np.cumsum([len(word) for word in words], out=offsets[1:])
    labels = tuple(word.decode("utf-8", "replace").removeprefix(LABEL_PREFIX) for word in words[n_words:])
    return _Dictionary(labels, counts, offsets, np.frombuffer(b"".join(words), np.uint8))


def _check_size(reader: _Reader, m: int, n: int, start: int) -> None:
    n_bytes = m * _padded(n) * 4
    if n_bytes > MAX_EXPANSION * max(len(reader.data), 1 << 16):
        raise reader.fail(f"has a matrix of {m:,} x {n:,} that would need {n_bytes:,} bytes", start)


def _padded(n: int) -> int:
    return -(-n // LANES) * LANES


def _read_dense(reader: _Reader, what: str) -> F32:
    start = reader.at
    m, n = reader.unpack("<2q", f"the {what} matrix's shape")
    if m < 0 or not 1 <= n <= MAX_DIM:
        raise reader.fail(f"has an {what} matrix of shape {m:,} x {n:,}", start)
    values = reader.array("<f4", m * n, f"the {what} matrix of {m:,} x {n:,}")
    _check_size(reader, m, n, start)
    out = np.zeros((m, _padded(n)), np.float32)
    out[:, :n] = values.reshape(m, n)
    return out


def _read_codebook(reader: _Reader, n: int, what: str) -> tuple[int, int, F32]:
    start = reader.at
    dim, n_parts, part, last = reader.unpack("<4i", f"the {what} codebook")
    if dim != n or n_parts < 1 or part < 1 or not 1 <= last <= part or (n_parts - 1) * part + last != dim:
        raise reader.fail(
            f"has an {what} codebook of {n_parts:,} parts of {part:,} (last {last:,}) for {dim:,} of {n:,} columns",
            start,
        )
    centroids = reader.array("<f4", dim * 256, f"the {what} codebook").astype(np.float32)
    return n_parts, part, centroids


def _read_quantised(reader: _Reader, what: str) -> F32:
    start = reader.at
    has_norms, m, n, n_codes = reader.unpack("<B2qi", f"the {what} matrix's shape")
    if m < 0 or not 1 <= n <= MAX_DIM or n_codes < 0:
        raise reader.fail(f"has an {what} matrix of shape {m:,} x {n:,} with {n_codes:,} codes", start)
    codes = reader.array("u1", n_codes, f"the {what} matrix's codes")
    n_parts, part, centroids = _read_codebook(reader, n, what)
    if n_codes != m * n_parts:
        raise reader.fail(f"has {n_codes:,} codes for {m:,} rows of {n_parts:,} parts", start)
    _check_size(reader, m, n, start)
    out = np.zeros((m, _padded(n)), np.float32)
    codes_RQ = codes.reshape(m, n_parts)
    for q in range(n_parts):
        low, high = q * part, min((q + 1) * part, n)
        book = centroids[low * 256 : high * 256].reshape(256, high - low)
        out[:, low:high] = book[codes_RQ[:, q]]
    if has_norms:
        norm_codes = reader.array("u1", m, f"the {what} matrix's norm codes")
        _, _, norms = _read_codebook(reader, 1, f"{what} norm")
        out *= norms[norm_codes][:, None]
    return out


def _fnv_hashes(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """FNV-1a (32 bits) with sign-extended bytes, as fastText computes it, of every word at once.

    Works column by column (first bytes, second bytes, ...) over the words that are still that long.
    """
    hashes = np.full(len(offsets) - 1, 2_166_136_261, np.uint32)
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    starts, sorted_lengths = offsets[:-1][order], lengths[order]
    running = hashes[order]
    signed = data.view(np.int8).astype(np.uint32)
    active = len(order)
    for column in range(int(lengths.max(initial=0))):
        active = int(np.searchsorted(-sorted_lengths[:active], -column, side="left"))
        running[:active] = (running[:active] ^ signed[starts[:active] + column]) * np.uint32(16_777_619)
    hashes[order] = running
    return hashes


def _slots(hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    """Open addressing with linear probing over twice as many slots as entries or more."""
    n_slots = 1 << max(4, int(2 * len(hashes)).bit_length())
    slots = np.full(n_slots, -1, np.int32)
    waiting = np.arange(len(hashes))
    place = (hashes & np.uint32(n_slots - 1)).astype(np.int64)
    while len(waiting):
        # Of the entries that want the same free slot the first in the dictionary wins; the others move on.
        free = slots[place] < 0
        wanted, first = np.unique(place[free], return_index=True)
        slots[wanted] = waiting[free][first]
        lost = slots[place] != waiting
        waiting, place = waiting[lost], (place[lost] + 1) & (n_slots - 1)
    return slots


def _huffman(counts: list[int]) -> tuple[npt.NDArray[np.int32], ...]:
    """Children and parents of the Huffman tree over labels in order of falling count."""
    n = len(counts)
    weights = [*counts, *([UNSEEN] * (n - 1))]
    left, right, parent = (np.full(2 * n - 1, -1, np.int32) for _ in range(3))
    leaf, node = n - 1, n
    for new in range(n, 2 * n - 1):
        pair = []
        for _ in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                pair.append(leaf)
                leaf -= 1
            else:
                pair.append(node)
                node += 1
        left[new], right[new] = pair
        weights[new] = weights[pair[0]] + weights[pair[1]]
        parent[pair] = new
    return left, right, parent


def _read_pruning(reader: _Reader, header: dict[str, int]) -> tuple[int, Any, Any]:
    """Return the kind of pruning, and (bucket, row) sorted by bucket."""
    count = header["n_pruned"]
    if count == -1:
        return NOT_PRUNED, None, None
    if count == 0:
        return NO_NGRAMS, None, None
    start = reader.at
    pairs = reader.array("<i4", count * 2, f"the {count:,} pruned buckets").reshape(count, 2)
    keys, first = np.unique(pairs[:, 0], return_index=True)
    values = pairs[first, 1].astype(np.int64)
    if keys[0] < 0 or keys[-1] >= header["bucket"] or values.min() < 0:
        raise reader.fail("has a pruned bucket out of bounds", start)
    return PRUNED, keys.astype(np.int64), values


@np.errstate(invalid="ignore", over="ignore")  # damaged numbers are refused below, with their place
def _read(path: Path, data: bytes | memoryview) -> FastTextModel:
    reader = _Reader(path, data)
    header = _read_header(reader)
    n_words, n_labels, dim = header["n_words"], header["n_labels"], header["dim"]
    dictionary = _read_dictionary(reader, n_words, n_labels)
    pruning, keys, values = _read_pruning(reader, header)
    start = reader.at
    (is_quantised,) = reader.unpack("<B", "the input matrix's kind")
    rows = _read_quantised(reader, "input") if is_quantised else _read_dense(reader, "input")
    uses_buckets = header["maxn"] > 0 or header["word_ngrams"] > 1
    needed = n_words
    if pruning == PRUNED:
        needed += int(values.max()) + 1
    elif pruning == NOT_PRUNED and uses_buckets:
        needed += header["bucket"]
        if header["bucket"] < 1:
            raise reader.fail("uses n-grams but has no buckets", start)
    if rows.shape != (rows.shape[0], _padded(dim)) or rows.shape[0] < needed:
        raise reader.fail(f"has an input matrix of {rows.shape[0]:,} rows, {needed:,} are needed", start)
    start = reader.at
    (is_quantised_output,) = reader.unpack("<B", "the output matrix's kind")
    quantised_output = is_quantised and is_quantised_output
    output = _read_quantised(reader, "output") if quantised_output else _read_dense(reader, "output")
    if output.shape != (n_labels, _padded(dim)):
        raise reader.fail(f"has an output matrix of {output.shape[0]:,} rows for {n_labels:,} labels", start)
    if not np.isfinite(rows.sum(dtype=np.float64) + output.sum(dtype=np.float64)):
        raise reader.fail("has values that are not finite numbers")
    bits, rank = np.zeros(1, np.uint64), np.zeros(1, np.int32)
    if pruning == PRUNED:
        n_bits = -(-header["bucket"] // 64) * 64
        mask = np.zeros(n_bits, np.uint8)
        mask[keys] = 1
        bits = np.packbits(mask, bitorder="little").view(np.uint64)
        per_word = mask.reshape(-1, 64).sum(axis=1, dtype=np.int64)
        rank = (np.cumsum(per_word) - per_word + n_words).astype(np.int32)
        rows = np.concatenate([rows[:n_words], rows[n_words + values]])
    hashes = _fnv_hashes(dictionary.word_offsets_E1, dictionary.word_data_B)
    if header["loss"] == HIERARCHICAL_SOFTMAX:
        left, right, parent = _huffman(dictionary.counts_L)
    else:
        left = right = parent = np.empty(0, np.int32)
    return FastTextModel(
        path=path, dim=dim, minn=header["minn"], maxn=header["maxn"], bucket=header["bucket"],
        word_ngrams=header["word_ngrams"], loss=header["loss"], n_words=n_words, labels=dictionary.labels,
        word_offsets_E1=dictionary.word_offsets_E1, word_data_B=dictionary.word_data_B, hash_E=hashes,
        slots_H=_slots(hashes), rows_RP=rows, pruning=pruning, bits_W=bits, rank_W=rank, output_LP=output,
        left_N=left, right_N=right, parent_N=parent,
    )  # fmt: skip
