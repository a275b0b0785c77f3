"""Spark job: remove near-duplicates by MinHash LSH, verified.

spark-submit jobs/dedup_fuzzy.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("fuzzy_dedup")
