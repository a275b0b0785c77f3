"""The ledger: documents and bytes in = kept + rejected by reason + quarantined by reason + edited away.

Every stage has one `Entry` a run; tasks each make their own and the driver adds them up. An entry that does
not balance fails the run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from gristmill.stages.errors import RunError


@dataclass
class Count:
    """Documents and bytes."""

    docs: int = 0
    n_bytes: int = 0

    def add(self, docs: int, n_bytes: int) -> None:
        """Count `docs` documents of `n_bytes` bytes together."""
        self.docs += int(docs)
        self.n_bytes += int(n_bytes)


@dataclass
class Entry:
    """What one stage did with what it was given. Bytes are UTF-8 text bytes; for ingest, decoded file bytes.

    `edited` counts bytes removed inside kept documents (negative: added) and the documents touched.
    """

    stage: str
    into: Count = field(default_factory=Count)
    kept: Count = field(default_factory=Count)
    rejected: dict[str, Count] = field(default_factory=dict)
    quarantined: dict[str, Count] = field(default_factory=dict)
    edited: dict[str, Count] = field(default_factory=dict)
    sources: dict[str, list[int]] = field(default_factory=dict)
    """source -> [documents in, documents kept]"""

    def merge(self, other: Entry) -> None:
        """Add the counts of another entry of the same stage."""
        self.into.add(other.into.docs, other.into.n_bytes)
        self.kept.add(other.kept.docs, other.kept.n_bytes)
        for mine, theirs in (
            (self.rejected, other.rejected),
            (self.quarantined, other.quarantined),
            (self.edited, other.edited),
        ):
            for reason, count in theirs.items():
                mine.setdefault(reason, Count()).add(count.docs, count.n_bytes)
        for source, (n_in, n_kept) in other.sources.items():
            self.count_source(source, n_in, n_kept)

    def count_source(self, source: str, n_in: int, n_kept: int) -> None:
        """Count documents of one source."""
        pair = self.sources.setdefault(source, [0, 0])
        pair[0] += int(n_in)
        pair[1] += int(n_kept)

    def check(self, max_removed: float = 1.0, guard_docs: int = 1000) -> None:
        """Fail unless the entry balances and no source lost more than the guard rate.

        Raises:
            RunError: which count is off and by how much, or which source lost how much.
        """
        docs = self.kept.docs + sum(c.docs for c in [*self.rejected.values(), *self.quarantined.values()])
        n_bytes = self.kept.n_bytes + sum(
            c.n_bytes for c in [*self.rejected.values(), *self.quarantined.values(), *self.edited.values()]
        )
        if docs != self.into.docs or n_bytes != self.into.n_bytes:
            raise RunError(
                f"{self.stage}: the ledger does not balance: in {self.into.docs:,} documents, "
                f"{self.into.n_bytes:,} bytes; accounted for {docs:,} documents, {n_bytes:,} bytes"
            )
        for source, (n_in, n_kept) in sorted(self.sources.items()):
            if n_in >= guard_docs and n_in - n_kept > max_removed * n_in:
                raise RunError(
                    f"{self.stage}: guard rate: {n_in - n_kept:,} of {n_in:,} documents of source {source!r} "
                    f"would be removed ({(n_in - n_kept) / n_in:.1%}, at most {max_removed:.1%} allowed). "
                    f"If that is right, set {self.stage}.max_removed higher"
                )

    def to_json(self) -> dict[str, Any]:
        """Return plain data with sorted keys."""
        data = asdict(self)
        for name in ("rejected", "quarantined", "edited", "sources"):
            data[name] = dict(sorted(data[name].items()))
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild an entry from `to_json`."""
        return cls(
            stage=data["stage"],
            into=Count(**data["into"]),
            kept=Count(**data["kept"]),
            sources={k: list(v) for k, v in data["sources"].items()},
            **{
                name: {reason: Count(**count) for reason, count in data[name].items()}
                for name in ("rejected", "quarantined", "edited")
            },
        )
