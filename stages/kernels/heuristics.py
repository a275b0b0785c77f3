"""Every heuristic signal of a batch of documents, in one call: the driver, word statistics and n-gram repetition.

N-grams are counted only where they can repeat: an n-gram occurs twice only if both (n-1)-grams in it do, so each
order works on the positions that survived the one before. The key of an n-gram is the numbers of those two, so that
no two n-grams are taken for one another; words are known by a 64-bit hash of their bytes. Expected time O(words) a
document; the tables hold at most `MAX_WORDS` words, so that n-gram signals of a longer document are those of its
first 4,194,304 words. Scratch is allocated once a batch: 60 to 68 bytes a word of the longest document, at most 300 MB
for it and the line table together.

Sources: Gopher (Rae et al., arXiv 2112.11446, A1.1) for the repetition rules and their n.

Legend: as in `words` and `heuristics_lines`; ``place_T`` int32 surviving positions, ``gram_T``
uint64 keys of the n-grams there, ``id_T`` int32 their numbers; by number: ``key_T`` uint64 key, ``count_T``
occurrences, ``first_T`` first place; ``slot_K`` int32 hash table of numbers, from 1 on; ``chars_T1`` int64 prefix sums
of word lengths; ``spread_E`` float64 n log2(n).
"""

# ruff: noqa: N815 (array names carry shapes; kernels are written as they compile)

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels import heuristics_layout as k
from gristmill.stages.kernels import heuristics_lines as lines
from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels import words as w
from gristmill.stages.kernels.bits import inner, ones, text_hash
from gristmill.stages.kernels.heuristics_bytes import clear
from gristmill.stages.kernels.words_chinese import MAX_RUN
from gristmill.stages.kernels.words_spacy import MAX_PIECES, segment_spacy

MAX_WORDS = 1 << 22
MAX_LINE_SLOTS = 1 << 22
WORDS_UNICODE, WORDS_SPACES, WORDS_SPACY, WORDS_NONE = 0, 1, 2, 3
STOP_SLOTS = 256
_MIX = np.uint64(0x9E3779B97F4A7C15)


class WordResources(NamedTuple):
    """Tables for the word pass: the trie of Chinese words and the stop words by profile."""

    trie_edge_K: npt.NDArray[np.uint64]
    trie_first_F: npt.NDArray[np.int32]
    trie_score_N: npt.NDArray[np.float64]
    join_CC: npt.NDArray[np.uint8]
    script_profile_256: npt.NDArray[np.int32]
    han_P: npt.NDArray[np.uint8]
    stop_key_PS: npt.NDArray[np.uint64]
    stop_index_PS: npt.NDArray[np.int8]


class Scratch(NamedTuple):
    """Working memory of one batch."""

    hash_T: npt.NDArray[np.uint64]
    word_chars_T: npt.NDArray[np.int32]
    gram_T: npt.NDArray[np.uint64]
    id_T: npt.NDArray[np.int32]
    count_T: npt.NDArray[np.int32]
    first_T: npt.NDArray[np.int32]
    place_T: npt.NDArray[np.int32]
    chars_T1: npt.NDArray[np.int64]
    key_T: npt.NDArray[np.uint64]
    slot_K: npt.NDArray[np.int32]
    spread_E: npt.NDArray[np.float64]
    line_key_K: npt.NDArray[np.uint64]
    line_state_K: npt.NDArray[np.uint8]
    count_16: npt.NDArray[np.int64]
    script_256: npt.NDArray[np.int64]
    acc_A: npt.NDArray[np.int64]
    lengths_257: npt.NDArray[np.int64]
    han_S: npt.NDArray[np.int32]
    han_best_S: npt.NDArray[np.float64]
    han_next_S: npt.NDArray[np.int32]
    info_I: npt.NDArray[np.int64]
    pieces_3xP: npt.NDArray[np.int64]
    removed_2xM: npt.NDArray[np.int64]
    removed_acc_A: npt.NDArray[np.int64]


