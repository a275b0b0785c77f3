"""Step to document, document to steps, withdrawn documents, order certificates."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.packing import ArgumentError, Change, Loader, TokenSpec, write_shards
from gristmill.packing.certificate import Certificate, combine

SPEC = TokenSpec(1000, 0, "t")
S = 32


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    documents = [[i + 1] * (5 + i % 60) for i in range(150)]
    names = [f"doc-{i}" for i in range(150)]
    return write_shards(tmp_path_factory.mktemp("p"), documents, SPEC, ids=names, source="web", documents_per_shard=40)


def loader(root: Path, **options: Any) -> Loader:
    return Loader(root, **{"sequence_length": S, "batch_size": 4, "seed": 3, "prefetch": 0, **options})


@pytest.mark.parametrize("pack", ["concat", "best_fit", "document"])
def test_where_and_when_are_inverse(root: Path, pack: str) -> None:
    one = loader(root, pack=pack, skip=[(5, 9)])
    shown: dict[str, set[tuple[int, int]]] = {}
    for step, batch in enumerate(one):
        for slot in range(4):
            if batch["samples"][slot] < 0:
                continue
            trace = one.where(step, slot)
            assert trace.sample == batch["samples"][slot]
            for piece in trace.pieces:
                ids = batch["input_ids"][slot, piece.start : piece.start + piece.n_positions]
                number = int(piece.document.document_id.removeprefix("doc-"))
                assert set(ids.tolist()) <= {number + 1, 0}
                assert piece.document.source == "web"
                shown.setdefault(piece.document.document_id, set()).add((step, slot))
    for i in range(150):
        assert {(s.step, s.slot) for s in one.when(f"doc-{i}")} == shown.get(f"doc-{i}", set())
    assert one.when("no such document") == []


@pytest.mark.parametrize("pack", ["concat", "best_fit", "document"])
@pytest.mark.parametrize("length", [S, S // 4])
def test_each_segment_knows_its_document(root: Path, tmp_path: Path, pack: str, length: int) -> None:
    other = write_shards(tmp_path, [[900 + i] * 9 for i in range(30)], SPEC, ids=[f"other-{i}" for i in range(30)])
    one = Loader(
        {"a": root, "b": other}, sequence_length=S, batch_size=4, pack=pack, document_ids=True, prefetch=0,
        curriculum=[Change(0, sequence_length=length)],
    )  # fmt: skip
    seen = set()
    for batch in one:
        bounds, ids, labels = batch["cu_seqlens"].tolist(), batch["input_ids"].ravel(), batch["labels"].ravel()
        assert batch["document_ids"].shape == (len(bounds) - 1, 2)
        for (begin, end), (source, number) in zip(
            itertools.pairwise(bounds), batch["document_ids"].tolist(), strict=True
        ):
            if source < 0:
                assert number == -1
                assert (labels[begin:end] == -100).all()
                continue
            name = one.document(source, number).document_id
            seen.add(name)
            value = int(name.partition("-")[2]) + (900 if name.startswith("other") else 1)
            real = ids[begin:end][labels[begin:end] != -100]
            assert set(real.tolist()) <= {value, 0}
    assert len(seen) == 180


@pytest.mark.parametrize("pack", ["concat", "best_fit", "document"])
def test_withdrawn_documents_are_blanked_and_nothing_else_moves(root: Path, pack: str) -> None:
    plain, without = loader(root, pack=pack), loader(root, pack=pack, tombstones=["doc-7", "doc-40"])
    gone = {8, 41}
    changed = 0
    for a, b in zip(plain, without, strict=True):
        assert not np.isin(b["input_ids"], list(gone)).any()
        assert not np.isin(b["labels"], list(gone)).any()
        same = (a["input_ids"] == b["input_ids"]) | np.isin(a["input_ids"], list(gone))
        assert same.all()
        kept = ~np.isin(a["labels"], list(gone)) & (b["labels"] != -100)
        assert (a["labels"][kept] == b["labels"][kept]).all()
        lost = (a["labels"] != -100) & (b["labels"] == -100)
        changed += int(lost.sum())
        assert (a["cu_seqlens"] == b["cu_seqlens"]).all()
    own_first_token = 2 if pack == "concat" else 0
    assert changed == (5 + 7) + (5 + 40) + own_first_token


def test_withdrawals_survive_a_resume_at_another_size(root: Path) -> None:
    one = loader(root, tombstones=["doc-7"])
    next(one)
    state = json.loads(json.dumps(one.state_dict()))
    two = loader(root, batch_size=2, tombstones=["doc-9"])
    two.load_state_dict(state)
    assert all(not np.isin(b["input_ids"], [8, 10]).any() for b in two)
    with pytest.raises(ArgumentError, match="1 documents are in none of the sources"):
        loader(root, tombstones=["doc-7", "doc-999"])


def test_certificates_of_ranks_and_stretches_add_up_to_the_plans(root: Path) -> None:
    whole = loader(root, batch_size=6)
    for _ in whole:
        pass
    n_rows = whole.n_rows
    assert n_rows is not None
    expected = whole.expected_certificate(0, n_rows)
    assert whole.certificate() == expected
    assert expected.n_rows == n_rows
    parts = []
    state: dict[str, Any] = {}
    for world, steps in ((1, 2), (3, 2), (2, 99)):
        ranks = [loader(root, batch_size=None, global_batch_size=6, rank=r, world_size=world) for r in range(world)]
        for rank in ranks:
            if state:
                rank.load_state_dict(state)
            for _, _ in zip(range(steps), rank, strict=False):
                pass
            parts.append(rank.certificate())
        state = ranks[0].state_dict()
        assert combine(parts) == whole.expected_certificate(0, ranks[0].delivered)
    assert combine(parts) == expected
    assert Certificate.parse(str(expected)) == expected


def test_a_certificate_tells_orders_and_contents_apart(root: Path, tmp_path: Path) -> None:
    def run(where: Path, **options: Any) -> Certificate:
        one = loader(where, **options)
        for _ in one:
            pass
        return one.certificate()

    documents = [[i + 1] * (5 + i % 60) for i in range(150)]
    documents[3][1] = 999
    other = write_shards(tmp_path, documents, SPEC, documents_per_shard=40)
    assert run(root) == run(other) == run(root, prefetch=3, threads=2)
    assert run(root) != run(root, seed=4)
    assert run(root, certify_content=True) != run(other, certify_content=True)
    assert run(root, certify_content=True) == run(root, certify_content=True, batch_size=9)
    with pytest.raises(ArgumentError, match="not a certificate"):
        Certificate.parse("abc/1")
