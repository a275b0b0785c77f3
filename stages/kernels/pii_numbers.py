"""Digit groups, what may stand around a number, and the checks of cards, identity cards, IPv4 and IBAN.

A number is parsed once into up to eight digit groups with single separators (constant work: a run longer than any
identifier is left at once); each shape is then held against the groups.

Legend: ``data_B`` uint8 text, the document is ``data_B[lo:hi]``; ``tables_T`` uint8, see `pii_tables`; ``groups_G3``
int64 scratch (8, 3): first byte, number of digits, separator after it; ``digits_N`` int64 scratch: the digits.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from gristmill.stages.kernels.pii_tables import (
    ALNUM,
    ALPHA,
    CLEAN,
    CONTEXT,
    CONTEXT_FIRST,
    DIGIT,
    IBANS,
    IP_CONTEXT,
    LEFT,
    REJECT,
    RIGHT,
    UPPER,
    WEAK,
)

MAX_GROUPS = 8
MAX_DIGITS = 24
SPACE, HYPHEN, DOT, SLASH, PAREN = 1, 2, 3, 4, 5


inner = njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@inner
def has_context(data_B: Any, lo: int, hi: int, which: int, tables_T: Any) -> bool:
    """Return whether a word of context list `which` begins in ``data_B[lo:hi]``, at the start of a word."""
    for start in range(lo, hi):
        if not tables_T[CONTEXT_FIRST + data_B[start]] & which:
            continue
        if start > lo and tables_T[data_B[start - 1]] & ALPHA:
            continue
        at = CONTEXT
        while tables_T[at]:
            n = int(tables_T[at + 2])
            word = at + 3
            at = word + n
            if not tables_T[word - 3] & which or start + n > hi:
                continue
            same = True
            for j in range(n):
                byte = data_B[start + j]
                if 65 <= byte <= 90:
                    byte += 32
                if byte != tables_T[word + j]:
                    same = False
                    break
            if same and not (tables_T[word - 2] and start + n < hi and tables_T[data_B[start + n]] & ALPHA):
                return True
    return False


@inner
def parse_groups(data_B: Any, lo: int, hi: int, i: int, tables_T: Any, groups_G3: Any, digits_N: Any) -> int:
    """Fill the groups from the digit at `i` on and return how many there are."""
    k = 0
    n = 0
    j = i
    while True:
        start = j
        while j < hi and tables_T[data_B[j]] & DIGIT and j - start <= MAX_DIGITS:
            if n < MAX_DIGITS:
                digits_N[n] = data_B[j] - 48
                n += 1
            j += 1
        groups_G3[k, 0] = start
        groups_G3[k, 1] = j - start
        groups_G3[k, 2] = 0
        k += 1
        if k == MAX_GROUPS or n >= MAX_DIGITS or j >= hi:
            return k
        byte = data_B[j]
        after = j + 1
        code = 0
        if byte == 32:
            code = SPACE
            if after < hi and data_B[after] == 40:
                after += 1
                code = PAREN
        elif byte == 45:
            code = HYPHEN
            if after < hi and data_B[after] == 40:
                after += 1
                code = PAREN
        elif byte == 46:
            code = DOT
        elif byte == 47:
            code = SLASH
        elif byte == 40:
            code = PAREN
        elif byte == 41:
            code = PAREN
            if after < hi and (data_B[after] == 32 or data_B[after] == 45):
                after += 1
        elif byte == 0xC2 and after < hi and data_B[after] == 0xA0:
            code = SPACE
            after += 1
        elif byte == 0xE2 and j + 2 < hi and data_B[j + 1] == 0x80 and 0x90 <= data_B[j + 2] <= 0x93:
            code = HYPHEN
            after = j + 3
        if code == 0 or after >= hi or not tables_T[data_B[after]] & DIGIT:
            return k
        groups_G3[k - 1, 2] = code
        j = after


@inner
def left_strength(data_B: Any, lo: int, start: int, tables_T: Any) -> int:
    """Return how cleanly a number may begin at `start`: REJECT, WEAK (needs a context word) or CLEAN."""
    if start == lo:
        return CLEAN
    beyond = tables_T[data_B[start - 2]] if start - 2 >= lo else 0
    return beside(tables_T[LEFT + data_B[start - 1]], beyond)


@inner
def right_strength(data_B: Any, hi: int, end: int, tables_T: Any) -> int:
    """Return how cleanly a number may end before `end`."""
    if end >= hi:
        return CLEAN
    beyond = tables_T[data_B[end + 1]] if end + 1 < hi else 0
    return beside(tables_T[RIGHT + data_B[end]], beyond)


@inner
def beside(strengths: int, beyond: int) -> int:
    """Return the strength for the class of the byte beyond the one beside the number."""
    shift = 0 if beyond & DIGIT else 2 if beyond & ALPHA else 4
    return (int(strengths) >> shift) & 3


@inner
def luhn(digits_N: Any, n: int) -> bool:
    """Return whether the first `n` digits pass the Luhn check (ISO/IEC 7812-1)."""
    total = 0
    for j in range(n):
        digit = int(digits_N[n - 1 - j])
        if j & 1:
            digit *= 2
            if digit > 9:
                digit -= 9
        total += digit
    return total % 10 == 0


@inner
def card_issuer(digits_N: Any, n: int) -> int:
    """Return CLEAN for an issuer range in its usual length, WEAK for a rare one, REJECT for none."""
    six = 0
    for j in range(6):
        six = six * 10 + digits_N[j]
    four = six // 100
    three = six // 1000
    two = six // 10000
    if two // 10 == 4:  # Visa
        return CLEAN if n == 16 else WEAK if n == 13 or n == 19 else REJECT
    if 51 <= two <= 55 or 2221 <= four <= 2720 or 2200 <= four <= 2204:  # Mastercard, Mir
        return CLEAN if n == 16 else REJECT
    if two == 34 or two == 37:  # American Express
        return CLEAN if n == 15 else REJECT
    if 3528 <= four <= 3589:  # JCB
        return CLEAN if n == 16 else REJECT
    if four == 2131 or four == 1800:
        return WEAK if n == 15 else REJECT
    if 300 <= three <= 305 or four == 3095 or two == 36 or two == 38 or two == 39:  # Diners Club
        return WEAK if n == 14 else REJECT
    if two == 62:  # UnionPay
        return CLEAN if 16 <= n <= 19 else REJECT
    if four == 6011 or 644 <= three <= 649 or two == 65:  # Discover
        return CLEAN if n == 16 else WEAK if 17 <= n <= 19 else REJECT
    if four in (5018, 5020, 5038, 5893, 6304, 6759, 6761, 6762, 6763):  # Maestro
        return CLEAN if n == 16 else WEAK if 12 <= n <= 19 else REJECT
    if two == 60 or two == 81 or two == 82 or three == 508:  # RuPay, UnionPay abroad
        return WEAK if n == 16 else REJECT
    return WEAK if 3 <= two // 10 <= 6 and n != 14 else REJECT  # Maestro and others of national schemes


@inner
def valid_date(year: int, month: int, day: int) -> bool:
    """Return whether it is a calendar day from 1850 to 2099."""
    if not (1850 <= year <= 2099 and 1 <= month <= 12 and day >= 1):
        return False
    if month == 2:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return day <= (29 if leap else 28)
    return day <= (30 if month in (4, 6, 9, 11) else 31)


@inner
def resident_id(digits_N: Any, tail: int) -> bool:
    """Return whether 17 digits and the check character `tail` (0-10, 10 is X) are an ID number (GB 11643-1999).

    The county code is checked outside, against the register.
    """
    if not (1 <= digits_N[0] <= 6 or digits_N[0] == 8):
        return False
    year = digits_N[6] * 1000 + digits_N[7] * 100 + digits_N[8] * 10 + digits_N[9]
    if not valid_date(year, digits_N[10] * 10 + digits_N[11], digits_N[12] * 10 + digits_N[13]):
        return False
    total = 0
    weight = 2  # ISO 7064 MOD 11-2: weights are the powers of two from the right
    for j in range(16, -1, -1):
        total += digits_N[j] * weight
        weight = weight * 2 % 11
    return (total + tail) % 11 == 1


@inner
def ipv4(data_B: Any, lo: int, hi: int, k: int, tables_T: Any, groups_G3: Any, keep_reserved: bool) -> bool:
    """Return whether the first four groups are an IPv4 address and not a version, section or reserved range."""
    if k < 4:
        return False
    first = 0
    second = 0
    third = 0
    small = True
    short = True
    for g in range(4):
        start = groups_G3[g, 0]
        n = groups_G3[g, 1]
        if n > 3 or (n > 1 and data_B[start] == 48) or (g < 3 and groups_G3[g, 2] != DOT):
            return False
        value = 0
        for j in range(n):
            value = value * 10 + data_B[start + j] - 48
        if value > 255:
            return False
        if g == 0:
            first = value
        elif g == 1:
            second = value
        elif g == 2:
            third = value
        small = small and n == 1
        short = short and n <= 2
    if small or first == 0 or first >= 224:
        return False
    start = groups_G3[0, 0]
    end = groups_G3[3, 0] + groups_G3[3, 1]
    if start > lo:
        byte = data_B[start - 1]
        before = data_B[start - 2] if start - 2 >= lo else 32
        if tables_T[byte] & ALNUM or byte == 46 or byte == 95 or byte == 126 or byte == 94:
            return False
        if (byte == 45 or byte == 47) and tables_T[before] & ALNUM:  # package-1.2.3.4, Chrome/4.0.249.89
            return False
        if byte == 61 and (before == 61 or before == 62 or before == 60 or before == 126):  # ==1.2.3.4
            return False
        if byte == 43 or (byte == 0xA7 and before == 0xC2):  # a plus or section sign
            return False
        if after_version_word(data_B, lo, start, tables_T):
            return False
    # 12.6.2.1 is rather the number of a section or version than one address in fifty.
    if short and not has_context(data_B, max(lo, start - 28), start, IP_CONTEXT, tables_T):
        return False
    if end < hi:
        byte = data_B[end]
        after = data_B[end + 1] if end + 1 < hi else 32
        if tables_T[byte] & ALNUM or byte == 95 or byte == 43 or byte == 126:
            return False
        if byte == 46 and tables_T[after] & ALNUM:
            return False
        if byte == 45 and tables_T[after] & ALNUM:
            j = end + 1
            while j < hi and j < end + 4 and tables_T[data_B[j]] & DIGIT:
                j += 1
            if j == end + 1 or j >= hi or data_B[j] != 46:  # a revision; a dotted range goes on with a dot
                return False
    if keep_reserved:
        if first == 10 or first == 127 or (first == 172 and 16 <= second <= 31):
            return False
        if (first == 192 and second == 168) or (first == 169 and second == 254):
            return False
        if (first == 100 and 64 <= second <= 127) or (first == 198 and 18 <= second <= 19):
            return False
        documentation = (first == 192 and second == 0 and (third == 2 or third == 0)) or (
            (first == 198 and second == 51 and third == 100) or (first == 203 and second == 0 and third == 113)
        )
        if documentation:
            return False
    return True


@inner
def after_version_word(data_B: Any, lo: int, start: int, tables_T: Any) -> bool:
    """Return whether the word before `start` announces a version or a section: version, rev, release, section."""
    j = start
    while j > lo and j > start - 3 and data_B[j - 1] in (32, 46, 58, 61, 34, 39):
        j -= 1
    end = j
    while j > lo and j > end - 10 and tables_T[data_B[j - 1]] & ALPHA:
        j -= 1
    n = end - j
    if n == 0:  # the first character of 版本
        return end - 6 >= lo and data_B[end - 6] == 0xE7 and data_B[end - 5] == 0x89 and data_B[end - 4] == 0x88
    first = data_B[j] | 32
    second = data_B[j + 1] | 32 if n > 1 else 0
    third = data_B[j + 2] | 32 if n > 2 else 0
    if n == 1:
        return first == 118  # v
    if first == 118 and second == 101 and third == 114:  # ver, version
        return True
    if first == 114 and second == 101 and (third == 118 or third == 108):  # rev, revision, release
        return True
    if first == 115 and second == 101 and third == 99:  # sec, section
        return True
    return first == 98 and second == 117 and third == 105 and n == 5  # build


@inner
def iban_at(data_B: Any, lo: int, hi: int, i: int, tables_T: Any) -> int:
    """Return the end of the IBAN whose check digits are at `i`, or 0 (ISO 13616, MOD 97-10)."""
    if i - 2 < lo or i + 13 > hi or not tables_T[data_B[i + 1]] & DIGIT:
        return 0
    case = tables_T[data_B[i - 1]] & ALPHA
    if case == 0 or tables_T[data_B[i - 2]] & ALPHA != case:
        return 0
    if i - 3 >= lo and (tables_T[data_B[i - 3]] & ALNUM or data_B[i - 3] == 95):
        return 0
    base = 65 if case == UPPER else 97
    need = int(tables_T[IBANS + 26 * (data_B[i - 2] - base) + data_B[i - 1] - base])
    if need == 0:
        return 0
    remainder = 0
    seen = 4
    j = i + 2
    while seen < need:
        if j >= hi:
            return 0
        byte = data_B[j]
        if byte == 32 and seen % 4 == 0 and data_B[j - 1] != 32:
            j += 1
            continue
        if tables_T[byte] & DIGIT:
            remainder = (remainder * 10 + byte - 48) % 97
        elif tables_T[byte] & case:
            remainder = (remainder * 100 + byte - base + 10) % 97
        else:
            return 0
        seen += 1
        j += 1
    if j < hi and tables_T[data_B[j]] & ALNUM:
        return 0
    for index in (i - 2, i - 1):
        remainder = (remainder * 100 + data_B[index] - base + 10) % 97
    remainder = (remainder * 100 + (data_B[i] - 48) * 10 + data_B[i + 1] - 48) % 97
    return j if remainder == 1 else 0


@inner
def card_shape(k: int, groups_G3: Any) -> tuple[int, int]:
    """Return ``(end, digits)`` of a card number at the groups: one run, 4-4-4-4[-1..3] or 4-6-5; else zeros."""
    g0 = groups_G3[0, 1]
    if g0 >= 12:
        return groups_G3[0, 0] + g0, g0
    separator = groups_G3[0, 2]
    if separator != SPACE and separator != HYPHEN:
        return 0, 0
    if groups_G3[1, 1] == 6 and groups_G3[1, 2] == separator and groups_G3[2, 1] in (4, 5):
        return groups_G3[2, 0] + groups_G3[2, 1], 10 + groups_G3[2, 1]
    if k >= 4:
        for g in range(1, 4):
            if groups_G3[g, 1] != 4 or (g < 3 and groups_G3[g, 2] != separator):
                return 0, 0
        if k >= 5 and groups_G3[3, 2] == separator and groups_G3[4, 1] <= 3:
            return groups_G3[4, 0] + groups_G3[4, 1], 16 + groups_G3[4, 1]
        return groups_G3[3, 0] + 4, 16
    return 0, 0
