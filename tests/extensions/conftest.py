"""What a user has beside the package: a folder of specs, and modules of their own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from roofline import Scenario, analyze, load_hardware, load_model

LoadModule = Callable[[str], ModuleType]


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of `ROOFLINE_SPECS`."""
    monkeypatch.setenv("ROOFLINE_SPECS", str(tmp_path))
    return tmp_path


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadModule:
    """Imports a module of this text from a folder of the user's."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(text: str) -> ModuleType:
        name = f"ours_{len(list(tmp_path.glob('ours_*.py')))}"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        try:
            return importlib.import_module(name)
        finally:
            sys.modules.pop(name, None)

    return load


def put(path: Path, text: str) -> Path:
    """Write a file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def decode_time(techniques: tuple[str, ...] = (), engine: str | None = None, hardware: str = "h100-sxm") -> float:
    """Expected seconds of a decode step of Llama 3.1 8B at batch 8."""
    model, device = load_model("llama-3.1-8b"), load_hardware(hardware)
    answer = analyze(Scenario(model, device, batch=8, techniques=techniques, engine=engine))
    assert answer.decode is not None
    return float(answer.decode.expected.mid)
