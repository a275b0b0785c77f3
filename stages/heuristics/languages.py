"""What the rules know of languages: codes, classes, frequent function words, how Han characters are cut.

The list of a language holds the words of which running text of 50 words or more has at least two; they were
chosen by hand from the closed classes of each language (articles, particles, pronouns, prepositions, auxiliaries).
Thai, Lao, Khmer and Burmese entries are single orthographic units, Japanese ones runs of hiragana, as `words`
cuts them.
"""

# ruff: noqa: N815 (array names carry shapes; kernels are written as they compile)

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels import words as w

GOPHER_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")

_LISTS = {
    "en": "the be to of and that have with is in a it for on was as are this at by from not you or",
    "zh": "的 是 在 了 和 不 有 这 他 我 也 与 为 就 都 而 及 之 人 上 中 以 对 或 等 這 為 與 對 們 们 于 於 其 "
    "一个 一個 可以 并 被 到",
    "ja": "の に は を が と で も た て する した して いる から こと ある "
    "な や へ れる です ます ない され より まで として という",
    "ko": "이 그 수 있는 것 및 등 한 또는 그리고 있다 하는 대한 위해 할 은 는 을 를 의 에 있습니다 것은 더 모든 그의",
    "th": "ที่ และ ใน ได้ ไม่ มี ให้ จะ ว่า นี้ แต่ ไป มา ก็ แล้ แห่ ซึ่ เป็ ต้ เพื่ หรื อื่",
    "lo": "ທີ່ ແລະ ໃນ ໄດ້ ບໍ່ ມີ ໃຫ້ ຈະ ວ່າ ນີ້ ແຕ່ ໄປ ມາ ກໍ ເປັ ຕ້ ເພື່ ຫຼື ອື່",
    "km": "នេះ ដែ បា មា និ ជា ក្នុ ទៅ ពី នៅ ឬ គឺ ដោ ទេ ត្រូ ការ គេ",
    "my": "သည် ၏ ကို တွင် နှင့် မှ များ ရှိ တို့ ဖြင့် ခြင်း ရန် သော လည်း မ တစ် ဖြစ် အား ၌ ၍",
    "bo": "ན ལ དང གི གྱི ཀྱི ནི ཡིན ཡོད པ བ ས ཏེ མ",
    "ar": "من في على أن إلى عن هذا هذه التي الذي كان ما لا و أو مع كل هو هي قد بعد كما لم ذلك بين إن",
    "fa": "و در به از که این را با است برای آن یک تا بر هم بود می ها هر شد خود نیز یا شود",
    "ur": "کے کی میں ہے اور سے کا کو پر نے یہ کہ اس ہیں جو بھی ہو یا ایک نہیں کر کسی",
    "he": "של את על לא עם זה הוא היא או כל אל גם כי אני יש אם לו אשר מה היה בין",
    "hi": "के का की में है से को और पर यह कि एक ने हैं भी नहीं या इस जो हो तो किसी था कर",
    "mr": "आहे आणि या ते हे च्या मध्ये की व तो ही होते नाही किंवा एक त्या सर्व",
    "ne": "को र मा छ हो का यो ले पनि भने एक गर्न वा गरेको तथा लाई",
    "bn": "এবং ও এই করে থেকে যে এর জন্য না একটি হয় তার কোন বা করা হবে তা সঙ্গে মধ্যে কি",
    "pa": "ਦੇ ਦੀ ਵਿੱਚ ਹੈ ਅਤੇ ਨੂੰ ਤੋਂ ਦਾ ਇਹ ਨੇ ਹਨ ਜਾਂ ਨਾਲ ਇਸ ਕਿ ਹਰ",
    "gu": "અને છે આ તે ના માટે એ કે પણ નથી કોઈ હોય તો પર જ એક",
    "ta": "ஒரு மற்றும் என்று இந்த அது என்ற உள்ள அல்லது இது எந்த அவர் தனது என என்பது",
    "te": "మరియు ఈ ఆ ఒక తన కు లో అని లేదా కూడా ఉంది ప్రతి ఏ ఇది",
    "kn": "ಮತ್ತು ಈ ಆ ಒಂದು ಎಂದು ಅಥವಾ ಇದು ತನ್ನ ಯಾವುದೇ ಎಲ್ಲಾ ಅದು ಹಾಗೂ",
    "ml": "ഒരു ഈ ആ എന്ന എന്നാൽ അല്ലെങ്കിൽ ഇത് തന്റെ കൂടാതെ എല്ലാ അത് എന്നിവ",
    "si": "සහ ද මේ ඒ හා හෝ වේ ඇත සඳහා එක් නො විසින් ලද",
    "ru": "и в не на что с по как к у от за это из он но или для его все при то я так бы а",
    "uk": "і в на не що з до як та за по від у це про або для його та й при я але має",
    "be": "і ў не на што з да як па або для яго ад за кожны мае пры гэта",
    "bg": "и в на не се да от за с по е че са при или като до си как му",
    "sr": "и у на је да се не са за од као су или који i u na je da se za od kao su ili koji",
    "mk": "и во на не се да од за со по е дека или при ќе има го",
    "el": "και το της η να του την τα με για των που στο στην είναι από δεν ή κάθε οι τους",
    "hy": "և է որ ի մեջ համար կամ ու այդ իր են բոլոր ոչ",
    "ka": "და არის რომ ან ეს მისი არ უნდა ყველა თუ ამ",
    "am": "እና ነው ላይ ወደ ውስጥ ወይም ያለው መብት ሁሉ ግን",
    "kk": "және мен бір бұл үшін не болып да де бар әр",
    "de": "der die das und in zu den von mit ist im auf für nicht ein eine dem sich auch oder als des hat es",
    "fr": "le la les de des et un une est en que du à dans pour qui sur par au pas ou ne plus avec",
    "es": "de la el que en y a los se del las un por con no una para su es al o lo",
    "pt": "de a o que e do da em um para com não uma os no se na por mais as dos ou",
    "it": "di e il la che in un per è del non della a una si le con dei da al o ogni",
    "ro": "și de la în a nu o cu să pe care din este un mai sau are ce orice",
    "ca": "de la i el en que a les per un del els una amb és no o al es tota",
    "gl": "de a e o que en do da un para con os non unha se por as ou toda",
    "nl": "de het een van en in is op te dat voor met die niet zijn aan er om of als",
    "sv": "och att det i en på är som för av med den till inte ett om de har eller",
    "da": "og at det i en på er som for af med den til ikke et om de har eller",
    "no": "og at det i en på er som for av med den til ikke et om de har eller",
    "nb": "og at det i en på er som for av med den til ikke et om de har eller",
    "nn": "og at det i ein på er som for av med den til ikkje eit om dei har eller",
    "is": "og að í á er sem til um við með fyrir það ekki eða af allir",
    "fi": "ja on ei että se oli hän ovat tai kuin joka myös mutta hänen sen jokaisella olla ole",
    "et": "ja on ei et see oma või kui mis ka tema oli igal ning ta",
    "lv": "un ir ar no uz par ka tas vai pie kas arī katram ne viņa",
    "lt": "ir yra kad su į iš ar tai kaip jo bet teisę kiekvienas turi būti",
    "pl": "i w na z do nie się to że jest o jak po od za lub przez dla ma oraz jego",
    "cs": "a v na se je že s z do o pro nebo jako by k ve má být i za které",
    "sk": "a v na sa je že s z do o pre alebo ako by k vo má byť i za ktoré",
    "sl": "in v na se je da za z s so ki ali do pri kot ima ne po",
    "hr": "i u na je da se za od s su ili kao koji iz o ima ne po",
    "bs": "i u na je da se za od s su ili kao koji iz o ima ne po",
    "hu": "a az és hogy nem is egy van meg vagy ez minden való joga azt ki",
    "sq": "dhe të e në i për me një që nga ka të do ose se çdo",
    "tr": "ve bir bu için ile da de her olan olarak hakkı veya ya ki çok gibi kadar",
    "az": "və bir bu üçün ilə hər ki olan da də hüququ ya öz",
    "uz": "va bir bu uchun bilan har bo yoki ega ham o huquqiga",
    "vi": "và của có là được trong cho không các một những với người để này quyền mọi đã hay về",
    "id": "yang dan di dengan untuk dari ini dalam tidak pada adalah atau itu orang akan oleh setiap hak",
    "ms": "yang dan di dengan untuk dari ini dalam tidak pada adalah atau itu orang akan oleh setiap hak",
    "jv": "lan ing kang sing iku saka utawa karo nduweni wong hak dening",
    "tl": "ang ng sa na at mga ay may o kanyang karapatan bawat hindi para",
    "sw": "na ya wa kwa ni katika za la kila au haki mtu yake kuwa hiyo",
    "eu": "eta da du bat ez edo dira ere izan den hori",
    "cy": "y a i yn o ar ei i'r yr neu gan hawl mae",
    "ga": "an a na agus ar i le is do nó de ag",
    "eo": "la kaj de en al estas ne por ke aŭ kun pri ĉiu",
    "la": "et in est non ad cum quod ut de ex vel si aut per",
    "af": "die en van in is te het op dat nie vir met of wat sy",
}  # fmt: skip

