"""Phone numbers: conservative shapes that are sure by themselves, wider ones only next to a word such as "phone".

Digits of pi, version numbers, timestamps, dates and counters are no phone numbers. Sure: a country calling code
behind ``+`` (E.164), Chinese mobiles by allocated prefix, Chinese landlines and 400 numbers with their separators,
North American numbers with valid area and exchange. Legend as in `pii_numbers`.
"""

# ruff: noqa: PLR1714, SIM102, SIM109, SIM110 - shapes that Numba compiles to plain branches
from __future__ import annotations

from typing import Any

from numba import njit

from gristmill.stages.kernels.pii_numbers import (
    CLEAN,
    DOT,
    HYPHEN,
    PAREN,
    REJECT,
    SLASH,
    SPACE,
    WEAK,
    has_context,
    left_strength,
    right_strength,
)
from gristmill.stages.kernels.pii_tables import ALNUM, CODES, DIGIT, MOBILES, PHONE_CONTEXT

inner = njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)

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
def phone_shape(
    k: int, n: int, plus: bool, tables_T: Any, groups_G3: Any, digits_N: Any,
) -> int:  # fmt: skip
    """Return how sure the first `k` groups (`n` digits) are a phone number: CLEAN, WEAK or REJECT."""
    g0 = groups_G3[0, 1]
    g1 = groups_G3[1, 1] if k > 1 else 0
    g2 = groups_G3[2, 1] if k > 2 else 0
    s0 = groups_G3[0, 2] if k > 1 else 0
    s1 = groups_G3[1, 2] if k > 2 else 0
    if plus:
        if k == 2 and s0 == DOT:
            return REJECT
        return international(digits_N, 0, n, k, tables_T)
    if digits_N[0] == 0 and digits_N[1] == 0 and n >= 11 and g0 >= 2 and s0 != DOT:
        sure = international(digits_N, 2, n, k, tables_T)
        china = digits_N[2] == 8 and digits_N[3] == 6 and digits_N[4] == 1
        if sure != CLEAN:
            return sure
        dump = g0 == 4 and g1 == 4 and g2 == 4
        return CLEAN if (k > 1 and 3 <= g0 <= 5 and not dump) or (china and n == 15) else WEAK
    if n == 11 and digits_N[0] == 1 and tables_T[MOBILES + 100 + digits_N[1] * 10 + digits_N[2]]:
        if k == 1:
            return CHINESE
        if k == 3 and s0 == s1 and (s0 == SPACE or s0 == HYPHEN):
            if (g0 == 3 and g1 == 4 and g2 == 4) or (g0 == 4 and g1 == 3) or (g0 == 3 and g1 == 3 and g2 == 5):
                return CLEAN
    if n == 13 and digits_N[0] == 8 and digits_N[1] == 6 and digits_N[2] == 1 and (g0 == 2 or k == 1):
        if tables_T[MOBILES + 100 + digits_N[3] * 10 + digits_N[4]]:
            return CLEAN
    # North America: NXX-NXX-XXXX, (NXX) NXX-XXXX, 1-NXX-NXX-XXXX
    first = 1 if k == 4 and g0 == 1 and digits_N[0] == 1 else 0
    if k == 3 + first and n == 10 + first and groups_G3[first, 1] == 3 and groups_G3[first + 1, 1] == 3:
        a = groups_G3[first, 2]
        b = groups_G3[first + 1, 2]
        separated = (a == b and (a == HYPHEN or a == DOT)) or (a == PAREN and b in (HYPHEN, SPACE, DOT))
        if separated and digits_N[first] >= 2 and digits_N[first + 3] >= 2 and digits_N[first + 1] != 9:
            service = digits_N[first + 1] == 1 and digits_N[first + 2] == 1  # 911-...
            if not service:
                return CLEAN
    # China: 010-12345678, (0755) 1234567, 400-123-4567, 4008-123-123
    if k == 2 and digits_N[0] == 0 and digits_N[1] != 0 and (g0 == 3 or g0 == 4) and (g1 == 7 or g1 == 8):
        if (s0 == HYPHEN or s0 == PAREN) and digits_N[g0] >= 2:
            return CLEAN
    if n == 10 and (digits_N[0] == 4 or digits_N[0] == 8) and digits_N[1] == 0 and digits_N[2] == 0:
        if k == 3 and s0 == HYPHEN and s1 == HYPHEN and (g0 == 3 or g0 == 4):
            return CLEAN
    return weak_phone(k, n, groups_G3, digits_N)


@inner
def chinese_around(data_B: Any, lo: int, hi: int, start: int, end: int) -> bool:
    """Return whether a three-byte character of CJK (U+3000 to U+9FFF or full width) is within 40 bytes."""
    for j in range(max(lo, start - 40), min(hi, end + 40)):
        if 0xE3 <= data_B[j] <= 0xE9 or data_B[j] == 0xEF:
            return True
    return False


@inner
def weak_phone(k: int, n: int, groups_G3: Any, digits_N: Any) -> int:
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
    dots = 0
    others = 0
    for g in range(k):
        size = groups_G3[g, 1]
        if size > 8 or (size < 2 and g > 2):
            return REJECT
        if g < k - 1:
            dots += groups_G3[g, 2] == DOT
            others += groups_G3[g, 2] in (SPACE, HYPHEN, SLASH)
    # 04.25.2017 and 1.000.000 and 195.58.60 are no numbers to call; 01.84.17.61.18 and 930.167.3943 are.
    if dots and (others or (k == 3 and n < 10)):
        return REJECT
    if k == 2 and groups_G3[0, 2] in (DOT, SLASH) and digits_N[0] != 0:
        return REJECT
    if k == 3:  # dates: 2024-01-31, 31.01.2024
        a = groups_G3[0, 1]
        b = groups_G3[1, 1]
        c = groups_G3[2, 1]
        if (a == 4 and b <= 2 and c <= 2) or (a <= 2 and b <= 2 and c == 4):
            return REJECT
    if k == 2 and groups_G3[0, 1] == 4 and groups_G3[1, 1] == 4:  # 1998-2003 are years
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
    total = 0
    for g in range(k):
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
