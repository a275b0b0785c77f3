"""Workers and executors that die in the middle of a run change nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_fuzzy_dedup import OPTIONS, designed, oracle

from gristmill.stages.fuzzy_dedup import FuzzyDedup

SCRIPT = """
import json, os, random, signal, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import psutil
from dedup_corpus import make_artifact, removed, run_stage
from test_fuzzy_dedup import OPTIONS, designed

from gristmill.stages import connected_components, fuzzy_dedup, runtime
from gristmill.stages.dedup.sketch import Sketch
from gristmill.stages.fuzzy_dedup import FuzzyDedup

root, master, whole_executor = Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "executor"


def die_once(where):
    try:
        os.close(os.open(root / ("died-in-" + where), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    victim = psutil.Process()
    while whole_executor and victim.name() != "java":
        victim = victim.parent()
    victim.send_signal(signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class Killing(Sketch):
    def keys(self, texts):
        die_once("keys")
        return Sketch.keys(self, texts)

    def sets(self, texts):
        die_once("sets")
        return Sketch.sets(self, texts)


def stars(large, batches):
    for batch in connected_components._star_stream(large, batches):
        die_once("large-star" if large else "small-star")
        yield batch


def decisions(*arguments):
    for batch in fuzzy_dedup.decide_stream(*arguments):
        die_once("decisions")
        yield batch


class Watched(FuzzyDedup):
    def sketch(self):
        plain = FuzzyDedup.sketch(self)
        return Killing(plain.n, plain.bands, plain.rows, plain.seed, plain.digits_alike, plain.device)


connected_components._star_stream = stars
fuzzy_dedup.decide_stream = decisions
documents = designed()
random.Random(5).shuffle(documents)
artifact = make_artifact(root, documents, 5)
conf = {"spark.driver.memory": "1g", "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "3"}
conf["spark.sql.adaptive.coalescePartitions.enabled"] = "false"
spark = runtime.session("killed", master, conf)
outcome = run_stage(spark, Watched.build(**OPTIONS, driver_keys=0, driver_edges=0), artifact)
spark.stop()
print("RESULT" + json.dumps([removed(outcome), sorted(p.name for p in root.glob("died-in-*"))]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "master"), [("worker", "local[2,8]"), ("executor", "local-cluster[2,1,1024]")])
def test_a_killed_process_changes_no_removal_and_no_kept_id(tmp_path, victim, master):
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(here), str(tmp_path), master, victim],
        env={**os.environ, "PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found, deaths = json.loads(done.stdout.rpartition("RESULT")[2])
    assert deaths == [f"died-in-{where}" for where in ("decisions", "keys", "large-star", "sets", "small-star")]
    expected = oracle(designed(), FuzzyDedup.build(**OPTIONS))
    assert {id_: tuple(kept) for id_, kept in found.items()} == expected
