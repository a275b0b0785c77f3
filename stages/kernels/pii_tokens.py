"""Identifiers that are not plain numbers: e-mail, IPv6, keys and tokens.

Each function is called at one trigger byte, looks a bounded number of bytes to either side and returns an exact
span, so that any text costs linear time. Legend: ``data_B`` uint8 text, the document is ``data_B[lo:hi]``.
"""

# ruff: noqa: SIM102, SIM110 - shapes that Numba compiles to plain branches
from __future__ import annotations

from typing import Any

from numba import njit

from gristmill.stages.kernels.pii_tables import (
    ACCOUNT_KEY,
    ALNUM,
    ALPHA,
    BASE64,
    BEGIN,
    DASHES,
    DIGIT,
    DOT_EYJ,
    END,
    GIT,
    HEX,
    KEY_BLOCK,
    KEYS,
    LOCAL,
    PADDING,
    PRIVATE_KEY,
    PUNYCODE,
)

MAX_LOCAL, MAX_DOMAIN, MAX_LABEL = 64, 253, 63
MAX_KEY = 16_384
"""Bytes that a private key block or a JWT may span."""


inner = njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@inner
def starts(data_B: Any, hi: int, at: int, mark: tuple[int, int], tables_T: Any) -> bool:
    """Return whether ``data_B[at:hi]`` begins with one of the fixed strings of `pii_tables`."""
    word, n = mark
    if at < 0 or at + n > hi:
        return False
    for j in range(n):
        if data_B[at + j] != tables_T[word + j]:
            return False
    return True


@inner
def email_at(data_B: Any, lo: int, hi: int, i: int, tables_T: Any) -> tuple[int, int]:
    """Return ``(start, end)`` of the address around the ``@`` at `i`, or ``(0, 0)``.

    The local part is the dot-atom of RFC 5322 in the characters people use, at most 64 bytes; the domain is
    labels of at most 63 letters, digits and inner hyphens, the last one letters only or ``xn--``.
    """
    start = i
    while start > lo and i - start <= MAX_LOCAL and tables_T[data_B[start - 1]] & LOCAL:
        if data_B[start - 1] == 46 and start < i and data_B[start] == 46:
            start += 1
            break
        start -= 1
    if i - start > MAX_LOCAL:
        return 0, 0
    while start < i and not (tables_T[data_B[start]] & ALNUM or data_B[start] == 95):
        start += 1
    if start == i or not (tables_T[data_B[i - 1]] & ALNUM or data_B[i - 1] in (95, 45, 43)):
        return 0, 0
    end = 0
    labels = 0
    j = i + 1
    limit = min(hi, j + MAX_DOMAIN)
    while j < limit:
        label = j
        letters = True
        while j < limit and (tables_T[data_B[j]] & ALNUM or data_B[j] == 45):
            letters = letters and tables_T[data_B[j]] & ALPHA != 0
            j += 1
        n = j - label
        if n == 0 or n > MAX_LABEL or data_B[label] == 45:
            break
        tail = j
        while data_B[tail - 1] == 45:
            tail -= 1
        labels += 1
        if labels >= 2 and ((letters and n >= 2 and n <= 24) or starts(data_B, hi, label, PUNYCODE, tables_T)):
            if not is_file_suffix(data_B, label, n):
                end = tail
        if tail != j or j >= limit or data_B[j] != 46:
            break
        j += 1
    if end == 0 or (end < hi and data_B[end] == 64):
        return 0, 0
    if i - start == 3 and starts(data_B, hi, start, GIT, tables_T) and end < hi and data_B[end] in (58, 47):
        return 0, 0  # git@host:path is the address of a repository
    return start, end


@inner
def is_file_suffix(data_B: Any, at: int, n: int) -> bool:
    """Return whether the label is no top-level domain but the suffix of a file name (``icon@2x.png``)."""
    if n > 4:
        return False
    word = 0
    for j in range(n):
        word = word << 8 | (data_B[at + j] | 32)
    # png jpg jpeg gif svg webp css js json html htm exe pdf
    return word in (
        0x706E67, 0x6A7067, 0x6A706567, 0x676966, 0x737667, 0x77656270, 0x637373, 0x6A73, 0x6A736F6E, 0x68746D6C,
        0x68746D, 0x657865, 0x706466,
    )  # fmt: skip


@inner
def hex_value(byte: int) -> int:
    """Return the value of an ASCII hexadecimal digit."""
    return byte - 48 if byte < 58 else (byte | 32) - 87


