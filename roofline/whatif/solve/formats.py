"""Bits: the quantization schemes with the widest and the narrowest weights that meet targets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.specs.checkpoint import released_scheme
from roofline.specs.formats import UNQUANTIZED_FORMATS
from roofline.specs.precision import PLAIN, SCHEMES
from roofline.whatif.solve.targets import Answer, Check, TargetOptions, Targets, check, read_targets

if TYPE_CHECKING:
    from typing import Unpack

TRAINED = ("ternary", "binary")
"""Schemes that require training: they are not tried."""

NAMED = ("KV8", "W8", "W8A8", "W4", "W4A16KV8", "W4A8KV4", "W4A4KV4")
"""Schemes in WxAyKVz notation, tried besides the named ones."""


def max_bits(
    scenario: Scenario,
    targets: Targets | None = None,
    schemes: Iterable[str] | None = None,
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The scheme with most bits that meets the targets.

    Schemes rank by bytes of weights, then by bytes of KV cache, then by bits of activations; formats set one by one
    stay. No scheme has more bits than a checkpoint that was released quantized.
    """
    targets = read_targets(targets, limits)
    return _first("max-bits", scenario, targets, schemes, widest=True).to(scenario, targets)


def min_bits(
    scenario: Scenario,
    targets: Targets | None = None,
    schemes: Iterable[str] | None = None,
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The scheme with fewest bits that meets the targets: conversion of operands can make fewer bits slower."""
    targets = read_targets(targets, limits)
    return _first("min-bits", scenario, targets, schemes, widest=False).to(scenario, targets)


def _first(question: str, scenario: Scenario, targets: Targets, schemes: Iterable[str] | None, widest: bool) -> Answer:
    if not targets.fits and not targets.timed:
        raise RooflineError(f"{question} needs a target, such as a TPOT of 30ms, or the memory limit", options=["tpot"])
    if scenario.formats.get("scheme") is not None:
        raise RooflineError(
            f"{question} tries all schemes: omit the scheme, or set formats one by one", options=["quant"]
        )
    own = _own(scenario)
    known = (*(name for name in SCHEMES if name not in TRAINED), *NAMED, *UNQUANTIZED_FORMATS)
    names = dict.fromkeys((own, *(schemes or known)))
    stored = _stored(scenario, names)
    most = next((weights for weights, *_, name in stored if name == own), math.inf)
    ranked = sorted((entry for entry in stored if entry[0] <= most), reverse=widest)
    tried: list[Check] = []
    missed: Check | None = None
    for *_, name in ranked:
        found = check(name, scenario.with_(quant=name), targets)
        tried.append(found)
        if found.meets:
            return Answer(question, "scheme", "found", name, found, missed, "", tuple(tried))
        missed = found
    if not tried:
        raise RooflineError(
            f"none of the schemes can be simulated for {scenario.model.name} on {scenario.hardware.name}"
        )
    best = min(tried, key=lambda entry: max(entry.used.values(), default=0.0))
    return Answer(question, "scheme", "never", None, best, None, f"{len(tried)} schemes tried", tuple(tried))


def _own(scenario: Scenario) -> str:
    """The scheme of the released model on the scenario's engine, such as bf16."""
    scheme = released_scheme(scenario.model, scenario.profile)
    return scenario.plain.precision.base.name if scheme == PLAIN else scheme


def _stored(scenario: Scenario, names: Iterable[str]) -> list[tuple[float, float, float, str]]:
    """Bytes of weights and KV cache, bits of activations, and the scheme, for each one that can be simulated."""
    found = []
    for name in names:
        try:
            scenario = scenario.with_(quant=name)
            memory = analyze(scenario).memory
        except RooflineError:
            continue
        bits = scenario.precision.activations.bits if scenario.precision is not None else 0.0
        found.append((float(memory.weights), float(memory.kv_cache), bits, name))
    return found
