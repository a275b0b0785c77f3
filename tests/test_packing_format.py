"""Shard files: their bytes, their checks, and what happens to damaged ones."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.packing import (
    ArgumentError,
    Loader,
    PackingError,
    ShardCorruptError,
    ShardFormatError,
    ShardMissingError,
    ShardWriter,
    TokenSpec,
    open_shards,
    write_shards,
)
from gristmill.packing.format import read_index
from gristmill.packing.table import Strings, Table, write_table

SPEC = TokenSpec(vocab_size=1000, eos_id=0, tokenizer="t" * 32)


def make(root: Path, n_documents: int = 40, **options: object) -> Path:
    rng = np.random.default_rng(3)
    documents = [rng.integers(1, 1000, rng.integers(0, 30)) for _ in range(n_documents)]
    return write_shards(root, documents, SPEC, documents_per_shard=15, source="web", **options)  # type: ignore[arg-type]


def test_index_has_exactly_the_megatron_bytes(tmp_path: Path) -> None:
    write_shards(tmp_path, [[5, 6], [], [7]], SPEC)
    raw = (tmp_path / "shard-00000.idx").read_bytes()
    assert raw[:9] == b"MMIDIDX\x00\x00"
    assert struct.unpack("<QBQQ", raw[9:34]) == (1, 8, 3, 4)
    assert np.frombuffer(raw, "<i4", 3, 34).tolist() == [3, 1, 2]
    assert np.frombuffer(raw, "<i8", 3, 46).tolist() == [0, 6, 8]
    assert np.frombuffer(raw, "<i8", 4, 70).tolist() == [0, 1, 2, 3]
    assert len(raw) == 102
    assert (tmp_path / "shard-00000.bin").read_bytes() == struct.pack("<6H", 5, 6, 0, 0, 7, 0)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_499, "<u2"), (65_500, "<i4"), (200_000, "<i4")])
def test_dtype_follows_megatrons_own_writer(vocab_size: int, dtype: str) -> None:
    assert TokenSpec(vocab_size, 0, "x").dtype == np.dtype(dtype)


def test_long_documents_become_several_sequences_of_one_document(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, "shard-00000", SPEC, max_sequence_tokens=4) as writer:
        writer.add(np.arange(1, 14), [10, 0, 3], ["a", "b", "c"])
        writer.close()
    _, lengths, pointers, bounds = read_index(tmp_path / "shard-00000.idx")
    assert lengths.tolist() == [4, 4, 2, 0, 3]
    assert pointers.tolist() == [0, 8, 16, 20, 20]
    assert bounds.tolist() == [0, 3, 4, 5]


def test_block_checksums_are_crc32_of_64_kib_blocks(tmp_path: Path) -> None:
    write_shards(tmp_path, [np.arange(1, 900)] * 100, SPEC)
    shard = open_shards(tmp_path).shard(0)
    raw = (tmp_path / "shard-00000.bin").read_bytes()
    assert shard._sums.tolist() == [zlib.crc32(raw[i : i + 65536]) for i in range(0, len(raw), 65536)]


def test_bytes_do_not_depend_on_how_documents_are_handed_over(tmp_path: Path) -> None:
    tokens = np.arange(1, 1000)
    lengths = [100] * 9 + [99]
    names = [f"d{i}" for i in range(10)]
    with ShardWriter(tmp_path / "one", "shard-00000", SPEC) as writer:
        writer.add(tokens, lengths, names, sources="s")
        first = writer.close()
    with ShardWriter(tmp_path / "many", "shard-00000", SPEC, attempt="7") as writer:
        for i in range(10):
            writer.add(tokens[i * 100 : i * 100 + lengths[i]], lengths[i : i + 1], names[i : i + 1], sources=["s"])
        assert writer.close() == first
    for kind in ("bin", "idx", "manifest.json", "provenance"):
        name = f"shard-00000.{kind}"
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 999), max_size=9), max_size=12),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_what_is_written_is_read(documents: list[list[int]], per_shard: int, random: object) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        names = [f"文{i}/{'x' * (i % 3)}" for i in range(len(documents))]
        write_shards(folder, documents, SPEC, ids=names, source="s", documents_per_shard=per_shard)
        shards = open_shards(folder, verify="always")
        shards.verify()
        assert shards.n_documents == len(documents)
        at = 0
        for i, document in enumerate(documents):
            assert shards.document(i).tolist() == [*document, 0]
            assert shards.document_tokens(i) == (at, at + len(document) + 1)
            place = shards.provenance(i)
            assert (place.document_id, place.source, place.n_tokens) == (names[i], "s", len(document) + 1)
            assert shards.locate(at).document_id == names[i]
            assert shards.find(names[i]) == [i]
            at += len(document) + 1
        flat = [token for document in documents for token in [*document, 0]]
        assert shards.tokens(0, at).tolist() == flat


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardFormatError, match=r"outside the vocabulary.*0 to 999.*1,000"):
        write_shards(tmp_path, [[1000]], SPEC)
    assert not list(tmp_path.glob("*.bin"))
    assert not list(tmp_path.glob(".*tmp*"))


def test_disagreeing_numbers_are_refused(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, "shard-00000", SPEC)
    with pytest.raises(ArgumentError, match="2 documents of 5 tokens"):
        writer.add([1, 2, 3], [2, 3], ["a", "b"])
    writer.abort()


# ---- damage -------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def read_everything(root: Path) -> None:
    for _ in Loader([root], sequence_length=16, batch_size=2):
        pass


def test_a_flipped_bit_in_tokens_is_found_when_the_block_is_read(tmp_path: Path) -> None:
    make(tmp_path)
    flip(tmp_path / "shard-00001.bin", 11)
    with pytest.raises(ShardCorruptError, match=r"shard-00001\.bin: checksum of bytes 0 to .* fails.*copy it again"):
        read_everything(tmp_path)


def test_a_flipped_bit_in_document_starts_is_found_on_opening(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "shard-00001.provenance"
    at = path.read_bytes().index(struct.pack("<q", open_shards(tmp_path).shard(1).first_token[3]))
    flip(path, at)
    with pytest.raises(ShardCorruptError, match=r"provenance: checksum of section 'first_token'"):
        read_everything(tmp_path)


@pytest.mark.parametrize("kind", ["bin", "idx", "provenance"])
def test_truncation_is_found_on_opening(tmp_path: Path, kind: str) -> None:
    make(tmp_path)
    path = tmp_path / f"shard-00000.{kind}"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ShardCorruptError, match=f"shard-00000.{kind}: truncated"):
        read_everything(tmp_path)


def test_truncation_while_open_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    make(tmp_path)
    shards = open_shards(tmp_path, verify="never")
    shards.tokens(0, 5)
    os.truncate(tmp_path / "shard-00000.bin", 8)
    with pytest.raises(ShardCorruptError, match="file ends early"):
        shards.tokens(0, 100)


@pytest.mark.parametrize("kind", ["bin", "idx", "provenance", "manifest.json"])
def test_swapped_files_are_found(tmp_path: Path, kind: str) -> None:
    write_shards(tmp_path, [[1, 2, 3], [4, 5, 6, 7], [3, 2, 1], [7, 6, 5, 4]], SPEC, documents_per_shard=2)
    a, b = tmp_path / f"shard-00000.{kind}", tmp_path / f"shard-00001.{kind}"
    one, two = a.read_bytes(), b.read_bytes()
    a.write_bytes(two)
    b.write_bytes(one)
    shards = open_shards(tmp_path)
    if kind == "idx":  # equal lengths: the two indexes are the same bytes, and nothing is wrong
        assert one == two
        shards.verify()
        return
    with pytest.raises(ShardCorruptError):
        shards.verify()


@pytest.mark.parametrize("kind", ["bin", "idx", "provenance", "manifest.json"])
def test_a_missing_file_is_named(tmp_path: Path, kind: str) -> None:
    make(tmp_path)
    (tmp_path / f"shard-00001.{kind}").unlink()
    with pytest.raises(ShardMissingError, match=f"shard-00001.{kind}: file is missing"):
        read_everything(tmp_path)


def test_a_wrong_dtype_in_the_index_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "shard-00000.idx"
    raw = bytearray(path.read_bytes())
    raw[17] = 4
    path.write_bytes(raw)
    with pytest.raises(ShardFormatError, match=r"header of \.idx disagrees.*uint16.*int32"):
        read_everything(tmp_path)


def test_a_manifest_of_another_run_is_stale(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "shard-00000.manifest.json"
    value = json.loads(path.read_bytes())
    value["max_id"] += 1
    path.write_text(json.dumps(value))
    with pytest.raises(ShardCorruptError, match="stale or foreign manifest"):
        read_everything(tmp_path)


@pytest.mark.parametrize("name", ["shards.json", "shard-00000.manifest.json"])
def test_an_unknown_version_is_refused(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    path = tmp_path / name
    value = json.loads(path.read_bytes())
    value["version"] = 2
    path.write_text(json.dumps(value))
    with pytest.raises(ShardFormatError, match="unknown format version; expected 1, got 2"):
        read_everything(tmp_path)


def test_a_table_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.provenance"
    with path.open("wb") as stream:
        write_table(stream, 1, {"a": np.arange(3)})
    raw = bytearray(path.read_bytes())
    raw[8] = 9
    path.write_bytes(raw)
    with pytest.raises(ShardFormatError, match="wrong magic or version"):
        Table(path)


def test_every_damaged_byte_of_every_file_is_noticed_by_verify(tmp_path: Path) -> None:
    write_shards(tmp_path, [[1, 2, 3], [4]], SPEC, source="s")
    for path in sorted(tmp_path.iterdir()):
        good = path.read_bytes()
        for at in range(0, len(good), 7):
            flip(path, at)
            try:
                open_shards(tmp_path).verify()
            except PackingError:
                pass
            else:
                pytest.fail(f"{path.name}: byte {at} may change unnoticed")
            path.write_bytes(good)


def test_sets_of_two_tokenizers_do_not_mix(tmp_path: Path) -> None:
    write_shards(tmp_path / "a", [[1]], SPEC)
    write_shards(tmp_path / "b", [[1]], TokenSpec(1000, 0, "u" * 32))
    with pytest.raises(ShardFormatError, match="differ in tokenizer"):
        open_shards([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ShardFormatError, match="encode all sources with one tokenizer"):
        Loader({"a": tmp_path / "a", "b": tmp_path / "b"}, sequence_length=1, batch_size=1)


def test_a_folder_without_shards_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ShardMissingError, match=r"no shards\.json here.*importers"):
        open_shards(tmp_path)


def test_string_columns_may_begin_inside_their_buffer(tmp_path: Path) -> None:
    column = Strings(np.array([2, 4, 4, 7]), np.frombuffer(b"xxabcde", np.uint8))
    with ShardWriter(tmp_path, "shard-00000", SPEC) as writer:
        writer.add([1, 2, 3], [1, 1, 1], column, urls=column)
        writer.close()
    table = Table(tmp_path / "shard-00000.provenance")
    assert [table.string("id", i) for i in range(3)] == ["ab", "", "cde"]
    assert table.find_string("id", "") == [1]
    assert table.find_string("id", "cd") == []
