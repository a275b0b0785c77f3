"""What this machine lacks, how to get it, and compiling all kernels ahead of time."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from gristmill.stages import registry, runtime
from gristmill.stages.documents import BASE_COLUMNS
from gristmill.stages.errors import ConfigError

PACKAGES = (
    "numpy",
    "pyarrow",
    "numba",
    "pyspark",
    "pandas",
    "pydantic",
    "tokenizers",
    "xxhash",
    "google-re2",
    "python-stdnum",
)


def examine(console: Console) -> list[str]:
    """Print what is there and what is not; return the names of what is missing."""
    missing = []

    def line(name: str, good: bool, text: str) -> None:
        console.print(f"  {'ok     ' if good else 'missing'}  {name}: {text}", highlight=False)
        if not good:
            missing.append(name)

    console.print(f"gristmill on {platform.platform()}, {os.cpu_count()} cores", highlight=False)
    line("Python", sys.version_info >= (3, 11), platform.python_version())
    for package in PACKAGES:
        try:
            line(package, True, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            line(package, False, "pip install 'gristmill[curate]'")
    try:
        line("Java", True, runtime.find_java())
    except ConfigError as error:
        line("Java", False, str(error))
    free = shutil.disk_usage(tempfile.gettempdir()).free
    line("temporary space", free > 2 << 30, f"{free / 1e9:.1f} GB free in {tempfile.gettempdir()}")
    cache = Path(__file__).resolve().parent.parent / "stages" / "kernels" / "__pycache__"
    compiled = len(list(cache.glob("*.nbi"))) if cache.is_dir() else 0
    line("compiled kernels", True, f"{compiled} files cached; gristmill doctor --warm compiles all")
    return missing


def warm_kernels() -> float:
    """Compile (or load) the kernels of every stage that needs no file of the user's; return the seconds it took."""
    started = time.monotonic()
    for name in registry.names():
        stage_class = registry.get(name)
        if not any(f.is_required() for f in stage_class.model_fields.values()):
            stage_class.build(name).warm(pa.schema(BASE_COLUMNS))
    return time.monotonic() - started
