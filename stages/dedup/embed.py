"""Static embeddings of documents: a hashed projection that needs no model, or token vectors from a file.

`HashedUnits`: each distinct unit (word, or character of scripts without spaces; `kernels.shingles`) is a vector of
random signs from its hash, weighted by its rarity in the sample (log of the inverse document frequency). Two documents
are near where they share their rare words, in any order: reordered, reformatted and lightly reworded copies, but not
translations or synonyms.

`TokenVectors`: the mean of the vectors of a document's tokens, from a folder in the layout of model2vec and of static
Sentence-Transformers models: ``model.safetensors`` (tensor ``embeddings`` or ``embedding.weight``, V x J; optionally
``weights`` (V) and ``mapping`` (V) to rows) and ``tokenizer.json``. Vectors become fixed-point numbers before they are
added. Only such models know meaning.

Sources: Achlioptas 2003 (random signs); SemDeDup, arXiv:2303.09540; Model2Vec, github.com/MinishLab/model2vec.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from gristmill.stages.errors import ConfigError
from gristmill.stages.kernels.embedding import I16, I32, MAX_COLUMNS, WEIGHT_BITS, pool_tokens, project_units
from gristmill.stages.kernels.shingles import normal_table, shingle_sets
from gristmill.stages.kernels.views import text_view

SAMPLE_UNITS = 512
"""Units of a sampled document that reach the driver: the smallest hashes, 4 KB."""
LEAST_WEIGHT, WEIGHT_STEP = 1, 16
_FIXED = float(1 << 20)
_KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U16": "<u2", "I8": "<i1"}


@dataclass(frozen=True)
class HashedUnits:
    """The projection; `weights` are the int32 weights by leading hash bits, as bytes (empty: all alike)."""

    n_columns: int
    seed: int
    weights: bytes = b""

    def sample(self, texts: pa.Array) -> list[bytes]:
        """Return what the driver needs of sampled documents: up to `SAMPLE_UNITS` of their unit hashes."""
        ends, sets = shingle_sets(*text_view(texts), normal_table(), 1)
        return [sets[a : min(b, a + SAMPLE_UNITS)].tobytes() for a, b in pairwise(ends)]

    def fit(self, sample: list[bytes]) -> tuple[HashedUnits, I16]:
        """Return the projection with weights learnt from the sample, and the vectors of the sample."""
        counts = np.zeros(1 << WEIGHT_BITS, np.int64)
        shift = np.uint64(64 - WEIGHT_BITS)
        for units in sample:
            counts[np.unique(np.frombuffer(units, np.uint64) >> shift)] += 1
        rarity = np.log((len(sample) + 1) / (counts + 1))
        weights = np.maximum(LEAST_WEIGHT, np.rint(WEIGHT_STEP * rarity)).astype(np.int32)
        fitted = replace(self, weights=weights.tobytes())
        ends = np.zeros(len(sample) + 1, np.int64)
        np.cumsum([len(units) // 8 for units in sample], out=ends[1:])
        sets = np.frombuffer(b"".join(sample), np.uint64)
        return fitted, project_units(ends, sets, weights, self.n_columns, self.seed)

    def vectors(self, texts: pa.Array) -> I16:
        """Return the vectors of documents, int16 (D, J); zeros where a document has no unit."""
        ends, sets = shingle_sets(*text_view(texts), normal_table(), 1)
        weights = np.frombuffer(self.weights, np.int32)
        return project_units(ends, sets, weights, self.n_columns, self.seed)

    def describe(self) -> str:
        """Return one line for people."""
        return f"hashed units, {self.n_columns} columns, weighted by rarity in the sample"


@dataclass(frozen=True)
class TokenVectors:
    """A folder with token vectors; of each text the first `n_characters` count."""

    path: str
    n_characters: int

    def sample(self, texts: pa.Array) -> list[bytes]:
        """Return the vectors of sampled documents as bytes."""
        return [row.tobytes() for row in self.vectors(texts)]

    def fit(self, sample: list[bytes]) -> tuple[TokenVectors, I16]:
        """Return this model, which learns nothing, and the vectors of the sample."""
        n_columns = load(self.path).table_VJ.shape[1]
        return self, np.frombuffer(b"".join(sample), np.int16).reshape(-1, n_columns)

    def vectors(self, texts: pa.Array) -> I16:
        """Return the vectors of documents, int16 (D, J); zeros where a document has no known token."""
        model = load(self.path)
        beginnings = [text[: self.n_characters] for text in texts.to_pylist()]
        encoded = model.tokenizer.encode_batch_fast(beginnings, add_special_tokens=False)
        tokens = [np.array(e.ids, np.int32) for e in encoded]
        tokens = [t[t != model.unknown] for t in tokens]
        ends = np.zeros(len(tokens) + 1, np.int64)
        np.cumsum([len(t) for t in tokens], out=ends[1:])
        joined = np.concatenate([*tokens, np.empty(0, np.int32)])
        return pool_tokens(ends, model.row_V[joined], model.table_VJ)

    def describe(self) -> str:
        """Return one line for people."""
        rows, n_columns = load(self.path).table_VJ.shape
        return f"{Path(self.path).name}: {rows:,} token vectors of {n_columns} columns"


Embedder: TypeAlias = HashedUnits | TokenVectors


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model in memory: fixed-point vectors, the row of each token, the token that does not count (or -1)."""

    tokenizer: Any
    table_VJ: I32  # noqa: N815
    row_V: I32  # noqa: N815
    unknown: int


