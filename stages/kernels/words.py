"""Words of a document, in any script, without allocating: the segmenters behind the heuristic signals.

Three ways to cut, chosen by the preset: `segment_unicode` (UAX #29 words; dictionary words for Chinese; orthographic
units for Japanese, Thai, Lao, Khmer and Burmese; Korean by spaces), `segment_spaces` (``str.split``) and
`words_spacy.segment_spacy` (what spaCy's English tokenizer does).

A word is handed to `emit`, which counts it and stores two numbers: the hash of its bytes (`bits.span_hash`) and its
length in characters. The text of a word is never copied. Words of ASCII are read, hashed and classified eight bytes
at a time. Words beyond the capacity of the store are counted but not stored. One pass, O(bytes).

Legend: ``data_B`` uint8 valid UTF-8; ``word_class_U`` and ``flags_U`` uint8 by code point (`word_tables`);
``acc_A`` int64 accumulators (``A_*``); ``lengths_257`` int64 histogram of word lengths (256: longer);
``t_hash_T`` uint64 and ``t_chars_T`` int32: the stored words.
"""

# ruff: noqa: N815, PLR1730 (array names carry shapes; kernels are written as they compile)

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels.bits import (
    EIGHT,
    H80,
    SEED,
    TWO,
    ZERO,
    digits_of,
    first_bytes,
    fold,
    inner,
    letters_of,
    load1,
    load8,
    span_hash,
    trailing,
)
from gristmill.stages.kernels.words_chinese import segment_han

BASE = np.uint64(0x9E3779B97F4A7C15 | 1)
"""Base of the polynomial hash of spaCy's special cases, odd, modulo 2**64."""

_SIX, _MORE, _LEAD3, _LEAD4, _BYTE = (np.uint64(n) for n in (0x3F, 0x80, 0xE0, 0xF0, 0xFF))
_SIX_BITS, _TWELVE, _SIXTEEN, _EIGHTEEN, _WIDEST3 = (np.uint64(n) for n in (6, 12, 16, 18, 0xFFFF))

FLAG_ALPHA, FLAG_DIGIT, FLAG_UPPER, FLAG_LOWER = 1, 2, 4, 8
FLAG_WORD, FLAG_NOT_PUNCTUATION, FLAG_SPACE, FLAG_SENTENCE_MARK = 16, 32, 64, 128

A_TOKENS, A_WORDS, A_WORD_CHARS, A_ALPHA, A_NUMERIC, A_CAPITALS, A_LONGEST, A_STORED = 0, 1, 2, 3, 4, 5, 6, 7
N_ACCUMULATORS = 8

# Word classes: the Word_Break values 0..18, then the scripts that are written without spaces.
WC_HAN, WC_HIRAGANA, WC_THAI, WC_KHMER, WC_MYANMAR = 19, 20, 21, 22, 23
N_CLASSES = 24
HAN_WORD = 255

BREAK, JOIN, SKIP, MIDDLE_LETTER, MIDDLE_NUMBER, MIDDLE_EITHER, HEBREW_QUOTE, HEBREW_DOUBLE = 0, 1, 2, 3, 4, 5, 6, 7

HAN_DICTIONARY, HAN_JAPANESE, HAN_BY_KANA = 0, 1, 2
"""How Han characters are cut: dictionary words, pairs of kanji, or Japanese where the document has kana."""

# Marks beside the sentence-final ones that do not make a token a word, and the two sets that depend on them.
_EXTRA_PUNCTUATION = "«´»។៕៖៙៚–—’“”„∶━►、〈〉《》「」【】％（），１：；～…"
_ASCII_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_KHMER_MARKS = "។៕៖៙៚"


class WordTables(NamedTuple):
    """Tables that the segmenters take as arguments."""

    word_class_U: npt.NDArray[np.uint8]
    flags_U: npt.NDArray[np.uint8]
    join_CC: npt.NDArray[np.uint8]


def terminal_marks() -> npt.NDArray[np.bool_]:
    """Return which code points end a sentence or line: Sentence_Terminal and the Khmer marks."""
    table = u.SENTENCE_TERMINAL.copy()
    table[[ord(mark) for mark in _KHMER_MARKS]] = True
    return table


