"""Spark job: remove repeated spans.

spark-submit jobs/dedup_spans.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("span_dedup")