@inner
def ipv6_at(data_B: Any, lo: int, hi: int, i: int, tables_T: Any, keep_reserved: bool) -> tuple[int, int]:
    """Return ``(start, end)`` of the IPv6 address whose first colon is at `i`, or ``(0, 0)`` (RFC 4291).

    Global unicast (2000::/3) without 2001:db8::/32, and others only in full length; ULA and link-local if reserved
    ones are not kept.
    """
    start = i
    while start > lo and i - start <= 4 and tables_T[data_B[start - 1]] & HEX:
        start -= 1
    if i - start != 4 or (start > lo and (tables_T[data_B[start - 1]] & ALNUM or data_B[start - 1] in (58, 46, 95))):
        return 0, 0
    groups = 0
    wide = 0
    second = 0
    compressed = False
    j = start
    end = 0
    while j < hi:
        group = j
        value = 0
        while j < hi and j - group < 5 and tables_T[data_B[j]] & HEX:
            value = value << 4 | hex_value(data_B[j])
            j += 1
        if j - group == 0 or j - group > 4:
            return 0, 0
        groups += 1
        wide += j - group >= 3
        if groups == 2 and not (compressed and second == -1):
            second = value
        end = j
        if j >= hi or data_B[j] != 58:
            break
        if j + 1 < hi and data_B[j + 1] == 58:
            if compressed:
                return 0, 0
            compressed = True
            if groups == 1:
                second = -1
            j += 2
            end = j
            if j >= hi or not tables_T[data_B[j]] & HEX:
                break
        elif j + 1 < hi and tables_T[data_B[j + 1]] & HEX:
            j += 1
        else:
            break
        if groups > 8:
            return 0, 0
    if (groups != 8 and not compressed) or (compressed and groups > 7) or data_B[end - 1] == 58:  # 2001:: is a range
        return 0, 0
    if end < hi and (tables_T[data_B[end]] & ALNUM or data_B[end] == 95):
        return 0, 0
    if end < hi and data_B[end] == 58 and end + 1 < hi and data_B[end + 1] == 58:
        return 0, 0
    first = 0
    for index in range(start, start + 4):
        first = first << 4 | hex_value(data_B[index])
    if 0x2000 <= first <= 0x3FFF:
        documentation = (first == 0x2001 and second == 0xDB8) or first == 0x3FFF
        return (0, 0) if documentation and keep_reserved else (start, end)
    if first & 0xFE00 == 0xFC00 or first & 0xFFC0 == 0xFE80:
        return (0, 0) if keep_reserved else (start, end)
    return (start, end) if groups == 8 and wide >= 6 and first >= 0x1000 else (0, 0)


@inner
def run_end(data_B: Any, hi: int, at: int, flags: int, tables_T: Any, most: int) -> int:
    """Return the end of the run of bytes of class `flags` from `at` on, looking at most `most` bytes ahead."""
    j = at
    stop = min(hi, at + most)
    while j < stop and tables_T[data_B[j]] & flags:
        j += 1
    return j


@inner
def looks_random(data_B: Any, lo: int, hi: int, letters_do: int, tables_T: Any) -> bool:
    """Return whether a key body is no placeholder: two kinds of characters, digits among them unless `letters_do`.

    At least ten different bytes, and not the word EXAMPLE at the end.
    """
    low = 0
    high = 0
    kinds = 0
    for j in range(lo, hi):
        byte = int(data_B[j])
        kinds |= tables_T[byte]
        if byte < 64:
            low |= 1 << byte
        else:
            high |= 1 << (byte - 64)
    distinct = 0
    for _ in range(64):
        distinct += (low & 1) + (high & 1)
        low >>= 1
        high >>= 1
    if distinct < 10 or not kinds & ALPHA or not (kinds & DIGIT or (letters_do and kinds & ALPHA == ALPHA)):
        return False
    return not (data_B[hi - 1] == 69 and data_B[hi - 2] == 76 and data_B[hi - 6] == 88 and data_B[hi - 7] == 69)


@inner
def free_before(data_B: Any, lo: int, start: int, tables_T: Any) -> bool:
    """Return whether no letter, digit, ``_`` or ``-`` stands right before `start`."""
    return start == lo or not (tables_T[data_B[start - 1]] & BASE64)


