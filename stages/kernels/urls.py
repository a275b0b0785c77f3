"""Canonical form of URLs, over Arrow string buffers.

Legend: ``offsets_D1`` int64 (D+1), ``data_B`` uint8 as in `views`; ``dropped_Q`` uint64, sorted XXH3-64 of the query
parameter names that do not count.

Two URLs of the same page: scheme http or https, userinfo, ``www.``, default port, a trailing dot or slash, the
fragment (not ``#!``), the order of query parameters, tracking parameters and the case of scheme, host and percent
escapes do not count; percent-encoded unreserved characters are decoded (RFC 3986, section 6.2).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gristmill.stages.kernels.hashing import SECRET, U64, hash64, secret_for, xxh3_64_range
from gristmill.stages.kernels.views import Bytes, Offsets

TRACKING = (
    "_ga", "_gl", "dclid", "fbclid", "gad_source", "gbraid", "gclid", "gclsrc", "igshid", "jsessionid", "mc_cid",
    "mc_eid", "mkt_tok", "msclkid", "phpsessid", "s_cid", "sessionid", "sid", "spm", "ttclid", "twclid", "vero_id",
    "wbraid", "yclid",
)  # fmt: skip
"""Query parameters that identify a visit, not a page; ``utm_*`` besides. Lower case."""


@njit(nogil=True, cache=True)
def _hex(byte: int) -> int:
    if 48 <= byte <= 57:
        return byte - 48
    lower = byte | 32
    if 97 <= lower <= 102:
        return lower - 87
    return -1


@njit(nogil=True, cache=True)
def _copy(data_B: Any, i: int, end: int, out_B: Any, at: int) -> int:
    """Copy with percent escapes normalised; return the new end."""
    while i < end:
        byte = np.int64(data_B[i])
        if byte == 37 and i + 2 < end + 0 and _hex(data_B[i + 1]) >= 0 and _hex(data_B[i + 2]) >= 0:
            value = 16 * _hex(data_B[i + 1]) + _hex(data_B[i + 2])
            letter = 97 <= (value | 32) <= 122 and value < 128
            if letter or 48 <= value <= 57 or value in (45, 46, 95, 126):
                out_B[at] = value
                at += 1
            else:
                out_B[at] = 37
                for j in range(1, 3):
                    digit = _hex(data_B[i + j])
                    out_B[at + j] = digit + 48 if digit < 10 else digit + 55
                at += 3
            i += 3
        else:
            out_B[at] = byte
            at += 1
            i += 1
    return at


@njit(nogil=True, cache=True)
def _less(out_B: Any, a: int, a_end: int, b: int, b_end: int) -> bool:
    while a < a_end and b < b_end:
        if out_B[a] != out_B[b]:
            return out_B[a] < out_B[b]
        a += 1
        b += 1
    return a == a_end and b < b_end


@njit(nogil=True, cache=True)
def _is_dropped(out_B: Any, start: int, end: int, dropped_Q: Any, name_B: Any, secret_S: Any, long_S: Any) -> bool:
    n = 0
    while start + n < end and out_B[start + n] != 61 and n < name_B.shape[0]:
        byte = out_B[start + n]
        name_B[n] = byte | 32 if 65 <= byte <= 90 else byte
        n += 1
    if n >= 4 and name_B[0] == 117 and name_B[1] == 116 and name_B[2] == 109 and name_B[3] == 95:
        return True
    if n == 0:
        return start == end
    h = xxh3_64_range(name_B, 0, n, np.uint64(0), secret_S, long_S)
    at = np.searchsorted(dropped_Q, h)
    return at < dropped_Q.shape[0] and dropped_Q[at] == h


@njit(nogil=True, cache=True)
def _one(
    data_B: Any,
    i: int,
    end: int,
    dropped_Q: Any,
    out_B: Any,
    at: int,
    copy_B: Any,
    name_B: Any,
    bounds_P2: Any,
    secret_S: Any,
    long_S: Any,
) -> int:
    while i < end and data_B[i] <= 32:
        i += 1
    while end > i and data_B[end - 1] <= 32:
        end -= 1
    if i == end:
        return at
    j = i
    while j < end and data_B[j] != 58 and data_B[j] != 47 and data_B[j] != 63 and data_B[j] != 35:
        j += 1
    has_host = j + 2 < end and data_B[j] == 58 and data_B[j + 1] == 47 and data_B[j + 2] == 47
    if has_host:
        n = j - i
        web = n >= 4 and n <= 5 and (data_B[i] | 32) == 104 and (data_B[i + 1] | 32) == 116
        web = web and (data_B[i + 2] | 32) == 116 and (data_B[i + 3] | 32) == 112
        web = web and (n == 4 or (data_B[i + 4] | 32) == 115)
        if not web:
            for k in range(i, j + 3):
                byte = data_B[k]
                out_B[at] = byte | 32 if 65 <= byte <= 90 else byte
                at += 1
        i = j + 3
        j = i
        host = i
        while j < end and data_B[j] != 47 and data_B[j] != 63 and data_B[j] != 35:
            if data_B[j] == 64:
                host = j + 1
            j += 1
        host_end = j
        k = host_end
        while k > host and 48 <= data_B[k - 1] <= 57:
            k -= 1
        if k > host and data_B[k - 1] == 58:
            digits = host_end - k
            if (
                digits == 0
                or (digits == 2 and data_B[k] == 56 and data_B[k + 1] == 48)
                or (digits == 3 and data_B[k] == 52 and data_B[k + 1] == 52 and data_B[k + 2] == 51)
            ):
                host_end = k - 1
        if host_end > host and data_B[host_end - 1] == 46:
            host_end -= 1
        if (
            host_end - host > 4
            and (data_B[host] | 32) == 119
            and (data_B[host + 1] | 32) == 119
            and (data_B[host + 2] | 32) == 119
            and data_B[host + 3] == 46
        ):
            host += 4
        for k in range(host, host_end):
            byte = data_B[k]
            out_B[at] = byte | 32 if 65 <= byte <= 90 else byte
            at += 1
        i = j
    j = i
    while j < end and data_B[j] != 63 and data_B[j] != 35:
        j += 1
    path_end = j
    while has_host and path_end > i and data_B[path_end - 1] == 47:
        path_end -= 1
    at = _copy(data_B, i, path_end, out_B, at)
    i = j
    if i < end and data_B[i] == 63:
        i += 1
        j = i
        while j < end and data_B[j] != 35:
            j += 1
        stop = _copy(data_B, i, j, copy_B, 0)
        n_pairs = 0
        start = 0
        for k in range(stop + 1):
            if k == stop or copy_B[k] == 38:
                if not _is_dropped(copy_B, start, k, dropped_Q, name_B, secret_S, long_S):
                    p = n_pairs
                    while p > 0 and _less(copy_B, start, k, bounds_P2[p - 1, 0], bounds_P2[p - 1, 1]):
                        bounds_P2[p, 0] = bounds_P2[p - 1, 0]
                        bounds_P2[p, 1] = bounds_P2[p - 1, 1]
                        p -= 1
                    if n_pairs < bounds_P2.shape[0] - 1:
                        bounds_P2[p, 0] = start
                        bounds_P2[p, 1] = k
                        n_pairs += 1
                start = k + 1
        for p in range(n_pairs):
            out_B[at] = 63 if p == 0 else 38
            at += 1
            for k in range(bounds_P2[p, 0], bounds_P2[p, 1]):
                out_B[at] = copy_B[k]
                at += 1
        i = j
    if i + 1 < end and data_B[i] == 35 and data_B[i + 1] == 33:
        at = _copy(data_B, i, end, out_B, at)
    return at


@njit(nogil=True, cache=True)
def _canonical(
    offsets_D1: Any,
    data_B: Any,
    dropped_Q: Any,
    out_D1: Any,
    out_B: Any,
    copy_B: Any,
    name_B: Any,
    bounds_P2: Any,
    secret_S: Any,
    long_S: Any,
) -> None:
    at = 0
    out_D1[0] = 0
    for d in range(offsets_D1.shape[0] - 1):
        at = _one(
            data_B,
            offsets_D1[d],
            offsets_D1[d + 1],
            dropped_Q,
            out_B,
            at,
            copy_B,
            name_B,
            bounds_P2,
            secret_S,
            long_S,
        )
        out_D1[d + 1] = at


def parameter_hashes(names: tuple[str, ...]) -> U64:
    """Return `dropped_Q` for parameter names (any case)."""
    encoded = [name.lower().encode() for name in names]
    offsets_D1 = np.cumsum([0, *(len(name) for name in encoded)]).astype(np.int64)
    return np.sort(hash64(offsets_D1, np.frombuffer(b"".join(encoded), np.uint8)))


def canonical_urls(offsets_D1: Offsets, data_B: Bytes, dropped_Q: U64) -> tuple[Offsets, Bytes]:
    """Return the canonical form of each URL, as offsets from 0 and bytes; empty stays empty.

    Not a URL to fetch: the scheme and ``www.`` are gone. At most 1,000 query parameters count.
    """
    lengths = np.diff(offsets_D1)
    longest = int(lengths.max(initial=0))
    out_D1 = np.empty(len(offsets_D1), np.int64)
    out_B = np.empty(int(lengths.sum()), np.uint8)
    _canonical(
        offsets_D1,
        data_B,
        dropped_Q,
        out_D1,
        out_B,
        np.empty(longest + 1, np.uint8),
        np.empty(64, np.uint8),
        np.empty((1001, 2), np.int64),
        SECRET,
        secret_for(0),
    )
    return out_D1, out_B[: out_D1[-1]]