@cache
def word_tables() -> WordTables:
    """Return the word tables, built once a process (about 15 ms)."""
    word_class = u.WORD_BREAK.copy()
    plain = (u.WORD_BREAK == u.WB_OTHER) | (u.WORD_BREAK == u.WB_EXTEND)
    letters = (u.CATEGORY <= u.ME) | (u.CATEGORY == u.NL)
    for script, name in (
        (u.SCRIPT_HAN, WC_HAN),
        (u.SCRIPT_HIRAGANA, WC_HIRAGANA),
        (u.SCRIPT_THAI, WC_THAI),
        (u.SCRIPT_LAO, WC_THAI),
        (u.SCRIPT_KHMER, WC_KHMER),
        (u.SCRIPT_MYANMAR, WC_MYANMAR),
    ):
        word_class[np.equal(u.SCRIPT, script) & plain & letters] = name
    category = u.CATEGORY
    punctuation = terminal_marks()
    punctuation[[ord(c) for c in _EXTRA_PUNCTUATION + _ASCII_PUNCTUATION]] = True
    punctuation[:32] = True
    punctuation[[9, 10]] = False
    punctuation[127:160] = True
    flags = np.zeros(u.N_CODE_POINTS, np.uint8)
    flags[u.IS_ALPHA] |= FLAG_ALPHA
    flags[category == u.ND] |= FLAG_DIGIT
    flags[(category == u.LU) | (category == u.LT)] |= FLAG_UPPER
    flags[category == u.LL] |= FLAG_LOWER
    flags[(category <= u.LO) | ((category >= u.ND) & (category <= u.NO))] |= FLAG_WORD
    flags[~punctuation] |= FLAG_NOT_PUNCTUATION
    flags[u.IS_SPACE] |= FLAG_SPACE
    flags[u.SENTENCE_TERMINAL] |= FLAG_SENTENCE_MARK
    for table in (word_class, flags):
        table.setflags(write=False)
    return WordTables(word_class, flags, _joins())


def _joins() -> npt.NDArray[np.uint8]:
    """Return what to do between two word classes (UAX #29 WB5 to WB13)."""
    table = np.zeros((N_CLASSES, N_CLASSES), np.uint8)
    letters = (u.WB_ALETTER, u.WB_HEBREW_LETTER)
    for a in (*letters, u.WB_NUMERIC):
        for b in (*letters, u.WB_NUMERIC, u.WB_EXTENDNUMLET):
            table[a, b] = JOIN
            table[u.WB_EXTENDNUMLET, b] = JOIN
    for a, b in ((u.WB_KATAKANA, u.WB_KATAKANA), (u.WB_KATAKANA, u.WB_EXTENDNUMLET)):
        table[a, b] = table[b, a] = JOIN
    for a in letters:
        table[a, [u.WB_MIDLETTER]] = MIDDLE_LETTER
        table[a, [u.WB_MIDNUMLET, u.WB_SINGLE_QUOTE]] = MIDDLE_LETTER
    table[u.WB_HEBREW_LETTER, u.WB_SINGLE_QUOTE] = HEBREW_QUOTE
    table[u.WB_HEBREW_LETTER, u.WB_DOUBLE_QUOTE] = HEBREW_DOUBLE
    table[u.WB_NUMERIC, [u.WB_MIDNUM, u.WB_MIDNUMLET, u.WB_SINGLE_QUOTE]] = MIDDLE_NUMBER
    for a in (*letters, u.WB_NUMERIC, u.WB_KATAKANA, u.WB_EXTENDNUMLET, u.WB_SINGLE_QUOTE):
        table[a, [u.WB_EXTEND, u.WB_FORMAT, u.WB_ZWJ]] = SKIP
    table.setflags(write=False)
    return table


@inner
def emit(
    acc_A: Any, lengths_257: Any, t_hash_T: Any, t_chars_T: Any, h: Any, n_chars: Any, flags: Any, is_word: Any
) -> None:
    """Count one token and store it."""
    acc_A[A_TOKENS] += 1
    acc_A[A_ALPHA] += flags & FLAG_ALPHA != 0
    if is_word:
        acc_A[A_WORDS] += 1
        acc_A[A_WORD_CHARS] += n_chars
        lengths_257[min(n_chars, 256)] += 1
        if n_chars > acc_A[A_LONGEST]:
            acc_A[A_LONGEST] = n_chars
        acc_A[A_NUMERIC] += flags & (FLAG_DIGIT | FLAG_ALPHA) == FLAG_DIGIT
        acc_A[A_CAPITALS] += flags & (FLAG_UPPER | FLAG_LOWER) == FLAG_UPPER and n_chars > 1
    k = acc_A[A_STORED]
    if k < len(t_hash_T):
        t_hash_T[k] = h
        t_chars_T[k] = n_chars
        acc_A[A_STORED] = k + 1


@inner
def next_class(data_B: Any, i: Any, end: Any, word_class_U: Any) -> Any:
    """Return the word class of the first character from byte `i` that WB4 does not skip (0 at the end)."""
    while i < end:
        cp, n = u.decode(data_B, i)
        c = word_class_U[cp]
        if c != u.WB_EXTEND and c != u.WB_FORMAT and c != u.WB_ZWJ:
            return c
        i += n
    return np.uint8(0)


