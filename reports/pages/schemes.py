"""The settings that a report compares: common formats of weights, and attention with and without fusion."""

from __future__ import annotations

from roofline.scenario.options import of_group
from roofline.scenario.options.groups import FORMATS
from roofline.scenario.scenario import Scenario
from roofline.techniques.support import runs_gguf


def quantized(scenario: Scenario, scheme: str) -> Scenario:
    """The scenario in the formats of a scheme."""
    return scenario.without(*of_group(FORMATS)).with_(quant=scheme)


def has_flash(scenario: Scenario) -> bool:
    """Whether attention is fused (FlashAttention)."""
    return "attention" in scenario.plain.fusions


def schemes(scenario: Scenario) -> list[tuple[str, str | None]]:
    """(label, scheme) of the requested or released formats, then of common formats that the hardware supports."""
    given = {name: text for name, text in scenario.formats.items() if text is not None}
    precision = scenario.plain.precision
    own, plain = precision.weights.name, precision.base.name
    label = str(given["scheme"]) if list(given) == ["scheme"] else ", ".join(f"{k} {v}" for k, v in given.items())
    eight = "fp8" if scenario.hardware.supports("fp8") else "W8A8"
    four = "q4_k_m" if runs_gguf(scenario.profile.name) else "awq"
    last = "nvfp4" if scenario.hardware.supports("nvfp4") else "W4A16KV8"
    others = [("W16", plain), *((scheme, scheme) for scheme in (eight, four, last))]
    found: list[tuple[str, str | None]] = [(label or own, None)]
    known = {(label or own).lower()}
    for scheme, name in others:
        if name.lower() not in known:
            found.append((name, scheme))
            known.add(name.lower())
    return found
