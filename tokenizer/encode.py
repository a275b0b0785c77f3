"""Encoding of documents: `Encoder` for ``tokenizer.json`` files that our kernels follow, the library for others.

Both encode raw text: a special token's text in a document (``<|endoftext|>`` in a web page) is encoded as the
letters it consists of, never as the special id, since a document must not be able to end itself. Only the
packer adds special ids. No beginning- or end-of-text token is added either.
"""

from __future__ import annotations

import logging
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gristmill.stages import store
from gristmill.stages.errors import ConfigError
from gristmill.stages.kernels import bpe_encode as kernels
from gristmill.stages.kernels.pretokenize import flags, scratch
from gristmill.stages.kernels.views import Bytes, Offsets
from gristmill.tokenizer.model import BpeModel, UnsupportedTokenizerError, parse

Tokens: TypeAlias = npt.NDArray[np.uint32]

WINDOW = 16_384
CACHE_SLOTS = 1 << 20
_log = logging.getLogger("gristmill.tokenizer")


class AnyEncoder(Protocol):
    """What encodes documents."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def eos_id(self) -> int | None:
        """Id of the end-of-document token, if there is one."""

    @property
    def note(self) -> str:
        """Why the kernels are not used; empty where they are."""

    def encode_batch(self, offsets_D1: Offsets, data_B: Bytes) -> tuple[Tokens, Offsets]:
        """Return the tokens of all documents and where each document's begin."""

    def decode(self, tokens_T: npt.ArrayLike) -> bytes:
        """Return the bytes that tokens spell."""


