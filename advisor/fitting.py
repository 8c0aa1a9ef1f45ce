"""What would make a scenario fit in memory: narrower formats, more devices, less work; each option is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roofline.advisor.search.goal import Quality
from roofline.advisor.sizing.configurations import formats_for
from roofline.core.errors import RooflineError
from roofline.core.search import last_before_failure
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.whatif.solve.counts import tensor_degrees


def what_fits(scenario: Scenario) -> Iterator[str]:
    """The options that make a scenario fit, one of each kind.

    The widest formats that the engine is known to run on this hardware (`formats_for`), the fewest devices, and the
    largest batch or else the longest prompt.
    """
    found = (_fitting_formats(scenario), _fitting_degree(scenario), _fitting_count(scenario))
    yield from (option for option in found if option is not None)


def _fitting_formats(scenario: Scenario) -> str | None:
    for scheme, kv, _ in formats_for(scenario.model, scenario.hardware, scenario.profile, Quality.CALIBRATED):
        chosen: dict[str, Any] = {name: value for name, value in (("quant", scheme), ("kv", kv)) if value}
        narrower = _fitting(scenario, **chosen) if chosen else None
        if narrower is not None and _stores_no_more(narrower, scenario):
            return " ".join(f"--{name} {value}" for name, value in chosen.items())
    return None


def _fitting_degree(scenario: Scenario) -> str | None:
    present = scenario.degrees.get("tensor", 1)
    degrees = (degree for degree in tensor_degrees(scenario.model, scenario.degrees) if degree > present)
    return next((f"--tp {degree}" for degree in degrees if _fitting(scenario, tp=degree)), None)


def _fitting_count(scenario: Scenario) -> str | None:
    """The largest batch that fits, or else the longest prompt."""
    for name, present in (("batch", scenario.batch), ("prompt", scenario.prompt)):
        try:
            fits = lambda counts, name=name: analyze(scenario.at(**{name: counts})).memory.fits  # noqa: E731
            most = last_before_failure(fits, 1, present)
        except RooflineError:
            continue
        if most:
            return f"--{name} {most}"
    return None


def _fitting(scenario: Scenario, **changes: Any) -> Scenario | None:
    """The scenario with other options; None if that is no scenario, cannot be simulated or does not fit."""
    try:
        changed = scenario.with_(**changes)
        return changed if analyze(changed).memory.fits else None
    except RooflineError:
        return None


def _stores_no_more(scenario: Scenario, other: Scenario) -> bool:
    """Whether neither weights nor KV cache take more than those of another scenario."""
    memory, present = (analyze(one).memory for one in (scenario, other))
    pairs: tuple[tuple[Any, Any], ...] = ((memory.weights, present.weights), (memory.kv_cache, present.kv_cache))
    return all(own <= before for own, before in pairs)
