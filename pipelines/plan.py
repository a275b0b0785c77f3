"""From nodes to units of work: schemas and kinds checked, adjacent batch stages fused, fingerprints computed.

Nothing here touches Spark. A unit makes one artifact: a source, a fused run of batch stages, or a global stage.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from gristmill.pipelines.config import Node, Pipeline
from gristmill.stages import store
from gristmill.stages.artifact import Artifact, NodeRecord, fingerprint, open_artifact
from gristmill.stages.base import REASON_FIELDS, BatchStage, GlobalStage, SourceStage, Stage
from gristmill.stages.errors import ConfigError, nearest
from gristmill.stages.passes import output_schema


@dataclass(frozen=True)
class Unit:
    """What makes one artifact. `nodes`: the fused nodes in order, the last one names the artifact.

    `inputs` are the names of the nodes whose artifacts are read.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    records: tuple[NodeRecord, ...]
    input_schema: pa.Schema
    output_schema: pa.Schema
    directory: str

    @property
    def name(self) -> str:
        """Name of the node whose output this is."""
        return self.nodes[-1].name

    @property
    def fingerprint(self) -> str:
        """Identity of the output."""
        return self.records[-1].fingerprint


@dataclass(frozen=True)
class Plan:
    """A planned pipeline: its units in the order in which they run."""

    pipeline: Pipeline
    root: str
    units: tuple[Unit, ...]

    def unit_of(self, node: str) -> Unit:
        """Return the unit that does the work of a node.

        Raises:
            ConfigError: no such node.
        """
        for unit in self.units:
            if any(n.name == node for n in unit.nodes):
                return unit
        names = [n.name for n in self.pipeline.nodes]
        raise ConfigError(f"{self.pipeline.path}: no stage {node!r}.{nearest(node, names)} It has: {', '.join(names)}")

    def done(self, unit: Unit) -> Artifact | None:
        """Return the unit's artifact if it has been committed already.

        Raises:
            ConfigError: the directory's manifest is damaged, or belongs to another fingerprint.
        """
        path = store.join(self.root, unit.directory)
        if not store.exists(store.join(path, "manifest.json")):
            return None
        artifact = open_artifact(path)
        if artifact.fingerprint != unit.fingerprint:
            raise ConfigError(
                f"{path}: holds fingerprint {artifact.fingerprint}, expected {unit.fingerprint}; move it away"
            )
        return artifact


def plan(pipeline: Pipeline) -> Plan:
    """Check a pipeline and cut it into units.

    Raises:
        ConfigError: a stage gets the wrong kind of input, a column is missing or has another type, an input
            path or model file is not readable.
    """
    schemas: dict[str, pa.Schema] = {}
    records: dict[str, NodeRecord] = {}
    for node in pipeline.nodes:
        _check_kinds(node, pipeline)
        schemas[node.name] = _schema(node, pipeline, schemas)
        records[node.name] = _record(node, pipeline, records)
        node.stage.check(node.name, {name: pipeline.by_name[name].stage for name in node.inputs})
    root = pipeline.output
    _check_writable(root)
    units = []
    for group in _fused(pipeline):
        first, last = group[0], group[-1]
        units.append(
            Unit(
                nodes=group,
                inputs=first.inputs,
                records=tuple(records[n.name] for n in group),
                input_schema=_input_schema(first, pipeline, schemas),
                output_schema=schemas[last.name],
                directory=f"{last.name}-{records[last.name].fingerprint[:8]}",
            )
        )
    return Plan(pipeline, root, tuple(units))


def _check_writable(root: str) -> None:
    """Refuse an output that cannot be, and a local one that is a file or in which nothing can be made."""
    try:
        store.locate(root)
    except ConfigError as error:
        raise ConfigError(f"output: {error}") from None
    if not store.is_local(root):
        return
    path = Path(root.removeprefix("file://")).absolute()
    try:
        if path.exists() and not path.is_dir():
            raise ConfigError(f"output: {root} is a file; a directory is needed")
        while not path.exists():
            path = path.parent
    except OSError as error:
        raise ConfigError(f"output: {root}: {error.strerror}") from None
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"output: {root}: nothing can be written in {path}")


def _check_kinds(node: Node, pipeline: Pipeline) -> None:
    got = [pipeline.by_name[i].stage.output_kind for i in node.inputs]
    wanted = set(node.stage.input_kinds)
    for name, kind in zip(node.inputs, got, strict=True):
        if kind not in wanted:
            raise ConfigError(
                f"{node.name}.inputs: {node.stage.name} takes {' and '.join(sorted(wanted))}, but {name} makes {kind}"
            )
    for kind in node.stage.input_kinds:
        if kind not in got:
            makers = [n.name for n in pipeline.nodes if n.stage.output_kind == kind and n.name != node.name]
            hint = f" Here {', '.join(makers)} would do." if makers else ""
            raise ConfigError(f"{node.name}.inputs: {node.stage.name} needs an input of kind {kind}.{hint}")


def _input_schema(node: Node, pipeline: Pipeline, schemas: dict[str, pa.Schema]) -> pa.Schema:
    """Return the columns that all document inputs share; a column with two types is an error."""
    names = [i for i in node.inputs if pipeline.by_name[i].stage.output_kind == "documents"]
    fields: dict[str, pa.Field] = {}
    for name in names:
        for f in schemas[name]:
            have = fields.setdefault(f.name, f)
            if have.type != f.type:
                raise ConfigError(f"{node.name}.inputs: column {f.name!r} is {f.type} in {name}, {have.type} elsewhere")
    return pa.schema(list(fields.values()))


