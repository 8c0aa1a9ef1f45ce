# Two commands set everything up on a machine with only Python (3.11 or newer) and make:
#   make demo   the base package in .venv, and a first real analysis
#   make test   what the tests need, and all of them
# and, in about three minutes, kernels of this very machine:
#   make calibrate-demo   measures, calibrates and scores it, and runs a small model beside its prediction
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo calibrate-demo test lint types bench gallery check clean

demo: $(VENV)/base
	$(BIN)/roofline analyze llama-3.1-8b --hw h100-sxm --batch 8 --prompt 2048

calibrate-demo: $(VENV)/validate
	$(BIN)/python -m validate.demo

test: $(VENV)/dev
	$(BIN)/python -m pytest --numprocesses auto

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

bench: $(VENV)/dev
	$(BIN)/python -m pytest tests/benchmarks --benchmark-enable --benchmark-only

gallery: $(VENV)/dev
	$(BIN)/python -m reports.gallery

check: lint types test

$(VENV)/python:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/base: $(VENV)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/validate: $(VENV)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[validate]"
	touch $(VENV)/base $@

$(VENV)/dev: $(VENV)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(VENV)/base $(VENV)/validate $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
