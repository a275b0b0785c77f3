"""Compare the verdicts of the preset ``datatrove-0.10`` with datatrove 0.10.1, filter by filter.

    python benchmarks/parity_datatrove.py --datatrove-python PATH [--docs DIRECTORY_OR_JSONL] [--n 5000] [--show 5]

``PATH`` is the interpreter of a virtual environment with ``datatrove==0.10.1`` and ``spacy>=3.8``. Documents are
JSON lines (``.jsonl`` or ``.jsonl.zst``) with ``text``; those with another ``lang_hint`` than ``en`` are skipped.
Each filter sees the original text, and its own (a C4 verdict includes the edited text). The vectors of
``docs/parity.md`` and hostile texts are compared too. Exit status 1 below 99.5 % for a filter or at a failed vector.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import zstandard

from gristmill.stages.heuristics import Heuristics

ORACLE = r"""
import json, sys, time
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter)
filters = {
    "gopher_repetition": GopherRepetitionFilter(),
    "gopher_quality": GopherQualityFilter(),
    "c4": C4QualityFilter(filter_no_terminal_punct=False),
    "fineweb_quality": FineWebQualityFilter(),
    "c4-datatrove": C4QualityFilter(),
}
seconds = dict.fromkeys(filters, 0.0)
for line in sys.stdin:
    text = json.loads(line)
    out = {}
    for name, one in filters.items():
        document = Document(text=text, id="x")
        start = time.perf_counter()
        try:
            verdict = one.filter(document)
            reason = None if verdict is True else verdict[1]
        except Exception as error:
            reason = "crash " + type(error).__name__
        seconds[name] += time.perf_counter() - start
        out[name] = [reason, document.text if name.startswith("c4") and reason is None else None]
    print(json.dumps(out), flush=True)
print(json.dumps(seconds))
"""

SENTENCES = "\n".join(f"This is the good sentence number {i} and it is meant to be read with care." for i in range(10))
VECTORS = {
    "": {"gopher_repetition": "empty", "gopher_quality": "gopher_short_doc", "c4": "too_few_sentences",
         "fineweb_quality": "empty"},
    "\n": {"gopher_repetition": "dup_line_frac"},
    "hello world": {"gopher_repetition": "top_2_gram"},
    "hello": {"gopher_repetition": None},
    SENTENCES: {"fineweb_quality": None},
    SENTENCES + "\n{ }": {"c4": None},
    SENTENCES + "\nHere is a { brace yes.": {"c4": "curly_bracket"},
    SENTENCES + "\nThis is the good sentence number 3 and it is meant to be read with care.": {
        "fineweb_quality": "char_dup_ratio"
    },
    "The dog And the cat. ".replace("the", "The") + "Some plain words follow here. " * 20: {
        "gopher_quality": "gopher_enough_stop_words"
    },
    SENTENCES.replace("\n", "\r\n"): {"fineweb_quality": "line_punct_ratio"},
}  # fmt: skip
HOSTILE = (
    "\r\n\r\n a \r\n\r\n a", "\n\nx\n\nx\n\n", "  x \n\n x\n\nx  ", "\u00a0\n\u2003\n\t", "\u200b" * 60,
    "a\x0bb\x0cc\x85d\u2028e",
    "é" * 300, "e\u0301 " * 80, "שלום עולם " * 40, "😀" * 200, "a", ".", "…", "...", "- a\n" * 60, "• a\n- b\n" * 30,
    "#" * 30 + " word" * 60, "word... " * 70, "x\r" * 70, "\ufeff" + SENTENCES, SENTENCES + "\x0b", "\n" * 50,
    SENTENCES + "\n[12] [edit] cite this line now.[3]", "a" * 1500 + " b c d.\n" + SENTENCES, "\n \n \n", " ", "\n\n\n",
    SENTENCES + "\nLorem ipsum dolor sit {amet}.", SENTENCES + "\nA { b c d.\nLorem ipsum dolor sit amet.",
    "中文。" * 100, "- " * 100, "\x1c\x1d a b \x1e c", "[1][2]" * 40, "[edit]\n" * 12 + SENTENCES,
)  # fmt: skip


def read_documents(path: Path, n: int) -> Iterator[str]:
    """Yield up to `n` English texts spread over the files."""
    files = [path] if path.is_file() else sorted([*path.rglob("*.jsonl.zst"), *path.rglob("*.jsonl")])
    texts: list[str] = []
    for file in files:
        raw = file.open("rb")
        stream = zstandard.ZstdDecompressor().stream_reader(raw) if file.suffix == ".zst" else raw
        for line in io.TextIOWrapper(stream, "utf-8"):
            record = json.loads(line)
            if record.get("lang_hint", "en") == "en":
                texts.append(record["text"])
    step = max(len(texts) // n, 1)
    yield from texts[::step][:n]


def ask_datatrove(python: str, texts: list[str]) -> tuple[list[dict[str, list[str | None]]], dict[str, float]]:
    """Return datatrove's verdicts (filter -> reason, edited text) and its seconds by filter."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run([python, "-c", ORACLE], input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr[-2000:]}")
    *verdicts, seconds = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return verdicts, seconds


