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

settings.register_profile(
    "roofline", deadline=None, max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("roofline")

LONG = (
    "test_steady",
    "test_docs",
    "test_report_in_browser",
    "test_advice",
    "test_docs_in_browser",
    "test_report",
    "test_cli_sweep",
)
LONG += (
    "test_gemm_and_moe",
    "test_compile",
    "test_model_level",
    "test_fuzz",
    "test_calibrate",
    "test_sizing",
    "test_size_command",
    "test_plan",
)
"""Modules with tests of many seconds: they begin, so that short ones fill the end of every worker."""


SLOW = {
    "test_docs_in_browser": "",
    "test_report_in_browser": "",
    "test_network_in_browser": "",
    "test_view_appearance": "",
    "test_view_in_browser": "",
    "test_choose": "dynamo-3774",
    "test_compile": "",
    "test_compiling": "test_a_tile_of_each_kernel_compiles_for_hopper",
    "test_launched": "",
    "test_docs": "test_the_examples_of_a_page",
    "test_systems": "test_a_system_shows",
    "test_plan": "test_a_kill_at_any_moment test_the_whole_plan test_steps_that_fail_or_hang test_no_single_change",
    "test_serve_command": "test_advice_on_goodput_with_speculation",
    "test_steady": "random_settings test_steps_with_room_for_a_hundredth test_latency_rises",
    "test_verbs": "test_a_full_cache_under_load",
    "test_server": "test_the_command_compares_scores_and_fits test_a_disturbed_answer",
    "test_sweep_commands": "test_killed_and_resumed test_workers_end_with_their_parent",
    "test_sessions": "theory_agrees_with more_sessions_than hits_by_tier of_a_benchmark_ all_sessions_are",
    "test_sessions_command": "the_most_sessions what_each_tier",
    "test_sizing": "more_requests_never encoders_under pruning_loses setups_of what_would_change attention_of_moe",
    "test_report": "test_the_same_input test_nothing_of_a_hostile test_the_largest_page",
    "test_goodput": "test_commands_reproduce",
    "test_reader": "test_a_file_without test_what_a_class test_a_class_that_takes",
    "test_model_types": "",
    "test_fuzz": "",
    "test_fuzz_files": "",
}
"""Tests of seconds each, by module and by parts of their names (all where there is none): `make test-all` runs them."""


def is_slow(item: pytest.Item) -> bool:
    """Whether a test is one of SLOW."""
    parts = SLOW.get(item.path.stem)
    return parts is not None and (not parts or any(part in item.name for part in parts.split()))


def pytest_collection_finish() -> None:
    """Leave what is imported and collected out of each later garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the SLOW ones, and order modules by LONG; tests keep their order in a module, whose fixtures they share."""
    for item in items:
        if is_slow(item):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


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
