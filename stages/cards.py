"""Data cards: for each shard, where its tokens come from and what was done to the text on the way.

One card a shard as JSON (for programs), Markdown (for reviews) and HTML (for people), after Gebru et al.,
"Datasheets for Datasets" (arXiv 1803.09010). Everything in it is read from manifests, ledgers and shards.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from gristmill.packing import open_shards
from gristmill.stages import store
from gristmill.stages.artifact import Artifact, open_artifact
from gristmill.stages.base import GlobalStage
from gristmill.stages.context import Context, Outcome
from gristmill.stages.ledger import Entry

TEMPLATES = Path(__file__).with_name("templates")
COLOURS = ("#4c6ef5", "#12b886", "#fab005", "#fa5252", "#7950f2", "#15aabf", "#82c91e", "#e64980")


class Cards(GlobalStage):
    """Write a data card for each shard and one page for the set."""

    name: ClassVar[str] = "cards"
    summary: ClassVar[str] = "write a data card for each shard: sources, what was removed and why, checksums"
    input_kinds: ClassVar[tuple[str, ...]] = ("shards",)
    output_kind: ClassVar[str] = "cards"

    title: str = Field(default="", description="title of the data set; default: the name of the shards' artifact")
    description: str = Field(default="", description="a sentence or two for readers: what the data is for")
    license: str = Field(default="see the sources", description="licence of the data set as a whole")
    contact: str = Field(default="", description="whom to ask, or to tell about a document to be removed")

    def run(self, context: Context, inputs: list[Artifact]) -> Outcome:
        """Write the cards; the shards are only read."""
        shards = inputs[0]
        lineage = ancestors(shards)
        common = self._common(shards, lineage)
        cards = [card | common for card in shard_facts(shards.path)]
        for card in cards:
            for suffix, text in render(card).items():
                context.write_file(f"{card['shard']}.{suffix}", text.encode())
        context.write_file("index.html", template("index.html.j2").render(cards=cards, **common).encode())
        return Outcome(report={"n_cards": len(cards), "n_tokens": sum(c["n_tokens"] for c in cards)})

    def _common(self, shards: Artifact, lineage: list[Artifact]) -> dict[str, Any]:
        entries = [entry for artifact in lineage for entry in artifact.ledger]
        records = [record for artifact in lineage for record in artifact.manifest.nodes]
        return {
            "title": self.title or shards.directory,
            "description": self.description,
            "license": self.license,
            "contact": self.contact,
            "fingerprint": shards.fingerprint,
            "code_version": shards.manifest.code_version,
            "seed": shards.manifest.seed,
            "steps": [
                {
                    "node": r.node,
                    "stage": r.stage,
                    "version": r.version,
                    "fingerprint": r.fingerprint,
                    "config": r.config,
                }
                for r in records
            ],
            "ledger": [entry.to_json() for entry in entries],
            "funnel": funnel(entries),
            "reports": {a.directory: a.manifest.report for a in lineage if a.manifest.report},
        }


def ancestors(artifact: Artifact) -> list[Artifact]:
    """Return the artifact and all it was made from, each after its own inputs.

    Raises:
        ConfigError: one of them is no longer there.
    """
    seen: dict[str, Artifact] = {}

    def visit(one: Artifact) -> None:
        for item in one.manifest.inputs:
            if item.directory not in seen:
                visit(open_artifact(store.join(one.root, item.directory)))
        seen[one.directory] = one

    visit(artifact)
    return list(seen.values())


def shard_facts(path: str) -> list[dict[str, Any]]:
    """Return what each shard of a set holds: documents and tokens by source, lengths, checksum."""
    facts = []
    shards = open_shards(path)
    for number in range(len(shards)):
        shard = shards.shard(number)
        lengths = np.diff(shard.first_token)
        codes = shard.table.array("source")
        names = [shard.table.string("sources", i) for i in range(len(shard.table.array("sources_ends")))]
        docs = np.bincount(codes, minlength=len(names))
        tokens = np.bincount(codes, weights=lengths, minlength=len(names)).astype(np.int64)
        order = np.argsort(-tokens, kind="stable")
        sources = [
            {
                "source": names[int(i)],
                "documents": int(docs[i]),
                "tokens": int(tokens[i]),
                "share": float(tokens[i] / max(1, shard.n_tokens)),
            }
            for i in order
        ]
        deciles = np.percentile(lengths, [0, 10, 50, 90, 100]) if len(lengths) else np.zeros(5)
        facts.append(
            {
                "shard": shard.name,
                "n_documents": shard.n_documents,
                "n_tokens": shard.n_tokens,
                "dtype": str(shard.manifest["dtype"]),
                "tokenizer": shard.manifest["tokenizer"],
                "checksum": shard.manifest["files"]["bin"]["blocks_digest"],
                "sources": sources,
                "document_tokens": dict(zip(("min", "p10", "median", "p90", "max"), map(int, deciles), strict=True)),
            }
        )
    return facts


def funnel(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return for each step documents and bytes in and kept, and its reasons, largest first."""
    out = []
    for entry in entries:
        lost = [
            {"kind": kind, "reason": reason, "documents": count.docs, "bytes": count.n_bytes}
            for kind in ("rejected", "quarantined", "edited")
            for reason, count in getattr(entry, kind).items()
        ]
        lost.sort(key=lambda item: (-abs(item["documents"]), item["reason"]))
        out.append(
            {
                "stage": entry.stage,
                "in": entry.into.docs,
                "kept": entry.kept.docs,
                "bytes_in": entry.into.n_bytes,
                "bytes_kept": entry.kept.n_bytes,
                "lost": lost,
            }
        )
    return out


@cache
def template(name: str) -> Any:
    """Return a compiled template."""
    import jinja2

    loader = jinja2.FileSystemLoader(str(TEMPLATES))
    environment = jinja2.Environment(
        loader=loader, autoescape=name.endswith(".html.j2"), trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["n"] = lambda value: f"{value:,}"
    environment.filters["pct"] = lambda value: f"{value:.1%}"
    environment.globals["colours"] = COLOURS
    return environment.get_template(name)


def render(card: dict[str, Any]) -> dict[str, str]:
    """Return a card as ``json``, ``md`` and ``html`` text."""
    return {
        "json": json.dumps(card, indent=1, ensure_ascii=False),
        "md": template("card.md.j2").render(**card),
        "html": template("card.html.j2").render(**card),
    }
