"""Spark job: score documents with a fastText model.

spark-submit jobs/filter_classifier.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("classifier")
