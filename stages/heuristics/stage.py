"""The heuristic filter stage: every signal of a batch in one kernel call, then the preset's rules."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from gristmill.stages.base import BatchStage, replace_columns
from gristmill.stages.errors import ConfigError, nearest
from gristmill.stages.heuristics import languages as lg
from gristmill.stages.heuristics.presets import Preset, preset
from gristmill.stages.heuristics.rules import (
    LANGUAGE_COLUMN,
    PREFIX,
    Rule,
    change_rules,
    judge,
    reason_columns,
)
from gristmill.stages.heuristics.signals import SIGNAL_INDEX, SIGNALS
from gristmill.stages.kernels import heuristics as kernel
from gristmill.stages.kernels import heuristics_layout as layout
from gristmill.stages.kernels import heuristics_lines as lines
from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels import words as w
from gristmill.stages.kernels.views import text_array, text_view
from gristmill.stages.kernels.words_chinese import empty_trie, load_trie
from gristmill.stages.kernels.words_spacy_tables import spacy_tables

Thresholds = dict[str, float | dict[str, float | None] | None]
LANGUAGE_FROM_COLUMN = "h_rule_language_from"
_MODES = {"unicode": kernel.WORDS_UNICODE, "spaces": kernel.WORDS_SPACES, "spacy": kernel.WORDS_SPACY}
_STOP_ROWS = np.array([layout.S_STOP_DISTINCT, layout.S_STOP_OCCURRENCES, layout.S_STOP_SHARE])
_EDITED_ROWS = (layout.S_TERMINAL, layout.S_SHORT, layout.S_NEWLINE_WORDS, layout.S_DUP_NONBLANK_CHARS)
_FROM = ("setting", "column", "script", "default")


class Heuristics(BatchStage):
    """Measure about 75 signals of each document and reject by the rules of a preset."""

    name: ClassVar[str] = "heuristics"
    summary: ClassVar[str] = "heuristic quality filters: signals once, rules by language, line filters"

    preset: str = Field(
        "web",
        description="named rules: web, gopher, c4, c4-datatrove, fineweb, datatrove-0.10, refinedweb, dclm, dolma or "
        "chinese-web",
    )
    filters: tuple[str, ...] | None = Field(
        None, description="only these filters (rule groups) of the preset, in its order; null: all"
    )
    thresholds: Thresholds = Field(
        default_factory=dict,
        description="rule -> other threshold (null: off), or rule -> {language or class: threshold}",
    )
    language: str | None = Field(
        None, description="rules of this language for every document; null: the preset's language, else the column"
    )
    language_column: str = Field(
        "lang", description="column with ISO 639 codes that picks the rules by document, where the table has it"
    )
    chinese_words: Literal["dictionary", "characters"] = Field(
        "dictionary", description="how Han text is cut into words, Japanese apart"
    )
    signals: Literal["all", "used"] = Field(
        "all", description="signal columns to write: all, or only those that the rules read"
    )

    @field_validator("thresholds", mode="before")
    @classmethod
    def _no_truth_values(cls, value: Any) -> Any:
        """Refuse true and false, which would become 1 and 0."""
        for rule, change in value.items() if isinstance(value, dict) else ():
            for key, number in change.items() if isinstance(change, dict) else [("", change)]:
                if isinstance(number, bool):
                    name = f"{rule}.{key}" if key else rule
                    raise ValueError(f"thresholds.{name}: a finite number or null (off) is needed, got {number}")
        return value

    @model_validator(mode="after")
    def _check(self) -> Heuristics:
        try:
            rules = self.rules()
            chosen = preset(self.preset)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        for name in self.filters or ():
            if name not in chosen.groups():
                raise ValueError(f"filters: preset {self.preset!r} has no filter {name!r}."
                                 f"{nearest(name, chosen.groups())} It has {', '.join(chosen.groups())}")  # fmt: skip
        if not rules:
            raise ValueError("filters: no rule is left")
        if self.language is not None and lg.rule_language(self.language) == lg.DEFAULT != self.language:
            raise ValueError(f"language: no rules for {self.language!r}.{nearest(self.language, lg.profiles().names)}")
        return self

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules in force, in order: the preset's, its chosen filters, with the changed thresholds."""
        chosen = preset(self.preset)
        rules = chosen.rules
        if self.filters is not None:
            rules = tuple(rule for rule in rules if rule.group in self.filters)
        return change_rules(rules, self.thresholds)

    def _edits(self) -> bool:
        chosen = preset(self.preset)
        groups = {rule.group for rule in self.rules()}
        return chosen.line_filter.kind != lines.EDIT_NONE and bool(groups & {"c4", "refinedweb_lines"})

    def _signal_names(self) -> tuple[str, ...]:
        if self.signals == "all":
            return layout.SIGNALS
        used = {rule.signal for rule in self.rules()}
        return tuple(name for name in layout.SIGNALS if name in used)

    def writes(self) -> tuple[pa.Field, ...]:
        """Signal columns ``h_*``, the rule language and where it came from, bytes removed by the line filter."""
        fields = [pa.field(PREFIX + name, SIGNALS[SIGNAL_INDEX[name]].type) for name in self._signal_names()]
        fields += [pa.field(LANGUAGE_COLUMN, pa.string()), pa.field(LANGUAGE_FROM_COLUMN, pa.string())]
        if self._edits():
            fields.insert(0, pa.field("text", pa.large_string()))
            fields += [pa.field(name, pa.int64()) for name in self.edits().values()]
        return tuple(fields)

    def edits(self) -> dict[str, str]:
        """Ledger reason -> column, for the presets whose line filter edits the text."""
        if not self._edits():
            return {}
        kind = preset(self.preset).line_filter.kind
        label = "c4_lines" if kind == lines.EDIT_C4 else "refinedweb_lines"
        return {f"{label}:{name}": f"{PREFIX}removed_{name}_bytes" for name in _removals(kind)}

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with signals, edited text for presets with a line filter, and reasons."""
        chosen = preset(self.preset)
        text = batch.column("text")
        offsets_D1, data_B = text_view(text)
        n_docs = len(offsets_D1) - 1
        profile_D, from_D = self._profiles(batch, chosen, n_docs)
        tables = _line_tables(chosen.bullets, chosen.line_filter.end_marks)
        resources = _resources(chosen.stop_words, self.chinese_words == "dictionary")
        lengths = np.diff(offsets_D1)
        scratch = kernel.make_scratch(int(lengths.max(initial=0)))
        out_SD = np.zeros((layout.N_SIGNALS, n_docs))
        removed_RD = np.zeros((len(layout.REMOVALS), n_docs), np.int64)
        edited_offsets_D1 = np.zeros(n_docs + 1, np.int64)
        changed_D = np.zeros(n_docs, np.bool_)
        every_D = np.ones(n_docs, np.bool_)
        line_filter = chosen.line_filter
        edits = self._edits()
        edited_B = np.empty(int(lengths.sum()) if edits else 0, np.uint8)

        def measure(offsets: Any, data: Any, which: Any, mode: int, grams: bool, edit: int, out: Any) -> None:
            kernel.measure_batch(
                _frozen(offsets), _frozen(data), which, profile_D, mode, chosen.quirks, grams, edit,
                line_filter.options, line_filter.min_line_words, tables, resources, spacy_tables(), scratch,
                out, edited_offsets_D1 if edit else np.zeros(n_docs + 1, np.int64), edited_B,
                changed_D if edit else np.zeros(n_docs, np.bool_), removed_RD,
            )  # fmt: skip

        mode = _MODES[chosen.words]
        if not edits:
            measure(offsets_D1, data_B, every_D, mode, True, lines.EDIT_NONE, out_SD)
        elif line_filter.first:
            measure(offsets_D1, data_B, every_D, kernel.WORDS_NONE, False, line_filter.kind, out_SD)
            before = out_SD[layout.S_EDITED_SENTENCES :].copy()
            measure(edited_offsets_D1, edited_B, every_D, mode, True, lines.EDIT_NONE, out_SD)
            out_SD[layout.S_EDITED_SENTENCES :] = before
        else:
            measure(offsets_D1, data_B, every_D, mode, True, line_filter.kind, out_SD)
            if chosen.quirks and changed_D.any() and any(rule.group == "fineweb_quality" for rule in self.rules()):
                edited_SD = np.zeros((layout.N_SIGNALS, n_docs))
                measure(edited_offsets_D1, edited_B, changed_D, mode, False, lines.EDIT_NONE, edited_SD)
                for row in _EDITED_ROWS:
                    out_SD[row, changed_D] = edited_SD[row, changed_D]

        names = lg.profiles().names
        has_list_P = np.array([bool(words) for words in _stop_words(chosen.stop_words)])
        out_SD[np.ix_(_STOP_ROWS, ~has_list_P[profile_D])] = np.nan
        verdicts = judge({name: out_SD[row] for row, name in enumerate(layout.SIGNALS)}, names, profile_D, self.rules())
        columns: dict[str, pa.Array] = {}
        if edits:
            columns["text"] = _edited_text(text, edited_offsets_D1, edited_B, changed_D & (verdicts.rule_D < 0))
        columns |= self._columns(out_SD, profile_D, from_D)
        if edits:
            for row, name in zip(_removals(line_filter.kind).values(), self.edits().values(), strict=True):
                columns[name] = pa.array(removed_RD[row])
        columns |= reason_columns(verdicts, self.rules())
        return replace_columns(batch, columns)

    def _profiles(
        self, batch: pa.RecordBatch, chosen: Preset, n_docs: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
        """Return each document's rule language (-1: by script) and where it comes from."""
        index = lg.profiles().index_of
        fixed = self.language or chosen.language
        if fixed is not None:
            return np.full(n_docs, index[lg.rule_language(fixed)], np.int32), np.zeros(n_docs, np.int8)
        if self.language_column not in batch.schema.names:
            return np.full(n_docs, -1, np.int32), np.full(n_docs, 2, np.int8)
        column = batch.column(self.language_column).cast(pa.string()).dictionary_encode()
        codes = [index[lg.rule_language(code)] if code else -1 for code in column.dictionary.to_pylist()]
        at = column.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
        profile_D = np.array([*codes, -1], np.int32)[at]
        from_D = np.where(profile_D < 0, 2, np.where(profile_D == 0, 3, 1)).astype(np.int8)
        return profile_D, from_D

    def _columns(self, out_SD: Any, profile_D: Any, from_D: Any) -> dict[str, pa.Array]:
        """Return the signal columns and the rule language."""
        columns: dict[str, pa.Array] = {}
        for name in self._signal_names():
            values = out_SD[SIGNAL_INDEX[name]]
            kind = SIGNALS[SIGNAL_INDEX[name]].type
            missing = np.isnan(values)
            mask = missing if missing.any() else None
            if pa.types.is_integer(kind):
                columns[PREFIX + name] = pa.array(np.nan_to_num(values).astype(np.int64), kind, mask=mask)
            else:
                columns[PREFIX + name] = pa.array(values, kind, mask=mask)
        columns[LANGUAGE_COLUMN] = pa.array(lg.profiles().names, pa.string()).take(pa.array(profile_D))
        columns[LANGUAGE_FROM_COLUMN] = pa.array(_FROM, pa.string()).take(pa.array(from_D))
        return columns


