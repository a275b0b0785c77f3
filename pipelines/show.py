"""Artifacts, shards and stages as a person wants to read them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gristmill.pipelines.report import ledger_table, size
from gristmill.stages import registry, store
from gristmill.stages.artifact import Artifact, open_artifact
from gristmill.stages.documents import PartWriter, plan_splits, read_split, union_schema
from gristmill.stages.errors import ConfigError


def stages_table() -> Table:
    """Return one line a registered stage."""
    table = Table("stage", "takes", "makes", "what it does")
    for name in registry.names():
        stage = registry.get(name)
        table.add_row(f"[bold]{name}[/bold]", ", ".join(stage.input_kinds) or "files", stage.output_kind, stage.summary)
    return table


def stage_table(name: str) -> Table:
    """Return the configuration of a stage: key, type, default, what it means."""
    stage = registry.get(name)
    table = Table("key", "type", "default", "meaning", title=f"{name}: {stage.summary}", title_justify="left")
    properties = stage.model_json_schema()["properties"]
    for key, info in stage.model_fields.items():
        default = "required" if info.is_required() else json.dumps(properties[key].get("default"), ensure_ascii=False)
        kind = _type_text(properties[key])
        table.add_row(Text(key, style="bold"), Text(kind), Text(default), Text(info.description or ""))
    return table


def _type_text(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(str(v) for v in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type_text(s) for s in schema["anyOf"])
    kind = str(schema.get("type", "object"))
    bounds = [
        f"{sign} {schema[key]:,}" if isinstance(schema[key], int) else f"{sign} {schema[key]}"
        for key, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))
        if key in schema
    ]
    return ", ".join([kind, *bounds])


def inspect_path(path: str, rows: int, console: Console) -> None:
    """Print an artifact or a shard.

    Raises:
        ConfigError: neither is there.
    """
    if path.endswith((".bin", ".idx")) or store.exists(f"{path}.idx"):
        from gristmill.pipelines.preview import shard_text

        console.print(shard_text(path.removesuffix(".bin").removesuffix(".idx")), highlight=False)
        return
    artifact = open_artifact(path)
    manifest = artifact.manifest
    console.print(f"[bold]{artifact.directory}[/bold]  {manifest.kind}, fingerprint {manifest.fingerprint}")
    for record in manifest.nodes:
        console.print(
            f"  stage {record.node} ({record.stage} v{record.version}): "
            f"{json.dumps(record.config, ensure_ascii=False)}",
            highlight=False,
        )
    for item in manifest.inputs:
        console.print(f"  from {item.directory}")
    if artifact.ledger:
        console.print(ledger_table(artifact.ledger))
    if manifest.kind == "tokenizer":
        from gristmill.tokenizer.report import as_text

        console.print(as_text(manifest.report), highlight=False, markup=False)
    elif manifest.report:
        console.print_json(json.dumps(manifest.report, ensure_ascii=False, default=str))
    if artifact.parts:
        console.print(
            f"{artifact.n_docs:,} documents, {size(artifact.n_bytes)} of text in {len(artifact.parts):,} parts"
        )
        console.print("columns: " + ", ".join(f"{f.name} {f.type}" for f in artifact.schema), highlight=False)
        _print_documents(artifact, rows, console)
    for kind, files in (("rejected", manifest.rejected), ("quarantined", manifest.quarantined)):
        if files and rows:
            _print_rows(kind, store.join(artifact.root, files[0].path), rows, console)
    if manifest.kind == "shards":
        from gristmill.pipelines.preview import first_batch

        console.print(first_batch(artifact.path), highlight=False)


def _print_documents(artifact: Artifact, rows: int, console: Console) -> None:
    left = rows
    for split in plan_splits([artifact], 1):
        for batch in read_split(split, artifact.schema):
            for row in batch.slice(0, left).to_pylist():
                text = row.pop("text")
                row.pop("content_hash", None)
                facts = ", ".join(f"{k}={_short(v)}" for k, v in row.items() if v is not None)
                console.print(Text(f"* {facts}", style="dim"))
                console.print(Text("  " + text[:300].replace("\n", "\n  ")))
                left -= 1
            if left <= 0:
                return


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _print_rows(kind: str, path: str, rows: int, console: Console) -> None:
    with store.open_input(path) as source:
        table = pq.ParquetFile(source).read_row_group(0)
    for row in table.slice(0, rows).to_pylist():
        facts = ", ".join(f"{k}={_short(v)}" for k, v in row.items() if v is not None)
        console.print(Text(f"* {kind}: {facts}", style="dim"))


def card_text(path: str) -> str:
    """Return the data cards of an artifact of cards as text; given shards, of the cards made from them.

    Raises:
        ConfigError: no artifact there, or one of another kind.
    """
    artifact = open_artifact(path)
    if artifact.kind != "cards":
        artifact = _cards_of(artifact)
    names = [f.path for f in artifact.manifest.files if f.path.endswith(".md")]
    return "\n\n".join(store.read_bytes(store.join(artifact.root, name)).decode() for name in names)


def _cards_of(artifact: Artifact) -> Artifact:
    for name, _, _ in store.list_files(artifact.root):
        if name.endswith("/manifest.json") and name.count("/") == artifact.root.rstrip("/").count("/") + 2:
            try:
                other = open_artifact(name.removesuffix("/manifest.json"))
            except ConfigError:
                continue
            if other.kind == "cards" and any(i.fingerprint == artifact.fingerprint for i in other.manifest.inputs):
                return other
    raise ConfigError(f"{artifact.path}: no data cards were made from this {artifact.kind}; run the cards stage")


def export_documents(path: str, target: str) -> tuple[int, int]:
    """Write the documents of an artifact as plain Parquet; return ``(documents, files)``.

    Raises:
        ConfigError: no artifact of documents there, or the target is a file or not empty.
    """
    artifact = open_artifact(path)
    if artifact.kind != "documents":
        raise ConfigError(f"{path}: holds {artifact.kind}, not documents")
    if not target:
        raise ConfigError("export: a target directory is needed")
    if store.n_bytes_of(target) >= 0 or store.list_files(target):
        raise ConfigError(f"{target}: is a file, or a directory that is not empty")
    schema = union_schema([artifact])
    n_docs = n_files = 0
    for number, split in enumerate(plan_splits([artifact], 1, 512 << 20)):
        writer = PartWriter(store.join(target, f"part-{number:05d}.parquet"), pa.schema(list(schema)))
        for batch in read_split(split, schema):
            writer.write(batch)
        done = writer.close()
        if done is not None:
            n_docs += done[1].n_docs
            n_files += 1
    return n_docs, n_files