_UNSPACED = ("zh", "ja", "th", "lo", "km", "my")
_SAME = {
    "cmn": "zh", "zho": "zh", "chi": "zh", "yue": "zh", "wuu": "zh", "lzh": "zh", "gan": "zh", "hak": "zh",
    "cjy": "zh", "hsn": "zh", "nan": "zh", "mnp": "zh", "cdo": "zh", "dzo": "bo", "dz": "bo",
    "zh-cn": "zh", "zh-tw": "zh", "zh-hans": "zh", "zh-hant": "zh", "jpn": "ja", "kor": "ko", "tha": "th",
    "lao": "lo", "khm": "km", "mya": "my", "bur": "my", "eng": "en", "deu": "de", "ger": "de", "fra": "fr",
    "fre": "fr", "spa": "es", "por": "pt", "ita": "it", "rus": "ru", "ukr": "uk", "bel": "be", "bul": "bg",
    "srp": "sr", "mkd": "mk", "ell": "el", "gre": "el", "arb": "ar", "ara": "ar", "arz": "ar", "pes": "fa",
    "fas": "fa", "prs": "fa", "urd": "ur", "heb": "he", "hin": "hi", "mar": "mr", "npi": "ne", "nep": "ne",
    "ben": "bn", "pan": "pa", "guj": "gu", "tam": "ta", "tel": "te", "kan": "kn", "mal": "ml", "sin": "si",
    "hye": "hy", "kat": "ka", "amh": "am", "kaz": "kk", "ron": "ro", "cat": "ca", "glg": "gl", "nld": "nl",
    "swe": "sv", "dan": "da", "nob": "nb", "nno": "nn", "isl": "is", "fin": "fi", "est": "et", "ekk": "et",
    "lav": "lv", "lvs": "lv", "lit": "lt", "pol": "pl", "ces": "cs", "slk": "sk", "slv": "sl", "hrv": "hr",
    "bos": "bs", "hun": "hu", "als": "sq", "sqi": "sq", "tur": "tr", "aze": "az", "azj": "az", "uzn": "uz",
    "uzb": "uz", "vie": "vi", "ind": "id", "zsm": "ms", "msa": "ms", "jav": "jv", "tgl": "tl", "fil": "tl",
    "swh": "sw", "swa": "sw", "eus": "eu", "cym": "cy", "gle": "ga", "epo": "eo", "lat": "la", "afr": "af",
    "bod": "bo", "sh": "hr", "iw": "he", "in": "id",
}  # fmt: skip