@inner
def points_hash(han_S: Any, start: Any, end: Any) -> Any:
    """Return the hash of Han characters, that of their UTF-8 bytes (three or four each)."""
    h = SEED
    chunk = ZERO
    filled = 0
    for j in range(start, end):
        cp = np.uint64(han_S[j])
        one = ((cp & _SIX) | _MORE) << _SIXTEEN | ((cp >> _SIX_BITS & _SIX) | _MORE) << EIGHT | (cp >> _TWELVE | _LEAD3)
        n_bits = 24
        if cp > _WIDEST3:
            one = (one & ~_BYTE | (cp >> _TWELVE & _SIX) | _MORE) << EIGHT | (cp >> _EIGHTEEN | _LEAD4)
            n_bits = 32
        chunk |= one << np.uint64(filled)
        filled += n_bits
        if filled >= 64:
            h = fold(h, chunk)
            filled -= 64
            chunk = one >> np.uint64(n_bits - filled) if filled else ZERO
    return fold(h, chunk | ~first_bytes(filled >> 3)) if filled else h


@inner
def starts_unit(word_class: Any, cp: Any, previous: Any, following: Any) -> Any:
    """Return whether an orthographic unit starts at `cp`, between its neighbours in the same run.

    Thai and Lao: leading vowel + consonant + marks and following vowels. Khmer: base with its subscripts and signs.
    Burmese: before a consonant that is neither stacked (virama) nor final (asat).
    """
    if word_class == WC_THAI:
        low = cp & 0x7F
        if 0x40 <= low <= 0x44:
            return True
        consonant = 0x01 <= low <= 0x2E or 0x5C <= low <= 0x5F
        leading = previous >= 0x0E40 and 0x40 <= (previous & 0x7F) <= 0x44
        return consonant and not leading
    if word_class == WC_KHMER:
        return 0x1780 <= cp <= 0x17B3 and previous != 0x17D2
    base = 0x1000 <= cp <= 0x102A or cp == 0x103F or 0x1050 <= cp <= 0x1055 or 0xA9E0 <= cp <= 0xAA7A
    return base and previous != 0x1039 and following != 0x103A and following != 0x1039


