"""Spark job: find and mask personal data.

spark-submit jobs/scrub_pii.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("pii")
