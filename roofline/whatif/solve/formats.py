"""Bits: the quantization schemes with the widest and the narrowest weights that meet targets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Unpack

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import analyze
from roofline.scenario.options import OPTIONS
from roofline.scenario.scenario import Scenario
from roofline.specs.checkpoint import released_scheme
from roofline.specs.formats import UNQUANTIZED_FORMATS
from roofline.specs.precision import PLAIN, SCHEMES
from roofline.whatif.solve.targets import (
    Answer,
    Check,
    TargetOptions,
    Targets,
    check,
    check_any,
    listed_names,
    read_targets,
)

TRAINED = ("ternary", "binary")
"""Schemes that require training: they are not tried."""

NAMED = ("KV8", "W8", "W8A8", "W4", "W4A16KV8", "W4A8KV4", "W4A4KV4")
"""Schemes in WxAyKVz notation, tried besides the named ones."""


def max_bits(
    scenario: Scenario,
    targets: Targets | None = None,
    schemes: Iterable[str] | str | None = None,
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The scheme with most bits that meets the targets.

    Schemes rank by bytes of weights, then by bytes of KV cache, then by bits of activations; formats set one by one
    stay. No scheme has more bits than a checkpoint that was released quantized.
    """
    targets = read_targets(scenario, targets, limits)
    return _first("max-bits", scenario, targets, schemes, widest=True)


def min_bits(
    scenario: Scenario,
    targets: Targets | None = None,
    schemes: Iterable[str] | str | None = None,
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The scheme with fewest bits that meets the targets: conversion of operands can make fewer bits slower."""
    targets = read_targets(scenario, targets, limits)
    return _first("min-bits", scenario, targets, schemes, widest=False)


def _first(
    question: str, scenario: Scenario, targets: Targets, schemes: Iterable[str] | str | None, widest: bool
) -> Answer:
    check_any(targets, question)
    answer = partial(Answer, question, "scheme", scenario=scenario, targets=targets)
    if scenario.formats.get("scheme") is not None:
        raise RooflineError(
            f"{question} tries all schemes: omit the scheme, or set formats one by one", options=["quant"]
        )
    own = released_scheme(scenario.model, scenario.profile)
    own = scenario.plain.precision.base.name if own == PLAIN else own
    known = (*(name for name in SCHEMES if name not in TRAINED), *NAMED, *UNQUANTIZED_FORMATS)
    asked = known if schemes is None else listed_names("schemes", schemes)
    if not asked:
        raise RooflineError(f"{question} needs schemes to try")
    for name in asked:
        OPTIONS["quant"].read(name)  # raises for an unknown one
    names = dict.fromkeys((own, *asked))
    stored = _stored(scenario, names)
    most = next((weights for weights, *_, name in stored if name == own), math.inf)
    within = (entry for entry in stored if entry[0] <= most)
    ranked = sorted(within, key=lambda entry: entry[:3], reverse=widest)  # of equal ones the released stays first
    tried: list[Check] = []
    missed: Check | None = None
    for *_, name in ranked:
        found = check(name, scenario.with_(quant=name), targets)
        tried.append(found)
        if found.meets:
            return answer("found", name, found, missed, "", tuple(tried))
        missed = found
    if not tried:
        raise RooflineError(
            f"none of the schemes can be simulated for {scenario.model.name} on {scenario.hardware.name}"
        )
    best = min(tried, key=lambda entry: max(entry.used.values(), default=0.0))
    return answer("never", None, best, None, f"{len(tried)} schemes tried", tuple(tried))


def _stored(scenario: Scenario, names: Iterable[str]) -> list[tuple[float, float, float, str]]:
    """Bytes of weights and KV cache, bits of activations, and the scheme, for each one that can be simulated."""
    found = []
    for name in names:
        try:
            scenario = scenario.with_(quant=name)
            memory = analyze(scenario).memory
        except RooflineError:
            continue
        found.append((float(memory.weights), float(memory.kv_cache), scenario.precision.activations.bits, name))
    return found
