"""What a run will do, before it is launched: steps, tokens by source, epochs, bytes and read requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gristmill.packing.balance import attention, imbalance
from gristmill.packing.cache import CHUNK_BYTES
from gristmill.packing.errors import ArgumentError, problem
from gristmill.packing.fit import PlannedLayout
from gristmill.packing.loader import Loader

SAMPLED_ROWS = 2048


def describe_plan(loader: Loader, n_steps: int | None = None) -> dict[str, Any]:
    """Return the facts of a run as plain data; reads manifests and, for read sizes, 2,048 rows' positions.

    Args:
        loader: any rank's loader.
        n_steps: steps that will be trained; the whole run by default.

    Raises:
        ArgumentError: the run never ends and `n_steps` is not given.
    """
    plan, batch = loader.plan, loader.global_batch_size
    n_rows = loader.n_rows
    if n_steps is None:
        if n_rows is None:
            raise ArgumentError(
                problem("the run never ends", where="describe_plan", expected="n_steps, or epochs=", got=None)
            )
        n_steps = -(-n_rows // batch)
    rows = n_steps * batch if n_rows is None else min(n_steps * batch, n_rows)
    samples = loader.sample_of(rows - 1) + 1 if rows else 0
    by_source = _rows_by_source(loader, samples)
    s = plan.sequence_length
    sources = []
    for source, count in zip(plan.sources, by_source, strict=True):
        shards = source.shards
        entry: dict[str, Any] = {
            "name": source.name,
            "rows": int(count),
            "tokens": int(count) * s,
            "share": float(count / max(1, samples)),
            "epochs": float(count / source.layout.n_items),
            "items": source.layout.n_items,
            "tokens_stored": shards.n_tokens,
            "documents": shards.n_documents,
            "shards": len(shards),
            "bytes_stored": shards.n_tokens * shards.dtype.itemsize,
        }
        if isinstance(source.layout, PlannedLayout):
            counts = source.layout.plan.statistics
            entry |= {"fill": counts.fill, "documents_cut": counts.n_cut, "without_targets": counts.n_without_targets}
            costs = attention(source.layout.plan)
            entry["attention"] = {"mean": costs.mean, "largest": costs.largest, "spread": costs.spread}
        sources.append(entry)
    reads = _reads_per_row(loader, samples)
    width = int(plan.sources[0].shards.dtype.itemsize)
    return {
        "plan": plan.hash,
        "pack": plan.pack,
        "sequence_length": s,
        "global_batch_size": batch,
        "world_size": loader.world_size,
        "steps": n_steps,
        "rows": rows,
        "tokens": rows * s,
        "sources": sources,
        "segments": [
            {"start": seg.start, "parts": dict(zip(plan.order.names, seg.parts, strict=True))}
            for seg in (plan.order.segments(max(samples, 1)) if plan.order.mixed else [])
        ],
        "lengths": [{"start": start, "sequence_length": length} for start, length in plan.lengths.changes],
        "attention": _attention(loader, rows // batch) if plan.pack != "concat" else None,
        "reads": round(rows * reads),
        "bytes_read": rows * (s + 1) * width,
        "cache_bytes": _cache_bytes(loader),
        "bytes_a_step_and_rank": batch * (s + 1) * width // loader.world_size,
        "first_row": _first_row(loader) if rows else None,
    }


def plan_text(facts: dict[str, Any], decode: Callable[[Sequence[int]], str] | None = None) -> str:
    """Return `describe_plan`'s facts for a terminal; `decode` turns the ids of the first row into text."""
    lines = [
        f"plan {facts['plan'][:8]}: {facts['steps']:,} steps of {facts['global_batch_size']:,} rows of "
        f"{facts['sequence_length']:,} = {facts['tokens']:,} tokens ({facts['pack']}, {facts['world_size']} ranks)",
        f"reads {_size(facts['bytes_read'])} in {facts['reads']:,} requests; "
        f"{_size(facts['bytes_a_step_and_rank'])} a step and rank",
        f"a local cache of {_size(facts['cache_bytes'])} fetches nothing twice within an epoch",
        f"{'source':<20} {'rows':>14} {'share':>7} {'epochs':>8} {'documents':>14} {'stored':>10}",
    ]
    for source in facts["sources"]:
        fill = f"  fill {source['fill']:.2%}, {source['documents_cut']:,} cut" if "fill" in source else ""
        lines.append(
            f"{source['name'][:20]:<20} {source['rows']:>14,} {source['share']:>7.2%} {source['epochs']:>8.3f} "
            f"{source['documents']:>14,} {_size(source['bytes_stored']):>10}{fill}"
        )
    if facts["attention"]:
        steps, ranks = facts["attention"]["steps"], facts["attention"]["ranks"]
        lines.append(
            f"attention (sum of length squared): steps deviate by {steps:.1%}, "
            f"the dearest rank of a step is {ranks:.1%} above the mean"
        )
    for segment in facts["segments"]:
        parts = ", ".join(f"{name} {part}" for name, part in segment["parts"].items() if part)
        lines.append(f"from row {segment['start']:,}: {parts}")
    lines += [f"from row {change['start']:,}: cut to {change['sequence_length']:,}" for change in facts["lengths"]]
    if facts["first_row"]:
        lines += [
            f"first row, position {piece['start']:,}: {piece['positions']:,} tokens of {piece['document']!r} "
            f"({piece['source']}): "
            + (f"{decode(piece['ids'])!r}" if decode else f"{', '.join(map(str, piece['ids'][:8]))}, ...")
            for piece in facts["first_row"]
        ]
    return "\n".join(lines)


