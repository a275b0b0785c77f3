"""Rules: thresholds over signals, by language, applied to a table of signals without touching the text.

A rule rejects a document when ``signal < threshold`` or ``signal > threshold``; a null signal or threshold passes.
Rules are held in order and the first that rejects names the reason. Everything here is a pure function of numbers
that the stage has stored, so that a threshold can be tried on a finished run in milliseconds.
"""

# ruff: noqa: N815 (array names carry shapes; kernels are written as they compile)

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from gristmill.stages.errors import ConfigError, nearest
from gristmill.stages.heuristics.languages import class_of, profiles

LANGUAGE_COLUMN = "h_rule_language"
PREFIX = "h_"


class Rule(BaseModel):
    """One threshold over one signal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: str = Field(description="name in the ledger and in overrides, unique in a preset")
    signal: str = Field(description="signal it looks at, without the column prefix")
    op: Literal["<", ">"] = Field(description="rejects when signal op threshold (strict)")
    threshold: float | None = Field(description="in the signal's unit; null: the rule is off")
    languages: dict[str, float | None] = Field(
        default_factory=dict,
        description="thresholds of single languages (zh) or classes of them (unspaced); the language wins",
    )
    group: str = Field(default="", description="filter it belongs to")

    def threshold_for(self, language: str) -> float:
        """Return the threshold for a rule language, NaN where the rule is off."""
        for key in (language, class_of(language)):
            if key in self.languages:
                value = self.languages[key]
                return np.nan if value is None else float(value)
        return np.nan if self.threshold is None else self.threshold


class Verdicts(NamedTuple):
    """What the rules say of each document: ``rule_D`` int32 (-1: kept), the value and the threshold (NaN: kept)."""

    rule_D: npt.NDArray[np.int32]
    value_D: npt.NDArray[np.float64]
    threshold_D: npt.NDArray[np.float64]


def judge(
    signals: Mapping[str, npt.NDArray[np.float64]], languages: Sequence[str], language_D: npt.NDArray[np.int32],
    rules: Sequence[Rule],
) -> Verdicts:  # fmt: skip
    """Apply `rules` in order to signal arrays of one length; ``language_D`` indexes `languages`."""
    n = len(language_D)
    rule_D = np.full(n, -1, np.int32)
    value_D = np.full(n, np.nan)
    threshold_D = np.full(n, np.nan)
    for index, rule in enumerate(rules):
        limits = np.array([rule.threshold_for(language) for language in languages], np.float64)
        if n == 0 or np.isnan(limits).all():
            continue
        limit = limits[language_D]
        values = signals[rule.signal]
        failed = ((values < limit) if rule.op == "<" else (values > limit)) & (rule_D < 0)
        rule_D[failed] = index
        value_D[failed] = values[failed]
        threshold_D[failed] = limit[failed]
    return Verdicts(rule_D, value_D, threshold_D)


def _columns(table: pa.Table | pa.RecordBatch, rules: Iterable[Rule]) -> dict[str, npt.NDArray[np.float64]]:
    """Return the signals that `rules` need as float64 arrays, nulls as NaN.

    Raises:
        ConfigError: a signal is not in the table.
    """
    found: dict[str, npt.NDArray[np.float64]] = {}
    for rule in rules:
        name = PREFIX + rule.signal
        if name not in table.schema.names:
            raise ConfigError(
                f"rule {rule.reason!r} needs column {name!r}, which the table lacks.{nearest(name, table.schema.names)}"
            )
        if rule.signal not in found:
            column = table.column(name).cast(pa.float64())
            found[rule.signal] = np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    return found


def _languages(table: pa.Table | pa.RecordBatch) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Return the rule languages of a table and each document's index into them."""
    if LANGUAGE_COLUMN not in table.schema.names:
        return ["default"], np.zeros(table.num_rows, np.int32)
    column = table.column(LANGUAGE_COLUMN).cast(pa.string()).fill_null("default").dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries().combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            return ["default"], np.zeros(0, np.int32)
    return column.dictionary.to_pylist(), column.indices.to_numpy(zero_copy_only=False).astype(np.int32)


def apply_rules(table: pa.Table | pa.RecordBatch, rules: Sequence[Rule]) -> pa.Table:
    """Return ``reason``, ``reason_value`` and ``reason_threshold`` for each row of a stored signal table.

    Raises:
        ConfigError: a rule needs a signal that the table lacks.
    """
    languages, language_D = _languages(table)
    verdicts = judge(_columns(table, rules), languages, language_D, rules)
    return pa.table(reason_columns(verdicts, rules))


def reason_columns(verdicts: Verdicts, rules: Sequence[Rule]) -> dict[str, pa.Array]:
    """Return verdicts as the three reason columns, null where the document is kept."""
    kept = verdicts.rule_D < 0
    names = pa.array([rule.reason for rule in rules], pa.string())
    return {
        "reason": names.take(pa.array(np.maximum(verdicts.rule_D, 0), pa.int32(), mask=kept))
        if len(rules)
        else pa.nulls(len(kept), pa.string()),
        "reason_value": pa.array(verdicts.value_D, pa.float64(), mask=kept),
        "reason_threshold": pa.array(verdicts.threshold_D, pa.float64(), mask=kept),
    }


