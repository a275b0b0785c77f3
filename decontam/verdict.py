"""From common runs to a verdict on each document: which item, how long, how much of it, and is it too much."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.decontam.index import Entry, EvalIndex
from gristmill.stages.kernels.views import Bytes, Offsets


@dataclass
class Hit:
    """What was found in one document.

    ``n_tokens``: longest common run with the worst item; ``ratio``: share of that text of the item which the runs
    cover; ``threshold``: what ``n_tokens`` was held against; ``items``: those that flag, as ``set:id``; ``spans``:
    byte ranges in the document, end not included, of all runs that flag.
    """

    doc: int
    flagged: bool = False
    set_name: str = ""
    item_id: str = ""
    part: str = ""
    n_tokens: int = 0
    ratio: float = 0.0
    threshold: int = 0
    n_items: int = 0
    items: list[str] = field(default_factory=list)
    n_passages: int = 0
    text: str = ""
    spans: list[tuple[int, int]] = field(default_factory=list)


def judge(
    index: EvalIndex,
    matches_M7: npt.NDArray[np.int64],
    deciding: tuple[str, ...],
    offsets_D1: Offsets,
    data_B: Bytes,
    sample: int,
    most: int,
) -> list[Hit]:
    """Return one hit a document that has any common run, in document order.

    A run flags where its field is in `deciding`, it has at least the n-gram's tokens (a short question: all of
    them) and its set's own thresholds are met. `sample` characters of text and `most` items are kept.
    """
    hits = []
    for doc, rows in groupby(matches_M7.tolist(), key=lambda row: int(row[0])):
        hits.append(_document(index, doc, list(rows), deciding, data_B, sample, most))
    return hits


def _document(
    index: EvalIndex, doc: int, rows: list[list[int]], deciding: tuple[str, ...], data_B: Bytes, sample: int, most: int
) -> Hit:
    hit = Hit(doc)
    by_entry: dict[int, list[list[int]]] = {}
    for row in rows:
        by_entry.setdefault(row[1], []).append(row)
    best: tuple[Any, ...] = ()
    flagging: dict[int, None] = {}
    passages: set[int] = set()
    for number, runs in sorted(by_entry.items()):
        entry = index.entries[number]
        item = index.items[entry.item]
        spec = index.sets[item.set_name]
        longest = max(runs, key=lambda row: row[3])
        name = _field(entry, longest)
        if name not in deciding:
            passages.add(entry.item)
            continue
        ratio = min(1.0, _covered(runs) / entry.n_tokens)
        need = max(_base(index, entry, number), spec.min_tokens or 0)
        flags = (entry.whole or longest[3] >= need) and ratio >= spec.min_ratio
        if flags:
            flagging[entry.item] = None
            hit.spans += [(row[4], row[5]) for row in runs]
        key = (flags, longest[3], ratio, -number)
        if not best or key > best:
            best = key
            hit.flagged = flags
            hit.set_name, hit.item_id, hit.part = item.set_name, item.item_id, name
            hit.n_tokens, hit.ratio = longest[3], ratio
            hit.threshold = entry.n_tokens if entry.whole else need
            hit.text = _sample(data_B, longest[4], longest[5], sample)
    hit.n_items = len(flagging)
    hit.items = [f"{index.items[i].set_name}:{index.items[i].item_id}" for i in list(flagging)[:most]]
    hit.n_passages = len(passages - set(flagging))
    return hit


def _field(entry: Entry, run: list[int]) -> str:
    """Return the field that most of the run lies in; question and answer are one text."""
    if entry.field != "question":
        return entry.field
    inside = min(run[2] + run[3], entry.n_question) - run[2]
    return "question" if 2 * inside >= run[3] else "answer"


def _base(index: EvalIndex, entry: Entry, number: int) -> int:
    tokens = index.table.tokens
    a, b = tokens.offsets_E1[number], tokens.offsets_E1[number + 1]
    lone = 2 * int(tokens.lone_N[a:b].sum()) > b - a
    return min(index.config.n_words, index.config.n_characters) if not lone else index.config.n_characters


def _covered(runs: list[list[int]]) -> int:
    """Return how many tokens of the entry the runs cover together."""
    total = 0
    reached = -1
    for first, size in sorted((row[2], row[3]) for row in runs):
        total += max(0, first + size - max(first, reached))
        reached = max(reached, first + size)
    return total


def _sample(data_B: Bytes, start: int, end: int, most: int) -> str:
    """Return the matched text, at most `most` characters of it."""
    return data_B[start : min(end, start + 4 * most)].tobytes().decode("utf-8", "ignore")[:most]