def _schema(node: Node, pipeline: Pipeline, schemas: dict[str, pa.Schema]) -> pa.Schema:
    if isinstance(node.stage, SourceStage):
        return node.stage.document_schema(node.name)
    given = _input_schema(node, pipeline, schemas)
    if "documents" in node.stage.input_kinds:
        for column, kind in node.stage.reads().items():
            if column not in given.names:
                makers = [n.name for n in pipeline.nodes if any(f.name == column for f in n.stage.writes())]
                hint = f" {makers[0]} writes it: put it before." if makers else ""
                raise ConfigError(
                    f"{node.name}: column {column!r} is missing from its input.{nearest(column, given.names)}{hint} "
                    f"There are: {', '.join(given.names[:12])}{', ...' if len(given.names) > 12 else ''}"
                )
            if kind is not None and given.field(column).type != kind:
                raise ConfigError(f"{node.name}: column {column!r} must be {kind}, it is {given.field(column).type}")
    if node.stage.output_kind != "documents":
        return pa.schema([])
    if isinstance(node.stage, BatchStage):
        reserved = {f.name for f in REASON_FIELDS} & set(given.names)
        if reserved:
            raise ConfigError(f"{node.name}: the input has a column {sorted(reserved)[0]!r}, a name that is ours")
        return output_schema(given, node.stage)
    written = {f.name: f for f in node.stage.writes()}
    return pa.schema([written.pop(f.name, f) for f in given] + list(written.values()))


def _record(node: Node, pipeline: Pipeline, records: dict[str, NodeRecord]) -> NodeRecord:
    stage = node.stage
    files = {}
    for path in stage.files():
        if Path(path).is_dir():
            raise ConfigError(f"{node.name}: {path}: is a directory; a file is needed")
        if not Path(path).is_file():
            folder = Path(path).parent
            known = [p.name for p in folder.iterdir()] if folder.is_dir() else []
            raise ConfigError(f"{node.name}: {path}: no such file.{nearest(Path(path).name, known)}")
        files[str(path)] = _file_hash(str(path), Path(path).stat().st_mtime_ns)
    for uri in stage.remote_files():
        try:
            files[uri] = xxhash.xxh3_128_hexdigest(store.read_bytes(uri))
        except OSError as error:
            raise ConfigError(f"{node.name}: {uri}: cannot be read ({error})") from None
    config = stage.model_dump(mode="json")
    extra: object = None
    identity_config: Any = {k: v for k, v in config.items() if k != "max_removed"}
    if isinstance(stage, SourceStage):
        extra = stage.identity(node.name)
        # Where the files lie and how they are cut into tasks does not change what they hold.
        identity_config = {k: v for k, v in identity_config.items() if k not in ("path", "split_bytes")}
    elif isinstance(stage, GlobalStage):
        extra = pipeline.seed
    if files:
        identity_config = _without_paths(identity_config, files)
    value = fingerprint(
        stage.name, stage.version, identity_config, [records[i].fingerprint for i in node.inputs], files, extra
    )
    return NodeRecord(
        node=node.name,
        stage=stage.name,
        version=stage.version,
        fingerprint=value,
        config=_without_secrets(stage, config),
        files={Path(p).name: h for p, h in sorted(files.items())},
    )


def _without_secrets(stage: Stage, config: dict[str, Any]) -> dict[str, Any]:
    """Replace secret settings by a hash: manifests and cards are read by many."""
    hidden = dict(config)
    for name, info in type(stage).model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, dict) and extra.get("secret") and config[name]:
            digest = hashlib.blake2b(str(config[name]).encode(), digest_size=16, person=b"gristmill-secret").hexdigest()
            hidden[name] = f"blake2b:{digest}"
    return hidden


def _without_paths(config: Any, files: dict[str, str]) -> Any:
    """Replace the path of a model file by its hash: moving a model does not change what it is."""
    if isinstance(config, dict):
        return {k: _without_paths(v, files) for k, v in config.items()}
    if isinstance(config, list):
        return [_without_paths(v, files) for v in config]
    return files.get(config, config) if isinstance(config, str) else config


_HASHES: dict[tuple[str, int], str] = {}


def _file_hash(path: str, mtime_ns: int) -> str:
    if (path, mtime_ns) not in _HASHES:
        digest = xxhash.xxh3_128()
        with Path(path).open("rb") as stream:
            while block := stream.read(16 << 20):
                digest.update(block)
        _HASHES[path, mtime_ns] = digest.hexdigest()
    return _HASHES[path, mtime_ns]


def _fused(pipeline: Pipeline) -> list[tuple[Node, ...]]:
    """Group chains of batch stages: each the only reader of the one before it, with one input."""
    readers: dict[str, list[str]] = {node.name: [] for node in pipeline.nodes}
    for node in pipeline.nodes:
        for name in node.inputs:
            readers[name].append(node.name)
    groups: list[list[Node]] = []
    for node in pipeline.nodes:
        before = next((g for g in groups if node.inputs == (g[-1].name,)), None)
        if (
            pipeline.fuse
            and before is not None
            and isinstance(node.stage, BatchStage)
            and isinstance(before[-1].stage, BatchStage)
            and readers[before[-1].name] == [node.name]
        ):
            before.append(node)
        else:
            groups.append([node])
    return [tuple(g) for g in groups]
