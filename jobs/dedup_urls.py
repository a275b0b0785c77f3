"""Spark job: keep one document a URL, the latest.

spark-submit jobs/dedup_urls.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("url_dedup")
