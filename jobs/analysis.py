"""Commands that look at what a run left: other thresholds, contamination, tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gristmill.jobs import loading
from gristmill.pipelines.console import make_console
from gristmill.stages.errors import ConfigError

app = typer.Typer()
console = make_console()

ArtifactPath = Annotated[str, typer.Argument(help="an artifact's directory")]


def _threshold(setting: str) -> tuple[str, Any]:
    """Return the rule and threshold of ``RULE=THRESHOLD``, as pipeline files write them."""
    import yaml

    name, equals, value = setting.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise ConfigError(f"--set {setting}: RULE=THRESHOLD is needed, such as too_few_words=30 or too_few_words=null")
    try:
        return name.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"--set {setting}: {value!r} is no number and not null") from None


@app.command("what-if")
def what_if(
    path: ArtifactPath,
    settings: Annotated[list[str], typer.Option("--set", metavar="RULE=THRESHOLD", help="RULE=0.5, or RULE=null: off")],
) -> None:
    """Show what other thresholds would keep, by language, from stored signals alone."""
    from gristmill.pipelines.signals import signal_table, stage_of
    from gristmill.stages.artifact import open_artifact
    from gristmill.stages.heuristics import rules

    artifact = open_artifact(path)
    node, stage = stage_of(artifact, "heuristics")
    changes = dict(_threshold(setting) for setting in settings)
    in_force = stage.rules()  # type: ignore[attr-defined]
    after = rules.change_rules(in_force, changes)
    wanted = {rules.PREFIX + rule.signal for rule in after} | {"n_bytes"}
    columns = sorted(wanted | ({rules.LANGUAGE_COLUMN} & set(artifact.schema.names)))
    result = rules.what_if(signal_table(artifact, node, columns), in_force, changes)
    table = Table("language", "documents", "kept now", "kept then", "change", "bytes now", "bytes then")
    rows = result.to_pylist()
    total = {key: sum(row[key] for row in rows) for key in result.column_names if key != "language"}
    for row in [*rows, {"language": "all", **total}]:
        change = row["kept_after"] - row["kept_before"]
        numbers = (row["docs"], row["kept_before"], row["kept_after"])
        table.add_row(
            row["language"],
            *(f"{n:,}" for n in numbers),
            f"{change:+,}",
            f"{row['bytes_before']:,}",
            f"{row['bytes_after']:,}",
        )
    console.print(table)


@app.command()
def histogram(
    path: ArtifactPath,
    signal: Annotated[str, typer.Argument(help="a signal column, see docs/signals.md")],
    bins: Annotated[int, typer.Option(min=1, max=200)] = 20,
) -> None:
    """Draw the histogram of a stored signal over all documents that were measured."""
    from gristmill.pipelines.signals import signal_table
    from gristmill.stages.artifact import open_artifact
    from gristmill.stages.errors import nearest
    from gristmill.stages.heuristics.rules import PREFIX
    from gristmill.stages.heuristics.rules import histogram as make

    artifact = open_artifact(path)
    if signal not in artifact.schema.names and PREFIX + signal in artifact.schema.names:
        signal = PREFIX + signal
    if signal not in artifact.schema.names:
        raise ConfigError(f"{path}: no signal {signal!r}.{nearest(signal, artifact.schema.names)}")
    table = signal_table(artifact, artifact.manifest.nodes[0].node, [signal])
    found = make(table.rename_columns([PREFIX + signal.removeprefix(PREFIX)]), signal.removeprefix(PREFIX), bins)
    most = max(1, int(found.docs.max()))
    for low, high, docs in zip(found.edges, found.edges[1:], found.docs, strict=False):
        console.print(Text(f"{low:>12.4g} – {high:<12.4g}{docs:>12,}  {'█' * round(40 * docs / most)}"))
    console.print(f"not measured: {found.n_null:,}", highlight=False)


@app.command()
def contamination(path: ArtifactPath) -> None:
    """Report which evaluation items were found in which documents."""
    import pyarrow.parquet as pq

    from gristmill.decontam.report import contamination_report, to_markdown
    from gristmill.pipelines.signals import stage_of
    from gristmill.stages import store
    from gristmill.stages.artifact import open_artifact
    from gristmill.stages.documents import plan_splits, read_split

    artifact = open_artifact(path)
    stage_of(artifact, "decontaminate")
    import pyarrow as pa

    schema = pa.schema([f for f in artifact.schema if f.name == "id" or f.name.startswith("contam")])

    def tables() -> Any:
        for split in plan_splits([artifact], 1):
            yield from read_split(split, schema)
        for file in artifact.manifest.rejected:
            with store.open_input(store.join(artifact.root, file.path)) as source:
                yield pq.read_table(source)

    console.print(to_markdown(contamination_report(tables())), highlight=False, markup=False)


@app.command("tokenizer")
def tokenizer_report(
    path: ArtifactPath, page: Annotated[Path | None, typer.Option("--html", help="write the report as a page")] = None
) -> None:
    """Show a trained tokenizer's report: density by language, unused and longest tokens, comparisons."""
    from gristmill.stages.artifact import open_artifact
    from gristmill.tokenizer.report import as_html, as_text

    artifact = open_artifact(path)
    if artifact.kind != "tokenizer":
        raise ConfigError(f"{path}: holds {artifact.kind}, not a tokenizer")
    console.print(as_text(artifact.manifest.report), highlight=False, markup=False)
    if page is not None:
        if not page.parent.is_dir():
            raise ConfigError(f"--html {page}: there is no folder {page.parent}")
        page.write_text(as_html(artifact.manifest.report), encoding="utf-8")


app.registered_commands.extend(loading.app.registered_commands)
