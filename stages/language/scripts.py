"""ISO 15924 codes of the scripts in the Unicode tables."""

from __future__ import annotations

from gristmill.stages.kernels.language import JAPANESE
from gristmill.stages.kernels.unicode import SCRIPT_NAMES

_ISO_15924 = {
    "Latin": "Latn", "Greek": "Grek", "Cyrillic": "Cyrl", "Armenian": "Armn", "Hebrew": "Hebr", "Arabic": "Arab",
    "Syriac": "Syrc", "Thaana": "Thaa", "Devanagari": "Deva", "Bengali": "Beng", "Gurmukhi": "Guru",
    "Gujarati": "Gujr", "Oriya": "Orya", "Tamil": "Taml", "Telugu": "Telu", "Kannada": "Knda", "Malayalam": "Mlym",
    "Sinhala": "Sinh", "Thai": "Thai", "Lao": "Laoo", "Tibetan": "Tibt", "Myanmar": "Mymr", "Georgian": "Geor",
    "Hangul": "Hang", "Ethiopic": "Ethi", "Cherokee": "Cher", "Khmer": "Khmr", "Mongolian": "Mong",
    "Hiragana": "Hira", "Katakana": "Kana", "Bopomofo": "Bopo", "Han": "Hani", "Yi": "Yiii", "Tifinagh": "Tfng",
    "Nko": "Nkoo", "Javanese": "Java", "Balinese": "Bali", "Sundanese": "Sund", "Ol_Chiki": "Olck",
    "Meetei_Mayek": "Mtei", "Tai_Tham": "Lana", "New_Tai_Lue": "Talu", "Tai_Le": "Tale", "Tai_Viet": "Tavt",
    "Adlam": "Adlm", "Ahom": "Ahom", "Anatolian_Hieroglyphs": "Hluw", "Avestan": "Avst", "Bamum": "Bamu",
    "Bassa_Vah": "Bass", "Batak": "Batk", "Bhaiksuki": "Bhks", "Brahmi": "Brah", "Braille": "Brai",
    "Buginese": "Bugi", "Buhid": "Buhd", "Canadian_Aboriginal": "Cans", "Carian": "Cari",
    "Caucasian_Albanian": "Aghb", "Chakma": "Cakm", "Cham": "Cham", "Chorasmian": "Chrs", "Coptic": "Copt",
    "Cuneiform": "Xsux", "Cypriot": "Cprt", "Cypro_Minoan": "Cpmn", "Deseret": "Dsrt", "Dives_Akuru": "Diak",
    "Dogra": "Dogr", "Duployan": "Dupl", "Egyptian_Hieroglyphs": "Egyp", "Elbasan": "Elba", "Elymaic": "Elym",
    "Glagolitic": "Glag", "Gothic": "Goth", "Grantha": "Gran", "Gunjala_Gondi": "Gong", "Hanifi_Rohingya": "Rohg",
    "Hanunoo": "Hano", "Hatran": "Hatr", "Imperial_Aramaic": "Armi", "Inscriptional_Pahlavi": "Phli",
    "Inscriptional_Parthian": "Prti", "Kaithi": "Kthi", "Kawi": "Kawi", "Kayah_Li": "Kali", "Kharoshthi": "Khar",
    "Khitan_Small_Script": "Kits", "Khojki": "Khoj", "Khudawadi": "Sind", "Lepcha": "Lepc", "Limbu": "Limb",
    "Linear_A": "Lina", "Linear_B": "Linb", "Lisu": "Lisu", "Lycian": "Lyci", "Lydian": "Lydi", "Mahajani": "Mahj",
    "Makasar": "Maka", "Mandaic": "Mand", "Manichaean": "Mani", "Marchen": "Marc", "Masaram_Gondi": "Gonm",
    "Medefaidrin": "Medf", "Mende_Kikakui": "Mend", "Meroitic_Cursive": "Merc", "Meroitic_Hieroglyphs": "Mero",
    "Miao": "Plrd", "Modi": "Modi", "Mro": "Mroo", "Multani": "Mult", "Nabataean": "Nbat", "Nag_Mundari": "Nagm",
    "Nandinagari": "Nand", "Newa": "Newa", "Nushu": "Nshu", "Nyiakeng_Puachue_Hmong": "Hmnp", "Ogham": "Ogam",
    "Old_Hungarian": "Hung", "Old_Italic": "Ital", "Old_North_Arabian": "Narb", "Old_Permic": "Perm",
    "Old_Persian": "Xpeo", "Old_Sogdian": "Sogo", "Old_South_Arabian": "Sarb", "Old_Turkic": "Orkh",
    "Old_Uyghur": "Ougr", "Osage": "Osge", "Osmanya": "Osma", "Pahawh_Hmong": "Hmng", "Palmyrene": "Palm",
    "Pau_Cin_Hau": "Pauc", "Phags_Pa": "Phag", "Phoenician": "Phnx", "Psalter_Pahlavi": "Phlp", "Rejang": "Rjng",
    "Runic": "Runr", "Samaritan": "Samr", "Saurashtra": "Saur", "Sharada": "Shrd", "Shavian": "Shaw",
    "Siddham": "Sidd", "SignWriting": "Sgnw", "Sogdian": "Sogd", "Sora_Sompeng": "Sora", "Soyombo": "Soyo",
    "Syloti_Nagri": "Sylo", "Tagalog": "Tglg", "Tagbanwa": "Tagb", "Takri": "Takr", "Tangsa": "Tnsa",
    "Tangut": "Tang", "Tirhuta": "Tirh", "Toto": "Toto", "Ugaritic": "Ugar", "Vai": "Vaii", "Vithkuqi": "Vith",
    "Wancho": "Wcho", "Warang_Citi": "Wara", "Yezidi": "Yezi", "Zanabazar_Square": "Zanb",
}  # fmt: skip

SCRIPT_CODES: list[str] = [_ISO_15924.get(name, "Zyyy") for name in SCRIPT_NAMES]
SCRIPT_CODES += ["Zyyy"] * (256 - len(SCRIPT_CODES))
SCRIPT_CODES[JAPANESE] = "Jpan"
"""ISO 15924 code by script number (256); ``Zyyy`` where there are no letters of one script."""
