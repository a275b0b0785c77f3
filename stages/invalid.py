"""Pydantic's validation errors as sentences for the person who wrote the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from gristmill.stages.errors import nearest

_NEEDED = {
    "string": "a text",
    "int": "an integer",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
    "mapping": "a mapping",
    "model": "a mapping",
    "path": "a path",
}
"""First part of pydantic's error type -> what is needed."""


def describe_invalid(error: ValidationError, model: type[BaseModel], data: Any, where: str) -> str:
    """Return one sentence per problem: the key, what is needed, what was got and the nearest right word.

    `data` is what was validated; `where` goes before every key.
    """
    problems: dict[str, list[str]] = {}
    found = error.errors()
    paths = [_path(item, data) for item in found]
    for item, path in zip(found, paths, strict=True):
        # A list whose items are wrong is also reported as too short: only the items are the mistake.
        if any(other[: len(path)] == path and len(other) > len(path) for other in paths):
            continue
        key = ".".join([where, *map(str, path)])
        text = _sentence(item, model)
        problems.setdefault(key, [])
        if text not in problems[key]:
            problems[key].append(text)
    return "\n".join(_line(key, texts) for key, texts in problems.items())


def _line(key: str, texts: list[str]) -> str:
    if len(texts) == 1 and texts[0].startswith(key):
        return texts[0]
    halves = [text.partition(" is needed, got ") for text in texts]
    if all(middle for _, middle, _ in halves):
        return f"{key}: {' or '.join(dict.fromkeys(kind for kind, _, _ in halves))} is needed, got {halves[0][2]}"
    return f"{key}: {'; '.join(texts)}"


def _path(item: Any, data: Any) -> tuple[Any, ...]:
    """Return where in `data` the problem is: `loc` without the names of the types that were tried."""
    path: list[Any] = []
    last = len(item["loc"]) - 1
    for n, part in enumerate(item["loc"]):
        inside = isinstance(data, Mapping) and part in data
        inside |= isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
        if inside:
            data = data[part]
        if inside or not path or (item["type"] == "missing" and n == last):
            path.append(part)
    return tuple(path)


def _sentence(item: Any, model: type[BaseModel]) -> str:
    kind, got, context = item["type"], item["input"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key.{nearest(str(item['loc'][-1]), _keys(model, item['loc']))}"
    if kind == "missing":
        return "this key is required"
    if kind == "value_error":
        return str(item["msg"].removeprefix("Value error, "))
    if kind == "literal_error":
        words = [word.strip(" '") for word in context["expected"].replace(" or ", ", ").split(",")]
        return f"must be {context['expected']}, got {got!r}.{nearest(str(got), words)}".removesuffix(".")
    if kind == "too_short":
        least = context["min_length"]
        return (
            f"at least {least} {'item' if least == 1 else 'items'} {'is' if least == 1 else 'are'} needed, got {got!r}"
        )
    needed = _NEEDED.get(kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float"))
    if needed is None:
        return f"{item['msg'].replace('Input should', 'must').replace('valid ', '')}, got {got!r}"
    hint = f"; write [{got}]" if needed == "a list" and isinstance(got, str) else ""
    return f"{needed} is needed, got {got!r}{hint}"


def _keys(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Return the keys that could have been meant at `loc`: the model's, or those of models inside its first key."""
    if len(loc) == 1:
        return list(model.model_fields)
    first = model.model_fields.get(str(loc[0]))
    return [key for inner in _models(first.annotation if first else None) for key in inner.model_fields]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
