"""fastText inference over Arrow string buffers: the mean vector of each document's words and n-grams.

Legend: D documents; S spans, document d is the spans ``span_of_D1[d]:span_of_D1[d+1]`` and span s the bytes
``[starts_S[s], ends_S[s])`` of ``data_B`` (uint8, valid UTF-8); E dictionary entries (words, then labels);
H hash slots; R input rows (``rows_F`` is the flat table); P columns, a multiple of 16; C cache slots; W 64-bucket
words of the pruned dictionary; G word n-grams that are open; N rows gathered; Q bytes of a piece of a token; I its
n-grams.

Work is linear in the bytes: a token is hashed once while its end is looked for; each character starts up to
``maxn`` n-grams whose hashes extend one another (the fasttext package hashes each from its first byte).
Buckets of a pruned dictionary are found in a bitmap with ranks (375 kB for 2,000,000 buckets instead of a hash
map). A token's rows are summed first, and that sum is kept in a direct-mapped cache keyed by the token's bytes,
so a frequent word costs one look-up; since the sum is always formed a token at a time, the result does not
depend on what the cache held, hence not on the batch. Rows are summed in float32 a token (or 1,024 bytes of it),
float64 a document.
Memory: 0.1 MB of scratch, the cache (1 MB, or 512 rows if that is more) and P float32 a document.

Sources: A. Joulin et al., arXiv:1607.01759, arXiv:1612.03651; P. Bojanowski et al., arXiv:1607.04606; equal
to the fasttext package up to float32 rounding. `fasttext_labels` turns the vectors into probabilities.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
CACHE_BYTES, MIN_CACHE = 1 << 20, 512
"""Bytes and fewest slots (a power of two) of the cache of token sums; made anew for every call."""
MAX_CACHED = 48
"""Longer tokens (bytes) are not cached: they hardly repeat."""
N_PIECE = 1024
"""Bytes of a token that are hashed at a time."""
N_GATHERED, MAX_WORD_NGRAMS = 512, 64
"""Rows of words and word n-grams that are gathered before they are added; the longest word n-gram."""
AHEAD = 32
"""Rows that are asked for before their turn; without it a row of a large model waits for memory."""
FNV_START = np.uint32(2_166_136_261)
FNV_PRIME = np.uint32(16_777_619)
SEPARATORS = np.uint64(1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 32)
"""Bits of the bytes that part tokens: NUL, tab, line feed, vertical tab, form feed, carriage return, space."""
WORD_NGRAM_FACTOR = np.uint64(116_049_371)
PRUNED, NO_NGRAMS = 1, 2


@intrinsic
def _popcount(typing_context: Any, a: Any) -> Any:
    """Count the set bits of a uint64."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@njit(nogil=True, cache=True, error_model="numpy")
def _find(
    hash_: Any, data_B: Any, start: int, end: int, slots_H: Any, hash_E: Any, offsets_E1: Any, words_B: Any
) -> Any:
    """Return the dictionary entry of a token, or -1."""
    mask = slots_H.shape[0] - 1
    slot = np.int64(hash_) & mask
    while slots_H[slot] >= 0:
        entry = np.int64(slots_H[slot])
        low = offsets_E1[entry]
        if hash_E[entry] == hash_ and offsets_E1[entry + 1] - low == end - start:
            i = 0
            while i < end - start and words_B[low + i] == data_B[start + i]:
                i += 1
            if i == end - start:
                return entry
        slot = (slot + 1) & mask
    return -1


