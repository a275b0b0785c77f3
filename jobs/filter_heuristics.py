"""Spark job: measure quality signals and apply a rule table.

spark-submit jobs/filter_heuristics.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("heuristics")
