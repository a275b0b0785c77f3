"""One pass over a document's characters and lines: counts, line signals, and the line filters that edit the text.

Letters, digits and spaces of ASCII are counted eight bytes at a time, other characters one by one. At its end a line
is hashed and searched for phrases while it is in the processor's first cache. O(bytes) time; the only
memory is the table of line hashes, which remembers at most 70 % of its slots (2.9 million distinct lines at the
largest); later new lines count as unique.

Two conventions. Plain: lines end at any break that ``str.splitlines`` knows (CR LF is one), are compared without
surrounding white space, and blank ones are not lines. `quirks` (datatrove 0.10): bullets and ellipses over
``splitlines`` with blank lines, duplicates over runs of LF with nothing stripped, line rules over LF lines.

Legend: ``data_B`` uint8 UTF-8; ``out_SD`` float64 (signal, document); ``removed_RD`` int64 bytes; ``key_K`` uint64
and ``state_K`` uint8 hash table; ``count_16`` int64 characters by class; ``script_256`` int64 non-ASCII characters
by script; ``edited_B`` uint8 receives the edited text.
"""

# ruff: noqa: N815 (array names carry shapes; kernels are written as they compile)

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.stages.kernels import heuristics_layout as k
from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels.bits import (
    EIGHT,
    H80,
    L7F,
    ONE,
    TWO,
    X20,
    ZERO,
    digits_of,
    inner,
    leading,
    letters_of,
    load8,
    ones,
    read_only,
    span_hash,
    trailing,
)
from gristmill.stages.kernels.heuristics_bytes import (
    LONG_WORD_CHARS,
    PARAGRAPH,
    characters,
    clear,
    copy_line,
    count_words,
    count_words_spaces,
    ends_with_ellipsis,
    find_phrases,
    has_long_word,
    is_url,
    last_character,
    line_is_terminal,
    quirk_paragraphs,
    remember,
    sentence_ends,
    table_mask,
)
from gristmill.stages.kernels.words_spacy import spacy_sentences

EDIT_NONE, EDIT_C4, EDIT_REFINEDWEB = 0, 1, 2
# Switches of the C4 filter.
OPT_TERMINAL, OPT_CITATIONS, OPT_LOREM, OPT_JAVASCRIPT, OPT_CURLY, OPT_POLICY, OPT_COUNT_AFTER, OPT_SPACY = (
    1, 2, 4, 8, 16, 32, 64, 128,
)  # fmt: skip

# What the line pass hands to the rest, beside the signals.
I_N_CHARS, I_NEWLINES, I_HASHES, I_ELLIPSES, I_URLS, I_EDITED_BYTES, I_CHANGED, I_N_REMOVED = range(8)
_FIRST = np.uint64(0x80)
MAX_REMOVED = 1 << 16
"""Removed pieces whose words are counted; later ones of a document keep their words in ``newline_word_ratio``."""


class LineTables(NamedTuple):
    """Tables that the line pass takes as one argument."""

    class_U: npt.NDArray[np.uint8]
    marks_U: npt.NDArray[np.uint8]
    script_U: npt.NDArray[np.uint8]
    gram_G: npt.NDArray[np.int16]
    place_E3: npt.NDArray[np.int32]
    phrase_PW: npt.NDArray[np.uint8]
    fact_P2: npt.NDArray[np.int32]
    word_class_U: npt.NDArray[np.uint8]
    flags_U: npt.NDArray[np.uint8]


