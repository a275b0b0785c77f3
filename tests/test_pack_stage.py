"""The pack stage: the same shards from any files, splits and attempts; nothing lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_jsonl

pytest.importorskip("pyspark")

from gristmill.packing import TokenSpec, open_shards
from gristmill.stages.artifact import Artifact, FileEntry, Manifest
from gristmill.stages.context import Context
from gristmill.stages.documents import plan_splits, union_schema
from gristmill.stages.errors import ConfigError
from gristmill.stages.pack import EncodeJob, Pack, encode_split, shard_of, with_eos, write_shard
from gristmill.stages.progress import Counters
from gristmill.tokenizer.encode import load_encoder

EOS = "<|endoftext|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A byte-level tokenizer artifact with a few merges and an end-of-text token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the cat sat on the mat and the dog"] * 3, trainer)
    root = tmp_path_factory.mktemp("tok")
    (root / "tokenizer-1").mkdir()
    path = root / "tokenizer-1" / "tokenizer.json"
    made.save(str(path))
    entry = FileEntry(path="tokenizer-1/tokenizer.json", n_bytes=path.stat().st_size, xxh3="0" * 16)
    manifest = Manifest(kind="tokenizer", fingerprint="f" * 32, nodes=(), inputs=(), files=(entry,))
    return Artifact(str(root), "tokenizer-1", manifest)


def rows(n: int) -> list[dict[str, Any]]:
    chance = np.random.default_rng(4)
    words = ["the", "cat", "sat", "mat", "狗", "naïve", EOS, "\n"]
    out = []
    for i in range(n):
        text = " ".join(chance.choice(words, int(chance.integers(0, 30))))
        out.append({"id": f"doc-{i}", "text": text, "url": f"https://x.org/{i}"})
    return out


@pytest.fixture
def pack(spark: Any, tokenizer: Artifact, tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """Run Pack on document artifacts and return the folder and the outcome."""

    def go(documents: list[Artifact], name: str = "pack-1", **options: Any) -> tuple[Path, Any]:
        folder = tmp_path / name
        context = Context(spark, str(tmp_path), str(folder), "pack", 7, 2, Counters("pack"))
        outcome = Pack(**options).run(context, [*documents, tokenizer])
        for entry in outcome.ledger:
            entry.check()
        outcome.files += context.files
        return folder, outcome

    return go


def ingest(run_pipeline: Callable[..., Any], tmp_path: Path, data: list[dict[str, Any]], n_files: int) -> Artifact:
    folder = tmp_path / f"in{n_files}"
    order = list(range(len(data)))
    if n_files > 1:
        np.random.default_rng(n_files).shuffle(order)
    for number in range(n_files):
        write_jsonl(folder / f"{number:03d}.jsonl", [data[i] for i in order[number::n_files]])
    made = run_pipeline(
        {"web": {"stage": "ingest", "source": "web", "columns": {"url": "string"}, "path": [str(folder / "*.jsonl")]}},
        tmp_path / f"out{n_files}",
    )
    return made["web"]  # type: ignore[no-any-return]


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and "quarantined" not in str(p)}


def test_shards_hold_every_document_once_with_its_origin(
    pack: Callable[..., Any], run_pipeline: Callable[..., Any], tokenizer: Artifact, tmp_path: Path
) -> None:
    data = rows(400)
    folder, outcome = pack([ingest(run_pipeline, tmp_path, data, 3)], shard_text_bytes=4096)
    shards = open_shards(folder, verify="always")
    shards.verify()
    encoder = load_encoder(tokenizer.path_of("tokenizer.json"))
    full = {row["id"]: row for row in data if row["text"]}
    assert len(shards) == -(-sum(len(r["text"].encode()) for r in full.values()) // 4096)
    seen = []
    for number in range(shards.n_documents):
        place = shards.provenance(number)
        row = full[place.document_id]
        seen.append(place.document_id)
        assert place.url == row["url"]
        assert place.source == "web"
        tokens = shards.document(number)
        assert tokens[-1] == encoder.eos_id
        assert encoder.eos_id not in tokens[:-1]
        assert encoder.decode(tokens[:-1]).decode() == row["text"]
    assert sorted(seen) == sorted(full)
    assert seen != sorted(seen)
    n_bytes = [shards.shard(i).table.array("n_bytes").sum() for i in range(len(shards))]
    assert sum(n_bytes) == sum(len(r["text"].encode()) for r in full.values())
    report = outcome.report
    assert report["n_tokens"] == shards.n_tokens == sum(report["tokens_by_source"].values())
    assert report["n_eos"] == report["n_documents"] == len(full)
    entry = outcome.ledger[0]
    assert entry.kept.docs == len(full)
    assert entry.into.docs - entry.kept.docs == sum(c.docs for c in entry.quarantined.values())
    assert entry.sources["web"] == [entry.into.docs, entry.kept.docs]


def test_files_and_their_order_do_not_change_a_byte(
    pack: Callable[..., Any], run_pipeline: Callable[..., Any], tmp_path: Path
) -> None:
    data = rows(300)
    made = [
        contents(pack([ingest(run_pipeline, tmp_path, data, n)], f"pack-{n}", shard_text_bytes=6000)[0])
        for n in (1, 7, 30)
    ]
    assert len(made[0]) == 4 * sum(name.endswith(".bin") for name in made[0]) + 1 > 5
    assert made[0] == made[1] == made[2]


def test_every_file_left_is_listed_with_its_size(
    pack: Callable[..., Any], run_pipeline: Callable[..., Any], tmp_path: Path
) -> None:
    folder, outcome = pack([ingest(run_pipeline, tmp_path, rows(50), 2)], shard_text_bytes=2000)
    listed = {f.path: f.n_bytes for f in [*outcome.files, *outcome.quarantined]}
    assert {str(p): p.stat().st_size for p in folder.rglob("*") if p.is_file()} == listed


def test_repeated_and_killed_attempts_leave_the_same_shards(
    run_pipeline: Callable[..., Any], tokenizer: Artifact, tmp_path: Path
) -> None:
    documents = ingest(run_pipeline, tmp_path, rows(200), 3)
    path = tokenizer.path_of("tokenizer.json")
    spec = TokenSpec(load_encoder(path).vocab_size, load_encoder(path).eos_id, "t")
    columns = union_schema([documents], ["id", "text", "source", "n_bytes", "content_hash", "url"])

    class Nothing:
        def add(self, *_: int) -> None: ...

    made = []
    for name in ("once", "again"):
        directory = str(tmp_path / name)
        job = EncodeJob(directory, "pack", path, spec, 3, 7, columns)
        results = []
        for split in plan_splits([documents], 2):
            if name == "again":
                encode_split(job, Nothing(), split)  # type: ignore[arg-type]
            results.append(encode_split(job, Nothing(), split))  # type: ignore[arg-type]
        if name == "again":
            results.reverse()
        for shard in range(3):
            ranges = [(r["path"], o, n) for r in results for s, o, n in r["ranges"] if s == shard]
            left = tmp_path / name / f".shard-0000{shard}.bin.tmp-dead"
            if name == "again":
                left.write_bytes(b"half a shard")
            for _ in range(2):
                write_shard(directory, spec, (shard, ranges))
        made.append({p.name: p.read_bytes() for p in (tmp_path / name).glob("shard-*")})
    assert made[0] == made[1]
    assert len(made[0]) == 12


def test_equal_ids_are_ordered_by_content(
    pack: Callable[..., Any], run_pipeline: Callable[..., Any], tmp_path: Path
) -> None:
    data = [{"id": "same", "text": f"text {i % 7}", "url": f"u{i}"} for i in range(40)]
    one = contents(pack([ingest(run_pipeline, tmp_path, data, 1)], "pack-1")[0])
    many = contents(pack([ingest(run_pipeline, tmp_path, data, 5)], "pack-5")[0])
    assert one == many


def test_no_documents_make_an_empty_but_valid_set(
    pack: Callable[..., Any], run_pipeline: Callable[..., Any], tmp_path: Path
) -> None:
    folder, outcome = pack([])
    assert open_shards(folder).n_tokens == 0
    assert outcome.report["n_shards"] == 1


def test_a_tokenizer_without_end_of_text_is_refused(tokenizer: Artifact, tmp_path: Path) -> None:
    raw = json.loads(tokenizer.read_bytes("tokenizer.json"))
    del raw["model"]["vocab"][EOS]
    raw["added_tokens"] = []
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match="names no end-of-text token; give `eos_id`"):
        Pack().token_spec(str(path), path.read_bytes())
    assert Pack(append_eos=False).token_spec(str(path), path.read_bytes()).eos_policy == "none"
    with pytest.raises(ConfigError, match="ids are below .*, got 5,000"):
        Pack(eos_id=5000).token_spec(tokenizer.path_of("tokenizer.json"), b"")


def test_eos_goes_after_every_document() -> None:
    spec = TokenSpec(10, 9, "t")
    tokens, offsets = with_eos(np.array([1, 2, 3], np.uint32), np.array([0, 2, 2, 3]), spec)
    assert tokens.tolist() == [1, 2, 9, 9, 3, 9]
    assert offsets.tolist() == [0, 3, 4, 6]


def test_shards_are_equal_ranges_of_the_key() -> None:
    keys = np.array([0, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    assert shard_of(keys, 2).tolist() == [0, 0, 1, 1]
    assert shard_of(keys, 1).tolist() == [0, 0, 0, 0]
