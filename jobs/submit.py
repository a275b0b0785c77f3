"""What every job does: run the unit of a pipeline that holds a stage, under spark-submit or plain Python."""

from __future__ import annotations

import argparse
import sys

from gristmill.pipelines import config
from gristmill.pipelines.console import make_console
from gristmill.pipelines.plan import plan
from gristmill.pipelines.report import ConsoleReporter, ledger_table
from gristmill.pipelines.run import run
from gristmill.stages.errors import ConfigError, GristmillError


def main(stage: str) -> None:
    """Parse ``PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]`` and run.

    Runs the artifact that the node belongs to (batch stages next to each other share one); its inputs must be
    there. Exits 0 when done or up to date, 1 if the run failed, 2 if the user's input is wrong.
    """
    parser = argparse.ArgumentParser(description=f"Run the {stage} stage of a pipeline.")
    parser.add_argument("pipeline", help="pipeline file (YAML)")
    parser.add_argument("--stage", help=f"node name, if the pipeline has several stages of type {stage}")
    parser.add_argument("--output", help="directory of artifacts")
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.KEY=VALUE", dest="settings")
    given = parser.parse_args()
    console = make_console()
    reporter = ConsoleReporter(console)
    try:
        planned = plan(config.load(given.pipeline, given.output, tuple(given.settings)))
        nodes = [n.name for n in planned.pipeline.nodes if n.stage.name == stage]
        if given.stage is None and len(nodes) != 1:
            found = f"has {', '.join(nodes)}: choose one with --stage" if nodes else "has none"
            raise ConfigError(f"{given.pipeline}: one stage of type {stage} is needed, it {found}")
        result = run(planned, reporter, only=given.stage or nodes[0])
        console.print(ledger_table(result.units[-1].artifact.ledger))
    except GristmillError as error:
        reporter.close()
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, ConfigError) else 1) from None
