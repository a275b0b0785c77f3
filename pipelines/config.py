"""A pipeline file: YAML to nodes, every mistake found before Spark starts and named with the nearest right word."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gristmill.stages.base import SourceStage, Stage
from gristmill.stages.errors import ConfigError, nearest
from gristmill.stages.registry import get

TOP_KEYS = ("name", "seed", "output", "fuse", "spark", "stages")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Node:
    """One node of the DAG: its name, its stage with its configuration, and the nodes that it reads."""

    name: str
    stage: Stage
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Pipeline:
    """A validated pipeline. `nodes` are in an order in which each comes after its inputs."""

    name: str
    seed: int
    output: str
    fuse: bool
    spark: dict[str, str]
    nodes: tuple[Node, ...]
    path: str = ""
    by_name: dict[str, Node] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self.by_name.update({node.name: node for node in self.nodes})


def load(path: str, output: str | None = None, settings: tuple[str, ...] = ()) -> Pipeline:
    """Read a pipeline file and apply ``stage.key=value`` settings.

    Raises:
        ConfigError: the file is missing or not YAML, a key or stage is unknown, an input is missing or goes in
            a circle, a value is out of bounds; the message names it and the nearest right one.
    """
    file = Path(path)
    try:
        data = _yaml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        folder = file.parent if file.parent.is_dir() else Path()
        raise ConfigError(f"{path}: no such pipeline file.{nearest(file.name, _yaml_names(folder))}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable: {error}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        place = f"{path}, line {where.line + 1}" if where else path
        raise ConfigError(f"{place}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    return build(data, output, settings, path)


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that stands twice in a mapping is an error: one of the two would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep)


def _yaml(text: str) -> Any:
    return yaml.load(text, _UniqueKeys)


def _yaml_names(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.suffix in (".yaml", ".yml")]


def build(data: Any, output: str | None = None, settings: tuple[str, ...] = (), path: str = "pipeline") -> Pipeline:
    """Validate a pipeline given as plain data. Raises: ConfigError."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path}: a pipeline is a mapping with the keys {', '.join(TOP_KEYS)}")
    for key in data:
        if key not in TOP_KEYS:
            raise ConfigError(f"{path}: {key}: unknown key.{nearest(str(key), TOP_KEYS)}")
    raw = data.get("stages")
    if not isinstance(raw, Mapping) or not raw:
        raise ConfigError(f"{path}: stages: a mapping of at least one named stage is needed")
    options = {
        str(name): dict(value or {}) if isinstance(value, Mapping | None) else value for name, value in raw.items()
    }
    for name, value in options.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{path}: stages.{name}: a name has letters, digits, _, - and ., and begins with a letter"
            )
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: stages.{name}: a mapping is needed, got {value!r}")
    top = {
        "name": data.get("name", Path(path).stem),
        "seed": data.get("seed", 0),
        "output": output or data.get("output", "out"),
        "fuse": data.get("fuse", True),
        "spark": dict(spark) if isinstance(spark := data.get("spark") or {}, Mapping) else spark,
    }
    _apply(settings, options, top)
    for key in ("name", "output"):
        if not isinstance(top[key], str) or not top[key]:
            raise ConfigError(f"{path}: {key}: a text that is not empty is needed, got {top[key]!r}")
    if not isinstance(top["seed"], int) or isinstance(top["seed"], bool):
        raise ConfigError(f"{path}: seed: an integer is needed, got {top['seed']!r}")
    if not isinstance(top["fuse"], bool):
        raise ConfigError(f"{path}: fuse: true or false is needed, got {top['fuse']!r}")
    if not isinstance(top["spark"], dict):
        raise ConfigError(f"{path}: spark: a mapping of Spark settings is needed, got {top['spark']!r}")
    for key, value in top["spark"].items():
        if not str(key).startswith("spark."):
            raise ConfigError(f"{path}: spark.{key}: names of Spark settings begin with 'spark.'")
        if not isinstance(value, str | int | float | bool):
            raise ConfigError(f"{path}: spark: {key}: a text, a number, true or false is needed, got {value!r}")
    nodes = _nodes(options, path)
    return Pipeline(
        name=str(top["name"]),
        seed=top["seed"],
        output=os.path.expanduser(top["output"]),  # noqa: PTH111 - URIs stay as they are
        fuse=top["fuse"],
        spark={str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in top["spark"].items()},
        nodes=_sorted(nodes, path),
        path=path,
    )


