"""What share of real documents the default preset keeps, by language, and why it rejects the rest.

    python benchmarks/kept_by_language.py CORPUS [--preset web] [--max-docs N] [--examples N]

CORPUS: a folder of ``*.jsonl.zst``, ``*.jsonl.gz`` or ``*.jsonl`` files with ``text`` (and ``lang_hint``, for
comparison). Languages are those that stage ``language`` finds, as in a pipeline.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa

from gristmill.stages.heuristics import Heuristics
from gristmill.stages.language import Language


def documents(folder: Path, limit: int):
    """Yield (text, hint) of at most `limit` documents."""
    n = 0
    for path in sorted(p for p in folder.iterdir() if ".jsonl" in p.name):
        kind = {".zst": "zstd", ".gz": "gzip"}.get(path.suffix)
        with pa.input_stream(str(path), compression=kind) as source:
            for line in source.read().splitlines():
                record = json.loads(line)
                yield record["text"], record.get("lang_hint") or ""
                n += 1
                if n == limit:
                    return


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--preset", default="web")
    parser.add_argument("--max-docs", type=int, default=1 << 40)
    parser.add_argument("--min-docs", type=int, default=100, help="languages with fewer documents are left out")
    parser.add_argument("--examples", type=int, default=0, help="rejected texts to print for each language and reason")
    parser.add_argument("--languages", default="", help="print examples of these only, comma between")
    options = parser.parse_args()
    language, heuristics = Language.build(), Heuristics.build(preset=options.preset, signals="used")
    reasons: dict[str, Counter[str | None]] = defaultdict(Counter)
    n_bytes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    examples: dict[tuple[str, str], list[str]] = defaultdict(list)
    texts: list[str] = []

    def flush() -> None:
        batch = pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.large_string())})
        langs = language.transform(batch).column("lang")
        out = heuristics.transform(batch.append_column("lang", langs))
        columns = (out.column(name).to_pylist() for name in ("reason", "reason_value", "lang"))
        for text, reason, value, lang in zip(texts, *columns, strict=True):
            reasons[lang][reason] += 1
            size = len(text.encode())
            n_bytes[lang][0] += size
            n_bytes[lang][1] += size if reason is None else 0
            if reason is not None and len(examples[lang, reason]) < options.examples:
                examples[lang, reason].append(f"{value:.3g} {text[:300]!r}")
        texts.clear()

    for text, _ in documents(options.corpus, options.max_docs):
        texts.append(text)
        if len(texts) == 2_000:
            flush()
    if texts:
        flush()
    print("| language | documents | kept | bytes kept | most frequent reasons |\n|---|---|---|---|---|")
    for lang, counts in sorted(reasons.items(), key=lambda item: -item[1].total()):
        total = counts.total()
        if total < options.min_docs:
            continue
        top = ", ".join(f"`{r}` {n / total:.1%}" for r, n in counts.most_common(6) if r is not None)
        size, kept = n_bytes[lang]
        print(f"| {lang} | {total:,} | {counts[None] / total:.1%} | {kept / max(1, size):.1%} | {top} |")
    wanted = set(options.languages.split(",")) if options.languages else set(reasons)
    for (lang, reason), shown in examples.items():
        if lang in wanted:
            print(f"\n{lang} {reason} ({reasons[lang][reason]:,})")
            print("\n".join("  " + line for line in shown))


if __name__ == "__main__":
    main()
