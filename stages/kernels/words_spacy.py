"""Words as spaCy's English tokenizer cuts them, for verdicts that agree with datatrove's.

spaCy splits at white space, then peels prefixes and suffixes off each chunk until none is left or the rest is a
special case, keeps an address whole, cuts the rest at infixes, and finally joins neighbouring tokens that spell a
special case. The rules are written here from spaCy's documentation and from its behaviour on probes; what is known
to differ is in ``docs/parity.md``. A chunk of more than 1,024 affixes or tokens is passed on without the last step.

Legend: ``data_B`` uint8 UTF-8; ``flags_U`` uint8 by code point; the rest in `words_spacy_tables`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels import words as w
from gristmill.stages.kernels.bits import inner, span_hash
from gristmill.stages.kernels.words_spacy_tables import (
    B_ALPHA,
    B_BEFORE_STOP,
    B_CURRENCY,
    B_DIGIT,
    B_HOST,
    B_ICON,
    B_LOWER,
    B_PREFIX,
    B_PUNCT,
    B_PUNCTUATION,
    B_QUOTE,
    B_SENTENCE,
    B_SPACE,
    B_UPPER,
    SLOTS,
)

MAX_PIECES = 1024
_MIX = np.uint64(0x9E3779B97F4A7C15)


@inner
def before(data_B: Any, start: Any, i: Any) -> Any:
    """Return the byte position of the character before `i`."""
    i -= 1
    while i > start and data_B[i] & 0xC0 == 0x80:
        i -= 1
    return i


@inner
def bits_at(data_B: Any, i: Any, stop: Any, spacy_U: Any) -> Any:
    """Return the bits of the character at `i`, 0 at the end."""
    if i >= stop:
        return np.uint16(0)
    cp, _ = u.decode(data_B, i)
    return spacy_U[cp]


@inner
def find_special(data_B: Any, start: Any, stop: Any, special_key_H: Any) -> Any:
    """Return the slot of the special case that the bytes spell, or -1."""
    if stop - start > 24 or stop - start < 2:
        return np.int64(-1)
    h = np.uint64(0)
    i = start
    while i < stop:
        cp, n = u.decode(data_B, i)
        h = h * w.BASE + np.uint64(cp) + np.uint64(1)
        i += n
    return special_slot(h, special_key_H)


@inner
def prefix_length(data_B: Any, i: Any, stop: Any, spacy_U: Any) -> Any:
    """Return the bytes of the prefix at `i`, or 0."""
    cp, n = u.decode(data_B, i)
    bits = spacy_U[cp]
    if bits & (B_PREFIX | B_PUNCT | B_QUOTE | B_CURRENCY | B_ICON):
        return n
    if cp == 43 and not bits_at(data_B, i + 1, stop, spacy_U) & B_DIGIT:
        return n
    if cp == 46 and i + 1 < stop and data_B[i + 1] == 46:
        j = i
        while j < stop and data_B[j] == 46:
            j += 1
        return j - i
    if (cp == 85 and i + 2 < stop and data_B[i + 1] == 83 and data_B[i + 2] == 36) or (
        (cp == 67 or cp == 65) and i + 1 < stop and data_B[i + 1] == 36
    ):
        return 3 if cp == 85 else 2
    return 0


@inner
def suffix_length(data_B: Any, start: Any, stop: Any, spacy_U: Any, unit_key_N: Any) -> Any:
    """Return the bytes of the longest suffix of the chunk, or 0."""
    i = before(data_B, start, stop)
    cp, _ = u.decode(data_B, i)
    bits = spacy_U[cp]
    if cp == 46:
        j = i
        while j > start and data_B[j - 1] == 46:
            j -= 1
        if j < i:
            return stop - j
        if i == start:
            return 0
        j = before(data_B, start, i)
        previous = bits_at(data_B, j, stop, spacy_U)
        if previous & B_BEFORE_STOP:
            return 1
        if j == start:
            return 0
        mark, _ = u.decode(data_B, before(data_B, start, j))
        if previous & B_UPPER and spacy_U[mark] & B_UPPER:
            return 1
        return 1 if mark == 0xB0 and (data_B[j] | 32) in (99, 102, 107) else 0
    if (cp == 115 or cp == 83) and i > start:
        mark, _ = u.decode(data_B, before(data_B, start, i))
        if mark == 39 or mark == 0x2019:
            return stop - before(data_B, start, i)
    if bits & (B_PUNCT | B_QUOTE | B_ICON) or cp == 0x2014 or cp == 0x2013:
        return stop - i
    if cp < 128:
        any_digit = False
        for j in range(max(start, i - 4), i):
            any_digit |= 48 <= data_B[j] <= 57
        if not any_digit:
            return 0
    # After a digit: plus, currency, units (at most four characters).
    h = np.uint64(0)
    p = np.uint64(1)
    longest = 0
    j = stop
    for _n in range(4):
        if j <= start:
            break
        j = before(data_B, start, j)
        c, _m = u.decode(data_B, j)
        h = h + (np.uint64(c) + np.uint64(1)) * p
        p = p * w.BASE
        if j == start:
            break
        if not bits_at(data_B, before(data_B, start, j), stop, spacy_U) & B_DIGIT:
            continue
        if j == i and (cp == 43 or bits & B_CURRENCY):
            longest = stop - j
        if cp == 36 and ((stop - j == 3 and c == 85) or (stop - j == 2 and (c == 67 or c == 65))):
            longest = stop - j
        for key in unit_key_N:
            if key == h:
                longest = stop - j
    return longest


@inner
def is_address(data_B: Any, start: Any, stop: Any, spacy_U: Any) -> Any:
    """Return whether the chunk is an address: [scheme://][user@]host.tld[:port][/path]."""
    dot = False
    for i in range(start, stop):
        dot |= data_B[i] == 46
    if not dot:
        return False
    at = start
    i = start
    while i < stop:
        cp, n = u.decode(data_B, i)
        if not (spacy_U[cp] & (B_ALPHA | B_DIGIT) or cp == 43 or cp == 45 or cp == 46 or cp == 95):
            break
        i += n
    if i - start >= 2 and i + 2 < stop and data_B[i] == 58 and data_B[i + 1] == 47 and data_B[i + 2] == 47:
        at = i + 3
    if host_matches(data_B, at, stop, spacy_U) or (at != start and host_matches(data_B, start, stop, spacy_U)):
        return True
    tries = 0
    for j in range(start + 1, stop):
        if data_B[j] == 64:
            tries += 1
            if tries > 8:
                break
            if host_matches(data_B, j + 1, stop, spacy_U):
                return True
    return False


@inner
def host_matches(data_B: Any, start: Any, stop: Any, spacy_U: Any) -> Any:
    """Return whether host, port and path fill ``[start, stop)``."""
    i = start
    label = 0
    labels = 0
    last_host = False
    lower = True
    n_label = 0
    while i < stop:
        cp, n = u.decode(data_B, i)
        bits = spacy_U[cp]
        if cp == 46:
            if n_label == 0 or not last_host or n_label > 64:
                return False
            labels += 1
            n_label = 0
            lower = True
            label = i + 1
            last_host = False
        elif bits & B_HOST or cp == 45 or cp == 95:
            host = bits & B_HOST != 0
            if n_label == 0 and not host:
                return False
            n_label += 1
            last_host = host
            lower = lower and bits & B_LOWER != 0
        else:
            break
        i += n
    ok = labels > 0 and lower and 2 <= n_label <= 63
    if not ok or label == 0:
        return False
    if i < stop and data_B[i] == 58:
        j = i + 1
        while j < stop and 48 <= data_B[j] <= 57:
            j += 1
        if 2 <= j - i - 1 <= 5:
            i = j
    return i == stop or data_B[i] == 47 or data_B[i] == 63 or data_B[i] == 35


@inner
def infix_length(data_B: Any, start: Any, i: Any, stop: Any, spacy_U: Any) -> Any:
    """Return the bytes of the infix at `i`, or 0."""
    cp, n = u.decode(data_B, i)
    bits = spacy_U[cp]
    if bits & B_ICON or cp == 0x2026:
        return n
    if cp == 46 and i + 1 < stop and data_B[i + 1] == 46:
        j = i
        while j < stop and data_B[j] == 46:
            j += 1
        return j - i
    if i == start:
        return 0
    hyphen = cp == 45 or cp == 0x2013 or cp == 0x2014 or cp == 126
    if not hyphen and not (cp == 46 or cp == 44 or cp == 43 or cp == 42 or cp == 94 or cp == 47 or 58 <= cp <= 62):
        return 0
    previous = bits_at(data_B, before(data_B, start, i), stop, spacy_U)
    following = bits_at(data_B, i + n, stop, spacy_U)
    sign = cp == 43 or cp == 45 or cp == 42 or cp == 94
    if sign and previous & B_DIGIT and (following & B_DIGIT or (i + n < stop and data_B[i + n] == 45)):
        return n
    if cp == 46:
        return n if previous & (B_LOWER | B_QUOTE) and following & (B_UPPER | B_QUOTE) else 0
    if cp == 44:
        return n if previous & B_ALPHA and following & B_ALPHA else 0
    if hyphen:
        if not previous & (B_ALPHA | B_DIGIT):
            return 0
        if following & B_ALPHA:
            return n
        if cp == 45 or cp == 0x2014:
            j = i
            count = 0
            most = 3 if cp == 45 else 2
            while j < stop and count < most:
                c, m = u.decode(data_B, j)
                if c != cp:
                    break
                j += m
                count += 1
            if count > 1 and bits_at(data_B, j, stop, spacy_U) & B_ALPHA:
                return j - i
        return 0
    if (cp == 58 or cp == 60 or cp == 62 or cp == 61 or cp == 47) and previous & (B_ALPHA | B_DIGIT):
        return n if following & B_ALPHA else 0
    return 0


@inner
def push(from_P: Any, to_P: Any, n: Any, start: Any, stop: Any) -> Any:
    """Append a piece; past the room the last piece grows."""
    if stop <= start:
        return n
    if n == len(from_P):
        to_P[n - 1] = stop
        return n
    from_P[n] = start
    to_P[n] = stop
    return n + 1


@inner
def push_special(data_B: Any, start: Any, stop: Any, cut: Any, from_P: Any, to_P: Any, n: Any) -> Any:
    """Append the pieces of a special case."""
    i = start
    while i < stop:
        chars = cut & np.uint32(255)
        cut >>= np.uint32(8)
        j = i
        if chars == 0:
            j = stop
        for _ in range(chars):
            _cp, m = u.decode(data_B, j)
            j += m
        n = push(from_P, to_P, n, i, j)
        i = j
    return n


@njit(nogil=True, cache=True, _nrt=False)
def cut_chunk(
    data_B: Any, start: Any, stop: Any, spacy_U: Any, special_key_H: Any, special_cut_H: Any, unit_key_N: Any,
    joint_256x256: Any, from_P: Any, to_P: Any, suffix_P: Any,
) -> Any:  # fmt: skip
    """Cut a chunk without white space; return the number of pieces in ``from_P``, ``to_P``."""
    n = 0
    n_suffixes = 0
    lo, hi = start, stop
    special = find_special(data_B, lo, hi, special_key_H)
    while special < 0 and lo < hi:
        prefix = prefix_length(data_B, lo, hi, spacy_U)
        if prefix and lo + prefix < hi:
            special = find_special(data_B, lo + prefix, hi, special_key_H)
            if special >= 0:
                n = push(from_P, to_P, n, lo, lo + prefix)
                lo += prefix
                break
        suffix = 0
        if lo + prefix < hi:
            suffix = suffix_length(data_B, lo + prefix, hi, spacy_U, unit_key_N)
        if suffix and n_suffixes == len(suffix_P):
            suffix = 0
        if suffix and hi - suffix > lo:
            special = find_special(data_B, lo, hi - suffix, special_key_H)
            if special >= 0:
                suffix_P[n_suffixes] = hi
                n_suffixes += 1
                hi -= suffix
                break
        if prefix == 0 and suffix == 0:
            break
        if prefix:
            n = push(from_P, to_P, n, lo, lo + prefix)
            lo += prefix
        if suffix:
            suffix_P[n_suffixes] = hi
            n_suffixes += 1
            hi -= suffix
        special = find_special(data_B, lo, hi, special_key_H)
    if lo < hi:
        if special >= 0:
            n = push_special(data_B, lo, hi, special_cut_H[special], from_P, to_P, n)
        else:
            plain = True
            for i in range(lo, hi):
                plain = plain and (data_B[i] >= 97 and data_B[i] <= 122)
            if plain or is_address(data_B, lo, hi, spacy_U):
                n = push(from_P, to_P, n, lo, hi)
            else:
                i = begin = lo
                while i < hi:
                    b = data_B[i]
                    if (b >= 97 and b <= 122) or (b >= 48 and b <= 57) or (b >= 65 and b <= 90):
                        i += 1
                        continue
                    infix = infix_length(data_B, lo, i, hi, spacy_U)
                    if infix and i > lo:
                        n = push(from_P, to_P, n, begin, i)
                        n = push(from_P, to_P, n, i, i + infix)
                        i += infix
                        begin = i
                    else:
                        _cp, m = u.decode(data_B, i)
                        i += max(infix, m)
                n = push(from_P, to_P, n, begin, hi)
    for j in range(n_suffixes - 1, -1, -1):
        n = push(from_P, to_P, n, hi, suffix_P[j])
        hi = suffix_P[j]
    if 1 < n < len(from_P):
        n = join_specials(data_B, special_key_H, special_cut_H, joint_256x256, from_P, to_P, n)
    return n


@inner
def join_specials(
    data_B: Any, special_key_H: Any, special_cut_H: Any, joint_256x256: Any, from_P: Any, to_P: Any, n: Any
) -> Any:
    """Join neighbouring pieces that together spell a special case of one piece; longest first."""
    kept = 0
    i = 0
    while i < n:
        joined = i
        for j in range(min(i + 6, n - 1), i, -1):
            if to_P[j] - from_P[i] <= 12 and joint_256x256[data_B[from_P[i]], data_B[to_P[j] - 1]]:
                slot = find_special(data_B, from_P[i], to_P[j], special_key_H)
                if slot >= 0 and special_cut_H[slot] < 256:
                    joined = j
                    break
        from_P[kept] = from_P[i]
        to_P[kept] = to_P[joined]
        kept += 1
        i = joined + 1
    return kept


@njit(nogil=True, cache=True, _nrt=False)
def next_chunk(data_B: Any, i: Any, end: Any, spacy_U: Any) -> Any:
    """Return the bounds of the next chunk between white space; empty at the end."""
    while i < end:
        cp, n = u.decode(data_B, i)
        if not spacy_U[cp] & B_SPACE:
            break
        i += n
    start = i
    while i < end:
        cp, n = u.decode(data_B, i)
        if spacy_U[cp] & B_SPACE:
            break
        i += n
    return start, i


@inner
def easy_chunk(data_B: Any, start: Any, end: Any, special_key_H: Any) -> Any:
    """Return (letters, marks) of a chunk at `start` that is ASCII letters and at most one mark, (0, 0) else.

    Such a chunk that is no special case is one token, and one for the mark: no affix or infix applies.
    """
    h = np.uint64(0)
    i = start
    while i < end:
        b = data_B[i]
        low = b | 32
        if low < 97 or low > 122 or b >= 128:
            break
        h = h * w.BASE + np.uint64(b) + np.uint64(1)
        i += 1
    letters = i - start
    if letters == 0:
        return 0, 0
    marks = 0
    whole = h
    if i < end and data_B[i] != 32 and data_B[i] != 10:
        b = data_B[i]
        if b == 46:
            last = data_B[i - 1]
            if not (last >= 97 or (letters > 1 and data_B[i - 2] < 97)):
                return 0, 0
        elif b != 44 and b != 58 and b != 59 and b != 33 and b != 63:
            return 0, 0
        if i + 1 < end and data_B[i + 1] != 32 and data_B[i + 1] != 10:
            return 0, 0
        whole = h * w.BASE + np.uint64(b) + np.uint64(1)
        marks = 1
    if letters <= 12 and (special_slot(h, special_key_H) >= 0 or (marks and special_slot(whole, special_key_H) >= 0)):
        return 0, 0
    return letters, marks


@inner
def special_slot(h: Any, special_key_H: Any) -> Any:
    """Return the slot of the special case with this hash, or -1."""
    slot = np.int64((h * _MIX) >> np.uint64(50))
    while special_key_H[slot] != 0:
        if special_key_H[slot] == h:
            return slot
        slot = (slot + 1) & (SLOTS - 1)
    return np.int64(-1)


@njit(nogil=True, cache=True, _nrt=False)
def spacy_sentences(data_B: Any, start: Any, end: Any, x: Any, pieces_3xP: Any) -> Any:
    """Return the number of sentences that spaCy's sentencizer finds.

    A new one begins at the first token that is not punctuation after a token that is a sentence-final mark.
    """
    spacy_U, special_key_H, special_cut_H, unit_key_N, joint_256x256 = x
    from_P, to_P, suffix_P = pieces_3xP[0], pieces_3xP[1], pieces_3xP[2]
    sentences = 1
    seen = False
    any_token = False
    i = last = start
    while i < end:
        if data_B[i] == 32 or data_B[i] == 10:
            i += 1
            continue
        letters, marks = easy_chunk(data_B, i, end, special_key_H)
        if letters:
            any_token = True
            sentences += seen
            seen = False
            i += letters
            if marks:
                seen = data_B[i] == 46 or data_B[i] == 33 or data_B[i] == 63
                i += 1
            last = i
            continue
        a, i = next_chunk(data_B, i, end, spacy_U)
        if a == i:
            break
        n = cut_chunk(
            data_B, a, i, spacy_U, special_key_H, special_cut_H, unit_key_N, joint_256x256, from_P, to_P, suffix_P
        )
        # White space other than one blank is a token of its own, and opens a sentence.
        if seen and any_token and (a - last != 1 or data_B[last] != 32):
            sentences += 1
            seen = False
        any_token = True
        last = i
        for j in range(n):
            at, stop = from_P[j], to_P[j]
            cp, m = u.decode(data_B, at)
            is_mark = at + m == stop and spacy_U[cp] & B_SENTENCE != 0
            if is_mark:
                seen = True
            elif seen:
                punctuation = True
                while at < stop and punctuation:
                    cp, m = u.decode(data_B, at)
                    punctuation = spacy_U[cp] & B_PUNCTUATION != 0
                    at += m
                if not punctuation:
                    sentences += 1
                    seen = False
    return sentences if any_token else 0


@njit(nogil=True, cache=True, _nrt=False)
def segment_spacy(
    data_B: Any, start: Any, end: Any, flags_U: Any, x: Any, pieces_3xP: Any,
    acc_A: Any, lengths_257: Any, t_hash_T: Any, t_chars_T: Any,
) -> None:  # fmt: skip
    """Cut ``data_B[start:end]``; a word is a token that is not made of punctuation only, and every token is stored."""
    spacy_U, special_key_H, special_cut_H, unit_key_N, joint_256x256 = x
    from_P, to_P, suffix_P = pieces_3xP[0], pieces_3xP[1], pieces_3xP[2]
    i = start
    piece = n = 0
    mark = np.int64(-1)
    # One call of emit at the end of the loop: with several, the compiler does not fold it in.
    while i < end or piece < n or mark >= 0:
        if mark >= 0:
            begin = mark
            stop = mark + 1
            flags = flags_U[data_B[mark]]
            n_chars = np.int64(1)
            mark = np.int64(-1)
        elif piece < n:
            begin = at = from_P[piece]
            stop = to_P[piece]
            piece += 1
            n_chars = np.int64(0)
            flags = np.uint8(0)
            while at < stop:
                cp, m = u.decode(data_B, at)
                flags |= flags_U[cp]
                n_chars += 1
                at += m
        else:
            if data_B[i] == 32 or data_B[i] == 10:
                i += 1
                continue
            letters, marks = easy_chunk(data_B, i, end, special_key_H)
            if letters == 0:
                a, i = next_chunk(data_B, i, end, spacy_U)
                piece = n = 0
                if a < i:
                    n = cut_chunk(
                        data_B, a, i, spacy_U, special_key_H, special_cut_H, unit_key_N, joint_256x256,
                        from_P, to_P, suffix_P,
                    )  # fmt: skip
                continue
            flags = np.uint8(0)
            for j in range(i, i + letters):
                flags |= flags_U[data_B[j]]
            n_chars = np.int64(letters)
            begin = np.int64(i)
            i += letters
            stop = np.int64(i)
            if marks:
                mark = np.int64(i)
                i += 1
        is_word = flags & w.FLAG_NOT_PUNCTUATION != 0
        h = span_hash(data_B, begin, stop)
        w.emit(acc_A, lengths_257, t_hash_T, t_chars_T, h, n_chars, flags, is_word)
