"""The inverted index of evaluation n-grams: built once a process from the sets' files, the same everywhere.

Entries are the texts that are searched for: question and right answer in one run (so that n-grams across their
boundary count), each wrong option, each passage, and short questions as a whole. An n-gram that more than
`max_items` different items share is a common phrase and is not indexed. Memory: about 110 bytes an n-gram.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.decontam.evals import EvalSet, Item, load_items
from gristmill.stages.errors import ConfigError
from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels.ngrams import Postings, Table, Tokens, build_table, tokenise, window_keys
from gristmill.stages.kernels.views import text_view

LEAST_WORDS = 3
"""Different words that an n-gram needs: rows of numbers and repeated signs are in tables everywhere."""


@dataclasses.dataclass(frozen=True)
class IndexConfig:
    """Everything that the index depends on besides the files' content."""

    evals: tuple[EvalSet, ...]
    n_words: int
    n_characters: int
    min_words: int
    min_characters: int
    max_items: int
    ignore: tuple[str, ...]


class Entry(NamedTuple):
    """One searched text: item number, field, tokens in all and in the question, whether only the whole counts."""

    item: int
    field: str
    n_tokens: int
    n_question: int
    whole: bool


@dataclasses.dataclass(frozen=True)
class EvalIndex:
    """Items, entries and the lookup table."""

    config: IndexConfig
    items: list[Item]
    sets: dict[str, EvalSet]
    entries: list[Entry]
    table: Table
    report: dict[str, Any]


@cache
def load_index(config: IndexConfig) -> EvalIndex:
    """Return the index for `config`, built on first use in this process.

    Raises:
        ConfigError: a set's file is missing or has no known fields, or none of its items is long enough.
    """
    items = [item for spec in config.evals for item in load_items(spec)]
    sets = {spec.title(): spec for spec in config.evals}
    texts: list[str] = []
    for item in items:
        texts += [item.question, f"{item.question}\n{item.answer}" if item.answer else "", item.passage, *item.choices]
    tokens = _tokens(texts)
    entries: list[Entry] = []
    chosen: list[int] = []
    skipped: dict[str, list[str]] = {name: [] for name in sets}
    at = 0
    for number, item in enumerate(items):
        question, joined, passage = tokens.size(at), tokens.size(at + 1), tokens.size(at + 2)
        full = _need(tokens, at, config.n_words, config.n_characters)
        least = _need(tokens, at, config.min_words, config.min_characters)
        n_before = len(entries)
        if question >= full:
            entries.append(Entry(number, "question", max(question, joined), question, False))
            chosen.append(at + 1 if joined else at)
        else:
            if question >= least:
                entries.append(Entry(number, "question", question, question, True))
                chosen.append(at)
            if joined >= _need(tokens, at + 1, config.n_words, config.n_characters):
                entries.append(Entry(number, "question", joined, question, False))
                chosen.append(at + 1)
        for c in range(at + 3, at + 3 + len(item.choices)):
            if tokens.size(c) >= _need(tokens, c, config.n_words, config.n_characters):
                entries.append(Entry(number, "choice", tokens.size(c), 0, False))
                chosen.append(c)
        if passage >= _need(tokens, at + 2, config.n_words, config.n_characters):
            entries.append(Entry(number, "passage", passage, 0, False))
            chosen.append(at + 2)
        if len(entries) == n_before:
            skipped[item.set_name].append(item.item_id)
        at += 3 + len(item.choices)
    for name in sets:
        n_items = sum(item.set_name == name for item in items)
        if len(skipped[name]) == n_items:
            raise ConfigError(
                f"evaluation set {name}: none of its {n_items:,} items is long enough to be searched for: "
                f"min_words {config.min_words}, min_characters {config.min_characters}, n {config.n_words}"
            )
    return _assemble(config, items, sets, entries, tokens.take(np.array(chosen, np.int64)), skipped)


def _assemble(
    config: IndexConfig,
    items: list[Item],
    sets: dict[str, EvalSet],
    entries: list[Entry],
    tokens: Tokens,
    skipped: dict[str, list[str]],
) -> EvalIndex:
    whole_E = np.array([entry.whole for entry in entries], np.bool_)
    item_E = np.array([entry.item for entry in entries], np.int64)
    generic = _generic(tokens, whole_E, item_E)
    ignored = _tokens(list(config.ignore)) if config.ignore else None
    windows = (
        (config.n_words, 0, 0), (config.min_words, 0, 1), (config.n_characters, 1, 0), (config.min_characters, 1, 1),
    )  # fmt: skip
    postings: list[Postings] = []
    n_common = 0
    for window, (n, lone, whole) in enumerate(windows):
        found = window_keys(tokens, n, lone, window)
        keep = (whole_E[found.entry] == bool(whole)) & ~generic[found.entry]
        if whole:
            keep &= found.position == 0
        keep &= _telling(tokens, found, n)
        if ignored is not None:
            keep &= ~np.isin(found.key, window_keys(ignored, n, lone, window).key)
        found = _first_in_entry(found.where(keep))
        if not whole:
            common = _common(found.key, item_E[found.entry], config.max_items)
            n_common += len(np.unique(found.key[common]))
            found = found.where(~common)
        postings.append(found)
    table = build_table(tokens, postings, windows)
    report = _report(items, sets, entries, skipped, generic)
    report["ngrams"] = {"indexed": int(len(table.posting_K1) - 1), "too_common": n_common}
    return EvalIndex(config, items, sets, entries, table, report)


