"""The store of compiled kernels goes as a whole when any kernel file changes."""

from __future__ import annotations

import os
from pathlib import Path

from gristmill.stages.kernels import _drop_stale_store


def test_the_store_is_kept_while_files_are_the_same_and_dropped_when_one_changes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / "b.py").write_text("b = 1\n")
    _drop_stale_store(tmp_path)
    compiled = tmp_path / "__pycache__" / "a.f-1.py311.nbi"
    compiled.write_bytes(b"machine code")
    _drop_stale_store(tmp_path)
    assert compiled.exists()
    os.utime(tmp_path / "b.py", ns=(1, 1))
    _drop_stale_store(tmp_path)
    assert not compiled.exists()
