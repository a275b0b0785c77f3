"""Segmenters: equal to their oracles, to the Unicode test file, to jieba and to spaCy's probes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels import words as w
from gristmill.stages.kernels import words_chinese as zh
from gristmill.stages.kernels import words_spacy as sp
from gristmill.stages.kernels.heuristics import word_hash
from gristmill.stages.kernels.words_spacy_tables import spacy_tables

TABLES = w.word_tables()
ALPHABET = "ab Z9_.,:;'\"’·-\n\r\té\u0301\u200d\u00adאב״かカー中文ไทย한й،٣😀#🇩🇪\u200b"


def cut(text, mode="unicode", japanese=False, trie=None):
    """Return (stored hashes, lengths, accumulators)."""
    data_B = np.frombuffer(text.encode(), np.uint8)
    acc, lengths = np.zeros(w.N_ACCUMULATORS, np.int64), np.zeros(257, np.int64)
    hashes, chars = np.zeros(len(data_B) + 1, np.uint64), np.zeros(len(data_B) + 1, np.int32)
    if mode == "spaces":
        w.segment_spaces(data_B, 0, len(data_B), TABLES.flags_U, acc, lengths, hashes, chars)
    else:
        w.segment_unicode(
            data_B, 0, len(data_B), TABLES.word_class_U, TABLES.flags_U, TABLES.join_CC, japanese,
            *(trie or zh.empty_trie()), np.empty(zh.MAX_RUN, np.int32), np.empty(zh.MAX_RUN + 1),
            np.empty(zh.MAX_RUN + 1, np.int32), acc, lengths, hashes, chars,
        )  # fmt: skip
    n = acc[w.A_STORED]
    return hashes[:n].tolist(), chars[:n].tolist(), acc


def assert_words(text, words, **options):
    hashes, chars, _ = cut(text, **options)
    assert chars == [len(word) for word in words], (text, words)
    assert hashes == [word_hash(word) for word in words], (text, words)


def spacy(text):
    tables, pieces = spacy_tables(), np.empty((3, sp.MAX_PIECES), np.int64)
    data_B = np.frombuffer(text.encode(), np.uint8)
    out, i = [], 0
    while True:
        a, i = sp.next_chunk(data_B, i, len(data_B), tables.spacy_U)
        if a == i:
            return out
        n = sp.cut_chunk(data_B, a, i, *tables, *pieces)
        out += [data_B[pieces[0, j] : pieces[1, j]].tobytes().decode() for j in range(n)]


def is_word(segment):
    return any(TABLES.flags_U[ord(c)] & w.FLAG_WORD for c in segment)


def uax29(text):
    """Segments by rules WB3 to WB16, written rule by rule."""
    cls = [u.WORD_BREAK_NAMES[u.WORD_BREAK[ord(c)]] for c in text]
    letter = {"ALetter", "Hebrew_Letter"}
    skip = {"Extend", "Format", "ZWJ"}
    newline = {"CR", "LF", "Newline"}

    def before(i):
        while i >= 0 and cls[i] in skip:
            i -= 1
        return cls[i] if i >= 0 else ""

    def after(i):
        while i < len(text) and cls[i] in skip:
            i += 1
        return cls[i] if i < len(text) else ""

    def joined(i):
        a, b = cls[i - 1], cls[i]
        if a == "CR" and b == "LF":
            return True
        if a in newline or b in newline:
            return False
        if a == "ZWJ" and u.EXTENDED_PICTOGRAPHIC[ord(text[i])]:
            return True
        if a == b == "WSegSpace" or b in skip:
            return True
        j = i - 1
        while j > 0 and cls[j] in skip:
            j -= 1
        a, a2, b2 = cls[j], before(j - 1), after(i + 1)
        quote = {"MidNumLet", "Single_Quote"}
        if a in letter and b in letter:
            return True
        if a in letter and b in quote | {"MidLetter"} and b2 in letter:
            return True
        if a2 in letter and a in quote | {"MidLetter"} and b in letter:
            return True
        if a == "Hebrew_Letter" and b == "Single_Quote":
            return True
        if a == "Hebrew_Letter" and b == "Double_Quote" and b2 == "Hebrew_Letter":
            return True
        if a2 == "Hebrew_Letter" and a == "Double_Quote" and b == "Hebrew_Letter":
            return True
        if a in letter | {"Numeric"} and b in letter | {"Numeric"}:
            return True
        if a2 == "Numeric" and a in quote | {"MidNum"} and b == "Numeric":
            return True
        if a == "Numeric" and b in quote | {"MidNum"} and b2 == "Numeric":
            return True
        if a == b == "Katakana":
            return True
        words = letter | {"Numeric", "Katakana", "ExtendNumLet"}
        return (a in words and b == "ExtendNumLet") or (a == "ExtendNumLet" and b in words)

    out = []
    for i, c in enumerate(text):
        if i and joined(i):
            out[-1] += c
        else:
            out.append(c)
    return out


def plain_words(segments):
    """Words of segments without scripts of their own units and without pictographs glued by a joiner."""
    return [segment for segment in segments if is_word(segment)]


def has_own_units(text):
    return any(TABLES.word_class_U[ord(c)] >= w.WC_HAN for c in text)


def test_words_are_those_of_the_unicode_test_file():
    path = Path(__file__).with_name("WordBreakTest-15.0.0.txt.gz")
    tested = 0
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        segments = [[]]
        for field in fields[1:-1]:
            if field == "÷":
                segments.append([])
            elif field != "×":
                segments[-1].append(chr(int(field, 16)))
        segments = ["".join(segment) for segment in segments]
        text = "".join(segments)
        if "Regional_Indicator" in {u.WORD_BREAK_NAMES[u.WORD_BREAK[ord(c)]] for c in text}:
            continue  # flags hold no word
        assert uax29(text) == segments, line
        if has_own_units(text) or any(u.EXTENDED_PICTOGRAPHIC[ord(c)] for c in text):
            continue
        # A segment that starts with a skipped character belongs to no word before it.
        assert_words(text, plain_words(segments))
        tested += 1
    assert tested > 1200


@settings(deadline=None, max_examples=100)
@given(st.text(alphabet="".join(c for c in ALPHABET if not has_own_units(c) and c != "😀"), max_size=40))
def test_words_are_uax29_segments_with_a_letter_or_number(text):
    assert_words(text, plain_words(uax29(text)))


@settings(deadline=None, max_examples=100)
@given(st.text(alphabet=ALPHABET, max_size=40))
def test_space_words_are_str_split(text):
    assert_words(text, text.split(), mode="spaces")


@settings(deadline=None, max_examples=50)
@given(st.text(alphabet=ALPHABET, max_size=60), st.booleans())
def test_every_letter_is_in_one_word(text, japanese):
    _, chars, acc = cut(text, japanese=japanese)
    letters = sum(bool(TABLES.flags_U[ord(c)] & w.FLAG_WORD) for c in text)
    assert sum(chars) >= letters
    assert acc[w.A_WORDS] == len(chars) <= acc[w.A_TOKENS]


def test_dictionary_words_of_chinese():
    assert_words(
        "我们中出了一个叛徒，他去过北京大学。", ["我们", "中", "出", "了", "一个", "叛徒", "他", "去过", "北京大学"],
        trie=zh.load_trie(),
    )  # fmt: skip
    assert_words("中文A股abc", ["中文", "A", "股", "abc"], trie=zh.load_trie())
    assert_words("中文", ["中", "文"])


@pytest.mark.peer
def test_dictionary_words_are_jiebas_without_hmm():
    jieba = pytest.importorskip("jieba")
    jieba.setLogLevel(60)
    text = (
        "中华人民共和国成立以来，我国的教育事业取得了举世瞩目的成就。研究生命的起源是科学家的梦想。"
        "结婚的和尚未结婚的都要登记，乒乓球拍卖完了，南京市长江大桥欢迎您。龘靐齉"
    )
    expected = [word for word in jieba.cut(text, HMM=False) if is_word(word)]
    assert_words(text, expected, trie=zh.load_trie())


def test_a_run_of_han_longer_than_the_scratch_is_cut_and_lost_nowhere():
    text = "中国" * zh.MAX_RUN
    _, chars, _ = cut(text, trie=zh.load_trie())
    assert sum(chars) == len(text)


def test_units_of_scripts_without_spaces():
    assert_words("世界人権宣言は大切です", ["世界", "人権", "宣言", "は", "大切", "です"], japanese=True)
    assert_words("カタカナとひらがな", ["カタカナ", "とひらがな"], japanese=True)
    assert_words("ภาษาไทยที่ใน", ["ภา", "ษา", "ไท", "ย", "ที่", "ใน"])
    assert_words("ພາສາລາວ", ["ພາ", "ສາ", "ລາ", "ວ"])
    assert_words("ភាសាខ្មែរ", ["ភា", "សា", "ខ្មែ", "រ"])
    assert_words("မြန်မာဘာသာ", ["မြန်", "မာ", "ဘာ", "သာ"])
    assert_words("한국어 문장", ["한국어", "문장"])


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("I'm sure they don't, can't and won't.",
         ["I", "'m", "sure", "they", "do", "n't", ",", "ca", "n't", "and", "wo", "n't", "."]),
        ("Mr. Smith (e.g. Dr. Jones) left the U.S. at 7:30am…",
         ["Mr.", "Smith", "(", "e.g.", "Dr.", "Jones", ")", "left", "the", "U.S.", "at", "7:30am", "…"]),
        ("a well-known foo--bar end.Start ab.cd x=1 1-2 5km $1.5m 10% C++",
         ["a", "well", "-", "known", "foo", "--", "bar", "end", ".", "Start", "ab.cd", "x=1", "1", "-", "2", "5", "km",
          "$", "1.5", "m", "10", "%", "C++"]),
        ("See http://www.foo-bar.com/a/b-c, (http://a.com) or x@y.org!",
         ["See", "http://www.foo-bar.com/a/b-c", ",", "(", "http://a.com", ")", "or", "x@y.org", "!"]),
        ("Figure 8) a--b. :-) '90s dogs' dog's", ["Figure", "8)", "a", "--", "b.", ":-)", "'", "90s", "dogs", "'",
                                                  "dog", "'s"]),
        ("__init__ f(x) {a:b} a…b .... U.S.) 5.", ["_", "_", "init", "_", "_", "f(x", ")", "{", "a", ":", "b", "}",
                                                   "a", "…", "b", "....", "U.S.", ")", "5", "."]),
    ],
)  # fmt: skip
def test_spacy_tokens_of_probes(text, tokens):
    assert spacy(text) == tokens


def test_spacy_sentences_open_after_a_mark_or_extra_white_space():
    tables, pieces = spacy_tables(), np.empty((3, sp.MAX_PIECES), np.int64)
    for text, n in [
        ("One. Two! Three?", 3), ("One.) Two", 2), ("Mr. Smith", 1), ("", 0), ("a... b", 1), ("Done.  :-)", 2),
        ("Done. :-)", 1), ("1.5 is one. Yes", 2), ("你好。再见。", 1), ("a b c", 1),
    ]:  # fmt: skip
        data_B = np.frombuffer(text.encode(), np.uint8)
        assert sp.spacy_sentences(data_B, 0, len(data_B), tables, pieces) == n, text


def test_words_past_the_store_are_counted_but_not_stored():
    data_B = np.frombuffer(b"a b c d e", np.uint8)
    acc, lengths = np.zeros(w.N_ACCUMULATORS, np.int64), np.zeros(257, np.int64)
    hashes, chars = np.zeros(2, np.uint64), np.zeros(2, np.int32)
    w.segment_spaces(data_B, 0, len(data_B), TABLES.flags_U, acc, lengths, hashes, chars)
    assert acc[w.A_WORDS] == 5
    assert acc[w.A_STORED] == 2