def _tokens(texts: list[str]) -> Tokens:
    return tokenise(*text_view(pa.array(texts, pa.large_string())))


def _need(tokens: Tokens, text: int, words: int, characters: int) -> int:
    """Return how many tokens `text` needs: it counts in characters where most of its tokens are such."""
    a, b = tokens.offsets_E1[text], tokens.offsets_E1[text + 1]
    return characters if 2 * int(tokens.lone_N[a:b].sum()) > b - a else words


def _telling(tokens: Tokens, found: Postings, n: int) -> npt.NDArray[np.bool_]:
    """Return which n-grams have at least `LEAST_WORDS` different tokens that are not plain numbers."""
    numeric_C = np.isin(u.CATEGORY[tokens.code_C], [u.ND, u.NL, u.NO])
    numbers_N1 = np.concatenate([[0], np.cumsum(numeric_C)])
    sizes_N = np.diff(tokens.spell_N1)
    word_N = np.diff(numbers_N1[tokens.spell_N1]) < sizes_N
    telling = np.zeros(len(found.key), np.bool_)
    hash_N = np.where(word_N, tokens.hash_N, np.uint64(0))
    for start in range(0, len(found.key), 200_000):
        rows = tokens.offsets_E1[found.entry[start : start + 200_000]] + found.position[start : start + 200_000]
        window = np.sort(hash_N[rows[:, None] + np.arange(n)], axis=1)
        distinct = (np.diff(window, axis=1) != 0).sum(axis=1) + (window[:, 0] != 0)
        telling[start : start + 200_000] = distinct >= LEAST_WORDS
    return telling


def _first_in_entry(found: Postings) -> Postings:
    """Return the postings ordered by key and entry, with only the first position of a key in an entry."""
    found = found.where(np.lexsort((found.position, found.entry, found.key)))
    first = np.ones(len(found.key), np.bool_)
    first[1:] = (found.key[1:] != found.key[:-1]) | (found.entry[1:] != found.entry[:-1])
    return found.where(first)


def _common(key: npt.NDArray[np.uint64], item: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.bool_]:
    """Return which rows belong to keys of more than `most` items."""
    order = np.lexsort((item, key))
    key_s, item_s = key[order], item[order]
    new = np.ones(len(key), np.bool_)
    new[1:] = (key_s[1:] != key_s[:-1]) | (item_s[1:] != item_s[:-1])
    keys, inverse = np.unique(key, return_inverse=True)
    count = np.bincount(np.searchsorted(keys, key_s[new]), minlength=len(keys)) if len(keys) else np.empty(0, np.int64)
    rows: npt.NDArray[np.bool_] = (count > most)[inverse] if len(keys) else np.zeros(0, np.bool_)
    return rows


def _generic(tokens: Tokens, whole_E: npt.NDArray[np.bool_], item_E: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which short questions are asked in several items ("which of these can be concluded …")."""
    generic = np.zeros(len(whole_E), np.bool_)
    owner: dict[bytes, list[int]] = {}
    for e in np.flatnonzero(whole_E):
        a, b = tokens.offsets_E1[e], tokens.offsets_E1[e + 1]
        owner.setdefault(tokens.hash_N[a:b].tobytes(), []).append(int(e))
    for same in owner.values():
        if len({int(item_E[e]) for e in same}) > 1:
            generic[same] = True
    return generic


def _report(
    items: list[Item],
    sets: dict[str, EvalSet],
    entries: list[Entry],
    skipped: dict[str, list[str]],
    generic: npt.NDArray[np.bool_],
) -> dict[str, Any]:
    per_set: dict[str, Any] = {
        name: {"items": 0, "short": 0, "too_short": len(skipped[name]), "too_short_ids": skipped[name], "generic": 0}
        for name in sets
    }
    for item in items:
        per_set[item.set_name]["items"] += 1
    for entry, shared in zip(entries, generic, strict=True):
        if entry.whole:
            per_set[items[entry.item].set_name]["generic" if shared else "short"] += 1
    return {"sets": per_set}
