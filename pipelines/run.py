"""Running a plan: each unit that is not up to date becomes a committed artifact, in order."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from gristmill.pipelines.commit import commit
from gristmill.pipelines.plan import Plan, Unit
from gristmill.stages import runtime, store
from gristmill.stages.artifact import Artifact
from gristmill.stages.base import BatchStage, GlobalStage, SourceStage
from gristmill.stages.context import Context, from_records
from gristmill.stages.documents import Split, plan_splits, read_split
from gristmill.stages.errors import ConfigError
from gristmill.stages.ledger import Entry
from gristmill.stages.passes import PassPlan, Sink, output_schema
from gristmill.stages.progress import Counters


class Reporter(Protocol):
    """Is told what happens, for people to see."""

    def begin(self, unit: Unit, counters: Counters) -> None:
        """A unit starts; `counters` move while it runs."""

    def compiling(self, unit: Unit) -> None:
        """A unit waits for its kernels, which are compiled once on a machine; `begin` follows."""

    def end(self, unit: Unit, artifact: Artifact, seconds: float, fresh: bool) -> None:
        """A unit's artifact is there; `fresh` is False if it was already."""


@dataclass
class Done:
    """A unit's artifact and how it came about."""

    unit: Unit
    artifact: Artifact
    seconds: float
    fresh: bool


@dataclass
class Result:
    """What a run leaves, in order."""

    units: list[Done] = field(default_factory=list)

    @property
    def n_fresh(self) -> int:
        """Units that had work to do."""
        return sum(done.fresh for done in self.units)


def run(plan: Plan, reporter: Reporter, only: str | None = None, master: str | None = None) -> Result:
    """Make every artifact of a plan that is not there yet; with `only`, just the unit of that node.

    Raises:
        RunError: a stage failed, the ledger does not balance, a guard rate was exceeded.
        ConfigError: `only` needs an artifact that another job must make first.
    """
    with _alone(plan.root):
        return _run(plan, reporter, only, master)


@contextlib.contextmanager
def _alone(root: str) -> Iterator[None]:
    """Hold a lock on a local output directory; it goes with the process, however that ends.

    Raises:
        ConfigError: another run is using the directory.
    """
    if not store.is_local(root):
        yield
        return
    path = Path(root.removeprefix("file://")) / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{root}: another run is using this output directory; wait, or use --output") from None
        yield


def _run(plan: Plan, reporter: Reporter, only: str | None, master: str | None) -> Result:
    result = Result()
    made: dict[str, Artifact] = {}
    wanted = plan.unit_of(only) if only else None
    spark: Any = None
    warming: Warming | None = None
    for unit in plan.units:
        artifact = plan.done(unit)
        if artifact is None and wanted is not None and unit != wanted:
            if unit.name in wanted.inputs:
                raise ConfigError(f"{only}: its input {unit.name} is not there yet; run the job of {unit.name} first")
            continue
        fresh = artifact is None
        started = time.monotonic()
        if artifact is None:
            # Starting Spark is nobody's work: the clock of the unit begins after it.
            if spark is None:
                warming = Warming(plan)
                warming.start()
                spark = runtime.session(f"gristmill {plan.pipeline.name}", master, plan.pipeline.spark)
            if warming is not None and not isinstance(unit.nodes[0].stage, SourceStage):
                warming.finish(unit, reporter.compiling)
            started = time.monotonic()
            counters = Counters(unit.name)
            reporter.begin(unit, counters)
            artifact = execute(plan, unit, [made[i] for i in unit.inputs], spark, counters)
        made[unit.name] = artifact
        if wanted is None or unit == wanted:
            seconds = time.monotonic() - started
            reporter.end(unit, artifact, seconds, fresh)
            result.units.append(Done(unit, artifact, seconds, fresh))
        if unit == wanted:
            break
    return result


PATIENCE_SECONDS = 2.0
"""A wait for kernels that is longer is worth a word."""


