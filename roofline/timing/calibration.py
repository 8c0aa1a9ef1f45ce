"""Calibrations: the fitted constants of each kind of kernel, their source and their residuals.

A file of `hwspecs/calibration/` holds the constants of one accelerator, of a family, of a vendor's product line, or of
all hardware (`pooled`). Hardware without its own file inherits its family's, its product line's, then the pooled one:
`load_calibration` returns the chain, and every expected time names the link that it used.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from roofline.core.documents import finite_number, read_mapping, scalar_text
from roofline.core.errors import RooflineError, SpecError, quote, suggest
from roofline.core.parameters import Parameter, Unit
from roofline.core.units import Dimension, parse_quantity
from roofline.specs.hardware import Hardware
from roofline.specs.library import as_mapping, check_keys, find_file, modified
from roofline.timing.kernels import (
    KERNELS,
    Array,
    Columns,
    Mask,
    column,
    kernel,
    kernel_bound,
    kernel_regimes,
    kernel_times,
)

Basis = Literal["calibrated", "family", "pooled", "unmeasured", "bound"]

RELATIVES: Mapping[str, tuple[str, ...]] = {
    "fp32": ("bf16",),
    "fp16": ("bf16",),
    "int8": ("fp8",),
    "moe int8": ("fp8_block", "fp8", "bf16"),  # public FP8 rows with one scale: kernels that differ by a factor of 3
    "fp8": ("bf16/fp8", "fp8_block", "bf16"),
    "fp8_block": ("fp8",),
    "mxfp4": ("nvfp4",),
    "nvfp4": ("fp8",),
    "int4_wo": ("w4a16_mxfp4", "bf16"),
    "w4a16_mxfp4": ("int4_wo", "bf16"),
    "w4a8_mxfp4_mxfp8": ("nvfp4", "fp8"),
    "tf32": ("bf16",),
    "int4": ("int8", "fp8"),
    "fp32/fp8": ("bf16/fp8", "bf16"),
    "fp16/fp8": ("bf16/fp8",),
    "fp16/int8": ("bf16/fp8",),
    "bf16/int8": ("bf16/fp8",),
    "bf16/fp8": ("fp8", "bf16"),
    "fused": ("chunked",),
}
"""Formats whose constants substitute for those of an unmeasured format, nearest first; also by op and format."""

WIDENING: Mapping[str, float] = {"outside": 2.0, "relative": 1.5, "family": 1.25, "pooled": 1.25}
"""Factors on the logarithm of an interval: a shape outside the fitted range; a related format's constants; constants
of other hardware (with each accelerator held out in turn, intervals from the others' residuals cover 71 to 75%)."""


MAX_RESIDUAL = 1e6
"""Largest ratio of measured and predicted time that a file may hold; hundreds are a fit that failed."""


class Residuals(Struct, frozen=True):
    """Measured over predicted time of `rows` measurements: 10th, 50th and 90th percentile."""

    low: float
    mid: float
    high: float
    rows: int


class Fit(Struct, frozen=True):
    """The constants of one kind of kernel in one format, in SI units, with residuals and fitted ranges.

    `residuals` are by regime, and under `all`; `ranges` gives the smallest and largest value of each fitted column.
    `source` is the origin of its measurements where it differs from the calibration's.
    """

    op: str
    format: str
    parameters: Mapping[str, float]
    residuals: Mapping[str, Residuals] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rows: int = 0
    source: str = ""

    def __hash__(self) -> int:
        return hash((self.op, self.format, self.rows))


class Source(Struct, frozen=True):
    """The origin of measurements, and the command that fitted constants to them."""

    repository: str = ""
    commit: str = ""
    software: tuple[str, ...] = ()
    date: datetime.date | None = None
    command: str = ""

    def __str__(self) -> str:
        where = f"{self.repository} at {self.commit}" if self.commit else self.repository
        return "; ".join(filter(None, (where, ", ".join(self.software))))


class Match(Struct, frozen=True):
    """The constants found for a kind and a format, their calibration, and the widening of the interval."""

    fit: Fit
    basis: Basis
    calibration: str
    source: str
    widening: float

    def expected(self, columns: Columns, hardware: Hardware, resident: Mask = False, alone: Mask = False) -> Expected:
        """Expected seconds of rows of this kind and format; see `Calibration.expected`."""
        fit = self.fit
        bound, mid = kernel_times(fit.op, columns, hardware, fit.parameters, resident, alone)
        inside = within(fit, columns, mid.shape)
        index = kernel_regimes(fit.op, columns)
        low, high = (ends[index] for ends in _spread_by_regime(fit, fit.op))
        exponent = self.widening * np.where(inside, 1.0, WIDENING["outside"])
        return Expected(
            low=np.maximum(mid * low**exponent, bound),
            mid=mid,
            high=np.maximum(mid * high**exponent, mid),
            inside=inside,
            basis=self.basis,
            source=f"{self.calibration}: {self.source}",
        )


class Expected(NamedTuple):
    """Expected seconds of each row: 10th, 50th, 90th percentile; `inside`: the shape is in the fitted range."""

    low: Array
    mid: Array
    high: Array
    inside: NDArray[np.bool_]
    basis: Basis
    source: str


class Calibration(Struct, frozen=True):
    """The constants of one accelerator, family or pool, with its fallbacks (`parents`, nearest first)."""

    name: str
    basis: Basis
    fits: Mapping[tuple[str, str], Fit] = field(default_factory=lambda: MappingProxyType({}))
    source: Source = field(default_factory=Source)
    parents: tuple[Calibration, ...] = ()

    def __hash__(self) -> int:
        return hash((self.name, self.basis, len(self.fits)))

    @property
    def chain(self) -> Iterator[Calibration]:
        """The calibration itself, then its fallbacks."""
        yield self
        yield from self.parents

    def find(self, op: str, format: str) -> Match | None:
        """The nearest constants: the format's along the chain, then those of a related format; None without any."""
        relatives = RELATIVES.get(f"{op} {format}") or RELATIVES.get(format, ())
        for index, candidate in enumerate((format, *relatives)):
            for link in self.chain:
                fit = link.fits.get((op, candidate))
                if fit is not None:
                    widening = (WIDENING["relative"] if index else 1.0) * WIDENING.get(link.basis, 1.0)
                    return Match(fit, link.basis, link.name, fit.source or str(link.source), widening)
        return None

    def expected(
        self, op: str, columns: Columns, hardware: Hardware, resident: Mask = False, alone: Mask = False
    ) -> Expected:
        """Expected seconds with their interval, for columns of the measurement schema in one format.

        `mid` is the model's time; `low` and `high` multiply it by the 10th and 90th percentile of measured over
        predicted time in the regime of each row, wider outside the fitted range. None is below the bound; without
        constants all are the bound, and so is `basis`. `resident` and `alone`: see `kernels.kernel_time`.
        """
        match = self.find(op, kernel(op).format(columns))
        if match is not None:
            return match.expected(columns, hardware, resident, alone)
        bound = kernel_bound(op, columns, hardware, resident)
        return Expected(bound, bound, bound, np.zeros(bound.shape, dtype=bool), "bound", "no measurements")


def within(fit: Fit, columns: Columns, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Whether each row lies in the fitted range of every column."""
    inside = np.ones(shape, dtype=bool)
    for name, (low, high) in fit.ranges.items():
        if name in columns:
            values = column(columns, name)
            inside = inside & (values >= low) & (values <= high)
    return inside


@lru_cache(maxsize=1024)
def _spread_by_regime(fit: Fit, op: str) -> tuple[Array, Array]:
    """The factors from p50 to p10 and to p90, by regime."""
    everywhere = fit.residuals.get("all", Residuals(0.5, 1.0, 2.0, 0))
    found = [fit.residuals.get(label, everywhere) for label in kernel(op).regimes.labels]
    low, high = (min(residual.low, 1.0) for residual in found), (max(residual.high, 1.0) for residual in found)
    return np.array(list(low)), np.array(list(high))


def families(hardware: Hardware) -> tuple[str, ...]:
    """The names of the family calibrations of `hardware`, nearest first.

    The HBM and GDDR members of a family are different chips: `blackwell-gddr` before `blackwell`.
    """
    graphics = (hardware.memory_kind or "").upper().startswith("GDDR")
    return (f"{hardware.family}-gddr", hardware.family) if graphics else (hardware.family,)


def product_line(hardware: Hardware) -> str:
    """The calibration name of a vendor's product line of numbered families: `cdna` for `cdna3` and `cdna4`."""
    return hardware.family.rstrip("0123456789")


def load_calibration(hardware: Hardware, path: Path | None = None, *, kind: bool = True) -> Calibration:
    """The chain of calibrations of `hardware`: its own, its family's, product line's, kind's, and the pooled one.

    `kind` includes the calibration of its kind, such as `cpu`, whose kernels not every engine runs. `path` names a file
    to use as its own. Raises SpecError for an invalid file.
    """
    links = []
    own = path or _find(hardware.name)
    if own is not None:
        links.append(_read(own, "calibrated"))
    family = next((found for name in families(hardware) if (found := _find(name))), None)
    related = _find(product_line(hardware)) if product_line(hardware) != hardware.family else None
    of_kind = _find(hardware.kind)
    relatives = dict.fromkeys(path for path in (family, related, of_kind) if path is not None and path != own)
    links += [_read(path, "family") for path in relatives if kind or path != of_kind]
    pooled = _find("pooled")
    if pooled is not None:
        links.append(_read(pooled, "pooled"))
    if not links:
        return Calibration(hardware.name, "bound")
    return _chained(*links)


class Calibrations(dict[tuple[Hardware, bool], Calibration]):
    """Calibrations by hardware and `kind` (see `load_calibration`), each loaded once."""

    def __missing__(self, key: tuple[Hardware, bool]) -> Calibration:
        hardware, kind = key
        found = self[key] = load_calibration(hardware, kind=kind)
        return found


@lru_cache(maxsize=256)
def _chained(first: Calibration, *parents: Calibration) -> Calibration:
    """`first` with its fallbacks: one object for equal links, so that it can be a cache key."""
    return Calibration(first.name, first.basis, first.fits, first.source, parents)


def _find(name: str) -> Path | None:
    """The file `calibration/<name>.yaml` of the search path, else the bundled one."""
    return find_file(f"calibration/{name}.yaml", "hwspecs")


def _read(path: Path, basis: Basis) -> Calibration:
    return _parse(path, modified(path), basis)


@lru_cache(maxsize=64)
def _parse(path: Path, _modified: int, basis: Basis) -> Calibration:
    return parse_calibration(read_mapping(path), str(path), basis)


_TOP = ("name", "source", "kernels")
_SOURCE = ("repository", "commit", "software", "date", "command")
_FIT = ("source", "parameters", "rows", "range", "residuals")


def parse_calibration(content: Mapping[str, Any], where: str, basis: Basis = "calibrated") -> Calibration:
    """The Calibration of a file's mapping; `where` names the file in errors."""
    check_keys(content, _TOP, where, "")
    name = content.get("name")
    if not isinstance(name, str) or not name:
        raise SpecError(where, "the key 'name' is missing")
    fits = {}
    for op, formats in as_mapping(content.get("kernels"), where, "kernels").items():
        if op not in KERNELS:
            raise SpecError(where, f"unknown kernel {quote(op)} in 'kernels'{suggest(op, KERNELS)}")
        for format, body in as_mapping(formats, where, f"kernels.{op}").items():
            fits[op, format] = _fit(op, format, as_mapping(body, where, f"kernels.{op}.{format}"), where)
    return Calibration(name, basis, MappingProxyType(fits), _source(content.get("source"), where))


def _source(content: object, where: str) -> Source:
    source = as_mapping(content if content is not None else {}, where, "source")
    check_keys(source, _SOURCE, where, "source")
    date, software = source.get("date"), source.get("software", [])
    if not isinstance(date, (datetime.date, type(None))) or not isinstance(software, list):
        raise SpecError(where, "'source' needs a date such as 2026-11-20 and a list of 'software'")
    texts = {key: _words(source.get(key, ""), where, f"source.{key}") for key in ("repository", "commit", "command")}
    listed = tuple(_words(entry, where, "source.software") for entry in software)
    return Source(software=listed, date=date, **texts)


def _words(value: object, where: str, key: str) -> str:
    text = scalar_text(value)
    if text is None:
        raise SpecError(where, f"{quote(key)} must be text, got {quote(value)}")
    return text


def _fit(op: str, format: str, body: Mapping[str, Any], where: str) -> Fit:
    place = f"kernels.{op}.{format}"
    check_keys(body, _FIT, where, place)
    try:
        expected = {parameter.name: parameter for parameter in kernel(op).parameters(format)}
    except RooflineError as error:
        raise SpecError(where, f"{quote(place)}: {error}") from None
    given = as_mapping(body.get("parameters"), where, f"{place}.parameters")
    check_keys(given, expected, where, f"{place}.parameters")
    values = {}
    for name, parameter in expected.items():
        key = f"{place}.parameters.{name}"
        if name not in given and not parameter.optional:
            raise SpecError(where, f"the key {quote(key)} is missing")
        values[name] = _value(given[name], parameter, where, key) if name in given else parameter.default
    residuals = {
        label: _residuals(entry, where, f"{place}.residuals.{label}")
        for label, entry in as_mapping(body.get("residuals", {}), where, f"{place}.residuals").items()
    }
    ranges = {
        name: (low, high)
        for name, entry in as_mapping(body.get("range", {}), where, f"{place}.range").items()
        for low, high in [_numbers(entry, 2, where, f"{place}.range.{name}")]
    }
    rows = _count(body.get("rows", 0), where, f"{place}.rows")
    source = _words(body.get("source", ""), where, f"{place}.source")
    evidence = MappingProxyType(residuals), MappingProxyType(ranges)
    return Fit(op, format, MappingProxyType(values), *evidence, rows, source)


def _residuals(entry: object, where: str, key: str) -> Residuals:
    low, mid, high, rows = _numbers(entry, 4, where, key)
    if not 1 / MAX_RESIDUAL <= low <= mid <= high <= MAX_RESIDUAL or rows < 0:
        allowed = f"{1 / MAX_RESIDUAL:g} to {MAX_RESIDUAL:g}"
        raise SpecError(
            where, f"{quote(key)} must be three ratios of {allowed} in ascending order, and a number of rows"
        )
    return Residuals(low, mid, high, int(rows))


def _value(text: object, parameter: Parameter, where: str, key: str) -> float:
    dimension = {Unit.SECONDS: Dimension.TIME, Unit.BANDWIDTH: Dimension.BANDWIDTH}.get(parameter.unit)
    try:
        if dimension is not None:
            value = parse_quantity(text, dimension).value
        elif (number := finite_number(text)) is not None:
            value = number
        else:
            raise RooflineError(f"expected a number, got {quote(text)}")
    except RooflineError as error:
        raise SpecError(where, f"{quote(key)}: {error}") from None
    slack = 1e-3 * abs(parameter.high)
    if not parameter.low * 0.999 <= value <= parameter.high + slack:
        raise SpecError(
            where, f"{quote(key)}: {value:g} is outside {parameter.low:g} to {parameter.high:g} ({parameter.meaning})"
        )
    return value


def _numbers(entry: object, count: int, where: str, key: str) -> list[float]:
    found = [number for item in entry if (number := finite_number(item)) is not None] if isinstance(entry, list) else []
    if not isinstance(entry, list) or not len(entry) == len(found) == count:
        raise SpecError(where, f"{quote(key)} must be a list of {count} numbers")
    return found


def _count(value: object, where: str, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or finite_number(value) is None or value < 0:
        raise SpecError(where, f"{quote(key)} must be a number of rows")
    return value


def render(calibration: Calibration) -> str:
    """The text of a calibration file; `parse_calibration` reads it back."""
    source = calibration.source
    lines = [f"name: {_text(calibration.name)}", "source:", f"  repository: {_text(source.repository)}"]
    if source.commit:
        lines.append(f"  commit: {_text(source.commit)}")
    lines.append(f"  software: [{', '.join(map(_text, source.software))}]")
    if source.date is not None:
        lines.append(f"  date: {source.date.isoformat()}")
    lines += [f"  command: {_text(source.command)}", "kernels:" if calibration.fits else "kernels: {}"]
    for op in dict.fromkeys(op for op, _ in calibration.fits):
        lines.append(f"  {op}:")
        for (kind, format), fit in calibration.fits.items():
            if kind == op:
                lines += _rendered(format, fit)
    return "\n".join(lines) + "\n"


def _rendered(format: str, fit: Fit) -> list[str]:
    lines = [f"    {_text(format)}:", *([f"      source: {_text(fit.source)}"] if fit.source else [])]
    lines += [f"      rows: {fit.rows}", "      parameters:"]
    for parameter in kernel(fit.op).parameters(format):
        if parameter.optional and fit.parameters[parameter.name] == parameter.default:
            continue
        lines.append(f"        {parameter.name}: {_quantity_text(fit.parameters[parameter.name], parameter.unit)}")
    ranges = ", ".join(f"{name}: [{low:g}, {high:.12g}]" for name, (low, high) in fit.ranges.items())
    lines += [f"      range: {{{ranges}}}", "      residuals:"]
    for label, residual in fit.residuals.items():
        spread = f"{residual.low:.4g}, {residual.mid:.4g}, {residual.high:.4g}, {residual.rows}"
        lines.append(f"        {_text(label)}: [{spread}]")
    return lines


def _quantity_text(value: float, unit: Unit) -> str:
    match unit:
        case Unit.SECONDS:
            return f"{value * 1e9:.4g} ns" if value < 1e-7 else f"{value * 1e6:.4g} us"
        case Unit.BANDWIDTH:
            return f"{value / 1e9:.4g} GB/s"
        case Unit.CHOICE:
            return f"{value:.0f}"
        case _:
            shown = f"{value:.4g}"
            # YAML 1.1 parses a number with an exponent and no point as a string.
            return shown.replace("e", ".0e") if "e" in shown and "." not in shown else shown


_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""Words that YAML 1.1 does not parse as strings, in any case."""


def _text(value: str) -> str:
    """A plain YAML scalar, or a quoted one where a plain one would not be parsed as this string."""
    plain = value and all(character.isalnum() or character in " ._-/+" for character in value) and value[0].isalpha()
    if plain and value.strip() == value and value.lower() not in _WORDS:
        return value
    escaped = "".join(character if character.isprintable() else " " for character in value).replace("'", "''")
    return f"'{escaped}'"
