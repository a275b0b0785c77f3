"""spark-submit jobs make the same artifacts as `gristmill run`; the command line's other commands work on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from conftest import write_jsonl
from test_pipeline import corpus
from typer.testing import CliRunner

from gristmill.jobs.cli import app
from gristmill.stages import runtime

ROOT = Path(__file__).resolve().parent.parent
Run = Callable[..., dict[str, Any]]


def stages(path: Path) -> dict[str, Any]:
    return {"web": {"stage": "ingest", "path": str(path)}, "pii": {}, "exact_dedup": {}}


def submit(job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]", f"jobs/{job}.py"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": runtime.find_java()}
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def tree(root: Path) -> dict[str, bytes]:
    """Everything that artifacts hold, except the record of when and where they were made."""
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file() and p.name != "run.json"
    }


@pytest.mark.slow
def test_three_jobs_in_a_row_make_the_same_files_as_one_run(run_pipeline: Run, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", corpus(200))
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump({"name": "t", "stages": stages(tmp_path / "in")}, sort_keys=False))
    run_pipeline(stages(tmp_path / "in"), tmp_path / "run", name="t")
    sockets = set(Path("/tmp").glob("gristmill-*"))
    early = submit("dedup_exact", str(file), "--output", str(tmp_path / "jobs"))
    assert early.returncode == 2, early.stderr
    assert "run the job of pii first" in early.stdout + early.stderr
    for job in ("ingest_documents", "scrub_pii", "dedup_exact"):
        done = submit(job, str(file), "--output", str(tmp_path / "jobs"))
        assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "jobs") == tree(tmp_path / "run")
    again = submit("dedup_exact", str(file), "--output", str(tmp_path / "jobs"))
    assert "up to date" in again.stdout
    assert set(Path("/tmp").glob("gristmill-*")) <= sockets


def test_a_job_without_its_stage_says_so(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", corpus(5))
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump({"stages": stages(tmp_path / "in")}, sort_keys=False))
    done = subprocess.run(
        [sys.executable, "jobs/train_tokenizer.py", str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "one stage of type tokenizer is needed, it has none" in done.stderr


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-m", "gristmill.jobs.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_plan_inspect_and_export_show_what_is_there(run_pipeline: Run, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", corpus(60))
    file = tmp_path / "p.yaml"
    file.write_text(
        yaml.safe_dump(
            {"name": "t", "output": str(tmp_path / "out"), "stages": stages(tmp_path / "in")}, sort_keys=False
        )
    )
    before = cli("plan", str(file))
    assert before.returncode == 0
    assert before.stdout.count("to run") == 3
    made = run_pipeline(stages(tmp_path / "in"), tmp_path / "out", name="t")
    assert cli("plan", str(file)).stdout.count("up to date") == 3
    shown = cli("inspect", made["exact_dedup"].path)
    assert shown.returncode == 0
    assert "exact_duplicate" in shown.stdout
    assert "kept_id=" in shown.stdout
    exported = cli("export", made["exact_dedup"].path, str(tmp_path / "plain"))
    assert exported.returncode == 0
    import pyarrow.parquet as pq

    assert pq.read_table(tmp_path / "plain").num_rows == made["exact_dedup"].n_docs
    assert cli("export", made["exact_dedup"].path, str(tmp_path / "plain")).returncode == 2
    assert cli("inspect", str(tmp_path / "nothing")).returncode == 2


def test_stages_lists_them_and_prints_each_configuration() -> None:
    listed = cli("stages")
    assert listed.returncode == 0
    from gristmill.stages import names

    for name in names():
        assert name in listed.stdout
        one = CliRunner().invoke(app, ["stages", name])
        assert one.exit_code == 0, one.output
        assert "max_removed" in one.output
    assert "Did you mean 'heuristics'" in cli("stages", "heuristic").stderr


def test_doctor_names_what_is_there() -> None:
    done = cli("doctor")
    assert "Java" in done.stdout
    assert "pyspark" in done.stdout


def test_run_says_up_to_date_when_there_is_nothing_to_do(run_pipeline: Run, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", corpus(20))
    file = tmp_path / "p.yaml"
    only = {"web": {"stage": "ingest", "path": str(tmp_path / "in")}}
    file.write_text(yaml.safe_dump({"name": "t", "output": str(tmp_path / "out"), "stages": only}, sort_keys=False))
    run_pipeline(only, tmp_path / "out", name="t")
    done = cli("run", str(file))
    assert done.returncode == 0
    assert "up to date, nothing to do" in done.stdout
    assert json.loads((next((tmp_path / "out").glob("web-*")) / "manifest.json").read_text())["kind"] == "documents"
