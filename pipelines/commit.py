"""Making an artifact real: final names, ledger, and the manifest last.

On local disks attempt files get their final names here, so that equal runs leave equal trees; on object stores,
which have no rename, files keep the names of their attempt and the manifest says which count.
"""

from __future__ import annotations

import json
import platform
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import gristmill
from gristmill.pipelines.plan import Unit
from gristmill.stages import store
from gristmill.stages.artifact import (
    Artifact,
    FileEntry,
    InputRecord,
    Manifest,
    canonical_json,
    encode_schema,
    open_artifact,
)
from gristmill.stages.context import Context, Outcome
from gristmill.stages.errors import RunError
from gristmill.stages.ledger import Entry

MIN_STAGE_ERRORS, MAX_STAGE_ERRORS = 10, 0.01
"""A run fails if a stage raises on at least so many documents and more than this share of its input."""


def commit(unit: Unit, context: Context, outcome: Outcome, inputs: list[Artifact], run: dict[str, Any]) -> Artifact:
    """Check the ledger, name the files, write ``ledger.json`` and ``manifest.json``, and remove what is left over.

    Raises:
        RunError: the ledger does not balance or a guard rate is exceeded; nothing is committed then.
    """
    guards = {node.name: node.stage.max_removed for node in unit.nodes}
    for entry in outcome.ledger:
        _check_stage_errors(entry, context, outcome)
        entry.check(guards.get(entry.stage, 1.0))
    names = _Names(context)
    parts = [
        part.model_copy(
            update={
                "path": names.settle(part.path, "kept", "parquet"),
                "mask": names.settle(part.mask, "masks", "bits") if part.mask else None,
            }
        )
        for part in outcome.parts
    ]
    rejected = [names.entry(entry, "rejected") for entry in outcome.rejected]
    quarantined = [names.entry(entry, "quarantined") for entry in outcome.quarantined]
    files = [names.entry(entry, None) for entry in [*outcome.files, *context.files]]
    manifest = Manifest(
        kind=unit.nodes[-1].stage.output_kind,
        fingerprint=unit.fingerprint,
        nodes=unit.records,
        inputs=tuple(InputRecord(directory=a.directory, fingerprint=a.fingerprint) for a in inputs),
        arrow_schema=encode_schema(outcome.schema),
        columns={f.name: str(f.type) for f in outcome.schema},
        parts=tuple(parts),
        rejected=tuple(rejected),
        quarantined=tuple(quarantined),
        files=tuple(sorted({f.path: f for f in files}.values(), key=lambda f: f.path)),
        report=outcome.report,
        code_version=gristmill.__version__,
        seed=context.seed,
    )
    ledger = {"entries": [entry.to_json() for entry in outcome.ledger]}
    run = {**run, "python": platform.python_version(), "pyarrow": pa.__version__, "machine": platform.platform()}
    _sweep(context.directory, names.kept)
    store.write_bytes(store.join(context.directory, "ledger.json"), json.dumps(ledger, indent=1).encode())
    store.write_bytes(store.join(context.directory, "run.json"), json.dumps(run, indent=1).encode())
    text = json.dumps(json.loads(canonical_json(manifest.model_dump(mode="json"))), indent=1)
    store.write_bytes(store.join(context.directory, "manifest.json"), text.encode())
    return open_artifact(context.directory)


def _check_stage_errors(entry: Entry, context: Context, outcome: Outcome) -> None:
    """Fail if a stage raised on more than a stray document: that is a fault of the stage, not of the documents."""
    n_errors = entry.quarantined["stage_error"].docs if "stage_error" in entry.quarantined else 0
    if n_errors < MIN_STAGE_ERRORS or n_errors <= MAX_STAGE_ERRORS * entry.into.docs:
        return
    detail = ""
    for file in outcome.quarantined:
        with store.open_input(file.path) as source:
            rows = pq.read_table(source, columns=["stage", "reason", "id", "detail"]).to_pylist()
        found = next((r for r in rows if r["stage"] == entry.stage and r["reason"] == "stage_error"), None)
        if found is not None:
            detail = f" First: document {found['id']}: {found['detail']}"
            break
    # The splits must run again once the fault is mended.
    store.delete_dir(store.join(context.directory, "_tasks"))
    raise RunError(f"{entry.stage}: the stage failed on {n_errors:,} of {entry.into.docs:,} documents.{detail}")


class _Names:
    """Gives files their final names and makes paths relative to the output directory."""

    def __init__(self, context: Context) -> None:
        self._directory = context.directory.rstrip("/") + "/"
        self._root = context.root.rstrip("/") + "/"
        self._counts: dict[str, int] = {}
        self._settled: dict[str, str] = {}
        self.kept: set[str] = set()

    def settle(self, path: str, folder: str | None, suffix: str) -> str:
        """Return the path relative to the root, after renaming a file of ours on a local disk."""
        if path in self._settled:
            return self._settled[path]
        final = path
        if path.startswith(self._directory):
            if folder is not None and store.is_local(path):
                number = self._counts.get(folder, 0)
                self._counts[folder] = number + 1
                final = store.join(self._directory, folder, f"part-{number:05d}.{suffix}")
                if final != path:
                    store.rename(path, final)
            self.kept.add(final)
        relative = final[len(self._root) :] if final.startswith(self._root) else final
        self._settled[path] = relative
        return relative

    def entry(self, entry: FileEntry, folder: str | None) -> FileEntry:
        """Return a file's entry under its final name."""
        return entry.model_copy(update={"path": self.settle(entry.path, folder, "parquet")})


def _sweep(directory: str, kept: set[str]) -> None:
    """Delete what killed, retried or speculative attempts have left."""
    store.delete_dir(store.join(directory, "_tasks"))
    for path, _, _ in store.list_files(directory):
        if path not in kept:
            store.delete_file(path)
