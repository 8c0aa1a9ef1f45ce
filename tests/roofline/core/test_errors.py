"""Suggestions for unknown names."""

import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest

from roofline import list_hardware, list_models
from roofline.core.errors import install, suggest
from tests.paths import ROOT

HARDWARE, MODELS = list_hardware(), list_models()


@pytest.mark.parametrize(
    ("name", "known", "suggestion"),
    [
        ("h100", HARDWARE, "; did you mean 'h100-nvl', 'h100-pcie' or 'h100-sxm'?"),
        ("b200", HARDWARE, "; did you mean 'b200-sxm'?"),
        ("MI300", HARDWARE, "; did you mean 'mi300a' or 'mi300x'?"),
        ("4090", HARDWARE, "; did you mean 'rtx-4090'?"),
        (
            "llama31",
            MODELS,
            "; did you mean 'llama-3.1-405b', 'llama-3.1-70b', 'llama-3.1-8b' or 'llama-3.1-nemotron-ultra-253b'?",
        ),
        ("lama-3.1-8b", MODELS, "; did you mean 'llama-3.1-8b'?"),
        ("zzz", ["one", "two"], "; known: one, two"),
        ("zzz", [f"m{number:02}" for number in range(17)], "; known: m00, m01, m02, m03, m04, m05 and 11 others"),
        ("zzz", [], ""),
    ],
)
def test_completions_come_before_close_names(name: str, known: list[str], suggestion: str) -> None:
    assert suggest(name, known) == suggestion


def test_listed_completions_are_limited() -> None:
    assert suggest("llama-3", MODELS).endswith("or others?")
    assert "llama-30b" not in suggest("llama-3", MODELS)  # another number, not a completion


@pytest.mark.parametrize(
    ("pip", "command"),
    [
        ("venv/bin/pip", "pip install 'llm-roofline[report]'"),
        ("other/bin/pip", "venv/bin/python -m pip install 'llm-roofline[report]'"),
        (None, "venv/bin/python -m pip install 'llm-roofline[report]'"),
    ],
)
def test_an_extra_is_installed_by_the_python_that_runs(
    pip: str | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pip of another Python does not find the package: it is installed where this one runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
    monkeypatch.setattr(shutil, "which", lambda name: None if pip is None else str(tmp_path / pip))
    monkeypatch.setattr(metadata, "distribution", lambda name: name)
    assert install("report") == command


def test_a_checkout_that_is_not_installed_is_named_by_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install("report").endswith(f" install '{ROOT}[report]'")
