"""The folders are the package, imports go one way, and the loader needs nothing but NumPy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("stages", "pipelines", "tokenizer", "decontam", "packing", "jobs")
MAY_IMPORT = {
    "packing": {"packing"},
    "stages/kernels": {"stages/kernels"},
    "stages": {"stages", "stages/kernels", "packing"},
    "tokenizer": {"tokenizer", "stages", "stages/kernels", "packing"},
    "decontam": {"decontam", "stages", "stages/kernels", "packing"},
    "pipelines": {"pipelines", "stages", "stages/kernels", "tokenizer", "decontam", "packing"},
    "jobs": {"jobs", "pipelines", "stages", "stages/kernels", "tokenizer", "decontam", "packing"},
}
# pack encodes with the tokenizer it is given, and cards print its report.
EXCEPTIONS = {("stages/pack.py", "tokenizer"), ("stages/cards.py", "tokenizer")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_link_points_at_its_folder(folder: str) -> None:
    link = ROOT / "src" / "gristmill" / folder
    assert link.is_symlink()
    assert link.resolve() == ROOT / folder


def package_of(path: str) -> str:
    return "stages/kernels" if path.startswith("stages/kernels") else path.split("/")[0]


def imports_of(source: str) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "gristmill" else [node.module]
            )
    return names


def python_files() -> list[str]:
    return sorted(str(p.relative_to(ROOT)) for f in FOLDERS for p in (ROOT / f).rglob("*.py"))


@pytest.mark.parametrize("path", python_files())
def test_imports_go_one_way(path: str) -> None:
    package = package_of(path)
    for name in imports_of((ROOT / path).read_text(encoding="utf-8")):
        top = name.split(".")[0]
        assert top not in FOLDERS, f"{path} imports {name} without gristmill."
        if top == "gristmill" and "." in name:
            target = package_of(name.removeprefix("gristmill.").replace(".", "/"))
            allowed = MAY_IMPORT[package] | {t for p, t in EXCEPTIONS if p == path}
            assert target in allowed | {"__version__"}, f"{path} may not import {name}"
        elif package == "packing" and path not in ("packing/torch.py", "packing/jax.py", "packing/megatron.py"):
            assert top == "numpy" or top in sys.stdlib_module_names, f"{path} may not import {name}"
        elif package == "stages/kernels":
            allowed_top = {"numpy", "numba", "llvmlite", "pyarrow"} | ({"regex"} if "generate" in path else set())
            assert top in allowed_top or top in sys.stdlib_module_names, f"{path} may not import {name}"


def test_only_the_runtime_makes_a_spark_session() -> None:
    makers = [p for p in python_files() if "SparkSession.builder" in (ROOT / p).read_text(encoding="utf-8")]
    assert makers == ["stages/runtime.py"]


def test_packing_imports_without_the_curation_packages() -> None:
    blocked = ["pyspark", "py4j", "numba", "tokenizers", "pyarrow", "torch", "pandas", "pydantic"]
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {blocked!r}:
            raise ImportError(name + ' is blocked')
sys.meta_path.insert(0, Block())
import gristmill.packing
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_jobs_are_thin_and_named_verb_noun() -> None:
    for path in (ROOT / "jobs").glob("*_*.py"):
        if path.name == "__init__.py":
            continue
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
        assert path.stem not in sys.stdlib_module_names


def test_modules_are_not_too_long() -> None:
    long = {p: n for p in python_files() if (n := len((ROOT / p).read_text(encoding="utf-8").splitlines())) > 600}
    assert not long


def test_planning_imports_neither_pandas_nor_pyspark() -> None:
    """Half a second of every command would go into them."""
    code = (
        "import sys; from gristmill.pipelines import config, plan; from gristmill.stages import registry;"
        "[registry.get(name) for name in registry.BUILT_IN]; print({'pandas', 'pyspark'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.strip() == "set()"
