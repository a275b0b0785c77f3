"""The engine: ledgers balance, runs resume, nothing half-written is read, results do not depend on the layout."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import yaml
from conftest import documents, table_rows, write_jsonl

from gristmill.stages import store
from gristmill.stages.artifact import open_artifact, read_mask, write_mask
from gristmill.stages.base import BatchStage, replace_columns
from gristmill.stages.documents import BASE_COLUMNS, plan_splits, read_split, slice_by_bytes
from gristmill.stages.errors import ConfigError, RunError
from gristmill.stages.ledger import Entry
from gristmill.stages.passes import PassPlan, output_schema, run_split

Run = Callable[..., dict[str, Any]]
WORDS = [
    "the",
    "mill",
    "turns",
    "grain",
    "into",
    "flour",
    "and",
    "the",
    "water",
    "turns",
    "the",
    "mill",
    "while",
    "the",
    "miller",
    "weighs",
    "chaff",
]


def corpus(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences with exact and near duplicates, addresses, Chinese, and a few short ones."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for i in range(n):
        if i % 10 == 3 and rows:
            text = rows[rng.randrange(len(rows))]["text"]
        elif i % 10 == 4 and rows:
            text = rows[rng.randrange(len(rows))]["text"] + " changed"
        elif i % 10 == 5:
            text = (
                "".join(rng.choice("水磨把谷物变成面粉称量谷壳的人") for _ in range(80))
                + "。"
                + f"邮箱user{i}@example.cn"
            )
        else:
            words = [rng.choice(WORDS) + (str(rng.randrange(99)) if rng.random() < 0.3 else "") for _ in range(60)]
            text = " ".join(words) + f". Write to user{i}@example.org."
        rows.append({"id": f"doc-{i:05d}", "text": text})
    return rows


class Shout(BatchStage):
    """A stage for these tests: drops texts with a stop word, removes vowels, fails on a poisoned text."""

    name: ClassVar[str] = "shout"
    summary: ClassVar[str] = "test"

    def writes(self) -> tuple[pa.Field, ...]:
        return (pa.field("text", pa.large_string()), pa.field("shout_cut", pa.int64()))

    def edits(self) -> dict[str, str]:
        return {"vowels": "shout_cut"}

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        old = batch.column("text").to_pylist()
        if any("poison" in text for text in old):
            raise ValueError("poisoned")
        new = [text.replace("a", "").replace("é", "e") for text in old]
        cut = [len(a.encode()) - len(b.encode()) for a, b in zip(old, new, strict=True)]
        return replace_columns(
            batch,
            {
                "text": pa.array(new, pa.large_string()),
                "shout_cut": pa.array(cut, pa.int64()),
                "reason": pa.array(["stop" if "stop" in text else None for text in old], pa.string()),
                "reason_value": pa.nulls(len(old), pa.float64()),
                "reason_threshold": pa.nulls(len(old), pa.float64()),
            },
        )


class Split:
    key = "one"


def batch_of(texts: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([f"d{i}" for i in range(len(texts))]),
            pa.array(texts, pa.large_string()),
            pa.array(["s"] * len(texts)),
            pa.array([len(t.encode()) for t in texts], pa.int64()),
            pa.array([b"0" * 16] * len(texts), pa.binary(16)),
        ],
        schema=pa.schema(BASE_COLUMNS),
    )


def one_pass(tmp_path: Path, stage: BatchStage, texts: list[str]) -> dict[str, Any]:
    schema = pa.schema(BASE_COLUMNS)
    plan = PassPlan(
        str(tmp_path),
        lambda split, sink: iter([batch_of(texts)]),
        (("n", stage),),
        schema,
        output_schema(schema, stage),
    )
    return run_split(plan, Split())


def test_a_pass_books_every_byte_and_isolates_the_row_that_fails(tmp_path: Path) -> None:
    texts = ["banana", "stop it", "café a", "poison", "", "plain"]
    record = one_pass(tmp_path, Shout(), texts)
    entry = Entry.from_json(record["entries"][0])
    entry.check()
    assert entry.into.docs == 6
    assert {k: v.docs for k, v in entry.rejected.items()} == {"stop": 1}
    assert {k: (v.docs, v.n_bytes) for k, v in entry.quarantined.items()} == {"stage_error": (1, 6)}
    assert {k: (v.docs, v.n_bytes) for k, v in entry.edited.items()} == {"vowels": (3, 3 + 1 + 2 + 1)}
    import pyarrow.parquet as pq

    kept = pq.read_table(record["kept"][0]["path"]).to_pylist()
    assert [(r["id"], r["text"], r["n_bytes"]) for r in kept] == [
        ("d0", "bnn", 3),
        ("d2", "cfe ", 4),
        ("d4", "", 0),
        ("d5", "plin", 4),
    ]
    (bad,) = pq.read_table(record["quarantined"][0]["path"]).to_pylist()
    assert (bad["id"], bad["reason"], bad["prefix"]) == ("d3", "stage_error", b"poison")
    assert "ValueError: poisoned" in bad["detail"]


def test_a_stage_that_miscounts_its_edits_fails_the_run(tmp_path: Path) -> None:
    class Liar(Shout):
        def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            out = super().transform(batch)
            return replace_columns(out, {"shout_cut": pa.array([0] * out.num_rows, pa.int64())})

    record = one_pass(tmp_path, Liar(), ["banana"])
    with pytest.raises(RunError, match="does not balance"):
        Entry.from_json(record["entries"][0]).check()


def test_a_stage_that_breaks_its_contract_is_named(tmp_path: Path) -> None:
    class Short(Shout):
        def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            return super().transform(batch).slice(1)

    class Forgetful(Shout):
        def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            return super().transform(batch).drop_columns(["shout_cut"])

    with pytest.raises(RunError, match="returned 1 rows for 2"):
        one_pass(tmp_path, Short(), ["a", "b"])
    with pytest.raises(RunError, match="must write column 'shout_cut' as int64, got nothing"):
        one_pass(tmp_path, Forgetful(), ["a"])


def test_guard_rates_stop_a_run_that_loses_a_source() -> None:
    entry = Entry("dedup")
    entry.into.add(2000, 10)
    entry.kept.add(500, 10)
    entry.rejected["x"] = type(entry.kept)(1500, 0)
    entry.count_source("web", 2000, 500)
    entry.check(0.75)
    with pytest.raises(RunError, match=r"1,500 of 2,000 documents of source 'web'.*set dedup.max_removed higher"):
        entry.check(0.74)


def test_a_stage_that_fails_on_many_documents_fails_the_run_with_the_first_error(tmp_path: Path) -> None:
    from gristmill.pipelines.commit import _check_stage_errors
    from gristmill.stages.context import Context, from_records
    from gristmill.stages.progress import Counters

    record = one_pass(tmp_path, Shout(), ["fine"] * 90 + ["poison"] * 10)
    outcome = from_records([record], ["n"], pa.schema([]))
    context = Context(None, str(tmp_path), str(tmp_path), "n", 0, 1, Counters("n"))
    with pytest.raises(RunError, match="n: the stage failed on 10 of 100 documents. First: document d90: ValueError"):
        _check_stage_errors(outcome.ledger[0], context, outcome)
    assert not (tmp_path / "_tasks").exists()
    record = one_pass(tmp_path, Shout(), ["fine"] * 91 + ["poison"] * 9)
    outcome = from_records([record], ["n"], pa.schema([]))
    _check_stage_errors(outcome.ledger[0], context, outcome)


def test_masks_survive_the_round_trip(tmp_path: Path) -> None:
    import numpy as np

    mask = np.random.default_rng(0).random(1003) < 0.5
    write_mask(str(tmp_path / "m.bits"), mask)
    assert (read_mask(str(tmp_path / "m.bits"), 1003) == mask).all()
    with pytest.raises(RunError, match="has 1,009 bytes, got 126"):
        read_mask(str(tmp_path / "m.bits"), 1009 * 8)


def test_batches_are_cut_by_bytes_and_one_large_document_stands_alone() -> None:
    batch = batch_of(["x" * 10, "y" * 50, "z" * 5, "w" * 5, "v" * 5])
    pieces = list(slice_by_bytes(batch, 12))
    assert [p.column("text").to_pylist() for p in pieces] == [["x" * 10], ["y" * 50], ["z" * 5, "w" * 5], ["v" * 5]]


PIPELINE: dict[str, Any] = {
    "pii": {},
    "exact_dedup": {},
    "fuzzy_dedup": {},
    "tokenizer": {"vocab_size": 400},
    "pack": {},
}


def pipeline(path: Path, **ingest: Any) -> dict[str, Any]:
    return {"web": {"stage": "ingest", "path": str(path), "source": "web", **ingest}, **PIPELINE}


def shard_files(root: Path) -> dict[str, bytes]:
    folder = next(root.glob("pack-*"))
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.suffix in (".bin", ".idx", ".provenance")}


def final(root: Path, made: dict[str, Any]) -> tuple[list[str], bytes, dict[str, bytes]]:
    ids = [d["id"] for d in documents(made["fuzzy_dedup"])]
    return ids, made["tokenizer"].read_bytes("tokenizer.json"), shard_files(root)


def test_the_ledger_of_a_whole_pipeline_balances_and_each_stage_takes_what_the_last_kept(
    run_pipeline: Run, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", corpus(400))
    made = run_pipeline(pipeline(tmp_path / "in"), tmp_path / "out")
    entries = [e for a in made.values() for e in a.ledger]
    assert [e.stage for e in entries][:4] == ["web", "pii", "exact_dedup", "fuzzy_dedup"]
    for before, after in itertools.pairwise(entries[:4]):
        assert (after.into.docs, after.into.n_bytes) == (before.kept.docs, before.kept.n_bytes)
    assert made["exact_dedup"].ledger[0].rejected["exact_duplicate"].docs >= 20
    for row in table_rows(made["exact_dedup"], "rejected"):
        assert row["kept_id"] in {d["id"] for d in documents(made["exact_dedup"])}
    assert made["exact_dedup"].n_docs == len(documents(made["exact_dedup"]))
    assert made["exact_dedup"].n_bytes == sum(len(d["text"].encode()) for d in documents(made["exact_dedup"]))


def test_a_second_run_does_no_work_and_a_change_reruns_only_what_follows(run_pipeline: Run, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", corpus(60))
    stages = {"web": {"stage": "ingest", "path": str(tmp_path / "in")}, "pii": {}, "exact_dedup": {}}
    first = run_pipeline(stages, tmp_path / "out")
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*") if p.is_file()}
    second = run_pipeline(stages, tmp_path / "out")
    assert {n: a.fingerprint for n, a in first.items()} == {n: a.fingerprint for n, a in second.items()}
    assert stamps == {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*") if p.is_file()}
    changed = run_pipeline({**stages, "pii": {"max_removed": 0.5}}, tmp_path / "out")
    assert changed["exact_dedup"].fingerprint == first["exact_dedup"].fingerprint


@pytest.mark.parametrize(("files", "partitions"), [(7, 3), (64, 5)])
def test_file_layout_and_order_change_nothing(run_pipeline: Run, tmp_path: Path, files: int, partitions: int) -> None:
    rows = corpus(300)
    write_jsonl(tmp_path / "one" / "a.jsonl", rows)
    shuffled = rows[:]
    random.Random(1).shuffle(shuffled)
    for k in range(files):
        write_jsonl(tmp_path / "many" / f"{k * 37 % files:03d}.jsonl", shuffled[k::files])
    one = final(tmp_path / "o1", run_pipeline(pipeline(tmp_path / "one"), tmp_path / "o1"))
    many = final(tmp_path / "o2", run_pipeline(pipeline(tmp_path / "many", split_bytes=2048), tmp_path / "o2"))
    assert one[0] == many[0]
    assert one[1] == many[1]
    assert one[2] == many[2]


def test_fused_and_separate_passes_give_the_same_artifact(run_pipeline: Run, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", corpus(200))
    stages = {
        "web": {"stage": "ingest", "path": str(tmp_path / "in")},
        "first": {"stage": "pii", "ip": "off"},
        "second": {"stage": "heuristics", "max_removed": 1.0},
    }
    fused = run_pipeline(stages, tmp_path / "fused")
    apart = run_pipeline(stages, tmp_path / "apart", fuse=False)
    assert list(fused) == ["web", "second"]
    assert list(apart) == ["web", "first", "second"]
    assert fused["second"].fingerprint == apart["second"].fingerprint
    assert documents(fused["second"]) == documents(apart["second"])
    assert fused["second"].ledger[0] == apart["first"].ledger[0]
    assert fused["second"].ledger[1] == apart["second"].ledger[0]


def test_splits_that_were_done_before_a_kill_are_not_done_again(tmp_path: Path) -> None:
    from gristmill.stages.context import _finished

    one_pass(tmp_path, Shout(), ["banana"])
    done = _finished(str(tmp_path))
    assert set(done) == {"one"}
    Path(done["one"]["kept"][0]["path"]).write_bytes(b"cut short")
    assert _finished(str(tmp_path)) == {}
    (tmp_path / "_tasks" / "one.json").write_text("{half")
    assert _finished(str(tmp_path)) == {}


def test_an_artifact_without_manifest_is_not_read_and_its_remains_are_swept(run_pipeline: Run, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", corpus(30))
    stages = {"web": {"stage": "ingest", "path": str(tmp_path / "in")}}
    made = run_pipeline(stages, tmp_path / "out")["web"]
    (Path(made.path) / "manifest.json").unlink()
    (Path(made.path) / "kept" / "half-written.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="no committed artifact"):
        open_artifact(made.path)
    again = run_pipeline(stages, tmp_path / "out")["web"]
    assert again.manifest == made.manifest
    assert sorted(p.name for p in (Path(made.path) / "kept").iterdir()) == ["part-00000.parquet"]


def test_a_missing_parent_is_named(run_pipeline: Run, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", corpus(30))
    made = run_pipeline({"web": {"stage": "ingest", "path": str(tmp_path / "in")}}, tmp_path / "out")["web"]
    (Path(made.path) / "kept" / "part-00000.parquet").unlink()
    with pytest.raises(RunError, match=r"part-00000.parquet.*needs the ones it was made from"):
        list(read_split(plan_splits([made], 1)[0], made.schema))


def test_two_runs_do_not_share_an_output_directory(run_pipeline: Run, tmp_path: Path) -> None:
    import fcntl

    write_jsonl(tmp_path / "in" / "a.jsonl", corpus(10))
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another run is using this output directory"):
            run_pipeline({"web": {"stage": "ingest", "path": str(tmp_path / "in")}}, tmp_path / "out")
    run_pipeline({"web": {"stage": "ingest", "path": str(tmp_path / "in")}}, tmp_path / "out")


def test_damaged_and_foreign_manifests_are_refused(run_pipeline: Run, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", corpus(10))
    made = run_pipeline({"web": {"stage": "ingest", "path": str(tmp_path / "in")}}, tmp_path / "out")["web"]
    path = Path(made.path) / "manifest.json"
    good = json.loads(path.read_text())
    for text, message in (
        ("{", "not readable"),
        ("[]", "not a gristmill-artifact"),
        (json.dumps(good | {"format_version": 99}), "format version 99"),
        (json.dumps(good | {"surprise": 1}), "surprise"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            open_artifact(made.path)


def test_files_below_a_directory_are_listed_with_sizes(tmp_path: Path) -> None:
    store.write_bytes(str(tmp_path / "a" / "b.txt"), b"abc")
    assert [(p, n) for p, n, _ in store.list_files(str(tmp_path))] == [(str(tmp_path / "a" / "b.txt"), 3)]
    assert store.list_files(str(tmp_path / "absent")) == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["pii-", "fuzzy_dedup-", "pack-"])
def test_killed_at_any_stage_a_rerun_gives_the_same_bytes(run_pipeline: Run, tmp_path: Path, victim: str) -> None:
    for k in range(4):
        write_jsonl(tmp_path / "in" / f"{k}.jsonl", corpus(1500, seed=k))
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump({"name": "t", "stages": pipeline(tmp_path / "in")}, sort_keys=False))
    want = final(tmp_path / "whole", run_pipeline(pipeline(tmp_path / "in"), tmp_path / "whole", name="t"))
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "gristmill.jobs.cli", "run", str(file), "--output", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while process.poll() is None and not any(p.name.startswith(victim) for p in out.glob("*")):
            time.sleep(0.01)
        assert process.poll() is None, "the run ended before it could be killed"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    started = [p for p in out.glob("*") if p.name.startswith(victim)]
    assert not (started[0] / "manifest.json").exists()
    got = final(out, run_pipeline(pipeline(tmp_path / "in"), out, name="t"))
    assert got == want
