"""Shingles, signatures, bands, exact similarity and union-find against small oracles."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.stages.kernels import jaccard, minhash, shingles, unicode, unionfind
from gristmill.stages.kernels.views import text_view

MASK, LOW = (1 << 64) - 1, (1 << 32) - 1
NORM = shingles.normal_table()
GOLDEN_SIGNATURES = [[705303503, 603776576, 965428078, 1233273479], [816773317, 108481873, 565427396, 189036914]]
GOLDEN_KEYS = [[17588120476264276720, 379028084130290444], [1671423453274682219, 3230818213942874967]]


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def _units(text: str) -> list[str]:
    """Units as strings of hashed values, read straight from the table."""
    units: list[list[int]] = []
    word: list[int] = []
    for char in text:
        value = int(NORM[ord(char)])
        if value == shingles.DROP:
            continue
        if value == shingles.SEPARATOR or value & shingles.UNIT:
            units += [word] if word else []
            units += [[value]] if value != shingles.SEPARATOR else []
            word = []
        elif not (value & shingles.DIGIT and word and word[-1] & shingles.DIGIT):
            word.append(value)
    return units + ([word] if word else [])


def _unit_hash(values: list[int]) -> int:
    h = 0x243F6A8885A308D3
    for value in values:
        h = ((h ^ value) * 0x9E3779B97F4A7C15) & MASK
    return _mix(h)


def _shingles(text: str, n: int) -> list[int]:
    hashes = [_unit_hash(unit) for unit in _units(text)]
    if 0 < len(hashes) < n:
        h = (0x13198A2E03707344 + len(hashes)) & MASK
        for unit in hashes:
            h = (h * 0xD1342543DE82EF9B + unit) & MASK
        return [_mix(h)]
    out = []
    for i in range(len(hashes) - n + 1):
        h = 0
        for unit in hashes[i : i + n]:
            h = (h * 0xD1342543DE82EF9B + unit) & MASK
        out.append(_mix(h))
    return out


def _view(texts):
    return text_view(pa.array(texts, pa.large_string()))


TEXT = st.text(
    st.one_of(
        st.sampled_from(list("ab Z.,09٣é\u0301\u200b\u200d\n_中文字カｶがไทย한국Ａ１²😀\u00ad")),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=60,
)


def test_normalisation_of_known_text():
    def words(text):
        return ["".join(chr(v & 0x1FFFFF) for v in unit) for unit in _units(text)]

    assert words("Déjà-vu, ÉTÉ 2024!") == ["deja", "vu", "ete", "0"]
    assert words("e\u0301a ＡＢＣ１２ naïve\u00adty") == ["ea", "abc0", "naivety"]
    assert words("第1章 中文") == ["第", "0", "章", "中", "文"]
    assert words("--- \n\t ...") == []


def test_table_flags_cover_every_code_point():
    values = NORM & 0x1FFFFF
    assert ((values < 0x110000) & (NORM >= 0)).all()
    assert NORM[ord("a")] == NORM[ord("A")] == NORM[ord("Á")] == ord("a")
    assert NORM[ord("中")] == shingles.UNIT | ord("中")
    assert NORM[ord("٣")] == NORM[ord("7")] == shingles.DIGIT | ord("0")
    apart = shingles.normal_table(digits_alike=False)
    assert apart[ord("٣")] == ord("3") and not (apart & shingles.DIGIT).any()


def test_decompositions_agree_with_the_standard_library():
    known = unicode.CATEGORY != unicode.CN
    for code_point in np.flatnonzero(known & (unicode.CATEGORY <= unicode.LO)):
        parts = unicodedata.normalize("NFD", chr(code_point))
        if len(parts) > 1 and all(unicodedata.category(p) == "Mn" for p in parts[1:]):
            base = int(NORM[int(unicode.FOLD[code_point])]) & 0x1FFFFF
            folded_base = int(NORM[ord(parts[0])]) & 0x1FFFFF
            assert base == folded_base, hex(code_point)


@settings(deadline=None, max_examples=100)
@given(st.lists(TEXT, max_size=5), st.integers(1, 6))
def test_sets_and_signatures_equal_the_oracle(texts, n):
    offsets_D1, data_B = _view(["skipped", *texts])
    offsets_D1 = offsets_D1[1:]
    a_K, b_K = minhash.permutations(9, 3)
    ends_D1, sets_S = shingles.shingle_sets(offsets_D1, data_B, NORM, n)
    signatures_DK, units_D = minhash.signatures(offsets_D1, data_B, NORM, n, a_K, b_K)
    for d, text in enumerate(texts):
        expected = _shingles(text, n)
        assert sets_S[ends_D1[d] : ends_D1[d + 1]].tolist() == sorted(set(expected))
        assert units_D[d] == len(_units(text))
        for k in range(9):
            low = min((int(a_K[k]) * x + int(b_K[k]) & LOW for x in expected), default=LOW)
            assert signatures_DK[d, k] == low


@pytest.mark.parametrize("n_words", [2046, 2047, 2048, 2049, 2052, 4096, 5000])
def test_block_borders_do_not_show(n_words):
    text = " ".join(f"w{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}{chr(97 + i // 676)}" for i in range(n_words))
    offsets_D1, data_B = _view([text])
    ends_D1, sets_S = shingles.shingle_sets(offsets_D1, data_B, NORM, 5)
    expected = _shingles(text, 5)
    assert sets_S.tolist() == sorted(set(expected))
    a_K, b_K = minhash.permutations(16)
    signatures_DK, _ = minhash.signatures(offsets_D1, data_B, NORM, 5, a_K, b_K)
    assert (signatures_DK == minhash.signatures_of_sets(ends_D1, sets_S, a_K, b_K)).all()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 100, 5000, 200_000])
@pytest.mark.parametrize("kind", ["uniform", "few", "near", "equal"])
def test_hashes_sort_like_numpy(n, kind):
    rng = np.random.default_rng(n)
    hashes = rng.integers(0, 2**64, n + 2, dtype=np.uint64)
    if kind == "few":
        hashes = rng.choice(hashes[:3], n + 2)
    elif kind == "near":
        hashes = hashes >> np.uint64(40)
    elif kind == "equal":
        hashes[:] = 7
    got = hashes.copy()
    shingles.sort_hashes(got, 1, n + 1, np.empty(n, np.uint64), np.empty((1 << 16) + 1, np.uint32))
    assert (got[1 : n + 1] == np.sort(hashes[1 : n + 1])).all()
    assert got[0] == hashes[0] and got[n + 1] == hashes[n + 1]


def test_short_empty_and_repeated_documents_are_defined():
    texts = ["", " .,\n", "one", "one two", "ONE, two!", "a " * 5000, "中" * 5000, "one two three four five"]
    offsets_D1, data_B = _view(texts)
    ends_D1, sets_S = shingles.shingle_sets(offsets_D1, data_B, NORM, 5)
    assert np.diff(ends_D1).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    sets = [sets_S[ends_D1[d] : ends_D1[d + 1]].tolist() for d in range(len(texts))]
    assert sets[3] == sets[4]
    assert sets[2] != sets[3]


def test_signature_golden_values():
    offsets_D1, data_B = _view(["The quick brown fox jumps over the lazy dog", "天地玄黄宇宙洪荒"])
    a_K, b_K = minhash.permutations(4)
    signatures_DK, _ = minhash.signatures(offsets_D1, data_B, NORM, 5, a_K, b_K)
    keys_DN = minhash.band_keys(signatures_DK, 2, 2)
    assert signatures_DK.tolist() == GOLDEN_SIGNATURES
    assert keys_DN.tolist() == GOLDEN_KEYS


def test_equal_rows_give_other_keys_in_other_bands():
    signatures_DK = np.full((1, 8), 7, np.uint32)
    keys = minhash.band_keys(signatures_DK, 4, 2)[0]
    assert len(set(keys.tolist())) == 4
    with pytest.raises(ValueError, match="need 9 permutations"):
        minhash.band_keys(signatures_DK, 3, 3)


@pytest.mark.parametrize("true_jaccard", [0.2, 0.5, 0.8, 0.95])
def test_estimates_are_unbiased(true_jaccard):
    rng = np.random.default_rng(1)
    n_sets, size = 300, 400
    shared = round(2 * size * true_jaccard / (1 + true_jaccard))
    sets = []
    for _ in range(n_sets):
        pool = rng.integers(0, 2**63, 2 * size - shared).astype(np.uint64)
        sets += [np.sort(pool[:size]), np.sort(np.concatenate([pool[:shared], pool[size:]]))]
    ends_D1 = np.cumsum([0, *(len(s) for s in sets)])
    a_K, b_K = minhash.permutations(128)
    signatures_DK = minhash.signatures_of_sets(ends_D1, np.concatenate(sets), a_K, b_K)
    got = minhash.estimate(signatures_DK, np.arange(0, 2 * n_sets, 2), np.arange(1, 2 * n_sets, 2))
    exact = shared / (2 * size - shared)
    deviation = np.sqrt(exact * (1 - exact) / 128)
    assert abs(got.mean() - exact) < 4 * deviation / np.sqrt(n_sets)
    assert 0.8 * deviation < got.std() < 1.2 * deviation


def test_s_curve_matches_published_values():
    table = {(14, 8): (0.565, 0.924), (20, 13): (0.177, 0.677), (450, 20): (0.302, 0.995), (9, 13): (0.084, 0.399)}
    for (bands, rows), expected in table.items():
        got = minhash.candidate_probability([0.7, 0.8], bands, rows)
        assert np.allclose(got, expected, atol=6e-4)
    text = minhash.s_curve(14, 8)
    assert "midpoint 0.719" in text and "0.80      0.92" in text


@settings(deadline=None, max_examples=100)
@given(
    st.sets(st.integers(0, 40), max_size=30),
    st.sets(st.integers(0, 40), max_size=30),
    st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]),
    st.sampled_from([jaccard.JACCARD, jaccard.CONTAINMENT]),
)
def test_similarity_equals_sets(left, right, threshold, measure):
    a = np.array(sorted(left), np.uint64)
    b = np.array(sorted(right), np.uint64)
    whole = len(right) if measure == jaccard.CONTAINMENT else len(left | right)
    exact = len(left & right) / whole if whole else 0.0
    got = jaccard.similarity_if(a, 0, len(a), b, 0, len(b), measure, threshold)
    assert got == (exact if exact >= threshold else -1.0)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=60))
def test_components_equal_a_graph_search(n_nodes, edges):
    edges = [(a % n_nodes, b % n_nodes) for a, b in edges]
    a_E = np.array([a for a, _ in edges], np.int64)
    b_E = np.array([b for _, b in edges], np.int64)
    expected = list(range(n_nodes))
    for _ in range(n_nodes):
        for a, b in edges:
            expected[a] = expected[b] = min(expected[a], expected[b])
    assert unionfind.components(n_nodes, a_E, b_E).tolist() == expected
    node, root = unionfind.contract(a_E, b_E)
    assert dict(zip(node.tolist(), root.tolist(), strict=True)) == {x: r for x, r in enumerate(expected) if x != r}


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=20))
def test_buckets_join_only_within_a_band(rows):
    keys_RN = np.array(rows, np.uint64)
    a, b = [], []
    for i in range(len(rows)):
        for j in range(i):
            if rows[i][0] == rows[j][0] or rows[i][1] == rows[j][1]:
                a.append(i)
                b.append(j)
    expected = unionfind.components(len(rows), np.array(a, np.int64), np.array(b, np.int64))
    assert (unionfind.components_of_buckets(keys_RN) == expected).all()


def test_choose_bands_fits_in_the_permutations():
    assert minhash.choose_bands(0.8, 128) == (9, 13)
    with pytest.raises(ValueError, match="threshold in"):
        minhash.choose_bands(1.0, 128)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_choose_bands_agrees_with_datasketch(threshold):
    lsh = pytest.importorskip("datasketch.lsh")
    theirs = lsh._optimal_param(threshold, 128, 0.5, 0.5)
    ours = minhash.choose_bands(threshold, 128)

    def cost(bands, rows):
        x = (np.arange(20000) + 0.5) / 20000
        p = minhash.candidate_probability(x, bands, rows)
        return np.where(x < threshold, p, 1 - p).mean() / 2

    assert cost(*ours) <= cost(*theirs) + 1e-6


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 200])
def test_minima_are_the_specification(count):
    rng = np.random.default_rng(count)
    shingle_M = rng.integers(0, 2**64, count + 5, dtype=np.uint64)
    shingle_M[0] = 2**64 - 1
    a, b = minhash.permutations(20)
    minima = rng.integers(0, 2**32, 20, dtype=np.uint32)
    wanted = [
        min([int(old), *((int(p) * int(x) + int(q)) % 2**32 for x in shingle_M[:count])])
        for p, q, old in zip(a, b, minima, strict=True)
    ]
    minhash.lower_minima(shingle_M, count, a.astype(np.uint32), b.astype(np.uint32), minima)
    assert minima.tolist() == wanted


def test_estimates_and_bands_are_those_of_ideal_permutations():
    rng = np.random.default_rng(5)
    n, shared, trials = 60, 48, 1500
    sets = rng.integers(0, 2**64, (trials, n), dtype=np.uint64)
    both = np.concatenate([sets[:, : shared + 6], sets[:, :shared], sets[:, shared + 6 :]], axis=1).ravel()
    ends = np.arange(2 * trials + 1) * (shared + 6)
    signatures_DK = minhash.signatures_of_sets(ends, both, *minhash.permutations(112))
    equal = signatures_DK[0::2] == signatures_DK[1::2]
    share, ideal = equal.mean(axis=1), (0.8 * 0.2 / 112) ** 0.5
    assert abs(share.mean() - 0.8) < 4 * ideal / trials**0.5
    assert abs(share.std() / ideal - 1) < 4 / (2 * trials) ** 0.5
    found = equal.reshape(trials, 16, 7).all(axis=2).any(axis=1).mean()
    wanted = float(minhash.candidate_probability(0.8, 16, 7))
    assert abs(found - wanted) < 4 * (wanted * (1 - wanted) / trials) ** 0.5
