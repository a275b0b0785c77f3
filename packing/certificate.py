"""Order certificates: a number that says which rows were delivered, whoever delivered them and whenever.

Each row (global sample, source, epoch, item) has a 128-bit mark; a certificate is the sum of marks modulo 2^64
in two lanes. Sums do not depend on order, so the certificates of all ranks add up to that of the run, the parts
before and after a resume add up to the whole, and any of them can be held against what the plan says
(`expected`). With `content=True` the mark is multiplied by a checksum of the row's token ids.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.packing.errors import ArgumentError, problem
from gristmill.packing.permutation import mix64

U64 = npt.NDArray[np.uint64]
_LANES = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


@dataclass(frozen=True)
class Certificate:
    """Sum of the marks of `n_rows` delivered rows."""

    high: int = 0
    low: int = 0
    n_rows: int = 0

    def __add__(self, other: Certificate) -> Certificate:
        """Return the certificate of both parts together."""
        mask = 2**64 - 1
        return Certificate((self.high + other.high) & mask, (self.low + other.low) & mask, self.n_rows + other.n_rows)

    def __str__(self) -> str:
        return f"{self.high:016x}{self.low:016x}/{self.n_rows}"

    @classmethod
    def parse(cls, text: str) -> Certificate:
        """Undo `str`.

        Raises:
            ArgumentError: not a certificate.
        """
        digits, _, rows = text.partition("/")
        try:
            if len(digits) != 32:
                raise ValueError
            return cls(int(digits[:16], 16), int(digits[16:], 16), int(rows))
        except ValueError:
            raise ArgumentError(
                problem("not a certificate", where="Certificate", expected="32 digits/rows", got=text)
            ) from None


def combine(parts: Iterable[Certificate]) -> Certificate:
    """Return the certificate of several ranks or stretches together."""
    total = Certificate()
    for part in parts:
        total += part
    return total


def row_marks(sample: U64, source: U64, epoch: U64, item: U64) -> U64:
    """Return the marks of rows, uint64 (C, 2); rows with sample -1 (blank) have mark 0."""
    out = np.empty((len(sample), 2), np.uint64)
    for lane, salt in enumerate(_LANES):
        h = mix64(sample + salt)
        for part in (source, epoch, item):
            h = mix64((h ^ part) * salt)
        out[:, lane] = h
    out[sample == np.uint64(2**64 - 1)] = 0
    return out


def certify(marks_C2: U64, ids: npt.NDArray[Any] | None = None) -> Certificate:
    """Return the certificate of rows with these marks; `ids` [C, S] binds it to their content."""
    marks = marks_C2
    if ids is not None:
        sums = np.array([zlib.crc32(np.ascontiguousarray(row, "<i4").data) for row in ids], np.uint64)
        marks = marks * (sums[:, None] * np.uint64(2) + np.uint64(1))
    total = marks.sum(axis=0, dtype=np.uint64)
    return Certificate(int(total[0]), int(total[1]), int((marks_C2[:, 0] != 0).sum()))
