"""Spark job: remove exact duplicates.

spark-submit jobs/dedup_exact.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("exact_dedup")
