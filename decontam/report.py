"""The contamination report: which evaluation items were found, where, how much of each, with the matched text.

It is made from the signal columns that the stage writes, so it needs no second look at the text: pass the kept and
the rejected table of the artifact. Documents are counted once an item; matches below a set's own thresholds are not
counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from gristmill.decontam.index import EvalIndex

_COLUMNS = ("contam_set", "contam_item", "contam_field", "contam_tokens", "contam_ratio", "contam_items", "contam_text")


@dataclass
class ItemReport:
    """One item: documents it was found in, and its longest match."""

    item: str
    n_documents: int = 0
    n_tokens: int = 0
    ratio: float = 0.0
    part: str = ""
    sample: str = ""
    documents: list[str] = field(default_factory=list)


@dataclass
class SetReport:
    """One evaluation set: how many of its items were found in how many documents."""

    name: str
    n_items: int = 0
    n_documents: int = 0
    too_short: list[str] = field(default_factory=list)
    items: dict[str, ItemReport] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Share of the set's items that were found, from 0 to 1."""
        return len(self.items) / self.n_items if self.n_items else 0.0


def contamination_report(
    tables: Iterable[pa.Table | pa.RecordBatch], index: EvalIndex | None = None, most_documents: int = 20
) -> dict[str, SetReport]:
    """Return the report by set, in name order.

    `tables` hold the signal columns of the stage and ``id``; at most `most_documents` ids are listed an item. With
    `index`, sets without a hit and the number of items of each are there too.
    """
    sets: dict[str, SetReport] = {}
    if index is not None:
        for name, numbers in index.report["sets"].items():
            sets[name] = SetReport(name, numbers["items"], too_short=list(numbers["too_short_ids"]))
    for table in tables:
        wanted = [name for name in ("id", *_COLUMNS) if name in table.schema.names]
        found = table.select(wanted)
        mask = found.column("contam_set").is_valid()
        for row in found.filter(mask).to_pylist():
            _add(sets, row, most_documents)
    return dict(sorted(sets.items()))


def _add(sets: dict[str, SetReport], row: dict[str, Any], most: int) -> None:
    identity = str(row.get("id", ""))
    worst = f"{row['contam_set']}:{row['contam_item']}"
    touched = set()
    for label in row["contam_items"] or ():
        name = next((s for s in sorted(sets, key=len, reverse=True) if label.startswith(f"{s}:")), label.split(":")[0])
        group = sets.setdefault(name, SetReport(name))
        touched.add(name)
        item = group.items.setdefault(label[len(name) + 1 :], ItemReport(label[len(name) + 1 :]))
        item.n_documents += 1
        if len(item.documents) < most:
            item.documents.append(identity)
        if label == worst and row["contam_tokens"] > item.n_tokens:
            item.n_tokens, item.ratio = row["contam_tokens"], row["contam_ratio"]
            item.part, item.sample = row["contam_field"], row["contam_text"]
    for name in touched:
        sets[name].n_documents += 1


def to_markdown(report: dict[str, SetReport], most_items: int = 50) -> str:
    """Return the report as Markdown: a table of sets, then the items of each, the most frequent first."""
    lines = ["| set | items | found | share | documents | too short to search |", "|---|---:|---:|---:|---:|---:|"]
    lines.extend(
        f"| {group.name} | {group.n_items:,} | {len(group.items):,} | {group.share:.2%} | {group.n_documents:,} | "
        f"{len(group.too_short):,} |"
        for group in report.values()
    )
    for group in report.values():
        if not group.items:
            continue
        lines += [
            "",
            f"## {group.name}",
            "",
            "| item | documents | tokens | of item | part | text |",
            "|---|--:|--:|--:|---|---|",
        ]
        ranked = sorted(group.items.values(), key=lambda item: (-item.n_documents, -item.n_tokens, item.item))
        lines.extend(
            f"| {item.item} | {item.n_documents:,} | {item.n_tokens} | {item.ratio:.0%} | {item.part} | {_cell(item)} |"
            for item in ranked[:most_items]
        )
        if len(ranked) > most_items:
            lines.append(f"\n{len(ranked) - most_items:,} more items.")
    return "\n".join(lines) + "\n"


def _cell(item: ItemReport) -> str:
    return " ".join(item.sample.split()).replace("|", "\\|")
