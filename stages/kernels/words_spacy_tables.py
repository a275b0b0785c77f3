"""Tables of the spaCy-like tokenizer: character sets, units, English contractions, abbreviations, emoticons.

Legend: ``spacy_U`` uint16 (``B_*``) by code point; ``special_key_H`` uint64 hashes of the special cases and
``special_cut_H`` uint32 their pieces' lengths, a byte each; ``unit_key_N`` uint64 hashes of the units;
``joint_256x256`` first and last bytes of special cases of one piece.
"""

# ruff: noqa: N815, SIM905 (array names carry shapes; kernels are written as they compile)

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels import words as w

B_ALPHA, B_LOWER, B_UPPER, B_DIGIT, B_PUNCT, B_QUOTE, B_CURRENCY, B_ICON = 1, 2, 4, 8, 16, 32, 64, 128
B_SPACE, B_HOST, B_PUNCTUATION, B_SENTENCE, B_PREFIX, B_BEFORE_STOP = 256, 512, 1024, 2048, 4096, 8192

_PUNCT = "…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪"
_QUOTES = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉〈〉⟦⟧"
_CURRENCY = "$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫€₭₮₯₰₱₲₳₴₵₸₹₺₻₼₾₿"
_NEWER_SENTENCE_MARKS = "؝؞࠷࠹࠽࠾᭽᭾⹓⹔𐽕𐽖𐽗𐽘𐽙𐾆𐾇𐾈𐾉𑥄𑥆𑻷𑻸\U00011f43\U00011f44𖺘"
_UNITS = (
    "km km² km³ m m² m³ dm dm² dm³ cm cm² cm³ mm mm² mm³ ha µm nm yd in ft kg g mg µg t lb oz m/s km/h mph hPa Pa "
    "mbar mb MB kb KB gb GB tb TB T G M K %"
).split()  # fmt: skip
SLOTS = 1 << 14
_MIX = np.uint64(0x9E3779B97F4A7C15)


class SpacyTables(NamedTuple):
    """What the tokenizer needs beside the tables of `words`."""

    spacy_U: npt.NDArray[np.uint16]
    special_key_H: npt.NDArray[np.uint64]
    special_cut_H: npt.NDArray[np.uint32]
    unit_key_N: npt.NDArray[np.uint64]
    joint_256x256: npt.NDArray[np.bool_]


def _contractions() -> dict[str, tuple[str, ...]]:
    """Return the English contractions with their pieces."""
    out: dict[str, tuple[str, ...]] = {}

    def add(*pieces: str) -> None:
        out["".join(pieces)] = pieces
        if any("'" in piece for piece in pieces):
            curly = tuple(piece.replace("'", "’") for piece in pieces)
            out["".join(curly)] = curly

    def both(word: str) -> tuple[str, str]:
        return word, word.capitalize()

    for pronoun in ("i", "you", "he", "she", "it", "we", "they"):
        for orth in both(pronoun):
            for mark in ("'", ""):
                add(orth, f"{mark}ll")
                add(orth, f"{mark}ll", f"{mark}ve")
                add(orth, f"{mark}d")
                add(orth, f"{mark}d", f"{mark}ve")
                if pronoun == "i":
                    add(orth, f"{mark}m")
                    add(orth, f"{mark}m", "a")
                if pronoun in {"i", "you", "we", "they"}:
                    add(orth, f"{mark}ve")
                if pronoun in {"you", "we", "they"}:
                    add(orth, f"{mark}re")
                if pronoun in {"he", "she", "it"}:
                    add(orth, f"{mark}s")
    for word in ("who", "what", "when", "where", "why", "how", "there", "that", "this", "these", "those"):
        for orth in both(word):
            for mark in ("'", ""):
                for tail in ("s", "ll", "d", "re"):
                    add(orth, f"{mark}{tail}")
                add(orth, f"{mark}ll", f"{mark}ve")
                add(orth, f"{mark}d", f"{mark}ve")
                add(orth, f"{mark}ve")
    for word in ("ca", "could", "do", "does", "did", "had", "may", "might", "must", "need", "ought", "sha", "should",
                 "wo", "would"):  # fmt: skip
        for orth in both(word):
            add(orth, "n't")
            add(orth, "nt")
            add(orth, "n't", "'ve")
            add(orth, "nt", "ve")
    for word in ("could", "might", "must", "should", "would"):
        for orth in both(word):
            add(orth, "'ve")
            add(orth, "ve")
    for word in ("ai", "are", "is", "was", "were", "have", "has", "dare", "does"):
        for orth in both(word):
            add(orth, "n't")
            add(orth, "nt")
    for word in ("let",):
        for orth in both(word):
            add(orth, "'s")
    for hour in range(1, 13):
        for tail in ("am", "pm", "a.m.", "p.m."):
            add(str(hour), tail)
    for orth in ("can", "Can"):
        add(orth, "not")
    for pieces in (("gon", "na"), ("got", "ta"), ("y'", "all"), ("y", "all"), ("how'd", "y")):
        add(*pieces)
        add(pieces[0].capitalize(), *pieces[1:])
    for word in ("Ill", "ill", "Its", "its", "Hell", "hell", "Shell", "shell", "Shed", "shed", "were", "Were", "Well",
                 "well", "Whore", "whore"):  # fmt: skip
        out.pop(word, None)
    return out


