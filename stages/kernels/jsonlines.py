"""JSON Lines without Python objects: find lines, validate records, cut out the wanted fields, unescape strings.

One pass over the bytes validates a record against RFC 8259 and notes where each wanted value lies; strings are
unescaped straight into an Arrow buffer; everything not asked for is kept verbatim. O(bytes), no allocation a record.

Legend: ``data_B`` uint8 block of bytes; ``starts_R``, ``ends_R`` int64, record r is ``data_B[starts_R[r]:ends_R[r]]``;
``keys_X``, ``key_offsets_K1``: the K wanted keys, joined; ``spans_RK2`` int64, value k of record r, (-1, -1) if absent;
``status_R`` uint8, one of the codes below.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

OK, BLANK, INVALID_JSON, NOT_AN_OBJECT, DUPLICATE_KEY, TOO_DEEP, INVALID_UTF8, LONE_SURROGATE, NUL_BYTE = range(9)
REASONS = (
    "",
    "blank",
    "invalid_json",
    "not_an_object",
    "duplicate_key",
    "too_deep",
    "invalid_utf8",
    "lone_surrogate",
    "nul_byte",
)
MAX_DEPTH = 256
_INVALID, _DEEP = -1, -2


@njit(nogil=True, cache=True)
def find_lines(data_B: Any, n_bytes: int, final: bool, starts_R: Any, ends_R: Any) -> tuple[int, int]:
    """Fill `starts_R`, `ends_R` with lines (without LF) and return ``(lines, bytes consumed)``.

    A last line without LF counts only if `final`. The arrays must hold as many lines as there are.
    """
    r = 0
    start = 0
    for i in range(n_bytes):
        if data_B[i] == 10:
            starts_R[r] = start
            ends_R[r] = i
            r += 1
            start = i + 1
    if final and start < n_bytes:
        starts_R[r] = start
        ends_R[r] = n_bytes
        r += 1
        start = n_bytes
    return r, start


@njit(nogil=True, cache=True)
def utf8_error(data_B: Any, start: int, end: int) -> int:
    """Return the position of the first byte that is not valid UTF-8 (RFC 3629), or -1."""
    i = start
    while i < end:
        a = data_B[i]
        if a < 0x80:
            i += 1
            continue
        if 0xC2 <= a <= 0xDF:
            n, low, high = 1, 0x80, 0xBF
        elif a == 0xE0:
            n, low, high = 2, 0xA0, 0xBF
        elif a == 0xED:
            n, low, high = 2, 0x80, 0x9F
        elif 0xE1 <= a <= 0xEF:
            n, low, high = 2, 0x80, 0xBF
        elif a == 0xF0:
            n, low, high = 3, 0x90, 0xBF
        elif 0xF1 <= a <= 0xF3:
            n, low, high = 3, 0x80, 0xBF
        elif a == 0xF4:
            n, low, high = 3, 0x80, 0x8F
        else:
            return i
        if i + n >= end or not low <= data_B[i + 1] <= high:
            return i
        for j in range(i + 2, i + n + 1):
            if data_B[j] & 0xC0 != 0x80:
                return i
        i += n + 1
    return -1


@njit(nogil=True, cache=True)
def text_faults(offsets_D1: Any, data_B: Any, fault_D: Any) -> None:
    """Set ``fault_D[d]`` to 0 (fine), 1 (invalid UTF-8) or 2 (holds a NUL byte)."""
    for d in range(len(offsets_D1) - 1):
        fault_D[d] = 0
        start, end = offsets_D1[d], offsets_D1[d + 1]
        for i in range(start, end):
            if data_B[i] == 0:
                fault_D[d] = 2
                break
        if utf8_error(data_B, start, end) >= 0:
            fault_D[d] = 1


@njit(nogil=True, cache=True)
def _space(data_B: Any, i: int, end: int) -> int:
    while i < end and (data_B[i] == 32 or data_B[i] == 9 or data_B[i] == 13 or data_B[i] == 10):
        i += 1
    return i


@njit(nogil=True, cache=True)
def _string(data_B: Any, i: int, end: int) -> int:
    """Return the position after the string that opens at i, or _INVALID."""
    i += 1
    while i < end:
        c = data_B[i]
        if c == 34:
            return i + 1
        if c < 32:
            return _INVALID
        if c == 92:
            i += 1
            if i >= end:
                return _INVALID
            c = data_B[i]
            if c == 117:
                if i + 4 >= end:
                    return _INVALID
                for j in range(i + 1, i + 5):
                    h = data_B[j]
                    if not (48 <= h <= 57 or 65 <= h <= 70 or 97 <= h <= 102):
                        return _INVALID
                i += 4
            elif not (c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110 or c == 114 or c == 116):
                return _INVALID
        i += 1
    return _INVALID


@njit(nogil=True, cache=True)
def _digits(data_B: Any, i: int, end: int) -> int:
    while i < end and 48 <= data_B[i] <= 57:
        i += 1
    return i


@njit(nogil=True, cache=True)
def _number(data_B: Any, i: int, end: int) -> int:
    if i < end and data_B[i] == 45:
        i += 1
    j = _digits(data_B, i, end)
    if j == i or (data_B[i] == 48 and j > i + 1):
        return _INVALID
    i = j
    if i < end and data_B[i] == 46:
        j = _digits(data_B, i + 1, end)
        if j == i + 1:
            return _INVALID
        i = j
    if i < end and (data_B[i] == 101 or data_B[i] == 69):
        i += 1
        if i < end and (data_B[i] == 43 or data_B[i] == 45):
            i += 1
        j = _digits(data_B, i, end)
        if j == i:
            return _INVALID
        i = j
    return i


@njit(nogil=True, cache=True)
def _literal(data_B: Any, i: int, end: int) -> int:
    word = b"true" if data_B[i] == 116 else (b"false" if data_B[i] == 102 else b"null")
    if i + len(word) > end:
        return _INVALID
    for j in range(len(word)):
        if data_B[i + j] != word[j]:
            return _INVALID
    return i + len(word)


@njit(nogil=True, cache=True)
def _value(data_B: Any, i: int, end: int, stack: Any) -> int:
    """Return the position after the value that starts at i, _INVALID or _DEEP. `stack`: bool, 1 = in an object."""
    depth = 0
    while True:
        if i >= end:
            return _INVALID
        c = data_B[i]
        opened = False
        if c == 34:
            i = _string(data_B, i, end)
        elif c == 123 or c == 91:
            if depth == MAX_DEPTH:
                return _DEEP
            stack[depth] = c == 123
            depth += 1
            i = _space(data_B, i + 1, end)
            if i < end and data_B[i] == (125 if c == 123 else 93):
                i += 1
                depth -= 1
            else:
                opened = True
        elif c == 116 or c == 102 or c == 110:
            i = _literal(data_B, i, end)
        else:
            i = _number(data_B, i, end)
        if i < 0:
            return i
        while not opened:
            if depth == 0:
                return i
            i = _space(data_B, i, end)
            if i >= end:
                return _INVALID
            if data_B[i] == 44:
                i = _space(data_B, i + 1, end)
                break
            if data_B[i] != (125 if stack[depth - 1] else 93):
                return _INVALID
            i += 1
            depth -= 1
        if depth and stack[depth - 1]:
            if i >= end or data_B[i] != 34:
                return _INVALID
            i = _string(data_B, i, end)
            if i < 0:
                return i
            i = _space(data_B, i, end)
            if i >= end or data_B[i] != 58:
                return _INVALID
            i = _space(data_B, i + 1, end)


@njit(nogil=True, cache=True)
def _key_number(data_B: Any, start: int, end: int, keys_X: Any, key_offsets_K1: Any) -> int:
    for k in range(len(key_offsets_K1) - 1):
        a, b = key_offsets_K1[k], key_offsets_K1[k + 1]
        if b - a == end - start:
            same = True
            for j in range(b - a):
                if keys_X[a + j] != data_B[start + j]:
                    same = False
                    break
            if same:
                return k
    return -1


@njit(nogil=True, cache=True)
def scan_records(
    data_B: Any, starts_R: Any, ends_R: Any, keys_X: Any, key_offsets_K1: Any, spans_RK2: Any, status_R: Any, utf8: bool
) -> None:
    """Validate each record (as UTF-8 too, if `utf8`) and note where the wanted values lie."""
    stack = np.zeros(MAX_DEPTH, np.bool_)
    for r in range(len(starts_R)):
        spans_RK2[r, :, :] = -1
        status_R[r] = _record(data_B, starts_R[r], ends_R[r], keys_X, key_offsets_K1, spans_RK2[r], stack)
        if utf8 and utf8_error(data_B, starts_R[r], ends_R[r]) >= 0:
            status_R[r] = INVALID_UTF8


@njit(nogil=True, cache=True)
def _record(data_B: Any, i: int, end: int, keys_X: Any, key_offsets_K1: Any, spans_K2: Any, stack: Any) -> int:
    i = _space(data_B, i, end)
    if i >= end:
        return BLANK
    if data_B[i] != 123:
        i = _value(data_B, i, end, stack)
        return NOT_AN_OBJECT if i >= 0 and _space(data_B, i, end) == end else INVALID_JSON
    i = _space(data_B, i + 1, end)
    if i < end and data_B[i] == 125:
        i += 1
    else:
        while True:
            if i >= end or data_B[i] != 34:
                return INVALID_JSON
            start = i + 1
            i = _string(data_B, i, end)
            if i < 0:
                return INVALID_JSON
            k = _key_number(data_B, start, i - 1, keys_X, key_offsets_K1)
            i = _space(data_B, i, end)
            if i >= end or data_B[i] != 58:
                return INVALID_JSON
            start = _space(data_B, i + 1, end)
            i = _value(data_B, start, end, stack)
            if i < 0:
                return TOO_DEEP if i == _DEEP else INVALID_JSON
            if k >= 0:
                if spans_K2[k, 0] >= 0:
                    return DUPLICATE_KEY
                spans_K2[k, 0] = start
                spans_K2[k, 1] = i
            i = _space(data_B, i, end)
            if i < end and data_B[i] == 44:
                i = _space(data_B, i + 1, end)
                continue
            if i < end and data_B[i] == 125:
                i += 1
                break
            return INVALID_JSON
    return OK if _space(data_B, i, end) == end else INVALID_JSON


@njit(nogil=True, cache=True)
def _hex4(data_B: Any, i: int) -> int:
    value = 0
    for j in range(i, i + 4):
        h = int(data_B[j])
        value = value * 16 + (h - 48 if h <= 57 else (h | 32) - 87)
    return value


@njit(nogil=True, cache=True)
def unescape(data_B: Any, starts_R: Any, ends_R: Any, out_B: Any, out_offsets_R1: Any, status_R: Any) -> None:
    """Write the strings whose quoted spans are given, one after the other, as UTF-8.

    A span of (-1, -1) gives an empty string. `out_B` must hold the sum of the spans. A lone surrogate sets
    ``status_R[r] = LONE_SURROGATE`` and gives an empty string; a NUL sets NUL_BYTE.
    """
    o = 0
    out_offsets_R1[0] = 0
    for r in range(len(starts_R)):
        begin = o
        i = starts_R[r] + 1
        end = ends_R[r] - 1
        if starts_R[r] < 0:
            end = i
        while i < end:
            c = data_B[i]
            if c != 92:
                out_B[o] = c
                o += 1
                i += 1
                continue
            c = data_B[i + 1]
            i += 2
            if c != 117:
                if c == 110:
                    c = 10
                elif c == 116:
                    c = 9
                elif c == 114:
                    c = 13
                elif c == 98:
                    c = 8
                elif c == 102:
                    c = 12
                out_B[o] = c
                o += 1
                continue
            code = _hex4(data_B, i)
            i += 4
            if 0xD800 <= code <= 0xDFFF:
                low = 0
                if code < 0xDC00 and i + 6 <= end and data_B[i] == 92 and data_B[i + 1] == 117:
                    low = _hex4(data_B, i + 2)
                if not 0xDC00 <= low <= 0xDFFF:
                    status_R[r] = LONE_SURROGATE
                    o = begin
                    break
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                i += 6
            if code == 0:
                status_R[r] = NUL_BYTE
            o = _put_utf8(out_B, o, code)
        out_offsets_R1[r + 1] = o


@njit(nogil=True, cache=True)
def _put_utf8(out_B: Any, o: int, code: int) -> int:
    if code < 0x80:
        out_B[o] = code
        return o + 1
    if code < 0x800:
        out_B[o] = 0xC0 | (code >> 6)
        out_B[o + 1] = 0x80 | (code & 63)
        return o + 2
    if code < 0x10000:
        out_B[o] = 0xE0 | (code >> 12)
        out_B[o + 1] = 0x80 | ((code >> 6) & 63)
        out_B[o + 2] = 0x80 | (code & 63)
        return o + 3
    out_B[o] = 0xF0 | (code >> 18)
    out_B[o + 1] = 0x80 | ((code >> 12) & 63)
    out_B[o + 2] = 0x80 | ((code >> 6) & 63)
    out_B[o + 3] = 0x80 | (code & 63)
    return o + 4


@njit(nogil=True, cache=True)
def copy_spans(data_B: Any, starts_R: Any, ends_R: Any, out_B: Any, out_offsets_R1: Any) -> None:
    """Copy raw spans one after the other; a span that starts below 0 is empty."""
    o = 0
    out_offsets_R1[0] = 0
    for r in range(len(starts_R)):
        if starts_R[r] >= 0:
            for i in range(starts_R[r], ends_R[r]):
                out_B[o] = data_B[i]
                o += 1
        out_offsets_R1[r + 1] = o


@njit(nogil=True, cache=True)
def copy_rest(data_B: Any, starts_R: Any, ends_R: Any, spans_RK2: Any, out_B: Any, out_offsets_R1: Any) -> None:
    """Write each record again without the wanted members, as a JSON object; nothing if none is left.

    Records must be valid. `out_B` must hold the sum of the records plus two bytes each.
    """
    stack = np.zeros(MAX_DEPTH, np.bool_)
    o = 0
    out_offsets_R1[0] = 0
    for r in range(len(starts_R)):
        begin = o
        end = ends_R[r]
        i = _space(data_B, _space(data_B, starts_R[r], end) + 1, end)
        while data_B[i] != 125:
            start = i
            i = _space(data_B, _string(data_B, i, end), end)
            value = _space(data_B, i + 1, end)
            wanted = False
            i = -1
            for k in range(spans_RK2.shape[1]):
                if spans_RK2[r, k, 0] == value:
                    wanted = True
                    i = spans_RK2[r, k, 1]
            if not wanted:
                i = _value(data_B, value, end, stack)
                out_B[o] = 123 if o == begin else 44
                o += 1
                for j in range(start, i):
                    out_B[o] = data_B[j]
                    o += 1
            i = _space(data_B, i, end)
            if data_B[i] == 44:
                i = _space(data_B, i + 1, end)
        if o > begin:
            out_B[o] = 125
            o += 1
        out_offsets_R1[r + 1] = o


def join_keys(keys: list[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return ``(keys_X, key_offsets_K1)`` of the wanted keys. Keys written with escapes in the data do not match."""
    raw = [key.encode() for key in keys]
    offsets = np.zeros(len(raw) + 1, np.int64)
    offsets[1:] = np.cumsum([len(k) for k in raw])
    return np.frombuffer(b"".join(raw), np.uint8), offsets
