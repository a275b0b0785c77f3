"""Spark job: encode documents and write token shards.

spark-submit jobs/pack_shards.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("pack")
