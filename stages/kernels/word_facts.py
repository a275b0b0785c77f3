"""What pre-tokens are made of, for the tokenizer report.

Legend: ``offsets_W1`` int64 (W+1), ``data_B`` uint8: the pre-tokens, valid UTF-8; ``script_C`` and ``category_C``
uint8, tables of `unicode`; ``scripts_W`` uint8, the script of the first letter (SCRIPT_COMMON where there is
none); ``chars_W`` int32, code points; ``is_word_W`` bool, whether there is a letter or a number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels import unicode as tables
from gristmill.stages.kernels.views import Bytes, Offsets


@njit(nogil=True, cache=True)
def _facts(
    offsets_W1: Any, data_B: Any, script_C: Any, category_C: Any, scripts_W: Any, chars_W: Any, is_word_W: Any
) -> None:
    for w in range(len(offsets_W1) - 1):
        i = offsets_W1[w]
        end = offsets_W1[w + 1]
        n = 0
        script = np.uint8(tables.SCRIPT_COMMON)
        word = False
        while i < end:
            first = np.int64(data_B[i])
            size = 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            code = first if size == 1 else first & (0x7F >> size)
            for k in range(1, size):
                code = code << 6 | (np.int64(data_B[i + k]) & 0x3F if i + k < end else 0)
            code = min(code, np.int64(0x10FFFF))
            category = category_C[code]
            if category <= tables.LO and script == tables.SCRIPT_COMMON:
                script = script_C[code]
            word |= category <= tables.LO or tables.ND <= category <= tables.NO
            n += 1
            i += size
        scripts_W[w] = script
        chars_W[w] = n
        is_word_W[w] = word


def word_facts(
    offsets_W1: Offsets, data_B: Bytes
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Return ``(scripts_W, chars_W, is_word_W)`` of each pre-token."""
    n = len(offsets_W1) - 1
    scripts, chars, is_word = np.empty(n, np.uint8), np.empty(n, np.int32), np.empty(n, np.bool_)
    _facts(offsets_W1, data_B, tables.SCRIPT, tables.CATEGORY, scripts, chars, is_word)
    return scripts, chars, is_word
