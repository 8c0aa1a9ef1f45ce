"""Chains of calibrations: where the constants of an engine's kernels on a device are looked up, nearest first.

The files (`roofline.timing.calibration_files`) are found and read here, each when a kernel first needs it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Protocol

from msgspec.structs import replace

from roofline.core.documents import MAX_BYTES, bundled_path, parse_mapping
from roofline.core.inputs import read_text
from roofline.core.registry import cached
from roofline.specs.engine import Engine
from roofline.specs.hardware import SERVER_DEVICES, Hardware, load_hardware
from roofline.specs.library import File, extensions, files_below, overriding_files
from roofline.timing.calibration import POOLED_VENDOR, Basis, Calibration, Fit, Fits, chained
from roofline.timing.calibration_files import Document, of_version, parse_document
from roofline.timing.intervals.levels import Level
from roofline.timing.kernels import launch_factor
from roofline.timing.kernels.common import unit_clocks

ENGINES = ("vllm", "sglang", "tensorrt-llm")
"""Engines whose kernels were measured, the most measured first: the order in which they stand in for others."""

FOLDER = "calibration"
"""The folder of `hwspecs` with the calibration files."""


OTHER = 1.25
"""Least ratio of FLOP in a cycle at which a sibling's matrix units count as others, beyond rounded clocks and peaks."""

Calibrate = Callable[[Hardware, Engine], Calibration]
"""Finds the constants of an engine's kernels on hardware, as `engine_calibration` does."""


class FileFits(Mapping[tuple[str, str], Fit]):
    """The fits of one version in a file, parsed when a kernel that its text may have is first asked for.

    `version` names the engine's version, "" the newest; with `other`, the nearest version of each kernel but that one.
    """

    def __init__(self, file: File, version: str = "", other: bool = False) -> None:
        self._key = file, version, other

    @cached_property
    def _fits(self) -> Fits:
        file, version, other = self._key
        document = _parse(file)
        source, found = str(document.calibration.source), of_version(document.versions, version, other)
        return {key: fit if fit.source else replace(fit, source=source) for key, fit in found.items()}

    def __getitem__(self, key: tuple[str, str]) -> Fit:
        # Parsing takes tens of milliseconds, and of the dozens of files of a chain few have a kernel.
        if "_fits" not in vars(self) and not _may_have(self._key[0], *key):
            raise KeyError(key)
        return self._fits[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._fits)

    def __len__(self) -> int:
        return len(self._fits)

    @property
    def digest(self) -> str:
        """A digest of the version, of the file's content and of what extends the program, equal on every machine.

        What is computed with constants depends on the kernel models and techniques that are registered.
        """
        file, version, other = self._key
        return f"{version} {other} {hashlib.sha256(_text(file).encode()).hexdigest()} {extensions()}".rstrip()


_file_fits = cached(maxsize=512)(FileFits)
"""One object for equal arguments, so that each file is parsed once."""


@lru_cache(maxsize=128)
def _text(file: File) -> str:
    return read_text(file.path, MAX_BYTES)


def _may_have(file: File, op: str, format: str) -> bool:
    """Whether a file's text mentions a format in the block of an op; True where it is written in another way."""
    text = _text(file)
    if "\\" in text:
        return True
    return op in text and format in text and ((block := _block(file, op)) is None or format in block)


@lru_cache(maxsize=1024)
def _block(file: File, op: str) -> str | None:
    """The lines below the key of an op, in all versions; None where it is written in another way, or has aliases."""
    text = f"{_text(file)}\n"
    blocks = re.findall(rf"^( *){re.escape(op)}:\n((?:\1 .*\n| *(?:#.*)?\n)*)", text, re.M)
    return None if "*" in text or len(blocks) < text.count(op) else "".join(block for _, block in blocks)


@cached(maxsize=128)
def _parse(file: File) -> Document:
    return parse_document(parse_mapping(_text(file), file.path), str(file.path))


def families(hardware: Hardware) -> tuple[str, ...]:
    """The names of the family calibrations of `hardware`, nearest first.

    Members with HBM, GDDR and LPDDR are different chips: `blackwell-gddr` before `blackwell`.
    """
    own = hardware.memory_class not in ("", "hbm")
    return (f"{hardware.family}-{hardware.memory_class}", hardware.family) if own else (hardware.family,)


def instructions(hardware: Hardware) -> str:
    """The matrix instructions of a device, by its family; Blackwell with HBM has others than the rest of Blackwell."""
    return "tcgen05" if hardware.has_tensor_memory else f"mma of {hardware.family}"


