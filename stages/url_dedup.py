"""URL deduplication: one document of each canonical URL is kept, by default the latest.

The URL is canonicalised in a kernel (`kernels.urls`) and compared by 128-bit hash; text is not read. Documents
without a URL are never duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from gristmill.stages.dedup.order import KeepsBest, order_keys
from gristmill.stages.exact_dedup import KEY_SCHEMA, remove_equal_keys
from gristmill.stages.kernels.hashing import xxh3_128
from gristmill.stages.kernels.urls import TRACKING, canonical_urls, parameter_hashes
from gristmill.stages.kernels.views import text_view

if TYPE_CHECKING:
    from gristmill.stages.artifact import Artifact
    from gristmill.stages.context import Context, Outcome

REASON = "url_duplicate"


class UrlDedup(KeepsBest):
    """Keep one document of each page address."""

    name: ClassVar[str] = "url_dedup"
    summary: ClassVar[str] = "remove documents of the same canonical URL, keeping the latest"

    url_column: str = Field(default="url", description="column that holds the address; null or empty: not compared")
    prefer: tuple[str, ...] = Field(
        default=("-date", "-n_bytes"),
        description="columns that decide which document is kept: the smallest value, with a leading '-' the "
        "largest (latest); nulls come last; ties go to the smaller id, then the smaller content hash",
    )
    drop_parameters: tuple[str, ...] = Field(
        default=TRACKING, description="query parameters that do not count, besides utm_*"
    )

    def reads(self) -> dict[str, pa.DataType | None]:
        """Columns that must be there."""
        return {self.url_column: None, **dict.fromkeys(self.order_columns())}

    def run(self, context: Context, inputs: list[Artifact]) -> Outcome:
        """Remove all but the best document of each address."""
        self.check_columns([artifact.schema for artifact in inputs])
        columns = list(dict.fromkeys([self.url_column, *self.order_columns()]))
        mapper = partial(_keys, self.url_column, self.drop_parameters, self.source_priority, self.prefer)
        return remove_equal_keys(context, inputs, context.map_documents(inputs, columns, mapper, KEY_SCHEMA), REASON)


def _keys(
    url_column: str,
    drop_parameters: tuple[str, ...],
    source_priority: tuple[str, ...],
    prefer: tuple[str, ...],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    dropped_Q = parameter_hashes(drop_parameters)
    for batch in batches:
        urls = batch.column(url_column)
        if isinstance(urls, pa.DictionaryArray):
            urls = urls.dictionary_decode()
        offsets_D1, data_B = canonical_urls(*text_view(urls.cast(pa.large_string()).fill_null("")), dropped_Q)
        some = np.flatnonzero(np.diff(offsets_D1))
        keys_D2 = xxh3_128(offsets_D1, data_B)[some]
        chosen = batch.take(pa.array(some))
        yield pa.RecordBatch.from_arrays(
            [
                chosen.column("row"),
                pa.array(keys_D2[:, 0].copy().view("int64")),
                pa.array(keys_D2[:, 1].copy().view("int64")),
                order_keys(chosen, source_priority, prefer),
                chosen.column("id").cast(pa.string()),
            ],
            schema=KEY_SCHEMA,
        )