@inner
def measure_lines(
    data_B: Any, start: Any, end: Any, d: Any, quirks: Any, t: Any, key_K: Any, state_K: Any,
    count_16: Any, script_256: Any, out_SD: Any, info_I: Any,
    x: Any, pieces_3xP: Any, edit: Any, options: Any, min_line_words: Any,
    edited_B: Any, edited_at: Any, removed_RD: Any, piece_2xM: Any,
) -> None:  # fmt: skip
    """Fill the character, line and line-filter signals of document `d` and write its edited text.

    The edited text starts at ``edited_B[edited_at]``; ``info_I[I_EDITED_BYTES]`` is its length. Without quirks the
    line signals of FineWeb are those of the lines that C4 keeps, and ``piece_2xM`` receives the bounds of the dropped
    ones, so that the edited text need not be read again.
    """
    marks_U = t.marks_U
    class_U = t.class_U
    script_U = t.script_U
    # The edited text as the helpers take it, so that they are compiled once.
    view_B = read_only(edited_B)
    for j in range(16):
        count_16[j] = 0
    for j in range(256):
        script_256[j] = 0
    mask_K = table_mask(data_B, start, end, len(key_K))
    clear(state_K, mask_K + 1)
    room = (mask_K + 1) * 7 // 10

    n_chars = n_breaks = n_lf = ellipses = urls = sentences = 0
    segments = nonblank = rule_lines = rule_nonblank = 0
    bullets = ellipsis_lines = terminal = short = longest = nonblank_chars = 0
    copies = copied_chars = nonblank_copied_chars = repeated = repeated_chars = 0
    paragraphs = paragraph_copies = paragraph_copied_chars = paragraph_chars = 0
    one_word = upper_lines = numeric_lines = counters = javascript = policy = lorem = boilerplate = space_words = 0
    edited_sentences = kept_lines = removed_words = kept_chars = 0
    condemned = n_removed = 0
    filtered = edit == EDIT_C4 and not quirks
    changed = False
    at = edited_at
    paragraph_h = np.uint64(0)
    line_chars = 0
    line_from = start
    line_seen = False
    dots_until = start
    i = start
    while i < end:
        segment_from = i
        first = np.int64(-1)
        last = i
        mask = 0
        words = 0
        before = ZERO  # the top bit of a byte, if the last character is not white space
        n_letters = n_upper = n_digits = n_spaces = 0
        upper0, digit0 = count_16[k.C_UPPER], count_16[k.C_DIGIT] + count_16[k.C_NUMBER]
        punctuation0 = count_16[k.C_PUNCTUATION] + count_16[k.C_SYMBOL]
        segment_chars = 0
        line_sentences = 0
        sentence_done = i
        break_at = end
        while i < end:
            if i + 8 <= end:
                # The letters, digits and spaces from here on, at most eight.
                chunk = load8(data_B, i)
                letters = letters_of(chunk) & ~chunk
                digits = digits_of(chunk) & ~chunk
                dark = (((chunk & L7F) ^ X20) + L7F) | chunk
                rest = dark & ~(letters | digits) & H80
                inside = H80 & ((rest & (ZERO - rest)) - ONE)
                letters &= inside
                dark &= inside
                m = trailing(rest) >> 3
                n_letters += ones(letters)
                n_upper += ones(letters & ~(chunk << TWO))
                n_digits += ones(digits & inside)
                n_spaces += m - ones(dark)
                words += ones(dark & ~((dark << EIGHT) | before))
                if dark != ZERO:
                    if first < 0:
                        first = i + (trailing(dark) >> 3)
                    last = i + 8 - (leading(dark) >> 3)
                segment_chars += m
                i += m
                if m > 0:
                    before = (dark >> np.uint64(8 * (m - 1))) & _FIRST
                if m == 8:
                    continue
            while True:
                b = data_B[i]
                if b < 0x80:
                    cp = np.int32(b)
                    n = 1
                    if b == 47:
                        urls += is_url(data_B, segment_from, i)
                    elif b == 91:
                        mask |= k.P_BRACKET
                    elif b == 123:
                        mask |= k.P_CURLY
                else:
                    cp, n = u.decode(data_B, i)
                bits = marks_U[cp]
                if bits & k.M_BREAK:
                    break_at = i
                    break
                c = class_U[cp]
                count_16[c] += 1
                segment_chars += 1
                if b >= 0x80:
                    if c <= k.C_MARK:
                        script_256[script_U[cp]] += 1
                    ellipses += cp == 0x2026
                if bits & k.M_SPACE:
                    before = ZERO
                else:
                    words += before == ZERO
                    before = _FIRST
                    last = i + n
                    if first < 0:
                        first = i
                    if bits & k.M_SENTENCE:
                        if b == 46:
                            if i >= dots_until and i + 2 < end and data_B[i + 1] == 46 and data_B[i + 2] == 46:
                                ellipses += 1
                                dots_until = i + 3
                            urls += is_url(data_B, segment_from, i)
                        done = sentence_ends(data_B, i, n, cp, start, end, marks_U)
                        if done:
                            line_sentences += 1
                            sentence_done = done
                i += n
                if i >= end or data_B[i] < 0x80:
                    break
            if break_at < end:
                break
        count_16[k.C_LOWER] += n_letters - n_upper
        count_16[k.C_UPPER] += n_upper
        count_16[k.C_DIGIT] += n_digits
        count_16[k.C_SPACE] += n_spaces
        n_chars += segment_chars
        line_chars += segment_chars

        # The break: one LF, or CR LF, or another.
        n_break_chars = 0
        is_lf = break_at == end
        if break_at < end:
            is_lf = data_B[break_at] == 10
            n_break_chars = 1
            i = break_at + n
            if data_B[break_at] == 13 and i < end and data_B[i] == 10:
                i += 1
                n_break_chars = 2
                is_lf = True
            n_lf += is_lf
            n_chars += n_break_chars
            n_breaks += n_break_chars
            changed |= data_B[break_at] != 10

        # Facts of the segment (a line of str.splitlines).
        segments += 1
        blank = first < 0
        n_trim = 0
        if not blank:
            line_seen = True
            mask |= find_phrases(data_B, segment_from, last, t.gram_G, t.place_E3, t.phrase_PW, t.fact_P2)
            nonblank += 1
            space_words += words
            n_trim = segment_chars
            if last < break_at or first > segment_from:
                n_trim -= count_words_spaces(data_B, segment_from, first, last, break_at)
            nonblank_chars += n_trim
            longest = max(longest, n_trim)
            if sentence_done < last:
                line_sentences += 1
            sentences += line_sentences
            cp, n = u.decode(data_B, first)
            bullets += marks_U[cp] & k.M_BULLET != 0
            ellipsis_lines += ends_with_ellipsis(data_B, first, last)
            upper = count_16[k.C_UPPER] - upper0
            digits = count_16[k.C_DIGIT] + count_16[k.C_NUMBER] - digit0
            points = count_16[k.C_PUNCTUATION] + count_16[k.C_SYMBOL] - punctuation0
            is_upper = 2 * upper > n_trim
            is_numeric = digits > 0 and digits + points + words - 1 >= n_trim
            is_counter = mask & k.P_COUNTER != 0 and words <= 3 and digits > 0
            is_boilerplate = mask & k.P_PAGE != 0 or (
                words <= 10 and mask & (k.P_SIGN_IN | k.P_READ_MORE | k.P_CART) != 0
            )
            one_word += words < 2
            upper_lines += is_upper
            numeric_lines += is_numeric
            counters += is_counter
            boilerplate += is_boilerplate
            javascript += mask & k.P_JAVASCRIPT != 0
            policy += mask & k.P_POLICY != 0
            lorem += mask & k.P_LOREM != 0

        # The line filters.
        dropped = False
        cited = False
        cited_from = cited_to = at
        if edit == EDIT_REFINEDWEB:
            why = -1
            if not blank:
                if is_upper:
                    why = k.R_UPPER
                elif is_numeric:
                    why = k.R_NUMERIC
                elif is_counter:
                    why = k.R_COUNTER
                elif words < 2:
                    why = k.R_FEW_WORDS
                elif is_boilerplate:
                    why = k.R_BOILERPLATE
            if why < 0:
                kept_lines += not blank
                at = copy_line(data_B, segment_from, i, class_U, edited_B, at, False)
                edited_sentences += line_sentences
            else:
                removed_RD[why, d] += i - segment_from
                removed_words += words
        elif edit == EDIT_C4 and not blank:
            why = -1
            begin = at
            if kept_lines:
                edited_B[at] = 10
                begin += 1
            stop = begin
            if segment_chars > LONG_WORD_CHARS and has_long_word(data_B, first, last, marks_U):
                why = k.R_LONG_WORD
            else:
                citations = mask & k.P_BRACKET != 0 and options & OPT_CITATIONS != 0
                stop = copy_line(data_B, first, last, class_U, edited_B, begin, citations)
                cited = stop - begin != last - first
                ended = stop > begin
                if ended and options & OPT_TERMINAL:
                    cp, n = u.decode(view_B, last_character(view_B, begin, stop))
                    ended = marks_U[cp] & k.M_END != 0 and not (
                        data_B[last - 1] == 46 and ends_with_ellipsis(view_B, begin, stop)
                    )
                n_words = words
                if cited and options & OPT_COUNT_AFTER:
                    n_words = count_words(view_B, begin, stop, marks_U)
                if options & OPT_TERMINAL and not ended:
                    why = k.R_NO_TERMINAL
                elif n_words < min_line_words:
                    why = k.R_FEW_WORDS
                elif mask & k.P_LOREM and options & OPT_LOREM:
                    condemned = 1 if condemned == 0 else condemned
                elif mask & k.P_JAVASCRIPT and options & OPT_JAVASCRIPT:
                    why = k.R_JAVASCRIPT
                elif mask & k.P_CURLY and options & OPT_CURLY:
                    condemned = 2 if condemned == 0 else condemned
                elif mask & k.P_POLICY and options & OPT_POLICY:
                    why = k.R_POLICY
            if why < 0:
                kept_lines += 1
                cited = stop - begin != last - first
                cited_from, cited_to = begin, stop
                if options & OPT_SPACY:
                    line_sentences = spacy_sentences(view_B, begin, stop, x, pieces_3xP)
                edited_sentences += line_sentences
                removed_RD[k.R_CITATION, d] += (last - first) - (stop - begin)
                at = stop
            else:
                removed_RD[why, d] += last - first
                removed_words += words
                dropped = True
                if n_removed < piece_2xM.shape[1]:
                    piece_2xM[0, n_removed] = first
                    piece_2xM[1, n_removed] = last
                    n_removed += 1

        # The line of the rules: the same segment, or in quirks mode everything up to the LF.
        line_to = break_at
        if quirks and break_at < end:
            is_lf = data_B[i - 1] == 10
            line_chars += not is_lf or n_break_chars == 2
            if not is_lf and i < end:
                continue
            line_to = i - 1 if is_lf else i
        chars = line_chars if quirks else n_trim
        counted = line_chars > 0 if quirks else line_seen
        if counted:
            key = span_hash(data_B, line_from, line_to) if quirks else span_hash(data_B, first, last)
            rule_lines += 1
            seen, used = remember(key_K, state_K, mask_K, room, key)
            room -= used
            if seen:
                copies += 1
                copied_chars += chars
                repeated += 3 - seen
                repeated_chars += (3 - seen) * chars
                if line_seen and not dropped:
                    nonblank_copied_chars += chars
            if line_seen and not dropped:
                kept_chars += chars
                rule_nonblank += 1
                stop = line_to if quirks else last
                if filtered and cited:
                    chars = characters(view_B, cited_from, cited_to)
                    terminal += line_is_terminal(view_B, cited_from, cited_to, marks_U, True)
                else:
                    terminal += line_is_terminal(data_B, line_from, stop, marks_U, not quirks)
                short += chars <= 30
            if not quirks:
                paragraph_h = paragraph_h * PARAGRAPH + key
                paragraph_chars += chars + (1 if paragraph_chars else 0)
        if not quirks and paragraph_chars and (not counted or i >= end):
            seen, used = remember(key_K, state_K, mask_K, room, paragraph_h ^ PARAGRAPH)
            room -= used
            paragraphs += 1
            if seen:
                paragraph_copies += 1
                paragraph_copied_chars += paragraph_chars
            paragraph_h = np.uint64(0)
            paragraph_chars = 0
        line_chars = 0
        line_seen = False
        line_from = i

    if quirks:
        # What a split at runs of LF adds: an empty line before a leading and after a trailing run.
        empties = 0
        if end > start:
            empties = (data_B[start] == 10) + (data_B[end - 1] == 10)
        rule_lines += empties
        copies += empties == 2
        paragraphs, paragraph_copies, paragraph_copied_chars = quirk_paragraphs(
            data_B, start, end, marks_U, key_K, state_K, mask_K
        )
    if edit == EDIT_C4:
        while at > edited_at:
            j = last_character(view_B, edited_at, at)
            cp, n = u.decode(view_B, j)
            if not marks_U[cp] & k.M_SPACE:
                break
            at = j
    elif edit == EDIT_NONE:
        at = edited_at + end - start
    info_I[I_EDITED_BYTES] = at - edited_at
    info_I[I_CHANGED] = edit != EDIT_NONE and ((changed and edit == EDIT_C4) or at - edited_at != end - start)
    if edit == EDIT_C4:
        rest = (end - start) - (at - edited_at)
        for r in range(removed_RD.shape[0]):
            if r != k.R_WHITESPACE:
                rest -= removed_RD[r, d]
        removed_RD[k.R_WHITESPACE, d] = rest

    info_I[I_N_CHARS] = n_chars
    info_I[I_NEWLINES] = n_lf if quirks else max((kept_lines if filtered else nonblank) - 1, 0)
    info_I[I_HASHES] = count_16[k.C_HASH]
    info_I[I_ELLIPSES] = ellipses
    info_I[I_URLS] = urls
    info_I[I_N_REMOVED] = n_removed

    def_lines = max(rule_lines, 1)
    text_chars = max(n_chars, 1)
    letters = count_16[k.C_LOWER] + count_16[k.C_UPPER] + count_16[k.C_LETTER]
    spaces = count_16[k.C_SPACE] + n_breaks
    out_SD[k.S_N_CHARS, d] = n_chars
    out_SD[k.S_WHITESPACE, d] = spaces / text_chars
    out_SD[k.S_ALPHA, d] = letters / text_chars
    out_SD[k.S_DIGIT, d] = count_16[k.C_DIGIT] / text_chars
    out_SD[k.S_UPPER, d] = count_16[k.C_UPPER] / max(letters, 1)
    punctuation = count_16[k.C_PUNCTUATION] + count_16[k.C_HASH] + count_16[k.C_CURLY]
    out_SD[k.S_PUNCTUATION, d] = punctuation / text_chars
    out_SD[k.S_SYMBOL, d] = count_16[k.C_SYMBOL] / text_chars
    plain = letters + count_16[k.C_MARK] + count_16[k.C_DIGIT] + spaces
    out_SD[k.S_SPECIAL, d] = (n_chars - plain) / text_chars
    out_SD[k.S_BROKEN, d] = count_16[k.C_BROKEN] / text_chars
    out_SD[k.S_EMOJI, d] = count_16[k.C_EMOJI] / text_chars
    out_SD[k.S_MARK, d] = count_16[k.C_MARK] / text_chars
    out_SD[k.S_CURLY, d] = count_16[k.C_CURLY] / text_chars

    # Letters and marks of ASCII are Latin, and are not in the histogram.
    ascii_latin = letters + count_16[k.C_MARK]
    for script in range(256):
        ascii_latin -= script_256[script]
    script_256[u.SCRIPT_LATIN] += ascii_latin
    main = u.SCRIPT_UNKNOWN
    total = 0
    for script in range(u.SCRIPT_LATIN, 256):
        total += script_256[script]
        if script_256[script] > script_256[main] or (main == 0 and script_256[script] > 0):
            main = script
    out_SD[k.S_MAIN_SCRIPT, d] = main
    out_SD[k.S_MAIN_SCRIPT_SHARE, d] = script_256[main] / max(total, 1) if main else 0.0
    out_SD[k.S_HAN, d] = script_256[u.SCRIPT_HAN] / text_chars
    out_SD[k.S_KANA, d] = (script_256[u.SCRIPT_HIRAGANA] + script_256[u.SCRIPT_KATAKANA]) / text_chars

    bullet_lines = max(segments if quirks else nonblank, 1)
    lines = max(nonblank, 1)
    fineweb_lines = max(rule_nonblank, 1)
    out_SD[k.S_N_SPACE_WORDS, d] = space_words
    out_SD[k.S_N_LINES, d] = nonblank
    out_SD[k.S_BLANK_LINES, d] = (segments - nonblank) / max(segments, 1)
    out_SD[k.S_MEAN_LINE, d] = nonblank_chars / lines
    out_SD[k.S_LONGEST_LINE, d] = longest
    out_SD[k.S_BULLET, d] = bullets / bullet_lines
    out_SD[k.S_ELLIPSIS_LINES, d] = ellipsis_lines / bullet_lines
    out_SD[k.S_TERMINAL, d] = terminal / fineweb_lines
    out_SD[k.S_SHORT, d] = short / fineweb_lines
    out_SD[k.S_DUP_LINES, d] = copies / def_lines
    out_SD[k.S_DUP_LINE_CHARS, d] = copied_chars / text_chars
    without_newlines = n_chars - n_lf if quirks else kept_chars
    out_SD[k.S_DUP_NONBLANK_CHARS, d] = nonblank_copied_chars / max(without_newlines, 1)
    out_SD[k.S_REPEATED_LINES, d] = repeated / def_lines
    out_SD[k.S_REPEATED_LINE_CHARS, d] = repeated_chars / text_chars
    out_SD[k.S_N_PARAGRAPHS, d] = paragraphs
    out_SD[k.S_DUP_PARAGRAPHS, d] = paragraph_copies / max(paragraphs, 1)
    out_SD[k.S_DUP_PARAGRAPH_CHARS, d] = paragraph_copied_chars / text_chars
    out_SD[k.S_N_SENTENCES, d] = sentences
    out_SD[k.S_ONE_WORD_LINES, d] = one_word / lines
    out_SD[k.S_UPPER_LINES, d] = upper_lines / lines
    out_SD[k.S_NUMERIC_LINES, d] = numeric_lines / lines
    out_SD[k.S_COUNTER_LINES, d] = counters / lines
    out_SD[k.S_JAVASCRIPT, d] = javascript
    out_SD[k.S_POLICY, d] = policy
    out_SD[k.S_LOREM, d] = lorem
    out_SD[k.S_BOILERPLATE, d] = boilerplate / lines
    out_SD[k.S_EDITED_SENTENCES, d] = edited_sentences if edit else sentences
    out_SD[k.S_EDITED_LOREM, d] = condemned == 1
    out_SD[k.S_EDITED_CURLY, d] = condemned == 2
    out_SD[k.S_EDITED_LINES, d] = kept_lines if edit else nonblank
    out_SD[k.S_EDITED_LINES_KEPT, d] = kept_lines / lines if edit else 1.0
    out_SD[k.S_EDITED_WORDS_REMOVED, d] = removed_words / max(space_words, 1)
