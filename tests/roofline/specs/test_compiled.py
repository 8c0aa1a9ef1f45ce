"""Chips that run the schedule of a compiler, beside public rates of one user (docs/theory/systems.md)."""

import pytest

from roofline import Scenario, analyze, load_hardware
from roofline.specs.engine import default_engine

PUBLISHED = [
    ("llama-3.1-8b", "wse-3", {}, 1837),
    ("llama-3.1-70b", "wse-3", {"pp": 4}, 445),
    ("llama-2-7b", "groq-lpu", {"tp": 8, "pp": 8, "quant": "int8"}, 750),
    ("llama-2-70b", "groq-lpu", {"tp": 8, "pp": 80, "quant": "int8"}, 300),
]


@pytest.mark.parametrize(("model", "hardware", "options", "published"), PUBLISHED, ids=lambda value: str(value)[:20])
def test_public_rates_are_inside_the_interval(model: str, hardware: str, options: dict[str, object], published: float):
    found = analyze(Scenario(model, hardware, **options))
    assert found.memory.fits
    tpot = found.expected.tpot
    assert tpot is not None
    assert 1 / tpot.high <= published <= 1 / tpot.low


def test_its_kernels_are_at_the_roofs() -> None:
    found = analyze(Scenario("llama-3.1-8b", "sn40l"))
    assert found.decode is not None
    assert found.decode.basis.basis == "bound"
    assert found.memory.runtime == 0


@pytest.mark.parametrize("name", ["wse-3", "groq-lpu", "sn40l", "bow-ipu", "dfx", "flightllm"])
def test_chips_with_a_compiler_run_no_engine(name: str) -> None:
    assert default_engine(load_hardware(name)) == "compiled"
