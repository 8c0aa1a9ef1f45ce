# Two commands set everything up on a machine with only Python (3.11 or newer) and make:
#   make demo   the base package in .venv, and a first real analysis
#   make test   what the tests need, and all of them
# and, in about three minutes, kernels of this very machine:
#   make calibrate-demo   measures, calibrates and scores it, and runs a small model beside its prediction
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Empty is unset: every process of the tests would compile all modules anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo calibrate-demo test lint types lowest bench gallery golden browser docs check clean

demo: $(VENV)/base
	$(BIN)/roofline analyze llama-3.1-8b --hw h100-sxm --batch 8 --prompt 2048

calibrate-demo: $(VENV)/validate
	$(BIN)/python -m roofline.validate.demo

test: $(VENV)/dev browser
	$(BIN)/python -m pytest --numprocesses auto

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

# The tests with the lowest versions of what the package needs, which warn of what they use in newer ones below them; the
# documentation is made with new ones.
lowest:
	$(PYTHON) -m venv $(VENV)/lowest
	$(VENV)/lowest/bin/python -m pip install --quiet --constraint tests/lowest.txt --editable ".[test]"
	$(VENV)/lowest/bin/python -m pytest --numprocesses auto -W default --ignore tests/test_docs.py

bench: $(VENV)/dev
	$(BIN)/python -m pytest tests/benchmarks -o addopts="-q --import-mode=importlib" --benchmark-only

gallery: $(VENV)/dev
	$(BIN)/python -m roofline.reports.gallery

golden: $(VENV)/dev
	$(BIN)/python -m tests.reports.golden

# Reports are opened in a browser by the tests, where there is one: Debian's is installed if that can be done unasked.
browser:
	@if command -v chromium > /dev/null || command -v google-chrome > /dev/null || command -v chrome > /dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		{ apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; } > /dev/null \
		|| echo "Chromium could not be installed: tests that open reports in it will be skipped"; \
	else echo "no Chromium is installed: tests that open reports in it will be skipped"; fi

docs: $(VENV)/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

check: lint types test docs

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
