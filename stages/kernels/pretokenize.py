r"""Pre-tokenisation: the regular expressions that byte-level BPE tokenizers split text with, as one scanner.

Legend: ``offsets_D1`` int64 (D+1), document d is ``data_B[offsets_D1[d]:offsets_D1[d+1]]``; ``data_B`` uint8;
``flags_C`` uint8 (0x110000), the classes below of each code point; ``ends_P`` int64 (P), where each pre-token
ends in ``data_B``; ``firsts_D1`` int64 (D+1), document d owns pre-tokens ``firsts_D1[d]:firsts_D1[d+1]``;
``classes_L`` uint8 (longest document + PADDING), the flags of each byte of one document.

Pre-tokens tile the document: nothing is dropped, so `decode(encode(x)) == x`. Each expression is turned into
a scanner by hand: first each byte gets the class of its character, then the scanner runs over classes alone,
eight letters at a time. Every alternative looks at most one character ahead of what it takes, apart from runs
of white space or capitals, which are read at most twice. Cost: O(bytes), no allocation.
Character classes are those of Unicode 15.0 (`unicode`), whatever Python or regex library is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.extending import intrinsic

from gristmill.stages.kernels import unicode as tables
from gristmill.stages.kernels.hashing import load64
from gristmill.stages.kernels.views import Bytes, Offsets

LETTER = 1
NUMBER = 2
SPACE = 4  # \s except \r and \n
NEWLINE = 8  # \r and \n
OTHER = 16  # neither white space nor letter nor number
UPPER = 32  # [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
LOWER = 64  # [\p{Ll}\p{Lm}\p{Lo}\p{M}]
SLASH = 128

GPT2, CL100K, O200K, WHOLE = 0, 1, 2, 3
UNLIMITED = 1 << 62
PADDING = 8
"""Bytes of ``classes_L`` after a document: zeros, so that runs end and eight bytes can be read at once."""

_WHITE_SPACE = (*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
                0x205F, 0x3000)  # fmt: skip
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWERS = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


@dataclass(frozen=True)
class Pattern:
    """A pre-tokenisation rule: its regular expression and the scanner's settings that are equal to it.

    `style`: GPT2, CL100K or O200K, or WHOLE, which does not split. `max_digits`: longest run of numbers in one
    pre-token. `marks`: combining marks count as letters, so that words of Devanagari, Thai or vocalised Arabic
    stay whole.
    """

    name: str
    regex: str
    style: int
    max_digits: int
    marks: bool = False


def _cl100k(name: str, digits: str, max_digits: int, marks: bool = False) -> Pattern:
    letter, other = (r"[\p{L}\p{M}]", r"\p{L}\p{M}\p{N}") if marks else (r"\p{L}", r"\p{L}\p{N}")
    regex = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letter}+|{digits}| ?[^\s{other}]+[\r\n]*|{_SPACES}"
    return Pattern(name, regex, CL100K, max_digits, marks)


PATTERNS = {
    pattern.name: pattern
    for pattern in (
        Pattern(
            "gpt2",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            GPT2,
            UNLIMITED,
        ),
        _cl100k("llama3", r"\p{N}{1,3}", 3),
        _cl100k("qwen2", r"\p{N}", 1),
        _cl100k("marks3", r"\p{N}{1,3}", 3, marks=True),
        _cl100k("marks1", r"\p{N}", 1, marks=True),
        Pattern(
            "o200k",
            rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPERS}*{_LOWERS}+{_CONTRACTIONS}?"
            rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPERS}+{_LOWERS}*{_CONTRACTIONS}?"
            rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
            O200K,
            3,
        ),
    )
}
"""By name. ``llama3`` is the expression of cl100k_base and Llama 3; ``qwen2`` the same with single digits;
``marks3`` and ``marks1`` the same two with combining marks as letters; ``o200k`` also splits at capitals."""


NO_SPLIT = Pattern("none", "", WHOLE, 0)
"""Takes each document as one pre-token: for text that has been split already."""


@cache
def flags(pattern: Pattern) -> npt.NDArray[np.uint8]:
    """Return ``flags_C`` for `pattern`, uint8 (0x110000), read-only, made once a process."""
    category = tables.CATEGORY
    by_category = np.zeros(256, np.uint8)
    by_category[:] = OTHER
    for code in (tables.LU, tables.LT):
        by_category[code] = LETTER | UPPER
    by_category[tables.LL] = LETTER | LOWER
    for code in (tables.LM, tables.LO):
        by_category[code] = LETTER | UPPER | LOWER
    for code in (tables.MN, tables.MC, tables.ME):
        by_category[code] = LETTER if pattern.marks else OTHER | UPPER | LOWER
    for code in (tables.ND, tables.NL, tables.NO):
        by_category[code] = NUMBER
    flags_C = by_category[category]
    flags_C[list(_WHITE_SPACE)] = SPACE
    flags_C[[0x0A, 0x0D]] = NEWLINE
    flags_C[ord("/")] |= SLASH
    flags_C.setflags(write=False)
    return flags_C


@intrinsic
def _trailing_zeros(typing_context: Any, a: Any) -> Any:
    """Count the zero bits below the lowest one bit of a uint64; 64 for 0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        from llvmlite import ir

        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