def ask_gristmill(texts: list[str]) -> dict[str, list[tuple[str | None, str]]]:
    """Return our reason and text by filter."""
    out = {}
    batch = pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.large_string())})
    for name in ("gopher_repetition", "gopher_quality", "c4", "fineweb_quality", "c4-datatrove"):
        options = {"preset": name} if name == "c4-datatrove" else {"preset": "datatrove-0.10", "filters": (name,)}
        result = Heuristics.build(**options).transform(batch)
        out[name] = list(zip(result.column("reason").to_pylist(), result.column("text").to_pylist(), strict=True))
    return out


def same(ours: tuple[str | None, str], theirs: list[str | None]) -> bool:
    """Return whether verdict, reason and edited text agree; a crash of datatrove's is our ``empty``."""
    reason, text = ours
    if theirs[0] is not None and theirs[0].startswith("crash"):
        return reason == "empty"
    return reason == theirs[0] and (theirs[1] is None or text == theirs[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datatrove-python", required=True)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--n", type=int, default=5000)
    parser.add_argument("--show", type=int, default=5)
    options = parser.parse_args()
    failed = False

    fixed = [*VECTORS, *HOSTILE]
    theirs, _ = ask_datatrove(options.datatrove_python, fixed)
    ours = ask_gristmill(fixed)
    for i, text in enumerate(fixed):
        for name, mine in ours.items():
            wanted = VECTORS.get(text, {}).get(name, "-")
            if not same(mine[i], theirs[i][name]) or (wanted != "-" and mine[i][0] != wanted):
                failed = True
                print(
                    f"vector {text[:60]!r} {name}: ours {mine[i][0]}, datatrove {theirs[i][name][0]}, wanted {wanted}"
                )
    print(f"vectors and hostile texts: {len(fixed)}, {'FAILED' if failed else 'all agree'}")

    if options.docs:
        texts = list(read_documents(options.docs, options.n))
        theirs, seconds = ask_datatrove(options.datatrove_python, texts)
        ours = ask_gristmill(texts)
        print(f"{len(texts):,} documents, {sum(len(text.encode()) for text in texts):,} bytes")
        for name, mine in ours.items():
            wrong = [i for i in range(len(texts)) if not same(mine[i], theirs[i][name])]
            share = 1 - len(wrong) / len(texts)
            failed |= share < 0.995
            kept = sum(reason is None for reason, _ in mine)
            print(f"{name:18} agree {share:.3%}  kept by us {kept:,}  datatrove took {seconds[name]:.1f} s")
            pairs = Counter((mine[i][0], theirs[i][name][0]) for i in wrong)
            for (a, b), count in pairs.most_common(options.show):
                print(f"    {count:5,}  ours {a}, datatrove {b}")
            for i in wrong[: options.show]:
                print(f"        {texts[i][:100]!r}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
