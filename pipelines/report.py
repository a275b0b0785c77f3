"""What people see: live progress while a plan runs, the tree of stages, the ledger."""

from __future__ import annotations

import threading
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from gristmill.pipelines.plan import Plan, Unit
from gristmill.pipelines.run import Result
from gristmill.stages.artifact import Artifact
from gristmill.stages.ledger import Entry
from gristmill.stages.progress import Counters

LINE_SECONDS = 10.0


def size(n_bytes: float) -> str:
    """Return bytes in decimal units, three digits: ``1.23 MB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(n_bytes) < 999.5 or unit == "TB":
            return f"{n_bytes:,.0f} B" if unit == "B" else f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    raise AssertionError


def status_line(counters: Counters) -> str:
    """Return documents, bytes, MB/s, kept %, and time to go of a running unit, as one line."""
    docs, n_bytes, seconds = counters.docs, counters.n_bytes, counters.seconds
    words = [f"{docs:,} documents", size(n_bytes)]
    if n_bytes:
        words.append(f"{n_bytes / 1e6 / max(seconds, 1e-3):,.1f} MB/s")
    if counters.kept:
        words.append(f"kept {counters.kept / max(docs, 1):.1%}")
    if len(counters.sweeps) > 1:
        words.append(f"sweep {len(counters.sweeps)}")
    if counters.total_bytes and 0 < n_bytes < counters.total_bytes and len(counters.sweeps) == 1:
        words.append(f"ETA {seconds * (counters.total_bytes - n_bytes) / n_bytes:,.0f} s")
    if counters.skipped_splits:
        words.append(f"{counters.skipped_splits:,} splits done before")
    return ", ".join(words)


class ConsoleReporter:
    """Shows progress: a live line on a terminal, a plain line every ten seconds elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, unit: Unit, counters: Counters) -> None:
        """Start showing a unit."""
        label = " + ".join(node.name for node in unit.nodes)
        self._stop.clear()
        target = self._live if self._console.is_terminal else self._lines
        self._thread = threading.Thread(target=target, args=(label, counters), daemon=True)
        self._thread.start()

    def compiling(self, unit: Unit) -> None:
        """Say what the first run on a machine waits for."""
        label = " + ".join(node.name for node in unit.nodes)
        self._console.print(f"  {label}: waiting for its kernels to be compiled, once on a machine", highlight=False)

    def _live(self, label: str, counters: Counters) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[line]}"))
        with Progress(*columns, console=self._console, transient=True) as progress:
            task: TaskID = progress.add_task(label, total=counters.total_bytes or None, line="")
            while not self._stop.wait(0.3):
                progress.update(task, completed=counters.n_bytes, line=status_line(counters))

    def _lines(self, label: str, counters: Counters) -> None:
        while not self._stop.wait(LINE_SECONDS):
            self._console.print(f"  {label}: {status_line(counters)}", highlight=False)

    def end(self, unit: Unit, artifact: Artifact, seconds: float, fresh: bool) -> None:
        """Stop showing a unit and say how it ended."""
        self.close()
        label = " + ".join(node.name for node in unit.nodes)
        if not fresh:
            self._console.print(f"  {label}: up to date ({artifact.directory})", highlight=False)
            return
        counts = ""
        if artifact.ledger:
            first, last = artifact.ledger[0], artifact.ledger[-1]
            rate = first.into.n_bytes / 1e6 / max(seconds, 1e-9)
            counts = (
                f"{first.into.docs:,} documents in, {last.kept.docs:,} kept, "
                f"{size(first.into.n_bytes)}, {rate:,.1f} MB/s, "
            )
        self._console.print(f"  {label}: {counts}{seconds:,.1f} s -> {artifact.directory}", highlight=False)

    def close(self) -> None:
        """Stop the display, also after an error."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def plan_tree(plan: Plan) -> Tree:
    """Return the DAG with what would run and what is up to date."""
    tree = Tree(f"[bold]{plan.pipeline.name}[/bold]  -> {plan.root}")
    for unit in plan.units:
        state = "[green]up to date[/green]" if plan.done(unit) else "[yellow]to run[/yellow]"
        after = f"  <- {', '.join(unit.inputs)}" if unit.inputs else ""
        branch = tree.add(f"[bold]{' + '.join(n.name for n in unit.nodes)}[/bold]{after}  {state}  {unit.directory}")
        for node in unit.nodes:
            changed = node.stage.model_dump(mode="json", exclude_defaults=True)
            settings = ", ".join(f"{k}: {v}" for k, v in changed.items())
            branch.add(Text(f"{node.stage.name}  {settings}".rstrip()))
    return tree


def result_tree(result: Result, plan: Plan) -> Tree:
    """Return the pipeline with counts, as it ran."""
    tree = Tree(f"[bold]{plan.pipeline.name}[/bold]")
    for done in result.units:
        rate = done.artifact.ledger[0].into.n_bytes / 1e6 / max(done.seconds, 1e-9) if done.artifact.ledger else 0
        how = f"{done.seconds:.1f} s, {rate:,.1f} MB/s" if done.fresh else "up to date"
        branch = tree.add(f"[bold]{done.artifact.directory}[/bold]  [dim]{how}[/dim]")
        for entry in done.artifact.ledger:
            branch.add(entry_text(entry))
    return tree


def entry_text(entry: Entry) -> Text:
    """Return one ledger entry as one line."""
    text = Text(f"{entry.stage}: {entry.into.docs:,} documents ({size(entry.into.n_bytes)}) -> ")
    text.append(f"{entry.kept.docs:,}", style="bold")
    text.append(f" ({size(entry.kept.n_bytes)})")
    if entry.into.docs and entry.kept.docs != entry.into.docs:
        text.append(f", kept {entry.kept.docs / entry.into.docs:.1%}")
    return text


def ledger_table(entries: list[Entry]) -> Table:
    """Return documents and bytes in = kept + rejected + quarantined + edited, as a table."""
    table = Table(title="Ledger: in = kept + rejected + quarantined + edited away", title_justify="left")
    table.add_column("stage")
    table.add_column("what")
    table.add_column("documents", justify="right")
    table.add_column("bytes", justify="right")
    for entry in entries:
        table.add_row(f"[bold]{entry.stage}[/bold]", "in", f"{entry.into.docs:,}", f"{entry.into.n_bytes:,}")
        for kind in ("rejected", "quarantined", "edited"):
            counts: dict[str, Any] = getattr(entry, kind)
            for reason, count in sorted(counts.items(), key=lambda item: (-item[1].docs, item[0])):
                docs = f"({count.docs:,})" if kind == "edited" else f"{count.docs:,}"
                table.add_row("", f"{kind}: {reason}", docs, f"{count.n_bytes:,}")
        table.add_row("", "kept", f"{entry.kept.docs:,}", f"{entry.kept.n_bytes:,}", end_section=True)
    return table
