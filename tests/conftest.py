"""Settings for all tests, and what several of them share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

import cli

Run = Callable[..., tuple[int, str, str]]

settings.register_profile(
    "roofline", deadline=None, max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("roofline")


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
