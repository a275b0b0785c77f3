"""Skip files: windows and documents that a run leaves out, as data that people and tools can edit."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from gristmill.packing.format import read_json

SKIP_MAGIC = "gristmill-skip"


def write_skip_file(
    path: str | os.PathLike[str], windows: Sequence[tuple[int, int]] = (), documents: Sequence[str] = ()
) -> None:
    """Add windows of global samples and document ids to a skip file, which `Loader(skip=path)` takes."""
    target = Path(path)
    old_windows, old_documents = read_skip_file(target) if target.exists() else ([], [])
    value = {
        "magic": SKIP_MAGIC,
        "version": 1,
        "skip": sorted({*old_windows, *((int(a), int(b)) for a, b in windows)}),
        "documents": sorted({*old_documents, *documents}),
    }
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(target)


def read_skip_file(path: str | os.PathLike[str]) -> tuple[list[tuple[int, int]], list[str]]:
    """Return windows and documents of a skip file.

    Raises:
        ShardMissingError, ShardFormatError, ShardCorruptError: absent, of another kind or version, not JSON.
    """
    value, _ = read_json(Path(path), SKIP_MAGIC)
    return [(int(a), int(b)) for a, b in value["skip"]], [str(d) for d in value["documents"]]