def product_line(hardware: Hardware) -> str:
    """The calibration name of a vendor's product line of numbered families: `cdna` for `cdna3` and `cdna4`."""
    return hardware.family.rstrip("0123456789")


LINKS = ("nvlink", "pcie")
"""The calibrations of collectives over each kind of link."""


def link_of(hardware: Hardware) -> str:
    """The calibration of collectives over the link of a whole server of such devices; "" for other links."""
    if hardware.over_host(SERVER_DEVICES):
        return "pcie"
    return "nvlink" if any(link.kind.startswith("NVLink") for link in hardware.interconnects) else ""


class Shelf(Protocol):
    """Where calibrations are looked up by name, such as `h100-sxm`, or `sglang/hopper` for those of an engine."""

    def members(self, family: str) -> tuple[str, ...] | None:
        """The measured devices of a family; None if there is no calibration of this name."""

    def fits(self, name: str, version: str = "", other: bool = False) -> Fits | None:
        """The fits of a version (see `FileFits`); None if there is no calibration of this name."""


class Files(dict[str, File]):
    """Calibration files by name."""

    def members(self, family: str) -> tuple[str, ...] | None:
        """The members that the family's file lists; raises SpecError for an invalid one."""
        return _parse(self[family]).members if family in self else None

    def fits(self, name: str, version: str = "", other: bool = False) -> Fits | None:
        """The fits of a version in the file of this name."""
        return _file_fits(self[name], version, other) if name in self else None


def engine_calibration(hardware: Hardware, engine: Engine) -> Calibration:
    """The calibrations of `hardware` for an engine, none for one whose kernels are at their roofs.

    See `load_calibration`.
    """
    if engine.at_roofs:
        return Calibration(hardware.name, "bound")
    name, version = engine.measured_as(hardware)
    return load_calibration(hardware, engine=name, version=version, kind=engine.uses_calibrated_kernels(hardware))


def load_calibration(hardware: Hardware, *, engine: str = "", version: str = "", kind: bool = True) -> Calibration:
    """The calibrations of `hardware` for an engine's version, nearest first.

    Without an engine they are those of the engine with most measurements, without a version of its newest measured one.
    `kind` includes the calibration of the hardware's kind, such as `cpu`, whose kernels not every engine runs: without
    it those of the kind in the engine's own folder are included. A file of `ROOFLINE_SPECS` comes first for any engine
    that runs these kernels. Raises SpecError for an invalid file.
    """
    own = overriding_files(FOLDER, "hwspecs")
    first = own.pop(hardware.name, None) if kind else None
    return _load(hardware, first, engine, version, kind, tuple(own.items()))


@cached(maxsize=1024)
def _load(
    hardware: Hardware, first: File | None, engine: str, version: str, kind: bool, own: tuple[tuple[str, File], ...]
) -> Calibration:
    links = [] if first is None else [replace(_parse(first).calibration, fits=FileFits(first))]
    links += calibration_links(hardware, engine, version, kind, Files({**_bundled_files(), **dict(own)}))
    return chained(links, hardware.name)


@lru_cache(maxsize=1)
def _bundled_files() -> dict[str, File]:
    return files_below(bundled_path("hwspecs") / FOLDER)


def calibration_links(hardware: Hardware, engine: str, version: str, kind: bool, shelf: Shelf) -> Iterator[Calibration]:
    """The places on a shelf with constants for an engine's kernels on `hardware`, nearest first."""
    for link in _links(hardware, engine or ENGINES[0], version, kind, shelf):
        if "family" in link.crossed:
            yield replace(link, unit_peaks=_unit_peaks(link.name, hardware, shelf))
        else:
            yield replace(link, launch=launch_factor(hardware)) if link.name == "pooled" else link


