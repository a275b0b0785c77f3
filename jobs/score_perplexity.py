"""Spark job: score documents with a KenLM model.

spark-submit jobs/score_perplexity.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("perplexity")
