"""What can go wrong when shards are written, opened or iterated.

Every message says what is wrong, where, what was expected, what was found and what to do next.
"""

from __future__ import annotations


class PackingError(Exception):
    """Base class of everything that `gristmill.packing` raises on purpose."""


class ArgumentError(PackingError, ValueError):
    """The caller passed an impossible value: a rank outside the world, a negative weight, no sources."""


class ShardMissingError(PackingError, FileNotFoundError):
    """A file that the manifest lists, or the manifest itself, is not there."""


class ShardFormatError(PackingError, ValueError):
    """A file is not what it should be: wrong magic, an unknown version, a wrong dtype, disagreeing counts."""


class ShardCorruptError(PackingError, ValueError):
    """Bytes differ from what was written: a failed checksum, a truncated or a swapped file."""


class StateError(PackingError, ValueError):
    """A saved loader state does not belong to this plan, tokenizer or format version."""


class ShardReadError(PackingError, OSError):
    """The operating system or the store kept failing after every retry."""


class StarvedError(PackingError, TimeoutError):
    """A batch did not arrive within the caller's time limit."""


class WorkerError(PackingError, RuntimeError):
    """A prefetch worker kept crashing at one step; the crash itself is the cause."""


def problem(what: str, *, where: object, expected: object = None, got: object = None, then: str = "") -> str:
    """Return one message in the house order: what, where, expected, got, what to do next."""
    parts = [f"{where}: {what}"]
    if expected is not None or got is not None:
        parts.append(f"expected {_show(expected)}, got {_show(got)}")
    if then:
        parts.append(then)
    return "; ".join(parts)


def _show(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
