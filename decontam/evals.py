"""Evaluation sets, read from the files people have: JSON Lines, JSON, CSV, TSV and Parquet, plain, .gz or .zst.

Fields are found by the names that well-known benchmarks use, or named in the configuration. Rows of the same
question (one row an option, as in some MMLU dumps) become one item.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gristmill.stages.errors import ConfigError, nearest

FIELDS = ("question", "answer", "choice", "passage")
"""Parts of an item; only the first three decide by default."""

KNOWN = {
    "id": ("id", "task_id", "_id", "qid", "question_id", "item_id", "uid", "eval_instance_index", "ind", "idx",
        "index"),
    "question": (
        "question", "query", "prompt", "problem", "instruction", "input", "question_stem", "stem", "goal", "ctx",
        "sentence", "sent", "startphrase", "premise", "text", "claim", "Question", "问题", "题目", "题干",
    ),
    "answer": (
        "answer", "answers", "target", "canonical_solution", "solution", "completion", "output", "response",
        "correct_answer", "best_answer", "gold", "label", "answerKey", "answer_idx", "Answer", "答案", "解析",
    ),
    "choice": (
        "choices", "options", "endings", "candidates", "mc1_targets", "incorrect_answers", "sol1", "sol2", "option1",
        "option2", "distractor1", "distractor2", "distractor3", "ending0", "ending1", "ending2", "ending3",
        "choice1", "choice2", "A", "B", "C", "D", "E", "hypothesis", "选项", "question.choices",
    ),
    "passage": (
        "passage", "context", "article", "document", "background", "story", "paragraph", "support", "fact1", "code",
        "文章", "材料", "背景",
    ),
}  # fmt: skip
"""Names tried in this order by the automatic mapping: for id and question the first present one, else all."""

_ROWS = ("examples", "data", "rows", "questions", "instances", "items", "train", "test", "validation")
_PREFIX = re.compile(r"^\s*(?:question|query|q|problem|问题|题目|问)\s*[:：]\s*", re.IGNORECASE)
_OPTION = re.compile(r"^\s*[(（]?[A-Ha-h][)）.．、:：]\s*")


class EvalSet(BaseModel):
    """One evaluation set: where it is, which fields it has, and what counts as contamination for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(description="file or glob; 'builtin:demo' is the small set that comes with gristmill")
    name: str | None = Field(default=None, description="name in reports and reasons; default: the file's name")
    id: str | None = Field(default=None, description="field of the item's id; dots reach into objects")
    question: tuple[str, ...] | str | None = Field(default=None, description="field or fields of the question")
    answer: tuple[str, ...] | str | None = Field(default=None, description="field or fields of the right answer")
    choice: tuple[str, ...] | str | None = Field(default=None, description="field or fields of answer options")
    passage: tuple[str, ...] | str | None = Field(default=None, description="field or fields of the text asked about")
    min_tokens: int | None = Field(default=None, ge=5, description="longest common run that flags, if above the n-gram")
    min_ratio: float = Field(default=0.0, ge=0, le=1, description="least share of the item's tokens that flags")
    allow: tuple[str, ...] = Field(default=(), description="ids of items that are never reported")

    def files(self) -> tuple[Path, ...]:
        """Return the files in name order.

        Raises:
            ConfigError: nothing there; names the path and the nearest file that exists.
        """
        if self.path == "builtin:demo":
            return (Path(__file__).with_name("data") / "demo_eval.jsonl",)
        if self.path.startswith("builtin:"):
            raise ConfigError(f"evaluation set {self.path!r} does not come with gristmill; builtin:demo does")
        found = sorted(glob.glob(self.path, recursive=True)) if glob.has_magic(self.path) else [self.path]  # noqa: PTH207 - absolute patterns too
        paths = tuple(path for path in map(Path, found) if path.is_file())
        if not paths and any(Path(path).is_dir() for path in found):
            raise ConfigError(
                f"evaluation set {self.path!r} is a directory; write {self.path.rstrip('/')}/* for its files"
            )
        if not paths:
            raise ConfigError(f"evaluation set {self.path!r} does not exist.{_nearest_path(Path(self.path))}")
        return paths

    def title(self) -> str:
        """Return the name in reports: the given one, else the file's name without suffixes and glob signs."""
        if self.name:
            return self.name
        stem = self.path.partition(":")[2] if self.path.startswith("builtin:") else Path(self.path).name
        return re.sub(r"[\W_]+$", "", re.sub(r"[*?\[\]]+.*", "", stem.split(".")[0])) or "eval"


@dataclass
class Item:
    """One question with everything that belongs to it."""

    set_name: str
    item_id: str
    question: str = ""
    answer: str = ""
    choices: list[str] = field(default_factory=list)
    passage: str = ""