def _links(hardware: Hardware, engine: str, version: str, kind: bool, shelf: Shelf) -> Iterator[Calibration]:
    others = [name for name in ENGINES if name != engine]
    kin = list(_kin(hardware, shelf))
    if kind:
        yield from _shared(hardware.name, "calibrated", ("table",), shelf)
    for name, level in ((hardware.name, ()), *kin):
        yield from _of_engine(name, engine, version, level, shelf)
    yield from _shared(link_of(hardware), "pooled", ("pooled",), shelf)
    for name, level in kin:
        if kind or name != hardware.kind:
            yield from _shared(name, _BASES[level[0]], level, shelf)
    near = {relative for relative, _ in kin}
    for name in dict.fromkeys((hardware.family, *(() if kind else (hardware.kind,)))):
        if name not in near and not shelf.members(name):
            yield from _of_engine(name, engine, version, ("family",), shelf)
    for name in dict.fromkeys((hardware.family, product_line(hardware), *([hardware.kind] if kind else []))):
        if name not in (hardware.name, *near) and not shelf.members(name):
            yield from _shared(name, "family", ("family",), shelf)
    for name, level in ((hardware.name, ()), *kin):
        for other in others:
            yield from _of_engine(name, other, "", (*level, "engine"), shelf)
    yield from _shared("pooled", "pooled", ("pooled",), shelf)
    # On another vendor's devices an engine runs another library: as far as two engines are apart.
    far: tuple[Level, ...] = ("pooled",) if hardware.vendor == POOLED_VENDOR else ("pooled", "engine")
    yield from _of_engine("pooled", engine, version, far, shelf)
    for other in others:
        yield from _of_engine("pooled", other, "", ("pooled", "engine"), shelf)


def _kin(hardware: Hardware, shelf: Shelf) -> Iterator[tuple[str, tuple[Level, ...]]]:
    """The family of `hardware` and its measured members, those with its matrix units first, with the level between.

    The chips of a family whose memory is of another kind are as far as those of another family; those with other matrix
    instructions are no relatives.
    """
    for name in dict.fromkeys((*families(hardware), f"{hardware.family}-gddr")):
        if (listed := shelf.members(name)) is None:
            continue
        members = [member for member in listed if member != hardware.name]
        measured = [load_hardware(member) for member in members]
        if any(instructions(one) != instructions(hardware) for one in measured):
            continue
        near = not members or families(measured[0])[0] == families(hardware)[0]
        level: Level = "family" if near else "pooled"
        members.sort(key=lambda member: len(_unit_peaks(member, hardware, shelf)))
        yield from ((relative, (level,)) for relative in (name, *members))
        return


def _unit_peaks(name: str, hardware: Hardware, shelf: Shelf) -> Mapping[str, tuple[float, float]]:
    """FLOP in a cycle of the multiprocessors of a family or its member, and of those of `hardware`, where they differ.

    Such hardware has the multiprocessors of its family with other matrix units: fewer or slower ones (H20, GeForce), or
    faster ones for a format (FP4 of Blackwell Ultra). Without both clocks, they count as equal.
    """
    listed = next((found for family in families(hardware) if (found := shelf.members(family)) is not None), ())
    members = [member for member in listed if member != hardware.name]
    if not members or name not in (*families(hardware), *members):
        return {}
    measured = load_hardware(name if name in members else members[0])
    if not (hardware.units and measured.units):
        return {}
    clocks = (measured.clock, hardware.clock) if measured.clock and hardware.clock else (1.0, 1.0)
    counts = measured.units * clocks[0], hardware.units * clocks[1]
    ratios = {
        arithmetic: peak / counts[0] / (hardware.tensor[arithmetic] / counts[1])
        for arithmetic, peak in measured.tensor.items()
        if arithmetic in hardware.tensor
    }
    there = {arithmetic: measured.tensor[arithmetic] / unit_clocks(measured) for arithmetic in ratios}
    return {one: (there[one], there[one] / ratio) for one, ratio in ratios.items() if max(ratio, 1.0 / ratio) > OTHER}


def _shared(name: str, basis: Basis, crossed: tuple[Level, ...], shelf: Shelf) -> Iterator[Calibration]:
    """The link of the kernels that all engines share."""
    if (fits := shelf.fits(name)) is not None:
        yield Calibration(name, basis, fits, crossed=crossed)


_BASES: Mapping[Level, Basis] = {"version": "version", "family": "family", "engine": "engine", "pooled": "pooled"}


def _of_engine(name: str, engine: str, version: str, level: tuple[Level, ...], shelf: Shelf) -> Iterator[Calibration]:
    """The links of an engine's kernels on a device or family: of the version, then of the nearest other one."""
    for other in (False, True):
        if (fits := shelf.fits(f"{engine}/{name}", version, other)) is not None:
            crossed: tuple[Level, ...] = (*level, "version") if other else level
            basis = next((_BASES[one] for one in ("pooled", "engine", "family", "version") if one in crossed), None)
            yield Calibration(name, basis or "calibrated", fits, engine=engine, version=version, crossed=crossed)
