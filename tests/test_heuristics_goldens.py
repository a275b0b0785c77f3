"""Golden verdicts: every rule of every preset at both sides of its threshold, and real text in every preset.

Each signal has a family of documents that grows worse by one step (a word, a line, a mark). For a rule alone, the
first document that it rejects is recorded with its value: the one before is the closest that passes. A change of a
threshold, a formula or a way of cutting words moves the step. ``python tests/test_heuristics_goldens.py`` prints
the table anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count, islice
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.stages.heuristics import PRESET_NAMES, Heuristics, Rule

GOLDENS = Path(__file__).with_name("heuristics_goldens.json")
Family = Callable[[int], str]


def _words(length: int = 5) -> Iterator[str]:
    """Yield distinct words of `length` lower-case letters, none of them a function word or an English one."""
    for i in count():
        word = ""
        for _ in range(length):
            i, digit = divmod(i, 20)
            word += "bcdfghjklmnpqrstvwxz"[digit]
        yield word


@cache
def _pool(length: int) -> list[str]:
    return list(islice(_words(length), 8_000))


def words(n: int, length: int = 5, start: int = 0) -> list[str]:
    """Return `n` distinct words."""
    return _pool(length)[start : start + max(0, n)]


def prose(n: int, start: int = 0) -> str:
    return " ".join(words(n, start=start))


def of_mean_length(n_chars: int, n_words: int = 200) -> str:
    """Return `n_words` words of `n_chars` letters together."""
    short, longer = divmod(n_chars, n_words)
    return " ".join(["b" * short] * (n_words - longer) + ["b" * (short + 1)] * longer)


def sentences(n: int) -> list[str]:
    return [f"{prose(8, 8 * i)}." for i in range(n)]


def one_gram(n: int) -> Family:
    """Return texts of 150 distinct words with k copies of one phrase of `n` words, a distinct word before each."""

    def text(k: int) -> str:
        phrase = prose(n, 5000)
        return " ".join([*words(150), *(f"{word} {phrase}" for word in words(k, start=7000))])

    return text


def families(rule: Rule, threshold: float, stop_words: tuple[str, ...]) -> Family:
    """Return the family of a rule: text(0) passes it, each next one is a step worse."""
    filler = words(400)
    pairs = [f"{word} d" for word in filler]
    marked: dict[str, str] = {"hash_word_ratio": "#", "ellipsis_word_ratio": "…"}
    signal = rule.signal
    if signal in marked:
        return lambda k: " ".join(word + marked[signal] * (i < k) for i, word in enumerate(filler[:100]))
    if signal == "url_word_ratio":
        return lambda k: " ".join("www.b" if i < k else word for i, word in enumerate(filler[:100]))
    if signal in {"mean_word_chars", "median_word_chars"}:
        at, sign = round(threshold * 200), -1 if rule.op == "<" else 1
        if signal == "mean_word_chars":
            return lambda k: of_mean_length(at + sign * k)
        size = int(threshold)
        return lambda k: " ".join(["b" * (size + sign)] * (45 + k) + ["b" * size] * (55 - k))
    if signal == "n_words":
        size = int(threshold)
        if rule.op == "<":
            return lambda k: prose(size + 2 - k)
        return lambda k: ("b " * (size - 2 + k)).strip()
    if signal.startswith(("top_", "dup_")) and "_gram_" in signal:
        return one_gram(int(signal.split("_")[1]))
    ladder: dict[str, Family] = {
        "n_tokens": lambda k: "b c" if k == 0 else " \n",
        "n_chars": lambda k: "中" * (int(threshold) + 2 - k),
        "bullet_line_share": lambda k: "\n".join("- " * (i < k) + f"{word} b" for i, word in enumerate(filler[:20])),
        "ellipsis_line_share": lambda k: "\n".join(f"{w} b" + "…" * (i < k) for i, w in enumerate(filler[:20])),
        "alpha_word_share": lambda k: " ".join("7" if i < k else word for i, word in enumerate(filler[:200])),
        "stop_words_distinct": lambda k: " ".join([*filler[:60], *stop_words[: max(0, 4 - k)]]),
        "stop_word_occurrences": lambda k: " ".join([*filler[:60], *stop_words[:1] * max(0, 4 - k)]),
        "dup_paragraph_share": lambda k: "\n\n".join([*pairs[:20], *["same d"] * (k + 1)]),
        "dup_paragraph_char_share": lambda k: "\n\n".join([*pairs[:40], *["same d"] * (k + 1)]),
        "dup_line_share": lambda k: "\n".join([*pairs[:20], *["same d"] * (k + 1)]),
        "dup_line_char_share": lambda k: "\n".join([*pairs[:40], *["same d"] * (k + 1)]),
        "dup_nonblank_char_share": lambda k: "\n".join([*sentences(100), *["one and the same"] * (k + 1)]),
        "repeated_line_share": lambda k: "\n".join([*filler[:20], *["same"] * (k + 1)]),
        "repeated_line_char_share": lambda k: "\n".join([*filler[:20], *["same"] * (k + 1)]),
        "terminal_line_share": lambda k: "\n".join(f"{prose(9, 9 * i)}{'.' * (i >= k)}" for i in range(100)),
        "short_line_share": lambda k: "\n".join(f"{i:010} bbbbbbbbb {'b' * (9 if i < k else 10)}" for i in range(100)),
        "newline_word_ratio": lambda k: prose(10) + "".join(f"\n{prose(3, 900 + 3 * i)}" for i in range(k)),
        "mean_line_chars": lambda k: "\n".join("b" * (int(threshold) - (i < k)) for i in range(20)),
        "boilerplate_line_share": lambda k: "\n".join("Sign in" if i < k else prose(9, 9 * i) for i in range(20)),
        "lorem_ipsum_lines": lambda k: prose(60) + "\nLorem ipsum dolor" * k,
        "edited_lorem_ipsum": lambda k: "\n".join([*sentences(9), "Here is lorem ipsum dolor sit amet."][: 9 + k]),
        "edited_curly_bracket": lambda k: "\n".join([*sentences(9), "Here is a { brace in this line."][: 9 + k]),
        "edited_sentences": lambda k: "\n".join(sentences(max(0, int(threshold) + 2 - k))),
        "edited_lines": lambda k: "\n".join(sentences(1 - min(k, 1))) + "\n",
        "edited_words_removed_share": lambda k: "\n".join([prose(20, 20 * i) for i in range(10)] + ["12,345"] * k),
        "broken_share": lambda k: "\ufffd" * k + "b" * (1000 - k),
        "han_share": lambda k: "中" * (40 - k) + "b" * (60 + k),
        "kana_share": lambda k: "の" * k + "中" * (200 - k),
        "digit_share": lambda k: "7" * k + "b" * (100 - k),
        "special_share": lambda k: "+" * k + "b" * (100 - k),
        "emoji_share": lambda k: "😀" * k + "b" * (200 - k),
    }
    return ladder[signal]


def alone(preset: str, rule: Rule) -> Heuristics:
    """Return the preset with one rule only."""
    off = {other.reason: None for other in Heuristics.build(preset=preset).rules() if other.reason != rule.reason}
    return Heuristics.build(preset=preset, thresholds=off)


def first_rejected(preset: str, rule: Rule) -> dict[str, object]:
    """Return the step, value and threshold of the first document of the rule's family that it rejects."""
    language = {"chinese-web": "zh"}.get(preset, "en")
    stop_words = ("的", "是", "在", "了") if language == "zh" else ("the", "to", "of", "and")
    family = families(rule, rule.threshold_for(language), stop_words)
    steps = 4 if rule.signal == "n_words" and rule.op == ">" else 101
    texts = [family(k) for k in range(steps)]
    batch = pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.large_string()), "lang": [language] * steps})
    out = alone(preset, rule).transform(batch)
    reasons = out.column("reason").to_pylist()
    step = next((k for k, reason in enumerate(reasons) if reason is not None), -1)
    assert step > 0, (preset, rule.reason, "rejected at once" if step == 0 else "never rejected")
    assert reasons[step] == rule.reason
    value = out.column("reason_value")[step].as_py()
    return {"step": step, "value": round(value, 6), "threshold": out.column("reason_threshold")[step].as_py()}


