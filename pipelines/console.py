"""The console that the command line writes to."""

from __future__ import annotations

import os
import sys

from rich.console import Console


def make_console() -> Console:
    """Return a console on standard output; lines are not cut at 80 columns where that is a file."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return Console(width=wide)
