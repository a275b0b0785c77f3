"""Find personal data in an Arrow text buffer in one pass, and write the text without it.

`scan` reads each byte once through a 256-entry table that is zero for all but a few trigger bytes (digits, ``@``,
``:`` and the letters that open keys), then calls the exact matcher of that trigger. Every matcher is bounded, so
time is linear in the text, whatever it is; nothing is allocated per document. `splice` copies the text around a
table of spans.

Legend: ``offsets_D1`` int64, ``data_B`` uint8, document d is ``data_B[offsets_D1[d]:offsets_D1[d+1]]``; spans are
``doc_S``, ``start_S``, ``end_S`` int64 (positions in ``data_B``, end not included) and ``kind_S`` uint8.
"""

# ruff: noqa: SIM109 - shapes that Numba compiles to plain branches
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels import pii_tables as tables
from gristmill.stages.kernels.pii_numbers import (
    HYPHEN,
    MAX_DIGITS,
    MAX_GROUPS,
    SPACE,
    card_issuer,
    card_shape,
    has_context,
    iban_at,
    ipv4,
    left_strength,
    luhn,
    parse_groups,
    resident_id,
    right_strength,
    valid_date,
)
from gristmill.stages.kernels.pii_phones import phone_at
from gristmill.stages.kernels.pii_tables import (
    ALNUM,
    CARD_CONTEXT,
    CLEAN,
    CN_ID,
    CREDIT_CARD,
    EMAIL,
    IBAN,
    ID_CONTEXT,
    IP,
    PHONE,
    REJECT,
    SECRET,
    SSN_CONTEXT,
    T_AT,
    T_COLON,
    T_DIGIT,
    US_SSN,
)
from gristmill.stages.kernels.pii_tokens import email_at, ipv6_at, key_at, url_password_at
from gristmill.stages.kernels.views import Bytes, Offsets


class Spans(NamedTuple):
    """Found identifiers in text order, not overlapping: ``doc``, ``start``, ``end`` int64 (S), ``kind`` uint8 (S)."""

    doc: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    kind: npt.NDArray[np.uint8]

    def where(self, keep_S: npt.NDArray[np.bool_]) -> Spans:
        """Return the spans that `keep_S` selects."""
        return Spans(self.doc[keep_S], self.start[keep_S], self.end[keep_S], self.kind[keep_S])


@njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def number_at(
    data_B: Any, lo: int, hi: int, i: int, wanted: int, keep_reserved: bool, tables_T: Any, groups_G3: Any,
    digits_N: Any,
) -> tuple[int, int, int]:  # fmt: skip
    """Return ``(kind, start, end)`` of the identifier whose first digit is at `i`; kind -1: none."""
    if i > lo and tables_T[data_B[i - 1]] & ALNUM:
        if wanted & 1 << IBAN:
            end = iban_at(data_B, lo, hi, i, tables_T)
            if end:
                return IBAN, i - 2, end
        return -1, 0, 0
    k = parse_groups(data_B, lo, hi, i, tables_T, groups_G3, digits_N)
    g0 = groups_G3[0, 1]
    if g0 > 19 or (k == 1 and g0 < 7):
        return -1, 0, 0
    left = left_strength(data_B, lo, i, tables_T)
    end0 = i + g0
    # Resident identity card: 18 characters in one run, or 6-8-4; the old 15-digit form needs a context word.
    if wanted & 1 << CN_ID and left != REJECT:
        three = k >= 3 and g0 == 6 and groups_G3[1, 1] == 8 and groups_G3[0, 2] == groups_G3[1, 2]
        last = groups_G3[2, 1] if three else 0
        end = groups_G3[2, 0] + last if three else end0
        n = 14 + last if three else g0
        if n == 17 or n == 18:
            tail = digits_N[17] if n == 18 else 11
            if n == 17 and end < hi and data_B[end] | 32 == 120:
                tail = 10
                end += 1
            alone = end >= hi or not (tables_T[data_B[end]] & ALNUM)
            if tail <= 10 and alone and resident_id(digits_N, tail):
                return CN_ID, i, end
        if n == 15 and not three and 1 <= digits_N[0] <= 6:
            year = 1900 + digits_N[6] * 10 + digits_N[7]
            if (
                valid_date(year, digits_N[8] * 10 + digits_N[9], digits_N[10] * 10 + digits_N[11])
                and right_strength(data_B, hi, end, tables_T) != REJECT
                and has_context(data_B, max(lo, i - 40), i, ID_CONTEXT, tables_T)
            ):
                return CN_ID, i, end
    if wanted & 1 << CREDIT_CARD and left != REJECT and (g0 >= 12 or (g0 == 4 and k >= 3)):
        end, n = card_shape(k, groups_G3)
        right = right_strength(data_B, hi, end, tables_T)
        if n and right != REJECT:
            sure = card_issuer(digits_N, n)
            if sure != REJECT and luhn(digits_N, n):
                if sure == CLEAN and left == CLEAN and right == CLEAN:
                    return CREDIT_CARD, i, end
                if has_context(data_B, max(lo, i - 40), i, CARD_CONTEXT, tables_T):
                    return CREDIT_CARD, i, end
    if wanted & 1 << IP and k == 4 and ipv4(data_B, lo, hi, k, tables_T, groups_G3, keep_reserved):
        return IP, i, groups_G3[3, 0] + groups_G3[3, 1]
    if wanted & 1 << US_SSN and k == 3 and g0 == 3 and groups_G3[1, 1] == 2 and groups_G3[2, 1] == 4:
        area = digits_N[0] * 100 + digits_N[1] * 10 + digits_N[2]
        serial = digits_N[5] + digits_N[6] + digits_N[7] + digits_N[8]
        separator = groups_G3[0, 2]
        if 0 < area < 900 and area != 666 and serial and digits_N[3] + digits_N[4]:
            end = groups_G3[2, 0] + 4
            if (
                separator == groups_G3[1, 2]
                and (separator == HYPHEN or separator == SPACE)
                and left != REJECT
                and right_strength(data_B, hi, end, tables_T) != REJECT
            ):
                sure = separator == HYPHEN and left == CLEAN
                if sure or has_context(data_B, max(lo, i - 40), i, SSN_CONTEXT, tables_T):
                    return US_SSN, i, end
    if wanted & 1 << PHONE:
        start, end = phone_at(data_B, lo, hi, k, tables_T, groups_G3, digits_N)
        if end:
            return PHONE, start, end
    return -1, 0, 0


@njit(nogil=True, cache=True, _nrt=False)
def _scan(
    offsets_D1: Any, data_B: Any, wanted: int, keep_reserved: bool, tables_T: Any, triggers: Any,
    groups_G3: Any, digits_N: Any, doc_S: Any, start_S: Any, end_S: Any,
    kind_S: Any,
) -> int:  # fmt: skip
    found = 0
    room = len(doc_S)
    for d in range(len(offsets_D1) - 1):
        lo = offsets_D1[d]
        hi = offsets_D1[d + 1]
        first = found
        i = lo
        while i < hi:
            trigger = triggers[data_B[i]]
            if trigger == 0:
                i += 1
                continue
            kind = -1
            start = 0
            end = 0
            resume = i + 1
            if trigger == T_DIGIT:
                kind, start, end = number_at(data_B, lo, hi, i, wanted, keep_reserved, tables_T, groups_G3, digits_N)
                while resume < hi and triggers[data_B[resume]] == T_DIGIT:
                    resume += 1
            elif trigger == T_AT:
                if wanted & 1 << SECRET:
                    start, end = url_password_at(data_B, lo, hi, i)
                    kind = SECRET
                if end == 0 and wanted & 1 << EMAIL:
                    start, end = email_at(data_B, lo, hi, i, tables_T)
                    kind = EMAIL
            elif trigger == T_COLON:
                if wanted & 1 << IP:
                    start, end = ipv6_at(data_B, lo, hi, i, tables_T, keep_reserved)
                    kind = IP
            elif wanted & 1 << SECRET:
                start, end = key_at(data_B, lo, hi, i, tables_T)
                kind = SECRET
            if kind < 0 or end == 0:
                i = resume
                continue
            # A later trigger may show that an earlier span was a part: 13812345678@qq.com is one address.
            # Spans come in order of their ends, so only the last ones can lie inside the new one.
            while found > first and found <= room and start_S[found - 1] >= start:
                found -= 1
            if found > first and found <= room and end_S[found - 1] > start:
                start = end_S[found - 1]
            if start < end:
                if found < room:
                    doc_S[found] = d
                    start_S[found] = start
                    end_S[found] = end
                    kind_S[found] = kind
                found += 1
            i = max(end, resume)
    return found


