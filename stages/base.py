"""What a stage is: one frozen, validated model that holds its whole configuration.

Two kinds. A `BatchStage` is a pure function of a record batch and runs anywhere (no Spark needed); adjacent
ones are fused into one pass over the text. A `GlobalStage` looks at the whole data set through a `Context`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gristmill.stages.errors import ConfigError
from gristmill.stages.invalid import describe_invalid

if TYPE_CHECKING:
    from gristmill.stages.artifact import Artifact
    from gristmill.stages.context import Context, Outcome
    from gristmill.stages.passes import Sink

REASON = "reason"
REASON_FIELDS = (
    pa.field(REASON, pa.string()),
    pa.field("reason_value", pa.float64()),
    pa.field("reason_threshold", pa.float64()),
)
"""Columns that every batch stage appends: why the row is rejected (null: kept), the number that decided and
the threshold it was held against (null where the rule is not a threshold)."""


class Stage(BaseModel):
    """Configuration and behaviour of one stage. Subclasses set the class variables and either method."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    name: ClassVar[str]
    """Registered name, e.g. ``heuristics``; also the first part of the artifact's directory name."""
    version: ClassVar[int] = 1
    """Raised whenever the same input and configuration give another output; part of the fingerprint."""
    summary: ClassVar[str]
    """One line for `gristmill stages`."""
    input_kinds: ClassVar[tuple[str, ...]] = ("documents",)
    """Kinds of artifact it takes; the planner refuses others."""
    output_kind: ClassVar[str] = "documents"

    max_removed: float = Field(
        default=0.995,
        ge=0,
        le=1,
        description="guard rate: the run fails if more than this share of a source's documents is removed "
        "here (sources of at least 1,000 documents)",
    )

    @classmethod
    def build(cls, where: str = "", **options: Any) -> Self:
        """Validate `options` and return the stage.

        Raises:
            ConfigError: an unknown key (with the nearest known one), a wrong type or a value out of bounds.
        """
        where = where or cls.name
        try:
            return cls(**options)
        except ValidationError as error:
            raise ConfigError(describe_invalid(error, cls, options, where)) from None
        except ConfigError as error:
            raise ConfigError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None

    def reads(self) -> dict[str, pa.DataType | None]:
        """Columns that must be there, with the type they must have (None: any)."""
        return {"text": pa.large_string()}

    def writes(self) -> tuple[pa.Field, ...]:
        """Columns that the stage adds or replaces, without `REASON_FIELDS`."""
        return ()

    def files(self) -> tuple[Path, ...]:
        """Model and reference files whose content enters the fingerprint."""
        return ()

    def remote_files(self) -> tuple[str, ...]:
        """Reference files by URI (``s3://``, ``gs://``, ...) whose content enters the fingerprint."""
        return ()

    def check(self, node: str, inputs: Mapping[str, Stage]) -> None:
        """Look into reference files and at the stages before this one (`inputs`, by node) while planning.

        What can be known to fail must fail here, not in a task an hour later.

        Raises:
            ConfigError: it cannot work; begins with `node` and the key.
        """

    def warm(self, schema: pa.Schema) -> None:
        """Compile what the stage compiles, once on this machine, so that not every worker does it for itself.

        `schema`: the documents that the stage will be given.
        """


class BatchStage(Stage):
    """A stage that decides row by row."""

    def warm(self, schema: pa.Schema) -> None:
        """Transform two documents."""
        self.transform(sample_batch(schema))

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the same rows in the same order with `writes()` added or replaced, then `REASON_FIELDS`.

        Every other column is passed through untouched. Deterministic, and independent of how rows are
        grouped into batches. `text` is large_string and never null.
        """
        raise NotImplementedError

    def edits(self) -> dict[str, str]:
        """Ledger reason -> written int64 column holding bytes removed from that document's text.

        A negative count is bytes added. Only for stages that replace `text`: for every kept row the columns
        must sum to old length minus new length in UTF-8 bytes, and the runner checks it.
        """
        return {}


class SourceStage(Stage):
    """A stage that brings documents in from outside."""

    input_kinds: ClassVar[tuple[str, ...]] = ()

    def identity(self, node: str) -> Any:
        """Return JSON data that changes whenever the input does. Raises: ConfigError."""
        raise NotImplementedError

    def document_schema(self, node: str) -> pa.Schema:
        """Return the columns of the documents, known before Spark starts. Raises: ConfigError."""
        raise NotImplementedError

    def splits(self, context: Context) -> list[Any]:
        """Return the work of each task; a split has a `key` that identifies it."""
        raise NotImplementedError

    def read(self, node: str, schema: pa.Schema, split: Any, sink: Sink) -> Iterator[pa.RecordBatch]:
        """Yield the documents of one split and book all of its bytes in the sink."""
        raise NotImplementedError


class GlobalStage(Stage):
    """A stage that needs the whole data set. Spark sees keys and numbers, never text."""

    def run(self, context: Context, inputs: list[Artifact]) -> Outcome:
        """Do the work; the engine commits what is returned."""
        raise NotImplementedError


SAMPLE_TEXTS = (
    'The mill turns 12 times. Write to a@example.org, 中文句子。\n\n- one more line of text, quoted: "yes".',
    "",
)


def sample_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return two documents with the columns of `schema`, nulls in those that are not ours."""
    known = {
        "id": pa.array(["a", "b"]),
        "text": pa.array(SAMPLE_TEXTS, pa.large_string()),
        "source": pa.array(["sample", "sample"]),
        "n_bytes": pa.array([len(t.encode()) for t in SAMPLE_TEXTS], pa.int64()),
    }
    return pa.RecordBatch.from_arrays([known.get(f.name, pa.nulls(2, f.type)) for f in schema], schema=schema)


def replace_columns(batch: pa.RecordBatch, columns: dict[str, pa.Array | pa.ChunkedArray]) -> pa.RecordBatch:
    """Return `batch` with `columns` replaced in place where the name exists, appended otherwise."""
    names = list(batch.schema.names)
    arrays = list(batch.columns)
    for name, array in columns.items():
        if name in names:
            arrays[names.index(name)] = array
        else:
            names.append(name)
            arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=names)
