"""Estimate the variance components of the levels between measured constants and their use (`timing.intervals.levels`).

Every version on a device is predicted with constants that crossed one level: those of a near or far version of the
engine, of other tables of a kernel that engines share, of the same version on another device of the family, of another
engine on the device, of the engine on devices of other families, and of a related format. The component of a level is
the standard deviation that, added to the interval of the constants, makes it hold 80% of the rows, each version on a
device counting the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from lab.fit.hierarchy import (
    GRAPHED,
    Data,
    Key,
    Node,
    Place,
    Table,
    fit_elsewhere,
    fit_shared_kernel,
    outside,
    tables_left_out,
)
from lab.observation.collector import NO_HOST
from roofline.specs.hardware import load_hardware
from roofline.specs.version import Version, closest
from roofline.timing.calibration import RELATIVES, SHARED, Calibration, Fit, for_other_engine
from roofline.timing.chains import families
from roofline.timing.intervals.kernels import TO_P90
from roofline.timing.intervals.levels import LEVELS, Level
from roofline.timing.kernels import Array
from roofline.validate.fit.calibrate import drawn
from roofline.validate.tables.rows import Measurements

SAMPLE = 250
"""Rows of a version on a device that are predicted."""

TABLES = 3
"""Tables of a shared kernel on a device that are predicted from the others: each takes a fit."""

COVERAGE = 0.8
"""Fraction of the rows that an interval is to hold."""

LEAST, MOST = 0.02, 1.5
"""Smallest and largest component."""

TWINS = 0.08
"""Smallest component of another device of the family: the measured pairs (H100 and H200, B200 and GB200) are one chip
with other memories or clocks, which says little about members with fewer units or other peaks."""

FEWEST, FEWEST_OF_FORMAT = 4, 8
"""Predictions from which a kind of kernel, and one in one format, has a component of its own."""


class Crossing(NamedTuple):
    """The errors of constants that crossed a level, in logarithms, and the ends of their interval."""

    key: Key
    place: Place
    level: Level
    errors: Array
    below: Array
    above: Array

    def covered(self, spread: float) -> float:
        """The fraction of rows inside the interval with this standard deviation added."""
        extra = TO_P90 * spread
        inside = (self.errors >= -np.hypot(self.below, extra)) & (self.errors <= np.hypot(self.above, extra))
        return float(np.mean(inside))


def crossings(
    data: Data, found: Mapping[Key, Sequence[Node]], run: Callable[..., Iterable[list[Crossing]]] = map
) -> Iterator[Crossing]:
    """The predictions of every version on a device across each level; `run` is a map, such as that of a pool."""
    for part in run(partial(_of_table, found=found), data.tables.keys(), data.tables.values()):
        yield from part


def _of_table(key: Key, table: Table, found: Mapping[Key, Sequence[Node]], seed: int = 1) -> list[Crossing]:
    """The crossings of one op and format."""
    leaves = {key: {(node.place, node.origin): node.fit for node in nodes} for key, nodes in found.items()}
    own = {place: fit for place, fit in leaves.get(key, {}).items() if place in table}
    together = {node.origin.engine: node.fit for node in found.get(key, ()) if node.place == "pooled"}
    elsewhere: dict[tuple[str, str], Fit | None] = {}
    crossed = []
    for place, fitted in own.items():
        rows = drawn(table[place], SAMPLE, seed)
        for level, fits in _across(key, place, own, leaves).items():
            for fit in fits:
                known = for_other_engine(fit) if level == "engine" else fit
                crossed.append(_crossing(key, place, level, with_host_of(known, fitted, level), rows))
        if key in SHARED:
            crossed += _of_tables(key, place, table[place], found[key])
        engine, family = place[1].engine, families(load_hardware(place[0]))[0]
        if (engine, family) not in elsewhere:
            start = together.get(engine, fitted)
            elsewhere[engine, family] = fit_elsewhere(key, table, engine, start, outside(key[0], place[0]))
        if (pooled := elsewhere[engine, family]) is not None:
            crossed.append(_crossing(key, place, "pooled", with_host_of(pooled, fitted), rows))
    return crossed


def _of_tables(key: Key, place: Place, rows: Measurements, nodes: Sequence[Node], seed: int = 1) -> Iterator[Crossing]:
    """Each table of a kernel that engines share on one device, with constants fitted to the others."""
    device = load_hardware(place[0])
    for origin, part, rest in list(tables_left_out(rows))[-TABLES:]:
        fit = fit_shared_kernel(key, rest, device, nodes)
        yield _crossing(key, (place[0], origin), "table", fit, drawn(part, SAMPLE, seed))


def _across(
    key: Key, place: Place, own: Mapping[Place, Fit], leaves: Mapping[Key, Mapping[Place, Fit]]
) -> dict[Level, list[Fit]]:
    """The constants one level away from a place."""
    (op, format), (name, (engine, version)) = key, place
    family = families(load_hardware(name))[0]
    versions = {other.version: fit for (device, other), fit in own.items() if (device, other.engine) == (name, engine)}
    versions.pop(version, None)
    others: dict[str, Place] = {}
    for device, origin in own:
        if device == name and origin.engine != engine:
            newest = others.get(origin.engine)
            if newest is None or Version(newest[1].version) < Version(origin.version):
                others[origin.engine] = device, origin
    found: dict[Level, list[Fit]] = {
        "family": [
            fit
            for (device, origin), fit in own.items()
            if device != name and origin == place[1] and families(load_hardware(device))[0] == family
        ],
        "engine": [own[other] for other in others.values()],
    }
    if version and versions:
        other = closest(Version(version), map(Version, versions))
        found["release" if other.is_far(Version(version)) else "version"] = [versions[other.text]]
    related = RELATIVES.get(f"{op} {format}") or RELATIVES.get(format, ())
    near = next((fit for other in related[:1] if (fit := leaves.get((op, other), {}).get(place)) is not None), None)
    return found | ({"format": [near]} if near is not None else {})


def _crossing(key: Key, place: Place, level: Level, fit: Fit, rows: Measurements) -> Crossing:
    hardware = load_hardware(place[0])
    calibration = Calibration("", "calibrated", {key: replace(fit, op=key[0], format=key[1])})
    expected = GRAPHED.expected(GRAPHED.rows(rows), hardware, calibration)
    ends = (np.log(np.maximum(one, 1e-12)) for one in (expected.low, expected.mid, expected.high))
    low, mid, high = ends
    return Crossing(key, place, level, np.log(rows.seconds) - mid, mid - low, high - mid)


def with_host_of(fit: Fit, other: Fit, level: Level = "pooled") -> Fit:
    """The fit with the host time of another one, where it has none: another engine's is not the table's."""
    own = {} if level == "engine" else fit.observed
    if own.get("host", 0.0) > NO_HOST:
        return fit
    hosts = {name: value for name, value in other.observed.items() if name.startswith("host")}
    return replace(fit, observed={**{k: v for k, v in fit.observed.items() if not k.startswith("host")}, **hosts})


def components(found: Sequence[Crossing]) -> dict[str, dict[Level, float]]:
    """The component of every level by kind of kernel and format, by kind, and under `other` over all kinds.

    A format with few predictions across a level has the component of its kind there, a kind that of all. A format has
    at least half the component of its kind: its places are few, and siblings among them agree.
    """
    estimated: dict[str, dict[Level, float]] = {"other": _by_level(found, {}, 0)}
    for op in dict.fromkeys(one.key[0] for one in found):
        own = [one for one in found if one.key[0] == op]
        estimated[op] = _by_level(own, estimated["other"], FEWEST)
        for key in dict.fromkeys(one.key for one in own):
            measured = _by_level([one for one in own if one.key == key], estimated[op], FEWEST_OF_FORMAT)
            of_format = {level: max(one, estimated[op][level] / 2) for level, one in measured.items()}
            if of_format != estimated[op]:
                estimated[" ".join(key)] = of_format
    return estimated


def _by_level(found: Sequence[Crossing], wider: Mapping[Level, float], fewest: int) -> dict[Level, float]:
    """The component of every level, that of `wider` for fewer than `fewest` predictions.

    Versions several releases apart differ at least as much as near ones.
    """
    estimated: dict[Level, float] = {}
    for level in LEVELS:
        at = [one for one in found if one.level == level]
        least = TWINS if level == "family" else LEAST
        measured = component(at, least) if len(at) >= fewest else wider[level]
        estimated[level] = max(measured, estimated["version"]) if level == "release" else measured
    return estimated


def component(found: Sequence[Crossing], least: float = LEAST) -> float:
    """The standard deviation, at least `least`, with which the mean coverage is 80% (bisection)."""
    low, high = least, MOST
    if not found:
        return high / 2
    for _ in range(30):
        middle = (low + high) / 2
        if np.mean([one.covered(middle) for one in found]) < COVERAGE:
            low = middle
        else:
            high = middle
    return float(f"{high:.2g}")


def render(estimated: Mapping[str, Mapping[Level, float]], command: str) -> str:
    """The text of the file of components."""
    lines = [f"# Standard deviations of log(measured / predicted) that each level adds: {command}", "components:"]
    for op in sorted(estimated, key=lambda name: (name == "other", name)):
        values = ", ".join(f"{level}: {estimated[op][level]:g}" for level in LEVELS)
        lines.append(f"  {op}: {{{values}}}")
    return "\n".join(lines) + "\n"
