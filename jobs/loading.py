"""Commands about the loader: what a run will read, and what a loss spike was made of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gristmill.pipelines.console import make_console
from gristmill.stages.errors import ConfigError

if TYPE_CHECKING:
    from gristmill.packing import Loader
    from gristmill.packing.forensics import SuspectRow

app = typer.Typer()
console = make_console()

MAX_STEPS = 1 << 40
MAX_ROWS = 1 << 20
"""Rows that `spike` looks at together."""

ShardPaths = Annotated[list[str], typer.Argument(help="shard sets, NAME=DIR[:WEIGHT] or DIR; local or s3://")]
Length = Annotated[int, typer.Option("--sequence-length", help="inputs a row")]
Rows = Annotated[int, typer.Option("--batch-size", help="rows a rank and step")]
Seed = Annotated[int, typer.Option()]
Packing = Annotated[str, typer.Option(help="concat, best_fit or document")]
Balance = Annotated[bool, typer.Option("--balance", help="steps and ranks of about equal attention cost")]
World = Annotated[int, typer.Option("--world-size", help="ranks")]
State = Annotated[
    Path | None,
    typer.Option(
        "--state", help="a saved loader state (JSON): seed, length, packing, weights and skips of that run are used"
    ),
]
TokenizerFile = Annotated[Path | None, typer.Option("--tokenizer", help="tokenizer.json, to show text")]
CacheFolder = Annotated[Path | None, typer.Option("--cache", help="folder for chunks of remote shards")]


@dataclass(frozen=True)
class Run:
    """A run as the command line describes it."""

    paths: list[str]
    sequence_length: int
    batch_size: int
    seed: int
    pack: str
    balance: bool
    world_size: int
    state: Path | None
    cache: Path | None

    @contextmanager
    def loader(self) -> Iterator[Loader]:
        """Make the run's loader, at its first step.

        Raises:
            ConfigError: a path without shards, or anything else that the user got wrong.
        """
        from gristmill.packing import ArgumentError, ShardFormatError, ShardMissingError, StateError

        try:
            with self._make() as made:
                yield made
        except (ArgumentError, ShardFormatError, ShardMissingError, StateError) as error:
            raise ConfigError(str(error)) from None

    def _make(self) -> Loader:
        from gristmill.packing import Cache, Loader

        for option, value in (
            ("--sequence-length", self.sequence_length),
            ("--batch-size", self.batch_size),
            ("--world-size", self.world_size),
        ):
            if value < 1:
                raise ConfigError(f"{option} {value}: it must be at least 1")
        cache = Cache(self.cache) if self.cache is not None else None
        saved = read_state(self.state) if self.state is not None else None
        sources, weights = self._sources(saved, cache)
        common: dict[str, Any] = {"batch_size": self.batch_size, "world_size": self.world_size, "prefetch": 0}
        if saved is None:
            made = Loader(
                sources, sequence_length=self.sequence_length, seed=self.seed, pack=self.pack, weights=weights or None,
                balance=self.balance, cache=cache, **common,
            )  # fmt: skip
        else:
            made = Loader(sources, cache=cache, **common, **options_of(saved["plan"]))
            made.load_state_dict(saved)
            made.seek(0)
        longest = max(source.shards.n_tokens for source in made.plan.sources)
        if made.plan.sequence_length > longest:
            raise ConfigError(
                f"--sequence-length {made.plan.sequence_length:,}: the longest source has {longest:,} tokens"
            )
        return made

    def _sources(self, saved: dict[str, Any] | None, cache: Any) -> tuple[dict[str, list[str]], dict[str, float]]:
        from gristmill.packing import open_shards

        known: dict[str, str] = dict(saved["plan"]["sources"]) if saved is not None else {}
        sources: dict[str, list[str]] = {}
        weights: dict[str, float] = {}
        for item in self.paths:
            name, equals, rest = item.partition("=")
            folder, weight = split_weight(rest if equals else item)
            if not equals:
                name = Path(folder).name
                if len(known) == 1:
                    name = next(iter(known))
                elif known:
                    identity = open_shards(folder, cache=cache).identity
                    name = next((n for n, i in known.items() if i == identity), name)
            sources.setdefault(name, []).append(folder)
            if weight is not None:
                weights[name] = weight
        without = [name for name in sources if name not in weights]
        if weights and without and saved is None:
            raise ConfigError(f"{without[0]}: give every source a weight (NAME=DIR:WEIGHT), or none")
        return sources, weights


def split_weight(text: str) -> tuple[str, float | None]:
    """Return folder and weight of ``DIR[:WEIGHT]``."""
    found = re.fullmatch(r"(.+):([0-9]+(?:\.[0-9]+)?)", text)
    return (found[1], float(found[2])) if found else (text, None)


def read_state(path: Path) -> dict[str, Any]:
    """Return a saved loader state.

    Raises:
        ConfigError: no such file, or it is something else.
    """
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--state {path}: {error.strerror if isinstance(error, OSError) else error}") from None
    if not isinstance(saved, dict) or saved.get("magic") != "gristmill-loader" or "plan" not in saved:
        raise ConfigError(f"--state {path}: not a saved state of the loader; write it with loader.state_dict()")
    return saved


def options_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Loader` that give a plan with these facts."""
    from gristmill.packing import Change, Shuffle
    from gristmill.packing.balance import SUFFIX

    shuffle, declared, caps = facts["shuffle"], facts["weights"], facts["epochs"]
    out: dict[str, Any] = {
        "sequence_length": facts["sequence_length"],
        "seed": facts["seed"],
        "pack": facts["pack"],
        "balance": any(isinstance(how, list) and how[0].endswith(SUFFIX) for how in facts["layouts"].values()),
    }
    if isinstance(shuffle, list):
        kind, *sizes = shuffle
        names = ("block_items", "window_blocks") if kind == "blocks" else ("n_strata",)
        out["shuffle"] = Shuffle(kind, **dict(zip(names, sizes, strict=True)))
    else:
        out["shuffle"] = shuffle
    lengths = [Change(start, sequence_length=length) for start, length in facts["lengths"]]
    out["curriculum"] = [*(tuple(change) for change in declared[1:]), *lengths]
    if declared:
        out["weights"] = declared[0][1]
        out["epochs"] = {name: cap for name, cap in caps.items() if cap is not None} or None
    else:
        out["epochs"] = next(iter(caps.values())) or float("inf")
    return out


