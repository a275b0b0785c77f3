"""Where each number of the heuristic kernels lives: signal rows, removal rows, character classes, phrase bits.

`SIGNALS` names the rows of the signal matrix ``out_SD`` (float64, signal x document); ``S_*`` are the indexes.
`REMOVALS` names the rows of ``removed_RD`` (int64, bytes removed by a line filter). `phrase_tables` builds
what finds every phrase of `PHRASES` in one look every second byte, ASCII case ignored.
"""

# ruff: noqa: N815 (array names carry their shapes)

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels.words import terminal_marks

SIGNALS = (
    # characters
    "n_chars", "whitespace_share", "alpha_share", "digit_share", "upper_share", "punctuation_share",
    "symbol_share", "special_share", "broken_share", "emoji_share", "mark_share", "main_script",
    "main_script_share", "han_share", "kana_share", "curly_bracket_share",
    # words
    "n_tokens", "n_words", "n_space_words", "mean_word_chars", "median_word_chars", "longest_word_chars",
    "alpha_word_share", "numeric_word_share", "capitals_word_share", "unique_word_share", "word_entropy_bits",
    "stop_words_distinct", "stop_word_occurrences", "stop_word_share",
    "hash_word_ratio", "ellipsis_word_ratio", "url_word_ratio",
    # lines
    "n_lines", "blank_line_share", "mean_line_chars", "longest_line_chars", "bullet_line_share",
    "ellipsis_line_share", "terminal_line_share", "short_line_share", "newline_word_ratio", "dup_line_share",
    "dup_line_char_share", "dup_nonblank_char_share", "repeated_line_share", "repeated_line_char_share",
    "n_paragraphs",
    "dup_paragraph_share", "dup_paragraph_char_share", "n_sentences", "one_word_line_share", "upper_line_share",
    "numeric_line_share", "counter_line_share", "javascript_lines", "policy_lines", "lorem_ipsum_lines",
    "boilerplate_line_share",
    # n-grams
    "top_2_gram_char_share", "top_3_gram_char_share", "top_4_gram_char_share", "dup_5_gram_char_share",
    "dup_6_gram_char_share", "dup_7_gram_char_share", "dup_8_gram_char_share", "dup_9_gram_char_share",
    "dup_10_gram_char_share",
    # line filters
    "edited_sentences", "edited_lorem_ipsum", "edited_curly_bracket", "edited_lines", "edited_lines_kept_share",
    "edited_words_removed_share",
)  # fmt: skip
N_SIGNALS = len(SIGNALS)

(
    S_N_CHARS, S_WHITESPACE, S_ALPHA, S_DIGIT, S_UPPER, S_PUNCTUATION, S_SYMBOL, S_SPECIAL, S_BROKEN, S_EMOJI,
    S_MARK, S_MAIN_SCRIPT, S_MAIN_SCRIPT_SHARE, S_HAN, S_KANA, S_CURLY, S_N_TOKENS, S_N_WORDS, S_N_SPACE_WORDS,
    S_MEAN_WORD, S_MEDIAN_WORD, S_LONGEST_WORD, S_ALPHA_WORDS, S_NUMERIC_WORDS, S_CAPITALS_WORDS,
    S_UNIQUE_WORDS, S_ENTROPY, S_STOP_DISTINCT, S_STOP_OCCURRENCES, S_STOP_SHARE, S_HASH, S_ELLIPSIS, S_URL,
    S_N_LINES, S_BLANK_LINES, S_MEAN_LINE, S_LONGEST_LINE, S_BULLET, S_ELLIPSIS_LINES, S_TERMINAL, S_SHORT,
    S_NEWLINE_WORDS, S_DUP_LINES, S_DUP_LINE_CHARS, S_DUP_NONBLANK_CHARS, S_REPEATED_LINES,
    S_REPEATED_LINE_CHARS, S_N_PARAGRAPHS, S_DUP_PARAGRAPHS, S_DUP_PARAGRAPH_CHARS, S_N_SENTENCES,
    S_ONE_WORD_LINES, S_UPPER_LINES, S_NUMERIC_LINES, S_COUNTER_LINES, S_JAVASCRIPT, S_POLICY, S_LOREM,
    S_BOILERPLATE, S_TOP_2, S_TOP_3, S_TOP_4, S_DUP_5, S_DUP_6, S_DUP_7, S_DUP_8, S_DUP_9, S_DUP_10,
    S_EDITED_SENTENCES, S_EDITED_LOREM, S_EDITED_CURLY, S_EDITED_LINES, S_EDITED_LINES_KEPT,
    S_EDITED_WORDS_REMOVED,
) = range(N_SIGNALS)  # fmt: skip

