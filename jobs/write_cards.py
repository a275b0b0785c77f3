"""Spark job: write a data card for each shard.

spark-submit jobs/write_cards.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("cards")
