"""Training and encoding on a real corpus, beside Hugging Face's tokenizers (and fastokens, where installed).

    python benchmarks/tokenizer.py CORPUS [--mb 100] [--vocab 32768] [--peer-mb 20]

CORPUS is a folder of JSON Lines (plain or .zst) with `text`. Rates are bytes of UTF-8 by seconds of processor time
of one thread (the peers are held to one thread too); the first pass warms compilation. Both train on the same
documents with the same expression, and the peers encode with the tokenizer.json that we wrote; tokens are compared.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import zstandard

from gristmill.stages.kernels.bpe import train
from gristmill.stages.kernels.pretoken_table import PretokenTable
from gristmill.stages.kernels.pretokenize import PATTERNS, pretokenize
from gristmill.tokenizer.count import Words
from gristmill.tokenizer.encode import Encoder
from gristmill.tokenizer.model import EOS, BpeModel

PATTERN = PATTERNS["llama3"]


def read(corpus: Path, n_bytes: int) -> list[bytes]:
    texts: list[bytes] = []
    total = 0
    for path in sorted(corpus.rglob("*.jsonl*")):
        with path.open("rb") as raw:
            stream: Any = zstandard.ZstdDecompressor().stream_reader(raw) if path.suffix == ".zst" else raw
            for line in io.TextIOWrapper(stream, "utf-8"):
                texts.append(json.loads(line)["text"].encode())
                total += len(texts[-1])
                if total >= n_bytes:
                    return texts
    return texts


def batch(texts: list[bytes]) -> tuple[Any, Any]:
    return np.cumsum([0, *map(len, texts)]).astype(np.int64), np.frombuffer(b"".join(texts), np.uint8)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def count(texts: list[bytes]) -> Words:
    table = PretokenTable(1 << 26, 1 << 31)
    list(table.add_documents(*batch(texts), PATTERN, 128))
    return Words.of([payload for _, payload in table.drain()])


def show(what: str, n_bytes: int, seconds: float, peer: float | None = None) -> None:
    ratio = f"   {peer / seconds:6.1f}x" if peer else ""
    print(f"{what:<44}{seconds:9.2f} s {n_bytes / seconds / 1e6:9.1f} MB/s{ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--peer-mb", type=int, default=20)
    parser.add_argument("--vocab", type=int, default=32_768)
    options = parser.parse_args()
    texts = read(options.corpus, options.mb * 1_000_000)
    n_bytes = sum(map(len, texts))
    sample: list[bytes] = []
    while sum(map(len, sample)) < options.peer_mb * 1_000_000 and len(sample) < len(texts):
        sample = texts[: max(1, len(sample) * 2)]
    sample_bytes = sum(map(len, sample))
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {len(texts):,} documents")

    warm = texts[:20]
    Encoder(BpeModel.trained(PATTERN, train(*_words(count(warm)), 300), (EOS,))).encode_batch(*batch(warm))
    pretokenize(*batch(warm), PATTERN)
    seconds, _ = timed(lambda: pretokenize(*batch(texts), PATTERN))
    show("pre-tokenise", n_bytes, seconds)
    seconds, words = timed(lambda: count(texts))
    show(f"count ({len(words):,} distinct pre-tokens)", n_bytes, seconds)
    count_seconds = seconds
    seconds, merges = timed(lambda: train(*_words(words), options.vocab - 1))
    show(f"train {len(merges):,} merges", n_bytes, seconds)
    show("count + train", n_bytes, seconds + count_seconds)
    model = BpeModel.trained(PATTERN, merges, (EOS,))
    encoder = Encoder(model)
    seconds, (tokens, _) = timed(lambda: encoder.encode_batch(*batch(texts)))
    show(f"encode ({n_bytes / len(tokens):.3f} bytes a token)", n_bytes, seconds)
    seconds, _ = timed(lambda: encoder.decode(tokens))
    show("decode", n_bytes, seconds)
    peers(sample, sample_bytes, model, options.vocab)


def _words(words: Words) -> tuple[Any, Any, Any]:
    return words.offsets_W1, words.data_B, words.counts_W


def peers(sample: list[bytes], n_bytes: int, model: BpeModel, vocab: int) -> None:
    import tokenizers

    print(f"\nsame {n_bytes / 1e6:.1f} MB, one thread each")
    strings = [text.decode() for text in sample]
    seconds, trained = timed(lambda: train(*_words(count(sample)), vocab - 1))
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    loaded = tokenizers.Tokenizer.from_str(model.to_json().decode())
    loaded.encode_special_tokens = True
    theirs.pre_tokenizer = loaded.pre_tokenizer
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab - 1,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    peer, _ = timed(lambda: theirs.train_from_iterator(strings, trainer))
    name = f"tokenizers {version('tokenizers')}"
    show(f"{name}: count + train", n_bytes, peer)
    show("gristmill: count + train", n_bytes, seconds, peer)
    ours = set(BpeModel.trained(PATTERN, trained, ()).to_vocab())
    print(f"same vocabulary but for long pre-tokens: {len(ours & set(theirs.get_vocab())) / len(ours):.2%}")
    encoder = Encoder(model)
    cold, (tokens, _) = timed(lambda: encoder.encode_batch(*batch(sample)))
    peer, encoded = timed(lambda: loaded.encode_batch_fast(strings, add_special_tokens=False))
    show(f"{name}: encode", n_bytes, peer)
    show("gristmill: encode, empty cache", n_bytes, cold, peer)
    warm, _ = timed(lambda: encoder.encode_batch(*batch(sample)))
    show("gristmill: encode, warm", n_bytes, warm, peer)
    same = np.array_equal(tokens, np.concatenate([np.array(e.ids, np.uint32) for e in encoded]))
    print(f"tokens equal: {same}")
    try:
        fast = f"fastokens {version('fastokens')}"
        from fastokens import Tokenizer
    except (PackageNotFoundError, ImportError):
        print("fastokens: not installed")
        return
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(model.to_json())
        file.flush()
        quick = Tokenizer.from_file(file.name)
    for k, what in enumerate(("first pass", "second pass")):
        peer, (flat, _) = timed(
            lambda: quick.encode_batch_flat(strings, add_special_tokens=False, split_special_tokens=True)
        )
        show(f"{fast}: encode, {what}", n_bytes, peer)
        show("gristmill: encode, warm" if k else "gristmill: encode, empty cache", n_bytes, warm if k else cold, peer)
    print(f"tokens equal: {np.array_equal(tokens, np.frombuffer(flat, np.uint32))}")


if __name__ == "__main__":
    main()
