"""Several steps are filled together: nobody sees it in what arrives, in its order, or in when an error is raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.packing import Loader, ShardCorruptError, TokenSpec, write_shards

S = 16
MANY = {"prefetch": 16, "threads": 2}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    documents = [rng.integers(1, 1000, int(n)) for n in rng.integers(1, 90, 2000)]
    folder = tmp_path_factory.mktemp("together") / "set"
    return write_shards(folder, documents, TokenSpec(1000, 0, "t"), documents_per_shard=600)


def loader(root: Path, at_once: int, **options: Any) -> Loader:
    made = Loader(root, **{"sequence_length": S, "batch_size": 5, "seed": 2, "prefetch": 0, **options})
    made._at_once = at_once
    return made


def taken(one: Loader, n: int = 10**9) -> list[dict[str, Any]]:
    """Return copies of the next `n` batches, with the certificate after each."""
    out = []
    for batch, _ in zip(one, range(n), strict=False):
        mark = one.certificate()
        out.append({name: np.copy(value).tolist() for name, value in batch.items()} | {"mark": (mark.low, mark.high)})
    return out


@pytest.mark.parametrize(
    "options",
    [
        {},
        MANY,
        {"pack": "best_fit", "loss_mask": True},
        {"pack": "document", "dtype": np.int64},
        {"boundary_targets": False, "document_ids": True, "certify_content": True, **MANY},
        {"skip": [(7, 30), (500, 900)], "tombstones": ["3", "40"], "drop_last": True},
        {"global_batch_size": 23, "batch_size": None, "rank": 1, "world_size": 3},
    ],
)
def test_steps_are_the_same_however_many_are_filled_together(root: Path, options: dict[str, Any]) -> None:
    alone = taken(loader(root, 1, **{**options, "prefetch": 0}))
    assert len(alone) > 100
    for at_once in (2, 7, 8):
        assert taken(loader(root, at_once, **options)) == alone


@pytest.mark.parametrize("prefetch", [{}, MANY])
def test_the_position_is_that_of_the_last_step_taken(root: Path, prefetch: dict[str, Any]) -> None:
    every = [batch["samples"] for batch in taken(loader(root, 1))]
    one = loader(root, 8, **prefetch)
    for step in range(30):
        assert next(one)["samples"].tolist() == every[step]
        other = loader(root, 8, **prefetch)
        other.load_state_dict(one.state_dict())
        assert next(other)["samples"].tolist() == every[step + 1]
        other.close()
    one.skip([(one.delivered, one.delivered + 10)])  # what was filled ahead is not delivered any more
    assert next(one)["samples"].tolist() == every[32]
    one.close()


@pytest.mark.parametrize("prefetch", [{}, MANY])
def test_what_is_kept_does_not_change_under_its_owner(root: Path, prefetch: dict[str, Any]) -> None:
    kept, copies = [], []
    for step, batch in enumerate(loader(root, 8, **prefetch)):
        if step % 11 == 0:  # one of those that were filled together
            kept.append(batch["labels"])
            copies.append(batch["labels"].copy())
    assert all((a == b).all() for a, b in zip(kept, copies, strict=True))


@pytest.mark.parametrize("prefetch", [{}, MANY])
def test_an_error_comes_in_its_turn(root: Path, tmp_path: Path, prefetch: dict[str, Any]) -> None:
    documents = [np.full(4 * S, 1 + i % 900) for i in range(4000)]
    folder = write_shards(tmp_path / "set", documents, TokenSpec(1000, 0, "t"), documents_per_shard=4000)
    (path,) = folder.glob("*.bin")
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        stream.write(b"\xff\xff")

    def until_it_fails(at_once: int, **options: Any) -> list[int]:
        one, seen = loader(folder, at_once, shuffle="none", batch_size=3, **options), []
        with pytest.raises(ShardCorruptError, match="checksum of bytes"):
            for batch in one:
                seen += batch["samples"].tolist()
        one.close()
        return seen

    alone = until_it_fails(1)
    assert len(alone) > 1000
    assert until_it_fails(8, **prefetch) == alone


def test_one_step_that_crashes_does_not_harm_those_beside_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = taken(loader(root, 1))
    one, failed, several = loader(root, 4, **MANY), set(), []
    real = one._make

    def flaky(made: int, n: int) -> Any:
        several.append(n)
        for step in range(made, made + n):
            if step % 9 == 5 and (step, n > 1) not in failed:
                failed.add((step, n > 1))
                raise RuntimeError("lost")
        return real(made, n)

    monkeypatch.setattr(one, "_make", flaky)
    assert taken(one) == alone
    assert max(several) == 4
    assert len(failed) > 20