@cache
def _spreads() -> npt.NDArray[np.float64]:
    """Return n log2(n) for small n."""
    return np.array([n * math.log2(n) if n else 0.0 for n in range(1024)])


def make_scratch(longest: int) -> Scratch:
    """Return working memory for documents of up to `longest` bytes."""
    n_words = max(64, min(longest, MAX_WORDS))
    slots = 1 << int(2 * n_words - 1).bit_length()
    line_slots = min(1 << int(4 * (longest + 2)).bit_length(), MAX_LINE_SLOTS)
    return Scratch(
        hash_T=np.empty(n_words, np.uint64),
        word_chars_T=np.empty(n_words, np.int32),
        gram_T=np.empty(n_words, np.uint64),
        id_T=np.empty(n_words, np.int32),
        count_T=np.empty(n_words, np.int32),
        first_T=np.empty(n_words, np.int32),
        place_T=np.empty(n_words, np.int32),
        chars_T1=np.empty(n_words + 1, np.int64),
        key_T=np.empty(n_words, np.uint64),
        slot_K=np.empty(slots, np.int32),
        spread_E=_spreads(),
        line_key_K=np.empty(line_slots, np.uint64),
        line_state_K=np.empty(line_slots, np.uint8),
        count_16=np.zeros(16, np.int64),
        script_256=np.zeros(256, np.int64),
        acc_A=np.zeros(w.N_ACCUMULATORS, np.int64),
        lengths_257=np.zeros(257, np.int64),
        han_S=np.empty(MAX_RUN, np.int32),
        han_best_S=np.empty(MAX_RUN + 1, np.float64),
        han_next_S=np.empty(MAX_RUN + 1, np.int32),
        info_I=np.zeros(8, np.int64),
        pieces_3xP=np.empty((3, MAX_PIECES), np.int64),
        removed_2xM=np.empty((2, lines.MAX_REMOVED), np.int64),
        removed_acc_A=np.zeros(w.N_ACCUMULATORS, np.int64),
    )


def word_hash(word: str) -> int:
    """Return the hash that the segmenters give `word`."""
    return text_hash(word.encode())


def stop_table(stop_words: list[tuple[str, ...]]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int8]]:
    """Return the stop words of each profile as open-addressing tables; index -1 is a free slot.

    Variants of a word in other case count as that word where a profile lists them with ``/``: ``"the/The/THE"``.

    Raises:
        ValueError: a profile has too many forms for a table.
    """
    keys = np.zeros((max(len(stop_words), 1), STOP_SLOTS), np.uint64)
    index = np.full(keys.shape, -1, np.int8)
    for profile, words in enumerate(stop_words):
        if sum(word.count("/") + 1 for word in words) > STOP_SLOTS // 2 or len(words) > 127:
            raise ValueError(f"{len(words)} stop words are too many for one profile")
        for number, forms in enumerate(words):
            for form in forms.split("/"):
                key = word_hash(form)
                slot = (key * int(_MIX) & 0xFFFFFFFFFFFFFFFF) >> 56
                while index[profile, slot] >= 0:
                    slot = (slot + 1) % STOP_SLOTS
                keys[profile, slot] = key
                index[profile, slot] = number
    return keys, index


@inner
def number_grams(s: Any, gram_T: Any, n_places: Any) -> Any:
    """Number the keys ``gram_T[:n_places]`` in order of first appearance; return how many differ.

    Fills ``id_T`` by index into the places, ``count_T``, ``first_T`` (that index) and ``key_T`` by number.
    """
    slot_K, key_T, id_T, count_T, first_T = s.slot_K, s.key_T, s.id_T, s.count_T, s.first_T
    bits = 4
    while (1 << bits) < 2 * n_places:
        bits += 1
    mask = np.int64((1 << bits) - 1)
    shift = np.uint64(64 - bits)
    for j in range(1 << bits):
        slot_K[j] = 0
    n_ids = np.int64(0)
    for j in range(n_places):
        key = gram_T[j]
        slot = np.int64((key * _MIX) >> shift)
        number = np.int64(slot_K[slot]) - 1
        while number >= 0 and key_T[number] != key:
            slot = (slot + 1) & mask
            number = np.int64(slot_K[slot]) - 1
        if number < 0:
            number = n_ids
            n_ids += 1
            slot_K[slot] = n_ids
            key_T[number] = key
            count_T[number] = 0
            first_T[number] = j
        count_T[number] += 1
        id_T[j] = number
    return n_ids


