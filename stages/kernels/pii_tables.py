"""Byte classes and word lists of the personal-data kernels.

Everything here is ASCII: identifiers are ASCII even inside Chinese text, and the look-arounds must not take an
ideograph for a word character (``邮箱zhang@example.cn`` ends its label where the Latin letters begin).
"""

from __future__ import annotations

import string

import numpy as np
import numpy.typing as npt

KINDS = ("email", "phone", "ip", "credit_card", "cn_id", "iban", "us_ssn", "secret")
"""What the scanner tells apart; the position is the number in the kernel's output."""

EMAIL, PHONE, IP, CREDIT_CARD, CN_ID, IBAN, US_SSN, SECRET = range(8)

DIGIT, UPPER, LOWER_CASE, HEX, LOCAL, BASE64 = 1, 2, 4, 8, 16, 32
ALPHA = UPPER | LOWER_CASE
ALNUM = DIGIT | ALPHA

T_DIGIT, T_AT, T_COLON, T_SECRET = 1, 2, 3, 4


def _classes() -> npt.NDArray[np.uint8]:
    table = np.zeros(256, np.uint8)
    for characters, flag in (
        (string.digits, DIGIT),
        (string.ascii_uppercase, UPPER),
        (string.ascii_lowercase, LOWER_CASE),
        (string.hexdigits, HEX),
        (string.ascii_letters + string.digits + "._%+-'", LOCAL),
        (string.ascii_letters + string.digits + "-_", BASE64),
    ):
        for character in characters:
            table[ord(character)] |= flag
    return table


def _triggers() -> npt.NDArray[np.uint8]:
    table = np.zeros(256, np.uint8)
    for characters, kind in ((string.digits, T_DIGIT), ("@", T_AT), (":", T_COLON), ("-_=JKSz", T_SECRET)):
        for character in characters:
            table[ord(character)] = kind
    return table


TRIGGER_256 = _triggers()
"""uint8 (256): 0 for a byte that starts or betrays nothing; the scanner's one pass stops only at the others."""

_PHONE_WORDS = (
    # A trailing space means: the whole word only.
    "phone", "telephone", "telefon", "teléfono", "téléphone", "tel ", "tél ", "mobile", "mobil ", "cell ",
    "cellphone", "fax", "call ", "whatsapp", "dial ", "sms ", "contact ", "desk ", "handy ", "fono ", "celular",
    "answering at ", "reach me ", "messages to ", "text me ", "office ", "тел ", "телефон",
    "电话", "手机", "联系", "致电", "热线", "传真", "座机", "来电", "拨打",
    "微信", "電話", "手機", "聯絡", "携帯", "연락", "전화", "휴대폰",
)  # fmt: skip
_CARD_WORDS = (
    "card", "cc ", "visa", "mastercard", "maestro", "amex", "diners", "karte", "carte", "tarjeta",
    "信用卡", "银行卡", "卡号", "储蓄卡", "借记卡", "信用卡號",
)  # fmt: skip
_ID_WORDS = ("身份证", "身分证", "公民身份", "证件号", "身份號", "id card", "identity card")
_SSN_WORDS = ("ssn", "social security")
_IP_WORDS = (
    "ip ", "ipv4", "ip4 ", "inet ", "address", "addr", "adresse", "host", "server", "router", "gateway", "dns ", "src ",
    "dst ", "via ", "dev ", "nexthop", "ping ", "ssh ", "route ", "network", "地址", "主机", "服务器", "網址", "адрес",
)  # fmt: skip


CONTEXT_LISTS = (_PHONE_WORDS, _CARD_WORDS, _ID_WORDS, _SSN_WORDS, _IP_WORDS)
"""Words that make a doubtful number a sure one, when they stand shortly before it."""
PHONE_CONTEXT, CARD_CONTEXT, ID_CONTEXT, SSN_CONTEXT, IP_CONTEXT = map(np.int64, (1, 2, 4, 8, 16))


