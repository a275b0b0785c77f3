"""Shards in a remote store, read through a local cache that the processes of a machine share.

Small files are fetched whole, `.bin` in chunks (4 MiB), each a file of its own that appears by rename. A chunk is
fetched under a `flock` named after it, so that no two processes fetch the same one, and a killed process holds
nothing up; what it had fetched in part is removed when the cache is next opened. Above its limit the cache drops
chunks: among those unused for longest, the ones that the run's order needs last (`next_use`), for the order is known.
Fetched bytes are held against the block checksums like all others.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gristmill.packing.activity import doing
from gristmill.packing.errors import ArgumentError, problem
from gristmill.packing.format import SET_FILE, digest
from gristmill.packing.s3 import Remote

CHUNK_BYTES = 4 << 20
CANDIDATES = 64
LOCK_DIGITS = 4
"""Hexadecimal digits of a path's digest that name its lock: at most 65,536 lock files."""
NextUse = Callable[[str, int, int], float]
"""(shard name, first byte, one past the last) -> next global sample that reads it, infinity if none is known."""


class Cache:
    """A folder of fetched chunks with a size limit. Any number of processes may share it."""

    def __init__(self, folder: str | os.PathLike[str], limit_bytes: int = 64 << 30, chunk_bytes: int = CHUNK_BYTES):
        """Use `folder`, made if it is not there; at most about `limit_bytes` of chunks stay in it."""
        if limit_bytes < chunk_bytes:
            raise ArgumentError(
                problem("limit below one chunk", where="Cache", expected=f">= {chunk_bytes:,}", got=limit_bytes)
            )
        self.folder = Path(folder)
        self.limit_bytes = limit_bytes
        self.chunk_bytes = chunk_bytes
        self.next_use: NextUse | None = None
        self.n_fetched = 0
        self._lock = threading.Lock()
        self._added = 0
        (self.folder / "locks").mkdir(parents=True, exist_ok=True)
        (self.folder / "partial").mkdir(exist_ok=True)
        self._sweep()

    def __reduce__(self) -> Any:
        return Cache, (self.folder, self.limit_bytes, self.chunk_bytes)

    def whole(self, remote: Remote, folder: str, name: str) -> Path:
        """Fetch a small file unless it is there, and return its local path below `folder`."""
        path = self.folder / folder / name
        if not path.exists():
            self._fetch(path, lambda: remote.read(name))
        return path

    def chunk(self, remote: Remote, folder: str, name: str, number: int, n_file: int) -> Path:
        """Fetch chunk `number` of a file of `n_file` bytes unless it is there, and return its local path."""
        path = self.folder / folder / f"{name}.{number:06d}.chunk"
        if not path.exists():
            first = number * self.chunk_bytes
            size = min(self.chunk_bytes, n_file - first)
            if self._fetch(path, lambda: remote.read(name, first, size)):
                self._make_room(size)
        return path

    def _fetch(self, path: Path, read: Callable[[], bytes]) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One name for every attempt: it is written under the lock that it begins with.
        temporary = self.folder / "partial" / digest(str(path.relative_to(self.folder)).encode())
        with contextlib.ExitStack() as held:
            with doing(f"waiting for another process that fetches {path.name}"):
                held.enter_context(self._locked(temporary.name[:LOCK_DIGITS]))
            if path.exists():
                return False
            try:
                temporary.write_bytes(read())
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
            self.n_fetched += 1
            return True

    @contextlib.contextmanager
    def _locked(self, name: str, wait: bool = True) -> Iterator[bool]:
        """Hold a lock among all processes and threads; the system releases it with the process.

        Yields whether it was got; only with `wait=False` may it be held by another.
        """
        descriptor = os.open(self.folder / "locks" / name, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                try:
                    yield True
                finally:
                    # Closing alone would not do: a process forked meanwhile shares the lock with this one.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what killed processes had begun to fetch: partial files whose lock nobody holds."""
        for path in (self.folder / "partial").iterdir():
            with self._locked(path.name[:LOCK_DIGITS], wait=False) as got:
                if got:
                    path.unlink(missing_ok=True)

    def _make_room(self, added: int) -> None:
        """Drop chunks once the total is above the limit; looked at after each 1/16 of the limit."""
        with self._lock:
            self._added += added
            if self._added < self.limit_bytes // 16 and self._added > added:
                return
            self._added = 0
            found = []
            for path in self.folder.rglob("*.chunk"):
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    found.append((status.st_atime_ns, status.st_size, path))
        total = sum(size for _, size, _ in found)
        found.sort()
        while total > self.limit_bytes and len(found) > 1:
            candidates = found[: min(CANDIDATES, len(found) - 1)]
            _, size, path = victim = max(candidates, key=lambda item: self._distance(item[2]))
            found.remove(victim)
            path.unlink(missing_ok=True)
            total -= size

    def _distance(self, path: Path) -> float:
        if self.next_use is None:
            return 0.0
        name, number, _ = path.name.rsplit(".", 2)
        first = int(number) * self.chunk_bytes
        return self.next_use(name.removesuffix(".bin"), first, first + self.chunk_bytes)


class RemoteFolder:
    """A shard set's folder in a store.

    `shards.json` is read from the store each time, and its content names the folder in the cache: a set that was
    replaced under the same URL is never mixed with what the cache holds of the old one.
    """

    def __init__(self, url: str, cache: Cache, retries: int) -> None:
        self.remote = Remote(url, retries)
        self.cache = cache
        self._folder = digest(url.encode() + self.remote.read(SET_FILE))[:16]

    def __str__(self) -> str:
        return self.remote.url

    def file(self, name: str) -> Path:
        """Return a local copy of a small file."""
        return self.cache.whole(self.remote, self._folder, name)

    def read_into(self, name: str, view: memoryview, offset: int, n_file: int) -> None:
        """Fill `view` from byte `offset` of a big file of `n_file` bytes."""
        size = self.cache.chunk_bytes
        done = 0
        while done < len(view):
            number, within = divmod(offset + done, size)
            step = min(len(view) - done, size - within)
            for _ in range(3):
                path = self.cache.chunk(self.remote, self._folder, name, number, n_file)
                try:
                    with path.open("rb", buffering=0) as stream:
                        os.utime(path)
                        got = os.preadv(stream.fileno(), [view[done : done + step]], within)
                except FileNotFoundError:
                    continue  # another process has just dropped it
                if got == step:
                    break
                path.unlink(missing_ok=True)
            else:
                raise OSError(f"{path}: the cache keeps losing this chunk; raise its limit")
            done += step

    def drop(self, name: str, first: int, last: int) -> None:
        """Forget the chunks that hold bytes [first, last) of a file, so that they are fetched again."""
        size = self.cache.chunk_bytes
        for number in range(first // size, -(-last // size)):
            (self.cache.folder / self._folder / f"{name}.{number:06d}.chunk").unlink(missing_ok=True)
