"""Our signatures as `datasketch` objects, for users who have an LSH index or a service built on it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.stages.kernels.minhash import U32


def lean_minhashes(signatures_DK: U32, seed: int = 1) -> list[Any]:
    """Return one `datasketch.LeanMinHash` a document.

    They compare, merge and index among themselves (`jaccard`, `MinHashLSH`, `serialize`). Their values come from our
    permutations, so never mix them with signatures that `datasketch` computed. Needs the package ``datasketch``.
    """
    from datasketch import LeanMinHash

    # Since 2.0 datasketch wants to know the scheme; "legacy" is its name for 32-bit values without one.
    more = {"scheme": "legacy"} if "scheme" in LeanMinHash.__slots__ else {}
    return [LeanMinHash(seed=seed, hashvalues=values, **more) for values in signatures_DK.astype(np.uint64)]
