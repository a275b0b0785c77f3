"""Personal data: our stage against presidio's regular-expression recognizers, on the same documents, one core each.

    python benchmarks/pii.py [--text 'corpus/*.jsonl.zst'] [--presidio PYTHON] [--mb 60] [--peer-mb 0.3]

Without --text it reads the documentation inside the installed packages. --presidio is the interpreter of an
environment with presidio-analyzer; without it only our figures are printed. Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import glob
import io
import json
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

PEER = r"""
import json, logging, sys, time
logging.disable(logging.CRITICAL)
import tldextract
from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
from presidio_analyzer.nlp_engine import NlpEngineProvider
tldextract.extract = tldextract.TLDExtract(suffix_list_urls=())
tldextract.tldextract.TLD_EXTRACTOR = tldextract.extract
engine = NlpEngineProvider(nlp_configuration={
    "nlp_engine_name": "no_op", "models": [{"lang_code": "en", "model_name": "no_op"}]}).create_engine()
registry = RecognizerRegistry()
registry.load_predefined_recognizers(languages=["en"])
for name in [r.name for r in registry.recognizers if r.name in ("SpacyRecognizer", "TransformersRecognizer")]:
    registry.remove_recognizer(name)
analyzer = AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=["en"])
kinds = ["EMAIL_ADDRESS", "PHONE_NUMBER", "IP_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "US_SSN"]
texts = json.load(sys.stdin)
analyzer.analyze("warm up a@b.com", "en", entities=kinds)
began = time.process_time()
found = sum(len(analyzer.analyze(text, "en", entities=kinds)) for text in texts)
print(json.dumps([time.process_time() - began, found]))
"""


def documents(pattern: str | None) -> Iterator[str]:
    """Yield texts of JSON Lines files, or of the documentation in site-packages."""
    if pattern:
        import zstandard

        for name in sorted(glob.glob(pattern)):  # noqa: PTH207 - absolute patterns too
            with Path(name).open("rb") as file:
                stream = zstandard.ZstdDecompressor().stream_reader(file)
                for line in io.TextIOWrapper(stream, encoding="utf-8"):
                    yield json.loads(line)["text"]
        return
    root = Path(sysconfig.get_paths()["purelib"])
    for suffix in ("METADATA", "*.md", "*.rst", "*.txt", "LICENSE*", "*.py"):
        for path in sorted(root.rglob(suffix)):
            try:
                yield path.read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                continue


def take(pattern: str | None, n_bytes: float) -> list[str]:
    texts, total = [], 0
    for text in documents(pattern):
        texts.append(text)
        total += len(text.encode())
        if total >= n_bytes:
            break
    return texts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text")
    parser.add_argument("--presidio")
    parser.add_argument("--mb", type=float, default=60)
    parser.add_argument("--peer-mb", type=float, default=0.3)
    options = parser.parse_args()
    import pyarrow as pa

    from gristmill import stages
    from gristmill.stages.kernels.pii import scan
    from gristmill.stages.kernels.pii_tables import KINDS
    from gristmill.stages.kernels.views import text_view

    texts = take(options.text, options.mb * 1e6)
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    stage = stages.create("pii")
    began = time.process_time()
    stage.transform(batch.slice(0, 1))
    print(f"compile or load kernels          {time.process_time() - began:8.2f} s")
    offsets, data = text_view(batch.column("text"))
    size = (offsets[-1] - offsets[0]) / 1e6

    def speed(work: object) -> float:
        times = []
        for _ in range(3):
            began = time.process_time()
            work()  # type: ignore[operator]
            times.append(time.process_time() - began)
        return float(size / min(times))

    scanning = speed(lambda: scan(offsets, data, KINDS))
    ours = speed(lambda: stage.transform(batch))
    spans = scan(offsets, data, KINDS)
    counts = {kind: int((spans.kind == number).sum()) for number, kind in enumerate(KINDS)}
    print(f"{len(texts):,} documents, {size:.1f} MB; found {counts}")
    print(f"scan, all types                  {scanning:8.1f} MB/s")
    print(f"stage, all types masked          {ours:8.1f} MB/s")
    if not options.presidio:
        return
    sample = take(options.text, options.peer_mb * 1e6)
    answer = subprocess.run(
        [options.presidio, "-c", PEER], input=json.dumps(sample), capture_output=True, text=True, check=False
    )
    if answer.returncode:
        sys.exit(answer.stderr[-2000:])
    seconds, found = json.loads(answer.stdout)
    peer = sum(len(text.encode()) for text in sample) / 1e6 / seconds
    print(f"presidio, six regex recognizers  {peer:8.3f} MB/s  ({found} found in {options.peer_mb} MB)")
    print(f"ratio                            {ours / peer:8.0f} x")


if __name__ == "__main__":
    main()
