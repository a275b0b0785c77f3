"""Word and character n-grams of a text stream against an index of evaluation items.

A token is a maximal run of letters, marks and digits after folding (NFKC for single characters, lower case,
Latin, Greek and Cyrillic accents removed); a character of a script written without spaces (Han, kana, Thai, …) is a
token of its own. Everything else separates tokens, apart from apostrophes, accents and format characters, which
are skipped.

`match` streams each document once: a 64-bit hash a token, a polynomial prefix hash that gives any window in one
multiplication, a Bloom filter that answers "no" for almost every window, an open-addressing table, and on a hit an
exact comparison of folded code points, carried on to the end of the common run. Nothing is allocated per document;
a document token is compared at most once with each item that shares an n-gram, so time is linear in the text times
the bounded number of items an n-gram may have.

Legend: ``offsets_D1`` int64, ``data_B`` uint8 valid UTF-8; ``fold_U`` int32 (0x110000), see `fold_table`; index
arrays: entry e is tokens ``tokens_E1[e]:tokens_E1[e+1]``, token t hashes to ``hash_N[t]`` and spells
``code_C[spell_N1[t]:spell_N1[t+1]]``; see `Table`.
"""

# ruff: noqa: N815 - fields carry their shapes
from __future__ import annotations

import unicodedata
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels.views import Bytes, Offsets

CHARACTER = 1 << 24
"""Flag on a `fold_table` entry: the character is a token by itself."""
SEPARATOR, SKIPPED = 0, -1
_MASK = CHARACTER - 1
_EXPANSIONS = 1 << 25

RING = 64
"""Tokens remembered while streaming; the longest window."""

_BASE = np.uint64(0x9E3779B97F4A7C15)
_GOLD = np.uint64(0xD6E8FEB86659FD93)
_PRIME = np.uint64(0x100000001B3)
_SEED = np.uint64(0xCBF29CE484222325)
_MIX1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX2 = np.uint64(0xC4CEB9FE1A85EC53)
_S33 = np.uint64(33)
_ONE, _SIX, _SIX_BITS = np.uint64(1), np.uint64(63), np.uint64(6)

inner = njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)

_UNSPACED = (
    "Han", "Hiragana", "Katakana", "Bopomofo", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Yi", "Javanese",
    "Balinese", "Tai_Le", "New_Tai_Lue", "Tai_Tham", "Tai_Viet",
)  # fmt: skip
_SKIPPED_MARKS = ((0x0300, 0x0370), (0x0591, 0x05C8), (0x064B, 0x0660), (0xFE00, 0xFE10), (0xE0100, 0xE01F0))


