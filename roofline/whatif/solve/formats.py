"""Bits: the quantization schemes with the widest and the narrowest weights that meet targets."""

from __future__ import annotations

import math
from collections.abc import Iterable

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import analyze
from roofline.specs.checkpoint import released_scheme
from roofline.specs.formats import UNQUANTIZED_FORMATS
from roofline.specs.precision import PLAIN, SCHEMES
from roofline.whatif.request import Request
from roofline.whatif.solve.targets import Answer, Check, Targets, check

TRAINED = ("ternary", "binary")
"""Schemes that require training: they are not tried."""

NAMED = ("KV8", "W8", "W8A8", "W4", "W4A16KV8", "W4A8KV4", "W4A4KV4")
"""Schemes in WxAyKVz notation, tried besides the named ones."""


def max_bits(request: Request, targets: Targets, schemes: Iterable[str] | None = None) -> Answer:
    """The scheme with most bits that meets the targets.

    Schemes rank by bytes of weights, then by bytes of KV cache, then by bits of activations; formats set one by one
    stay. No scheme has more bits than a checkpoint that was released quantized.
    """
    return _first("max-bits", request, targets, schemes, widest=True)


def min_bits(request: Request, targets: Targets, schemes: Iterable[str] | None = None) -> Answer:
    """The scheme with fewest bits that meets the targets: conversion of operands can make fewer bits slower."""
    return _first("min-bits", request, targets, schemes, widest=False)


def _first(question: str, request: Request, targets: Targets, schemes: Iterable[str] | None, widest: bool) -> Answer:
    if not targets.fits and not targets.timed:
        raise RooflineError(f"{question} needs a target, such as --tpot 30ms, or the memory limit")
    if request.formats.get("scheme") is not None:
        raise RooflineError(f"{question} tries all schemes: omit --quant, or set formats one by one")
    own = _own(request)
    known = (*(name for name in SCHEMES if name not in TRAINED), *NAMED, *UNQUANTIZED_FORMATS)
    names = dict.fromkeys((own, *(schemes or known)))
    stored = _stored(request, names)
    most = next((weights for weights, *_, name in stored if name == own), math.inf)
    ranked = sorted((entry for entry in stored if entry[0] <= most), reverse=widest)
    tried: list[Check] = []
    missed: Check | None = None
    for *_, name in ranked:
        found = check(name, request.quantized(name).scenario(), targets)
        tried.append(found)
        if found.meets:
            return Answer(question, "scheme", "found", name, found, missed, "", tuple(tried))
        missed = found
    if not tried:
        raise RooflineError(f"none of the schemes can be simulated for {request.model.name} on {request.hardware.name}")
    best = min(tried, key=lambda entry: max(entry.used.values(), default=0.0))
    return Answer(question, "scheme", "never", None, best, None, f"{len(tried)} schemes tried", tuple(tried))


def _own(request: Request) -> str:
    """The scheme of the released model on the request's engine, such as bf16."""
    scheme = released_scheme(request.model, request.engine)
    return request.precision.base.name if scheme == PLAIN else scheme


def _stored(request: Request, names: Iterable[str]) -> list[tuple[float, float, float, str]]:
    """Bytes of weights and KV cache, bits of activations, and the scheme, for each one that can be simulated."""
    found = []
    for name in names:
        try:
            scenario = request.quantized(name).scenario()
            memory = analyze(scenario).memory
        except RooflineError:
            continue
        bits = scenario.precision.activations.bits if scenario.precision is not None else 0.0
        found.append((float(memory.weights), float(memory.kv_cache), bits, name))
    return found
