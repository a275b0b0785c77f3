"""Identifiers that are not plain numbers: e-mail, IPv6, keys and tokens.

Each function is called at one trigger byte, looks a bounded number of bytes to either side and returns an exact
span, so that any text costs linear time. Legend: ``data_B`` uint8 text, the document is ``data_B[lo:hi]``.
"""

# ruff: noqa: PLR1714, SIM102, SIM110 - shapes that Numba compiles to plain branches
from __future__ import annotations

from typing import Any

from numba import njit

from gristmill.stages.kernels.pii_tables import ALNUM, ALPHA, BASE64, DIGIT, HEX, LOCAL, LOWER_CASE, UPPER

MAX_LOCAL, MAX_DOMAIN, MAX_LABEL = 64, 253, 63
MAX_KEY = 16_384
"""Bytes that a private key block or a JWT may span."""


inner = njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@inner
def starts(data_B: Any, hi: int, at: int, word: bytes) -> bool:
    """Return whether ``data_B[at:hi]`` begins with `word` (ASCII)."""
    if at < 0 or at + len(word) > hi:
        return False
    for j in range(len(word)):
        if data_B[at + j] != word[j]:
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
        if labels >= 2 and ((letters and n >= 2 and n <= 24) or starts(data_B, hi, label, b"xn--")):
            if not is_file_suffix(data_B, label, n):
                end = tail
        if tail != j or j >= limit or data_B[j] != 46:
            break
        j += 1
    if end == 0 or (end < hi and data_B[end] == 64):
        return 0, 0
    if i - start == 3 and starts(data_B, hi, start, b"git") and end < hi and data_B[end] in (58, 47):
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
def looks_random(data_B: Any, lo: int, hi: int, tables_T: Any) -> bool:
    """Return whether a key body is no placeholder: digits and letters, at least ten different bytes."""
    low = 0
    high = 0
    digits = 0
    letters = 0
    for j in range(lo, hi):
        byte = data_B[j]
        if tables_T[byte] & DIGIT:
            digits += 1
        elif tables_T[byte] & ALPHA:
            letters += 1
        if byte < 64:
            low |= 1 << int(byte)
        else:
            high |= 1 << int(byte - 64)
    distinct = 0
    for _ in range(64):
        distinct += (low & 1) + (high & 1)
        low >>= 1
        high >>= 1
    return digits > 0 and letters > 0 and distinct >= 10


@inner
def free_before(data_B: Any, lo: int, start: int, tables_T: Any) -> bool:
    """Return whether no letter, digit, ``_`` or ``-`` stands right before `start`."""
    return start == lo or not (tables_T[data_B[start - 1]] & BASE64)


@inner
def exact_key(data_B: Any, lo: int, hi: int, start: int, body: int, n: int, flags: int, tables_T: Any) -> int:
    """Return the end of a key whose body at `body` is exactly `n` bytes of class `flags`, else 0."""
    end = run_end(data_B, hi, body, flags, tables_T, n + 1)
    if end - body != n or not free_before(data_B, lo, start, tables_T) or not looks_random(data_B, body, end, tables_T):
        return 0
    return end


@inner
def long_key(
    data_B: Any, lo: int, hi: int, start: int, body: int, least: int, most: int, flags: int, tables_T: Any
) -> int:
    """Return the end of a key whose body at `body` is `least` to `most` bytes of class `flags`, else 0."""
    end = run_end(data_B, hi, body, flags, tables_T, most + 1)
    n = end - body
    if n < least or n > most or not free_before(data_B, lo, start, tables_T):
        return 0
    return end if looks_random(data_B, body, end, tables_T) else 0