def rules(preset: str) -> dict[str, Rule]:
    return {rule.reason: rule for rule in Heuristics.build(preset=preset).rules()}


@cache
def goldens() -> dict[str, dict[str, dict[str, object]]]:
    recorded: dict[str, dict[str, dict[str, object]]] = json.loads(GOLDENS.read_text("utf-8"))
    return recorded


EN = (
    "The mill stands at the end of the village, where the river turns to the south and the road begins to climb.\n"
    "Every autumn the farmers bring their grain to it and wait for the flour with the patience of people who know it.\n"
    "It was built in 1840, and it has worked without a pause that anyone can remember since the day of the flood.\n"
    "Inside, a wheel of oak drives two stones that lie on each other; the upper one turns, and the lower one rests.\n"
    "What the cloth holds back is weighed too, because the miller has to account for every pound that they bring.\n"
    "Children like to watch the water, but their parents have told them to be careful near the sluice in spring."
)
ZH = (
    "磨坊位于村子的尽头，河流在那里转向南方，道路也从那里开始上坡。每年秋天，农民们把粮食运到这里，耐心地等待面粉。\n"
    "这座磨坊建于一百八十年前，从洪水退去的那一天起，它就一直在工作，没有人记得它曾经停下来过。\n"
    "磨坊里面有一个橡木轮子，带动两块叠在一起的石头；上面的一块转动，下面的一块静止不动。\n"
    "布筛留下的东西也要称重，因为磨坊主必须对他们送来的每一斤粮食负责，这是村里人都知道的规矩。\n"
    "孩子们喜欢看水，但是父母告诉他们，春天的时候在水闸附近一定要小心，不要靠得太近。"
)
REAL = {
    "English prose": ("en", EN),
    "Chinese prose": ("zh", ZH),
    "page furniture": (
        "en",
        "Home\nSign in\nRead more\nShare this\nItems in cart: 3\n12 likes\nAll rights reserved\n" * 4,
    ),
    "keywords": ("en", "cheap phone store sale offer brand price deal shop click " * 20),
    "source code": ("en", "for (i = 0; i < n; i++) {\n  a[i] = b[i] + c[i];\n}\n" * 12),
    "table of numbers": ("en", "\n".join(f"{i * 37 % 997} {i * 91 % 887} {i * 13 % 769}" for i in range(80))),
    "cookie notice": ("en", EN + "\nThis site uses cookies to improve your visit.\nPlease enable Javascript to go on."),
    "one line too often": ("en", EN + ("\n" + EN.split("\n")[0]) * 4),
    "list": ("en", "\n".join(f"- {w} and {v}" for w, v in zip(words(60), words(60, start=70), strict=True))),
    "teasers": ("en", "\n".join(f"The story of {w} and how it came to be…" for w in words(30))),
    "CR LF": ("en", EN.replace("\n", "\r\n")),
    "mixed line ends": ("en", EN.replace("\n", "\r\n", 1).replace("\n", "\u2028", 1).replace("\n", "\r", 1)),
    "zero-width characters": ("en", EN.replace(" ", " \u200b")),
    "byte-order mark": ("en", "\ufeff" + EN),
    "combining marks": ("en", EN.replace("e", "e\u0301")),
    "only combining marks": ("en", "\u0301" * 300),
    "damaged surrogates": ("en", EN.replace("the", b"\xed\xa0\x80".decode("utf-8", "replace"))),
    "NUL bytes": ("en", "\x00" * 300),
    "right to left": ("ar", "\u202b" + "تقف الطاحونة في نهاية القرية حيث يتجه النهر إلى الجنوب. " * 3 + "\u202c"),
    "all white space": ("en", " \t\r\n\u3000\u2028\x85\x0b\x0c" * 20),
    "empty": ("en", ""),
    "line feed": ("en", "\n"),
    "one letter": ("en", "a"),
    "one Han character": ("zh", "中"),
    "one emoji": ("en", "😀"),
    "one mark": ("en", "."),
    "one space": ("en", " "),
    "one zero-width space": ("en", "\u200b"),
    "last code point": ("en", "\U0010ffff"),
}


