# Two commands matter: `make demo` sets up and runs the mill on real text; `make test` sets up and passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-all lint format java clean bench

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; set PYTHON=python3.12, say"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip wheel

$(VENV)/.curate: pyproject.toml | $(BIN)/python
	$(BIN)/pip install -q -e '.[curate]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/pip install -q -e '.[dev]'
	@touch $@ $(VENV)/.curate

java: | $(VENV)/.curate ## find Java 17 or later, or install it
	@$(BIN)/python jobs/setup_java.py

demo: $(VENV)/.curate java ## run the whole mill on the documentation of the installed packages
	$(BIN)/gristmill run pipelines/demo.yaml

test: $(VENV)/.dev java ## run the tests (under ten minutes on two cores)
	$(BIN)/python -m pytest -m 'not slow and not peer'

test-all: $(VENV)/.dev java ## run every test, also slow ones and comparisons with other packages
	$(BIN)/python -m pytest

lint: $(VENV)/.dev ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## format the code
	$(BIN)/ruff check --fix -q . || true
	$(BIN)/ruff format .

bench: $(VENV)/.dev java ## measure the whole pipeline (needs a corpus: make bench CORPUS=dir)
	$(BIN)/python benchmarks/end_to_end.py $(CORPUS)

clean: ## remove what the targets made
	rm -rf $(VENV) out build dist
