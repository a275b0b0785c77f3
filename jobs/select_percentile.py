"""Spark job: keep the best share of the documents by a score.

spark-submit jobs/select_percentile.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("classifier_percentile")
