"""The Unicode tables agree with Python's own where the versions overlap, and load quickly."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.stages.kernels import unicode as u

ASSIGNED = [
    code for code in range(u.N_CODE_POINTS) if unicodedata.category(chr(code)) != "Cn" and u.CATEGORY[code] != u.CN
]


def test_categories_match_pythons_for_characters_known_to_both():
    differing = [code for code in ASSIGNED if u.CATEGORY_NAMES[u.CATEGORY[code]] != unicodedata.category(chr(code))]
    # Unicode corrects a handful of categories in later versions.
    assert len(differing) <= 30, [hex(code) for code in differing[:40]]
    assert len(ASSIGNED) > 280_000


def test_category_constants_are_indexes_into_the_names():
    for index, name in enumerate(u.CATEGORY_NAMES):
        assert getattr(u, name.upper()) == index


def test_script_constants_are_indexes_into_the_names():
    for index, name in enumerate(u.SCRIPT_NAMES[:46]):
        assert getattr(u, f"SCRIPT_{name.upper()}") == index
    assert len(set(u.SCRIPT_NAMES)) == len(u.SCRIPT_NAMES)


def test_word_break_constants_are_indexes_into_the_names():
    for index, name in enumerate(u.WORD_BREAK_NAMES):
        assert getattr(u, f"WB_{name.upper()}") == index


def test_lower_is_the_single_code_point_lowercase():
    for code in ASSIGNED:
        lowered = chr(code).lower()
        if len(lowered) == 1:
            assert u.LOWER[code] == ord(lowered), hex(code)


def test_fold_is_lowercased_nfkc_where_that_is_one_code_point():
    bad = []
    for code in ASSIGNED:
        normal = unicodedata.normalize("NFKC", chr(code))
        folded = u.FOLD[code]
        if len(normal) == 1 and len(normal.lower()) == 1 and folded != ord(normal.lower()):
            again = unicodedata.normalize("NFKC", normal.lower()).lower()
            if folded != ord(again):
                bad.append(hex(code))
        elif len(normal) > 1 and folded != u.LOWER[code]:
            bad.append(hex(code))
    assert bad == []
    assert chr(u.FOLD[ord("Ａ")]) == "a"
    assert chr(u.FOLD[ord("ｱ")]) == "ア"
    assert np.array_equal(u.FOLD[u.FOLD], u.FOLD)


def test_space_and_digit_are_pythons():
    for code in ASSIGNED:
        assert u.IS_SPACE[code] == chr(code).isspace(), hex(code)
        assert u.IS_DIGIT[code] == chr(code).isdigit(), hex(code)


def test_punctuation_and_letters_follow_the_category():
    assert all(u.IS_PUNCT[ord(c)] for c in "!.,;—“”«»¿。、！？（）「」_")
    assert not any(u.IS_PUNCT[ord(c)] for c in "$+<=>^`|~ a1中")
    assert all(u.IS_ALPHA[ord(c)] for c in "aZéжßهक中あア한ไ")
    assert not any(u.IS_ALPHA[ord(c)] for c in "1ั़ ₂①")


@pytest.mark.parametrize(
    ("characters", "script"),
    [
        ("中文漢字々〇", "HAN"), ("ひらがな", "HIRAGANA"), ("カタカナ", "KATAKANA"), ("한국어", "HANGUL"),
        ("ภาษาไทย", "THAI"), ("ລາວ", "LAO"), ("ខ្មែរ", "KHMER"), ("မြန်မာ", "MYANMAR"), ("Latín", "LATIN"),
        ("Кириллица", "CYRILLIC"), ("العربية", "ARABIC"), ("हिन्दी", "DEVANAGARI"), ("1 .,", "COMMON"),
    ],
)  # fmt: skip
def test_scripts(characters, script):
    assert {u.SCRIPT[ord(c)] for c in characters} == {getattr(u, f"SCRIPT_{script}")}


def test_emoji_and_sentence_marks():
    assert all(u.EXTENDED_PICTOGRAPHIC[ord(c)] for c in "😀❤©🦀")
    assert not any(u.EXTENDED_PICTOGRAPHIC[ord(c)] for c in "a1#中")
    assert all(u.SENTENCE_TERMINAL[ord(c)] for c in ".!?。！？।؟")


def test_tables_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        u.CATEGORY[0] = 1


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="NOPE"):
        _ = u.NOPE


@settings(deadline=None, max_examples=100)
@given(st.text(min_size=1))
def test_decode_reads_what_utf8_encodes(text):
    data_B = np.frombuffer(text.encode(), np.uint8)
    got, i = [], 0
    while i < len(data_B):
        code, n = u.decode(data_B, i)
        got.append(chr(code))
        i += n
    assert "".join(got) == text
    assert i == len(data_B)