def _pack_context() -> tuple[npt.NDArray[np.uint8], bytes]:
    """Return the lists (bits) that have a word beginning with each byte, and the words as one record each.

    A record is: list bit, 1 for whole words only, length, the bytes (lower case). A zero byte ends the table.
    """
    first = np.zeros(256, np.uint8)
    packed = bytearray()
    for position, words in enumerate(CONTEXT_LISTS):
        for word in words:
            encoded = word.removesuffix(" ").encode()
            first[encoded[0]] |= 1 << position
            first[encoded[:1].upper()[0]] |= 1 << position
            packed += bytes((1 << position, word.endswith(" "), len(encoded))) + encoded
    return first, bytes(packed) + b"\0"


def _calling_codes() -> npt.NDArray[np.uint8]:
    """Return for each number below 1,000 whether it is an assigned E.164 country calling code (ITU, 2023)."""
    table = np.zeros(1000, np.uint8)
    two = (
        "20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65 66 81 82 "
        "84 86 90 91 92 93 94 95 98"
    )
    three = (
        "211 212 213 216 218 220 221 222 223 224 225 226 227 228 229 230 231 232 233 234 235 236 237 238 239 240 "
        "241 242 243 244 245 246 247 248 249 250 251 252 253 254 255 256 257 258 260 261 262 263 264 265 266 267 "
        "268 269 290 291 297 298 299 350 351 352 353 354 355 356 357 358 359 370 371 372 373 374 375 376 377 378 "
        "379 380 381 382 383 385 386 387 389 420 421 423 500 501 502 503 504 505 506 507 508 509 590 591 592 593 "
        "594 595 596 597 598 599 670 672 673 674 675 676 677 678 679 680 681 682 683 685 686 687 688 689 690 691 "
        "692 800 808 850 852 853 855 856 870 878 880 881 882 883 886 888 960 961 962 963 964 965 966 967 968 970 "
        "971 972 973 974 975 976 977 979 992 993 994 995 996 998"
    )
    for code in ("1", "7", *two.split(), *three.split()):
        table[int(code)] = 1
    return table


def _mobile_prefixes() -> npt.NDArray[np.uint8]:
    """Return for each number below 200 whether it is a Chinese mobile prefix in use (MIIT allocation, 2024)."""
    table = np.zeros(200, np.uint8)
    table[130:140] = 1
    table[[145, 146, 147, 148, 149]] = 1
    table[[150, 151, 152, 153, 155, 156, 157, 158, 159]] = 1
    table[[162, 165, 166, 167]] = 1
    table[170:179] = 1
    table[180:190] = 1
    table[[190, 191, 192, 193, 195, 196, 197, 198, 199]] = 1
    return table


def _iban_lengths() -> npt.NDArray[np.uint8]:
    """Return the length of an IBAN by country, index ``26 * first + second`` letter; 0: none (SWIFT registry)."""
    table = np.zeros(26 * 26, np.uint8)
    registry = (
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 "
        "EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 "
        "KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 "
        "PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 "
        "VA22 VG24 XK20 YE30"
    )
    for entry in registry.split():
        table[26 * (ord(entry[0]) - 65) + ord(entry[1]) - 65] = int(entry[2:])
    return table


REJECT, WEAK, CLEAN = 0, 1, 2
"""How surely a number may begin or end here; WEAK needs a context word."""


def _boundaries(always: dict[str, int], by_class: dict[str, tuple[int, int, int]]) -> npt.NDArray[np.uint8]:
    """Return by byte beside a number three 2-bit strengths: the byte beyond is a digit, a letter, anything else."""
    table = np.full(256, CLEAN | CLEAN << 2 | CLEAN << 4, np.uint8)
    rules = {byte: (strength,) * 3 for text, strength in always.items() for byte in text.encode()}
    rules |= {byte: strengths for text, strengths in by_class.items() for byte in text.encode()}
    for byte, (digit, letter, other) in rules.items():
        table[byte] = digit | letter << 2 | other << 4
    return table


