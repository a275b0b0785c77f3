"""Compiled loops over Arrow string buffers: NumPy, Numba and pyarrow only.

Numba stores a compiled function beside its file and looks at that file alone to decide whether it is current; a
function that inlines one of another file would go stale. So when any file here changes, all of the store goes.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path


def _drop_stale_store(folder: Path) -> None:
    """Delete compiled functions unless they were made from the files as they are now."""
    facts = sorted((p.name, p.stat().st_mtime_ns, p.stat().st_size) for p in folder.glob("*.py"))
    state = hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()
    store = folder / "__pycache__"
    stamp = store / "kernels.state"
    if stamp.exists() and stamp.read_text() == state:
        return
    for path in [*store.glob("*.nbi"), *store.glob("*.nbc")]:
        path.unlink(missing_ok=True)
    store.mkdir(exist_ok=True)
    stamp.write_text(state)


# A read-only installation keeps what it was shipped with.
with contextlib.suppress(OSError):
    _drop_stale_store(Path(__file__).parent)
