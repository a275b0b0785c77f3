"""The process that Spark forks its Python workers from, with what every worker needs imported once, before the fork.

Spark runs it as ``python -m gristmill.stages.worker_daemon`` where `spark.python.daemon.module` says so: on a local
master always, on a cluster where the operator sets it (gristmill must then be installed on every executor).
Without it each worker imports Arrow, Numba and pandas for itself, about a second and a half of processor time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any


def installed_first(path: list[str]) -> list[str]:
    """Return an import path without Spark's zip archives, where they are part of the pyspark that is installed.

    They stand first on a worker's path, and Python compiles what it imports from a zip anew in every run.
    """
    zips = [p for p in path if p.endswith(".zip") and Path(p).name.startswith(("pyspark", "py4j"))]
    rest = [p for p in path if p not in zips]
    found = PathFinder.find_spec("pyspark", rest)
    if found is None or found.origin is None or PathFinder.find_spec("py4j", rest) is None:
        return path
    package = Path(found.origin).resolve().parent
    return rest if all(package in Path(p).resolve().parents for p in zips) else path


def preload() -> None:
    """Import what the first batch of any stage needs. Starts no thread: those would not survive the fork."""
    import pyarrow as pa
    import pyspark.sql.pandas.serializers
    import pyspark.worker  # noqa: F401

    import gristmill.stages.kernels.hashing
    import gristmill.stages.passes  # noqa: F401

    pa.array(["pandas, where it is installed, is imported by the first of these"])
    settle()


def settle() -> None:
    """Collect garbage and have the collector leave alone what is there now: modules, kernels, models.

    Spark has a worker collect after every task, which took 50 ms each with all that.
    """
    gc.collect()
    gc.freeze()


def serve(work: Callable[[Any, bool], int], sock: Any, authenticated: bool) -> int:
    """Run one task as Spark's daemon does, and settle: its own collection has nothing left to do."""
    code = work(sock, authenticated)
    settle()
    return code


if __name__ == "__main__":
    sys.path[:] = installed_first(sys.path)
    from pyspark import daemon

    preload()
    daemon.worker = partial(serve, daemon.worker)
    daemon.manager()
