"""Settings for all tests, and what several of them share."""

from __future__ import annotations

import os

# One thread a process for the linear algebra of small fits: more of them wait for each other, and for other workers.
# It is read when NumPy and PyTorch are imported, and by the processes that tests start.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Refusals are the same with and without Transformers; tests of its classes switch them on.
os.environ["ROOFLINE_TRANSFORMERS"] = "0"
# Each process that a test starts would compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Readline, which pytest imports, sets the width of 80 for the processes that workers are; commands would obey it.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from roofline import cli
from tests.browser import launched

Run = Callable[..., tuple[int, str, str]]

EXAMPLES = 40, 8
"""Of each law, in all tests and without the slow ones."""

LONG = """
    test_steady test_docs test_report_in_browser test_advice test_docs_in_browser test_report test_sessions
    test_gemm_and_moe test_compile test_model_level test_fuzz test_calibrate test_sizing test_size_command test_plan
"""
"""Modules with tests of many seconds: they begin, so that short ones fill the end of every worker."""


def pytest_configure(config: pytest.Config) -> None:
    examples = EXAMPLES[config.option.markexpr == "not slow"]
    settings.register_profile(
        "roofline",
        deadline=None,
        max_examples=examples,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("roofline")


def pytest_collection_finish() -> None:
    """Leave what is imported and collected out of each later garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order modules by LONG; tests keep their order in a module, whose fixtures they share."""
    order = {stem: place for place, stem in enumerate(LONG.split())}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `roofline ARGS` in this process: (exit status, stdout, stderr)."""
    monkeypatch.delenv("ROOFLINE_SPECS", raising=False)

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["roofline", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert isinstance(stop.value.code, int)
        return (stop.value.code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; tests that want it are skipped where there is none."""
    with launched() as chromium:
        yield chromium
