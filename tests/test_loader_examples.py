"""The examples of the documentation, run for real: trained, killed with kill -9, and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from gristmill.packing import TokenSpec, write_shards

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"
PATIENCE = 300.0
"""Seconds after which waiting is given up; no test depends on how long anything takes."""

ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents that count upwards, so that there is something to learn."""
    rng = np.random.default_rng(1)
    documents = [1 + (np.arange(int(n)) + int(first)) % 199 for n, first in rng.integers(1, 190, (400, 2))]
    return write_shards(tmp_path_factory.mktemp("p"), documents, TokenSpec(200, 0, "t"), documents_per_shard=150)


def test_a_killed_training_run_resumed_as_two_ranks_has_the_same_losses(root: Path, tmp_path: Path) -> None:
    import torch

    def start(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(EXAMPLES / "train_tiny_gpt.py"), str(root), *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)

    def losses(lines: list[str]) -> dict[int, float]:
        return {int(line.split()[0]): float(line.split()[1]) for line in lines}

    def finish(*options: str) -> dict[int, float]:
        process = start(*options)
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        return losses(out.splitlines())

    whole = finish()
    assert list(whole) == list(range(30))
    assert whole[29] < 0.9 * whole[0]
    state = tmp_path / "state"
    process = start("--state", str(state))
    assert process.stdout is not None
    seen = [process.stdout.readline() for _ in range(12)]
    process.kill()
    process.wait()
    seen += [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    process.stdout.close()
    saved = torch.load(state, weights_only=True)["data"]["step"]
    assert 11 <= saved <= len(seen)
    rest = finish("--state", str(state), "--world", "2")
    assert list(rest) == list(range(saved, 30))
    before = losses(seen[:saved])
    assert before == {step: whole[step] for step in range(saved)}
    assert rest == pytest.approx({step: whole[step] for step in rest}, abs=2e-4)


@pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("accelerate") is None,
    reason="transformers and accelerate are not installed",
)
def test_a_killed_hugging_face_trainer_goes_on_with_the_same_losses(root: Path, tmp_path: Path) -> None:
    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(EXAMPLES / "huggingface_trainer.py"), str(root), str(out)]
        with (tmp_path / "errors").open("wb") as errors:
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=ENVIRONMENT)

    def finish(out: Path) -> dict[int, float]:
        assert start(out).wait(timeout=PATIENCE) == 0, (tmp_path / "errors").read_text()
        history = json.loads((out / "checkpoint-40" / "trainer_state.json").read_text())["log_history"]
        return {entry["step"]: entry["loss"] for entry in history if "loss" in entry}

    whole = finish(tmp_path / "whole")
    assert list(whole) == list(range(5, 41, 5))
    assert whole[40] < whole[5]
    killed = start(tmp_path / "killed")
    until = time.monotonic() + PATIENCE
    while not (tmp_path / "killed" / "checkpoint-20" / "loader.json").exists():
        assert killed.poll() is None, (tmp_path / "errors").read_text()
        assert time.monotonic() < until
        time.sleep(0.01)
    killed.kill()
    # If it was done before the signal came, what follows still has to hold.
    assert killed.wait() in (-signal.SIGKILL, 0)
    assert finish(tmp_path / "killed") == pytest.approx(whole, abs=2e-4)
    final = json.loads((tmp_path / "killed" / "checkpoint-40" / "loader.json").read_text())
    assert (final["delivered"], final["step"]) == (160, 40)
