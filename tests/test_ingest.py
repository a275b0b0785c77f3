"""Real and hostile input: what is good is read, what is bad ends in quarantine with its place, bytes add up."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from conftest import documents, table_rows, write_jsonl

from gristmill.stages.errors import ConfigError
from gristmill.stages.ingest import stage as ingest_stage
from gristmill.stages.ingest.files import find
from gristmill.stages.ingest.stage import Ingest

Run = Callable[..., dict[str, Any]]


def line(i: int, **more: Any) -> bytes:
    return json.dumps({"id": f"d{i}", "text": f"document number {i}", **more}).encode() + b"\n"


def reasons(artifact: Any) -> list[tuple[str, str, int]]:
    return sorted((r["file"], r["reason"], r["line"]) for r in table_rows(artifact, "quarantined"))


def test_every_kind_of_bad_line_is_quarantined_with_its_place_and_the_rest_is_read(
    run_pipeline: Run, tmp_path: Path
) -> None:
    raw = tmp_path / "in"
    raw.mkdir()
    bad = {
        2: (b"{broken\n", "invalid_json"),
        3: (b'{"id": "x", "text": "caf\xe9"}\n', "invalid_utf8"),
        4: (b'{"id": "x"}\n', "missing_text"),
        5: (b'{"id": "x", "text": null}\n', "missing_text"),
        6: (b'{"id": "x", "text": 12}\n', "text_not_string"),
        7: (b'{"id": "x", "text": "nul \\u0000 here"}\n', "nul_byte"),
        8: (b'{"id": "x", "text": "lone \\ud800"}\n', "lone_surrogate"),
        9: (b"[1, 2]\n", "not_an_object"),
        10: (b'{"text": "a", "text": "b"}\n', "duplicate_key"),
        11: (b'{"a": ' + b"[" * 999 + b"]" * 999 + b', "text": "x"}\n', "too_deep"),
        12: (b'{"id": "x", "text": "' + b"y" * 5000 + b'"}\n', "record_too_large"),
        13: (b'{"id": "x", "text": "t", "score": "high"}\n', "wrong_type"),
        14: (b"nul \x00 byte\n", "invalid_json"),
    }
    content = (
        line(1) + b"".join(text for text, _ in bad.values()) + b"\n  \n" + line(17, score=1.5) + line(18).rstrip(b"\n")
    )
    (raw / "a.jsonl").write_bytes(content)
    art = run_pipeline(
        {"web": {"stage": "ingest", "path": str(raw), "max_record_bytes": 4096, "columns": {"score": "float64"}}}
    )["web"]
    assert [d["id"] for d in documents(art)] == ["d1", "d17", "d18"]
    assert [d["score"] for d in documents(art)] == [None, 1.5, None]
    assert reasons(art) == sorted(("a.jsonl", reason, at) for at, (_, reason) in bad.items())
    for row in table_rows(art, "quarantined"):
        assert row["prefix"] == bad[row["line"]][0].rstrip(b"\n")[:256]
        assert content[row["offset"] :].startswith(row["prefix"])
        assert row["n_bytes"] == len(bad[row["line"]][0])
    entry = art.ledger[0]
    assert entry.into.n_bytes == len(content)
    assert entry.into.docs == 3 + len(bad)


@pytest.mark.parametrize("codec", ["gz", "zst"])
def test_a_truncated_stream_gives_all_whole_records_before_the_cut(
    run_pipeline: Run, tmp_path: Path, codec: str
) -> None:
    rows = [line(i, pad=f"{i * i:x}" * 50) for i in range(20_000)]
    plain = b"".join(rows)
    full = gzip.compress(plain) if codec == "gz" else zstandard.compress(plain)
    path = tmp_path / "in" / f"a.jsonl.{codec}"
    path.parent.mkdir()
    path.write_bytes(full[: len(full) // 2])
    art = run_pipeline({"web": {"stage": "ingest", "path": str(path.parent)}})["web"]
    docs = documents(art)
    assert 0 < len(docs) < len(rows)
    row = table_rows(art, "quarantined")[0]
    assert row["reason"] == "truncated_stream"
    assert row["line"] == len(docs) + 1
    assert row["offset"] == sum(len(r) for r in rows[: len(docs)])
    # Nothing that could be decoded is lost: the oracle decodes byte by byte.
    import zlib

    inflate = zlib.decompressobj(31) if codec == "gz" else zstandard.ZstdDecompressor().decompressobj()
    decoded = inflate.decompress(full[: len(full) // 2])
    assert len(docs) == decoded.count(b"\n")


def test_damage_inside_a_stream_is_quarantined(run_pipeline: Run, tmp_path: Path) -> None:
    full = bytearray(gzip.compress(b"".join(line(i, pad=f"{i * i:x}" * 9) for i in range(5000))))
    full[len(full) // 2] ^= 0xFF
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(full)
    (tmp_path / "in" / "b.jsonl").write_bytes(line(9999))
    art = run_pipeline({"web": {"stage": "ingest", "path": str(tmp_path / "in")}})["web"]
    assert "d9999" in {d["id"] for d in documents(art)}
    assert any(r["reason"] in ("broken_stream", "invalid_json") for r in table_rows(art, "quarantined"))


def test_a_huge_line_is_skipped_in_bounded_memory(run_pipeline: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "a.jsonl").open("wb") as sink:
        sink.write(line(0) + b'{"id": "huge", "text": "')
        for _ in range(200):
            sink.write(b"x" * 1_000_000)
        sink.write(b'"}\n' + line(2))
    art = run_pipeline({"web": {"stage": "ingest", "path": str(tmp_path / "in")}})["web"]
    assert [d["id"] for d in documents(art)] == ["d0", "d2"]
    (row,) = table_rows(art, "quarantined")
    assert (row["reason"], row["line"], row["n_bytes"]) == ("record_too_large", 2, 200_000_000 + 27)


def test_one_large_file_is_cut_into_tasks_and_rows_keep_their_numbers(run_pipeline: Run, tmp_path: Path) -> None:
    raw = tmp_path / "in"
    raw.mkdir()
    content = (
        b"".join(json.dumps({"text": f"row {i}" + " x" * (i % 97)}).encode() + b"\n" for i in range(3000)) + b"{bad"
    )
    (raw / "a.jsonl").write_bytes(content)
    whole = run_pipeline({"web": {"stage": "ingest", "path": str(raw)}}, tmp_path / "one")["web"]
    cut = run_pipeline({"web": {"stage": "ingest", "path": str(raw), "split_bytes": 20_000}}, tmp_path / "many")["web"]
    assert len(cut.parts) > 5
    assert documents(whole) == documents(cut)
    assert documents(cut)[0]["id"].startswith("corpus/a.jsonl#")
    assert {d["text"].split()[1]: d["id"].rpartition("#")[2] for d in documents(cut)} == {
        str(i): str(i) for i in range(3000)
    }
    assert reasons(whole) == reasons(cut) == [("a.jsonl", "invalid_json", 3001)]
    assert whole.fingerprint == cut.fingerprint


def test_a_byte_order_mark_and_crlf_are_framing(run_pipeline: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    content = b"\xef\xbb\xbf" + line(1).replace(b"\n", b"\r\n") + line(2)
    (tmp_path / "in" / "a.jsonl").write_bytes(content)
    art = run_pipeline({"web": {"stage": "ingest", "path": str(tmp_path / "in")}})["web"]
    assert [d["id"] for d in documents(art)] == ["d1", "d2"]
    assert art.ledger[0].into.n_bytes == len(content)


def test_fields_are_mapped_and_the_rest_is_carried_verbatim(run_pipeline: Run, tmp_path: Path) -> None:
    row = {
        "doc": {"uuid": 77, "more": 1},
        "content": "text body",
        "site": "s1",
        "when": "2024-02-03",
        "n": 5,
        "tags": ["a", "é"],
        "url": "https://example.org/a",
    }
    write_jsonl(tmp_path / "in" / "a.jsonl", [row])
    art = run_pipeline(
        {
            "web": {
                "stage": "ingest",
                "path": str(tmp_path / "in"),
                "columns": {"when": "date", "n": "int64"},
                "fields": {"text": "content", "id": "doc.uuid", "source": "site"},
            }
        }
    )["web"]
    (doc,) = documents(art)
    assert (doc["id"], doc["source"], str(doc["when"]), doc["n"]) == ("77", "s1", "2024-02-03", 5)
    assert doc["url"] == "https://example.org/a"
    assert json.loads(doc["metadata"]) == {"doc": {"uuid": 77, "more": 1}, "tags": ["a", "é"]}


def test_parquet_is_read_by_row_group_with_its_own_columns(run_pipeline: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table(
        {
            "body": pa.array(["good one", None, "bad \x00", "good two"]),
            "score": pa.array([1.0, 2.0, 3.0, None]),
            "kind": pa.array(["a", "a", "b", "b"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "in" / "a.parquet", row_group_size=2)
    (tmp_path / "in" / "b.parquet").write_bytes(b"PAR1 not really PAR1")
    art = run_pipeline(
        {"web": {"stage": "ingest", "path": str(tmp_path / "in"), "fields": {"text": "body"}, "split_bytes": 1024}}
    )["web"]
    docs = documents(art)
    assert [(d["id"], d["text"], d["score"], d["kind"]) for d in docs] == [
        ("corpus/a.parquet#0", "good one", 1.0, "a"),
        ("corpus/a.parquet#3", "good two", None, "b"),
    ]
    assert reasons(art) == [
        ("a.parquet", "missing_text", 2),
        ("a.parquet", "nul_byte", 3),
        ("b.parquet", "unreadable_file", None),
    ]


def test_every_column_of_every_parquet_file_is_carried(run_pipeline: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": ["a"], "n": pa.array([1], pa.int32())}), tmp_path / "in" / "a.parquet")
    pq.write_table(pa.table({"text": ["b"], "n": [2.5], "later": ["x"]}), tmp_path / "in" / "b.parquet")
    art = run_pipeline({"web": {"stage": "ingest", "path": str(tmp_path / "in")}})["web"]
    assert [(d["text"], d["n"], d["later"]) for d in documents(art)] == [("a", 1.0, None), ("b", 2.5, "x")]


def test_a_column_that_planning_did_not_see_stops_the_run_before_it_is_lost(
    run_pipeline: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_stage, "FOOTERS_READ", 1)
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "in" / "a.parquet")
    pq.write_table(pa.table({"text": ["b"], "later": ["x"]}), tmp_path / "in" / "b.parquet")
    stages = {"web": {"stage": "ingest", "path": str(tmp_path / "in")}}
    with pytest.raises(ConfigError, match="b.parquet has a column 'later' that the other files lack"):
        run_pipeline(stages)
    stages["web"]["rest"] = "drop"
    assert len(documents(run_pipeline(stages)["web"])) == 2


@pytest.mark.parametrize("name", ["source", "n_bytes", "content_hash", "reason", "stage", "row"])
def test_a_parquet_column_with_a_name_of_ours_is_refused_and_can_be_mapped(
    run_pipeline: Run, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"], name: ["theirs"]}), path)
    with pytest.raises(ConfigError, match=f"column '{name}', a name that is ours"):
        Ingest.build("web", path=str(path)).document_schema("web")
    Ingest.build("web", path=str(path), rest="drop").document_schema("web")
    ours = "source" if name == "source" else f"their_{name}"
    mapped: dict[str, Any] = {"fields": {ours: name}}
    if name != "source":
        mapped["columns"] = {ours: "string"}
    if name in ("source", "n_bytes"):
        (doc,) = documents(run_pipeline({"web": {"stage": "ingest", "path": str(path), **mapped}})["web"])
        assert doc[ours] == "theirs"


def test_parquet_values_that_do_not_fit_their_type_are_quarantined_by_row(run_pipeline: Run, tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b", "c", "d"], "n": ["1", "many", None, "4"], "tags": [["x"]] * 4})
    pq.write_table(table, tmp_path / "a.parquet")
    stage = {"stage": "ingest", "path": str(tmp_path / "a.parquet"), "columns": {"n": "int64"}}
    art = run_pipeline({"web": stage})["web"]
    assert [(d["text"], d["n"]) for d in documents(art)] == [("a", 1), ("c", None), ("d", 4)]
    (row,) = table_rows(art, "quarantined")
    assert (row["reason"], row["line"], row["detail"]) == ("wrong_type", 2, "field 'n' is string, not int64")
    art = run_pipeline({"web": {**stage, "columns": {"tags": "int64"}}})["web"]
    assert [reason for _, reason, _ in reasons(art)] == ["wrong_type"] * 4


def test_one_column_with_types_that_have_nothing_in_common_is_a_config_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "n": [["x"]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["b"], "n": [1]}), tmp_path / "b.parquet")
    with pytest.raises(ConfigError, match="column 'n' is list"):
        Ingest.build("web", path=str(tmp_path)).document_schema("web")


def test_files_of_another_format_than_said_are_a_config_error(tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "a.jsonl", [{"text": "x"}])
    with pytest.raises(ConfigError, match="is not a Parquet file"):
        Ingest.build("web", path=str(lines), format="parquet").document_schema("web")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    for wrong in ("jsonl", "text"):
        with pytest.raises(ConfigError, match="is a Parquet file"):
            Ingest.build("web", path=str(tmp_path / "a.parquet"), format=wrong).document_schema("web")


@pytest.mark.parametrize(
    "options",
    [{"path": []}, {"fields": {"text": "a..b"}}, {"fields": {"text": ""}}, {"columns": {"reason": "string"}},
     {"columns": {"": "string"}}, {"columns": {"id": "int64"}}],
)  # fmt: skip
def test_settings_that_can_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"web.{next(iter(options))}"):
        Ingest.build("web", **{"path": "x", **options})


def test_parquet_with_invalid_utf8_is_quarantined_by_row(run_pipeline: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": pa.array([b"fine", b"caf\xe9"], pa.binary())}), tmp_path / "in" / "a.parquet")
    art = run_pipeline({"web": {"stage": "ingest", "path": str(tmp_path / "in")}})["web"]
    assert [d["text"] for d in documents(art)] == ["fine"]
    assert reasons(art) == [("a.parquet", "invalid_utf8", 2)]


def test_text_files_are_documents(run_pipeline: Run, tmp_path: Path) -> None:
    raw = tmp_path / "in"
    (raw / "sub").mkdir(parents=True)
    (raw / "a.txt").write_text("first file\nwith lines", encoding="utf-8")
    (raw / "sub" / "b.md").write_text("# second", encoding="utf-8")
    (raw / "c.txt").write_bytes(b"\xff\xfe broken")
    (raw / "d.txt.gz").write_bytes(gzip.compress(b"packed text"))
    art = run_pipeline({"docs": {"stage": "ingest", "path": str(raw), "source": "docs"}})["docs"]
    assert [(d["id"], d["text"]) for d in documents(art)] == [
        ("docs/a.txt#0", "first file\nwith lines"),
        ("docs/d.txt.gz#0", "packed text"),
        ("docs/sub/b.md#0", "# second"),
    ]
    assert reasons(art) == [("c.txt", "invalid_utf8", 1)]


def test_files_are_listed_once_and_the_list_is_not_sent_to_workers(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": "x"}])
    stage = Ingest.build("web", path=str(tmp_path))
    before = stage.identity("web")
    write_jsonl(tmp_path / "b.jsonl", [{"text": "y"}])
    assert stage.identity("web") == before
    sent = pickle.loads(pickle.dumps(stage))
    assert sent == Ingest.build("web", path=str(tmp_path))
    assert len(sent.inputs("web")) == 2


def test_globs_name_files_by_the_part_that_varies(tmp_path: Path) -> None:
    for name in ("x/1/a.jsonl", "x/2/a.jsonl", "x/2/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = find((f"{tmp_path}/x/**/*.jsonl",), "auto", "web")
    assert [f.name for f in found] == ["1/a.jsonl", "2/a.jsonl"]
    assert [f.name for f in find((f"{tmp_path}/x/?/a.*",), "auto", "web")] == ["1/a.jsonl", "2/a.jsonl"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "{tmp}/corpsu"}, "Did you mean 'corpus'?"),
        ({"path": "{tmp}/corpus/*.csv"}, "nothing matches"),
        ({"path": "{tmp}/corpus"}, "format of 1 files is not clear"),
        ({"path": "{tmp}/corpus/*.jsonl", "fields": {"txet": "a"}}, "Did you mean 'text'?"),
    ],
)
def test_wrong_paths_are_named_with_the_nearest_right_one(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    write_jsonl(tmp_path / "corpus" / "a.jsonl", [{"text": "x"}])
    (tmp_path / "corpus" / "data.bin").write_text("")
    options = {**options, "path": options["path"].replace("{tmp}", str(tmp_path))}
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        Ingest.build("web", **options).document_schema("web")


def test_a_parquet_file_without_the_text_column_is_a_config_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"txt": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="no column 'text'. Did you mean 'txt'"):
        Ingest.build("web", path=str(tmp_path / "a.parquet")).document_schema("web")
