"""Small fastText models for tests: a writer of the file format and a slow, literal oracle of inference."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

LOSS = {"hs": 1, "ns": 2, "softmax": 3, "ova": 4}
SPACES = " \n\r\t\v\f\0"


@dataclass
class TinyModel:
    """Everything a fastText file holds; `rows` and `output` are what the matrices decode to."""

    words: list[str]
    labels: list[str]
    dim: int = 5
    minn: int = 2
    maxn: int = 4
    bucket: int = 50
    word_ngrams: int = 1
    loss: str = "softmax"
    pruned: dict[int, int] | None = None
    quantised: bool = False
    norms: bool = True
    quantised_output: bool = False
    seed: int = 0
    counts: list[int] = field(default_factory=list)
    rows: Any = None
    output: Any = None
    version: int = 12

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        if not self.counts:
            self.counts = sorted((int(c) for c in rng.integers(1, 1000, len(self.labels))), reverse=True)
        n_rows = len(self.words) + (self.bucket if self.pruned is None else len(self.pruned))
        self._input, self.rows = self._matrix(rng, n_rows, self.quantised, 3.0)
        self._output, self.output = self._matrix(rng, len(self.labels), self.quantised and self.quantised_output, 2.0)

    def _matrix(self, rng: Any, m: int, quantised: bool, scale: float) -> tuple[bytes, Any]:
        if not quantised:
            values = (rng.normal(size=(m, self.dim)) * scale).astype("<f4")
            return struct.pack("<qq", m, self.dim) + values.tobytes(), values
        part = 2
        n_parts = -(-self.dim // part)
        last = self.dim - (n_parts - 1) * part
        codes = rng.integers(0, 256, (m, n_parts)).astype(np.uint8)
        books = [
            (rng.normal(size=(256, last if q == n_parts - 1 else part)) * scale).astype("<f4") for q in range(n_parts)
        ]
        values = np.concatenate([books[q][codes[:, q]] for q in range(n_parts)], axis=1)
        out = struct.pack("<Bqqi", self.norms, m, self.dim, codes.size) + codes.tobytes()
        out += struct.pack("<4i", self.dim, n_parts, part, last) + b"".join(book.tobytes() for book in books)
        if self.norms:
            norm_codes = rng.integers(0, 256, m).astype(np.uint8)
            norm_book = rng.uniform(0.5, 2, 256).astype("<f4")
            out += norm_codes.tobytes() + struct.pack("<4i", 1, 1, 1, 1) + norm_book.tobytes()
            values = values * norm_book[norm_codes][:, None]
        return out, values.astype(np.float32)

    def to_bytes(self) -> bytes:
        """Return the file."""
        out = struct.pack("<ii", 793712314, self.version)
        out += struct.pack(
            "<12id",
            self.dim,
            5,
            5,
            1,
            5,
            self.word_ngrams,
            LOSS[self.loss],
            3,
            self.bucket,
            self.minn,
            self.maxn,
            100,
            1e-4,
        )
        n_pruned = -1 if self.pruned is None else len(self.pruned)
        n = len(self.words) + len(self.labels)
        out += struct.pack("<3i2q", n, len(self.words), len(self.labels), 1000, n_pruned)
        for number, word in enumerate(self.words):
            out += word.encode() + struct.pack("<bqb", 0, 1000 - number, 0)
        for label, count in zip(self.labels, self.counts, strict=True):
            out += f"__label__{label}".encode() + struct.pack("<bqb", 0, count, 1)
        for key, value in (self.pruned or {}).items():
            out += struct.pack("<ii", key, value)
        out += struct.pack("<B", self.quantised) + self._input
        return out + struct.pack("<B", self.quantised and self.quantised_output) + self._output

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        path.write_bytes(self.to_bytes())
        return path

    # The oracle.

    def inputs(self, text: str, stops_at_end_token: bool = False) -> list[int]:
        """Return the input rows of a text, with repetitions, in no particular order."""
        tokens = [token for token in _split(text) if token]
        if stops_at_end_token and "</s>" in tokens:
            tokens = tokens[: tokens.index("</s>")]
        ids: list[int] = []
        hashes: list[int] = []
        for token in [*tokens, "</s>"]:
            if token in [f"__label__{label}" for label in self.labels]:
                continue
            entry = self.words.index(token) if token in self.words else -1
            if entry < 0 and token.startswith("__label__"):
                continue
            if entry >= 0:
                ids.append(entry)
            if token != "</s>" and self.maxn > 0:
                marked = f"<{token}>"
                for i in range(len(marked)):
                    for n in range(self.minn, self.maxn + 1):
                        edge = n == 1 and (i == 0 or i == len(marked) - 1)
                        if n >= 1 and i + n <= len(marked) and not edge:
                            self._push(ids, fnv(marked[i : i + n].encode()) % self.bucket)
            hashes.append(fnv(token.encode()))
        signed = [h - 2**32 if h >= 2**31 else h for h in hashes]
        for i in range(len(signed)):
            h = signed[i] % 2**64
            for j in range(i + 1, min(len(signed), i + self.word_ngrams)):
                h = (h * 116049371 + signed[j]) % 2**64
                self._push(ids, h % self.bucket)
        return ids

    def _push(self, ids: list[int], bucket: int) -> None:
        if self.pruned is None:
            ids.append(len(self.words) + bucket)
        elif bucket in self.pruned:
            ids.append(len(self.words) + self.pruned[bucket])

    def probabilities(self, text: str, stops_at_end_token: bool = False) -> dict[str, float]:
        """Return every label's probability as the fasttext package reports it; empty where there is no input."""
        ids = self.inputs(text, stops_at_end_token)
        if not ids:
            return {}
        hidden = self.rows[ids].astype(np.float64).mean(axis=0)
        if self.loss == "hs":
            return self._tree(hidden)
        logits = self.output.astype(np.float64) @ hidden
        if self.loss == "softmax":
            values = np.exp(logits - logits.max())
            values /= values.sum()
        else:
            values = np.array([_table_sigmoid(x) for x in logits])
        return {label: float(p) + 1e-5 for label, p in zip(self.labels, values, strict=True)}

    def _tree(self, hidden: Any) -> dict[str, float]:
        nodes: list[Any] = list(range(len(self.labels)))
        weights = list(self.counts)
        leaf = len(self.labels) - 1
        inner: list[int] = []
        children: dict[int, tuple[int, int]] = {}
        for new in range(len(self.labels), 2 * len(self.labels) - 1):
            pair = []
            for _ in range(2):
                if leaf >= 0 and (not inner or weights[leaf] < weights[inner[0]]):
                    pair.append(leaf)
                    leaf -= 1
                else:
                    pair.append(inner.pop(0))
            children[new] = (pair[0], pair[1])
            weights.append(weights[pair[0]] + weights[pair[1]])
            inner.append(new)
        out: dict[str, float] = {}

        def walk(node: int, score: float) -> None:
            if node < len(nodes):
                out[self.labels[node]] = math.exp(score)
                return
            f = 1 / (1 + math.exp(-float(self.output[node - len(nodes)].astype(np.float64) @ hidden)))
            walk(children[node][0], score + math.log(1 - f + 1e-5))
            walk(children[node][1], score + math.log(f + 1e-5))

        walk(2 * len(nodes) - 2, 0.0)
        return out