def _rows_by_source(loader: Loader, samples: int) -> Any:
    order = loader.plan.order
    if order.mixed:
        return order.counts(samples) if samples else np.zeros(len(order.names), np.int64)
    n_items = np.array(order.n_items, np.int64)
    epochs, rest = divmod(samples, int(n_items.sum()))
    counts = epochs * n_items
    if rest:
        # The first `rest` places of a shuffled epoch: exact for one source, counted for several.
        if len(n_items) == 1:
            counts = counts + rest
        else:
            for at in range(samples - rest, samples, 1 << 20):
                source, _, _ = order.locate(np.arange(at, min(at + (1 << 20), samples), dtype=np.int64))
                counts = counts + np.bincount(source, minlength=len(n_items))
    return counts


def _reads_per_row(loader: Loader, samples: int) -> float:
    if not samples:
        return 0.0
    some = np.unique(np.linspace(0, samples - 1, min(SAMPLED_ROWS, samples)).astype(np.int64))
    plan = loader.plan
    if plan.pack == "concat":
        return 1.0
    return sum(len(rows.first_P) for rows in plan.resolve(some).groups.values()) / len(some)


def _attention(loader: Loader, n_steps: int) -> dict[str, float] | None:
    """How even the attention cost of steps and ranks is, over the first full steps."""
    n_steps = min(n_steps, max(1, SAMPLED_ROWS // loader.global_batch_size))
    if not n_steps:
        return None
    costs = loader.plan.costs(loader.samples_of_slots(0, n_steps)).reshape(n_steps, -1)
    bounds = np.arange(loader.world_size + 1, dtype=np.int64) * loader.global_batch_size // loader.world_size
    steps, ranks = imbalance(costs, bounds)
    return {"steps": steps, "ranks": ranks}


def _cache_bytes(loader: Loader) -> int:
    """Bytes of `.bin` that the order comes back to within an epoch, on one machine that reads for all ranks.

    A full shuffle comes back to every chunk until the epoch's end; blocks, to those of one window; no shuffle, to one.
    """
    plan, shuffle = loader.plan, loader.plan.order.shuffle
    stored = int(sum(source.shards.n_tokens * source.shards.dtype.itemsize for source in plan.sources))
    width = int(plan.sources[0].shards.dtype.itemsize)
    chunks = CHUNK_BYTES * len(plan.sources)
    if shuffle.kind == "none" and plan.pack == "concat":
        return min(stored, chunks)
    if shuffle.kind == "blocks" and plan.pack == "concat":
        # A block that is smaller than a chunk still brings the whole chunk.
        block = max(shuffle.block_items * plan.sequence_length * width, CHUNK_BYTES)
        return min(stored, shuffle.window_blocks * block * len(plan.sources) + chunks)
    return stored


def _first_row(loader: Loader) -> list[dict[str, Any]]:
    trace = loader.where(0, 0)
    shards = {source.name: source.shards for source in loader.plan.sources}[trace.source]
    out = []
    for piece in trace.pieces[:4]:
        number = next(i for i in range(len(shards)) if shards.shard(i).name == piece.document.shard)
        tokens = shards.shard(number).document(piece.document.document)[piece.document_token :][
            : min(piece.n_positions, 32)
        ]
        out.append(
            {
                "start": piece.start,
                "positions": piece.n_positions,
                "document": piece.document.document_id,
                "source": piece.document.source,
                "ids": tokens.tolist(),
            }
        )
    return out


def _size(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} PB"