class Warming(threading.Thread):
    """Compiles the kernels of every unit that has work to do, here, while Spark starts and earlier units run.

    Without it each Python worker of a machine would compile the same kernels at the same time.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(daemon=True)
        self._plan = plan
        self._compiled = {unit.name: threading.Event() for unit in plan.units}
        self._mistake: ConfigError | None = None

    def run(self) -> None:
        """Warm the stages. One that fails on its sample fails again, with its place, where it is run."""
        for unit in self._plan.units:
            if self._plan.done(unit) is None:
                self._warm(unit)
            self._compiled[unit.name].set()

    def _warm(self, unit: Unit) -> None:
        schema = unit.input_schema
        for node in unit.nodes:
            try:
                node.stage.warm(schema)
            except ConfigError as error:
                self._mistake = self._mistake or ConfigError(f"{node.name}: {error}")
            except Exception:
                logging.getLogger(__name__).debug("%s: not warmed", node.name, exc_info=True)
            if isinstance(node.stage, BatchStage):
                schema = output_schema(schema, node.stage)

    def finish(self, unit: Unit, tell: Callable[[Unit], None]) -> None:
        """Wait until this unit's kernels are compiled; `tell` it if that takes a while.

        Raises:
            ConfigError: a stage found a mistake in its configuration, this unit's or one so far.
        """
        if not self._compiled[unit.name].wait(PATIENCE_SECONDS):
            tell(unit)
            self._compiled[unit.name].wait()
        if self._mistake is not None:
            raise self._mistake


def execute(plan: Plan, unit: Unit, inputs: list[Artifact], spark: Any, counters: Counters) -> Artifact:
    """Make and commit one unit's artifact."""
    context = Context(
        spark=spark,
        root=plan.root,
        directory=store.join(plan.root, unit.directory),
        node=unit.name,
        seed=plan.pipeline.seed,
        parallelism=spark.sparkContext.defaultParallelism,
        counters=counters,
    )
    counters.total_docs = sum(a.n_docs for a in inputs)
    counters.total_bytes = sum(a.n_bytes for a in inputs)
    started, clock = datetime.now(UTC), time.monotonic()
    last = unit.nodes[-1].stage
    if isinstance(last, GlobalStage):
        outcome = last.run(context, inputs)
        if not outcome.ledger and counters.total_docs:
            outcome.ledger = [_read_only(unit.name, inputs)]
    else:
        splits, pass_plan = _pass(unit, context, inputs)
        records = context.run_pass(pass_plan, splits)
        names = [node.name for node in unit.nodes]
        outcome = from_records(records, names, unit.output_schema)
    run = {
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - clock, 3),
        "spark": spark.version,
        "parallelism": context.parallelism,
    }
    return commit(unit, context, outcome, inputs, run)


def _read_only(node: str, inputs: list[Artifact]) -> Entry:
    """Return the entry of a stage that reads documents and removes none."""
    entry = Entry(node)
    for artifact in inputs:
        entry.into.add(artifact.n_docs, artifact.n_bytes)
        entry.kept.add(artifact.n_docs, artifact.n_bytes)
    return entry


def _pass(unit: Unit, context: Context, inputs: list[Artifact]) -> tuple[list[Any], PassPlan]:
    first = unit.nodes[0].stage
    if isinstance(first, SourceStage):
        schema = unit.output_schema
        reader = partial(first.read, unit.name, schema)
        return first.splits(context), PassPlan(context.directory, reader, (), schema, schema)
    steps = tuple((node.name, node.stage) for node in unit.nodes if isinstance(node.stage, BatchStage))
    reader = partial(read_documents, unit.input_schema)
    plan = PassPlan(context.directory, reader, steps, unit.input_schema, unit.output_schema)
    return list(plan_splits(inputs, context.parallelism)), plan


def read_documents(schema: pa.Schema, split: Split, sink: Sink) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a split of an earlier artifact."""
    return read_split(split, schema)