@cache
def fold_table() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return ``(fold_U, expansion_X)``, read-only: how each code point enters a token.

    ``fold_U[c]``: 0 separates; -1 is skipped; else the folded code point, plus `CHARACTER` where it is a token by
    itself. Values from 2 ** 25 on stand for several code points (ligatures, fractions): ``v - 2 ** 25`` is the
    position in ``expansion_X`` of their number, followed by them.
    """
    folded = u.FOLD.astype(np.int64)
    category = u.CATEGORY[folded]
    word = np.zeros(256, np.bool_)
    word[[u.LU, u.LL, u.LT, u.LM, u.LO, u.MN, u.MC, u.ME, u.ND, u.NL, u.NO]] = True
    fold = np.where(word[category], folded, 0)
    unspaced = np.zeros(256, np.bool_)
    unspaced[[u.SCRIPT_NAMES.index(name) for name in _UNSPACED]] = True
    single = unspaced[u.SCRIPT[folded]] & (fold > 0)
    single[[0x3005, 0x3006, 0x3007, 0x30FC, 0xFF70, *range(0x3031, 0x3036)]] = True
    fold[[0x3006, 0x3007, 0x30FC]] = [0x3006, 0x3007, 0x30FC]
    scripts = np.isin(u.SCRIPT, [u.SCRIPT_NAMES.index(name) for name in ("Latin", "Greek", "Cyrillic")])
    for c in np.flatnonzero(scripts & (fold > 0x7F)):
        bare = unicodedata.normalize("NFD", chr(fold[c]))[0]
        fold[c] = u.FOLD[ord(bare)]
    expansion = [0]
    for c in np.flatnonzero((np.arange(u.N_CODE_POINTS) == u.FOLD) & ~np.isin(u.SCRIPT, [u.SCRIPT_HAN])):
        if 0xAC00 <= c < 0xD7A4 or c < 0xA0 or 0xD800 <= c < 0xE000:
            continue
        text = unicodedata.normalize("NFKC", chr(c))
        if len(text) > 1:
            kept = [int(fold[ord(part)]) for part in text if fold[ord(part)] > 0 and not single[ord(part)]]
            if kept and not any(single[ord(part)] for part in text):
                fold[c] = _EXPANSIONS + len(expansion)
                expansion += [len(kept), *kept]
    fold[single] |= CHARACTER
    fold[u.CATEGORY == u.CF] = SKIPPED
    fold[[0x27, 0x2019, 0x02BC, 0xFF07]] = SKIPPED
    for first, end in _SKIPPED_MARKS:
        fold[first:end] = SKIPPED
    fold[0x0640] = SKIPPED
    table, parts = fold.astype(np.int32), np.array(expansion, np.int32)
    table.flags.writeable = parts.flags.writeable = False
    return table, parts


@inner
def _mix(h: Any) -> Any:
    """Return the finaliser of MurmurHash3 (Appleby, 2011) of `h`."""
    h ^= h >> _S33
    h *= _MIX1
    h ^= h >> _S33
    h *= _MIX2
    return h ^ (h >> _S33)


@inner
def _fold_at(data_B: Any, i: int, fold_U: Any) -> tuple[int, int]:
    """Return ``(table entry, bytes)`` of the non-ASCII character at `i`."""
    b = int(data_B[i])
    if b < 0xE0:
        return fold_U[(b & 0x1F) << 6 | (data_B[i + 1] & 0x3F)], 2
    if b < 0xF0:
        return fold_U[(b & 0x0F) << 12 | (data_B[i + 1] & 0x3F) << 6 | (data_B[i + 2] & 0x3F)], 3
    c = (b & 0x07) << 18 | (data_B[i + 1] & 0x3F) << 12 | (data_B[i + 2] & 0x3F) << 6 | (data_B[i + 3] & 0x3F)
    return fold_U[c], 4


@inner
def _next_token(data_B: Any, i: int, hi: int, fold_U: Any, expansion_X: Any) -> tuple[Any, int, int, int]:
    """Return ``(hash, start, end, 1 for a lone character)`` of the first token from `i` on; start -1: none."""
    h = _SEED
    start = -1
    end = i
    while i < hi:
        b = data_B[i]
        if b < 0x80:
            v = fold_U[b]
            if v > 0:  # ASCII has no lone characters and no expansions
                h = (h ^ np.uint64(v)) * _PRIME
                if start < 0:
                    start = i
                i += 1
                end = i
                continue
            if v == 0 and start >= 0:
                break
            i += 1
            continue
        v, n = _fold_at(data_B, i, fold_U)
        if v > 0:
            if v < CHARACTER:
                h = (h ^ np.uint64(v)) * _PRIME
            elif v < _EXPANSIONS:
                if start >= 0:
                    break
                return _mix((h ^ np.uint64(v)) * _PRIME), i, i + n, 1
            else:
                at = v - _EXPANSIONS
                for j in range(at + 1, at + 1 + expansion_X[at]):
                    h = (h ^ np.uint64(expansion_X[j])) * _PRIME
            if start < 0:
                start = i
            end = i + n
        elif v == 0 and start >= 0:
            break
        i += n
    return _mix(h), start, end, 0


@inner
def _same_token(data_B: Any, i: int, end: int, fold_U: Any, expansion_X: Any, code_C: Any, a: int, b: int) -> bool:
    """Return whether the token at ``data_B[i:end]`` spells ``code_C[a:b]``."""
    while i < end:
        byte = data_B[i]
        if byte < 0x80:
            v = fold_U[byte]
            n = 1
        else:
            v, n = _fold_at(data_B, i, fold_U)
        i += n
        if v <= 0:
            continue
        if v >= _EXPANSIONS:
            at = v - _EXPANSIONS
            for j in range(at + 1, at + 1 + expansion_X[at]):
                if a >= b or code_C[a] != expansion_X[j]:
                    return False
                a += 1
            continue
        if a >= b or code_C[a] != v & _MASK:
            return False
        a += 1
    return a == b


@njit(nogil=True, cache=True, _nrt=False)
def _tokenise(
    offsets_D1: Any, data_B: Any, fold_U: Any, expansion_X: Any, tokens_D1: Any, hash_N: Any, lone_N: Any,
    spell_N1: Any, code_C: Any,
) -> tuple[int, int]:  # fmt: skip
    """Fill the token arrays, counting on where they are too short; return ``(tokens, code points)``."""
    n = 0
    c = 0
    for d in range(len(offsets_D1) - 1):
        i = offsets_D1[d]
        hi = offsets_D1[d + 1]
        while True:
            h, start, end, lone = _next_token(data_B, i, hi, fold_U, expansion_X)
            if start < 0:
                break
            if n < len(hash_N):
                hash_N[n] = h
                lone_N[n] = lone
            i = start
            while i < end:
                v = fold_U[data_B[i]]
                size = 1
                if data_B[i] >= 0x80:
                    v, size = _fold_at(data_B, i, fold_U)
                i += size
                if v <= 0:
                    continue
                at = v - _EXPANSIONS
                for j in range(1 if v < _EXPANSIONS else expansion_X[at]):
                    if c < len(code_C):
                        code_C[c] = v & _MASK if v < _EXPANSIONS else expansion_X[at + 1 + j]
                    c += 1
            n += 1
            if n < len(spell_N1):
                spell_N1[n] = c
        tokens_D1[d + 1] = n
    return n, c


@njit(nogil=True, cache=True, _nrt=False)
def _window_keys(tokens_E1: Any, hash_N: Any, lone_N: Any, n: int, lone: int, salt: Any, key_N: Any, ok_N: Any) -> None:
    """Write for each token the key of the window that begins there, and whether there is one of kind `lone`."""
    for e in range(len(tokens_E1) - 1):
        for t in range(tokens_E1[e], tokens_E1[e + 1] - n + 1):
            h = np.uint64(0)
            count = 0
            for j in range(t, t + n):
                h = h * _BASE + hash_N[j]
                count += lone_N[j]
            key_N[t] = h ^ salt
            ok_N[t] = (2 * count > n) == (lone == 1)


@njit(nogil=True, cache=True, _nrt=False)
def _insert(keys_K: Any, filter_K: Any, slots_T: Any, value_T: Any, bloom_L: Any, first_W: Any, shift_W: Any) -> None:
    """Put key k with value k + 1 into the table and into the filter of window ``filter_K[k]``; keys are distinct."""
    mask = np.uint64(len(slots_T) - 1)
    for k in range(len(keys_K)):
        key = keys_K[k]
        w = filter_K[k]
        g = key * _GOLD
        bloom_L[first_W[w] + int(g >> shift_W[w])] |= (_ONE << (g & _SIX)) | (_ONE << ((g >> _SIX_BITS) & _SIX))
        at = key & mask
        while value_T[at]:
            at = (at + _ONE) & mask
        slots_T[at] = key
        value_T[at] = k + 1


@njit(nogil=True, cache=True, _nrt=False)
def _match(
    offsets_D1: Any, data_B: Any, fold_U: Any, expansion_X: Any, windows_W5: Any, salt_W: Any, power_W: Any,
    shift_W: Any, bloom_L: Any, slots_T: Any, value_T: Any, posting_K1: Any, posting_P2: Any, tokens_E1: Any,
    hash_N: Any, spell_N1: Any, code_C: Any, seen_E2: Any, prefix_R: Any, ring_R2: Any, out_M7: Any,
) -> int:  # fmt: skip
    """Write one row a common run: doc, entry, entry token, tokens, first byte, end byte, doc token.

    ``prefix_R`` remembers the polynomial hash of the document up to each of the last tokens, so that a window costs
    one multiplication; ``ring_R2`` the first byte of a token and the lone characters before it.
    """
    found = 0
    mask = np.uint64(len(slots_T) - 1)
    n_windows = len(windows_W5)
    n_word_windows = 0
    while n_word_windows < n_windows and windows_W5[n_word_windows, 1] == 0:
        n_word_windows += 1
    for d in range(len(offsets_D1) - 1):
        i = offsets_D1[d]
        hi = offsets_D1[d + 1]
        token = 0
        prefix = np.uint64(0)
        lones = 0
        while True:
            h, start, end, lone = _next_token(data_B, i, hi, fold_U, expansion_X)
            if start < 0:
                break
            i = end
            at = token & (RING - 1)
            prefix_R[at] = prefix
            ring_R2[at, 0] = start
            ring_R2[at, 1] = lones
            prefix = prefix * _BASE + h
            lones += lone
            token += 1
            for w in range(n_windows if lones else n_word_windows):
                n = windows_W5[w, 0]
                first = token - n
                if first < 0:
                    continue
                old = first & (RING - 1)
                if windows_W5[w, 1] != (2 * (lones - ring_R2[old, 1]) > n):
                    continue
                key = (prefix - prefix_R[old] * power_W[w]) ^ salt_W[w]
                g = key * _GOLD
                bits = (_ONE << (g & _SIX)) | (_ONE << ((g >> _SIX_BITS) & _SIX))
                if bloom_L[windows_W5[w, 3] + int(g >> shift_W[w])] & bits != bits:
                    continue
                slot = key & mask
                k = 0
                while value_T[slot]:
                    if slots_T[slot] == key:
                        k = int(value_T[slot])
                        break
                    slot = (slot + _ONE) & mask
                if k == 0:
                    continue
                begin = ring_R2[old, 0]
                for p in range(posting_K1[k - 1], posting_K1[k]):
                    entry = posting_P2[p, 0]
                    if seen_E2[entry, 0] == d + 1 and first < seen_E2[entry, 1]:
                        continue
                    t = tokens_E1[entry] + posting_P2[p, 1]
                    t_end = tokens_E1[entry + 1]
                    last = begin
                    run = 0
                    while t < t_end:
                        other, a, b, _ = _next_token(data_B, last, hi, fold_U, expansion_X)
                        if a < 0 or other != hash_N[t]:
                            break
                        if not _same_token(data_B, a, b, fold_U, expansion_X, code_C, spell_N1[t], spell_N1[t + 1]):
                            break
                        last = b
                        t += 1
                        run += 1
                    if run < n or (windows_W5[w, 2] == 1 and t < t_end):
                        continue
                    seen_E2[entry, 0] = d + 1
                    seen_E2[entry, 1] = first + run
                    if found < len(out_M7):
                        out_M7[found, 0] = d
                        out_M7[found, 1] = entry
                        out_M7[found, 2] = posting_P2[p, 1]
                        out_M7[found, 3] = run
                        out_M7[found, 4] = begin
                        out_M7[found, 5] = last
                        out_M7[found, 6] = first
                    found += 1
    return found


class Tokens(NamedTuple):
    """Tokens of E texts: ``offsets_E1``, ``spell_N1`` int64; ``hash_N`` uint64; ``lone_N`` uint8; ``code_C`` int32."""

    offsets_E1: npt.NDArray[np.int64]
    hash_N: npt.NDArray[np.uint64]
    lone_N: npt.NDArray[np.uint8]
    spell_N1: npt.NDArray[np.int64]
    code_C: npt.NDArray[np.int32]

    def size(self, text: int) -> int:
        """Return the number of tokens of one text."""
        return int(self.offsets_E1[text + 1] - self.offsets_E1[text])

    def take(self, texts: npt.NDArray[np.int64]) -> Tokens:
        """Return the tokens of the chosen texts, in that order."""
        offsets_E1, rows = _ranges(self.offsets_E1, texts)
        spell_N1, codes = _ranges(self.spell_N1, rows)
        return Tokens(offsets_E1, self.hash_N[rows], self.lone_N[rows], spell_N1, self.code_C[codes])

    def words(self, text: int) -> list[str]:
        """Return the folded tokens of one text."""
        rows = range(self.offsets_E1[text], self.offsets_E1[text + 1])
        return ["".join(map(chr, self.code_C[self.spell_N1[t] : self.spell_N1[t + 1]])) for t in rows]


class Table(NamedTuple):
    """Windows, filters, lookup table, and the tokens that hits are checked against.

    ``windows_W5`` int64: tokens, 1 for characters, 1 for whole items, first word of its filter in ``bloom_L``, number;
    a filter is a blocked Bloom filter of two bits in one 64-bit word (8 to 32 bits a key).
    """

    tokens: Tokens
    windows_W5: npt.NDArray[np.int64]
    shift_W: npt.NDArray[np.uint64]
    bloom_L: npt.NDArray[np.uint64]
    slots_T: npt.NDArray[np.uint64]
    value_T: npt.NDArray[np.int32]
    posting_K1: npt.NDArray[np.int64]
    posting_P2: npt.NDArray[np.int32]


class Postings(NamedTuple):
    """Where the n-grams of one window are: ``key`` uint64, ``entry`` and first token ``position`` int64 (P)."""

    key: npt.NDArray[np.uint64]
    entry: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]

    def where(self, keep_P: npt.NDArray[Any]) -> Postings:
        """Return the postings that a mask or an order selects."""
        return Postings(self.key[keep_P], self.entry[keep_P], self.position[keep_P])


def _ranges(
    offsets: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the offsets of the chosen ranges laid end to end, and the positions they are made of."""
    sizes = offsets[chosen + 1] - offsets[chosen]
    out = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(sizes, out=out[1:])
    return out, np.arange(out[-1]) + np.repeat(offsets[chosen] - out[:-1], sizes)


