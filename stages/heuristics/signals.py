"""What each signal is: kind, unit, definition and source; the table in ``docs/signals.md`` is made from this."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa


class Signal(NamedTuple):
    """One column of the signal table."""

    name: str
    unit: str
    meaning: str
    source: str

    @property
    def type(self) -> pa.DataType:
        """int64 for counts, float64 for shares and means."""
        return pa.int64() if self.unit.startswith("count") or self.unit == "id" else pa.float64()


def _signal(name: str, unit: str, meaning: str, source: str = "") -> Signal:
    return Signal(name, unit, meaning, source)


SIGNALS: tuple[Signal, ...] = (
    _signal("n_chars", "count of characters", "code points of the text, line breaks included"),
    _signal("whitespace_share", "of characters", "white space, line breaks included"),
    _signal("alpha_share", "of characters", "letters (categories L*)"),
    _signal("digit_share", "of characters", "decimal digits of any script (Nd)"),
    _signal("upper_share", "of letters", "upper-case and title-case letters", "RefinedWeb"),
    _signal("punctuation_share", "of characters", "punctuation (P*)"),
    _signal("symbol_share", "of characters", "symbols (S*) without emoji"),
    _signal("special_share", "of characters", "neither letter, mark, digit nor white space", "BLOOM (ROOTS)"),
    _signal("broken_share", "of characters", "U+FFFD, control, private-use and unassigned characters"),
    _signal("emoji_share", "of characters", "pictographs (Extended_Pictographic above U+00FF) and flags"),
    _signal("mark_share", "of characters", "combining marks (M*)"),
    _signal("main_script", "id", "script of most letters: index into gristmill's SCRIPT_NAMES, 0 without letters"),
    _signal("main_script_share", "of letters and marks", "share of the main script"),
    _signal("han_share", "of characters", "Han letters"),
    _signal("kana_share", "of characters", "hiragana and katakana"),
    _signal("curly_bracket_share", "of characters", "{ and }"),
    _signal("n_tokens", "count of tokens", "words and single punctuation marks, symbols and emoji"),
    _signal("n_words", "count of words", "tokens with a letter or number (datatrove: not punctuation only)", "Gopher"),
    _signal("n_space_words", "count of words", "pieces between white space"),
    _signal("mean_word_chars", "characters", "mean length of words", "Gopher"),
    _signal("median_word_chars", "characters", "median length of words, at most 256", "Dolma"),
    _signal("longest_word_chars", "count of characters", "longest word"),
    _signal("alpha_word_share", "of words", "with at least one letter (datatrove: of tokens)", "Gopher"),
    _signal("numeric_word_share", "of words", "with a digit and no letter"),
    _signal("capitals_word_share", "of words", "of two or more characters, upper-case without lower-case letter"),
    _signal("unique_word_share", "of words", "distinct words"),
    _signal("word_entropy_bits", "bits", "entropy of the words' distribution", "RedPajama"),
    _signal(
        "stop_words_distinct", "count of words", "distinct function words of the language; null: no list", "Gopher"
    ),
    _signal("stop_word_occurrences", "count of words", "occurrences of function words; null: no list", "Dolma, DCLM"),
    _signal("stop_word_share", "of words", "occurrences of function words; null: no list", "BLOOM (ROOTS)"),
    _signal("hash_word_ratio", "per word", "# characters", "Gopher"),
    _signal("ellipsis_word_ratio", "per word", "... and U+2026", "Gopher"),
    _signal("url_word_ratio", "per word", "http://, https:// and www."),
    _signal("n_lines", "count of lines", "lines that are not blank"),
    _signal("blank_line_share", "of all lines", "blank lines"),
    _signal("mean_line_chars", "characters", "mean length of lines without surrounding white space", "BLOOM (ROOTS)"),
    _signal("longest_line_chars", "count of characters", "longest line"),
    _signal("bullet_line_share", "of lines", "that begin with a bullet of the preset", "Gopher"),
    _signal("ellipsis_line_share", "of lines", "that end with ... or U+2026", "Gopher"),
    _signal(
        "terminal_line_share", "of lines", "that end with a sentence-final mark or closers after it (edited text)",
        "FineWeb"
    ),
    _signal("short_line_share", "of lines", "of at most 30 characters (edited text)", "FineWeb"),
    _signal("newline_word_ratio", "per word", "line breaks between lines (edited text)", "FineWeb"),
    _signal("dup_line_share", "of lines", "that occurred before", "Gopher"),
    _signal("dup_line_char_share", "of characters", "in lines that occurred before", "Gopher"),
    _signal(
        "dup_nonblank_char_share", "of characters without breaks", "in lines that occurred before (edited text)",
        "FineWeb"
    ),
    _signal("repeated_line_share", "of lines", "that occur more than once, all copies", "Dolma"),
    _signal("repeated_line_char_share", "of characters", "in lines that occur more than once, every copy", "Dolma"),
    _signal("n_paragraphs", "count of paragraphs", "runs of lines between blank lines"),
    _signal("dup_paragraph_share", "of paragraphs", "that occurred before", "Gopher"),
    _signal("dup_paragraph_char_share", "of characters", "in paragraphs that occurred before", "Gopher"),
    _signal("n_sentences", "count of sentences", "ends at sentence-final marks, and line ends"),
    _signal("one_word_line_share", "of lines", "of one white-space word", "RefinedWeb"),
    _signal("upper_line_share", "of lines", "more than half upper-case characters", "RefinedWeb"),
    _signal("numeric_line_share", "of lines", "of digits and punctuation only", "RefinedWeb"),
    _signal("counter_line_share", "of lines", "such as '3 likes'", "RefinedWeb"),
    _signal("javascript_lines", "count of lines", "that contain 'javascript'", "C4"),
    _signal("policy_lines", "count of lines", "with a phrase of a cookie or privacy notice", "C4"),
    _signal("lorem_ipsum_lines", "count of lines", "with 'lorem ipsum'", "C4"),
    _signal(
        "boilerplate_line_share", "of lines", "page furniture in nine languages, calls to act on short lines",
        "RefinedWeb"
    ),
    *(
        _signal(
            f"top_{n}_gram_char_share", "of characters", f"in the most frequent {n}-gram of words, all copies", "Gopher"
        )
        for n in (2, 3, 4)
    ),
    *(
        _signal(f"dup_{n}_gram_char_share", "of characters", f"in {n}-grams of words that occurred before", "Gopher")
        for n in range(5, 11)
    ),
    _signal("edited_sentences", "count of sentences", "in the lines that the line filter keeps", "C4"),
    _signal(
        "edited_lorem_ipsum", "count (0 or 1)", "the first line that condemns the document has 'lorem ipsum'", "C4"
    ),
    _signal("edited_curly_bracket", "count (0 or 1)", "the first line that condemns the document has a {", "C4"),
    _signal("edited_lines", "count of lines", "not blank, that the line filter keeps"),
    _signal("edited_lines_kept_share", "of lines", "that the line filter keeps"),
    _signal("edited_words_removed_share", "of white-space words", "that the line filter removes", "RefinedWeb"),
)  # fmt: skip

SIGNAL_INDEX = {signal.name: index for index, signal in enumerate(SIGNALS)}


def markdown() -> str:
    """Return ``docs/signals.md``."""
    rows = [
        "# Signals of the heuristics stage",
        "",
        "Made by `python -m gristmill.stages.heuristics.signals`. Each is a column with the prefix `h_`.",
        "",
        "| signal | type | unit | meaning | source |",
        "|---|---|---|---|---|",
        *(f"| `{s.name}` | {s.type} | {s.unit} | {s.meaning} | {s.source} |" for s in SIGNALS),
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201