_BY_SCRIPT = {
    u.SCRIPT_HAN: "zh", u.SCRIPT_HIRAGANA: "ja", u.SCRIPT_KATAKANA: "ja", u.SCRIPT_HANGUL: "ko",
    u.SCRIPT_THAI: "th", u.SCRIPT_LAO: "lo", u.SCRIPT_KHMER: "km", u.SCRIPT_MYANMAR: "my", u.SCRIPT_GREEK: "el",
    u.SCRIPT_HEBREW: "he", u.SCRIPT_ARMENIAN: "hy", u.SCRIPT_GEORGIAN: "ka", u.SCRIPT_TAMIL: "ta",
    u.SCRIPT_TELUGU: "te", u.SCRIPT_KANNADA: "kn", u.SCRIPT_MALAYALAM: "ml", u.SCRIPT_GUJARATI: "gu",
    u.SCRIPT_GURMUKHI: "pa", u.SCRIPT_SINHALA: "si",
}  # fmt: skip

DEFAULT = "default"


class Profiles(NamedTuple):
    """Rule languages as the kernels see them: names, function words, and the profile that each script falls to."""

    names: tuple[str, ...]
    index_of: dict[str, int]
    stop_words: list[tuple[str, ...]]
    script_profile_256: npt.NDArray[np.int32]
    han_P: npt.NDArray[np.uint8]


