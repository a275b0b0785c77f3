"""Which files a path, directory or glob pattern means, and of what format each is."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gristmill.stages import store
from gristmill.stages.errors import ConfigError, nearest
from gristmill.stages.ingest.decode import CODECS

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "text",
    ".md": "text",
    ".rst": "text",
    ".text": "text",
    ".markdown": "text",
    ".html": "text",
}
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class InputFile:
    """A file to read: where it is, what ids call it, its format, length in bytes and mtime in ns."""

    path: str
    name: str
    format: str
    n_bytes: int
    mtime_ns: int


def format_of(path: str) -> str | None:
    """Return ``jsonl``, ``parquet`` or ``text`` by the suffix before any compression suffix, or None."""
    stem, dot, suffix = path.rpartition(".")
    if dot and f".{suffix.lower()}" in CODECS:
        path, (_, dot, suffix) = stem, stem.rpartition(".")
    return FORMATS.get(f".{suffix.lower()}") if dot else None


def find(patterns: tuple[str, ...], given_format: str, where: str) -> list[InputFile]:
    """Return the files that paths, directories (recursive) and glob patterns (``*``, ``?``, ``**``) mean.

    Raises:
        ConfigError: a path is not there or not readable, a pattern matches nothing, or a format is not clear.
    """
    found: dict[str, InputFile] = {}
    for pattern in patterns:
        if not pattern:
            raise ConfigError(f"{where}.path: an empty path")
        matches = _match(os.path.expanduser(pattern), where)  # noqa: PTH111 - patterns and URIs too
        unclear = []
        for name, path, n_bytes, mtime in matches:
            kind = format_of(path) if given_format == "auto" else given_format
            if kind is None:
                unclear.append(path)
                continue
            found[path] = InputFile(path, name, kind, n_bytes, mtime)
        if unclear:
            raise ConfigError(
                f"{where}.path: the format of {len(unclear):,} files is not clear from their names, "
                f"for example {unclear[0]}. Set {where}.format to jsonl, parquet or text, or narrow the pattern"
            )
    return [found[path] for path in sorted(found)]


def _match(pattern: str, where: str) -> list[tuple[str, str, int, int]]:
    """Return ``(name, path, size, mtime)``; the name is relative to the part of the pattern without wildcards."""
    try:
        return _match_in_store(pattern, where)
    except ConfigError as error:
        raise ConfigError(str(error) if str(error).startswith(where) else f"{where}.path: {error}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}.path: {pattern!r}: {error}") from None


def _match_in_store(pattern: str, where: str) -> list[tuple[str, str, int, int]]:
    wild = _WILD.search(pattern)
    if wild is None:
        n_bytes = store.n_bytes_of(pattern)
        if n_bytes >= 0:
            _readable(pattern, where)
            mtime = Path(pattern).stat().st_mtime_ns if "://" not in pattern else 0
            return [(pattern.rstrip("/").rpartition("/")[2], pattern, n_bytes, mtime)]
        base, regex = pattern.rstrip("/"), None
    else:
        base = pattern[: wild.start()].rpartition("/")[0]
        base = base or ("/" if pattern.startswith("/") else ".")
        regex = re.compile(_translate(pattern[len(base) + 1 :] if base != "." or pattern.startswith("./") else pattern))
    if not store.exists(base):
        raise ConfigError(f"{where}.path: {base}: no such file or directory.{_near(base)}")
    _readable(base, where)
    out = []
    for path, n_bytes, mtime in store.list_files(base):
        name = path[len(base.rstrip("/")) + 1 :]
        if regex.fullmatch(name) if regex else not _hidden(name):
            _readable(path, where)
            out.append((name, path, n_bytes, mtime))
    if not out:
        raise ConfigError(f"{where}.path: {pattern}: nothing matches")
    return out


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _readable(path: str, where: str) -> None:
    if "://" not in path and not os.access(path, os.R_OK):
        raise ConfigError(f"{where}.path: {path}: not readable (permission denied)")


def _near(path: str) -> str:
    if "://" in path:
        return ""
    parent = Path(path).parent
    try:
        return nearest(Path(path).name, [p.name for p in parent.iterdir()]) if parent.is_dir() else ""
    except OSError:
        return ""


def _translate(pattern: str) -> str:
    """Turn a glob pattern into a regular expression: ``*`` stops at ``/``, ``**/`` does not."""
    out = ""
    i = 0
    while i < len(pattern):
        if pattern.startswith("**/", i):
            out += "(?:.*/)?"
            i += 3
        elif pattern.startswith("**", i):
            out += ".*"
            i += 2
        elif pattern[i] == "*":
            out += "[^/]*"
            i += 1
        elif pattern[i] == "?":
            out += "[^/]"
            i += 1
        elif pattern[i] == "[" and "]" in pattern[i:]:
            end = pattern.index("]", i)
            out += "[" + pattern[i + 1 : end].replace("!", "^", 1) + "]"
            i = end + 1
        else:
            out += re.escape(pattern[i])
            i += 1
    return out