def scan(offsets_D1: Offsets, data_B: Bytes, enabled: tuple[str, ...], keep_reserved: bool = True) -> Spans:
    """Find identifiers of the kinds in `enabled` (names of `KINDS`).

    `keep_reserved` leaves private, loopback and documentation IP ranges alone.
    """
    wanted = sum(1 << bit for bit, kind in enumerate(tables.KINDS) if kind in enabled)
    groups_G3 = np.zeros((MAX_GROUPS, 3), np.int64)
    digits_N = np.zeros(MAX_DIGITS + 8, np.int64)
    offsets_D1, data_B = _frozen(offsets_D1), _frozen(data_B)
    room = 1024 + len(data_B) // 4096
    while True:
        doc_S, start_S, end_S = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
        kind_S = np.empty(room, np.uint8)
        n = _scan(
            offsets_D1, data_B, wanted, keep_reserved, tables.TABLES_T, tables.TRIGGER_256, groups_G3, digits_N,
            doc_S, start_S, end_S, kind_S,
        )  # fmt: skip
        if n <= room:
            return Spans(doc_S[:n], start_S[:n], end_S[:n], kind_S[:n])
        room = n + 1024


@njit(nogil=True, cache=True, _nrt=False)
def _splice(
    offsets_D1: Any, data_B: Any, doc_S: Any, start_S: Any, end_S: Any, which_S: Any, tag_offsets_T1: Any,
    tags_B: Any, out_D1: Any, out_B: Any,
) -> None:  # fmt: skip
    s = 0
    at = 0
    out_D1[0] = 0
    for d in range(len(offsets_D1) - 1):
        i = offsets_D1[d]
        while s < len(doc_S) and doc_S[s] == d:
            for j in range(i, start_S[s]):
                out_B[at] = data_B[j]
                at += 1
            for j in range(tag_offsets_T1[which_S[s]], tag_offsets_T1[which_S[s] + 1]):
                out_B[at] = tags_B[j]
                at += 1
            i = end_S[s]
            s += 1
        for j in range(i, offsets_D1[d + 1]):
            out_B[at] = data_B[j]
            at += 1
        out_D1[d + 1] = at


def splice(
    offsets_D1: Offsets, data_B: Bytes, spans: Spans, which_S: npt.NDArray[np.int64], tags: list[bytes]
) -> tuple[Offsets, Bytes]:
    """Return new ``(offsets_D1, data_B)`` with span s replaced by ``tags[which_S[s]]``.

    Spans lie in document order and do not overlap; the result owns its memory and its offsets start at 0.
    """
    tag_offsets_T1 = np.zeros(len(tags) + 1, np.int64)
    tag_offsets_T1[1:] = np.cumsum([len(tag) for tag in tags])
    tags_B = np.frombuffer(b"".join(tags) or b"\0", np.uint8)
    removed = int((spans.end - spans.start).sum())
    added = int(np.diff(tag_offsets_T1)[which_S].sum())
    total = int(offsets_D1[-1] - offsets_D1[0]) - removed + added
    out_D1 = np.empty(len(offsets_D1), np.int64)
    out_B = np.empty(total, np.uint8)
    _splice(
        _frozen(offsets_D1), _frozen(data_B), spans.doc, spans.start, spans.end, which_S, tag_offsets_T1,
        _frozen(tags_B), out_D1, out_B,
    )  # fmt: skip
    return out_D1, out_B


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view: one compiled version serves Arrow's buffers and ours."""
    view = array.view()
    view.flags.writeable = False
    return view
