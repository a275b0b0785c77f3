"""Run by `train` in a process of its own: ``python -m gristmill.stages.classifier.fit LINES MODEL ARGUMENTS``.

fastText with one thread sets only the first tenth of its input matrix and leaves the rest as the allocator gave
it. In a process that has freed memory before, that is garbage: the model is another one each time, or training
ends in "Encountered NaN". Here the allocator is told to hand out zeros, so the same lines give the same model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gristmill.stages.errors import RunError

ZEROED = {"MALLOC_PERTURB_": "255", "GLIBC_TUNABLES": "glibc.malloc.perturb=255"}
"""glibc fills new memory with the complement of this byte: zero. Elsewhere large blocks come zeroed anyway."""


def fit(lines: Path, model_path: Path, arguments: dict[str, Any], cutoff: int | None) -> None:
    """Train on a file of ``__label__x text`` lines and write the model; `cutoff`: rows of a quantised one.

    Raises:
        RunError: fastText gave up; ends with its own last line.
    """
    given = json.dumps({"arguments": arguments, "cutoff": cutoff})
    command = [sys.executable, "-m", "gristmill.stages.classifier.fit", str(lines), str(model_path), given]
    done = subprocess.run(command, env={**os.environ, **ZEROED}, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise RunError(f"training {model_path} failed: {last}")


def main(lines: str, model_path: str, given: str) -> None:
    """Do the work."""
    import fasttext as package

    options = json.loads(given)
    model = package.train_supervised(lines, **options["arguments"])
    if options["cutoff"]:
        model.quantize(lines, qnorm=True, retrain=False, cutoff=options["cutoff"], thread=1, verbose=0)
    model.save_model(model_path)


if __name__ == "__main__":
    main(*sys.argv[1:])