def change_rules(
    rules: Sequence[Rule], changes: Mapping[str, float | Mapping[str, float | None] | None]
) -> tuple[Rule, ...]:
    """Return `rules` with other thresholds.

    A number or null replaces the threshold for every language; a mapping replaces those of single languages or
    classes, with ``default`` for the rest.

    Raises:
        ConfigError: no rule or rule language of that name (names the nearest one), or a threshold that is no
            finite number.
    """
    known = [rule.reason for rule in rules]
    for name, change in changes.items():
        if name not in known:
            raise ConfigError(f"thresholds.{name}: no such rule in this preset.{nearest(name, known)}")
        _check_threshold(f"thresholds.{name}", change)
    changed = []
    for rule in rules:
        update: dict[str, object] = {}
        if rule.reason in changes:
            change = changes[rule.reason]
            if isinstance(change, Mapping):
                update["languages"] = {**rule.languages, **{k: v for k, v in change.items() if k != "default"}}
                if "default" in change:
                    update["threshold"] = change["default"]
            else:
                update = {"threshold": change, "languages": {}}
        changed.append(rule.model_copy(update=update))
    return tuple(changed)


def _check_threshold(key: str, change: object) -> None:
    """Refuse what is neither null, a finite number nor a mapping of known languages to such."""
    if isinstance(change, Mapping):
        known = [*profiles().names, "spaced", "unspaced"]
        for language, value in change.items():
            if language not in known:
                raise ConfigError(f"{key}.{language}: no rules for this language.{nearest(str(language), known)}")
            if isinstance(value, Mapping):
                raise ConfigError(f"{key}.{language}: a number or null is needed, got a mapping")
            _check_threshold(f"{key}.{language}", value)
    elif change is not None and (
        isinstance(change, bool) or not isinstance(change, int | float) or not math.isfinite(change)
    ):
        raise ConfigError(f"{key}: a finite number or null (off) is needed, got {change!r}")


def what_if(
    table: pa.Table | pa.RecordBatch,
    rules: Sequence[Rule],
    changes: Mapping[str, float | Mapping[str, float | None] | None],
) -> pa.Table:
    """Return what a change of thresholds would keep, by rule language, without touching the text.

    Columns: ``language``, ``docs``, ``kept_before``, ``kept_after`` (documents), ``bytes``, ``bytes_before``,
    ``bytes_after`` (from ``n_bytes``, or characters where the table has no such column), rows by falling documents.

    Raises:
        ConfigError: no such rule, or a signal is missing.
    """
    languages, language_D = _languages(table)
    after = change_rules(rules, changes)
    signals = _columns(table, rules)
    if "n_bytes" in table.schema.names:
        weights = np.asarray(table.column("n_bytes").to_numpy(zero_copy_only=False), np.float64)
    else:
        weights = _columns(table, [Rule(reason="n_chars", signal="n_chars", op="<", threshold=None)])["n_chars"]
    kept = [judge(signals, languages, language_D, these).rule_D < 0 for these in (rules, after)]
    size = len(languages)

    def total(mask: npt.NDArray[np.bool_] | None, by_bytes: bool) -> npt.NDArray[np.int64]:
        weight = np.ones(len(language_D)) if not by_bytes else weights
        if mask is not None:
            weight = weight * mask
        return np.bincount(language_D, weight, minlength=size).astype(np.int64)

    return pa.table(
        {
            "language": pa.array(languages, pa.string()),
            "docs": total(None, False),
            "kept_before": total(kept[0], False),
            "kept_after": total(kept[1], False),
            "bytes": total(None, True),
            "bytes_before": total(kept[0], True),
            "bytes_after": total(kept[1], True),
        }
    ).sort_by([("docs", "descending"), ("language", "ascending")])


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


class Histogram(NamedTuple):
    """Counts of a signal: ``edges`` (bins + 1), ``docs`` (bins), nulls apart."""

    edges: npt.NDArray[np.float64]
    docs: npt.NDArray[np.int64]
    n_null: int


def histogram(table: pa.Table | pa.RecordBatch, signal: str, bins: int = 20) -> Histogram:
    """Return the histogram of a stored signal between its smallest and largest value, the last bin closed.

    Raises:
        ConfigError: the signal is not in the table, or holds no numbers.
    """
    name = PREFIX + signal
    if name in table.schema.names and not _is_number(table.schema.field(name).type):
        raise ConfigError(f"{signal}: holds {table.schema.field(name).type}, a histogram needs numbers")
    values = _columns(table, [Rule(reason=signal, signal=signal, op="<", threshold=None)])[signal]
    finite = values[np.isfinite(values)]
    docs, edges = np.histogram(finite, bins=bins) if len(finite) else (np.zeros(bins), np.linspace(0, 1, bins + 1))
    return Histogram(edges, docs.astype(np.int64), int(len(values) - len(finite)))
