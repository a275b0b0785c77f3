"""Stages by name.

Ours are listed here and imported on first use; others come from the entry-point group ``gristmill.stages``
(name -> ``module:Class``).
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from gristmill.stages.base import Stage
from gristmill.stages.errors import ConfigError, nearest

BUILT_IN = {
    "ingest": "gristmill.stages.ingest.stage:Ingest",
    "language": "gristmill.stages.language:Language",
    "heuristics": "gristmill.stages.heuristics:Heuristics",
    "classifier": "gristmill.stages.classifier:Classifier",
    "classifier_percentile": "gristmill.stages.classifier.percentile:ClassifierPercentile",
    "perplexity": "gristmill.stages.perplexity:Perplexity",
    "pii": "gristmill.stages.pii:Pii",
    "url_dedup": "gristmill.stages.url_dedup:UrlDedup",
    "exact_dedup": "gristmill.stages.exact_dedup:ExactDedup",
    "fuzzy_dedup": "gristmill.stages.fuzzy_dedup:FuzzyDedup",
    "semantic_dedup": "gristmill.stages.semantic_dedup:SemanticDedup",
    "line_dedup": "gristmill.stages.line_dedup:LineDedup",
    "span_dedup": "gristmill.stages.span_dedup:SpanDedup",
    "decontaminate": "gristmill.decontam.stage:Decontaminate",
    "tokenizer": "gristmill.tokenizer.stage:Tokenizer",
    "pack": "gristmill.stages.pack:Pack",
    "cards": "gristmill.stages.cards:Cards",
}


def names() -> list[str]:
    """Return every registered name, ours in the order of a pipeline, then plug-ins by name."""
    plugins = sorted(point.name for point in entry_points(group="gristmill.stages"))
    return [*BUILT_IN, *(name for name in plugins if name not in BUILT_IN)]


@cache
def get(name: str) -> type[Stage]:
    """Return the stage class registered as `name`.

    Raises:
        ConfigError: no such stage; names the nearest one.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
    for point in entry_points(group="gristmill.stages"):
        if point.name == name:
            return point.load()  # type: ignore[no-any-return]
    raise ConfigError(f"unknown stage {name!r}.{nearest(name, names())} Known: {', '.join(names())}")


def create(name: str, **options: Any) -> Any:
    """Build any registered stage by name: ``create("heuristics", preset="fineweb")``.

    Raises:
        ConfigError: unknown stage, unknown key, wrong type or value out of bounds.
    """
    return get(name).build(**options)