def parse_steps(text: str) -> tuple[int, int]:
    """Return A and B of ``A:B``.

    Raises:
        ConfigError: it is written otherwise, or is empty.
    """
    found = re.fullmatch(r"([0-9]{1,15}):([0-9]{1,15})", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise ConfigError(f"--steps {text}: it is written A:B, two step numbers with A < B")
    return int(found[1]), int(found[2])


def decoder(path: Path, identity: str) -> Callable[[Sequence[int]], str]:
    """Return what turns ids into text.

    Raises:
        ConfigError: not a tokenizer, or not the one that the shards were encoded with.
    """
    import hashlib

    from gristmill.tokenizer.encode import load_encoder

    encoder = load_encoder(str(path))
    got = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    if got != identity:
        raise ConfigError(f"--tokenizer {path}: the shards were encoded with another one ({identity}, this is {got})")
    return lambda ids: encoder.decode(ids).decode("utf-8", "replace")


def write_page(path: Path, content: str) -> None:
    """Write a report. Raises: ConfigError."""
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {path}: {error.strerror}") from None


@app.command("plan-loader")
def plan_loader(
    paths: ShardPaths,
    sequence_length: Length = 4096,
    batch_size: Rows = 8,
    seed: Seed = 0,
    pack: Packing = "concat",
    balance: Balance = False,
    world_size: World = 1,
    steps: Annotated[int | None, typer.Option(help="steps that will be trained; default: the whole run")] = None,
    state: State = None,
    cache: CacheFolder = None,
    tokenizer: TokenizerFile = None,
) -> None:
    """Print steps, tokens by source, epochs, bytes, requests and the first row of a run, before it is launched."""
    from gristmill.packing.report import describe_plan, plan_text

    if steps is not None and not 1 <= steps <= MAX_STEPS:
        raise ConfigError(f"--steps {steps}: it must be from 1 to {MAX_STEPS:,}")
    with Run(paths, sequence_length, batch_size, seed, pack, balance, world_size, state, cache).loader() as loader:
        decode = decoder(tokenizer, loader.plan.sources[0].shards.tokenizer) if tokenizer is not None else None
        console.print(plan_text(describe_plan(loader, steps), decode), highlight=False, markup=False)


@app.command()
def spike(
    paths: ShardPaths,
    steps: Annotated[str, typer.Option(help="A:B, the steps [A, B) around the spike")],
    sequence_length: Length = 4096,
    batch_size: Rows = 8,
    seed: Seed = 0,
    pack: Packing = "concat",
    balance: Balance = False,
    world_size: World = 1,
    state: State = None,
    cache: CacheFolder = None,
    tokenizer: TokenizerFile = None,
    page: Annotated[Path | None, typer.Option("--html", help="write the report as a page")] = None,
    skip: Annotated[
        Path | None, typer.Option("--skip", help="add the window to this skip list, which the loader takes as skip=")
    ] = None,
    documents: Annotated[
        bool, typer.Option("--documents", help="with --skip: list the documents of the rows and not the rows")
    ] = False,
    above: Annotated[
        float | None, typer.Option(help="with --skip: only rows of at least this score; default: the whole window")
    ] = None,
) -> None:
    """Decode what was delivered in a window of steps, the strangest sequences first, and list it to be skipped."""
    from gristmill.packing.forensics import spike_html, spike_report, spike_text

    first, last = parse_steps(steps)
    if skip is None and (documents or above is not None):
        raise ConfigError("--documents and --above say what --skip FILE lists: give that file")
    if (last - first) * max(1, batch_size) * max(1, world_size) > MAX_ROWS:
        raise ConfigError(f"--steps {steps}: at most {MAX_ROWS:,} rows are looked at together")
    with Run(paths, sequence_length, batch_size, seed, pack, balance, world_size, state, cache).loader() as loader:
        decode = decoder(tokenizer, loader.plan.sources[0].shards.tokenizer) if tokenizer is not None else None
        rows = spike_report(loader, first, last)
    console.print(spike_text(rows, decode), highlight=False, markup=False)
    if page is not None:
        write_page(page, spike_html(rows, decode))
    if skip is not None:
        _list(skip, rows, documents, above)


def _list(path: Path, rows: list[SuspectRow], documents: bool, above: float | None) -> None:
    """Add rows, or their documents, to a skip list and say what it holds now."""
    from gristmill.packing import ShardCorruptError, ShardFormatError
    from gristmill.packing.forensics import windows_of
    from gristmill.packing.skipfile import read_skip_file, write_skip_file

    chosen = [row for row in rows if above is None or row.score >= above]
    windows = [] if documents else windows_of(chosen)
    ids = sorted({document for row in chosen for document in row.documents}) if documents else []
    try:
        write_skip_file(path, windows, ids)
        all_windows, all_documents = read_skip_file(path)
    except (ShardFormatError, ShardCorruptError) as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"--skip {path}: {error.strerror}") from None
    added = f"{len(ids):,} documents" if documents else f"{len(chosen):,} rows in {len(windows):,} windows"
    console.print(
        f"{path}: {added} added; it holds {len(all_windows):,} windows and {len(all_documents):,} documents. "
        f'Start the run again with Loader(..., skip="{path}")',
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
