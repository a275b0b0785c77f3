"""Foreign formats come in whole, or not at all."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from gristmill.packing import ShardCorruptError, ShardFormatError, ShardSet, TokenSpec, open_shards
from gristmill.packing.format import encode_index
from gristmill.packing.importers import import_datatrove, import_flat, import_lists, import_mds, import_megatron

SPEC = TokenSpec(1000, 0, "t")
DOCUMENTS = [[1, 2, 0], [0], [3, 4, 5, 6, 0], [999, 0]]


def documents(shards: ShardSet) -> list[list[int]]:
    shards.verify()
    return [shards.document(i).tolist() for i in range(shards.n_documents)]


def flat() -> np.ndarray:
    return np.array([t for d in DOCUMENTS for t in d])


def test_megatron_files_come_in(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(flat().astype("<i4").tobytes())
    (tmp_path / "a.idx").write_bytes(encode_index([3, 1, 2, 3, 2], [1, 2, 4, 5], "int32"))
    root = import_megatron([tmp_path / "a"], tmp_path / "out", SPEC, source="old")
    shards = open_shards(root)
    assert documents(shards) == DOCUMENTS
    assert shards.dtype == np.uint16
    assert shards.provenance(2).document_id == "a.bin#2"
    assert shards.provenance(2).source == "old"


def test_a_wrong_size_is_refused_and_leaves_no_set(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(flat().astype("<u2").tobytes())
    (tmp_path / "a.idx").write_bytes(encode_index([3, 1, 5, 2], [1, 2, 3, 4], "int32"))
    with pytest.raises(ShardCorruptError, match=r"expected 44 bytes of int32, got 22"):
        import_megatron([tmp_path / "a"], tmp_path / "out", SPEC)
    assert not (tmp_path / "out" / "shards.json").exists()


def test_datatrove_files_come_in(tmp_path: Path) -> None:
    (tmp_path / "x.ds").write_bytes(flat().astype("<u2").tobytes())
    (tmp_path / "x.ds.index").write_bytes(np.cumsum([len(d) for d in DOCUMENTS]).astype("<u8").tobytes())
    assert documents(open_shards(import_datatrove([tmp_path / "x.ds"], tmp_path / "out", SPEC))) == DOCUMENTS


def test_flat_arrays_come_in_and_are_cut_at_eos(tmp_path: Path) -> None:
    for name in ("p", "q"):
        (tmp_path / f"{name}.npy").write_bytes(flat().astype("<u2").tobytes())
    root = import_flat([tmp_path / "p.npy", tmp_path / "q.npy"], tmp_path / "out", SPEC, shard_tokens=5)
    shards = open_shards(root)
    assert documents(shards) == DOCUMENTS * 2
    assert len(shards) == 2
    (tmp_path / "r.npy").write_bytes(np.array([1, 2], "<u2").tobytes())
    with pytest.raises(ShardFormatError, match="does not end with EOS"):
        import_flat([tmp_path / "r.npy"], tmp_path / "out2", SPEC)


def test_mds_folders_come_in(tmp_path: Path) -> None:
    samples = []
    for i, document in enumerate(DOCUMENTS):
        body, label = np.array(document, "<u2").tobytes(), f"n{i}".encode()
        samples.append(struct.pack("<II", len(label), len(body)) + label + body)
    config = b"{}"
    first = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = np.cumsum([first, *map(len, samples)]).astype("<u4")
    raw = struct.pack("<I", len(samples)) + offsets.tobytes() + config + b"".join(samples)
    (tmp_path / "shard.00000.mds").write_bytes(raw)
    shard = {
        "format": "mds",
        "column_names": ["name", "tokens"],
        "column_encodings": ["str", "bytes"],
        "column_sizes": [None, None],
        "raw_data": {"basename": "shard.00000.mds"},
    }
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    assert documents(open_shards(import_mds([tmp_path], tmp_path / "out", SPEC))) == DOCUMENTS
    shard["column_encodings"] = ["str", "pkl"]
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    with pytest.raises(ShardFormatError, match="unknown encoding"):
        import_mds([tmp_path], tmp_path / "out2", SPEC)


def test_lists_come_in(tmp_path: Path) -> None:
    assert documents(open_shards(import_lists(iter(DOCUMENTS), tmp_path / "out", SPEC))) == DOCUMENTS
    assert documents(open_shards(import_lists([], tmp_path / "none", SPEC))) == []
    with pytest.raises(ShardFormatError, match="outside the vocabulary"):
        import_lists([[5000]], tmp_path / "bad", SPEC)
