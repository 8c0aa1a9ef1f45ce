"""What techniques of quantisation share: effective bits, and setting formats that nothing else has set."""

from __future__ import annotations

from roofline.core.errors import RooflineError
from roofline.scenario.scenario import Scenario
from roofline.specs.formats import UNQUANTISED_FORMATS, Format, grouped
from roofline.specs.precision import Precision
from roofline.specs.schemes import WeightScheme
from roofline.techniques.base import Parameter, Values, with_precision

SCALE_BITS = 16
"""A scale, or the offset beside it, as the papers store it: fp16."""


def stored(name: str, effective: float, nominal: float, family: str = "int") -> Format:
    """A format of `effective` bits whose elements are `nominal` bits wide.

    `family` is the arithmetic they are native to: "int", "fp", or "code" for what has to be decoded first.
    """
    arithmetic = family if family == "code" else f"{family}{4 if nominal <= 4 else 8}"
    return Format(f"{name}-{effective:.4g}", effective, arithmetic)


def group_bits(values: Values, bits: str = "bits", zero: float | None = None) -> float:
    """Effective bits of elements in groups with a scale and a zero point each (default: as wide as an element)."""
    width, group = values[bits], values["group"]
    return grouped(width, group, SCALE_BITS, width if zero is None else zero) if group else float(width)


def cache_format(name: str, bits: int, group: int) -> Format | None:
    """A cache with a scale and an offset a group: it is decoded before it is multiplied."""
    effective = grouped(bits, group, SCALE_BITS, SCALE_BITS) if group else float(bits)
    return stored(f"{name}-kv", effective, bits, "code") if bits < 16 else None


def bits_parameter(default: int, what: str = "weight", name: str = "bits", low: int = 2) -> Parameter:
    """How many bits an element of the format has, without its scales."""
    return Parameter(name, default, f"bits of a {what}, scales not counted", low, 8)


def group_parameter(default: int, what: str = "weights") -> Parameter:
    """How many elements share a scale."""
    return Parameter(
        "group", default, f"{what} that share a scale (0: a channel of them, whose scale is not counted)", 0, 65536
    )


def with_formats(
    scenario: Scenario,
    name: str,
    weights: Format | WeightScheme | None = None,
    activations: Format | None = None,
    kv: Format | None = None,
) -> Scenario:
    """The scenario with other formats; raises RooflineError where one of them is quantised already."""
    precision = scenario.precision
    assert isinstance(precision, Precision)
    for what, chosen, now in (
        ("weights", weights, precision.weights.name),
        ("activations", activations, precision.activations.name),
        ("KV cache", kv, precision.kv.name),
    ):
        if chosen is not None and now not in UNQUANTISED_FORMATS:
            raise RooflineError(f"{name} sets the format of the {what}, which is {now} already: choose one of the two")
    scheme = WeightScheme(weights.name, weights) if isinstance(weights, Format) else weights
    return with_precision(scenario, weights=scheme, activations=activations, kv=kv)
