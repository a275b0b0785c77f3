"""Spark job: remove documents that contain evaluation items.

spark-submit jobs/remove_contamination.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("decontaminate")