@inner
def key_at(data_B: Any, lo: int, hi: int, i: int, tables_T: Any) -> tuple[int, int]:
    """Return ``(start, end)`` of the secret that the trigger byte at `i` betrays, or ``(0, 0)``.

    AWS access key ids, Google API keys, GitHub, GitLab, Slack, Stripe, OpenAI-style, npm, Hugging Face and PyPI
    tokens, Azure storage keys, JSON Web Tokens (RFC 7519), PEM private key blocks (RFC 7468).
    """
    byte = data_B[i]
    end = 0
    if byte == 95:  # _
        if i - 3 >= lo and starts(data_B, hi, i - 3, b"gh") and data_B[i - 1] in (112, 111, 117, 115, 114):
            end = exact_key(data_B, lo, hi, i - 3, i + 1, 36, ALNUM, tables_T)
            return (i - 3, end) if end else (0, 0)
        if i - 6 >= lo and starts(data_B, hi, i - 6, b"github_pat_"):
            end = long_key(data_B, lo, hi, i - 6, i + 5, 60, 90, BASE64, tables_T)
            return (i - 6, end) if end else (0, 0)
        if i - 2 >= lo and (starts(data_B, hi, i - 1, b"k_live_") or starts(data_B, hi, i - 1, b"k_test_")):
            if data_B[i - 2] == 115 or data_B[i - 2] == 114:  # sk_live_, rk_live_
                end = long_key(data_B, lo, hi, i - 2, i + 6, 16, 110, ALNUM, tables_T)
            return (i - 2, end) if end else (0, 0)
        if i - 3 >= lo and starts(data_B, hi, i - 3, b"npm_"):
            end = exact_key(data_B, lo, hi, i - 3, i + 1, 36, ALNUM, tables_T)
            return (i - 3, end) if end else (0, 0)
        if i - 2 >= lo and starts(data_B, hi, i - 2, b"hf_"):
            end = long_key(data_B, lo, hi, i - 2, i + 1, 34, 40, ALNUM, tables_T)
            if end == 0 and run_end(data_B, hi, i + 1, ALPHA, tables_T, 35) - i - 1 == 34:
                mixed = run_end(data_B, hi, i + 1, LOWER_CASE, tables_T, 34) < i + 35
                end = i + 35 if mixed and free_before(data_B, lo, i - 2, tables_T) else 0
            return (i - 2, end) if end else (0, 0)
        return 0, 0
    if byte == 45:  # -
        if i + 1 < hi and data_B[i + 1] == 45:
            if starts(data_B, hi, i, b"-----BEGIN ") and (i == lo or data_B[i - 1] != 45):
                return i, private_key_end(data_B, hi, i)
            return 0, 0
        if i - 2 >= lo and starts(data_B, hi, i - 2, b"sk-"):
            end = long_key(data_B, lo, hi, i - 2, i + 1, 32, 220, BASE64, tables_T)
            if end and run_end(data_B, end, i + 1, LOWER_CASE | 64, tables_T, 220) == end:
                end = 0
            return (i - 2, end) if end else (0, 0)
        if i - 4 >= lo and starts(data_B, hi, i - 4, b"xox") and data_B[i - 1] in (97, 98, 112, 114, 115):
            end = long_key(data_B, lo, hi, i - 4, i + 1, 20, 200, BASE64, tables_T)
            return (i - 4, end) if end else (0, 0)
        if i - 5 >= lo and starts(data_B, hi, i - 5, b"glpat-"):
            end = long_key(data_B, lo, hi, i - 5, i + 1, 20, 60, BASE64, tables_T)
            return (i - 5, end) if end else (0, 0)
        if i - 4 >= lo and starts(data_B, hi, i - 4, b"pypi-AgEIcHlwaS5vcmc"):
            end = long_key(data_B, lo, hi, i - 4, i + 1, 50, 1000, BASE64, tables_T)
            return (i - 4, end) if end else (0, 0)
        return 0, 0
    if byte == 75 or byte == 83:  # AKIA, ASIA
        if i - 1 >= lo and data_B[i - 1] == 65 and starts(data_B, hi, i + 1, b"IA"):
            end = exact_key(data_B, lo, hi, i - 1, i + 3, 16, UPPER | DIGIT, tables_T)
            if end and starts(data_B, hi, end - 7, b"EXAMPLE"):
                end = 0
            return (i - 1, end) if end else (0, 0)
        return 0, 0
    if byte == 122:  # AIza
        if i - 2 >= lo and starts(data_B, hi, i - 2, b"AIza"):
            end = exact_key(data_B, lo, hi, i - 2, i + 2, 35, BASE64, tables_T)
            return (i - 2, end) if end else (0, 0)
        return 0, 0
    if byte == 61:  # AccountKey=
        if i - 10 >= lo and data_B[i - 1] == 121 and starts(data_B, hi, i - 10, b"AccountKey="):
            j = i + 1
            while j < hi and j - i <= 90 and (tables_T[data_B[j]] & ALNUM or data_B[j] in (43, 47)):
                j += 1
            if j - i - 1 == 86 and starts(data_B, hi, j, b"=="):
                return i + 1, j + 2
        return 0, 0
    if i - 2 >= lo and data_B[i - 1] == 121 and data_B[i - 2] == 101:  # eyJ
        return jwt_at(data_B, lo, hi, i - 2, tables_T)
    return 0, 0


@inner
def jwt_at(data_B: Any, lo: int, hi: int, start: int, tables_T: Any) -> tuple[int, int]:
    """Return the span of a compact JWS: three base64url parts, the first two JSON objects (``eyJ``)."""
    if not free_before(data_B, lo, start, tables_T) or (start > lo and data_B[start - 1] == 46):
        return 0, 0
    first = run_end(data_B, hi, start, BASE64, tables_T, MAX_KEY)
    if first - start < 16 or not starts(data_B, hi, first, b".eyJ"):
        return 0, 0
    second = run_end(data_B, hi, first + 1, BASE64, tables_T, MAX_KEY)
    if second - first < 10 or second >= hi or data_B[second] != 46:
        return 0, 0
    end = run_end(data_B, hi, second + 1, BASE64, tables_T, MAX_KEY)
    return (start, end) if end - second > 16 else (0, 0)


@inner
def private_key_end(data_B: Any, hi: int, i: int) -> int:
    """Return the end of the PEM private key block that begins at `i`, 0 if it is another kind of block.

    A block cut off by the end of the document, or longer than 16 KiB, is taken as far as its base64 lines go.
    """
    j = i + 11
    stop = min(hi, j + 40)
    while j < stop and data_B[j] != 45:
        j += 1
    if not starts(data_B, hi, j, b"-----") or not (
        starts(data_B, hi, j - 11, b"PRIVATE KEY") or starts(data_B, hi, j - 17, b"PRIVATE KEY BLOCK")
    ):
        return 0
    body = j + 5
    j = body
    stop = min(hi, body + MAX_KEY)
    while j < stop:
        if data_B[j] == 45 and starts(data_B, hi, j, b"-----END "):
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
    placeholder = i - colon == 9 and starts(data_B, hi, colon + 1, b"password")
    short = i - colon == 5 and starts(data_B, hi, colon + 1, b"pass")
    return (0, 0) if placeholder or short else (colon + 1, i)