EDITED_SIGNALS = SIGNALS[S_EDITED_SENTENCES:]

REMOVALS = (
    "whitespace", "long_word", "citation", "no_terminal_mark", "few_words", "javascript", "policy", "upper_case",
    "numeric", "counter", "boilerplate",
)  # fmt: skip
(
    R_WHITESPACE, R_LONG_WORD, R_CITATION, R_NO_TERMINAL, R_FEW_WORDS, R_JAVASCRIPT, R_POLICY, R_UPPER, R_NUMERIC,
    R_COUNTER, R_BOILERPLATE,
) = range(len(REMOVALS))  # fmt: skip

# Character classes.
(
    C_LOWER, C_UPPER, C_LETTER, C_MARK, C_DIGIT, C_NUMBER, C_PUNCTUATION, C_SYMBOL,
    C_SPACE, C_BROKEN, C_EMOJI, C_HASH, C_CURLY,
) = range(13)  # fmt: skip
C_OTHER = 15

M_BULLET, M_TERMINAL, M_END, M_CLOSER, M_BREAK, M_SPACE, M_SENTENCE, M_LOWER = 1, 2, 4, 8, 16, 32, 64, 128
"""Bits of ``marks_U``: bullet, mark that ends a line, mark that C4 takes for one, closing quote or bracket, line
break of ``str.splitlines``, white space, mark that ends a sentence, lower-case letter."""

P_JAVASCRIPT, P_LOREM, P_POLICY, P_CURLY, P_BRACKET, P_COUNTER, P_SIGN_IN, P_READ_MORE, P_CART, P_URL, P_PAGE = (
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024,
)  # fmt: skip

PHRASES: tuple[tuple[int, tuple[str, ...]], ...] = (
    (P_JAVASCRIPT, ("javascript",)),
    (P_LOREM, ("lorem ipsum",)),
    (
        P_POLICY,
        ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"),
    ),
    (P_CURLY, ("{",)),
    (P_BRACKET, ("[",)),
    (
        P_COUNTER,
        (
            " likes", " shares", " comments", " retweets", " reposts", " quotes", " bookmarks", " upvotes",
            " downvotes", " downloads", " views", " followers", " like", " share", " comment", " reply", " replies",
        ),
    ),
    (P_SIGN_IN, ("sign-in", "sign in", "log in", "login", "sign up", "register now")),
    (P_READ_MORE, ("read more", "read more...", "continue reading", "learn more", "show more", "click here")),
    (P_CART, ("items in cart", "item in cart", "add to cart", "items in your cart", "share on facebook")),
    (P_URL, ("http://", "https://", "www.")),
    (
        P_PAGE,
        (
            "版权所有", "版權所有", "icp备", "icp備", "公网安备", "上一篇", "下一篇", "上一页", "下一页", "返回顶部",
            "关注公众号", "扫描二维码", "扫码", "点击查看", "点击下载", "点击进入", "阅读全文", "免责声明", "加微信",
            "加qq", "客服热线", "友情链接", "网站地图", "联系我们", "all rights reserved", "powered by",
            "著作権", "無断転載", "続きを読む", "สงวนลิขสิทธิ์", "อ่านต่อ", "جميع الحقوق محفوظة", "اقرأ المزيد",
            "सर्वाधिकार सुरक्षित", "और पढ़ें", "все права защищены", "читать далее", "alle rechte vorbehalten",
            "weiterlesen", "impressum", "tous droits réservés", "todos los derechos reservados",
        ),
    ),
)  # fmt: skip


GRAM_BITS = 13
GRAM_FACTOR = 0x9E3779B97F4A7C15
_COMMON = " etaoinshrdlcumwfgypbvkjxqz"


