"""Artifacts: what a stage leaves behind, a directory ``<stage>-<hash8>/`` that exists once its manifest does.

    kept/part-00000.parquet      documents (absent where a stage only removes rows: then `masks/`)
    masks/part-00000.bits        packed bits, 1 = still there, for a part that lives in an earlier artifact
    rejected/part-00000.parquet  id, stage, reason, the numbers that decided, every signal, no text
    quarantined/…                bad input: reason, file, line, raw prefix
    ledger.json  manifest.json   the manifest is written last: its presence is the commit

Paths in a manifest are relative to the output directory that holds all artifacts, so a tree can be moved.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from gristmill.stages import store
from gristmill.stages.errors import ConfigError, RunError
from gristmill.stages.ledger import Entry

FORMAT = "gristmill-artifact"
FORMAT_VERSION = 1


class FileEntry(BaseModel):
    """One file of an artifact: path, length and xxh3-64."""

    model_config = ConfigDict(frozen=True)
    path: str
    n_bytes: int
    xxh3: str


class Part(BaseModel):
    """One Parquet file of documents, with the rows that still count.

    `row_group_rows`: rows of each row group; `n_docs` and `n_bytes` (of text) count rows that the mask keeps.
    """

    model_config = ConfigDict(frozen=True)
    path: str
    mask: str | None = None
    row_group_rows: tuple[int, ...]
    n_docs: int
    n_bytes: int
    sources: dict[str, int]

    @property
    def n_rows(self) -> int:
        """Rows in the file, masked ones included."""
        return sum(self.row_group_rows)


class NodeRecord(BaseModel):
    """A node whose work is in this artifact."""

    model_config = ConfigDict(frozen=True)
    node: str
    stage: str
    version: int
    fingerprint: str
    config: dict[str, Any]
    files: dict[str, str] = {}


class InputRecord(BaseModel):
    """An artifact that this one was made from."""

    model_config = ConfigDict(frozen=True)
    directory: str
    fingerprint: str


class Manifest(BaseModel):
    """Content of ``manifest.json``. Deterministic: no times, hosts or attempt names."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal["gristmill-artifact"] = "gristmill-artifact"
    format_version: Literal[1] = 1
    kind: str
    fingerprint: str
    nodes: tuple[NodeRecord, ...]
    inputs: tuple[InputRecord, ...]
    arrow_schema: str = ""
    columns: dict[str, str] = {}
    parts: tuple[Part, ...] = ()
    rejected: tuple[FileEntry, ...] = ()
    quarantined: tuple[FileEntry, ...] = ()
    files: tuple[FileEntry, ...] = ()
    report: dict[str, Any] = {}
    code_version: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Artifact:
    """A committed artifact: `root` is the output directory, `directory` its own name inside."""

    root: str
    directory: str
    manifest: Manifest

    @property
    def path(self) -> str:
        """The artifact's own directory."""
        return store.join(self.root, self.directory)

    @property
    def kind(self) -> str:
        """What it holds: documents, a tokenizer, shards or cards."""
        return self.manifest.kind

    @property
    def fingerprint(self) -> str:
        """32 hex digits."""
        return self.manifest.fingerprint

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parquet files of documents, in order."""
        return self.manifest.parts

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the documents."""
        return decode_schema(self.manifest.arrow_schema)

    @cached_property
    def ledger(self) -> list[Entry]:
        """One entry a node, in order."""
        return [
            Entry.from_json(e) for e in json.loads(store.read_bytes(store.join(self.path, "ledger.json")))["entries"]
        ]

    @property
    def n_docs(self) -> int:
        """Documents that are still there."""
        return sum(part.n_docs for part in self.parts)

    @property
    def n_bytes(self) -> int:
        """UTF-8 bytes of their text."""
        return sum(part.n_bytes for part in self.parts)

    def path_of(self, name: str) -> str:
        """Return the full path of a file that a stage added.

        Raises:
            RunError: the artifact has no such file.
        """
        for entry in self.manifest.files:
            if entry.path == f"{self.directory}/{name}":
                return store.join(self.root, entry.path)
        raise RunError(f"{self.path}: the artifact has no file {name!r}")

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a file that a stage added. Raises: RunError."""
        return store.read_bytes(self.path_of(name))


def open_artifact(path: str) -> Artifact:
    """Open a committed artifact by its directory.

    Raises:
        ConfigError: nothing there, or not an artifact, or of another format version.
    """
    root, _, directory = path.rstrip("/").rpartition("/")
    try:
        raw = json.loads(store.read_bytes(store.join(path, "manifest.json")))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no committed artifact there (it has no manifest.json)") from None
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}/manifest.json: not readable: {error}") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise ConfigError(f"{path}/manifest.json: not a {FORMAT} manifest")
    if raw.get("format_version") != FORMAT_VERSION:
        raise ConfigError(
            f"{path}/manifest.json: format version {raw.get('format_version')}, this program reads {FORMAT_VERSION}"
        )
    try:
        return Artifact(root or ".", directory, Manifest(**raw))
    except ValidationError as error:
        raise ConfigError(f"{path}/manifest.json: {error}") from None


def encode_schema(schema: pa.Schema) -> str:
    """Return an Arrow schema as base64 of its IPC message."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Undo `encode_schema`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))) if text else pa.schema([])


def canonical_json(data: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal data, equal text."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(
    stage: str, version: int, config: dict[str, Any], inputs: list[str], files: dict[str, str], extra: Any
) -> str:
    """Return the identity of a node's output: 32 hex digits of BLAKE2b over everything that decides it."""
    text = canonical_json([FORMAT_VERSION, stage, version, config, inputs, sorted(files.values()), extra])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read_mask(path: str, n_rows: int) -> npt.NDArray[np.bool_]:
    """Return a row mask, bool (n_rows), True where the row is still there."""
    packed = np.frombuffer(store.read_bytes(path), np.uint8)
    if len(packed) != (n_rows + 7) // 8:
        raise RunError(f"{path}: a mask of {n_rows:,} rows has {(n_rows + 7) // 8:,} bytes, got {len(packed):,}")
    return np.unpackbits(packed, count=n_rows).astype(np.bool_)


def write_mask(path: str, mask: npt.NDArray[np.bool_]) -> None:
    """Write a row mask as packed bits."""
    store.write_bytes(path, np.packbits(mask).tobytes())
