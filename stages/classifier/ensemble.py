"""Several scores into one quality level, as plain SQL over a table of scores.

Nemotron-CC (Su et al., arXiv:2412.02595): rank documents by each classifier into 20 buckets of equal size, take
the largest bucket number a document has under any of them, and cut the numbers into five levels. It needs keys and
numbers only, so any engine that has window functions runs it; the score table is what the classifier stages write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gristmill.stages.errors import ConfigError

LEVELS = ("low", "medium_low", "medium", "medium_high", "high")
EDGES = (7, 12, 18, 19)
"""First bucket of every level but the lowest."""


def ensemble_sql(
    columns: Sequence[str],
    table: str = "scores",
    n_buckets: int = 20,
    edges: Sequence[int] = EDGES,
    levels: Sequence[str] = LEVELS,
    by: Sequence[str] = (),
) -> str:
    """Return a query that adds ``quality_bucket`` (0 to n_buckets - 1) and ``quality_level`` to `table`.

    Higher scores are better. Ties are ordered by `id`, so the buckets do not depend on the file layout. `by`: columns
    within which documents are ranked (`lang`). Without it the ranking is one sort in one task.

    Raises:
        ConfigError: no column, a name that is no identifier, or edges that do not part the levels.
    """
    for name in (*columns, *by, table):
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ConfigError(f"ensemble: {name!r} is no column or table name")
    if not columns or list(edges) != sorted(set(edges)) or len(edges) + 1 != len(levels):
        raise ConfigError("ensemble: needs a column, rising edges and one level more than edges")
    if not all(re.fullmatch(r"\w+", level) for level in levels) or not 0 < min(edges) <= max(edges) < n_buckets:
        raise ConfigError(f"ensemble: edges lie in [1, {n_buckets - 1}], levels are words")
    part = f"PARTITION BY {', '.join(by)} " if by else ""
    ranks = ",\n         ".join(
        f"NTILE({n_buckets}) OVER ({part}ORDER BY {column}, id) - 1 AS bucket_of_{column}" for column in columns
    )
    best = f"bucket_of_{columns[0]}"
    if len(columns) > 1:
        best = f"GREATEST({', '.join(f'bucket_of_{column}' for column in columns)})"
    cases = "\n".join(
        f"         WHEN quality_bucket >= {edge} THEN '{level}'"
        for edge, level in sorted(zip(edges, levels[1:], strict=True), reverse=True)
    )
    return f"""WITH ranked AS (
  SELECT *,
         {ranks}
    FROM {table}
), best AS (
  SELECT *, {best} AS quality_bucket FROM ranked
)
SELECT *,
       CASE
{cases}
         ELSE '{levels[0]}'
       END AS quality_level
  FROM best
"""
