"""The tokenizer stage: train byte-level BPE on the kept documents, or take a given ``tokenizer.json``.

Leaves ``tokenizer.json`` (the same bytes for the same documents and settings, whatever the file layout) and the
report in the manifest. The documents go on to the next stage as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from gristmill.stages import store
from gristmill.stages.base import GlobalStage, Stage, sample_batch
from gristmill.stages.errors import ConfigError, RunError
from gristmill.stages.kernels.bpe import train
from gristmill.stages.kernels.pretoken_table import MAX_PIECE, thin
from gristmill.stages.kernels.pretokenize import PATTERNS
from gristmill.stages.kernels.views import text_view
from gristmill.tokenizer.count import Counted, Words, count, count_batches, gather, make_plan, merge_batches
from gristmill.tokenizer.encode import Encoder, load_encoder, model_of
from gristmill.tokenizer.model import EOS, BpeModel
from gristmill.tokenizer.report import make_report

if TYPE_CHECKING:
    from typing import Self

    from gristmill.stages.artifact import Artifact
    from gristmill.stages.context import Context, Outcome

FILE = "tokenizer.json"


class Tokenizer(GlobalStage):
    """Byte-level BPE, trained on a sample that is spread over all documents."""

    name: ClassVar[str] = "tokenizer"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "train a byte-level BPE tokenizer, or take a given one, and report how it does"
    input_kinds: ClassVar[tuple[str, ...]] = ("documents",)
    output_kind: ClassVar[str] = "tokenizer"

    path: str | None = Field(
        default=None,
        description="a tokenizer.json to use as it is, local path or URI; nothing is trained then. Byte-level BPE "
        "with a known split is run by compiled kernels, any other by the tokenizers library",
    )
    vocab_size: int = Field(
        default=32_768, ge=257, le=1 << 20, description="tokens, the 256 bytes and the special ones included"
    )
    pattern: Literal["llama3", "qwen2", "gpt2", "o200k", "marks3", "marks1"] = Field(
        default="llama3",
        description="how text is split before merging: llama3 (also cl100k; numbers in threes), qwen2 (single "
        "digits), gpt2, o200k (also splits at capitals), marks3 and marks1 (llama3 and qwen2 with combining "
        "marks as letters: better for Hindi, Thai, Arabic with vowels)",
    )
    special_tokens: tuple[str, ...] = Field(
        default=(EOS, "<|pad|>"),
        description="special tokens, given the last ids in this order; <|endoftext|> ends a document",
    )
    min_count: int = Field(default=2, ge=1, description="a pair must occur this many times to be merged")
    max_token_bytes: int = Field(default=64, ge=2, le=MAX_PIECE, description="longest token, in bytes")
    sample_bytes: int = Field(
        default=1 << 30,
        ge=1,
        description="train on about this many bytes of text, documents being chosen by a hash of their id",
    )
    held_out_bytes: int = Field(
        default=16 << 20,
        ge=0,
        description="keep about this many bytes, at most 5 %, out of training for the report; 0: no report on them",
    )
    max_piece_bytes: int = Field(
        default=128,
        ge=16,
        le=MAX_PIECE,
        description="in training, longer pre-tokens (Chinese clauses, base64) are counted in pieces of this length",
    )
    max_unique_bytes: int = Field(
        default=256 << 20,
        ge=1 << 16,
        description="bytes of distinct pre-tokens that training holds in memory (about 16 times this); beyond it, "
        "pre-tokens that occur once are sampled by hash and weighted",
    )
    compare: tuple[str, ...] = Field(
        default=(), description="tokenizer.json files to compare with on the held-out documents"
    )

    @field_validator("special_tokens")
    @classmethod
    def _special(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value) or "" in value:
            raise ValueError("special tokens must differ and not be empty")
        return value

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.vocab_size < 256 + len(self.special_tokens):
            raise ValueError(
                f"vocab_size must be at least {256 + len(self.special_tokens):,}: 256 bytes and the special tokens"
            )
        return self

    def reads(self) -> dict[str, pa.DataType | None]:
        """`lang` is used where it is there."""
        return {"text": pa.large_string(), "id": None}

    def files(self) -> tuple[Path, ...]:
        """The given tokenizer and those to compare with."""
        local = (p for p in (self.path, *self.compare) if p is not None and store.is_local(p))
        return tuple(Path(p.removeprefix("file://")) for p in local)

    def remote_files(self) -> tuple[str, ...]:
        """The same, of those given by URI."""
        return tuple(p for p in (self.path, *self.compare) if p is not None and not store.is_local(p))

    def check(self, node: str, inputs: Mapping[str, Stage]) -> None:
        """Read the given tokenizers."""
        given = [("path", self.path)] if self.path else []
        for key, path in (*given, *(("compare", path) for path in self.compare)):
            try:
                model_of(path)
            except ConfigError as error:
                raise ConfigError(f"{node}.{key}: {error}") from None

    def ids(self) -> tuple[int, int | None]:
        """Return ``(vocab_size, eos_id)`` before anything is trained; the text may give fewer tokens than asked for."""
        if self.path is not None:
            model = model_of(self.path)
            return model.vocab_size, model.eos_id
        last = self.vocab_size - len(self.special_tokens)
        return self.vocab_size, last + self.special_tokens.index(EOS) if EOS in self.special_tokens else None

    def warm(self, schema: pa.Schema) -> None:
        """Count, train on and encode two documents."""
        batch = sample_batch(schema)
        plan = make_plan(self.pattern, 0, 1, 1, 0, self.max_piece_bytes, "lang" in schema.names, ())
        counted = gather(pa.Table.from_batches(merge_batches(count_batches(plan, iter([batch])))))
        encoder = load_encoder(self.path) if self.path else self._train(counted)[1]
        encoder.encode_batch(*text_view(batch.column("text")))

    def run(self, context: Context, inputs: list[Artifact]) -> Outcome:
        """Count pre-tokens, train, write ``tokenizer.json``; the report says how the held-out documents fare.

        Raises:
            RunError: no text to train on.
            ConfigError: the given tokenizer is none.
        """
        from gristmill.stages.context import Outcome

        given = (store.read_bytes(self.path), load_encoder(self.path)) if self.path else None
        has_language = all("lang" in artifact.schema.names for artifact in inputs)
        encoder = given[1] if given else None
        plan = make_plan(
            encoder.model.pattern.name if isinstance(encoder, Encoder) else self.pattern,
            context.seed,
            sum(artifact.n_bytes for artifact in inputs),
            self.sample_bytes,
            self.held_out_bytes,
            self.max_piece_bytes,
            has_language,
            (*((self.path,) if self.path else ()), *self.compare),
            train=given is None,
        )
        counted = count(context, inputs, plan)
        if given is None:
            if not len(counted.train):
                raise RunError(f"{self.name}: no text to train on: the inputs hold no documents with text")
            data, encoder = self._train(counted)
        else:
            data, encoder = given
        context.write_file(FILE, data)
        report = make_report(
            encoder,
            counted,
            pattern=self.pattern if given is None else None,
            given=self.path,
            compare=self.compare,
        )
        return Outcome(report=report)

    def _train(self, counted: Counted) -> tuple[bytes, Encoder]:
        words = thinned(counted.train, self.max_unique_bytes)
        merges = train(
            words.offsets_W1,
            words.data_B,
            words.counts_W,
            self.vocab_size - len(self.special_tokens),
            self.min_count,
            self.max_token_bytes,
        )
        model = BpeModel.trained(PATTERNS[self.pattern], merges, self.special_tokens)
        return model.to_json(), Encoder(model)


def thinned(words: Words, max_bytes: int) -> Words:
    """Return `words`, or where they have more than `max_bytes` distinct bytes, with fewer of those counted once.

    One in k of these is kept, chosen by its hash, and counted k times, so that expected counts stay the same.
    """
    lengths = np.diff(words.offsets_W1)
    if int(lengths.sum()) <= max_bytes:
        return words
    once = words.counts_W == 1
    rest = int(lengths[~once].sum())
    every = max(2, -(-int(lengths[once].sum()) // max(1, max_bytes - rest)))
    counts = words.counts_W.copy()
    thin(lengths, words.data_B, every, counts)
    kept = counts > 0
    data = words.data_B[np.repeat(kept, lengths)]
    return Words(np.concatenate([[0], np.cumsum(lengths[kept])]), data, counts[kept])
