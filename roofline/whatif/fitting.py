"""What would make a scenario fit in memory: fewer bits, or more devices, each simulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.specs.checkpoint import precision_of

SCHEMES = ("fp8", "awq")
"""Formats of weights to try, the widest first."""

DEGREES = (2, 4, 8, 16)
"""Degrees of tensor parallelism to try, as multiples of the present one."""


def what_fits(scenario: Scenario) -> Iterator[str]:
    """The options of the first narrower format, and of the fewest more devices, with which a scenario fits."""
    model, hardware = scenario.model, scenario.hardware
    for scheme in SCHEMES:
        if _fits(
            lambda name=scheme: replace(scenario, precision=precision_of(model, hardware, scenario.engine, scheme=name))
        ):
            yield f"--quant {scheme}"
            break
    parallel = scenario.settings.parallel
    for factor in DEGREES:
        wider = replace(parallel, tensor=parallel.tensor * factor)
        if _fits(lambda ranks=wider: replace(scenario, settings=replace(scenario.settings, parallel=ranks))):
            yield f"--tp {wider.tensor}"
            break


def _fits(make: Any) -> bool:
    """Whether the scenario that `make` returns fits; not if it is impossible."""
    try:
        return bool(analyze(make()).memory.fits)
    except RooflineError:
        return False
