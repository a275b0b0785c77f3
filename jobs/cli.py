"""The command line: `gristmill --help` lists what there is.

Exit codes: 0 done, 1 the run failed, 2 the user's input is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gristmill.jobs import analysis, training
from gristmill.pipelines.console import make_console
from gristmill.stages.errors import ConfigError, GristmillError

app = typer.Typer(
    help="Raw text in, exactly-resumable training batches out, every dropped byte accounted for.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
console = make_console()

PipelineFile = Annotated[str, typer.Argument(help="pipeline file (YAML)", metavar="PIPELINE.yaml")]
Output = Annotated[str | None, typer.Option(help="directory of artifacts; default: the pipeline's own")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="STAGE.KEY=VALUE", help="change one setting")]


def _plan(pipeline: str, output: str | None, settings: list[str] | None) -> Any:
    from gristmill.pipelines import config
    from gristmill.pipelines.plan import plan

    return plan(config.load(pipeline, output, tuple(settings or ())))


@app.command()
def run(
    pipeline: PipelineFile,
    output: Output = None,
    settings: Settings = None,
    master: Annotated[str | None, typer.Option(help="Spark master; default: all local cores")] = None,
) -> None:
    """Run a pipeline: what is up to date is skipped, what was interrupted is resumed."""
    from gristmill.pipelines.report import ConsoleReporter, ledger_table, result_tree
    from gristmill.pipelines.run import run as run_plan

    planned = _plan(pipeline, output, settings)
    reporter = ConsoleReporter(console)
    try:
        result = run_plan(planned, reporter, master=master)
    finally:
        reporter.close()
    if result.n_fresh == 0:
        console.print(f"{planned.pipeline.name}: up to date, nothing to do. Artifacts are in {planned.root}")
        return
    console.print()
    console.print(result_tree(result, planned))
    console.print()
    console.print(ledger_table([entry for done in result.units for entry in done.artifact.ledger]))
    _epilogue([done.artifact for done in result.units])


def _epilogue(artifacts: list[Any]) -> None:
    """Say where the data card is and show the first batch, as a trainer would get it."""
    for artifact in artifacts:
        if artifact.kind == "cards":
            pages = [f.path for f in artifact.manifest.files if f.path.endswith(".html")]
            for page in pages[:3]:
                console.print(f"data card: {artifact.root}/{page}", highlight=False, soft_wrap=True)
        if artifact.kind == "shards":
            from gristmill.pipelines.preview import first_batch

            console.print(first_batch(artifact.path), highlight=False)


@app.command()
def plan(pipeline: PipelineFile, output: Output = None, settings: Settings = None) -> None:
    """Print the DAG: what would run and what is up to date. Does not start Spark."""
    from gristmill.pipelines.report import plan_tree

    console.print(plan_tree(_plan(pipeline, output, settings)))


@app.command()
def stages(name: Annotated[str | None, typer.Argument(help="a stage: print its configuration")] = None) -> None:
    """List the stages, or print the configuration of one."""
    from gristmill.pipelines.show import stage_table, stages_table

    console.print(stages_table() if name is None else stage_table(name))


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="an artifact or a shard")],
    rows: Annotated[int, typer.Option(help="rows to show of each kind", min=0)] = 3,
) -> None:
    """Show an artifact or a shard as a person wants to read it."""
    from gristmill.pipelines.show import inspect_path

    inspect_path(path, rows, console)


@app.command()
def card(path: Annotated[str, typer.Argument(help="an artifact of data cards or shards")]) -> None:
    """Print the data cards of an artifact."""
    from gristmill.pipelines.show import card_text

    console.print(card_text(path), highlight=False, markup=False)


@app.command()
def export(
    path: Annotated[str, typer.Argument(help="an artifact of documents")],
    target: Annotated[str, typer.Argument(help="directory for plain Parquet files")],
) -> None:
    """Write the documents of an artifact, removed rows left out, as plain Parquet files for other tools."""
    from gristmill.pipelines.show import export_documents

    n_docs, n_files = export_documents(path, target)
    console.print(f"{n_docs:,} documents in {n_files:,} files -> {target}", highlight=False)


@app.command()
def doctor(
    warm: Annotated[bool, typer.Option("--warm", help="compile all kernels now, so that no task has to")] = False,
) -> None:
    """Say what is missing on this machine and how to get it."""
    from gristmill.pipelines.doctor import examine, warm_kernels

    missing = examine(console)
    if warm:
        console.print(f"kernels compiled in {warm_kernels():.1f} s", highlight=False)
    if missing:
        raise SystemExit(1)


app.registered_commands.extend(analysis.app.registered_commands)
app.registered_commands.extend(training.app.registered_commands)


def main() -> None:
    """Run the command line."""
    from gristmill.packing import ArgumentError, PackingError

    try:
        app()
    except (GristmillError, PackingError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, ConfigError | ArgumentError) else 1) from None
    except OSError as error:
        place = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"error: {place}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]
    main()
