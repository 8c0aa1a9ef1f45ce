"""Variations of a scenario: scaled hardware, engine parameters or bits, all else equal.

They apply after techniques. Fitted kernel constants stay, as fractions of the scaled peaks and bandwidths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from roofline.scenario.scenario import Scenario
from roofline.specs.engine import Engine
from roofline.specs.formats import Format
from roofline.specs.hardware import Hardware
from roofline.specs.schemes import ByDepth, ByGroup, Choice, Mixture, WeightScheme


def with_hardware(scenario: Scenario, change: Callable[[Hardware], Hardware]) -> Scenario:
    """The scenario on changed hardware, for prefill and decode, and of all kinds."""
    settings = scenario.settings
    if settings.decode_hardware is not None:
        settings = replace(settings, decode_hardware=change(settings.decode_hardware))
    if settings.mixed:
        stages = (replace(stage, hardware=change(stage.hardware)) for stage in settings.mixed)
        settings = replace(settings, mixed=tuple(stages))
    return scenario.changed(hardware=change(scenario.hardware), settings=settings)


def scaled_bandwidth(hardware: Hardware, factor: float) -> Hardware:
    """The hardware with its memory bandwidth times `factor`."""
    return replace(hardware, memory_bandwidth=hardware.memory_bandwidth * factor)


def scaled_capacity(hardware: Hardware, factor: float) -> Hardware:
    """The hardware with its memory capacity times `factor`."""
    visible = None if hardware.memory_visible is None else hardware.memory_visible * factor
    return replace(hardware, memory_capacity=hardware.memory_capacity * factor, memory_visible=visible)


def scaled_peaks(hardware: Hardware, factor: float) -> Hardware:
    """The hardware with the matrix peaks of all formats times `factor`; vector peaks if it has no matrix unit."""
    if not hardware.tensor:
        return scaled_vector_peaks(hardware, factor)
    return replace(hardware, tensor=_scaled(hardware.tensor, factor))


def scaled_vector_peaks(hardware: Hardware, factor: float) -> Hardware:
    """The hardware with the vector peaks of all formats times `factor`."""
    return replace(hardware, vector=_scaled(hardware.vector, factor))


def scaled_links(hardware: Hardware, factor: float) -> Hardware:
    """The hardware with the bandwidth of all links (node, host, network) times `factor`."""
    links = tuple(replace(link, bandwidth=link.bandwidth * factor) for link in hardware.interconnects)
    return replace(hardware, interconnects=links)


def _scaled(peaks: Mapping[str, float], factor: float) -> Mapping[str, float]:
    return MappingProxyType({name: peak * factor for name, peak in peaks.items()})


def scaled_engine(engine: Engine, factor: float, *names: str) -> Engine:
    """The engine with the parameters `names` times `factor`."""
    changed = {name: engine[name] * factor for name in names}
    return replace(engine, parameters=MappingProxyType({**engine.parameters, **changed}))


def with_weight_bits(scenario: Scenario, factor: float) -> Scenario:
    """The scenario with the bits of weights times `factor`; unquantized weights stay."""
    precision = scenario.precision
    scheme = precision.weights
    special = MappingProxyType({name: _scaled_choice(chosen, factor) for name, chosen in scheme.special.items()})
    linear = None if scheme.linear is None else _scaled_format(scheme.linear, factor)
    weights = WeightScheme(scheme.name, linear, special, scheme.unquantized, scheme.beside_experts)
    return scenario.changed(precision=replace(precision, weights=weights))


def with_kv_bits(scenario: Scenario, factor: float) -> Scenario:
    """The scenario with the bits of the KV cache times `factor`, in the same arithmetic."""
    precision = scenario.precision
    # A new name: kernels read the bytes of the cache from its format if that is not the format of queries.
    kv = replace(precision.kv, name=f"{precision.kv.name} x {factor:g}", bits=precision.kv.bits * factor)
    return scenario.changed(precision=replace(precision, kv=kv))


def _scaled_format(form: Format, factor: float) -> Format:
    return replace(form, bits=form.bits * factor)


def _scaled_choice(chosen: Choice, factor: float) -> Choice:
    match chosen:
        case Mixture(base, better, rule):
            return Mixture(_scaled_format(base, factor), _scaled_format(better, factor), rule)
        case ByGroup(few, many):
            return ByGroup(_scaled_choice(few, factor), _scaled_choice(many, factor))
        case ByDepth(usual, deep):
            return ByDepth(_scaled_choice(usual, factor), _scaled_choice(deep, factor))
    return _scaled_format(chosen, factor)