def forms(word: str) -> str:
    """Return a word with its capitalised and upper-case forms, as `heuristics.stop_table` takes them."""
    return "/".join(dict.fromkeys((word, word[:1].upper() + word[1:], word.upper())))


@cache
def profiles() -> Profiles:
    """Return every rule language; index 0 is ``default``: no function words, rules for any language."""
    names = (DEFAULT, *_LISTS)
    index = {name: i for i, name in enumerate(names)}
    stop_words = [(), *(tuple(forms(word) for word in dict.fromkeys(text.split())) for text in _LISTS.values())]
    script_profile = np.zeros(256, np.int32)
    for script, name in _BY_SCRIPT.items():
        script_profile[script] = index[name]
    han = np.full(len(names), w.HAN_DICTIONARY, np.uint8)
    han[index["ja"]] = w.HAN_JAPANESE
    return Profiles(names, index, stop_words, script_profile, han)


@cache
def rule_language(code: str) -> str:
    """Return the rule language of a code: ISO 639-1 or 639-3, with or without a script or region behind it.

    ``default`` for a language without rules of its own, or written in another script than its function words are
    (``azj_Cyrl``).
    """
    lowered = code.strip().lower().replace("_", "-")
    known = profiles().index_of
    for candidate in (lowered, lowered.partition("-")[0]):
        key = _SAME.get(candidate, candidate)
        if key in known:
            script = next((part for part in lowered.split("-")[1:] if len(part) == 4 and part.isalpha()), "")
            return key if not script or script in _scripts(key) else DEFAULT
    return DEFAULT


_SCRIPT_CODES = {
    "latn": "Latin", "cyrl": "Cyrillic", "arab": "Arabic", "deva": "Devanagari", "hans": "Han", "hant": "Han",
    "hani": "Han", "jpan": "Han", "hira": "Hiragana", "kana": "Katakana", "kore": "Hangul", "hang": "Hangul",
    "grek": "Greek", "hebr": "Hebrew", "armn": "Armenian", "geor": "Georgian", "beng": "Bengali", "guru": "Gurmukhi",
    "gujr": "Gujarati", "taml": "Tamil", "telu": "Telugu", "knda": "Kannada", "mlym": "Malayalam", "sinh": "Sinhala",
    "thai": "Thai", "laoo": "Lao", "khmr": "Khmer", "mymr": "Myanmar", "tibt": "Tibetan", "ethi": "Ethiopic",
}  # fmt: skip


@cache
def _scripts(language: str) -> frozenset[str]:
    """Return the ISO 15924 codes, in lower case, of the scripts in which the language's list is written."""
    written = {u.SCRIPT_NAMES[u.SCRIPT[ord(c)]] for c in _LISTS[language]}
    if language == "ja":
        written.add("Han")
    return frozenset(code for code, name in _SCRIPT_CODES.items() if name in written)


def class_of(language: str) -> str:
    """Return the class that a rule may name in place of single languages: ``unspaced`` or ``spaced``."""
    return "unspaced" if language in _UNSPACED else "spaced"
