"""Formats of quantisation techniques: effective bits, and setting each format once."""

from __future__ import annotations

from roofline.core.errors import RooflineError
from roofline.scenario.scenario import Scenario
from roofline.specs.formats import UNQUANTISED_FORMATS, Format, grouped
from roofline.specs.schemes import WeightScheme
from roofline.techniques.base import Parameter, Values
from roofline.techniques.changes import precision_of, with_precision

SCALE_BITS = 16
"""Bits of a scale or offset as the papers store it: fp16."""


def stored(name: str, effective: float, nominal: float, family: str = "int") -> Format:
    """A format of `effective` bits an element, scales included, and `nominal` bits without.

    `family` is the arithmetic of the elements: "int", "fp", or "code" for codes that are dequantised first.
    """
    arithmetic = family if family == "code" else f"{family}{4 if nominal <= 4 else 8}"
    return Format(f"{name}-{effective:.4g}", effective, arithmetic)


def group_bits(values: Values, zero: float | None = None) -> float:
    """Effective bits with a scale and a zero point a group; a zero point has the bits of an element by default."""
    width, group = values["bits"], values["group"]
    return grouped(width, group, SCALE_BITS, width if zero is None else zero) if group else float(width)


def cache_format(name: str, bits: int, group: int) -> Format | None:
    """A KV cache format with a scale and an offset a group, dequantised before the GEMM; None for 16 bits."""
    effective = grouped(bits, group, SCALE_BITS, SCALE_BITS) if group else float(bits)
    return stored(f"{name}-kv", effective, bits, "code") if bits < 16 else None


def bits_parameter(default: int, element: str = "weight", low: int = 2) -> Parameter:
    """The parameter for the bits of an element, scales excluded."""
    return Parameter("bits", default, f"bits of a {element}, scales excluded", low, 8)


def group_parameter(default: int) -> Parameter:
    """The parameter for the weights that share a scale."""
    return Parameter("group", default, "weights that share a scale (0: per channel, scales not counted)", 0, 65536)


def with_formats(
    scenario: Scenario,
    name: str,
    weights: Format | WeightScheme | None = None,
    activations: Format | None = None,
    kv: Format | None = None,
) -> Scenario:
    """The scenario with other formats; raises RooflineError where one of them is already quantised."""
    precision = precision_of(scenario)
    for part, chosen, current in (
        ("weights", weights, precision.weights.name),
        ("activations", activations, precision.activations.name),
        ("KV cache", kv, precision.kv.name),
    ):
        if chosen is not None and current not in UNQUANTISED_FORMATS:
            raise RooflineError(f"{name} sets the format of the {part}, which is already {current}: choose one")
    scheme = WeightScheme(weights.name, weights) if isinstance(weights, Format) else weights
    return with_precision(scenario, weights=scheme, activations=activations, kv=kv)