class Phrases(NamedTuple):
    """Where the phrases are found: slots of four-byte grams, the places that a gram may have, the phrases.

    ``gram_G`` int16 is by hash of the gram with bit 0x20 set in each byte: 1 + the first row of ``place_E3``, 0: none.
    ``place_E3`` int32 rows are (next row + 1, phrase, byte where the gram stands in it). ``phrase_PW`` uint8 spells
    the phrases, ``fact_P2`` int32 has their lengths and bits.
    """

    gram_G: npt.NDArray[np.int16]
    place_E3: npt.NDArray[np.int32]
    phrase_PW: npt.NDArray[np.uint8]
    fact_P2: npt.NDArray[np.int32]


@cache
def phrase_tables() -> Phrases:
    """Return the tables of `PHRASES`, apart from URLs and brackets, which the line pass knows by their marks.

    Each phrase has two neighbouring grams in the table, so that a look at every second byte meets one of them;
    they stand where the phrase has the rarest letters.
    """
    patterns = [
        (text.encode(), bit) for bit, texts in PHRASES if bit not in {P_URL, P_CURLY, P_BRACKET} for text in texts
    ]
    spelled = np.zeros((len(patterns), max(len(text) for text, _ in patterns)), np.uint8)
    gram = np.zeros(1 << GRAM_BITS, np.int16)
    places: list[tuple[int, int, int]] = []
    for number, (text, _) in enumerate(patterns):
        spelled[number, : len(text)] = list(text)
        rarity = [_COMMON.find(chr(byte)) if byte < 128 else 12 for byte in text]
        best = max(range(len(text) - 4), key=lambda at: sum(rarity[at : at + 5]))
        for at in (best, best + 1):
            key = int.from_bytes(text[at : at + 4], "little") | 0x20202020
            slot = (key * GRAM_FACTOR & 0xFFFFFFFFFFFFFFFF) >> (64 - GRAM_BITS)
            places.append((int(gram[slot]), number, at))
            gram[slot] = len(places)
    facts = np.array([(len(text), bit) for text, bit in patterns], np.int32)
    tables = Phrases(gram, np.array(places, np.int32), spelled, facts)
    for table in tables:
        table.setflags(write=False)
    return tables


@cache
def char_classes() -> npt.NDArray[np.uint8]:
    """Return the character class (``C_*``) by code point."""
    by_category = np.full(256, C_OTHER, np.uint8)
    for categories, name in (
        ((u.LL,), C_LOWER), ((u.LU, u.LT), C_UPPER), ((u.LM, u.LO), C_LETTER), ((u.MN, u.MC, u.ME), C_MARK),
        ((u.ND,), C_DIGIT), ((u.NL, u.NO), C_NUMBER), ((u.PC, u.PD, u.PS, u.PE, u.PI, u.PF, u.PO), C_PUNCTUATION),
        ((u.SM, u.SC, u.SK, u.SO), C_SYMBOL), ((u.CC, u.CO, u.CN, u.CS), C_BROKEN),
    ):  # fmt: skip
        by_category[list(categories)] = name
    table = by_category[u.CATEGORY]
    emoji = u.EXTENDED_PICTOGRAPHIC.copy()
    emoji[:256] = False
    table[emoji] = C_EMOJI
    table[0x1F1E6:0x1F200] = C_EMOJI
    table[u.IS_SPACE] = C_SPACE
    table[0xFFFD] = C_BROKEN
    table[ord("#")] = C_HASH
    table[[ord("{"), ord("}")]] = C_CURLY
    table.setflags(write=False)
    return table


@cache
def line_marks(bullets: str, end_marks: str) -> npt.NDArray[np.uint8]:
    """Return ``marks_U`` (``M_*`` bits by code point) with these bullets and C4 end marks."""
    table = np.zeros(u.N_CODE_POINTS, np.uint8)
    table[[ord(c) for c in bullets]] |= M_BULLET
    table[terminal_marks()] |= M_TERMINAL
    table[[ord(c) for c in end_marks]] |= M_END
    table[[ord(c) for c in "\"'”’»)]}）」』】〉》›"]] |= M_CLOSER
    table[[10, 11, 12, 13, 28, 29, 30, 0x85, 0x2028, 0x2029]] |= M_BREAK
    table[u.IS_SPACE] |= M_SPACE
    table[u.SENTENCE_TERMINAL] |= M_SENTENCE
    table[u.CATEGORY == u.LL] |= M_LOWER
    table.setflags(write=False)
    return table
