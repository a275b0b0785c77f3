"""spaCy."""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(nogil=True, cache=True)
def spacy_sentences(data_B: Any, start: Any, end: Any, word_class_U: Any, flags_U: Any) -> Any:
    """TODO."""
    return 1


@njit(nogil=True, cache=True)
def segment_spacy(
    data_B: Any, start: Any, end: Any, word_class_U: Any, flags_U: Any,
    acc_A: Any, lengths_257: Any, t_hash_T: Any, t_pow_T: Any, t_chars_T: Any,
) -> None:  # fmt: skip
    """TODO."""