def verdicts(preset: str) -> dict[str, str | None]:
    """Return the reason for each real text, all in one batch."""
    langs, texts = zip(*REAL.values(), strict=True)
    batch = pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.large_string()), "lang": langs})
    return dict(zip(REAL, Heuristics.build(preset=preset).transform(batch).column("reason").to_pylist(), strict=True))


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_every_rule_changes_its_verdict_at_its_threshold(preset: str) -> None:
    recorded = goldens()["edges"][preset]
    found = {reason: first_rejected(preset, rule) for reason, rule in rules(preset).items()}
    assert found == recorded
    for reason, rule in rules(preset).items():
        value, threshold = found[reason]["value"], found[reason]["threshold"]
        assert (value < threshold) if rule.op == "<" else (value > threshold)  # type: ignore[operator]


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_real_and_odd_texts_have_golden_verdicts(preset: str) -> None:
    assert verdicts(preset) == goldens()["texts"][preset]


def test_good_prose_is_kept_by_the_presets_for_its_language() -> None:
    for preset in PRESET_NAMES:
        kept = [name for name, reason in verdicts(preset).items() if reason is None]
        assert ("Chinese prose" if preset == "chinese-web" else "English prose") in kept, preset
        assert not {"empty", "all white space", "keywords", "NUL bytes"} & set(kept), preset


if __name__ == "__main__":
    table = {
        "edges": {name: {r: first_rejected(name, rule) for r, rule in rules(name).items()} for name in PRESET_NAMES},
        "texts": {name: verdicts(name) for name in PRESET_NAMES},
    }
    GOLDENS.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
