"""Files made by the packages themselves come in, and theirs read ours. Skips what is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.packing import ShardFormatError, ShardSet, TokenSpec, open_shards, write_shards
from gristmill.packing.importers import import_dataset, import_datatrove, import_flat, import_mds, import_megatron

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("default")]
SMALL, LARGE = TokenSpec(1000, 0, "t"), TokenSpec(200_000, 0, "t")


def documents(spec: TokenSpec) -> list[list[int]]:
    rng = np.random.default_rng(3)
    sizes = [0, 1, 300, 70_000, *rng.integers(1, 400, 60)]
    return [[*rng.integers(1, spec.vocab_size, int(n)).tolist(), 0] for n in sizes]


def stored(shards: ShardSet) -> list[list[int]]:
    shards.verify()
    return [shards.document(i).tolist() for i in range(shards.n_documents)]


@pytest.mark.parametrize("spec", [SMALL, LARGE])
def test_files_of_megatrons_builder_come_in(tmp_path: Path, spec: TokenSpec) -> None:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset", reason="megatron-core is not installed")
    torch = pytest.importorskip("torch")
    builder = indexed.IndexedDatasetBuilder(
        str(tmp_path / "x.bin"), dtype=indexed.DType.optimal_dtype(spec.vocab_size), multimodal=False
    )
    made = documents(spec)
    for document in made:
        # Sentences: a document of several sequences is one document again.
        cut = len(document) // 2
        parts = [document[:cut], document[cut:]] if cut else [document]
        for part in parts:
            builder.add_item(torch.tensor(part, dtype=torch.int64))
        builder.end_document()
    builder.finalize(str(tmp_path / "x.idx"))
    assert stored(open_shards(import_megatron([tmp_path / "x"], tmp_path / "out", spec))) == made


@pytest.mark.parametrize("spec", [SMALL, TokenSpec(65_536, 0, "t"), LARGE])
def test_files_of_datatroves_tokenizer_step_come_in(tmp_path: Path, spec: TokenSpec) -> None:
    tokens = pytest.importorskip("datatrove.pipeline.tokens.tokenizer", reason="datatrove is not installed")
    made = documents(spec)
    size = 4 if spec.vocab_size > np.iinfo(np.uint16).max else 2
    file = tokens.TokenizedFile(str(tmp_path), "0.ds", token_size=size)
    for document in made:
        file.write(document, None)
    file.close()
    assert stored(open_shards(import_datatrove([tmp_path / "0.ds"], tmp_path / "out", spec))) == made


@pytest.mark.parametrize("spec", [SMALL, LARGE])
def test_datatroves_reader_reads_our_shards(tmp_path: Path, spec: TokenSpec) -> None:
    pytest.importorskip("torch", reason="datatrove's data sets need torch")
    dataset = pytest.importorskip("datatrove.utils.dataset", reason="datatrove is not installed")
    made = documents(spec)
    write_shards(tmp_path / "set", [d[:-1] for d in made], spec, documents_per_shard=30)
    shards = open_shards(tmp_path / "set")
    s, width = 64, spec.dtype.itemsize
    for number in range(len(shards)):
        shard = shards.shard(number)
        theirs = dataset.DatatroveFileDataset(
            str(shard.path), s, token_size=width, return_positions=True, positions_from_eos_token_id=0
        )
        assert len(theirs) == shard.n_tokens // (s + 1)
        for i in range(len(theirs)):
            item = theirs[i]
            ours = shard.read(i * (s + 1), s + 1)
            assert item["input_ids"].tolist() == ours.tolist()
    folder = dataset.DatatroveFolderDataset(str(tmp_path / "set"), s, filename_pattern="*.bin", token_size=width)
    assert len(folder) == sum(shards.shard(i).n_tokens // (s + 1) for i in range(len(shards)))


def test_flat_arrays_of_numpys_memmap_come_in(tmp_path: Path) -> None:
    """OLMo's preparation writes `numpy.memmap` files called .npy, without a header."""
    for spec, kind in ((SMALL, np.uint16), (LARGE, np.uint32)):
        made = documents(spec)
        flat = np.concatenate(made)
        path = tmp_path / f"{np.dtype(kind).name}.npy"
        array = np.memmap(path, kind, "w+", shape=flat.shape)
        array[:] = flat
        array.flush()
        root = import_flat([path], tmp_path / path.stem, spec, dtype=np.dtype(kind).str)
        assert stored(open_shards(root)) == made


@pytest.mark.parametrize("encoding", ["bytes", "ndarray", "ndarray:uint16", "ndarray:int32", "ndarray:uint16:64"])
def test_folders_of_streamings_writer_come_in(tmp_path: Path, encoding: str) -> None:
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    kind = np.int32 if "int32" in encoding else np.uint16
    made = documents(SMALL)
    if encoding.endswith(":64"):
        made = [list(range(i, i + 64)) for i in range(200)]
    with streaming.MDSWriter(
        out=str(tmp_path / "mds"), columns={"tokens": encoding, "name": "str", "weight": "float32"}, size_limit=1 << 16
    ) as writer:
        for i, document in enumerate(made):
            array = np.array(document, kind)
            value = array.tobytes() if encoding == "bytes" else array
            writer.write({"tokens": value, "name": "x" * i, "weight": np.float32(i)})
    root = import_mds([tmp_path / "mds"], tmp_path / "out", SMALL)
    assert stored(open_shards(root)) == made
    assert encoding.endswith(":64") or len(list((tmp_path / "mds").glob("*.mds"))) > 1


def test_compressed_and_other_mds_columns_are_refused(tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    for name, columns, value, options in (
        ("zstd", {"tokens": "bytes"}, b"ab", {"compression": "zstd"}),
        ("text", {"tokens": "str"}, "ab", {}),
        ("square", {"tokens": "ndarray"}, np.zeros((2, 3), np.uint16), {}),
        ("floats", {"tokens": "ndarray:float32:2"}, np.zeros(2, np.float32), {}),
    ):
        with streaming.MDSWriter(out=str(tmp_path / name), columns=columns, **options) as writer:  # type: ignore[arg-type]
            writer.write({"tokens": value})
        with pytest.raises(ShardFormatError, match="unreadable MDS shard" if name == "zstd" else "unknown encoding"):
            import_mds([tmp_path / name], tmp_path / "out", SMALL)
        assert not (tmp_path / "out" / "shards.json").exists()


@pytest.mark.parametrize("streamed", [False, True])
def test_hugging_face_data_sets_come_in(tmp_path: Path, streamed: bool) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    made = documents(SMALL)
    whole = datasets.Dataset.from_dict({"input_ids": made, "name": [f"n{i}" for i in range(len(made))]})
    data: Any = whole.to_iterable_dataset() if streamed else whole
    shards = open_shards(import_dataset(data, tmp_path / "out", SMALL, id_column="name", source="hub"))
    assert stored(shards) == made
    assert (shards.provenance(7).document_id, shards.provenance(7).source) == ("n7", "hub")
    # A selection is read through its indices, a slice through its offsets.
    some = whole.select(range(5, 20)).filter(lambda row: len(row["input_ids"]) % 2 == 0)
    want = [d for d in made[5:20] if len(d) % 2 == 0]
    assert stored(open_shards(import_dataset(some, tmp_path / "some", SMALL))) == want
    holes = datasets.Dataset.from_dict({"input_ids": [[1, 2], None, [3]]})
    with pytest.raises(ShardFormatError, match="a null among the tokens"):
        import_dataset(holes, tmp_path / "holes", SMALL)
