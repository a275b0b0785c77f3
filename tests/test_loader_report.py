"""Preflight, spike forensics and skip files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.packing import ArgumentError, Loader, ShardFormatError, Shuffle, TokenSpec, write_shards
from gristmill.packing.cache import CHUNK_BYTES
from gristmill.packing.forensics import signals, spike_html, spike_report, spike_text
from gristmill.packing.report import describe_plan, plan_text
from gristmill.packing.skipfile import read_skip_file, write_skip_file

SPEC = TokenSpec(1000, 0, "t")


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    rng = np.random.default_rng(1)
    zipf = [np.minimum(rng.zipf(1.5, 100), 500) for _ in range(200)]
    loops = [*zipf[:99], np.tile([7, 8, 9], 33), *zipf[100:]]
    base = tmp_path_factory.mktemp("r")
    return {
        "web": write_shards(base / "web", loops, SPEC, ids=[f"web-{i}" for i in range(200)], source="crawl"),
        "code": write_shards(base / "code", zipf[:50], SPEC, ids=[f"code-{i}" for i in range(50)], source="repo"),
    }


def test_a_plan_counts_what_will_be_delivered(roots: dict[str, Path]) -> None:
    options: dict[str, Any] = {"sequence_length": 50, "batch_size": 4, "prefetch": 0}
    for extra in ({}, {"weights": {"web": 3, "code": 1}, "epochs": {"web": 1, "code": 0.5}}, {"pack": "best_fit"}):
        loader = Loader(roots, **options, **extra)
        facts = describe_plan(loader)
        seen = {"web": 0, "code": 0}
        steps = 0
        for batch in loader:
            steps += 1
            for t in batch["samples"]:
                if t >= 0:
                    seen[loader.where(int(t) // 4, int(t) % 4).source] += 1
        assert facts["steps"] == steps
        assert {s["name"]: s["rows"] for s in facts["sources"]} == seen
        assert facts["rows"] == sum(seen.values()) == loader.n_rows
        text = plan_text(facts)
        assert f"{steps:,} steps of 4 rows of 50" in text
        assert "first row, position 0:" in text


def test_part_of_a_run_is_described(roots: dict[str, Path]) -> None:
    loader = Loader(roots, sequence_length=50, batch_size=4, weights={"web": 3, "code": 1})
    with pytest.raises(ArgumentError, match="the run never ends"):
        describe_plan(loader)
    facts = describe_plan(loader, 100)
    assert {s["name"]: s["rows"] for s in facts["sources"]} == {"web": 300, "code": 100}
    assert facts["tokens"] == 20_000


def test_the_first_row_is_decoded_and_the_cache_is_as_large_as_the_shuffle_needs(roots: dict[str, Path]) -> None:
    options: dict[str, Any] = {"sequence_length": 50, "batch_size": 4}
    loader = Loader(roots["web"], **options)
    text = plan_text(describe_plan(loader), lambda ids: f"<{len(ids)} ids>")
    trace = loader.where(0, 0)
    for piece in trace.pieces:
        assert f"tokens of {piece.document.document_id!r} (crawl): '<{min(piece.n_positions, 32)} ids>'" in text
    stored = loader.plan.sources[0].shards.n_tokens * 2
    assert describe_plan(loader)["cache_bytes"] == stored
    big = Loader(roots["web"], shuffle=Shuffle("blocks", 2, 2), **options)
    assert describe_plan(big)["cache_bytes"] == min(stored, 3 * CHUNK_BYTES)


def test_the_row_with_the_loop_comes_first(roots: dict[str, Path]) -> None:
    loader = Loader(roots["web"], sequence_length=100, batch_size=4, pack="document", prefetch=0)
    shown = loader.when("web-99")[0]
    rows = spike_report(loader, shown.step, shown.step + 3)
    assert len(rows) == 12
    assert (rows[0].step, rows[0].slot) == (shown.step, shown.slot)
    assert rows[0].documents == ("web-99",)
    assert rows[0].worst in ("repetition", "entropy")
    assert rows[0].score > 3 > rows[-1].score
    assert "web-99" in spike_text(rows)
    page = spike_html(rows, lambda ids: "<script>" + str(len(ids)))
    assert "web-99" in page
    assert "<script>" not in page
    with pytest.raises(ArgumentError, match="no such steps"):
        spike_report(loader, 5, 5)


def test_signals_of_known_rows() -> None:
    ids = np.array([[1] * 16, list(range(16))])
    found = signals(ids, np.full(20, 4.0))
    assert found[:, 0].tolist() == [0.0, 4.0]
    assert found[:, 1].tolist() == [pytest.approx(8 / 9), 0.0]
    assert found[:, 2].tolist() == [4.0, 4.0]


def test_a_skip_file_is_added_to_and_obeyed(roots: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "skip.json"
    write_skip_file(path, [(2, 4)], ["web-99"])
    write_skip_file(path, [(7, 8), (2, 4)])
    assert read_skip_file(path) == ([(2, 4), (7, 8)], ["web-99"])
    loader = Loader(roots["web"], sequence_length=100, batch_size=1, skip=path)
    got = [int(b["samples"][0]) for b in loader]
    assert got[:6] == [0, 1, 4, 5, 6, 8]
    assert loader.state_dict()["tombstones"] == ["web-99"]
    path.write_text('{"magic": "gristmill-skip", "version": 2}')
    with pytest.raises(ShardFormatError, match="unknown format version"):
        Loader(roots["web"], sequence_length=100, batch_size=1, skip=path)
