"""Make ``words_chinese.npz`` from jieba's ``dict.txt`` (lines of ``word count tag``).

    python -m gristmill.stages.kernels.generate_chinese PATH_TO/jieba/dict.txt

Words with characters outside the Han script are left out: they are cut by Unicode rules.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

from gristmill.stages.kernels import unicode as u
from gristmill.stages.kernels.words_chinese import DICTIONARY_PATH


def shared_length(a: str, b: str) -> int:
    """Return the number of characters that two words have in common from the start."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def main(path: Path) -> None:
    """Read the dictionary at `path` and write the table beside this module."""
    words: dict[str, int] = {}
    for line in path.read_text("utf-8").splitlines():
        word, count = line.split(" ")[:2]
        if all(u.SCRIPT[ord(c)] == u.SCRIPT_HAN for c in word):
            words[word] = int(count)
    ordered = sorted(words)
    shared = [0] + [shared_length(a, b) for a, b in pairwise(ordered)]
    new = [word[n:] for word, n in zip(ordered, shared, strict=True)]
    with DICTIONARY_PATH.open("wb") as file:
        np.savez_compressed(
            file,
            shared=np.array(shared, np.uint8),
            n_new=np.array([len(part) for part in new], np.uint8),
            chars=np.array([ord(c) for part in new for c in part], np.int32),
            counts=np.array([words[word] for word in ordered], np.int32),
        )
    print(f"{DICTIONARY_PATH.name}: {len(words):,} words, {DICTIONARY_PATH.stat().st_size:,} bytes")  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
