"""Spark job: read raw files into the document table.

spark-submit jobs/ingest_documents.py PIPELINE.yaml [--stage NODE] [--output DIR] [--set stage.key=value]
"""

from __future__ import annotations

from gristmill.jobs.submit import main

if __name__ == "__main__":
    main("ingest")