@inner
def repeated_places(s: Any, n_places: Any) -> Any:
    """Keep the places of n-grams that may occur again one word longer, with the keys of those; return how many.

    Both the n-gram there and the one a word further must occur more than once. The key of the longer one is the
    numbers of the two: no two different ones share it.
    """
    place_T, id_T, count_T, gram_T = s.place_T, s.id_T, s.count_T, s.gram_T
    kept = 0
    last_place = np.int64(-2)
    last_id = np.int64(0)
    for j in range(n_places):
        number = np.int64(id_T[j])
        if count_T[number] > 1:
            place = np.int64(place_T[j])
            if place == last_place + 1:
                place_T[kept] = last_place
                gram_T[kept] = np.uint64((last_id << 32) | number)
                kept += 1
            last_place = place
            last_id = number
    return kept


@inner
def measure_grams(
    d: Any, n_words: Any, text_chars: Any, quirks: Any, profile: Any, stop: Any, s: Any, out_SD: Any
) -> None:
    """Fill the word-repetition signals of document `d` from its stored words."""
    for row in range(k.S_TOP_2, k.S_DUP_10 + 1):
        out_SD[row, d] = 0.0
    out_SD[k.S_UNIQUE_WORDS, d] = 1.0
    out_SD[k.S_ENTROPY, d] = 0.0
    out_SD[k.S_STOP_DISTINCT, d] = 0.0
    out_SD[k.S_STOP_OCCURRENCES, d] = 0.0
    out_SD[k.S_STOP_SHARE, d] = 0.0
    if n_words == 0:
        return
    hash_T, word_chars_T, chars_T1 = s.hash_T, s.word_chars_T, s.chars_T1
    place_T, id_T, count_T, first_T = s.place_T, s.id_T, s.count_T, s.first_T
    stop_index_PS, stop_key_PS, spread_E = stop.stop_index_PS, stop.stop_key_PS, s.spread_E
    n_ids = number_grams(s, hash_T, n_words)
    entropy = 0.0
    distinct: Any = np.uint64(0)
    distinct_high: Any = np.uint64(0)
    occurrences = np.int64(0)
    for number in range(n_ids):
        count = np.int64(count_T[number])
        if count > 1:
            entropy -= spread_E[count] if count < len(spread_E) else count * math.log2(count)
        key = s.key_T[number]
        slot = np.int64((key * _MIX) >> np.uint64(56))
        while stop_index_PS[profile, slot] >= 0:
            if stop_key_PS[profile, slot] == key:
                index = stop_index_PS[profile, slot]
                if index < 64:
                    distinct |= np.uint64(1) << np.uint64(index)
                else:
                    distinct_high |= np.uint64(1) << np.uint64(index - 64)
                occurrences += count
                break
            slot = (slot + 1) & (STOP_SLOTS - 1)
    out_SD[k.S_UNIQUE_WORDS, d] = n_ids / n_words
    out_SD[k.S_ENTROPY, d] = max(entropy / n_words + math.log2(n_words), 0.0)
    out_SD[k.S_STOP_DISTINCT, d] = ones(distinct) + ones(distinct_high)
    out_SD[k.S_STOP_OCCURRENCES, d] = occurrences
    out_SD[k.S_STOP_SHARE, d] = occurrences / n_words

    chars = np.int64(0)
    for i in range(n_words):
        chars_T1[i] = chars
        chars += word_chars_T[i]
        place_T[i] = i
    chars_T1[n_words] = chars
    n_places = np.int64(n_words)
    for n in range(2, 11):
        if n_words < n:
            break
        n_places = repeated_places(s, n_places)
        if n_places == 0 and (n > 4 or not quirks):
            break
        n_ids = number_grams(s, s.gram_T, n_places)
        if n <= 4:
            best = np.int64(1)
            at = np.int64(0)
            for number in range(n_ids):
                if count_T[number] > best:
                    best = np.int64(count_T[number])
                    at = np.int64(place_T[first_T[number]])
            if best > 1 or quirks:
                chars = chars_T1[at + n] - chars_T1[at] + n - 1
                out_SD[k.S_TOP_2 + n - 2, d] = chars * best / text_chars
        else:
            free = np.int64(0)
            copied = np.int64(0)
            for j in range(n_places):
                i = np.int64(place_T[j])
                if i < free:
                    continue
                number = np.int64(id_T[j])
                if first_T[number] >= 0:
                    first_T[number] = -1  # the first one met; skipped ones do not count
                else:
                    copied += chars_T1[i + n] - chars_T1[i]
                    free = i + n
            out_SD[k.S_DUP_5 + n - 5, d] = copied / text_chars


