"""The errors a user can cause or meet. Everything else is a bug of ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GristmillError(Exception):
    """Base of every error that gristmill raises on purpose."""


class ConfigError(GristmillError):
    """The user's input is wrong: a key, column, stage, path or pipeline. Exit code 2, before Spark starts."""


class RunError(GristmillError):
    """The run failed: the ledger does not balance, a guard rate was exceeded, storage failed. Exit code 1."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the known name closest to `name`, or an empty string."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {match[0]!r}?" if match else ""
