"""Calibration files: where they lie, how they are read, and how they are written.

`hwspecs/calibration/` has a file for each device, family, product line or kind of hardware, and `pooled` for all
hardware: the constants of kernels that all engines share. Its folders, named after engines, have the same files for the
kernels of an engine, by version. A family without a file of its own lists its measured `members`.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.documents import MAX_BYTES, finite_number, read_mapping, scalar_text
from roofline.core.errors import RooflineError, SpecError, quote, suggest
from roofline.core.inputs import read_bytes
from roofline.core.parameters import Parameter, Unit
from roofline.core.units import Dimension, parse_quantity
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.library import as_mapping, check_keys, check_name, find_file, is_bundled, modified
from roofline.specs.version import Version, nearest
from roofline.timing.calibration import Basis, Calibration, Fit, Fits, Residuals, Source
from roofline.timing.kernels import KERNELS, kernel
from roofline.timing.levels import Level

ENGINES = ("vllm", "sglang", "tensorrt-llm")
"""Engines whose kernels were measured, the most measured first: the order in which they stand in for others."""

MAX_RESIDUAL = 1e6
"""Largest ratio of measured and predicted time that a file may hold; hundreds are a fit that failed."""


class FileFits(Mapping[tuple[str, str], Fit]):
    """The fits of one version in a file, read when the first is asked for.

    `version` names the engine's version, "" the newest; with `other`, the nearest version of each kernel but that one.
    """

    __slots__ = ("_key", "_loaded")

    def __init__(self, path: Path, version: str = "", other: bool = False) -> None:
        self._key = path, modified(path), version, other
        self._loaded: Fits | None = None

    @property
    def _fits(self) -> Fits:
        if self._loaded is None:
            path, changed, version, other = self._key
            document = _parse(path, changed)
            source, found = str(document.calibration.source), of_version(document.versions, version, other)
            self._loaded = {key: fit if fit.source else replace(fit, source=source) for key, fit in found.items()}
        return self._loaded

    def __getitem__(self, key: tuple[str, str]) -> Fit:
        return self._fits[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._fits)

    def __len__(self) -> int:
        return len(self._fits)

    @property
    def digest(self) -> str:
        """A digest of the version and of the file's content, equal on every machine."""
        path, changed, version, other = self._key
        return f"{version} {other} {_digest(path, changed)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileFits) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=128)
def _digest(path: Path, _modified: int) -> str:
    return hashlib.sha256(read_bytes(path, MAX_BYTES)).hexdigest()


class Document:
    """The content of a calibration file: fits of any version by version ("" where the file names none)."""

    def __init__(self, calibration: Calibration, versions: Mapping[str, Fits], members: tuple[str, ...]) -> None:
        self.calibration, self.versions, self.members = calibration, versions, members


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
    """The nearest of the `known` versions, the newest for "" (`roofline.specs.version.nearest`)."""
    ordered = {Version(name): name for name in known}
    return ordered[nearest(Version(version), ordered) if version else max(ordered)]


def families(hardware: Hardware) -> tuple[str, ...]:
    """The names of the family calibrations of `hardware`, nearest first.

    The HBM and GDDR members of a family are different chips: `blackwell-gddr` before `blackwell`.
    """
    graphics = (hardware.memory_kind or "").upper().startswith("GDDR")
    return (f"{hardware.family}-gddr", hardware.family) if graphics else (hardware.family,)


def product_line(hardware: Hardware) -> str:
    """The calibration name of a vendor's product line of numbered families: `cdna` for `cdna3` and `cdna4`."""
    return hardware.family.rstrip("0123456789")


class Shelf(Protocol):
    """Where calibrations are looked up by name, such as `h100-sxm`, or `sglang/hopper` for those of an engine."""

    def document(self, name: str) -> Document | None:
        """The content of a file; None if there is none of this name."""

    def fits(self, name: str, version: str = "", other: bool = False) -> Fits | None:
        """The fits of a version in a file (see `FileFits`); None if there is none of this name."""


class Files(Struct, frozen=True):
    """The calibration files of the search path, else the bundled ones; of `bundled` names the bundled ones only."""

    bundled: tuple[str, ...] = ()

    def _find(self, name: str) -> Path | None:
        return find_file(f"calibration/{name}.yaml", "hwspecs", bundled=name in self.bundled)

    def document(self, name: str) -> Document | None:
        """The content of the file; raises SpecError for an invalid one."""
        path = self._find(name)
        return None if path is None else _parse(path, modified(path))

    def fits(self, name: str, version: str = "", other: bool = False) -> Fits | None:
        """The fits of a version in the file, read at first use."""
        path = self._find(name)
        return None if path is None else FileFits(path, version, other)


def load_calibration(
    hardware: Hardware, path: Path | None = None, *, engine: str = "", version: str = "", kind: bool = True
) -> Calibration:
    """The calibrations of `hardware` for an engine's version, nearest first.

    Without an engine they are those of the engine with most measurements, without a version of its newest measured one.
    `kind` includes the calibration of the hardware's kind, such as `cpu`, whose kernels not every engine runs: without
    it those of the kind in the engine's own folder are included. A file of `ROOFLINE_SPECS`, or the one at `path`,
    comes first for any engine that runs these kernels. Raises SpecError for an invalid file.
    """
    own = path or find_file(f"calibration/{hardware.name}.yaml", "hwspecs")
    first = [] if own is None or is_bundled(own) or (path is None and not kind) else [_of_file(own)]
    links = [*first, *calibration_links(hardware, engine, version, kind, Files((hardware.name,) if first else ()))]
    return _chained(*links) if links else Calibration(hardware.name, "bound")