@inner
def words_removed(data_B: Any, mode: Any, japanese: Any, t: Any, r: Any, s: Any) -> Any:
    """Return the number of words in the pieces that the line filter dropped."""
    acc_A = s.removed_acc_A
    clear(acc_A, len(acc_A))
    nothing = s.hash_T[:0]
    no_chars = s.word_chars_T[:0]
    for j in range(s.info_I[lines.I_N_REMOVED]):
        start, end = s.removed_2xM[0, j], s.removed_2xM[1, j]
        if mode == WORDS_SPACES:
            w.segment_spaces(data_B, start, end, t.flags_U, acc_A, s.lengths_257, nothing, no_chars)
        else:
            w.segment_unicode(
                data_B, start, end, t.word_class_U, t.flags_U, r.join_CC, japanese,
                r.trie_edge_K, r.trie_first_F, r.trie_score_N, s.han_S, s.han_best_S, s.han_next_S,
                acc_A, s.lengths_257, nothing, no_chars,
            )  # fmt: skip
    return acc_A[w.A_WORDS]


@inner
def measure_words(
    data_B: Any, start: Any, end: Any, d: Any, mode: Any, quirks: Any, han: Any, profile: Any, grams: Any,
    t: Any, r: Any, x: Any, s: Any, out_SD: Any,
) -> None:  # fmt: skip
    """Fill the word and n-gram signals of document `d`; the line pass has been made."""
    clear(s.acc_A, len(s.acc_A))
    clear(s.lengths_257, 257)
    japanese = han == w.HAN_JAPANESE
    if mode == WORDS_SPACY:
        segment_spacy(
            data_B, start, end, t.flags_U, x, s.pieces_3xP,
            s.acc_A, s.lengths_257, s.hash_T, s.word_chars_T,
        )  # fmt: skip
    elif mode == WORDS_SPACES:
        w.segment_spaces(data_B, start, end, t.flags_U, s.acc_A, s.lengths_257, s.hash_T, s.word_chars_T)
    else:
        if han == w.HAN_BY_KANA:
            kana = s.script_256[u.SCRIPT_HIRAGANA] + s.script_256[u.SCRIPT_KATAKANA]
            japanese = kana * 20 > s.script_256[u.SCRIPT_HAN] + kana
        w.segment_unicode(
            data_B, start, end, t.word_class_U, t.flags_U, r.join_CC, japanese,
            r.trie_edge_K, r.trie_first_F, r.trie_score_N, s.han_S, s.han_best_S, s.han_next_S,
            s.acc_A, s.lengths_257, s.hash_T, s.word_chars_T,
        )  # fmt: skip
    n_words = s.acc_A[w.A_WORDS]
    n_tokens = s.acc_A[w.A_TOKENS]
    base = max(n_tokens if quirks else n_words, 1)
    words = max(n_words, 1)
    out_SD[k.S_N_TOKENS, d] = n_tokens
    out_SD[k.S_N_WORDS, d] = n_words
    out_SD[k.S_MEAN_WORD, d] = s.acc_A[w.A_WORD_CHARS] / words
    half = (n_words + 1) // 2
    median = 0
    below = 0
    while median < 256 and below + s.lengths_257[median] < half:
        below += s.lengths_257[median]
        median += 1
    out_SD[k.S_MEDIAN_WORD, d] = median
    out_SD[k.S_LONGEST_WORD, d] = s.acc_A[w.A_LONGEST]
    out_SD[k.S_ALPHA_WORDS, d] = s.acc_A[w.A_ALPHA] / base
    out_SD[k.S_NUMERIC_WORDS, d] = s.acc_A[w.A_NUMERIC] / words
    out_SD[k.S_CAPITALS_WORDS, d] = s.acc_A[w.A_CAPITALS] / words
    out_SD[k.S_HASH, d] = s.info_I[lines.I_HASHES] / base
    out_SD[k.S_ELLIPSIS, d] = s.info_I[lines.I_ELLIPSES] / base
    out_SD[k.S_URL, d] = s.info_I[lines.I_URLS] / words
    if not quirks and s.info_I[lines.I_N_REMOVED] > 0:
        base = max(base - words_removed(data_B, mode, japanese, t, r, s), 1)
    out_SD[k.S_NEWLINE_WORDS, d] = s.info_I[lines.I_NEWLINES] / base
    if grams:
        text_chars = max(s.info_I[lines.I_N_CHARS], 1)
        measure_grams(d, s.acc_A[w.A_STORED], text_chars, quirks, profile, r, s, out_SD)