@njit(nogil=True, cache=True)
def classify(data_B: Any, start: int, end: int, flags_C: Any, classes_L: Any) -> None:
    """Write the flags of each byte's character to ``classes_L[: end - start]`` and 0 to the `PADDING` after it.

    A byte that is not part of valid UTF-8 is a character of its own, OTHER.
    """
    i = start
    while i < end:
        first = np.int64(data_B[i])
        if first < 0x80:
            classes_L[i - start] = flags_C[first]
            i += 1
            continue
        if 0xE3 <= first < 0xED and i + 2 < end:
            second = np.int64(data_B[i + 1])
            third = np.int64(data_B[i + 2])
            if second & 0xC0 == 0x80 and third & 0xC0 == 0x80:
                flag = flags_C[((first & 0x0F) << 12) | ((second & 0x3F) << 6) | (third & 0x3F)]
                classes_L[i - start] = flag
                classes_L[i - start + 1] = flag
                classes_L[i - start + 2] = flag
                i += 3
                continue
        elif 0xC2 <= first < 0xE0 and i + 1 < end:
            second = np.int64(data_B[i + 1])
            if second & 0xC0 == 0x80:
                flag = flags_C[((first & 0x1F) << 6) | (second & 0x3F)]
                classes_L[i - start] = flag
                classes_L[i - start + 1] = flag
                i += 2
                continue
        n = 1
        code = np.int64(0)
        if 0xE0 <= first < 0xF0:
            n = 3
            code = first & 0x0F
        elif 0xF0 <= first < 0xF5:
            n = 4
            code = first & 0x07
        if i + n > end:
            n = 1
        for k in range(1, n):
            following = np.int64(data_B[i + k])
            if following & 0xC0 != 0x80:
                n = 1
                break
            code = (code << 6) | (following & 0x3F)
        flag = np.uint8(OTHER)
        if n > 1 and code < 0x110000:
            flag = flags_C[code]
        for k in range(n):
            classes_L[i - start + k] = flag
        i += n
    for k in range(PADDING):
        classes_L[end - start + k] = 0


@njit(inline="always")
def _run(classes_L: Any, i: int, mask: int) -> Any:
    """End of the run of characters with any flag of `mask` that starts at `i`."""
    while classes_L[i] & mask:
        i += 1
    return i


@njit(inline="always")
def _letters(classes_L: Any, i: int) -> Any:
    """`_run` for LETTER, eight bytes at a time."""
    while True:
        stops = ~load64(classes_L, i) & np.uint64(0x0101010101010101)
        if stops:
            return i + (_trailing_zeros(stops) >> 3)
        i += 8


@njit(nogil=True, cache=True)
def _contraction(data_B: Any, i: int, end: int, any_case: bool) -> Any:
    """Length of the ``'s 't 're 've 'm 'll 'd`` at `i`, or 0. In any case, U+017F (long s) folds to s."""
    if i + 1 >= end or data_B[i] != 0x27:
        return 0
    a = data_B[i + 1]
    b = data_B[i + 2] if i + 2 < end else np.uint8(0)
    if any_case:
        if a == 0xC5 and b == 0xBF:
            return 3
        if 0x41 <= a <= 0x5A:
            a |= 0x20
        if 0x41 <= b <= 0x5A:
            b |= 0x20
    if a in (0x73, 0x74, 0x6D, 0x64):  # s t m d
        return 2
    if (a in (0x72, 0x76) and b == 0x65) or (a == 0x6C and b == 0x6C):  # re ve ll
        return 3
    return 0


@njit(nogil=True, cache=True)
def _white_space(classes_L: Any, data_B: Any, start: int, i: int, n: int, newlines: bool) -> Any:
    r"""End of ``\s*[\r\n]+`` (where `newlines`), else ``\s+(?!\S)``, else ``\s+`` at `i`."""
    j = i
    after_newline = i
    while classes_L[j] & (SPACE | NEWLINE):
        j += 1
        if classes_L[j - 1] & NEWLINE:
            after_newline = j
    if newlines and after_newline > i:
        return after_newline
    if j == n:
        return j
    last = j - 1
    while data_B[start + last] & 0xC0 == 0x80:
        last -= 1
    return last if last > i else j


@njit(nogil=True, cache=True)
def _cased_word(classes_L: Any, i: int) -> Any:
    """End of ``UPPER*LOWER+`` at `i`, or `i`: where nothing lower follows, back to the last that is both."""
    j = _run(classes_L, i, UPPER)
    if classes_L[j] & LOWER:
        return _run(classes_L, j, LOWER)
    while j > i and not classes_L[j - 1] & LOWER:
        j -= 1
    return j


