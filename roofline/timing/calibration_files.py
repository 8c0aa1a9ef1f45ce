"""Calibration files: how they are parsed and written.

`hwspecs/calibration/` has a file for each device, family, product line or kind of hardware, and `pooled` for all
hardware: the constants of kernels that all engines share. Its folders, named after engines, have the same files for the
kernels of an engine, by version. A family without a file of its own lists its measured `members`.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from roofline.core.documents import finite_number, scalar_text
from roofline.core.errors import RooflineError, SpecError, quote, suggest
from roofline.core.parameters import Parameter, Unit
from roofline.core.units import Dimension, parse_quantity
from roofline.specs.library import as_mapping, check_keys, check_name
from roofline.specs.records import record
from roofline.specs.version import Version, closest
from roofline.timing.calibration import Basis, Calibration, Fit, Fits, Source
from roofline.timing.intervals.kernels import Residuals
from roofline.timing.kernels import KERNELS, kernel

MAX_RESIDUAL = 1e6
"""Largest ratio of measured and predicted time that a file may hold; hundreds are a fit that failed."""


class Document(Struct, frozen=True):
    """The content of a calibration file: fits of any version by version ("" where the file names none)."""

    calibration: Calibration
    versions: Mapping[str, Fits]
    members: tuple[str, ...]


def of_version(versions: Mapping[str, Fits], version: str = "", other: bool = False) -> Fits:
    """The fits of a version and those of no version, of `versions`; "" is the newest of each kernel.

    With `other` they are those of the nearest version of each kernel but `version`.
    """
    known = {name: fits for name, fits in versions.items() if name}
    version = next((name for name in known if version and Version(name) == Version(version)), version)
    if not other:
        found: dict[tuple[str, str], Fit] = dict(versions.get("", {}))
        for name in [version] if version else sorted(known, key=Version):
            found |= known.get(name, {})
        return found
    found = {}
    for key in dict.fromkeys(key for fits in known.values() for key in fits):
        having = [name for name, fits in known.items() if key in fits and name != version]
        if having:
            found[key] = known[_nearest(version, having)][key]
    return found


def _nearest(version: str, known: Iterable[str]) -> str:
    """The nearest of the `known` versions, the newest for "" (`roofline.specs.version.closest`)."""
    ordered = {Version(name): name for name in known}
    return ordered[closest(Version(version), ordered) if version else max(ordered)]


Number = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


class _Fit(Struct, frozen=True):
    parameters: dict[str, Any]
    rows: Annotated[int, Meta(ge=0)] = 0
    range: dict[str, tuple[Number, Number]] = {}
    residuals: dict[str, tuple[Number, Number, Number, Annotated[int, Meta(ge=0)]]] = {}
    source: str = ""
    held_out: bool = False
    observed: dict[str, Number] = {}


_TOP = ("name", "engine", "members", "source", "kernels", "versions")


def parse_calibration(content: Mapping[str, Any], where: str, basis: Basis = "calibrated") -> Calibration:
    """The Calibration of a file's mapping; `where` names the file in errors. Of versions it has the newest."""
    document = parse_document(content, where)
    return replace(document.calibration, basis=basis, fits=MappingProxyType(of_version(document.versions)))


def parse_document(content: Mapping[str, Any], where: str) -> Document:
    """The content of a calibration file; raises SpecError with the key of what is wrong."""
    check_keys(content, _TOP, where, "")
    name = content.get("name")
    if not isinstance(name, str) or not name:
        raise SpecError(where, "the key 'name' is missing")
    versions = {"": _kernels(content.get("kernels"), where, "kernels")}
    for version, kernels in as_mapping(content.get("versions", {}), where, "versions").items():
        Version(version)
        own = _kernels(kernels, where, f"versions.{version}")
        versions[version] = {key: replace(fit, version=version) for key, fit in own.items()}
    members = content.get("members", [])
    if not isinstance(members, list):
        raise SpecError(where, "'members' must be a list of devices")
    calibration = Calibration(
        name,
        "calibrated",
        source=_source(content.get("source"), where),
        engine=_words(content.get("engine", ""), where, "engine"),
    )
    return Document(
        calibration,
        versions,
        tuple(check_name(_words(member, where, "members"), where, "members") for member in members),
    )


def _kernels(content: object, where: str, place: str) -> Fits:
    """The fits of the mapping at the key `place`, by op and format."""
    fits = {}
    for op, formats in as_mapping({} if content is None else content, where, place).items():
        if op not in KERNELS:
            raise SpecError(where, f"unknown kernel {quote(op)} in {quote(place)}{suggest(op, KERNELS)}")
        for format, body in as_mapping(formats, where, f"{place}.{op}").items():
            fits[op, format] = _fit(op, format, body, where, f"{place}.{op}.{format}")
    return MappingProxyType(fits)


