"""A byte-level BPE vocabulary and its ``tokenizer.json``, the file format of Hugging Face's tokenizers.

What we write loads in `tokenizers.Tokenizer.from_file`. What others wrote is read where our kernels give the
same tokens: byte-level BPE without normaliser, split by one of `pretokenize.PATTERNS`. Special tokens stand
after all others in a vocabulary of ours, so ids 0..255 are bytes and ``256 + r`` is what merge r makes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.stages.errors import ConfigError, GristmillError
from gristmill.stages.kernels.bpe import BYTE_ORDER, I32, spell
from gristmill.stages.kernels.bpe_encode import MAX_MERGES, MAX_TOKENS
from gristmill.stages.kernels.pretokenize import PATTERNS, Pattern

EOS = "<|endoftext|>"
_EOS_NAMES = (EOS, "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>", "<|im_end|>")

_LETTERS = [chr(b) if k < 188 else chr(256 + k - 188) for k, b in enumerate(BYTE_ORDER.tolist())]
_TO_LETTER = dict(zip(BYTE_ORDER.tolist(), _LETTERS, strict=True))
_TO_BYTE = dict(zip(_LETTERS, BYTE_ORDER.tolist(), strict=True))

_SAME_AS = {
    # cl100k_base as later versions of tiktoken write it: possessive, and one alternative shortened
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "llama3",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s": "llama3",
}
"""Other spellings of expressions that split every text alike."""


class UnsupportedTokenizerError(GristmillError):
    """A ``tokenizer.json`` that is well-formed, but that our kernels would not follow to the letter."""


@dataclass(frozen=True)
class BpeModel:
    """Vocabulary, merges and pre-tokenisation of a byte-level BPE tokenizer.

    `tokens`: bytes of each id (empty where an id is not in use; the UTF-8 text for special ones); `merges_M2`
    int32 (M, 2) ids joined by merge r into `merged_M`; `specials`: text -> id; `ignore_merges`: a pre-token
    that is a token needs no merges.
    """

    pattern: Pattern
    tokens: tuple[bytes, ...]
    merges_M2: I32  # noqa: N815
    merged_M: I32  # noqa: N815
    specials: dict[str, int]
    ignore_merges: bool = False

    @classmethod
    def trained(cls, pattern: Pattern, merges_M2: I32, special_tokens: tuple[str, ...]) -> BpeModel:
        """Return the model of merges from `bpe.train`, with `special_tokens` after them."""
        tokens = spell(merges_M2)
        merged = np.arange(256, len(tokens), dtype=np.int32)
        specials = {text: len(tokens) + k for k, text in enumerate(special_tokens)}
        return cls(pattern, (*tokens, *(text.encode() for text in special_tokens)), merges_M2, merged, specials)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, special tokens included."""
        return len(self.tokens)

    @property
    def eos_id(self) -> int | None:
        """Id of the end-of-document token: ``<|endoftext|>``, or the first usual name of it that there is."""
        return next((self.specials[name] for name in _EOS_NAMES if name in self.specials), None)

    def to_vocab(self) -> dict[str, int]:
        """Return the ordinary tokens as ``tokenizer.json`` spells them, and their ids."""
        special = set(self.specials.values())
        return {letters(token): i for i, token in enumerate(self.tokens) if i not in special and token}

    def to_json(self) -> bytes:
        """Return ``tokenizer.json``: the same bytes for the same model, always."""
        vocabulary = self.to_vocab()
        spelled = {i: token for token, i in vocabulary.items()}
        split = {"type": "Split", "pattern": {"Regex": self.pattern.regex}, "behavior": "Isolated", "invert": False}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        data = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": i, "content": text, **flags} for text, i in self.specials.items()],
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": self.ignore_merges,
                "vocab": vocabulary,
                "merges": [f"{spelled[a]} {spelled[b]}" for a, b in self.merges_M2.tolist()],
            },
        }
        return (json.dumps(data, ensure_ascii=False, indent=1) + "\n").encode()


