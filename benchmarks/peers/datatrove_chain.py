"""datatrove's filters and MinHash deduplication on a folder of JSON Lines, timed; run by an environment that has it.

python datatrove_chain.py INPUT_DIR WORK_DIR WORKERS -> one JSON line {"seconds": {...}, "version": ...}
"""

import json
import logging
import shutil
import sys
import time
from importlib.metadata import version
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.hashing import HashConfig


def main() -> None:
    """Run the chain, each step as its own executor, and print the seconds of each."""
    source, work, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    shutil.rmtree(work, ignore_errors=True)
    logging.disable(logging.CRITICAL)
    config = MinhashConfig(hash_config=HashConfig(precision=64), num_buckets=14, hashes_per_bucket=8, n_grams=5)
    steps = {
        "filters": (
            [
                JsonlReader(str(source)),
                GopherRepetitionFilter(),
                GopherQualityFilter(),
                C4QualityFilter(filter_no_terminal_punct=False),
                FineWebQualityFilter(),
                PIIFormatter(),
                JsonlWriter(str(work / "filtered")),
            ],
            workers,
        ),
        "signatures": (
            [JsonlReader(str(source)), MinhashDedupSignature(str(work / "signatures"), config=config, language="eng")],
            workers,
        ),
        "buckets": (
            [MinhashDedupBuckets(str(work / "signatures"), str(work / "buckets"), config=config)],
            config.num_buckets,
        ),
        "cluster": ([MinhashDedupCluster(str(work / "buckets"), str(work / "remove"), config=config)], 1),
        "filter": (
            [JsonlReader(str(source)), MinhashDedupFilter(str(work / "remove")), JsonlWriter(str(work / "kept"))],
            workers,
        ),
    }
    seconds = {}
    for name, (pipeline, tasks) in steps.items():
        start = time.monotonic()
        LocalPipelineExecutor(
            pipeline=pipeline, tasks=tasks, workers=workers, logging_dir=str(work / "logs" / name), start_method="fork"
        ).run()
        seconds[name] = time.monotonic() - start
    print(json.dumps({"seconds": seconds, "version": version("datatrove")}))


if __name__ == "__main__":
    main()