def _vector_add(widen: bool) -> Any:
    """Make ``add16(dest, i, source, j)``: dest[i:i+16] += source[j:j+16], source float32.

    Written as one vector instruction because LLVM cannot prove that the two arrays do not overlap.
    """

    @intrinsic
    def add16(typing_context: Any, dest: Any, i: Any, source: Any, j: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            from llvmlite import ir

            single = ir.VectorType(ir.FloatType(), LANES)
            wide = ir.VectorType(ir.DoubleType(), LANES) if widen else single
            to = context.make_array(sig.args[0])(context, builder, args[0])
            of = context.make_array(sig.args[2])(context, builder, args[2])
            target = builder.bitcast(builder.gep(to.data, [args[1]]), wide.as_pointer())
            origin = builder.bitcast(builder.gep(of.data, [args[3]]), single.as_pointer())
            value = builder.load(origin, align=4)
            if widen:
                value = builder.fpext(value, wide)
            builder.store(builder.fadd(builder.load(target, align=4), value), target, align=4)
            return context.get_dummy_value()

        return types.void(dest, types.int64, source, types.int64), codegen

    return add16


@intrinsic
def _prefetch(typing_context: Any, source: Any, i: Any) -> Any:
    """Ask for the cache line of element `i`; never faults."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        from llvmlite import ir

        array = context.make_array(sig.args[0])(context, builder, args[0])
        pointer = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0")
        builder.call(function, [pointer, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(source, types.int64), codegen


_add16 = _vector_add(widen=False)
_add16_wide = _vector_add(widen=True)


@njit(nogil=True, cache=True, error_model="numpy")
def _clear(row_P: Any) -> None:
    for column in range(row_P.shape[0]):
        row_P[column] = 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def _add_rows(ids_I: Any, n: int, rows_F: Any, sum_P: Any) -> None:
    """Add rows ``ids_I[:n]`` of the flat table `rows_F` to `sum_P`; rows are asked for well before their turn."""
    for t in range(n):
        ahead = ids_I[min(t + AHEAD, n - 1)] * sum_P.shape[0]
        for low in range(0, sum_P.shape[0], LANES):
            _prefetch(rows_F, ahead + low)
        first = ids_I[t] * sum_P.shape[0]
        for low in range(0, sum_P.shape[0], LANES):
            _add16(sum_P, low, rows_F, first + low)


@njit(nogil=True, cache=True, error_model="numpy")
def _remainders(hash_I: Any, n: int, n_buckets: int) -> None:
    """Replace hashes by their buckets, through a float64 reciprocal (one off at most, then put right): vectorises."""
    inverse = 1.0 / np.float64(n_buckets)
    for i in range(n):
        h = np.int64(hash_I[i])
        r = h - np.int64(np.float64(h) * inverse) * n_buckets
        r = r + n_buckets if r < 0 else r
        r = r - n_buckets if r >= n_buckets else r
        hash_I[i] = np.uint32(r)


@njit(nogil=True, cache=True, error_model="numpy")
def _kept_rows(bucket_I: Any, n: int, bits_W: Any, rank_W: Any, ids_I: Any) -> Any:
    """Write the rows of the buckets that were not pruned, without a branch; return their number."""
    kept: Any = 0
    for i in range(n):
        bucket = bucket_I[i]
        word = bits_W[bucket >> np.uint32(6)]
        bit = np.uint64(bucket & np.uint32(63))
        below = _popcount(word & ((np.uint64(1) << bit) - np.uint64(1)))
        ids_I[kept] = np.int64(rank_W[bucket >> np.uint32(6)]) + np.int64(below)
        kept += np.int64((word >> bit) & np.uint64(1))
    return kept


@njit(nogil=True, cache=True, error_model="numpy")
def _all_rows(bucket_I: Any, n: int, n_words: int, ids_I: Any) -> None:
    """Write the rows of buckets in a dictionary that is not pruned."""
    for i in range(n):
        ids_I[i] = n_words + np.int64(bucket_I[i])


@njit(nogil=True, cache=True, error_model="numpy")
def _wide_remainders(wide_N: Any, n: int, n_buckets: int, bucket_I: Any) -> None:
    """Write the buckets of 64-bit hashes; the quotient's float64 estimate is exact to one from 4,096 buckets on."""
    if n_buckets < 4096:
        for i in range(n):
            bucket_I[i] = np.uint32(wide_N[i] % np.uint64(n_buckets))
    else:
        inverse = 1.0 / np.float64(n_buckets)
        for i in range(n):
            quotient = np.uint64(np.float64(wide_N[i]) * inverse)
            r = np.int64(wide_N[i] - quotient * np.uint64(n_buckets))
            r = r + n_buckets if r < 0 else r
            r = r - n_buckets if r >= n_buckets else r
            bucket_I[i] = np.uint32(r)


@njit(nogil=True, cache=True, error_model="numpy")
def _flush(
    wide_N: Any, n_wide: int, row_N: Any, n_rows: int, n_buckets: int, n_words: int, pruning: int,
    bits_W: Any, rank_W: Any, rows_F: Any, hash_I: Any, ids_I: Any, token_P: Any, sum_P: Any,
) -> Any:  # fmt: skip
    """Add the rows of whole words and of word n-grams that have been gathered; return how many inputs they are.

    Gathering lets the memory reads of many rows overlap: with word n-grams each one is a cache miss.
    """
    _clear(token_P)
    _add_rows(row_N, n_rows, rows_F, token_P)
    _wide_remainders(wide_N, n_wide, n_buckets, hash_I)
    n = n_wide
    if pruning == PRUNED:
        n = _kept_rows(hash_I, n, bits_W, rank_W, ids_I)
    else:
        _all_rows(hash_I, n, n_words, ids_I)
    _add_rows(ids_I, n, rows_F, token_P)
    for low in range(0, token_P.shape[0], LANES):
        _add16_wide(sum_P, low, token_P, low)
    return n_rows + n


@njit(nogil=True, cache=True, error_model="numpy")
def _hash_ngrams(
    piece_Q: Any, first_Q1: Any, n_characters: int, stop: int, is_first: bool, is_last: bool, minn: int, maxn: int,
    hash_I: Any,
) -> Any:  # fmt: skip
    """Hash the n-grams that start at characters [0, stop); return their number.

    The lone first ``<`` and last ``>`` of a token are no n-grams. Hashes below minn are written and then
    overwritten: no branch to mispredict.
    """
    k: Any = 0
    one_byte_each = first_Q1[n_characters] == n_characters
    for c in range(stop):
        edge = (is_first and c == 0) or (is_last and c + 1 == n_characters)
        least = max(minn, 2) if edge else minn
        most = min(maxn, n_characters - c)
        h = FNV_START
        if one_byte_each:
            for n in range(1, most + 1):
                h = np.uint32((h ^ piece_Q[c + n - 1]) * FNV_PRIME)
                hash_I[k] = h
                k += np.int64(n >= least)
        else:
            for n in range(1, most + 1):
                for i in range(first_Q1[c + n - 1], first_Q1[c + n]):
                    h = np.uint32((h ^ piece_Q[i]) * FNV_PRIME)
                hash_I[k] = h
                k += np.int64(n >= least)
    return k


@njit(nogil=True, cache=True, error_model="numpy")
def _cut_piece(data_B: Any, low: int, high: int, is_first: bool, is_last: bool, piece_Q: Any, first_Q1: Any) -> Any:
    """Write the characters of a piece of ``<token>``, bytes [low, high) of the text; return their number.

    Sign-extended bytes go to `piece_Q`, the first byte of each character to `first_Q1`.
    """
    piece_Q[0] = np.uint32(60)
    first_Q1[0] = 0
    n_bytes = np.int64(is_first)
    n_characters = n_bytes
    for i in range(low, high):
        byte = data_B[i]
        first_Q1[n_characters] = n_bytes
        n_characters += np.int64((byte & 0xC0 != 0x80) | (n_bytes == 0))
        piece_Q[n_bytes] = np.uint32(np.int32(np.int8(byte)))
        n_bytes += 1
    piece_Q[n_bytes] = np.uint32(62)
    first_Q1[n_characters] = n_bytes
    n_bytes += np.int64(is_last)
    n_characters += np.int64(is_last)
    first_Q1[n_characters] = n_bytes
    return n_characters


@njit(nogil=True, cache=True, error_model="numpy")
def _same(a_B: Any, i: int, b_B: Any, j: int, n: int) -> bool:
    """Return whether `n` bytes at `i` and at `j` are equal."""
    k = 0
    while k < n and a_B[i + k] == b_B[j + k]:
        k += 1
    return k == n


@njit(nogil=True, cache=True, error_model="numpy")
def mean_vectors(
    span_of_D1: Any, starts_S: Any, ends_S: Any, data_B: Any, stops_at_end_token: bool,
    minn: int, maxn: int, n_buckets: Any, word_ngrams: int, n_words: int,
    slots_H: Any, hash_E: Any, offsets_E1: Any, words_B: Any,
    rows_F: Any, pruning: int, bits_W: Any, rank_W: Any,
    cache_start_C: Any, cache_length_C: Any, cache_count_C: Any, cache_F: Any,
    piece_Q: Any, first_Q1: Any, hash_I: Any, ids_I: Any, token_P: Any, running_G: Any, wide_N: Any, row_N: Any,
    sum_P: Any,
    mean_DP: Any, n_inputs_D: Any,
) -> None:  # fmt: skip
    """Write the mean input vector (float32) and the number of inputs of each document.

    `stops_at_end_token`: a literal ``</s>`` in the text ends the document, as in the fasttext package.
    """
    n_columns = mean_DP.shape[1]
    end_token = np.frombuffer(b"</s>", np.uint8)
    label_prefix = np.frombuffer(b"__label__", np.uint8)
    end_hash = FNV_START
    for i in range(4):
        end_hash = np.uint32((end_hash ^ np.uint32(end_token[i])) * FNV_PRIME)
    end_entry = _find(end_hash, end_token, 0, 4, slots_H, hash_E, offsets_E1, words_B)
    cache_mask = np.uint32(cache_start_C.shape[0] - 1)
    has_subwords = maxn > 0 and pruning != NO_NGRAMS
    has_word_ngrams = word_ngrams > 1 and pruning != NO_NGRAMS
    for d in range(span_of_D1.shape[0] - 1):
        n_inputs: Any = 0
        n_running: Any = 0
        n_wide: Any = 0
        n_rows: Any = 0
        for column in range(n_columns):
            sum_P[column] = 0.0
        first_span = span_of_D1[d]
        n_spans = span_of_D1[d + 1] - first_span
        s = 0
        while s <= n_spans:
            closing = s == n_spans  # the package closes every line with </s>
            at = 0 if closing else starts_S[first_span + s]
            stop = 1 if closing else ends_S[first_span + s]
            s += 1
            while at < stop:
                start = at
                hash_ = end_hash
                slot: Any = 0
                entry = end_entry
                is_end_token = closing
                is_cached = False
                if closing:
                    at = stop
                else:
                    hash_ = FNV_START
                    while at < stop:
                        byte = data_B[at]
                        if byte <= 32 and (SEPARATORS >> np.uint64(byte)) & np.uint64(1):
                            break
                        hash_ = np.uint32((hash_ ^ np.uint32(np.int32(np.int8(byte)))) * FNV_PRIME)
                        at += 1
                    if at == start:
                        at += 1
                        continue
                    if at - start == 4 and hash_ == end_hash:
                        is_end_token = _same(data_B, start, end_token, 0, 4)
                    slot = np.int64(hash_ & cache_mask)
                    is_cached = (
                        cache_length_C[slot] == at - start
                        and not is_end_token
                        and _same(data_B, start, data_B, cache_start_C[slot], at - start)
                    )
                if is_cached and has_subwords:
                    for low in range(0, n_columns, LANES):
                        _add16_wide(sum_P, low, cache_F, slot * n_columns + low)
                    n_inputs += cache_count_C[slot]
                else:
                    if is_cached:
                        entry = cache_count_C[slot]
                    elif not closing:
                        entry = _find(hash_, data_B, start, at, slots_H, hash_E, offsets_E1, words_B)
                    if entry >= n_words or (entry < 0 and at - start >= 9 and _same(data_B, start, label_prefix, 0, 9)):
                        continue  # a label in the text is no word
                    count = entry
                    if not has_subwords:
                        row_N[n_rows] = entry
                        n_rows += np.int64(entry >= 0)
                    elif is_end_token:
                        if entry >= 0:
                            row_N[n_rows] = entry
                            n_rows += 1
                    else:
                        _clear(token_P)
                        count = 0
                        if entry >= 0:
                            ids_I[0] = entry
                            _add_rows(ids_I, 1, rows_F, token_P)
                            count = 1
                        # A long token is cut into pieces that overlap by the longest n-gram: scratch stays small.
                        piece_at = start - 1
                        while piece_at <= at:
                            is_first = piece_at < start
                            is_last = piece_at + N_PIECE >= at
                            n_characters = _cut_piece(
                                data_B, piece_at + is_first, at if is_last else piece_at + N_PIECE,
                                is_first, is_last, piece_Q, first_Q1,
                            )  # fmt: skip
                            # Only characters whose n-grams end inside the piece start here; its last may be cut.
                            n_starts = n_characters if is_last else max(n_characters - maxn - 1, 1)
                            n = _hash_ngrams(
                                piece_Q, first_Q1, n_characters, n_starts, is_first, is_last, minn, maxn, hash_I
                            )
                            _remainders(hash_I, n, n_buckets)
                            if pruning == PRUNED:
                                n = _kept_rows(hash_I, n, bits_W, rank_W, ids_I)
                            else:
                                _all_rows(hash_I, n, n_words, ids_I)
                            _add_rows(ids_I, n, rows_F, token_P)
                            count += n
                            if not is_last:  # float32 sums stay short
                                for low in range(0, n_columns, LANES):
                                    _add16_wide(sum_P, low, token_P, low)
                                _clear(token_P)
                            piece_at = at + 1 if is_last else piece_at + first_Q1[n_starts]
                        for low in range(0, n_columns, LANES):
                            _add16_wide(sum_P, low, token_P, low)
                        n_inputs += count
                    if not is_end_token and not is_cached and at - start <= MAX_CACHED:
                        cache_start_C[slot] = start
                        cache_length_C[slot] = at - start
                        cache_count_C[slot] = count
                        if has_subwords:
                            for column in range(n_columns):
                                cache_F[slot * n_columns + column] = token_P[column]
                if has_word_ngrams:
                    # running_G holds the hashes of the n-grams that the last tokens began, oldest first.
                    signed = np.uint64(np.int64(np.int32(hash_)))
                    for g in range(n_running):
                        running_G[g] = running_G[g] * WORD_NGRAM_FACTOR + signed
                        wide_N[n_wide] = running_G[g]
                        n_wide += 1
                    if n_running == word_ngrams - 1:
                        for g in range(1, n_running):
                            running_G[g - 1] = running_G[g]
                        n_running -= 1
                    running_G[n_running] = signed
                    n_running += 1
                if n_wide > N_GATHERED - MAX_WORD_NGRAMS or n_rows == N_GATHERED:
                    n_inputs += _flush(
                        wide_N, n_wide, row_N, n_rows, n_buckets, n_words, pruning, bits_W, rank_W, rows_F,
                        hash_I, ids_I, token_P, sum_P,
                    )  # fmt: skip
                    n_wide = 0
                    n_rows = 0
                if is_end_token and stops_at_end_token:
                    at = stop
                    s = n_spans + 1
        if n_wide + n_rows > 0:
            n_inputs += _flush(
                wide_N, n_wide, row_N, n_rows, n_buckets, n_words, pruning, bits_W, rank_W, rows_F,
                hash_I, ids_I, token_P, sum_P,
            )  # fmt: skip
        n_inputs_D[d] = n_inputs
        for column in range(n_columns):
            mean_DP[d, column] = np.float32(sum_P[column] / n_inputs) if n_inputs > 0 else np.float32(0.0)


def vectors(
    model: Any,
    span_of_D1: npt.NDArray[np.int64],
    starts_S: npt.NDArray[np.int64],
    ends_S: npt.NDArray[np.int64],
    data_B: npt.NDArray[np.uint8],
    stops_at_end_token: bool = False,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return ``(mean_DP, n_inputs_D)`` of documents given as spans of `data_B`."""
    n = len(span_of_D1) - 1
    mean = np.empty((n, model.rows_RP.shape[1]), np.float32)
    n_inputs = np.empty(n, np.int64)
    n_columns = mean.shape[1]
    n_cache = max(MIN_CACHE, 1 << (CACHE_BYTES // (4 * n_columns)).bit_length() - 1)
    n_ids = (N_PIECE + 2) * max(model.maxn, 1) + 1
    mean_vectors(
        span_of_D1, starts_S, ends_S, data_B, stops_at_end_token,
        model.minn, model.maxn, np.int64(max(model.bucket, 1)), model.word_ngrams, model.n_words,
        model.slots_H, model.hash_E, model.word_offsets_E1, model.word_data_B,
        model.rows_RP.reshape(-1), model.pruning, model.bits_W, model.rank_W,
        np.zeros(n_cache, np.int64), np.zeros(n_cache, np.int32), np.zeros(n_cache, np.int32),
        np.empty(n_cache * n_columns, np.float32),
        np.empty(N_PIECE + 2, np.uint32), np.empty(N_PIECE + 3, np.int64),
        np.empty(n_ids, np.uint32), np.empty(n_ids, np.int64),
        np.empty(n_columns, np.float32), np.empty(max(model.word_ngrams, 1), np.uint64),
        np.empty(N_GATHERED, np.uint64), np.empty(N_GATHERED + 1, np.int64), np.empty(n_columns),
        mean, n_inputs,
    )  # fmt: skip
    return mean, n_inputs


def whole_documents(
    offsets_D1: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return ``(span_of_D1, starts_S, ends_S)`` with one span a document."""
    return np.arange(len(offsets_D1), dtype=np.int64), offsets_D1[:-1], offsets_D1[1:]
