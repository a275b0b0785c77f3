"""Spark job: train a byte-level BPE tokenizer.

spark-submit jobs/train_tokenizer.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("tokenizer")
