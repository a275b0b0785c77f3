"""The loader under JAX: host-local rows as one globally sharded array, on CPU devices made up for the test."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.packing import Loader, TokenSpec, write_shards

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed"),
]
SPEC = TokenSpec(1000, 0, "t")
S, BATCH, STEPS = 16, 8, 5

PROGRAM = """
import json, sys
import jax
import numpy as np

root, process, processes, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if processes > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=processes, process_id=process)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from gristmill.packing.jax import global_batches, process_loader

sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
loader = process_loader(root, sequence_length=16, global_batch_size=8, seed=3, loss_mask=True)
total = jax.jit(lambda batch: {k: v.sum() for k, v in batch.items()})
kept, out = [], {"devices": len(jax.devices()), "local": len(jax.local_devices()), "steps": []}
for step, batch in zip(range(5), global_batches(loader, sharding)):
    arrays = {k: batch[k] for k in ("input_ids", "labels", "position_ids", "loss_mask")}
    assert all(a.sharding == sharding for a in arrays.values())
    kept.append(arrays)
    out["steps"].append({
        "shape": arrays["input_ids"].shape,
        "shards": [a.data.shape for a in arrays["input_ids"].addressable_shards],
        "sums": {k: int(v) for k, v in total(arrays).items()},
        "samples": batch["samples"].tolist(),
        "max_seqlen": batch["max_seqlen"],
    })
loader.close()
# Read only now, after the loader has filled its buffers again and again: nothing may have changed.
for step, arrays in zip(out["steps"], kept):
    for name in ("input_ids", "labels", "position_ids"):
        shards = sorted(arrays[name].addressable_shards, key=lambda a: a.index[0].start or 0)
        step[name] = [row for shard in shards for row in np.asarray(shard.data).tolist()]
print("result", json.dumps(out), flush=True)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    documents = [rng.integers(1, 1000, int(n)) for n in rng.integers(1, 90, 120)]
    return write_shards(tmp_path_factory.mktemp("p"), documents, SPEC, documents_per_shard=50)


def run(root: Path, processes: int, devices: int, port: int = 0) -> list[subprocess.CompletedProcess[str]]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(root), str(i), str(processes), str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for i in range(processes)
    ]  # fmt: skip
    done = []
    for process in running:
        stdout, stderr = process.communicate(timeout=300)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr))
    return done


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The collectives library writes to standard output too: take the line that is ours."""
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    return json.loads(line.removeprefix("result "))  # type: ignore[no-any-return]


def check(root: Path, found: list[dict[str, Any]]) -> None:
    """What the processes hold together is what one loader delivers."""
    whole = Loader(root, sequence_length=S, batch_size=BATCH, seed=3, prefetch=0, loss_mask=True)
    for step in range(STEPS):
        batch = next(whole)
        parts = [result["steps"][step] for result in found]
        assert [t for part in parts for t in part["samples"]] == batch["samples"].tolist()
        for name in ("input_ids", "labels", "position_ids"):
            assert [row for part in parts for row in part[name]] == batch[name].tolist()
            assert all(part["sums"][name] == int(batch[name].sum()) for part in parts)
        assert all(part["sums"]["loss_mask"] == int(batch["loss_mask"].sum()) for part in parts)
        assert all(part["shape"] == [BATCH, S] for part in parts)
        assert max(part["max_seqlen"] for part in parts) == batch["max_seqlen"]


def test_rows_become_one_array_over_four_devices(root: Path) -> None:
    (done,) = run(root, 1, 4)
    assert done.returncode == 0, done.stderr
    result = result_of(done)
    assert result["devices"] == result["local"] == 4
    assert all(step["shards"] == [[2, S]] * 4 for step in result["steps"])
    check(root, [result])


def test_two_processes_hold_their_rows_of_one_array(root: Path) -> None:
    for _ in range(3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        done = run(root, 2, 2, port)
        taken = any(d.returncode and ("ddress already in use" in d.stderr or "bind" in d.stderr) for d in done)
        if not taken:
            break
    assert [d.returncode for d in done] == [0, 0], done[0].stderr + done[1].stderr
    results = [result_of(d) for d in done]
    assert [(r["devices"], r["local"]) for r in results] == [(4, 2), (4, 2)]
    check(root, results)
