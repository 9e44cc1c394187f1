# The whole process: setup, check, test, quickstart. Everything lives in .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export JAX_PLATFORMS ?= cpu

.PHONY: setup check test quickstart

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[mcp,parity,dev]"
	touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_import_rules.py

test: setup
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile --durations=10

quickstart: setup
	$(BIN)/astra quickstart $(QUICKSTART)