class Encoder:
    """Byte-level BPE by compiled kernels; the same tokens as `tokenizers` gives, several times as fast.

    Holds a cache of pre-tokens (`cache_slots` of 32 bytes, at most half of them used, and emptied when full),
    which never changes what comes out. One encoder a process; threads wait for each other.
    """

    note = ""

    def __init__(self, model: BpeModel, cache_slots: int = CACHE_SLOTS, window: int = WINDOW) -> None:
        self.model = model
        self._window = window
        sizes = [len(token) for token in model.tokens]
        self._spellings = np.frombuffer(b"".join(model.tokens), np.uint8)
        self._spelling_offsets = np.cumsum([0, *sizes]).astype(np.int64)
        special = set(model.specials.values())
        self._byte_ids = np.zeros(256, np.int32)
        for i in range(len(sizes) - 1, -1, -1):
            if sizes[i] == 1 and i not in special:
                self._byte_ids[model.tokens[i][0]] = i
        self._merges = np.empty((_power_of_two(len(model.merges_M2)), 4), np.uint64)
        kernels.fill_merges(model.merges_M2, self._merges)
        self._byte_ranks = np.full(65536, kernels.MAX_MERGES, np.int32)
        byte_of = {int(i): b for b, i in enumerate(self._byte_ids)}
        for rank in range(len(model.merges_M2) - 1, -1, -1):
            left, right = model.merges_M2[rank].tolist()
            if left in byte_of and right in byte_of:
                self._byte_ranks[byte_of[left] << 8 | byte_of[right]] = rank
        self._whole = np.zeros((1, 4), np.uint64)
        if model.ignore_merges:
            ordinary = np.array([0 if i in special else n for i, n in enumerate(sizes)])
            self._whole = np.zeros((_power_of_two(2 * len(sizes)), 4), np.uint64)
            kernels.fill_whole(self._spellings, self._spelling_offsets, ordinary, self._whole)
        self._cache = np.zeros((_power_of_two(cache_slots), 4), np.uint64)
        self._cache_tokens = np.empty(4 * len(self._cache) + kernels.SHORT, np.uint32)
        self._cache_bytes = np.empty(8 * len(self._cache) + kernels.SHORT, np.uint8)
        self._used = np.zeros(3, np.int64)
        self._short = np.empty(128, np.uint32), *(np.empty(128, np.int32) for _ in range(3))
        self._lock = Lock()

    @classmethod
    def load(cls, path: str) -> Encoder:
        """Read a ``tokenizer.json``, local path or URI.

        Raises:
            ConfigError: no such file, or not a tokenizer.
            UnsupportedTokenizerError: a tokenizer that the kernels do not follow; `load_encoder` takes it.
        """
        return cls(parse(_read(path), path))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, special tokens included."""
        return self.model.vocab_size

    @property
    def eos_id(self) -> int | None:
        """Id of the end-of-document token, if there is one."""
        return self.model.eos_id

    def encode_batch(self, offsets_D1: Offsets, data_B: Bytes) -> tuple[Tokens, Offsets]:
        """Return ``(tokens_T, token_offsets_D1)`` of documents in UTF-8: uint32 (T) and int64 (D+1).

        Document d has the tokens ``tokens_T[token_offsets_D1[d]:token_offsets_D1[d+1]]``; an empty one has none.
        Working memory is 4 bytes a byte of the batch and 1 a byte of its longest document.
        """
        pattern = self.model.pattern
        tokens = np.empty(int(offsets_D1[-1] - offsets_D1[0]) + 1, np.uint32)
        token_offsets = np.empty(len(offsets_D1), np.int64)
        with self._lock:
            n = kernels._encode(
                offsets_D1, data_B, flags(pattern), pattern.style, pattern.max_digits, scratch(offsets_D1),
                self._merges, self._byte_ranks, self.model.merged_M, self._byte_ids,
                self._spellings, self._spelling_offsets, self._whole,
                self._cache, self._cache_tokens, self._cache_bytes, self._used,
                *self._short, self._window, tokens, token_offsets,
            )  # fmt: skip
        return tokens[:n].copy(), token_offsets

    def encode(self, text: str | bytes) -> Tokens:
        """Return the tokens of one text, uint32 (T)."""
        raw = np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8)
        return self.encode_batch(np.array([0, len(raw)], np.int64), raw)[0]

    def decode(self, tokens_T: npt.ArrayLike) -> bytes:
        """Return the bytes that tokens spell; a special token spells its text.

        Raises:
            ValueError: an id outside the vocabulary.
        """
        tokens = np.asarray(tokens_T, np.int64)
        n = kernels._decode_size(tokens, self._spelling_offsets)
        if n < 0:
            raise ValueError(f"token {int(tokens[-1 - n]):,} at position {-1 - n:,}: ids are below {self.vocab_size:,}")
        out = np.empty(n, np.uint8)
        kernels._decode(tokens, self._spellings, self._spelling_offsets, out)
        return out.tobytes()


class LibraryEncoder:
    """A tokenizer that our kernels do not follow, run by Hugging Face's `tokenizers`: right, but slow."""

    def __init__(self, data: bytes, note: str) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(data.decode())
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.note = note

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, special tokens included."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    @property
    def eos_id(self) -> int | None:
        """Id of the end-of-document token, if there is one."""
        from gristmill.tokenizer.model import _EOS_NAMES

        return next((i for name in _EOS_NAMES if (i := self._tokenizer.token_to_id(name)) is not None), None)

    def encode_batch(self, offsets_D1: Offsets, data_B: Bytes) -> tuple[Tokens, Offsets]:
        """Return ``(tokens_T, token_offsets_D1)`` of documents in UTF-8, as `Encoder.encode_batch` does."""
        bounds = offsets_D1.tolist()
        texts = [data_B[a:b].tobytes().decode() for a, b in pairwise(bounds)]
        rows = [e.ids for e in self._tokenizer.encode_batch(texts, add_special_tokens=False)]
        token_offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
        tokens = np.empty(token_offsets[-1], np.uint32)
        for row, a, b in zip(rows, token_offsets[:-1], token_offsets[1:], strict=True):
            tokens[a:b] = row
        return tokens, token_offsets

    def decode(self, tokens_T: npt.ArrayLike) -> bytes:
        """Return the text that tokens spell, as the library decodes it."""
        ids: Any = np.asarray(tokens_T, np.int64).tolist()
        return self._tokenizer.decode(ids, skip_special_tokens=False).encode()


@cache
def load_encoder(path: str) -> AnyEncoder:
    """Return the encoder for a ``tokenizer.json``, made once a process.

    A file that the kernels do not follow is run by the `tokenizers` library, with a warning in the log of
    ``gristmill.tokenizer`` and a `note` on the encoder that says why.

    Raises:
        ConfigError: no such file, or not a tokenizer, or `tokenizers` refuses it.
    """
    model = model_of(path)
    if isinstance(model, BpeModel):
        return Encoder(model)
    _log.warning(model.note)
    return model


def model_of(path: str) -> BpeModel | LibraryEncoder:
    """Return what a ``tokenizer.json`` holds, read and checked: a model that our kernels follow, or an encoder.

    Raises:
        ConfigError: as `load_encoder`.
    """
    data = _read(path)
    try:
        return parse(data, path)
    except UnsupportedTokenizerError as reason:
        try:
            return LibraryEncoder(data, f"{reason}; the tokenizers library runs it, at a fraction of the speed")
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"{path}: the tokenizers library cannot load it: {error}") from None


def _read(path: str) -> bytes:
    try:
        return store.read_bytes(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot read the tokenizer: {error}") from None


def _power_of_two(n: int) -> int:
    return 1 << max(4, (n - 1).bit_length())