def _source(content: object, where: str) -> Source:
    source = as_mapping(content if content is not None else {}, where, "source")
    check_keys(source, Source.__struct_fields__, where, "source")
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


def _fit(op: str, format: str, body: object, where: str, place: str) -> Fit:
    given = record(_Fit, body, where, place)
    try:
        expected = {parameter.name: parameter for parameter in kernel(op).parameters(format)}
    except RooflineError as error:
        raise SpecError(where, f"{quote(place)}: {error}") from None
    check_keys(given.parameters, expected, where, f"{place}.parameters")
    values = {}
    for name, parameter in expected.items():
        key = f"{place}.parameters.{name}"
        if name not in given.parameters and not parameter.optional:
            raise SpecError(where, f"the key {quote(key)} is missing")
        values[name] = parameter.default
        if name in given.parameters:
            values[name] = _value(given.parameters[name], parameter, where, key)
    residuals = {label: Residuals(*figures) for label, figures in given.residuals.items()}
    for label, found in residuals.items():
        if not 1 / MAX_RESIDUAL <= found.low <= found.mid <= found.high <= MAX_RESIDUAL:
            allowed = f"three ratios of {1 / MAX_RESIDUAL:g} to {MAX_RESIDUAL:g} in ascending order"
            raise SpecError(where, f"{quote(f'{place}.residuals.{label}')} must be {allowed}, and a number of rows")
    evidence = MappingProxyType(residuals), MappingProxyType(given.range), given.rows, given.source
    observed = MappingProxyType(given.observed)
    return Fit(op, format, MappingProxyType(values), *evidence, held_out=given.held_out, observed=observed)


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


def render(calibration: Calibration, versions: Mapping[str, Fits] | None = None, members: tuple[str, ...] = ()) -> str:
    """The text of a calibration file; `parse_calibration` reads it back.

    `versions` has the fits of an engine by version; those of `calibration` are of no version.
    """
    source = calibration.source
    lines = [f"name: {_text(calibration.name)}"]
    lines += [f"engine: {_text(calibration.engine)}"] if calibration.engine else []
    lines += [f"members: [{', '.join(map(_text, members))}]"] if members else []
    lines += ["source:", f"  repository: {_text(source.repository)}"]
    if source.commit:
        lines.append(f"  commit: {_text(source.commit)}")
    lines.append(f"  software: [{', '.join(map(_text, source.software))}]")
    if source.date is not None:
        lines.append(f"  date: {source.date.isoformat()}")
    lines.append(f"  command: {_text(source.command)}")
    if calibration.fits or not versions:
        lines += ["kernels:" if calibration.fits else "kernels: {}", *_rendered_kernels(calibration.fits, "  ")]
    if versions:
        lines.append("versions:")
        for name in sorted(versions, key=Version):
            lines += [f"  '{name}':", *_rendered_kernels(versions[name], "    ")]
    return "\n".join(lines) + "\n"


def _rendered_kernels(fits: Fits, indent: str) -> Iterator[str]:
    for op in dict.fromkeys(op for op, _ in fits):
        yield f"{indent}{op}:"
        for (kind, format), fit in fits.items():
            if kind == op:
                yield from (f"{indent}  {line}" for line in _rendered(format, fit))


def _rendered(format: str, fit: Fit) -> Iterator[str]:
    yield f"{_text(format)}:"
    if fit.source:
        yield f"  source: {_text(fit.source)}"
    yield f"  rows: {fit.rows}"
    constants = ", ".join(
        f"{parameter.name}: {_quantity_text(fit.parameters[parameter.name], parameter.unit)}"
        for parameter in kernel(fit.op).parameters(format)
        if not parameter.optional or fit.parameters[parameter.name] != parameter.default
    )
    yield f"  parameters: {{{constants}}}"
    if fit.observed:
        observed = ", ".join(f"{name}: {_plain_number(value)}" for name, value in fit.observed.items())
        yield f"  observed: {{{observed}}}"
    if fit.ranges:
        ranges = ", ".join(f"{name}: [{low:g}, {high:.12g}]" for name, (low, high) in fit.ranges.items())
        yield f"  range: {{{ranges}}}"
    if fit.held_out:
        yield "  held_out: true"
    if fit.residuals:
        residuals = ", ".join(
            f"{_text(label)}: [{one.low:.3g}, {one.mid:.3g}, {one.high:.3g}, {one.rows}]"
            for label, one in fit.residuals.items()
        )
        yield f"  residuals: {{{residuals}}}"


def _quantity_text(value: float, unit: Unit) -> str:
    match unit:
        case Unit.SECONDS:
            return f"{value * 1e9:.4g} ns" if value < 1e-7 else f"{value * 1e6:.4g} us"
        case Unit.BANDWIDTH:
            return f"{value / 1e9:.4g} GB/s"
        case Unit.CHOICE:
            return f"{value:.0f}"
        case _:
            return _plain_number(value)


def _plain_number(value: float) -> str:
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
