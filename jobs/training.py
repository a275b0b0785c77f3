"""The command that trains a classifier from artifacts of documents."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gristmill.pipelines.console import make_console
from gristmill.stages.errors import ConfigError

app = typer.Typer()
console = make_console()


@app.command("train-classifier")
def train_classifier(
    model: Annotated[str, typer.Argument(help="where the model goes: MODEL.bin, or MODEL.ftz for a quantised one")],
    examples: Annotated[
        list[str],
        typer.Argument(help="artifacts of documents by label, LABEL=DIR; the report speaks of the first label"),
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="a training option; see docs/classifier.md")
    ] = None,
) -> None:
    """Train a fastText classifier and report how good it is on held-out documents. Does not start Spark.

    For example: gristmill train-classifier quality.bin positive=out/books negative=out/web
    """
    from gristmill.stages.classifier.train import train_from_artifacts

    options = _options(settings or [], model)
    artifacts: dict[str, list[str]] = {}
    for item in examples:
        label, equals, folder = item.partition("=")
        if not equals or not label or not folder:
            raise ConfigError(f"{item}: examples are written LABEL=DIR, for example positive=out/books")
        artifacts.setdefault(label, []).append(folder)
    trained = train_from_artifacts(artifacts, model, options)
    counts = ", ".join(f"{n:,} {label}" for label, n in trained.n_trained.items())
    console.print(f"trained on {counts} documents -> {trained.model_path}", highlight=False)
    for report in trained.reports:
        console.print(report.to_markdown(), highlight=False, markup=False)
    for path in trained.write_report():
        console.print(f"report: {path}", highlight=False, soft_wrap=True)


def _options(settings: list[str], model: str) -> Any:
    import yaml
    from pydantic import ValidationError

    from gristmill.stages.classifier.train import TrainingOptions
    from gristmill.stages.invalid import describe_invalid

    given: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {setting}: it is written KEY=VALUE")
        try:
            given[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            given[key] = text
    try:
        options = TrainingOptions(**given)
    except ValidationError as error:
        raise ConfigError(describe_invalid(error, TrainingOptions, given, "--set")) from None
    if model.endswith(".ftz") != options.quantise:
        raise ConfigError(f"{model}: a quantised model ends in .ftz (--set quantise=true), another one in .bin")
    return options