def load_items(spec: EvalSet) -> list[Item]:
    """Return the items of one set in file order, rows of one question merged.

    Raises:
        ConfigError: a file is missing, unreadable, or has no field that the mapping knows.
    """
    merged: dict[tuple[str, str], Item] = {}
    for path in spec.files():
        seen: list[str] = []
        count = 0
        for number, row in enumerate(_rows(path)):
            seen = seen or list(row)
            item = _item(spec, row, f"{number}")
            if not (item.question or item.passage or item.answer):
                continue
            count += 1
            first = merged.setdefault((item.question, item.passage), item)
            if first is not item:
                first.choices += [text for text in item.choices if text not in first.choices]
                first.answer = first.answer or item.answer
        if not count and not seen:
            raise ConfigError(f"evaluation set {path}: holds no rows")
        if not count:
            raise ConfigError(
                f"evaluation set {path}: no question found in fields {', '.join(seen)}; "
                f"name it with `question:`. Known by themselves: {', '.join(KNOWN['question'])}"
            )
    allowed = set(spec.allow)
    return [item for item in merged.values() if item.item_id not in allowed]


def _item(spec: EvalSet, row: Mapping[str, Any], number: str) -> Item:
    identity = _first(row, (spec.id,) if spec.id else KNOWN["id"])
    item = Item(spec.title(), str(identity) if identity is not None else number)
    question = _given(spec.question, row) if spec.question else _texts(_first(row, KNOWN["question"]))[:1]
    item.question = _PREFIX.sub("", " ".join(question)).strip()
    item.passage = " ".join(_given(spec.passage, row) if spec.passage else _all(row, KNOWN["passage"]))
    choices = _given(spec.choice, row) if spec.choice else _all(row, KNOWN["choice"])
    item.choices = [_OPTION.sub("", text) for text in choices]
    answers = _given(spec.answer, row) if spec.answer else _all(row, KNOWN["answer"])
    named = [_named_choice(text, item.choices) for text in answers]
    if row.get("is_correct") is False:
        item.choices += named
    else:
        item.answer = max(named, key=len, default="")
        item.choices += [text for text in named if text not in (item.answer, *item.choices)]
    item.choices = [text for text in item.choices if text != item.answer]
    return item


def _named_choice(answer: str, choices: list[str]) -> str:
    """Return the option that an answer such as ``B``, ``(B)`` or ``1`` points at, else the answer itself."""
    short = answer.strip().strip("().（）")
    if len(short) == 1 and choices:
        position = "ABCDEFGH".find(short.upper()) if short.isalpha() else int(short) if short.isdecimal() else -1
        if 0 <= position < len(choices):
            return choices[position]
    return answer


def _lookup(row: Mapping[str, Any], name: str) -> Any:
    value: Any = row.get(name)
    if value is None and "." in name:
        value = row
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _first(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    for name in names:
        value = _lookup(row, name)
        if value is not None and value != "":
            return value
    return None


def _all(row: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    return [text for name in names for text in _texts(_lookup(row, name))]


def _given(names: tuple[str, ...] | str, row: Mapping[str, Any]) -> list[str]:
    return _all(row, (names,) if isinstance(names, str) else names)


def _texts(value: Any) -> list[str]:
    """Return the texts in a field: a string, a number, a list, or an object such as ``{"text": [...]}``."""
    if value is None or isinstance(value, bool):
        return []
    if isinstance(value, str):
        return [value] if value.strip() else []
    if isinstance(value, int | float):
        return [str(value)]
    if isinstance(value, Mapping):
        for key in ("text", "stem", "value", "choices", "content"):
            if key in value:
                return _texts(value[key])
        return [text for part in value.values() for text in _texts(part)]
    return [text for part in value for text in _texts(part)]


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    try:
        if ".parquet" in suffixes:
            import pyarrow.parquet as pq

            yield from pq.read_table(path).to_pylist()
            return
        text = _read_text(path)
        if ".csv" in suffixes or ".tsv" in suffixes:
            yield from csv.DictReader(io.StringIO(text), delimiter="\t" if ".tsv" in suffixes else ",")
        elif text.lstrip()[:1] == "[" or ".json" in suffixes:
            yield from _json_rows(json.loads(text), path)
        else:
            for number, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    try:
                        yield from _json_rows([json.loads(line)], path)
                    except json.JSONDecodeError as error:
                        raise ConfigError(f"evaluation set {path}, line {number:,}: {error}") from None
    except (OSError, EOFError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"evaluation set {path} cannot be read: {error}") from error


def _read_text(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".zst":
        import zstandard

        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    return data.decode("utf-8-sig")


def _json_rows(value: Any, path: Path) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        for key in _ROWS:
            if isinstance(value.get(key), list):
                value = value[key]
                break
        else:
            value = list(value.values()) if all(isinstance(row, Mapping) for row in value.values()) else [value]
    if not isinstance(value, list):
        raise ConfigError(f"evaluation set {path}: a list of objects is needed, got {type(value).__name__}")
    for row in value:
        if not isinstance(row, Mapping):
            raise ConfigError(f"evaluation set {path}: each row must be an object, got {type(row).__name__}")
        yield row


def _nearest_path(path: Path) -> str:
    """Return a hint: the nearest name beside `path`, or the nearest folder that exists."""
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    if folder == path.parent:
        hint = nearest(path.name, sorted(entry.name for entry in folder.iterdir()))
        return hint or f" {folder} has no similar file"
    return f" The nearest folder that exists is {folder}"
