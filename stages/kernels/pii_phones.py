"""Phone numbers: conservative shapes that are sure by themselves, wider ones only next to a word such as "phone".

Digits of pi, version numbers, timestamps, dates and counters are no phone numbers. Sure: a country calling code
behind ``+`` (E.164), Chinese mobiles by allocated prefix, Chinese landlines and 400 numbers with their separators,
North American numbers with valid area and exchange. Legend as in `pii_numbers`.
"""

# ruff: noqa: SIM109, SIM110 - shapes that Numba compiles to plain branches
from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gristmill.stages.kernels.pii_numbers import (
    DOT,
    HYPHEN,
    PAREN,
    SLASH,
    SPACE,
    has_context,
    left_strength,
    right_strength,
)
from gristmill.stages.kernels.pii_tables import ALNUM, CLEAN, CODES, DIGIT, MOBILES, PHONE_CONTEXT, REJECT, WEAK

inner = njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)

DOTS, SPACES, HYPHENS, SLASHES, PARENS = 1 << DOT, 1 << SPACE, 1 << HYPHEN, 1 << SLASH, 1 << PAREN
_PLUS, _ZEROS = np.int64(0), np.int64(2)
"""Digits before a calling code: none behind a plus sign, two zeros. NumPy's, see `pii_tables.PADDING`."""
CHINESE = 3
"""A bare Chinese mobile number: sure amid Chinese text, elsewhere a word such as "phone" is needed."""


@inner
def international(digits_N: Any, skip: int, n: int, k: int, tables_T: Any) -> int:
    """Return how sure digits ``[skip:n]`` are a number with a country calling code in front (E.164)."""
    total = n - skip
    if total < 8 or total > 16 or digits_N[skip] == 0:
        return REJECT
    if digits_N[skip] == 1:
        ok = total == 11 and digits_N[skip + 1] >= 2 and digits_N[skip + 4] >= 2
        return CLEAN if ok else WEAK if total == 11 else REJECT
    two = digits_N[skip] * 10 + digits_N[skip + 1]
    if two == 86:
        prefix = digits_N[skip + 2] * 100 + digits_N[skip + 3] * 10 + digits_N[skip + 4]
        if total == 13 and prefix < 200:
            return CLEAN if tables_T[MOBILES + prefix] else REJECT
        landline = digits_N[skip + 2] != 1 or digits_N[skip + 3] == 0  # 10 is Beijing
        return CLEAN if 11 <= total <= 14 and landline else REJECT
    three = two * 10 + digits_N[skip + 2]
    if not (digits_N[skip] == 7 or tables_T[CODES + two] or tables_T[CODES + three]):
        return REJECT
    return CLEAN if k >= 3 or total >= 10 else WEAK


@inner
def outline(k: int, groups_G3: Any) -> tuple[int, int]:
    """Return the sizes of the first `k` groups as hexadecimal digits, and the set of their separators as bits."""
    sizes = 0
    separators = 0
    for g in range(k):
        sizes = sizes << 4 | min(groups_G3[g, 1], 15)
        if g < k - 1:
            separators |= 1 << groups_G3[g, 2]
    return sizes, separators


@inner
def phone_shape(k: int, n: int, plus: bool, tables_T: Any, groups_G3: Any, digits_N: Any) -> int:
    """Return how sure the first `k` groups (`n` digits) are a phone number: CLEAN, WEAK or REJECT."""
    sizes, separators = outline(k, groups_G3)
    if plus:
        return REJECT if k == 2 and separators == DOTS else international(digits_N, _PLUS, n, k, tables_T)
    first = groups_G3[0, 1]
    head = digits_N[0] * 100 + digits_N[1] * 10 + digits_N[2]
    if head < 10 and n >= 11 and first >= 2 and not separators & DOTS:
        sure = international(digits_N, _ZEROS, n, k, tables_T)
        if sure == CLEAN and (k == 1 or first == 2 or first > 5 or sizes & 0xFFF == 0x444):
            sure = CLEAN if n == 15 and k == 1 and head == 8 and digits_N[3] == 6 else WEAK
        return sure
    single = separators == SPACES or separators == HYPHENS
    if n == 11 and head < 200 and tables_T[MOBILES + head]:
        if k == 1:
            return CHINESE
        if single and (sizes == 0x344 or sizes == 0x434 or sizes == 0x335):
            return CLEAN
    if n == 13 and head == 861 and (first == 2 or k == 1) and tables_T[MOBILES + 100 + digits_N[3] * 10 + digits_N[4]]:
        return CLEAN
    # North America: NXX-NXX-XXXX, (NXX) NXX-XXXX, 1-NXX-NXX-XXXX; not 911 and the like.
    skip = 1 if sizes == 0x1334 and digits_N[0] == 1 else 0
    if sizes & 0xFFF == 0x334 and k == 3 + skip and digits_N[skip] >= 2 and digits_N[skip + 3] >= 2:
        a = groups_G3[skip, 2]
        b = groups_G3[skip + 1, 2]
        service = digits_N[skip + 1] == 1 and digits_N[skip + 2] == 1
        separated = (a == b and (a == HYPHEN or a == DOT)) or (a == PAREN and b != SLASH)
        if separated and digits_N[skip + 1] != 9 and not service:
            return CLEAN
    # China: 010-12345678, (0755) 1234567, 400-123-4567, 4008-123-123
    landline = sizes == 0x37 or sizes == 0x38 or sizes == 0x47 or sizes == 0x48
    if landline and 10 <= head < 100 and digits_N[first] >= 2 and (separators == HYPHENS or separators == PARENS):
        return CLEAN
    if (head == 400 or head == 800) and separators == HYPHENS and (sizes == 0x334 or sizes == 0x433):
        return CLEAN
    return weak_phone(k, n, sizes, separators, groups_G3, digits_N)