def letters(token: bytes) -> str:
    """Return a token as ``tokenizer.json`` spells it, one printable letter a byte (GPT-2's alphabet)."""
    return "".join(_TO_LETTER[b] for b in token)


def parse(data: bytes, where: str) -> BpeModel:
    """Return the model in a ``tokenizer.json``.

    Raises:
        ConfigError: not such a file.
        UnsupportedTokenizerError: one that our kernels would not follow to the letter; says why.
    """
    try:
        raw = json.loads(data)
        model = raw["model"]
        kind = model.get("type", "BPE")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{where}: not a tokenizer.json (no JSON object with a `model`)") from None
    if kind != "BPE":
        raise UnsupportedTokenizerError(f"{where}: a {kind} model, not byte-level BPE")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            raise UnsupportedTokenizerError(f"{where}: model.{key} = {model[key]!r}")
    if raw.get("normalizer") is not None:
        raise UnsupportedTokenizerError(f"{where}: has a normalizer ({raw['normalizer'].get('type')})")
    pattern = _pattern_of(raw.get("pre_tokenizer"), where)
    try:
        return _vocabulary(raw, pattern, where)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{where}: not a valid tokenizer.json: {error!r}") from None


def _vocabulary(raw: dict[str, Any], pattern: Pattern, where: str) -> BpeModel:
    model = raw["model"]
    vocabulary: dict[str, int] = model["vocab"]
    added = {item["content"]: int(item["id"]) for item in raw.get("added_tokens") or ()}
    size = 1 + max(*vocabulary.values(), *added.values(), 255)
    tokens = [b""] * size
    for text, i in vocabulary.items():
        if text in added:
            continue
        if not all(letter in _TO_BYTE for letter in text):
            raise UnsupportedTokenizerError(f"{where}: token {text!r} is not in the byte-level alphabet")
        tokens[i] = bytes(_TO_BYTE[letter] for letter in text)
    for text, i in added.items():
        tokens[i] = text.encode()
    missing = [b for b in range(256) if _TO_LETTER[b] not in vocabulary]
    if missing:
        raise UnsupportedTokenizerError(f"{where}: {len(missing)} bytes have no token, 0x{missing[0]:02x} among them")
    pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    merges = np.array([(vocabulary[a], vocabulary[b]) for a, b in pairs], np.int32).reshape(-1, 2)
    merged = np.array([vocabulary[a + b] for a, b in pairs], np.int32)
    if len(merges) >= MAX_MERGES or size >= MAX_TOKENS:
        raise UnsupportedTokenizerError(f"{where}: {size:,} tokens, fewer than {MAX_TOKENS:,} are supported")
    return BpeModel(pattern, tuple(tokens), merges, merged, added, bool(model.get("ignore_merges")))


def _pattern_of(pre: Any, where: str) -> Pattern:
    """Return the pattern that splits as `pre` does."""
    steps = pre.get("pretokenizers", [pre]) if isinstance(pre, dict) else []
    kinds = [step.get("type") for step in steps]
    last = steps[-1] if steps else {}
    if last.get("type") == "ByteLevel" and not last.get("add_prefix_space", True):
        if kinds == ["ByteLevel"] and last.get("use_regex", True):
            return PATTERNS["gpt2"]
        if kinds == ["Split", "ByteLevel"] and not last.get("use_regex", True):
            split = steps[0]
            regex = (split.get("pattern") or {}).get("Regex", "")
            plain = str(split.get("behavior")).lower() == "isolated" and not split.get("invert")
            matched = str(split.get("behavior")).lower() == "removed" and split.get("invert")
            for pattern in PATTERNS.values():
                if (plain or matched) and regex in (
                    pattern.regex,
                    *(r for r, n in _SAME_AS.items() if n == pattern.name),
                ):
                    return pattern
            raise UnsupportedTokenizerError(f"{where}: pre-tokens are split by {regex!r}, which has no kernel")
    raise UnsupportedTokenizerError(f"{where}: pre_tokenizer {' + '.join(map(str, kinds)) or 'null'} has no kernel")
