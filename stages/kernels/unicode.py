"""Unicode properties by code point, from one pinned Unicode version whatever Python runs.

Legend: every table has one entry a code point (0x110000): ``CATEGORY`` uint8 general category; ``SCRIPT``
uint8; ``WORD_BREAK`` uint8 (UAX #29); ``LOWER`` int32 simple lowercase; ``FOLD`` int32 NFKC then simple
lowercase where that is one code point (full-width to ASCII, half-width katakana to full), else the latter;
``IS_SPACE`` bool (str.isspace), ``IS_DIGIT`` bool (str.isdigit), ``IS_ALPHA`` bool (L*, str.isalpha),
``IS_PUNCT`` bool (P*), ``EXTENDED_PICTOGRAPHIC`` bool, ``SENTENCE_TERMINAL`` bool. ``data_B`` uint8 is valid
UTF-8.

The tables are loaded on first use (about 15 ms) and are read-only. Kernels take them as arguments: a global
array would be copied into each cached kernel. `generate_unicode` makes the file.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

UNICODE_VERSION = "15.0.0"
N_CODE_POINTS = 0x110000
TABLES_PATH = Path(__file__).with_name("unicode_tables.npz")

CATEGORY: npt.NDArray[np.uint8]
SCRIPT: npt.NDArray[np.uint8]
WORD_BREAK: npt.NDArray[np.uint8]
LOWER: npt.NDArray[np.int32]
FOLD: npt.NDArray[np.int32]
IS_SPACE: npt.NDArray[np.bool_]
IS_DIGIT: npt.NDArray[np.bool_]
IS_ALPHA: npt.NDArray[np.bool_]
IS_PUNCT: npt.NDArray[np.bool_]
EXTENDED_PICTOGRAPHIC: npt.NDArray[np.bool_]
SENTENCE_TERMINAL: npt.NDArray[np.bool_]

CATEGORY_NAMES = (
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi",
    "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn",
)  # fmt: skip
LU, LL, LT, LM, LO, MN, MC, ME, ND, NL = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
NO, PC, PD, PS, PE, PI, PF, PO, SM, SC = 10, 11, 12, 13, 14, 15, 16, 17, 18, 19
SK, SO, ZS, ZL, ZP, CC, CF, CS, CO, CN = 20, 21, 22, 23, 24, 25, 26, 27, 28, 29

SCRIPT_NAMES = (
    "Unknown", "Common", "Inherited", "Latin", "Greek", "Cyrillic", "Armenian", "Hebrew", "Arabic",
    "Syriac", "Thaana", "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu",
    "Kannada", "Malayalam", "Sinhala", "Thai", "Lao", "Tibetan", "Myanmar", "Georgian", "Hangul",
    "Ethiopic", "Cherokee", "Khmer", "Mongolian", "Hiragana", "Katakana", "Bopomofo", "Han", "Yi",
    "Tifinagh", "Nko", "Javanese", "Balinese", "Sundanese", "Ol_Chiki", "Meetei_Mayek", "Tai_Tham",
    "New_Tai_Lue", "Tai_Le", "Tai_Viet", "Adlam", "Ahom", "Anatolian_Hieroglyphs", "Avestan",
    "Bamum", "Bassa_Vah", "Batak", "Bhaiksuki", "Brahmi", "Braille", "Buginese", "Buhid",
    "Canadian_Aboriginal", "Carian", "Caucasian_Albanian", "Chakma", "Cham", "Chorasmian", "Coptic",
    "Cuneiform", "Cypriot", "Cypro_Minoan", "Deseret", "Dives_Akuru", "Dogra", "Duployan",
    "Egyptian_Hieroglyphs", "Elbasan", "Elymaic", "Glagolitic", "Gothic", "Grantha",
    "Gunjala_Gondi", "Hanifi_Rohingya", "Hanunoo", "Hatran", "Imperial_Aramaic",
    "Inscriptional_Pahlavi", "Inscriptional_Parthian", "Kaithi", "Kawi", "Kayah_Li", "Kharoshthi",
    "Khitan_Small_Script", "Khojki", "Khudawadi", "Lepcha", "Limbu", "Linear_A", "Linear_B", "Lisu",
    "Lycian", "Lydian", "Mahajani", "Makasar", "Mandaic", "Manichaean", "Marchen", "Masaram_Gondi",
    "Medefaidrin", "Mende_Kikakui", "Meroitic_Cursive", "Meroitic_Hieroglyphs", "Miao", "Modi",
    "Mro", "Multani", "Nabataean", "Nag_Mundari", "Nandinagari", "Newa", "Nushu",
    "Nyiakeng_Puachue_Hmong", "Ogham", "Old_Hungarian", "Old_Italic", "Old_North_Arabian",
    "Old_Permic", "Old_Persian", "Old_Sogdian", "Old_South_Arabian", "Old_Turkic", "Old_Uyghur",
    "Osage", "Osmanya", "Pahawh_Hmong", "Palmyrene", "Pau_Cin_Hau", "Phags_Pa", "Phoenician",
    "Psalter_Pahlavi", "Rejang", "Runic", "Samaritan", "Saurashtra", "Sharada", "Shavian",
    "Siddham", "SignWriting", "Sogdian", "Sora_Sompeng", "Soyombo", "Syloti_Nagri", "Tagalog",
    "Tagbanwa", "Takri", "Tangsa", "Tangut", "Tirhuta", "Toto", "Ugaritic", "Vai", "Vithkuqi",
    "Wancho", "Warang_Citi", "Yezidi", "Zanabazar_Square",
)  # fmt: skip
SCRIPT_UNKNOWN = 0
SCRIPT_COMMON = 1
SCRIPT_INHERITED = 2
SCRIPT_LATIN = 3
SCRIPT_GREEK = 4
SCRIPT_CYRILLIC = 5
SCRIPT_ARMENIAN = 6
SCRIPT_HEBREW = 7
SCRIPT_ARABIC = 8
SCRIPT_SYRIAC = 9
SCRIPT_THAANA = 10
SCRIPT_DEVANAGARI = 11
SCRIPT_BENGALI = 12
SCRIPT_GURMUKHI = 13
SCRIPT_GUJARATI = 14
SCRIPT_ORIYA = 15
SCRIPT_TAMIL = 16
SCRIPT_TELUGU = 17
SCRIPT_KANNADA = 18
SCRIPT_MALAYALAM = 19
SCRIPT_SINHALA = 20
SCRIPT_THAI = 21
SCRIPT_LAO = 22
SCRIPT_TIBETAN = 23
SCRIPT_MYANMAR = 24
SCRIPT_GEORGIAN = 25
SCRIPT_HANGUL = 26
SCRIPT_ETHIOPIC = 27
SCRIPT_CHEROKEE = 28
SCRIPT_KHMER = 29
SCRIPT_MONGOLIAN = 30
SCRIPT_HIRAGANA = 31
SCRIPT_KATAKANA = 32
SCRIPT_BOPOMOFO = 33
SCRIPT_HAN = 34
SCRIPT_YI = 35
SCRIPT_TIFINAGH = 36
SCRIPT_NKO = 37
SCRIPT_JAVANESE = 38
SCRIPT_BALINESE = 39
SCRIPT_SUNDANESE = 40
SCRIPT_OL_CHIKI = 41
SCRIPT_MEETEI_MAYEK = 42
SCRIPT_TAI_THAM = 43
SCRIPT_NEW_TAI_LUE = 44
SCRIPT_TAI_LE = 45
SCRIPT_TAI_VIET = 46

WORD_BREAK_NAMES = (
    "Other", "CR", "LF", "Newline", "Extend", "ZWJ", "Format", "Regional_Indicator", "Katakana",
    "Hebrew_Letter", "ALetter", "Single_Quote", "Double_Quote", "MidNumLet", "MidLetter", "MidNum",
    "Numeric", "ExtendNumLet", "WSegSpace",
)  # fmt: skip
WB_OTHER, WB_CR, WB_LF, WB_NEWLINE, WB_EXTEND, WB_ZWJ, WB_FORMAT = 0, 1, 2, 3, 4, 5, 6
WB_REGIONAL_INDICATOR, WB_KATAKANA, WB_HEBREW_LETTER, WB_ALETTER = 7, 8, 9, 10
WB_SINGLE_QUOTE, WB_DOUBLE_QUOTE, WB_MIDNUMLET, WB_MIDLETTER, WB_MIDNUM = 11, 12, 13, 14, 15
WB_NUMERIC, WB_EXTENDNUMLET, WB_WSEGSPACE = 16, 17, 18


@cache
def _load() -> dict[str, npt.NDArray[np.generic]]:
    """Return every table, read-only.

    Raises:
        RuntimeError: the file is of another Unicode version than this module.
    """
    tables: dict[str, npt.NDArray[np.generic]] = {}
    with np.load(TABLES_PATH, allow_pickle=False) as stored:
        version = stored["version"].tobytes().decode()
        if version != UNICODE_VERSION:
            raise RuntimeError(f"{TABLES_PATH} is of Unicode {version}, expected {UNICODE_VERSION}; make it anew")
        for key in stored.files:
            name, _, part = key.partition(".")
            if part == "lengths":
                tables[name] = np.repeat(stored[f"{name}.values"], stored[key])
            elif part == "from":
                mapping = np.arange(N_CODE_POINTS, dtype=np.int32)
                mapping[stored[key]] = stored[f"{name}.to"]
                tables[name] = mapping
    category = tables["CATEGORY"]
    is_alpha = np.isin(np.arange(256), [LU, LL, LT, LM, LO])
    is_punct = np.isin(np.arange(256), [PC, PD, PS, PE, PI, PF, PO])
    tables["IS_ALPHA"] = is_alpha[category]
    tables["IS_PUNCT"] = is_punct[category]
    for table in tables.values():
        table.setflags(write=False)
    return tables


def __getattr__(name: str) -> npt.NDArray[np.generic]:
    if name.startswith("_") or name not in __annotations__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _load()[name]


@numba.njit(nogil=True, cache=True)
def decode(data_B: npt.NDArray[np.uint8], i: int) -> tuple[Any, int]:
    """Return ``(code_point int32, n_bytes int64)`` of the character at byte `i` of valid UTF-8."""
    first = np.int32(data_B[i])
    if first < 0x80:
        return first, 1
    second = np.int32(data_B[i + 1]) & 0x3F
    if first < 0xE0:
        return np.int32(((first & 0x1F) << 6) | second), 2
    third = np.int32(data_B[i + 2]) & 0x3F
    if first < 0xF0:
        return np.int32(((first & 0x0F) << 12) | (second << 6) | third), 3
    fourth = np.int32(data_B[i + 3]) & 0x3F
    return np.int32(((first & 0x07) << 18) | (second << 12) | (third << 6) | fourth), 4
