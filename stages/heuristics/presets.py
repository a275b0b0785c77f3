"""Named rule tables. Each says how words are cut, which line filter edits the text, and the rules in order.

Sources are given at each table; what differs from them is in ``docs/heuristics.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

from gristmill.stages.errors import ConfigError, nearest
from gristmill.stages.heuristics.rules import Rule
from gristmill.stages.kernels import heuristics_lines as lines

Words = Literal["unicode", "spaces", "spacy"]
WIDE_BULLETS = "•‣⁃○●◦▪■□*-–—·・►▶→"


class LineFilter(NamedTuple):
    """A filter that drops lines: its kind, switches, smallest line, and when it runs.

    `first`: the signals are those of the edited text (DCLM, RefinedWeb); otherwise only the line signals that
    FineWeb's rules read are (FineWeb, C4).
    """

    kind: int = lines.EDIT_NONE
    options: int = 0
    min_line_words: int = 0
    end_marks: str = ".?!\"'"
    first: bool = False


class Preset(NamedTuple):
    """A named configuration of the stage."""

    name: str
    summary: str
    rules: tuple[Rule, ...]
    words: Words = "unicode"
    quirks: bool = False
    bullets: str = WIDE_BULLETS
    line_filter: LineFilter = LineFilter()
    stop_words: tuple[str, ...] | None = None
    language: str | None = None

    def groups(self) -> tuple[str, ...]:
        """Return the filters of the preset in order."""
        return tuple(dict.fromkeys(rule.group for rule in self.rules))


_Languages = dict[str, float | None]


def _rule(
    group: str, reason: str, signal: str, op: Literal["<", ">"], threshold: float | None, **languages: float | None
) -> Rule:
    return Rule(
        group=group, reason=reason, signal=signal, op=op, threshold=threshold,
        languages={key.rstrip("_"): value for key, value in languages.items()},
    )  # fmt: skip


def _gopher_quality(group: str = "gopher_quality", prefix: str = "gopher_") -> tuple[Rule, ...]:
    def rule(reason: str, signal: str, op: Literal["<", ">"], threshold: float) -> Rule:
        return _rule(group, prefix + reason, signal, op, threshold)

    return (
        rule("short_doc", "n_words", "<", 50),
        rule("long_doc", "n_words", ">", 100_000),
        rule("below_avg_threshold", "mean_word_chars", "<", 3),
        rule("above_avg_threshold", "mean_word_chars", ">", 10),
        rule("too_many_hashes", "hash_word_ratio", ">", 0.1),
        rule("too_many_ellipsis", "ellipsis_word_ratio", ">", 0.1),
        rule("too_many_bullets", "bullet_line_share", ">", 0.9),
        rule("too_many_end_ellipsis", "ellipsis_line_share", ">", 0.3),
        rule("below_alpha_threshold", "alpha_word_share", "<", 0.8),
        rule("enough_stop_words", "stop_words_distinct", "<", 2),
    )


def _gopher_repetition(group: str = "gopher_repetition", prefix: str = "gopher_") -> tuple[Rule, ...]:
    def rule(reason: str, signal: str, threshold: float) -> Rule:
        return _rule(group, prefix + reason, signal, ">", threshold)

    return (
        rule("dup_para_frac", "dup_paragraph_share", 0.3),
        rule("dup_para_char_frac", "dup_paragraph_char_share", 0.2),
        rule("dup_line_frac", "dup_line_share", 0.3),
        rule("dup_line_char_frac", "dup_line_char_share", 0.2),
        *(rule(f"top_{n}_gram", f"top_{n}_gram_char_share", limit) for n, limit in ((2, 0.20), (3, 0.18), (4, 0.16))),
        *(
            rule(f"duplicated_{n}_n_grams", f"dup_{n}_gram_char_share", limit)
            for n, limit in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
        ),
    )


def _fineweb(group: str = "fineweb_quality", prefix: str = "fineweb_", duplicates: float = 0.01) -> tuple[Rule, ...]:
    def rule(reason: str, signal: str, op: Literal["<", ">"], threshold: float) -> Rule:
        return _rule(group, prefix + reason, signal, op, threshold)

    return (
        rule("empty", "edited_lines", "<", 1),
        rule("line_punct_ratio", "terminal_line_share", "<", 0.12),
        rule("short_line_ratio", "short_line_share", ">", 0.67),
        rule("char_dup_ratio", "dup_nonblank_char_share", ">", duplicates),
        rule("list_ratio", "newline_word_ratio", ">", 0.3),
    )


def _c4(min_sentences: float, group: str = "c4", prefix: str = "c4_") -> tuple[Rule, ...]:
    def rule(reason: str, signal: str, op: Literal["<", ">"], threshold: float) -> Rule:
        return _rule(group, prefix + reason, signal, op, threshold)

    return (
        rule("lorem_ipsum", "edited_lorem_ipsum", ">", 0),
        rule("curly_bracket", "edited_curly_bracket", ">", 0),
        rule("too_few_sentences", "edited_sentences", "<", min_sentences),
    )


_EMPTY = _rule("empty", "empty", "n_tokens", "<", 1)
_C4_ALL = lines.OPT_CITATIONS | lines.OPT_LOREM | lines.OPT_JAVASCRIPT | lines.OPT_CURLY | lines.OPT_POLICY


def _web() -> Preset:
    """Gopher and FineWeb rules for any language; thresholds of unspaced scripts set on UDHR and web text."""

    def rule(
        group: str, reason: str, signal: str, op: Literal["<", ">"], threshold: float | None,
        **languages: float | None,
    ) -> Rule:  # fmt: skip
        return _rule(group, reason, signal, op, threshold, **languages)

    return Preset(
        name="web",
        summary="multilingual web text, rules by document language, text unchanged (default)",
        rules=(
            _EMPTY,
            rule("encoding", "broken_characters", "broken_share", ">", 0.03),
            rule("quality", "too_few_words", "n_words", "<", 50, th=80, lo=80, km=80, my=80, bo=80, ja=60),
            rule("quality", "too_many_words", "n_words", ">", 200_000),
            rule("quality", "short_words", "mean_word_chars", "<", 2.5, en=3, zh=1.1, ko=1.5, unspaced=1.1, bo=1.5),
            rule("quality", "long_words", "mean_word_chars", ">", 15, en=10, zh=3, ja=4, th=4, lo=4, km=5, my=6, ko=8),
            rule("quality", "hash_marks", "hash_word_ratio", ">", 0.1),
            rule("quality", "ellipses", "ellipsis_word_ratio", ">", 0.1),
            rule("quality", "bullet_lines", "bullet_line_share", ">", 0.9),
            rule("quality", "ellipsis_lines", "ellipsis_line_share", ">", 0.3),
            rule("quality", "few_alphabetic_words", "alpha_word_share", "<", 0.8),
            rule("quality", "special_characters", "special_share", ">", 0.3),
            rule("quality", "emoji", "emoji_share", ">", 0.1),
            rule("quality", "addresses", "url_word_ratio", ">", 0.1),
            rule("quality", "few_function_words", "stop_words_distinct", "<", 2),
            rule("repetition", "repeated_paragraphs", "dup_paragraph_share", ">", 0.3),
            rule("repetition", "repeated_paragraph_characters", "dup_paragraph_char_share", ">", 0.2),
            rule("repetition", "repeated_lines", "dup_line_share", ">", 0.3),
            rule("repetition", "repeated_line_characters", "dup_line_char_share", ">", 0.2),
            rule("repetition", "frequent_2_gram", "top_2_gram_char_share", ">", 0.20),
            rule("repetition", "frequent_3_gram", "top_3_gram_char_share", ">", 0.18),
            rule("repetition", "frequent_4_gram", "top_4_gram_char_share", ">", 0.16),
            *(
                rule(
                    "repetition",
                    f"repeated_{n}_grams",
                    f"dup_{n}_gram_char_share",
                    ">",
                    limit,
                    zh=limit + 0.05,
                    ja=limit + 0.15,
                    th=0.4,
                    lo=0.4,
                    km=0.4,
                    my=0.4,
                    bo=0.4,
                )
                for n, limit in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
            ),
            rule("lines", "few_sentence_lines", "terminal_line_share", "<", 0.12, th=None, lo=None, bo=None, km=0.05),
            rule("lines", "short_lines", "short_line_share", ">", 0.67, zh=None, ja=None, ko=0.85),
            rule("lines", "very_short_lines", "mean_line_chars", "<", 12, zh=8, ja=8, ko=8),
            rule("lines", "repeated_characters_in_lines", "dup_nonblank_char_share", ">", 0.1),
            rule("lines", "list_like", "newline_word_ratio", ">", 0.3),
            rule("lines", "boilerplate_lines", "boilerplate_line_share", ">", 0.3),
            rule("lines", "placeholder_text", "lorem_ipsum_lines", ">", 0),
        ),
    )


def _gopher() -> Preset:
    return Preset(
        name="gopher",
        summary="Gopher's quality and repetition rules (Rae et al. 2021, A1.1) over Unicode words",
        rules=(_EMPTY, *_gopher_quality(), *_gopher_repetition()),
        bullets="•-",
        stop_words=GOPHER_FORMS,
        language="en",
    )


GOPHER_FORMS = tuple(
    "/".join((word, word.capitalize(), word.upper()))
    for word in ("the", "be", "to", "of", "and", "that", "have", "with")
)


def _c4_original() -> Preset:
    return Preset(
        name="c4",
        summary="C4 as in TFDS: 5 words a line, 3 sentences a page (Raffel et al. 2020)",
        rules=_c4(3),
        words="spaces",
        line_filter=LineFilter(
            lines.EDIT_C4, _C4_ALL | lines.OPT_TERMINAL | lines.OPT_COUNT_AFTER, 5, end_marks='.?!"'
        ),
        language="en",
    )


def _c4_datatrove() -> Preset:
    return Preset(
        name="c4-datatrove",
        summary="C4 as datatrove 0.10.1 runs it by default: 3 words a line, 5 sentences a page, its verdicts",
        rules=_c4(5, prefix=""),
        words="spacy",
        quirks=True,
        line_filter=LineFilter(lines.EDIT_C4, _C4_ALL | lines.OPT_TERMINAL | lines.OPT_SPACY, 3),
        language="en",
    )


def _fineweb_chain() -> Preset:
    return Preset(
        name="fineweb",
        summary="FineWeb's chain: Gopher repetition, Gopher quality, C4 without the end-mark rule, FineWeb lines",
        rules=(_EMPTY, *_gopher_repetition(), *_gopher_quality(), *_c4(5), *_fineweb()),
        bullets="•-",
        line_filter=LineFilter(lines.EDIT_C4, _C4_ALL, 3),
        stop_words=GOPHER_FORMS,
        language="en",
    )


def _datatrove() -> Preset:
    return Preset(
        name="datatrove-0.10",
        summary="datatrove 0.10.1's FineWeb chain: its words, quirks, verdicts and reasons",
        rules=(
            _rule("gopher_repetition", "empty", "n_chars", "<", 1),
            *_gopher_repetition(prefix=""),
            *_gopher_quality(prefix="gopher_"),
            *_c4(5, prefix=""),
            *_fineweb(prefix=""),
        ),
        words="spacy",
        quirks=True,
        bullets="•-",
        line_filter=LineFilter(lines.EDIT_C4, _C4_ALL | lines.OPT_SPACY, 3),
        stop_words=("the", "be", "to", "of", "and", "that", "have", "with"),
        language="en",
    )


def _refinedweb() -> Preset:
    return Preset(
        name="refinedweb",
        summary="RefinedWeb: Gopher rules, then line-wise corrections (Penedo et al. 2023, G.2)",
        rules=(
            _EMPTY,
            *_gopher_repetition(),
            *_gopher_quality(),
            _rule("refinedweb_lines", "refinedweb_words_removed", "edited_words_removed_share", ">", 0.05),
        ),
        bullets="•-",
        line_filter=LineFilter(lines.EDIT_REFINEDWEB, 0, 2),
        stop_words=GOPHER_FORMS,
        language="en",
    )


def _dclm() -> Preset:
    return Preset(
        name="dclm",
        summary="DCLM-Baseline's heuristics: RefinedWeb line corrections first, then Gopher (Li et al. 2024, 4)",
        rules=(
            _EMPTY,
            _rule("refinedweb_lines", "dclm_words_removed", "edited_words_removed_share", ">", 0.05),
            *_gopher_repetition(prefix="dclm_"),
            *(
                rule
                if rule.reason != "dclm_enough_stop_words"
                else _rule("gopher_quality", "dclm_enough_stop_words", "stop_word_occurrences", "<", 2)
                for rule in _gopher_quality(prefix="dclm_")
            ),
        ),
        words="spaces",
        bullets="●•*-",
        line_filter=LineFilter(lines.EDIT_REFINEDWEB, 0, 2, first=True),
        stop_words=GOPHER_FORMS,
        language="en",
    )


def _dolma() -> Preset:
    group, prefix = "gopher_quality", "dolma_"
    return Preset(
        name="dolma",
        summary="Dolma's Gopher rules: white-space words, median word length, stop words by occurrence",
        rules=(
            _EMPTY,
            _rule(group, prefix + "short_doc", "n_words", "<", 50),
            _rule(group, prefix + "long_doc", "n_words", ">", 100_000),
            _rule(group, prefix + "below_median_word", "median_word_chars", "<", 3),
            _rule(group, prefix + "above_median_word", "median_word_chars", ">", 10),
            _rule(group, prefix + "too_many_hashes", "hash_word_ratio", ">", 0.1),
            _rule(group, prefix + "too_many_ellipsis", "ellipsis_word_ratio", ">", 0.1),
            _rule(group, prefix + "too_many_bullets", "bullet_line_share", ">", 0.9),
            _rule(group, prefix + "too_many_end_ellipsis", "ellipsis_line_share", ">", 0.3),
            _rule(group, prefix + "below_alpha_threshold", "alpha_word_share", "<", 0.8),
            _rule(group, prefix + "enough_stop_words", "stop_word_occurrences", "<", 2),
            _rule("gopher_repetition", prefix + "repeated_lines", "repeated_line_share", ">", 0.3),
            _rule("gopher_repetition", prefix + "repeated_line_chars", "repeated_line_char_share", ">", 0.3),
            *(
                rule
                for rule in _gopher_repetition(prefix=prefix)
                if "_gram" in rule.reason or "dup_para" in rule.reason
            ),
        ),
        words="spaces",
        bullets="*-",
        stop_words=("the", "be", "to", "of", "and", "that", "have", "with"),
        language="en",
    )


def _chinese_web() -> Preset:
    def rule(group: str, reason: str, signal: str, op: Literal["<", ">"], threshold: float) -> Rule:
        return _rule(group, reason, signal, op, threshold)

    return Preset(
        name="chinese-web",
        summary="stricter rules for Chinese web pages: dictionary words, page furniture, short lines",
        rules=(
            _EMPTY,
            rule("encoding", "broken_characters", "broken_share", ">", 0.01),
            rule("quality", "too_few_characters", "n_chars", "<", 100),
            rule("quality", "too_few_words", "n_words", "<", 50),
            rule("quality", "little_chinese", "han_share", "<", 0.35),
            rule("quality", "kana", "kana_share", ">", 0.05),
            rule("quality", "short_words", "mean_word_chars", "<", 1.15),
            rule("quality", "long_words", "mean_word_chars", ">", 3),
            rule("quality", "hash_marks", "hash_word_ratio", ">", 0.1),
            rule("quality", "ellipses", "ellipsis_word_ratio", ">", 0.1),
            rule("quality", "bullet_lines", "bullet_line_share", ">", 0.9),
            rule("quality", "ellipsis_lines", "ellipsis_line_share", ">", 0.3),
            rule("quality", "few_alphabetic_words", "alpha_word_share", "<", 0.735),
            rule("quality", "digits", "digit_share", ">", 0.2),
            rule("quality", "special_characters", "special_share", ">", 0.3),
            rule("quality", "emoji", "emoji_share", ">", 0.05),
            rule("quality", "few_function_words", "stop_words_distinct", "<", 3),
            rule("repetition", "repeated_paragraphs", "dup_paragraph_share", ">", 0.3),
            rule("repetition", "repeated_lines", "dup_line_share", ">", 0.287),
            rule("repetition", "repeated_line_characters", "dup_line_char_share", ">", 0.2),
            rule("repetition", "frequent_2_gram", "top_2_gram_char_share", ">", 0.20),
            rule("repetition", "frequent_3_gram", "top_3_gram_char_share", ">", 0.18),
            rule("repetition", "frequent_4_gram", "top_4_gram_char_share", ">", 0.16),
            *(
                rule("repetition", f"repeated_{n}_grams", f"dup_{n}_gram_char_share", ">", limit)
                for n, limit in ((5, 0.20), (6, 0.19), (7, 0.18), (8, 0.17), (9, 0.16), (10, 0.15))
            ),
            rule("lines", "few_sentence_lines", "terminal_line_share", "<", 0.12),
            rule("lines", "very_short_lines", "mean_line_chars", "<", 12),
            rule("lines", "list_like", "newline_word_ratio", ">", 0.178),
            rule("lines", "page_furniture", "boilerplate_line_share", ">", 0.15),
            rule("lines", "repeated_characters_in_lines", "dup_nonblank_char_share", ">", 0.1),
        ),
        language="zh",
    )


_PRESETS: dict[str, Callable[[], Preset]] = {
    "web": _web,
    "gopher": _gopher,
    "c4": _c4_original,
    "c4-datatrove": _c4_datatrove,
    "fineweb": _fineweb_chain,
    "datatrove-0.10": _datatrove,
    "refinedweb": _refinedweb,
    "dclm": _dclm,
    "dolma": _dolma,
    "chinese-web": _chinese_web,
}
PRESET_NAMES = tuple(_PRESETS)


@cache
def preset(name: str) -> Preset:
    """Return a preset by name.

    Raises:
        ConfigError: no such preset; names the nearest one.
    """
    if name not in _PRESETS:
        known = ", ".join(PRESET_NAMES)
        raise ConfigError(f"heuristics.preset: unknown preset {name!r}.{nearest(name, PRESET_NAMES)} Known: {known}")
    return _PRESETS[name]()


def markdown() -> str:
    """Return ``docs/presets.md``: every rule of every preset, as it is."""
    out = [
        "# Rules of the presets",
        "",
        "Made by `python -m gristmill.stages.heuristics.presets`. The first rule that rejects names the reason. What",
        "differs from the sources is in [heuristics.md](heuristics.md).",
    ]
    for name in PRESET_NAMES:
        this = preset(name)
        out += ["", f"## `{name}`", "", f"{this.summary[0].upper()}{this.summary[1:]}. Words: {this.words}.", ""]
        out += ["| filter | reason | rejects | other thresholds |", "|---|---|---|---|"]
        for rule in this.rules:
            other = ", ".join(f"{key} {'off' if v is None else f'{v:g}'}" for key, v in rule.languages.items())
            limit = "off" if rule.threshold is None else f"{rule.threshold:,g}"
            out.append(f"| {rule.group} | `{rule.reason}` | `{rule.signal}` {rule.op} {limit} | {other} |")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201