@inner
def key_at(data_B: Any, lo: int, hi: int, i: int, tables_T: Any) -> tuple[int, int]:
    """Return ``(start, end)`` of the secret that the trigger byte at `i` betrays, or ``(0, 0)``.

    The keys of ``pii_tables`` by prefix, Azure storage keys, JSON Web Tokens (RFC 7519), PEM private key blocks
    (RFC 7468).
    """
    byte = data_B[i]
    at = KEYS
    while tables_T[at]:
        n = int(tables_T[at + 5])
        start = i - tables_T[at + 1]
        if tables_T[at] == byte and start >= lo and starts(data_B, hi, start, (at + 6, n), tables_T):
            body = start + n
            flags = tables_T[at + 4]
            end = run_end(data_B, hi, body, flags & 63, tables_T, tables_T[at + 3] + 1)
            size = end - body
            if tables_T[at + 2] <= size <= tables_T[at + 3] and free_before(data_B, lo, start, tables_T):
                if looks_random(data_B, body, end, flags & 64, tables_T):
                    return start, end
            return 0, 0
        at += 6 + n
    if byte == 45:  # -
        if starts(data_B, hi, i, BEGIN, tables_T) and (i == lo or data_B[i - 1] != 45):
            return i, private_key_end(data_B, hi, i, tables_T)
    elif byte == 61:  # AccountKey=
        if i - 10 >= lo and starts(data_B, hi, i - 10, ACCOUNT_KEY, tables_T):
            j = i + 1
            while j < hi and j - i <= 90 and (tables_T[data_B[j]] & ALNUM or data_B[j] == 43 or data_B[j] == 47):
                j += 1
            if j - i - 1 == 86 and starts(data_B, hi, j, PADDING, tables_T):
                return i + 1, j + 2
    elif byte == 74 and i - 2 >= lo and data_B[i - 1] == 121 and data_B[i - 2] == 101:  # eyJ
        return jwt_at(data_B, lo, hi, i - 2, tables_T)
    return 0, 0


@inner
def jwt_at(data_B: Any, lo: int, hi: int, start: int, tables_T: Any) -> tuple[int, int]:
    """Return the span of a compact JWS: three base64url parts, the first two JSON objects (``eyJ``)."""
    if not free_before(data_B, lo, start, tables_T) or (start > lo and data_B[start - 1] == 46):
        return 0, 0
    first = run_end(data_B, hi, start, BASE64, tables_T, MAX_KEY)
    if first - start < 16 or not starts(data_B, hi, first, DOT_EYJ, tables_T):
        return 0, 0
    second = run_end(data_B, hi, first + 1, BASE64, tables_T, MAX_KEY)
    if second - first < 10 or second >= hi or data_B[second] != 46:
        return 0, 0
    end = run_end(data_B, hi, second + 1, BASE64, tables_T, MAX_KEY)
    return (start, end) if end - second > 16 else (0, 0)


@inner
def private_key_end(data_B: Any, hi: int, i: int, tables_T: Any) -> int:
    """Return the end of the PEM private key block that begins at `i`, 0 if it is another kind of block.

    A block cut off by the end of the document, or longer than 16 KiB, is taken as far as its base64 lines go.
    """
    j = i + 11
    stop = min(hi, j + 40)
    while j < stop and data_B[j] != 45:
        j += 1
    if not starts(data_B, hi, j, DASHES, tables_T) or not (
        starts(data_B, hi, j - 11, PRIVATE_KEY, tables_T) or starts(data_B, hi, j - 17, KEY_BLOCK, tables_T)
    ):
        return 0
    body = j + 5
    j = body
    stop = min(hi, body + MAX_KEY)
    while j < stop:
        if data_B[j] == 45 and starts(data_B, hi, j, END, tables_T):
            j += 9
            while j < hi and data_B[j] not in (45, 10):
                j += 1
            while j < hi and data_B[j] == 45:
                j += 1
            return j if j - body > 40 else 0
        if data_B[j] >= 0x80:
            break
        j += 1
    return j if j - body > 64 and stop == hi and j == hi else 0


@inner
def url_password_at(data_B: Any, lo: int, hi: int, i: int) -> tuple[int, int]:
    """Return the span of the password in ``scheme://user:password@host`` with its ``@`` at `i`, or ``(0, 0)``."""
    j = i - 1
    stop = max(lo, i - 200)
    colon = 0
    while j > stop:
        byte = data_B[j]
        if byte <= 32 or byte in (34, 39, 60, 62, 64, 96, 40, 41) or byte >= 0x80:
            return 0, 0
        if byte == 58:
            if j + 2 < hi and data_B[j + 1] == 47 and data_B[j + 2] == 47:
                break
            colon = j
        if byte == 47 and not (data_B[j - 1] == 47 or data_B[j - 1] == 58):
            return 0, 0
        j -= 1
    if j <= stop or colon <= j or i - colon < 4 or i + 1 >= hi or data_B[i + 1] <= 32:
        return 0, 0
    first = data_B[colon + 1]
    if first in (36, 123, 42, 37, 91) or data_B[i - 1] in (93, 125):  # ${PASSWORD}, {password}, ***, %s, [:password]
        return 0, 0
    return colon + 1, i
