"""Spark job: flag or remove documents whose vectors are nearly the same.

spark-submit jobs/dedup_semantic.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("semantic_dedup")