def _apply(settings: tuple[str, ...], options: dict[str, dict[str, Any]], top: dict[str, Any]) -> None:
    for setting in settings:
        target, equals, text = setting.partition("=")
        node, dot, key = target.partition(".")
        if not equals:
            raise ConfigError(f"--set {setting}: it is written stage.key=value")
        try:
            value = _yaml(text)
        except yaml.constructor.ConstructorError as error:
            raise ConfigError(f"--set {setting}: {error.problem}") from None
        except yaml.YAMLError:
            value = text
        if not dot:
            if node not in top:
                raise ConfigError(f"--set {setting}: unknown key.{nearest(node, top)}")
            top[node] = value
            continue
        if node == "spark" and node not in options:
            # spark.executor.memory=2g means the setting of that name; spark.spark.executor.memory is its place here.
            top["spark"][key if key.startswith("spark.") else target] = value
            continue
        if node not in options:
            raise ConfigError(f"--set {setting}: the pipeline has no stage {node!r}.{nearest(node, options)}")
        where = options[node]
        *parents, last = key.split(".")
        for parent in parents:
            where = where.setdefault(parent, {})
            if not isinstance(where, dict):
                raise ConfigError(f"--set {setting}: {parent!r} is not a mapping")
        where[last] = value


def _nodes(options: dict[str, dict[str, Any]], path: str) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for name, given in options.items():
        config = dict(given)
        kind = config.pop("stage", name)
        inputs = config.pop("inputs", None)
        try:
            stage_class = get(str(kind))
        except ConfigError as error:
            raise ConfigError(f"{path}: stages.{name}: {error}") from None
        stage = stage_class.build(name, **{str(k): v for k, v in config.items()})
        if isinstance(stage, SourceStage):
            if inputs:
                raise ConfigError(f"{path}: stages.{name}: {kind} reads files, it takes no inputs")
            wanted: tuple[str, ...] = ()
        elif inputs is None:
            wanted = _nearest_inputs(stage, nodes)
            if not wanted:
                raise ConfigError(f"{path}: stages.{name}: nothing before it makes {' or '.join(stage.input_kinds)}")
        else:
            wanted = (inputs,) if isinstance(inputs, str) else tuple(inputs) if isinstance(inputs, list | tuple) else ()
            if not wanted or len(set(map(str, wanted))) < len(wanted) or not all(isinstance(i, str) for i in wanted):
                raise ConfigError(
                    f"{path}: stages.{name}.inputs: names of stages, each once, are needed, got {inputs!r}"
                )
        for item in wanted:
            if item not in options:
                raise ConfigError(f"{path}: stages.{name}.inputs: no stage {item!r} here.{nearest(item, options)}")
        nodes[name] = Node(name, stage, wanted)
    return nodes


def _nearest_inputs(stage: Stage, before: dict[str, Node]) -> tuple[str, ...]:
    """Return, for each kind of input, the last node before it in the file that makes this kind."""
    last = {node.stage.output_kind: node.name for node in before.values()}
    return tuple(last[kind] for kind in stage.input_kinds if kind in last)


def _sorted(nodes: dict[str, Node], path: str) -> tuple[Node, ...]:
    """Return the nodes with each after its inputs, otherwise in file order."""
    done: dict[str, Node] = {}
    while len(done) < len(nodes):
        ready = [n for n in nodes.values() if n.name not in done and all(i in done for i in n.inputs)]
        if not ready:
            circle = ", ".join(n for n in nodes if n not in done)
            raise ConfigError(f"{path}: stages: inputs go in a circle among {circle}")
        done[ready[0].name] = ready[0]
    return tuple(done.values())