def tokenise(offsets_D1: Offsets, data_B: Bytes) -> Tokens:
    """Return the folded tokens of each document."""
    fold_U, expansion_X = fold_table()
    n = c = int(offsets_D1[-1] - offsets_D1[0]) + 1
    while True:
        tokens_D1, spell_N1 = np.zeros(len(offsets_D1), np.int64), np.zeros(n + 1, np.int64)
        hash_N, lone_N, code_C = np.empty(n, np.uint64), np.empty(n, np.uint8), np.empty(c, np.int32)
        used, codes = _tokenise(
            _frozen(offsets_D1), _frozen(data_B), fold_U, expansion_X, tokens_D1, hash_N, lone_N, spell_N1, code_C
        )
        if used <= n and codes <= c:
            return Tokens(tokens_D1, hash_N[:used], lone_N[:used], spell_N1[: used + 1], code_C[:codes])
        n, c = max(n, used), max(c, codes)


def window_keys(tokens: Tokens, n: int, lone: int, window: int) -> Postings:
    """Return the key, text and position of each window of `n` tokens that is of kind `lone` (1: characters)."""
    key_N, ok_N = np.zeros(len(tokens.hash_N), np.uint64), np.zeros(len(tokens.hash_N), np.bool_)
    _window_keys(tokens.offsets_E1, tokens.hash_N, tokens.lone_N, n, lone, _salt(window), key_N, ok_N)
    rows = np.flatnonzero(ok_N)
    text = np.searchsorted(tokens.offsets_E1, rows, side="right") - 1
    return Postings(key_N[rows], text, rows - tokens.offsets_E1[text])