def model_files(path: str) -> tuple[Path, Path]:
    """Return the two files of a model's folder."""
    return Path(path) / "model.safetensors", Path(path) / "tokenizer.json"


def load(path: str) -> Loaded:
    """Return the model in a folder, read once a process and again when its files change.

    Raises:
        ConfigError: a file is missing, damaged, or of another kind; names it and what was expected.
    """
    stamps = []
    for file in model_files(path):
        try:
            stamps.append(file.stat().st_mtime_ns)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: cannot be read ({error}); a folder of a static model is needed") from None
    return _load(path, *stamps)


@cache
def _load(path: str, _tensors_changed: int, _tokenizer_changed: int) -> Loaded:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    file, tokenizer_file = model_files(path)
    tensors = read_safetensors(file)
    name = next((n for n in ("embeddings", "embedding.weight") if n in tensors), None)
    if name is None or tensors[name].ndim != 2:
        raise ConfigError(f"{file}: no tensor 'embeddings' or 'embedding.weight' (V x J); it has {sorted(tensors)}")
    vectors = tensors[name].astype(np.float64)
    if not 1 <= vectors.shape[1] <= MAX_COLUMNS or len(vectors) == 0:
        raise ConfigError(f"{file}: {name} is {vectors.shape}; 1 to {MAX_COLUMNS:,} columns are needed")
    n_tokens = len(tensors["mapping"]) if "mapping" in tensors else len(vectors)
    row = np.asarray(tensors.get("mapping", np.arange(n_tokens)), np.int64)
    if row.min(initial=0) < 0 or row.max(initial=0) >= len(vectors):
        raise ConfigError(f"{file}: mapping leads out of {name}, which has {len(vectors):,} rows")
    if "weights" in tensors:
        if len(tensors["weights"]) != n_tokens:
            raise ConfigError(f"{file}: {len(tensors['weights']):,} weights for {n_tokens:,} tokens")
        vectors, row = vectors[row] * tensors["weights"].astype(np.float64)[:, None], np.arange(n_tokens)
    greatest = float(np.abs(vectors).max())
    if not 0 < greatest < np.inf:
        raise ConfigError(f"{file}: {name} holds {greatest}; finite numbers, not all zero, are needed")
    try:
        tokenizer = Tokenizer.from_str(tokenizer_file.read_text(encoding="utf-8"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        given = json.loads(tokenizer_file.read_text(encoding="utf-8"))["model"]
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(f"{tokenizer_file}: not a tokenizer ({error})") from None
    if tokenizer.get_vocab_size() > n_tokens:
        raise ConfigError(f"{tokenizer_file}: {tokenizer.get_vocab_size():,} tokens, {file.name} has {n_tokens:,}")
    unknown = given.get("unk_id") if "unk_id" in given else tokenizer.token_to_id(str(given.get("unk_token")))
    table = np.rint(vectors * (_FIXED / greatest)).astype(np.int32)
    return Loaded(tokenizer, table, row.astype(np.int32), -1 if unknown is None else int(unknown))


def read_safetensors(file: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file as arrays.

    Layout: uint64 length of the header, JSON header (name -> dtype, shape, data_offsets), data, little-endian.

    Raises:
        ConfigError: it is not such a file, or ends too early; tensors of other dtypes are left out.
    """
    data = file.read_bytes()
    try:
        (length,) = struct.unpack_from("<Q", data)
        if length > len(data) - 8:
            raise ValueError(f"a header of {length:,} bytes in a file of {len(data):,}")
        header = json.loads(data[8 : 8 + length])
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__" or entry["dtype"] not in _KINDS:
                continue
            start, end = entry["data_offsets"]
            kind = np.dtype(_KINDS[entry["dtype"]])
            count = int(np.prod(entry["shape"], dtype=np.int64))
            if not 0 <= start <= end <= len(data) - 8 - length or count * kind.itemsize != end - start:
                raise ValueError(f"tensor {name!r} does not fit into it")
            tensors[name] = np.frombuffer(data, kind, count, 8 + length + start).reshape(entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ConfigError(f"{file}: not a safetensors file ({error})") from None
    return tensors