@njit(nogil=True, cache=True, _nrt=False)
def segment_unicode(
    data_B: Any, start: Any, end: Any, word_class_U: Any, flags_U: Any, join_CC: Any, japanese: Any,
    trie_edge_K: Any, trie_first_F: Any, trie_score_N: Any, han_S: Any, han_best_S: Any, han_next_S: Any,
    acc_A: Any, lengths_257: Any, t_hash_T: Any, t_chars_T: Any,
) -> None:  # fmt: skip
    """Cut ``data_B[start:end]`` by UAX #29, with words or units for the scripts that write without spaces.

    Segments without a letter or number are counted as tokens, not as words; white space is neither. `japanese`
    cuts Han runs in pairs and keeps hiragana runs whole (at most 8); otherwise Han runs are cut by the dictionary
    (`words_chinese`), or into characters where the trie is empty.
    """
    i = start
    # Words of a Han run that are still to be handed out: characters run_at .. run_end of han_S.
    run_at = run_end = 0
    while i < end or run_at < run_end:
        n_chars = 1
        begin = i
        # The hash is made of the word's bytes, at the end of the loop unless it is known here.
        hashed = False
        h = SEED
        if run_at < run_end:
            stop = np.int64(han_next_S[run_at])
            h = points_hash(han_S, run_at, stop)
            hashed = True
            n_chars = stop - run_at
            run_at = stop
            flags = np.uint8(FLAG_ALPHA | FLAG_WORD)
            c = np.uint8(HAN_WORD)
            n = 0
            cp = np.int32(0)
        else:
            cp, n = u.decode(data_B, i)
            c = word_class_U[cp]
            flags = flags_U[cp]
        # One call of emit at the end of the loop: with several, the compiler does not fold it in.
        if c == HAN_WORD:
            pass
        elif c < u.WB_KATAKANA or u.WB_ALETTER < c < u.WB_NUMERIC or c == u.WB_WSEGSPACE:
            # Not the start of a word: white space, a mark, a symbol. Numbers such as U+2460 are words by themselves.
            i += n
            if flags & (FLAG_SPACE | FLAG_WORD) == 0:
                acc_A[A_TOKENS] += c != u.WB_EXTEND and c != u.WB_FORMAT and c != u.WB_ZWJ
                continue
            if flags & FLAG_SPACE:
                continue
        elif c < WC_HAN:
            if n == 1 and flags & FLAG_WORD:
                # Letters and digits of ASCII, eight bytes at a time.
                digit = upper = lower = ZERO
                while True:
                    if i + 8 <= end:
                        chunk = load8(data_B, i)
                    else:
                        chunk = ZERO
                        for j in range(end - i):
                            chunk |= load1(data_B, i + j) << np.uint64(8 * j)
                    letters = letters_of(chunk)
                    digits = digits_of(chunk)
                    m = trailing((~(letters | digits) | chunk) & H80) >> 3
                    if m == 0:
                        break
                    kept = first_bytes(m)
                    chunk |= ~kept
                    inside = H80 & kept
                    digit |= digits & inside
                    letters &= inside
                    lower |= letters & (chunk << TWO)
                    upper |= letters & ~(chunk << TWO)
                    h = fold(h, chunk)
                    i += m
                    if m < 8:
                        break
                n_chars = i - begin
                hashed = True
                flags = np.uint8(
                    FLAG_WORD
                    | (FLAG_ALPHA if (upper | lower) != ZERO else 0)
                    | (FLAG_DIGIT if digit != ZERO else 0)
                    | (FLAG_UPPER if upper != ZERO else 0)
                    | (FLAG_LOWER if lower != ZERO else 0)
                )
                c = word_class_U[data_B[i - 1]]
                if i < end and data_B[i] == 32:
                    i += 1  # nothing joins a space
                    c = np.uint8(0)
            else:
                i += n
            while i < end and c != 0:
                cp, n = u.decode(data_B, i)
                c2 = word_class_U[cp]
                if c2 == u.WB_ALETTER and c == u.WB_ALETTER:
                    flags |= flags_U[cp]
                    n_chars += 1
                    i += n
                    hashed = False
                    continue
                what = join_CC[c, c2]
                if what == BREAK:
                    break
                if what >= MIDDLE_LETTER:
                    after = next_class(data_B, i + n, end, word_class_U)
                    letter = after == u.WB_ALETTER or after == u.WB_HEBREW_LETTER
                    if what == HEBREW_QUOTE:
                        c = np.uint8(u.WB_EXTENDNUMLET if letter else u.WB_SINGLE_QUOTE)
                    elif what == MIDDLE_LETTER:
                        if not letter:
                            break
                        c = np.uint8(u.WB_EXTENDNUMLET)
                    elif what == MIDDLE_NUMBER:
                        if after != u.WB_NUMERIC:
                            break
                        c = np.uint8(u.WB_EXTENDNUMLET)
                    else:
                        if after != u.WB_HEBREW_LETTER:
                            break
                        c = np.uint8(u.WB_EXTENDNUMLET)
                elif what == JOIN:
                    c = c2
                flags |= flags_U[cp]
                n_chars += 1
                i += n
                hashed = False
        elif c == WC_HAN and not japanese:
            i = segment_han(
                data_B, i, end, word_class_U, trie_edge_K, trie_first_F, trie_score_N,
                han_S, han_best_S, han_next_S,
            )  # fmt: skip
            run_at = 0
            run_end = han_next_S[len(han_S)]
            continue
        else:
            previous = cp
            i += n
            longest = 2 if c == WC_HAN else (8 if c == WC_HIRAGANA else 32)
            while i < end:
                cp, n = u.decode(data_B, i)
                c2 = word_class_U[cp]
                if c2 != u.WB_EXTEND and c2 != u.WB_ZWJ and c2 != u.WB_FORMAT:
                    if c2 != c or n_chars >= longest:
                        break
                    if c >= WC_THAI:
                        following = np.int32(0)
                        if c == WC_MYANMAR and i + n < end:
                            following, _ = u.decode(data_B, i + n)
                        if starts_unit(c, cp, previous, following):
                            break
                elif n_chars >= 64:
                    break
                flags |= flags_U[cp]
                n_chars += 1
                previous = cp
                i += n
        if flags & FLAG_WORD:
            if not hashed:
                h = span_hash(data_B, begin, i)
            emit(acc_A, lengths_257, t_hash_T, t_chars_T, h, n_chars, flags, True)
        else:
            acc_A[A_TOKENS] += 1
            acc_A[A_ALPHA] += flags & FLAG_ALPHA != 0


@njit(nogil=True, cache=True, _nrt=False)
def segment_spaces(
    data_B: Any, start: Any, end: Any, flags_U: Any,
    acc_A: Any, lengths_257: Any, t_hash_T: Any, t_chars_T: Any,
) -> None:  # fmt: skip
    """Cut ``data_B[start:end]`` as ``str.split()`` does; every piece is a word."""
    i = start
    while i < end:
        begin = stop = i
        n_chars = 0
        flags = np.uint8(0)
        while i < end:
            cp, n = u.decode(data_B, i)
            i += n
            bits = flags_U[cp]
            if bits & FLAG_SPACE:
                break
            flags |= bits
            n_chars += 1
            stop = i
        if n_chars:
            emit(acc_A, lengths_257, t_hash_T, t_chars_T, span_hash(data_B, begin, stop), n_chars, flags, True)
