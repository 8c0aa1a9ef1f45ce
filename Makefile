# Two commands set everything up on a machine with only Python (3.11 or newer) and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# If set, every process that the tests start would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo calibrate-demo engine-demo gpu test test-all fuzz lint types lowest bench gallery browser docs check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/base ## install the base package into .venv and analyse a model
	$(BIN)/roofline analyze llama-3.1-8b --hw h100-sxm --batch 8 --prompt 2048
	@echo "The command is $(BIN)/roofline; '. $(BIN)/activate' puts it on the path."

calibrate-demo: $(VENV)/validate ## calibrate this CPU and run a small model beside its prediction, in three minutes
	$(BIN)/python -m lab.demo

# The binding is built from its source package: a C++ compiler and CMake are needed.
engine-demo: $(VENV)/llama-cpp ## run llama.cpp on this CPU beside its prediction, in a quarter of an hour
	$(BIN)/python -m lab.llama_cpp.demo

gpu: $(VENV)/validate ## measure this machine's GPU for eight minutes into build/gpu
	$(BIN)/roofline validate gpu --minutes 8 --output build/gpu

test: $(VENV)/dev browser ## install what the tests need and run them
	$(BIN)/python -m pytest --numprocesses auto

test-all: $(VENV)/dev browser ## the tests, with those that take minutes
	$(BIN)/python -m pytest --numprocesses auto -m ""

fuzz: $(VENV)/dev ## attack every reader and command with 100,000 mutated inputs (docs/reliability.md)
	$(BIN)/python -m tests.fuzz

lint: $(VENV)/dev ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev ## mypy, strict
	$(BIN)/mypy

# Warnings of old versions about newer ones are not errors; the documentation is built with current versions only.
lowest: ## the tests with the lowest supported versions
	$(PYTHON) -m venv $(VENV)/lowest
	$(VENV)/lowest/bin/python -m pip install --quiet --constraint tests/lowest.txt --editable ".[test]"
	$(VENV)/lowest/bin/python -m pytest --numprocesses auto -W default --ignore tests/test_docs.py

bench: $(VENV)/dev ## speed benchmarks
	$(BIN)/python -m pytest tests/benchmarks -o addopts="-q --import-mode=importlib" --benchmark-only

gallery: $(VENV)/dev ## draw the gallery into build/gallery, and the README's picture
	$(BIN)/python -m lab.gallery.build

# The tests open reports and documentation in Chromium where there is one; as root on Debian it is installed.
browser: ## install Chromium for the browser tests, where that needs no password
	@if command -v chromium > /dev/null || command -v google-chrome > /dev/null || command -v chrome > /dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		{ apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; } > /dev/null \
		|| echo "Chromium could not be installed: tests that open reports in it will be skipped"; \
	else echo "no Chromium is installed: tests that open reports in it will be skipped"; fi

docs: $(VENV)/dev ## renew the generated parts of pages and build the site into build/docs
	$(BIN)/python -m docs.build
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

check: lint types test-all docs ## what CI runs
	$(BIN)/roofline validate check > /dev/null

$(VENV)/python:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/base: $(VENV)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/validate: $(VENV)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[validate]"
	touch $(VENV)/base $@

$(VENV)/llama-cpp: $(VENV)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --no-binary llama-cpp-python --editable ".[validate,llama-cpp]"
	touch $(VENV)/base $(VENV)/validate $@

$(VENV)/dev: $(VENV)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(VENV)/base $(VENV)/validate $@

clean: ## remove the virtual environment, builds and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