_WHOLE = (
    "a. b. c. d. e. f. g. h. i. j. k. l. m. n. o. p. q. r. s. t. u. v. w. x. y. z. ä. ö. ü. "
    "Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. "
    "Mr. Mrs. Ms. p.m. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. a.m. Jan. Feb. Mar. Apr. Jun. Jul. Aug. Sep. Sept. "
    "Oct. Nov. Dec. Ala. Ariz. Ark. Calif. Colo. Conn. Del. Fla. Ga. Ia. Id. Ill. Ind. Kan. Kans. Ky. La. Mass. "
    "Mich. Minn. Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Okla. Ore. Pa. S.C. Tenn. Va. Wash. Wis. "
    "'s 'S ’s ’S 'em 'cause 'bout 'cos 'coz 'cuz 'll 'nuff ’em ’cause "
    "o'clock ma'am and/or w/o o.o O.o O.O o.O C++ '' "
    "'Cause 'Cos 'Coz 'Cuz 're 've 'd nuthin' Nuthin' <space> doin' goin' nothin' somethin' havin' lovin' ol' "
    "Doin' Goin' Nothin' "
    "Somethin' Havin' Lovin' Ol' "
    ":) :-) :)) :-)) :))) :-))) (: (-: =) (= ): :] :-] [: [-: [= =] :o) (o: :} :-} 8) 8-) (-8 ;) ;-) (; (-; :( "
    ":-( :(( :-(( :((( :-((( ): )-: =( >:( :') :'-) :'( :'-( :/ :-/ =/ =| :| :-| ]= =[ :1 :P :-P :p :-p :O :-O "
    ":o :-o :0 :-0 :() >:o :* :-* :3 :-3 =3 :> :-> :X :-X :x :-x :D :-D ;D ;-D =D xD XD xDD XDD 8D 8-D ^_^ ^__^ "
    "^___^ >.< >.> <.< ._. ;_; -_- -__- v.v V.V v_v V_V o_o o_O O_o O_O 0_o o_0 0_0 o.O O.o O.O 0.0 o.0 0.o @_@ "
    "<3 <33 <333 </3 (^_^) (-_-) (._.) (>_<) (*_*) (¬_¬) ಠ_ಠ ಠ︵ಠ (ಠ_ಠ) ¯\\(ツ)/¯ (╯°□°）╯︵┻━┻ ><(((*> :-x \\o/ <.< "
    "\\n \\t"
).split()  # fmt: skip


def special_cases() -> dict[str, tuple[str, ...]]:
    """Return every special case with its pieces."""
    return _contractions() | {word: (word,) for word in _WHOLE}


def _hash(word: str) -> int:
    h = 0
    for c in word:
        h = (h * int(w.BASE) + ord(c) + 1) & 0xFFFFFFFFFFFFFFFF
    return h


@cache
def spacy_tables() -> SpacyTables:
    """Return the tables, built once a process."""
    table = np.zeros(u.N_CODE_POINTS, np.uint16)
    table[u.IS_ALPHA] |= B_ALPHA
    table[0x3001:0x3040] |= B_ALPHA | B_LOWER | B_UPPER  # CJK marks count as letters there
    uncased = (u.CATEGORY == u.LO) | (u.CATEGORY == u.LM)
    table[(u.CATEGORY == u.LL) | uncased] |= B_LOWER
    table[(u.CATEGORY == u.LU) | uncased] |= B_UPPER
    table[48:58] |= B_DIGIT
    for characters, bit in ((_PUNCT, B_PUNCT), (_QUOTES, B_QUOTE), (_CURRENCY, B_CURRENCY)):
        table[[ord(c) for c in characters]] |= bit
    table[u.CATEGORY == u.SO] |= B_ICON
    table[u.IS_SPACE] |= B_SPACE
    host = u.IS_ALPHA.copy()
    host[:128] = [chr(c).isalnum() for c in range(128)]
    host[0xA1:0x10000] = True
    table[host] |= B_HOST
    table[u.IS_PUNCT] |= B_PUNCTUATION
    marks = u.SENTENCE_TERMINAL.copy()
    marks[[ord(c) for c in _NEWER_SENTENCE_MARKS]] = False
    table[marks] |= B_SENTENCE
    table[[ord(c) for c in "§%=—–"]] |= B_PREFIX
    table[[ord(c) for c in "%²-+|?:()"]] |= B_BEFORE_STOP
    table[table & (B_LOWER | B_PUNCT | B_QUOTE | B_DIGIT) != 0] |= B_BEFORE_STOP
    keys = np.zeros(SLOTS, np.uint64)
    cuts = np.zeros(SLOTS, np.uint32)
    joint = np.zeros((256, 256), np.bool_)
    for word, pieces in special_cases().items():
        key = _hash(word)
        slot = (key * int(_MIX) & 0xFFFFFFFFFFFFFFFF) >> 50
        while keys[slot]:
            slot = (slot + 1) % SLOTS
        keys[slot] = key
        if len(pieces) == 1:
            joint[word.encode()[0], word.encode()[-1]] = True
        cuts[slot] = sum(len(piece) << (8 * index) for index, piece in enumerate(pieces))
    units = np.array(sorted(_hash(unit) for unit in _UNITS), np.uint64)
    for array in (table, keys, cuts, units, joint):
        array.setflags(write=False)
    return SpacyTables(table, keys, cuts, units, joint)
