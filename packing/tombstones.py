"""Documents that must no longer be shown: their tokens are blanked wherever the order brings them up.

A tombstone changes no order and no row count: in a row that holds a piece of the document its ids become EOS
and its targets are ignored. So a document can be withdrawn in the middle of a run, at any world size, and every
other token stays where it was.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gristmill.packing.errors import ArgumentError, problem
from gristmill.packing.reader import ShardSet

Ints = npt.NDArray[np.int64]


class Tombstones:
    """Sorted, merged token ranges of withdrawn documents in each source's stream."""

    def __init__(self, sources: list[ShardSet], documents: Iterable[str], known: Iterable[str] = ()) -> None:
        """Look the documents up by id, in every source; those in `known` may be there no more.

        Raises:
            ArgumentError: an id that no source has.
        """
        self.documents = tuple(dict.fromkeys(documents))
        self.ranges: list[tuple[Ints, Ints]] = []
        found: set[str] = set()
        for shards in sources:
            ranges = []
            for document in self.documents:
                numbers = shards.find(document)
                if numbers:
                    found.add(document)
                ranges += [shards.document_tokens(number) for number in numbers]
            ranges = sorted(r for r in ranges if r[1] > r[0])
            self.ranges.append((np.array([a for a, _ in ranges], np.int64), np.array([b for _, b in ranges], np.int64)))
        missing = [document for document in self.documents if document not in found and document not in set(known)]
        if missing:
            raise ArgumentError(
                problem(
                    f"{len(missing)} documents are in none of the sources",
                    where="tombstones",
                    expected="ids that the shards hold",
                    got=missing[:5],
                )
            )

    def within(self, source: int, first: int, last: int) -> list[tuple[int, int]]:
        """Return the withdrawn ranges that overlap tokens [first, last), relative to `first`."""
        starts, ends = self.ranges[source]
        low = int(np.searchsorted(ends, first, side="right"))
        high = int(np.searchsorted(starts, last, side="left"))
        return [(max(int(starts[i]), first) - first, min(int(ends[i]), last) - first) for i in range(low, high)]

    def blank(
        self,
        source: int,
        first: int,
        ids: npt.NDArray[np.generic],
        labels: npt.NDArray[np.generic],
        pad: int,
        ignore: int,
    ) -> None:
        """Blank a piece whose inputs are tokens [first, first + n) and whose targets are one further."""
        n = len(ids)
        for a, b in self.within(source, first, first + n + 1):
            ids[a : min(b, n)] = pad
            labels[max(a - 1, 0) : min(b - 1, n)] = ignore