def build_table(tokens: Tokens, postings: list[Postings], windows: tuple[tuple[int, int, int], ...]) -> Table:
    """Return the lookup table of the postings of each window.

    `windows` are ``(tokens, 1 for characters, 1 for whole items)``; those without postings are not streamed.
    """
    used = [w for w, part in enumerate(postings) if len(part.key)]
    keys = [np.unique(postings[w].key) for w in used]
    key_P = np.concatenate([part.key for part in postings])
    entry_P = np.concatenate([part.entry for part in postings])
    position_P = np.concatenate([part.position for part in postings])
    order = np.lexsort((position_P, entry_P, key_P))
    keys_K, first = np.unique(key_P[order], return_index=True)
    filter_K = np.zeros(len(keys_K), np.int64)
    windows_W5 = np.zeros((len(used), 5), np.int64)
    shift_W = np.zeros(len(used), np.uint64)
    n_words = 0
    for row, w in enumerate(used):
        filter_K[np.searchsorted(keys_K, keys[row])] = row
        log = max(3, (len(keys[row]) // 8).bit_length())  # words of 64 bits: 8 to 16 bits a key
        windows_W5[row] = (*windows[w], n_words, w)
        shift_W[row] = 64 - log
        n_words += 1 << log
    size = 1 << max(4, (2 * len(keys_K)).bit_length())
    slots_T, value_T, bloom_L = np.zeros(size, np.uint64), np.zeros(size, np.int32), np.zeros(n_words + 1, np.uint64)
    _insert(keys_K, filter_K, slots_T, value_T, bloom_L, windows_W5[:, 3].copy(), shift_W)
    posting_K1 = np.append(first, len(order)).astype(np.int64)
    posting_P2 = np.stack([entry_P[order], position_P[order]], axis=1).astype(np.int32)
    return Table(tokens, windows_W5, shift_W, bloom_L, slots_T, value_T, posting_K1, posting_P2)


def match(offsets_D1: Offsets, data_B: Bytes, table: Table) -> npt.NDArray[np.int64]:
    """Return the common runs of documents and entries, int64 (M, 7), in document order.

    Columns: document, entry, first entry token, tokens, first byte, end byte (not included), first document token.
    """
    windows_W5, tokens = table.windows_W5, table.tokens
    fold_U, expansion_X = fold_table()
    power_W = np.array([pow(int(_BASE), int(n), 1 << 64) for n in windows_W5[:, 0]], np.uint64)
    salt_W = np.array([_salt(int(w)) for w in windows_W5[:, 4]], np.uint64)
    seen_E2 = np.zeros((len(tokens.offsets_E1) - 1, 2), np.int64)
    room = 1024
    while True:
        out_M7 = np.empty((room, 7), np.int64)
        found = _match(
            _frozen(offsets_D1), _frozen(data_B), fold_U, expansion_X, windows_W5, salt_W, power_W, table.shift_W,
            table.bloom_L, table.slots_T, table.value_T, table.posting_K1, table.posting_P2, tokens.offsets_E1,
            tokens.hash_N, tokens.spell_N1, tokens.code_C, seen_E2, np.zeros(RING, np.uint64),
            np.zeros((RING, 2), np.int64), out_M7,
        )  # fmt: skip
        if found <= room:
            return out_M7[:found]
        room = found
        seen_E2[:] = 0


def _salt(window: int) -> np.uint64:
    return np.uint64((window + 1) * 0xA0761D6478BD642F & 0xFFFFFFFFFFFFFFFF)


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view: one compiled version serves Arrow's buffers and ours."""
    view = array.view()
    view.flags.writeable = False
    return view