def _removals(kind: int) -> dict[str, int]:
    """Return the removal reasons of a line filter with their rows."""
    rows = {name: row for row, name in enumerate(layout.REMOVALS)}
    if kind == lines.EDIT_C4:
        names = ["whitespace", "long_word", "citation", "no_terminal_mark", "few_words", "javascript", "policy"]
    else:
        names = ["few_words", "upper_case", "numeric", "counter", "boilerplate"]
    return {name: rows[name] for name in names}


def _stop_words(override: tuple[str, ...] | None) -> list[tuple[str, ...]]:
    """Return the stop words of each profile; an override is English's."""
    lists = list(lg.profiles().stop_words)
    if override is not None:
        lists[lg.profiles().index_of["en"]] = override
    return lists


@cache
def _line_tables(bullets: str, end_marks: str) -> lines.LineTables:
    words = w.word_tables()
    return lines.LineTables(
        layout.char_classes(), layout.line_marks(bullets, end_marks), u.SCRIPT,
        *layout.phrase_tables(), words.word_class_U, words.flags_U,
    )  # fmt: skip


@cache
def _resources(stop_words: tuple[str, ...] | None, dictionary: bool) -> kernel.WordResources:
    keys, index = kernel.stop_table(_stop_words(stop_words))
    trie = load_trie() if dictionary else empty_trie()
    profiles = lg.profiles()
    return kernel.WordResources(
        *trie, w.word_tables().join_CC, profiles.script_profile_256, profiles.han_P, keys, index
    )


def _edited_text(text: pa.Array, edited_offsets_D1: Any, edited_B: Any, use_D: Any) -> pa.Array:
    """Return `text` with the edited version of the chosen documents."""
    if not use_D.any():
        return text
    edited = text_array(edited_offsets_D1, edited_B)
    return pc.if_else(pa.array(use_D), edited, text.cast(pa.large_string()))


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view: one compiled version serves Arrow's buffers and ours."""
    view = array.view()
    view.flags.writeable = False
    return view