@inner
def chinese_around(data_B: Any, lo: int, hi: int, start: int, end: int) -> bool:
    """Return whether a three-byte character of CJK (U+3000 to U+9FFF or full width) is within 40 bytes."""
    for j in range(max(lo, start - 40), min(hi, end + 40)):
        if 0xE3 <= data_B[j] <= 0xE9 or data_B[j] == 0xEF:
            return True
    return False


@inner
def weak_phone(k: int, n: int, sizes: int, separators: int, groups_G3: Any, digits_N: Any) -> int:
    """Return WEAK for a shape that is a phone number only next to a word such as 'phone', else REJECT."""
    if n < 7 or n > 13:
        return REJECT
    zeros = 0
    for j in range(n):
        zeros += digits_N[j] == 0
    if 2 * zeros >= n:
        return REJECT
    if k == 1:
        return WEAK if 10 <= n <= 11 or (n == 8 and digits_N[0] >= 3) else REJECT
    for g in range(k):
        size = groups_G3[g, 1]
        if size > 8 or (size < 2 and g > 2):
            return REJECT
    # 04.25.2017 and 1.000.000 and 195.58.60 are no numbers to call; 01.84.17.61.18 and 930.167.3943 are.
    if separators & DOTS and (separators != DOTS or (k == 3 and n < 10)):
        return REJECT
    if k == 2 and separators & (DOTS | SLASHES) and digits_N[0] != 0:
        return REJECT
    if k == 3 and (sizes == 0x422 or sizes == 0x224 or sizes == 0x124 or sizes == 0x214):  # dates
        return REJECT
    if sizes == 0x44:  # 1998-2003 are years
        century = digits_N[0] * 10 + digits_N[1]
        other = digits_N[4] * 10 + digits_N[5]
        if 18 <= century <= 20 and 18 <= other <= 20:
            return REJECT
    return WEAK


@inner
def extension_end(data_B: Any, hi: int, end: int, tables_T: Any) -> int:
    """Return the end of an extension (``x123``, `` ext. 45``) after a phone number, or `end`."""
    j = end
    if j < hi and data_B[j] == 32:
        j += 1
    if j < hi and data_B[j] | 32 == 120:
        j += 1
    elif j + 2 < hi and data_B[j] | 32 == 101 and data_B[j + 1] | 32 == 120 and data_B[j + 2] | 32 == 116:
        j += 3
        while j < hi and j < end + 6 and data_B[j] in (32, 46, 58):
            j += 1
    else:
        return end
    start = j
    while j < hi and tables_T[data_B[j]] & DIGIT and j - start < 7:
        j += 1
    if j == start or j - start > 6 or (j < hi and tables_T[data_B[j]] & ALNUM):
        return end
    return j


@inner
def phone_at(
    data_B: Any, lo: int, hi: int, k: int, tables_T: Any, groups_G3: Any, digits_N: Any,
) -> tuple[int, int]:  # fmt: skip
    """Return ``(start, end)`` of the phone number that begins with the parsed groups, or ``(0, 0)``."""
    start = groups_G3[0, 0]
    plus = False
    if start > lo and data_B[start - 1] == 40:
        start -= 1
    elif start > lo and data_B[start - 1] == 43:
        start -= 1
        plus = True
        if start > lo and data_B[start - 1] == 40:
            start -= 1
    left = left_strength(data_B, lo, start, tables_T)
    if left == REJECT:
        return 0, 0
    near = -1
    total = groups_G3[0, 1]
    for g in range(1, k):
        total += groups_G3[g, 1]
    for used in range(k, 0, -1):
        n = total
        total -= groups_G3[used - 1, 1]
        if n > 16 or n < 7:
            continue
        end = groups_G3[used - 1, 0] + groups_G3[used - 1, 1]
        shape = phone_shape(used, n, plus, tables_T, groups_G3, digits_N)
        if shape == REJECT:
            continue
        if used < k:
            code = groups_G3[used - 1, 2]
            right = REJECT if code == HYPHEN or code == DOT or code == SLASH else CLEAN
            if code == SPACE and (used == 1 or groups_G3[used - 2, 2] == SPACE):
                right = REJECT if shape == WEAK and used > 1 else WEAK
        else:
            longer = extension_end(data_B, hi, end, tables_T)
            right = right_strength(data_B, hi, longer, tables_T)
            end = longer
        if right == REJECT:
            continue
        if shape == CHINESE and not chinese_around(data_B, lo, hi, start, end):
            shape = WEAK
        if shape == WEAK or left == WEAK or right == WEAK:
            if near < 0:
                near = 1 if has_context(data_B, max(lo, start - 28), start, PHONE_CONTEXT, tables_T) else 0
            if near == 0 and not has_context(data_B, end, min(hi, end + 8), PHONE_CONTEXT, tables_T):
                continue
        return start, end
    return 0, 0