@njit(nogil=True, cache=True, _nrt=False)
def measure_batch(
    offsets_D1: Any, data_B: Any, chosen_D: Any, profile_D: Any, mode: Any, quirks: Any, grams: Any,
    edit: Any, options: Any, min_line_words: Any, t: Any, r: Any, x: Any, s: Any,
    out_SD: Any, edited_offsets_D1: Any, edited_B: Any, changed_D: Any, removed_RD: Any,
) -> None:  # fmt: skip
    """Fill ``out_SD`` for the chosen documents, and the edited text of every document if `edit`.

    A profile of -1 is replaced by the one that the document's main script falls to.

    ``edited_offsets_D1`` starts at 0; a document that is not chosen gets no text there.
    """
    at = np.int64(0)
    edited_offsets_D1[0] = 0
    for d in range(len(offsets_D1) - 1):
        changed_D[d] = False
        if chosen_D[d]:
            start = offsets_D1[d]
            end = offsets_D1[d + 1]
            lines.measure_lines(
                data_B, start, end, d, quirks, t, s.line_key_K, s.line_state_K, s.count_16, s.script_256,
                out_SD, s.info_I, x, s.pieces_3xP, edit, options, min_line_words,
                edited_B, at, removed_RD, s.removed_2xM,
            )  # fmt: skip
            changed_D[d] = s.info_I[lines.I_CHANGED] != 0
            if edit:
                at += s.info_I[lines.I_EDITED_BYTES]
            if profile_D[d] < 0:
                profile_D[d] = r.script_profile_256[np.int64(out_SD[k.S_MAIN_SCRIPT, d])]
                kana = s.script_256[u.SCRIPT_HIRAGANA] + s.script_256[u.SCRIPT_KATAKANA]
                if kana * 20 > s.script_256[u.SCRIPT_HAN] + kana:
                    profile_D[d] = r.script_profile_256[u.SCRIPT_HIRAGANA]
            if mode != WORDS_NONE:
                profile = profile_D[d]
                han = r.han_P[profile]
                measure_words(data_B, start, end, d, mode, quirks, han, profile, grams, t, r, x, s, out_SD)
        edited_offsets_D1[d + 1] = at
