"""Bytes in and out of any `pyarrow.fs` store, by path or URI.

Local paths stay plain; anything with a scheme (``s3://``, ``gs://``, ``hdfs://``, and ``fsspec+NAME://`` for what
fsspec knows) goes through `pyarrow.fs.FileSystem.from_uri`. Functions take strings, so they pickle to Spark workers
as they are.
"""

from __future__ import annotations

import uuid
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from gristmill.stages.errors import ConfigError


@cache
def _scheme(prefix: str) -> Any:
    try:
        return pafs.FileSystem.from_uri(prefix)[0]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{prefix}: no such kind of storage ({error})") from None


def locate(path: str) -> tuple[Any, str]:
    """Return ``(pyarrow filesystem, path inside it)``.

    Raises:
        ConfigError: no path, or the URI's scheme is not known or its library is not installed.
    """
    if "\0" in path:
        raise ConfigError(f"{path!r}: a path cannot hold a NUL byte")
    if "://" not in path:
        return pafs.LocalFileSystem(), path
    scheme, _, rest = path.partition("://")
    if scheme == "file":
        return pafs.LocalFileSystem(), rest
    bucket = rest.partition("/")[0]
    if not bucket and not scheme.startswith("fsspec+"):
        raise ConfigError(f"{path}: a bucket or host is needed after ://")
    return _scheme(f"{scheme}://{bucket}"), rest


def is_local(path: str) -> bool:
    """Return whether `path` is on a local disk."""
    return "://" not in path or path.startswith("file://")


def join(base: str, *names: str) -> str:
    """Join with ``/``; an absolute or URI name replaces what is before it."""
    for name in names:
        absolute = not base or name.startswith("/") or "://" in name
        base = name if absolute else f"{base.rstrip('/')}/{name}"
    return base


def exists(path: str) -> bool:
    """Return whether a file or directory is there."""
    fs, inner = locate(path)
    return bool(fs.get_file_info(inner).type != pafs.FileType.NotFound)


def n_bytes_of(path: str) -> int:
    """Return the size of a file in bytes, or -1 if there is none."""
    fs, inner = locate(path)
    info = fs.get_file_info(inner)
    return int(info.size) if info.type == pafs.FileType.File else -1


def read_bytes(path: str) -> bytes:
    """Return the whole file. Raises: FileNotFoundError, OSError."""
    fs, inner = locate(path)
    with fs.open_input_stream(inner, compression=None) as stream:
        return stream.read()  # type: ignore[no-any-return]


def open_input(path: str) -> Any:
    """Open for random access. Raises: FileNotFoundError, OSError."""
    fs, inner = locate(path)
    return fs.open_input_file(inner)


def write_bytes(path: str, data: bytes) -> None:
    """Write so that a reader sees all of it or nothing: local files by rename, objects by one put."""
    fs, inner = locate(path)
    make_parent(path)
    target = f"{inner}.{uuid.uuid4().hex[:8]}.tmp" if is_local(path) else inner
    with fs.open_output_stream(target) as stream:
        stream.write(data)
    if target != inner:
        fs.move(target, inner)


def make_parent(path: str) -> None:
    """Create the directory that will hold `path`; object stores need none, but some of fsspec's do."""
    if is_local(path) or path.startswith("fsspec+"):
        fs, inner = locate(path)
        fs.create_dir(inner.rpartition("/")[0] or ".", recursive=True)


def rename(old: str, new: str) -> None:
    """Rename a local file."""
    fs, inner = locate(old)
    fs.move(inner, locate(new)[1])


def delete_file(path: str) -> None:
    """Delete a file; not being there is fine."""
    fs, inner = locate(path)
    if fs.get_file_info(inner).type != pafs.FileType.NotFound:
        fs.delete_file(inner)


def delete_dir(path: str) -> None:
    """Delete a directory and all in it; not being there is fine."""
    fs, inner = locate(path)
    if fs.get_file_info(inner).type == pafs.FileType.Directory:
        fs.delete_dir(inner)


def list_files(path: str) -> list[tuple[str, int, int]]:
    """Return ``(path, size in bytes, mtime in ns)`` of every file below a directory, sorted by path."""
    fs, inner = locate(path)
    prefix = path[: len(path) - len(inner)] if path.endswith(inner) else ""
    absolute = inner.startswith("/")
    infos = fs.get_file_info(pafs.FileSelector(inner, recursive=True, allow_not_found=True))
    return sorted(
        # Some stores name files from a root that the path does not begin with.
        (prefix + (info.path if absolute else info.path.lstrip("/")), int(info.size), int(info.mtime_ns or 0))
        for info in infos
        if info.type == pafs.FileType.File
    )


class HashingSink:
    """A file being written that knows its length and 64-bit xxh3; use as a context manager."""

    def __init__(self, path: str) -> None:
        make_parent(path)
        fs, inner = locate(path)
        self._stream = fs.open_output_stream(inner)
        self._hash = xxhash.xxh3_64()
        self.n_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Append bytes."""
        view = memoryview(data)
        self._hash.update(view)
        self.n_bytes += view.nbytes
        self._stream.write(data)
        return view.nbytes

    def flush(self) -> None:
        """Nothing to do: the stream below buffers."""

    def tell(self) -> int:
        """Return the bytes written so far."""
        return self.n_bytes

    def close(self) -> None:
        """Finish the file."""
        if not self.closed:
            self.closed = True
            self._stream.close()

    @property
    def digest(self) -> str:
        """xxh3-64 of what was written, as 16 hex digits."""
        return str(self._hash.hexdigest())

    def readable(self) -> bool:
        """Return False: this is for writing."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False: bytes are appended only."""
        return False

    def __enter__(self) -> HashingSink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