@njit(nogil=True, cache=True)
def _next_gpt2(classes_L: Any, data_B: Any, start: int, i: int, n: int) -> Any:
    j = _contraction(data_B, start + i, start + n, False)
    if j:
        return i + j
    j = i + 1 if data_B[start + i] == 0x20 else i
    flag = classes_L[j]
    if flag & LETTER:
        return _letters(classes_L, j)
    if flag & (NUMBER | OTHER):
        return _run(classes_L, j, flag & (NUMBER | OTHER))
    return _white_space(classes_L, data_B, start, i, n, False)


@njit(nogil=True, cache=True)
def _next_o200k_word(classes_L: Any, data_B: Any, start: int, i: int, n: int) -> Any:
    """End of the two alternatives for words at `i`, or `i`."""
    after = i
    if classes_L[i] & (SPACE | OTHER):
        after += 1
        while after < n and data_B[start + after] & 0xC0 == 0x80 and data_B[start + i] >= 0xC2:
            after += 1
    j = _cased_word(classes_L, after)
    if j == after:
        # the optional first character may itself be a mark, and so a word
        j = _cased_word(classes_L, i) if after > i else i
        if j == i:
            j = _run(classes_L, after, UPPER)
            if j == after:
                return i
    return j + _contraction(data_B, start + j, start + n, True)


@njit(nogil=True, cache=True)
def next_pretoken(classes_L: Any, data_B: Any, start: int, i: int, n: int, style: int, max_digits: int) -> Any:
    """Return where the pre-token at `i` ends, ``i < result <= n``.

    Positions count from the document's first byte, `start` in ``data_B``; the document has `n` bytes, which
    `classify` has been given.
    """
    if style == CL100K:
        flag = classes_L[i]
        if flag & LETTER:
            return _letters(classes_L, i)
        if flag & (SPACE | OTHER):
            j = i + 1
            first = data_B[start + i]
            if first >= 0xC2:
                while j < n and data_B[start + j] & 0xC0 == 0x80:
                    j += 1
            elif first == 0x27:
                k = _contraction(data_B, start + i, start + n, True)
                if k:
                    return i + k
            if classes_L[j] & LETTER:
                return _letters(classes_L, j)
            if classes_L[j] & OTHER and (first == 0x20 or flag & OTHER):
                return _run(classes_L, _run(classes_L, j, OTHER), NEWLINE)
            if flag & OTHER:
                return _run(classes_L, j, NEWLINE)
            return _white_space(classes_L, data_B, start, i, n, True)
    elif style == GPT2:
        return _next_gpt2(classes_L, data_B, start, i, n)
    elif style == WHOLE:
        return np.int64(n)
    else:
        j = _next_o200k_word(classes_L, data_B, start, i, n)
        if j > i:
            return j
        j = i + 1 if data_B[start + i] == 0x20 else i
        if classes_L[j] & OTHER:
            return _run(classes_L, _run(classes_L, j, OTHER), NEWLINE | SLASH)
    if classes_L[i] & NUMBER:
        j = i
        count = 0
        while classes_L[j] & NUMBER:
            if data_B[start + j] & 0xC0 != 0x80:
                if count == max_digits:
                    break
                count += 1
            j += 1
        return j
    return _white_space(classes_L, data_B, start, i, n, True)


@njit(nogil=True, cache=True)
def _split(
    offsets_D1: Any,
    data_B: Any,
    flags_C: Any,
    style: int,
    max_digits: int,
    classes_L: Any,
    ends_P: Any,
    firsts_D1: Any,
) -> Any:
    count = 0
    for d in range(len(offsets_D1) - 1):
        firsts_D1[d] = count
        start = offsets_D1[d]
        n = offsets_D1[d + 1] - start
        classify(data_B, start, start + n, flags_C, classes_L)
        i = np.int64(0)
        while i < n:
            i = next_pretoken(classes_L, data_B, start, i, n, style, max_digits)
            ends_P[count] = start + i
            count += 1
    firsts_D1[len(offsets_D1) - 1] = count
    return count


def scratch(offsets_D1: Offsets) -> npt.NDArray[np.uint8]:
    """Return an uninitialised ``classes_L``, long enough for `classify` on the longest of these documents."""
    longest = int(np.diff(offsets_D1).max()) if len(offsets_D1) > 1 else 0
    return np.empty(longest + PADDING, np.uint8)


def pretokenize(
    offsets_D1: Offsets, data_B: Bytes, pattern: Pattern
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return ``(ends_P, firsts_D1)``: the pre-tokens of each document, which tile it from its first byte.

    A document with no bytes has none. Invalid UTF-8 does no harm: each such byte counts as punctuation.
    """
    ends_P = np.empty(int(offsets_D1[-1] - offsets_D1[0]), np.int64)
    firsts_D1 = np.empty(len(offsets_D1), np.int64)
    n = _split(
        offsets_D1,
        data_B,
        flags(pattern),
        pattern.style,
        pattern.max_digits,
        scratch(offsets_D1),
        ends_P,
        firsts_D1,
    )
    return ends_P[:n], firsts_D1
