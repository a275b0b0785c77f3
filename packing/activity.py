"""What each thread waits for, said by the places that can wait long and asked when a batch does not come.

Opening a shard, a read that is tried again, a checksum, a chunk that is fetched or that another process fetches: each
is noted for its duration (0.5 us). A plain read of rows is not; where nothing is noted, the loader says which rows.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_doing: dict[int, str] = {}


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Note that this thread is busy with `what`, for example "opening shard-00003"."""
    me = threading.get_ident()
    before = _doing.get(me)
    _doing[me] = what
    try:
        yield
    finally:
        if before is None:
            _doing.pop(me, None)
        else:
            _doing[me] = before


def activity_of(thread: int) -> str | None:
    """Return what a thread (by its identifier) is busy with, if it is noted."""
    return _doing.get(thread)