def _of_file(path: Path) -> Calibration:
    found = _parse(path, modified(path)).calibration
    return replace(found, fits=FileFits(path))


def calibration_links(hardware: Hardware, engine: str, version: str, kind: bool, shelf: Shelf) -> Iterator[Calibration]:
    """The places on a shelf with constants for an engine's kernels on `hardware`, nearest first."""
    engine = engine or ENGINES[0]
    others = [name for name in ENGINES if name != engine]
    kin = list(_kin(hardware, shelf))
    if kind:
        yield from _shared(hardware.name, "calibrated", (), shelf)
    for name, level in ((hardware.name, ()), *kin):
        yield from _of_engine(name, engine, version, level, shelf)
    for name, level in kin:
        if kind or name != hardware.kind:
            yield from _shared(name, _BASES[level[0]], level, shelf)
    if not kind:
        for name in dict.fromkeys((hardware.family, hardware.kind)):
            yield from _of_engine(name, engine, version, ("family",), shelf)
    for name in dict.fromkeys((hardware.family, product_line(hardware), *([hardware.kind] if kind else []))):
        if name not in (hardware.name, *(relative for relative, _ in kin)):
            yield from _shared(name, "family", ("family",), shelf)
    for name, level in ((hardware.name, ()), *kin):
        for other in others:
            yield from _of_engine(name, other, "", (*level, "engine"), shelf)
    yield from _shared("pooled", "pooled", ("pooled",), shelf)
    yield from _of_engine("pooled", engine, version, ("pooled",), shelf)
    for other in others:
        yield from _of_engine("pooled", other, "", ("pooled", "engine"), shelf)


def _kin(hardware: Hardware, shelf: Shelf) -> Iterator[tuple[str, tuple[Level, ...]]]:
    """The family of `hardware` and its measured members, with the level between them and it.

    The chips of a family whose memory is of another kind (HBM, GDDR) are as far as those of another family.
    """
    for name in families(hardware):
        if (document := shelf.document(name)) is None:
            continue
        members = [member for member in document.members if member != hardware.name]
        near = not members or families(load_hardware(members[0]))[0] == families(hardware)[0]
        level: Level = "family" if near else "pooled"
        yield from ((relative, (level,)) for relative in (name, *members))
        return


def _shared(name: str, basis: Basis, crossed: tuple[Level, ...], shelf: Shelf) -> Iterator[Calibration]:
    """The link of a file of kernels that all engines share."""
    document, fits = shelf.document(name), shelf.fits(name)
    if document is not None and fits is not None:
        yield replace(document.calibration, basis=basis, crossed=crossed, fits=fits)


_BASES: Mapping[Level, Basis] = {"version": "version", "family": "family", "engine": "engine", "pooled": "pooled"}


def _of_engine(name: str, engine: str, version: str, level: tuple[Level, ...], shelf: Shelf) -> Iterator[Calibration]:
    """The links of an engine's kernels on a device or family: of the version, then of the nearest other one."""
    for other in (False, True):
        if (fits := shelf.fits(f"{engine}/{name}", version, other)) is not None:
            crossed: tuple[Level, ...] = (*level, "version") if other else level
            basis = next((_BASES[one] for one in ("pooled", "engine", "family", "version") if one in crossed), None)
            yield Calibration(name, basis or "calibrated", fits, engine=engine, crossed=crossed)


class Calibrations(dict[tuple[Hardware, str, str, bool], Calibration]):
    """Calibrations by hardware, engine, version and `kind` (see `load_calibration`), each loaded once."""

    def __missing__(self, key: tuple[Hardware, str, str, bool]) -> Calibration:
        hardware, engine, version, kind = key
        found = self[key] = load_calibration(hardware, engine=engine, version=version, kind=kind)
        return found


@lru_cache(maxsize=256)
def _chained(first: Calibration, *parents: Calibration) -> Calibration:
    """`first` with its fallbacks: one object for equal links, so that it can be a cache key."""
    return replace(first, parents=parents)


@lru_cache(maxsize=128)
def _parse(path: Path, _modified: int) -> Document:
    return parse_document(read_mapping(path), str(path))


_TOP = ("name", "engine", "members", "source", "kernels", "versions")
_SOURCE = ("repository", "commit", "software", "date", "command")
_FIT = ("source", "parameters", "rows", "range", "residuals", "held_out")


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
        named = _words(version, where, "versions")
        Version(named)
        versions[named] = {
            key: replace(fit, version=named) for key, fit in _kernels(kernels, where, f"versions.{named}").items()
        }
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
            fits[op, format] = _fit(op, format, as_mapping(body, where, f"{place}.{op}.{format}"), where)
    return MappingProxyType(fits)


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
    held_out = body.get("held_out", False)
    if not isinstance(held_out, bool):
        raise SpecError(where, f"{quote(f'{place}.held_out')} must be true or false")
    evidence = MappingProxyType(residuals), MappingProxyType(ranges)
    return Fit(op, format, MappingProxyType(values), *evidence, rows, source, held_out=held_out)


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
