"""Lines and paragraphs: their keys, and text without the ones that occur too often.

Legend: ``offsets_D1`` int64 (D+1), ``data_B`` uint8, ``norm_C`` as in `shingles`; ``keys_L`` uint64, one a piece
(line or paragraph), 0 for a piece that is not compared; ``starts_L1`` int64, the byte where each piece starts, with
the end of the text last; ``pieces_D1`` int64 (D+1), the pieces of each document.

A piece reaches up to and with its line feed; a paragraph reaches up to the next piece after one or more lines of
white space only, so that text is the concatenation of its pieces whatever they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels.shingles import BLOCK, I32, SHINGLE_FACTOR, U64, mix64, next_units
from gristmill.stages.kernels.views import Bytes, Offsets

I64 = npt.NDArray[np.int64]
_SEED = np.uint64(0xBE5466CF34E90C6C)


@njit(nogil=True, cache=True)
def _blank(data_B: Any, i: int, end: int) -> bool:
    while i < end:
        if data_B[i] > 32:
            return False
        i += 1
    return True


@njit(nogil=True, cache=True)
def _next_piece(data_B: Any, i: int, end: int, paragraphs: bool) -> int:
    """Return the end of the piece that starts at byte i."""
    in_gap = False
    while i < end:
        stop = i
        while stop < end and data_B[stop] != 10:
            stop += 1
        stop = min(stop + 1, end)
        if not paragraphs:
            return stop
        if _blank(data_B, i, stop):
            in_gap = True
        elif in_gap:
            return i
        i = stop
    return end


@njit(nogil=True, cache=True)
def _count(offsets_D1: Any, data_B: Any, paragraphs: bool, pieces_D1: Any) -> None:
    pieces_D1[0] = 0
    for d in range(offsets_D1.shape[0] - 1):
        i = offsets_D1[d]
        n = 0
        while i < offsets_D1[d + 1]:
            i = _next_piece(data_B, i, offsets_D1[d + 1], paragraphs)
            n += 1
        pieces_D1[d + 1] = pieces_D1[d] + n


@njit(nogil=True, cache=True)
def _keys(
    offsets_D1: Any,
    data_B: Any,
    paragraphs: bool,
    norm_C: Any,
    min_units: int,
    units_M: Any,
    starts_L1: Any,
    keys_L: Any,
) -> None:
    at = 0
    for d in range(offsets_D1.shape[0] - 1):
        i = offsets_D1[d]
        end = offsets_D1[d + 1]
        while i < end:
            stop = _next_piece(data_B, i, end, paragraphs)
            starts_L1[at] = i
            h = _SEED
            total = 0
            while i < stop:
                i, got = next_units(data_B, i, stop, norm_C, units_M, 0)
                total += got
                for u in range(got):
                    h = h * SHINGLE_FACTOR + units_M[u]
            h = mix64(h + np.uint64(total))
            keys_L[at] = h | np.uint64(1) if total >= max(min_units, 1) else np.uint64(0)
            at += 1
            i = stop
    starts_L1[at] = offsets_D1[-1]


@njit(nogil=True, cache=True)
def _strip(data_B: Any, pieces_D1: Any, starts_L1: Any, drop_L: Any, out_D1: Any, out_B: Any, dropped_D: Any) -> None:
    at = 0
    out_D1[0] = 0
    for d in range(pieces_D1.shape[0] - 1):
        dropped = 0
        for piece in range(pieces_D1[d], pieces_D1[d + 1]):
            i = starts_L1[piece]
            end = starts_L1[piece + 1]
            if drop_L[piece]:
                dropped += 1
                continue
            out_B[at : at + end - i] = data_B[i:end]
            at += end - i
        out_D1[d + 1] = at
        dropped_D[d] = dropped


def split_pieces(
    offsets_D1: Offsets, data_B: Bytes, paragraphs: bool, norm_C: I32, min_units: int
) -> tuple[I64, I64, U64]:
    """Return ``(pieces_D1, starts_L1, keys_L)``; pieces of fewer than `min_units` units have key 0."""
    pieces_D1 = np.empty(len(offsets_D1), np.int64)
    _count(offsets_D1, data_B, paragraphs, pieces_D1)
    starts_L1 = np.empty(int(pieces_D1[-1]) + 1, np.int64)
    keys_L = np.empty(int(pieces_D1[-1]), np.uint64)
    _keys(offsets_D1, data_B, paragraphs, norm_C, min_units, np.empty(BLOCK, np.uint64), starts_L1, keys_L)
    return pieces_D1, starts_L1, keys_L


def strip_pieces(
    data_B: Bytes, pieces_D1: I64, starts_L1: I64, drop_L: npt.NDArray[np.bool_]
) -> tuple[Offsets, Bytes, I64]:
    """Return ``(offsets_D1, data_B, dropped_D)``: the text without the pieces to drop, and how many went."""
    out_D1 = np.empty(len(pieces_D1), np.int64)
    out_B = np.empty(int(starts_L1[-1] - starts_L1[0]) if len(starts_L1) else 0, np.uint8)
    dropped_D = np.empty(len(pieces_D1) - 1, np.int64)
    _strip(data_B, pieces_D1, starts_L1, drop_L, out_D1, out_B, dropped_D)
    return out_D1, out_B[: out_D1[-1]], dropped_D
