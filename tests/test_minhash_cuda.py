"""The CUDA kernel under the simulator equals the CPU kernel bit for bit (in a process of its own)."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import random, warnings
warnings.simplefilter("ignore")
import numpy as np, pyarrow as pa
from gristmill.stages.kernels import minhash_cuda, shingles
from gristmill.stages.kernels.views import text_view

assert minhash_cuda.available()
rng = random.Random(3)
letters = "ab Zé.,09\\u0301\\u200b\\u00ad\\n_中文字カท한Ａ😀٣"
texts = ["", " . ", "one", "a b c d e", "two words", "w" * 200, "x" + "\\u0301" * 150 + "y z", "中" * 90]
texts += ["".join(rng.choice(letters) for _ in range(rng.randint(0, 160))) for _ in range(8)]
texts += [" ".join("abcdefg"[i % 7] * (i % 5 + 1) for i in range(300))]
offsets_D1, data_B = text_view(pa.array(["skipped", *texts], pa.large_string()).slice(1))
norm_C = shingles.normal_table()
import sys
mode = sys.argv[1]
from gristmill.stages.kernels import minhash
a_K, b_K = minhash.permutations(70, 5)
if mode == "cpu":
    result = minhash.signatures(offsets_D1, data_B, norm_C, 5, a_K, b_K)
else:
    result = minhash_cuda.signatures(offsets_D1, data_B, norm_C, 5, a_K, b_K, max_blocks=5)
print(result[0].astype(np.uint32).tobytes().hex(), result[1].tolist())
"""


def _run(mode: str) -> str:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, mode], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_simulated_gpu_equals_the_cpu():
    on_gpu = _run("gpu")
    assert len(on_gpu) > 1000
    assert on_gpu == _run("cpu")
