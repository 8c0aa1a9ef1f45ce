"""Kernel techniques: fused kernels, CUDA graphs, and kernels that run faster with the same bytes and FLOPs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from roofline.core.errors import UnsupportedError
from roofline.core.units import Dimension, parse_quantity
from roofline.graph.fusion import check_fusions
from roofline.graph.network import Build, network
from roofline.scenario.scenario import Scenario
from roofline.specs.engine import FUSIONS


def fuse(scenario: Scenario, name: str, *, fusions: Sequence[str]) -> Scenario:
    """The scenario with operators fused; raises UnsupportedError for a model without the operators."""
    model, precision = scenario.model, scenario.precision
    fused = network(model, precision, Build(check_fusions(fusions)))
    if len(fused.ops) == len(network(model, precision).ops):
        raise UnsupportedError(f"{name} finds no operators to fuse in {model.name}")
    chosen = {*scenario.fusions, *fusions}
    if "gate_up_act" in chosen:
        chosen.discard("gate_up")  # gate_up_act contains gate_up
    return scenario.changed(fusions=tuple(chosen))


NEVER_SPLIT, ALWAYS_SPLIT = 0.0, 2.0
"""Values of an engine's `split_kv`."""


def split_kv(scenario: Scenario, _: str, *, split: bool) -> Scenario:
    """The engine's fused decode attention, with the keys split over thread blocks always or never."""
    profile = scenario.profile
    parameters = {**profile.parameters, "split_kv": ALWAYS_SPLIT if split else NEVER_SPLIT}
    fusions = tuple({*scenario.fusions, "attention"})
    return scenario.changed(fusions=fusions, engine=replace(profile, parameters=parameters))


def flash_decoding_plus_plus(scenario: Scenario, name: str) -> Scenario:
    """Split keys, fused kernels and a CUDA graph of the decode step."""
    split = decode_graphs(split_kv(scenario, name, split=True), name)
    return split.changed(engine=replace(split.profile, fusions=tuple(FUSIONS), unfused={}))


def decode_graphs(scenario: Scenario, _: str) -> Scenario:
    """The scenario with an engine profile that replays decode steps as CUDA graphs."""
    profile = scenario.profile
    if "decode" in profile.graphs:
        return scenario
    return scenario.changed(engine=replace(profile, graphs=(*profile.graphs, "decode")))


def masked_logits(scenario: Scenario, name: str, *, mask: str, overlap: int) -> Scenario:
    """The engine with host time to compute the mask of a sequence's next tokens, beside the pass or after it."""
    seconds = parse_quantity(mask, Dimension.TIME).value
    profile = scenario.profile
    if not scenario.profile.overlap and overlap:
        raise UnsupportedError(f"{name}: {profile.name} computes nothing beside its passes: say overlap=0")
    parameters = {**profile.parameters, "sequence": profile.parameters.get("sequence", 0.0) + seconds}
    return scenario.changed(engine=replace(profile, parameters=parameters, overlap=bool(overlap)))