def _split(text: str) -> list[str]:
    for space in SPACES:
        text = text.replace(space, " ")
    return text.split(" ")


def fnv(data: bytes) -> int:
    """FNV-1a of sign-extended bytes, 32 bits."""
    h = 2166136261
    for byte in data:
        h = ((h ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * 16777619) % 2**32
    return h


def _table_sigmoid(x: float) -> float:
    if x < -8:
        return 0.0
    if x > 8:
        return 1.0
    step = int((x + 8) * 512 / 8 / 2)
    return 1 / (1 + math.exp(-(step * 16 / 512 - 8)))


WORDS = ["</s>", "the", "a", "der", "привет", "中文", "hello", "x"]
LABELS = ["en", "de", "ru", "zh", "ja"]
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "words only": {"maxn": 0, "minn": 0, "word_ngrams": 1},
    "word n-grams": {"maxn": 0, "minn": 0, "word_ngrams": 3, "bucket": 97},
    "large buckets": {"maxn": 0, "minn": 0, "word_ngrams": 5, "bucket": 5003},
    "both n-grams": {"minn": 1, "maxn": 6, "word_ngrams": 2, "dim": 20},
    "unigrams": {"minn": 1, "maxn": 1, "dim": 16},
    "minn zero": {"minn": 0, "maxn": 3},
    "hs": {"loss": "hs"},
    "ova": {"loss": "ova"},
    "ns": {"loss": "ns", "dim": 33},
    "pruned": {
        "quantised": True,
        "norms": False,
        "pruned": {b: i for i, b in enumerate(range(48, 0, -2))},
        "loss": "hs",
    },
    "pruned norms": {"quantised": True, "pruned": {b: i for i, b in enumerate(range(0, 50, 3))}, "word_ngrams": 2},
    "pruned to nothing": {"quantised": True, "pruned": {}, "word_ngrams": 2},
    "quantised output": {"quantised": True, "quantised_output": True, "dim": 7},
    "no end token": {"words": WORDS[1:]},
    "one label": {"labels": ["en"], "loss": "hs"},
    "many labels": {"labels": [f"l{i}" for i in range(60)], "loss": "hs"},
}


def tiny(variant: str, **changes: Any) -> TinyModel:
    """Return the model called `variant` in `VARIANTS`."""
    return TinyModel(**{"words": WORDS, "labels": LABELS, **VARIANTS[variant], **changes})
