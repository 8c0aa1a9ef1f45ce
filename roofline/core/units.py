"""Quantities with units: the one place where text becomes SI numbers and SI numbers become text.

Inside the program everything is in base units (bytes, seconds, FLOP, byte/s, hertz, watt) as floats. `GB` is 10^9
bytes and `GiB` is 2^30.
"""

from __future__ import annotations

import math
import re
from enum import Enum
from typing import NamedTuple

from roofline.core.errors import RooflineError, quote

DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
SMALL = {"m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9, "p": 1e-12}
PER_UNIT = {"J/bit": 8.0}
"""Base units in one of a symbol that is not a base unit itself: a joule a bit is eight joules a byte."""


class Dimension(Enum):
    """A kind of quantity: the unit symbols it may be written in, its prefixes, and the range that is believable."""

    BYTES = (("B",), {**DECIMAL, **BINARY}, 1.0, 1e18)
    BANDWIDTH = (("B/s",), {**DECIMAL, **BINARY}, 1e6, 1e16)
    RATE = (("FLOP/s", "FLOPS", "FLOPs", "OP/s", "OPS", "OPs"), DECIMAL, 1e6, 1e19)
    FREQUENCY = (("Hz",), DECIMAL, 1e6, 1e11)
    TIME = (("s",), {"": 1.0, **SMALL}, 1e-12, 1e6)
    POWER = (("W",), {**DECIMAL, "m": 1e-3}, 1e-3, 1e6)
    ENERGY_PER_BYTE = (("J/B", "J/bit"), SMALL, 1e-14, 1e-6)
    ENERGY_PER_FLOP = (("J/FLOP", "J/OP"), SMALL, 1e-16, 1e-6)
    MONEY = (("USD",), {"": 1.0}, 1e-6, 1e9)
    MONEY_RATE = (("USD/h",), {"": 1.0}, 1e-6, 1e6)
    COUNT = (("",), {"": 1.0}, 1.0, 1e9)

    def __init__(self, units: tuple[str, ...], prefixes: dict[str, float], low: float, high: float) -> None:
        self.units = units
        self.prefixes = prefixes
        self.low = low
        self.high = high


class Quantity(NamedTuple):
    """A parsed quantity: its value in base units and the source written behind it, `80 GB [datasheet; remark]`."""

    value: float
    source: str | None = None
    remark: str | None = None


_QUANTITY = re.compile(
    r"""\s*(?P<number>[+-]?\d+(?:_\d+)*(?:\.\d+)?(?:[eE][+-]?\d+)?)
        \s*(?P<unit>[A-Za-z\u00b5]*(?:/[A-Za-z]+)?)
        \s*(?:\[\s*(?P<source>[^\];]*?)\s*(?:;\s*(?P<remark>[^\]]*?)\s*)?\])?\s*""",
    re.VERBOSE | re.ASCII,
)


def parse_quantity(text: object, dimension: Dimension) -> Quantity:
    """Read `text` such as `4.8 TB/s [datasheet]` as a quantity of `dimension`, in base units.

    Raises RooflineError when the text is not a number with a unit of that dimension, or the value is not believable.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise RooflineError(f"expected a quantity such as {example(dimension)}, got {quote(text)}")
    try:
        match = _QUANTITY.fullmatch(str(text)[:400])
    except ValueError:  # an integer of thousands of digits
        match = None
    if match is None:
        raise RooflineError(f"cannot read {quote(text)} as a quantity such as {example(dimension)}")
    value = float(match["number"]) * _factor(match["unit"], dimension, text)
    if not math.isfinite(value) or not dimension.low <= value <= dimension.high:
        raise RooflineError(
            f"{quote(text)} is outside the believable range"
            f" {_plain(dimension.low, dimension)} to {_plain(dimension.high, dimension)}"
        )
    return Quantity(value, match["source"] or None, match["remark"] or None)


def _factor(unit: str, dimension: Dimension, text: object) -> float:
    for symbol in sorted(dimension.units, key=len, reverse=True):
        prefix = unit.removesuffix(symbol) if symbol else unit
        if unit.endswith(symbol) and prefix in dimension.prefixes:
            return dimension.prefixes[prefix] * PER_UNIT.get(symbol, 1.0)
    if not unit:
        raise RooflineError(f"{quote(text)} has no unit; write it like {example(dimension)}")
    raise RooflineError(f"{quote(text)} has the unit {quote(unit)}; write it like {example(dimension)}")


def example(dimension: Dimension) -> str:
    """A well-formed quantity of `dimension`, for messages."""
    return {
        Dimension.BYTES: "'80 GB'",
        Dimension.BANDWIDTH: "'3.35 TB/s'",
        Dimension.RATE: "'989.4 TFLOP/s'",
        Dimension.FREQUENCY: "'1.83 GHz'",
        Dimension.TIME: "'1.5 us'",
        Dimension.POWER: "'700 W'",
        Dimension.ENERGY_PER_BYTE: "'48 pJ/B' or '6 pJ/bit'",
        Dimension.ENERGY_PER_FLOP: "'0.9 pJ/FLOP'",
        Dimension.MONEY: "'30000 USD'",
        Dimension.MONEY_RATE: "'2.99 USD/h'",
        Dimension.COUNT: "'132'",
    }[dimension]


def _plain(value: float, dimension: Dimension) -> str:
    return f"{value:g} {dimension.units[0]}".strip()


_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_STEPS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """Format a value with an SI prefix and `digits` significant digits: 67108864 and "B" give '67.1 MB'."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".strip()
    value = float(f"{value:.{digits}g}")
    scale, prefix = next(((scale, prefix) for scale, prefix in _STEPS if abs(value) >= scale), _STEPS[-1])
    scaled = value / scale
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(scaled)))) if scaled else 0
    return f"{scaled:.{decimals}f} {prefix}{unit}".strip()


def seconds(value: float, digits: int = 3) -> str:
    """Format a duration with the prefix that suits it: 0.0123 gives '12.3 ms'."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} s"
    value = float(f"{value:.{digits}g}")
    scale, unit = next(((scale, unit) for scale, unit in _TIMES if abs(value) >= scale), _TIMES[-1])
    scaled = value / scale
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(scaled))))
    return f"{scaled:.{decimals}f} {unit}"