_ALNUM = string.ascii_letters + string.digits
_LEFT = _boundaries(
    {_ALNUM + "_$@": REJECT, "=#&%+*^~<>": WEAK},
    {".": (REJECT, WEAK, WEAK), ",": (REJECT, CLEAN, CLEAN), "-": (REJECT, WEAK, CLEAN), "/\\": (REJECT, WEAK, WEAK)},
)
_RIGHT = _boundaries(
    {_ALNUM + "_%@^": REJECT, "/=*+&": WEAK}, {".,:": (REJECT, CLEAN, CLEAN), "-": (REJECT, WEAK, CLEAN)}
)

LETTERS_DO = 64
"""Flag of a key whose body may be without digits."""
_KEYS = (
    # prefix, position of the trigger byte in it, least and most bytes of the body, class of the body
    *((f"gh{c}_", 3, 36, 36, ALNUM) for c in "pousr"),
    *((f"xox{c}-", 4, 20, 200, BASE64) for c in "abprs"),
    *((f"{c}k_{mode}_", 2, 16, 110, ALNUM) for c in "sr" for mode in ("live", "test")),
    ("github_pat_", 6, 60, 90, BASE64),
    ("npm_", 3, 36, 36, ALNUM),
    ("hf_", 2, 34, 40, ALNUM | LETTERS_DO),
    ("sk-", 2, 32, 220, BASE64),
    ("glpat-", 5, 20, 60, BASE64),
    ("pypi-AgEIcHlwaS5vcmc", 4, 50, 250, BASE64),
    ("AKIA", 1, 16, 16, UPPER | DIGIT),
    ("ASIA", 1, 16, 16, UPPER | DIGIT),
    ("AIza", 2, 35, 35, BASE64),
)


def _pack_keys() -> bytes:
    """Return one record a prefix: trigger byte, its position, least, most, class, length, the bytes; 0 ends."""
    packed = bytearray()
    for prefix, at, least, most, flags in _KEYS:
        packed += bytes((ord(prefix[at]), at, least, most, flags, len(prefix))) + prefix.encode()
    return bytes(packed) + b"\0"


_MARKS = (
    "-----BEGIN ",
    "-----",
    "-----END ",
    "PRIVATE KEY",
    "PRIVATE KEY BLOCK",
    "xn--",
    "git",
    ".eyJ",
    "AccountKey=",
    "==",
)
_PREFIX_TABLES = (
    *(_classes(), _calling_codes(), _mobile_prefixes(), _iban_lengths(), _pack_context()[0]),
    _LEFT,
    _RIGHT,
)
CODES, MOBILES, IBANS, CONTEXT_FIRST, LEFT, RIGHT, MARKS = np.cumsum([len(part) for part in _PREFIX_TABLES]).tolist()
_AT = np.cumsum([MARKS, *(len(mark) for mark in _MARKS)]).tolist()
BEGIN, DASHES, END, PRIVATE_KEY, KEY_BLOCK, PUNYCODE, GIT, DOT_EYJ, ACCOUNT_KEY, PADDING = (
    (np.int64(at), np.int64(len(mark))) for at, mark in zip(_AT[:-1], _MARKS, strict=True)
)
"""Position in ``TABLES_T`` and length of the fixed strings that the kernels compare with.

int64 of NumPy: Numba compiles a function anew for each plain constant that it is called with.
"""
KEYS = _AT[-1]
CONTEXT = KEYS + len(_pack_keys())
TABLES_T = np.concatenate(
    [*_PREFIX_TABLES, np.frombuffer("".join(_MARKS).encode() + _pack_keys() + _pack_context()[1], np.uint8)]
)
"""All byte tables in one array, because each array argument costs compilation time at every call:

``[0:256]`` classes (DIGIT | UPPER | LOWER_CASE | HEX | LOCAL, the part before an @ | BASE64, URL-safe);
``CODES + n`` whether n is a calling code; ``MOBILES + n`` whether n is a Chinese mobile prefix; ``IBANS + 26 a + b``
length of a country's IBAN; ``CONTEXT_FIRST + byte`` lists that have a word beginning so; ``LEFT + byte`` and
``RIGHT + byte`` strengths beside a number; ``KEYS`` and ``CONTEXT`` records of key prefixes and context words."""
