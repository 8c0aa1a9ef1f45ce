"""Quantities with units: parsed from text into SI numbers, and formatted from SI numbers.

All code uses floats in base units (bytes, seconds, FLOP, byte/s, hertz, watt). `GB` is 10^9 bytes, `GiB` 2^30.
"""

from __future__ import annotations

import math
import re
from enum import Enum
from typing import NamedTuple

from roofline.core.errors import RooflineError, quote

DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
SUBMULTIPLES = {"m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9, "p": 1e-12}
PER_UNIT = {"J/bit": 8.0}
"""Base units per unit for symbols that are not base units: 1 J/bit is 8 J/B."""

MONTH = 730.0
"""Hours of a month: 365 days of 24 hours over 12."""

PERIODS = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("min", "minute"), 60.0),
    **dict.fromkeys(("h", "hr", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86_400.0),
    **dict.fromkeys(("mo", "month"), 3600 * MONTH),
}
"""Seconds of the periods of rates and budgets, by the names that people write."""


class Dimension(Enum):
    """A kind of quantity: its unit symbols, prefixes, plausible range, and an example for error messages."""

    BYTES = (("B",), {**DECIMAL, **BINARY}, 1.0, 1e18, "'80 GB'")
    BANDWIDTH = (("B/s",), {**DECIMAL, **BINARY}, 1e6, 1e17, "'3.35 TB/s'")
    RATE = (("FLOP/s", "FLOPS", "FLOPs", "OP/s", "OPS", "OPs"), DECIMAL, 1e6, 1e19, "'989.4 TFLOP/s'")
    FREQUENCY = (("Hz",), DECIMAL, 1e6, 1e11, "'1.83 GHz'")
    TIME = (("s",), {"": 1.0, **SUBMULTIPLES}, 1e-12, 1e6, "'1.5 us'")
    POWER = (("W",), {**DECIMAL, "m": 1e-3}, 1e-3, 1e6, "'700 W'")
    ENERGY_PER_BYTE = (("J/B", "J/bit"), SUBMULTIPLES, 1e-14, 1e-6, "'48 pJ/B' or '6 pJ/bit'")
    ENERGY_PER_FLOP = (("J/FLOP", "J/OP"), SUBMULTIPLES, 1e-16, 1e-6, "'0.9 pJ/FLOP'")
    MONEY = (("USD",), {"": 1.0}, 1e-6, 1e9, "'30000 USD'")
    MONEY_RATE = (("USD/h",), {"": 1.0}, 1e-6, 1e6, "'2.99 USD/h'")
    COUNT = (("",), {"": 1.0}, 1.0, 1e9, "'132'")

    def __init__(
        self, units: tuple[str, ...], prefixes: dict[str, float], low: float, high: float, example: str
    ) -> None:
        self.units, self.prefixes, self.low, self.high, self.example = units, prefixes, low, high, example


class Quantity(NamedTuple):
    """A parsed quantity: its value in base units and its citation, as in `80 GB [source; remark]`."""

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
    """Parse `text` such as `4.8 TB/s [datasheet]` as a quantity of `dimension`, in base units.

    Raises RooflineError if the text is not a number with a unit of that dimension, or the value is implausible.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise RooflineError(f"expected a quantity such as {dimension.example}, got {quote(text)}")
    try:
        match = _QUANTITY.fullmatch(str(text)[:400])
    except ValueError:  # an integer of thousands of digits
        match = None
    if match is None:
        raise RooflineError(f"cannot read {quote(text)} as a quantity such as {dimension.example}")
    value = float(match["number"]) * _factor(match["unit"], dimension, text)
    if not math.isfinite(value) or not dimension.low <= value <= dimension.high:
        raise RooflineError(
            f"{quote(text)} is outside the plausible range"
            f" {_plain(dimension.low, dimension)} to {_plain(dimension.high, dimension)}"
        )
    return Quantity(value, match["source"] or None, match["remark"] or None)


def _factor(unit: str, dimension: Dimension, text: object) -> float:
    for symbol in sorted(dimension.units, key=len, reverse=True):
        prefix = unit.removesuffix(symbol) if symbol else unit
        if unit.endswith(symbol) and prefix in dimension.prefixes:
            return dimension.prefixes[prefix] * PER_UNIT.get(symbol, 1.0)
    if not unit:
        raise RooflineError(f"{quote(text)} has no unit; write it like {dimension.example}")
    raise RooflineError(f"{quote(text)} has the unit {quote(unit)}; write it like {dimension.example}")


def _plain(value: float, dimension: Dimension) -> str:
    return f"{value:g} {dimension.units[0]}".strip()


GIB = BINARY["Gi"]
"""Bytes of a GiB."""

DECIMAL_COUNTS = {"k": 10**3, "m": 10**6, "g": 10**9}
BINARY_COUNTS = {"K": 2**10, "M": 2**20, "G": 2**30}

_COUNT = re.compile(r"\s*(?P<number>[+-]?\d+(?:_\d+)*(?:\.\d+)?)(?P<suffix>[kmgKMG])\s*", re.ASCII)


def parse_count(text: str) -> float:
    """The number in a text such as 4096, 32k (32,000), 128K (131,072) or 1M (1,048,576); raises ValueError.

    As vLLM reads `--max-model-len` (`human_readable_int`): a lower-case suffix is a power of 1000, an upper-case one a
    power of 1024 and follows whole numbers only.
    """
    match = _COUNT.fullmatch(text)
    if match is None:
        return float(text.replace("_", ""))
    number, suffix = match["number"], match["suffix"]
    if suffix in BINARY_COUNTS and "." in number:
        raise ValueError(text)
    return float(number.replace("_", "")) * {**DECIMAL_COUNTS, **BINARY_COUNTS}[suffix]


_TIME_STEPS = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_STEPS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """Format a value with an SI prefix and `digits` significant digits: 67108864 and "B" give '67.1 MB'."""
    return _prefixed(value, unit, digits, _STEPS)


def seconds(value: float, digits: int = 3) -> str:
    """Format a duration in s, ms, µs or ns: 0.0123 gives '12.3 ms'."""
    return _prefixed(value, "s", digits, _TIME_STEPS)


def target_text(value: float) -> str:
    """Format a duration that somebody chose, without zeros that say nothing: 10 s, 1.25 s, 50 ms."""
    number, unit = seconds(value).split()
    return f"{float(number):g} {unit}"


def count_text(value: float) -> str:
    """A count or rate as text: three significant digits, or whole numbers from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rate_text(value: float) -> str:
    """A rate of requests, with four digits: 1 request/s, 0.5 requests/s, 1.157 requests/s of 100,000 a day."""
    return f"{value:,.0f} requests/s" if value >= 1000 else f"{value:.4g} request{'s' * (value != 1)}/s"


def amount(value: float, unit: str) -> str:
    """Format a figure: a duration or bytes with a prefix, others with three digits, or all digits from 100 on."""
    match unit:
        case "s":
            return seconds(value)
        case "B":
            return si(value, "B")
    return f"{value:,.3g} {unit}" if abs(value) < 100 else f"{value:,.0f} {unit}"


def _prefixed(value: float, unit: str, digits: int, steps: tuple[tuple[float, str], ...]) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".strip()
    value = float(f"{value:.{digits}g}")
    scale, prefix = next(((scale, prefix) for scale, prefix in steps if abs(value) >= scale), steps[-1])
    scaled = value / scale
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(scaled)))) if scaled else 0
    return f"{scaled:.{decimals}f} {prefix}{unit}".strip()
