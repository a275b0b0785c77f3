"""Spark job: remove lines that many documents share.

spark-submit jobs/dedup_lines.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("line_dedup")
